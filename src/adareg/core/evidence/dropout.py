"""How strong the dropout on the inputs of a layer should be: a fixed point of the evidence.

A layer's inputs are multiplied by independent masks of mean one and variance c, which is dropout at
the rate ``δ = c/(1 + c)``. To second order that raises a sample's loss, in nats, by ``½·c·t``, with
t the curvature of the loss along the masks: for a linear map ``tr(G W diag(A) Wᵀ)``. It is the
penalty of a matrix-normal prior with Ωr = G and Ωc = n·c·diag(A), of which one number is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from adareg.core.evidence.constants import DEFAULTS, Constants


def rate(variance: float) -> float:
    """Return the rate of the dropout whose masks have this variance, ``c/(1 + c)``."""
    return variance / (1 + variance)


def variance(rate: float) -> float:
    """Return the variance of the masks of dropout at this rate, ``δ/(1 − δ)``."""
    return rate / (1 - rate)


def sensitivity(gradients: Iterable[Tensor], samples: int) -> Tensor:
    """Return t: the curvature of a sample's loss along the masks of a layer, in nats.

    Args:
        gradients: of ``Σ v·o`` over the samples, with respect to all masks of a layer; v is a
            direction at a sample's outputs o whose second moment is the curvature of its loss.
        samples: how many these are.
    """
    return torch.stack([g.double().square().sum() for g in gradients]).sum() / samples


def refit_variances(
    variances: Mapping[str, float],
    sensitivities: Mapping[str, float],
    gamma: Mapping[str, float],
    data: float,
    constants: Constants = DEFAULTS,
) -> dict[str, float]:
    """Return new variances, by layer: MacKay's fixed point ``c = γ/(n·t)``.

    Args:
        variances: the old ones, 0 where there was no noise.
        sensitivities: t, of the layers that are refitted.
        gamma: γ of all layers of the network.
        data: what a sample determines of its own predictions, γ/n of all layers together.
        constants: how far to go, in logarithms, but all the way where there was no noise; and
            the largest rate.
    """
    whole, most, step = sum(gamma.values()), variance(constants.most_dropout), constants.step
    found = dict(variances)
    for name, t in sensitivities.items():
        cost = data * gamma[name] / whole if whole > 0 else 0.0
        new = cost / t if t * most > cost else most * (cost > 0)
        old = variances[name]
        found[name] = old ** (1 - step) * new**step if old > 0 else new
    return found
