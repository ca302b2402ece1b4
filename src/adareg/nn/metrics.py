"""Numbers to log of a layer: the state of its weight, of its prior, and of both together."""

from __future__ import annotations

import torch
from torch import Tensor

from adareg.core.linalg import result_dtype, whole
from adareg.core.metrics import spectral_norm, stable_rank
from adareg.core.prior import MatrixNormal


def layer_metrics(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    strength: float,
) -> dict[str, Tensor]:
    """Return scalars by name, the penalty first.

    Args:
        weight: of grouped weights, the mean rank and the largest norm are given.
        prior: the layer's.
        strength: λ.
    """
    penalty = strength * prior.penalty(weight).sum()
    energy = whole(weight.to(result_dtype(weight)).square().sum())
    return {
        "penalty": penalty,
        "stable_rank": stable_rank(weight).mean(),
        "spectral_norm": spectral_norm(weight).max(),
        "effective_weight_decay": torch.where(energy == 0, 0.0, 2 * penalty / energy),
    }


def clipped(prior: MatrixNormal, bounds: tuple[float, float]) -> dict[str, Tensor]:
    """Return the share of the precisions' eigenvalues on each bound."""
    u, v = bounds
    spectrum = torch.cat([prior.row.eigenvalues(), prior.col.eigenvalues()], dim=-1)
    low, high = spectrum <= u * (1 + 1e-6), spectrum >= v * (1 - 1e-6)
    return {"clipped_low": low.double().mean(), "clipped_high": high.double().mean()}
