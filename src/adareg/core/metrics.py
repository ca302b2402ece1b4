"""Measures of a weight: stable rank, spectral norm, correlations between rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adareg.core.linalg import (
    check_matrix,
    check_square,
    inner,
    lengthwise,
    result_dtype,
    whole,
    wide,
)


def spectral_norm(weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
    """Return the largest singular value ``‖W‖₂``.

    >>> import adareg, torch
    >>> adareg.spectral_norm(torch.diag(torch.tensor([3.0, 4.0])))
    tensor(4.)
    """
    return _gram_norms(weight)[1].sqrt().to(result_dtype(weight))


def stable_rank(weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
    """Return ``‖W‖_F² / ‖W‖₂²``, between 1 and the rank; 0 for a zero matrix, like its rank.

    >>> import adareg, torch
    >>> adareg.stable_rank(torch.diag(torch.tensor([3.0, 4.0])))
    tensor(1.5625)
    """
    frobenius, spectral = _gram_norms(weight)
    return torch.where(spectral == 0, 0.0, frobenius / spectral).to(result_dtype(weight))


def correlation(weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, p)
    """Return Pearson correlations between rows: in a last layer, between classes or tasks.

    As the paper draws it for the softmax layer. A constant row has no correlation: its
    entries are NaN, as in ``numpy.corrcoef``. For the correlation that a *prior* has
    learned, give :func:`covariance_correlation` its covariance. A sharded weight is gathered.

    >>> import adareg, torch
    >>> adareg.correlation(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    check_matrix(weight, "weight")
    weight = whole(weight)
    centred = weight - weight.mean(-1, keepdim=True)
    return covariance_correlation(inner(centred)).to(result_dtype(weight))


def covariance_correlation(covariance: Tensor) -> Tensor:  # (…, n, n) -> (…, n, n)
    """Divide a covariance by its standard deviations: ``Σij / √(Σii·Σjj)``.

    >>> import adareg, torch
    >>> adareg.covariance_correlation(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    check_square(covariance, "covariance")
    scale = covariance.diagonal(dim1=-2, dim2=-1).rsqrt()
    return (covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)).clamp(-1, 1)


@torch.no_grad()
def _gram_norms(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``‖W‖_F²`` and ``‖W‖₂²`` in float64; NaN for a weight that is not finite."""
    check_matrix(weight, "weight")
    G = inner(wide(lengthwise(weight)))
    frobenius = G.diagonal(dim1=-2, dim2=-1).sum(-1)
    finite = frobenius.isfinite()
    spectral = torch.linalg.eigvalsh(torch.where(finite[..., None, None], G, 0.0))[..., -1]
    unknown = torch.where(finite, 0.0, math.nan)
    return frobenius + unknown, spectral.clamp(min=0) + unknown
