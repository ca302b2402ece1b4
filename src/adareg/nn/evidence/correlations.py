"""Correlations between the rows of a weight, with intervals from its posterior."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence import update
from adareg.core.evidence.curvature import Curvature, ignores_common_row
from adareg.core.linalg import result_dtype
from adareg.core.metrics import correlation
from adareg.core.prior import MatrixNormal

#: Draws from a posterior: at most and at least, in between as many as have so many entries; and how
#: many of them are made at once, to bound memory.
_MOST, _LEAST, _ENTRIES, _AT_ONCE = 400, 100, 2**27, 10

#: Elements that ``torch.quantile`` takes at most.
_QUANTILE_LIMIT = 2**24


class Correlations(NamedTuple):
    """Correlations between the rows of a weight, with a 95 % interval from the posterior."""

    mean: Tensor  # (…, p, p)
    low: Tensor
    high: Tensor


def draw_correlations(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    curvature: Curvature,
    n: int,
    seed: int,
) -> Correlations:
    """Return correlations over draws from the posterior.

    Of a softmax layer the mean over classes is taken off first: it has no effect.
    """
    found = update.posterior(prior, curvature, n)
    generator = torch.Generator("cpu").manual_seed(seed)
    count = min(_MOST, max(_LEAST, _ENTRIES // weight.numel()))
    drawn = []
    for _ in range(0, count, _AT_ONCE):
        weights = update.sample(weight, found, _AT_ONCE, generator)
        if ignores_common_row(curvature):
            weights = weights - weights.mean(-2, keepdim=True)
        drawn.append(correlation(weights).to(result_dtype(weight)))
    return Correlations(*_summary(torch.cat(drawn)))


def _summary(drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (draws, …)
    """Return mean, 2.5 % and 97.5 % quantile, in chunks that ``torch.quantile`` takes."""
    at = drawn.new_tensor([0.025, 0.975])
    flat = drawn.flatten(1)
    chunks = flat.split(_QUANTILE_LIMIT // len(flat), 1)
    low, high = torch.cat([torch.quantile(chunk, at, dim=0) for chunk in chunks], -1).unflatten(
        -1, drawn.shape[1:]
    )
    return drawn.mean(0), low, high
