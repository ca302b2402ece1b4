"""Targets with Student's t as noise, for outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.likelihood import Gaussian
from adareg.core.evidence.tabular import (
    NOISE_AT_START,
    CrossValidated,
    Fitted,
    TableLikelihood,
    left,
)

#: Degrees of freedom that are tried while learning, up to what is nearly Gaussian. Heavier tails
#: than these took a network's own errors for outliers: yacht and energy were predicted worse.
_DEGREES = (5.0, 7.0, 10.0, 15.0, 30.0, 100.0)

#: Error bars may have heavier tails, which have a variance all the same.
_DEGREES_IN_THE_END = (3.0, 4.0, *_DEGREES)

#: Rounds of expectation and maximisation for a scale.
_ROUNDS = 30


@dataclass(frozen=True)
class Student(Gaussian, TableLikelihood):
    """K standardised targets with Student's t as noise: of each a scale s and degrees of freedom ν.

    The noise is (2, K): s² and ν. Curvature is the expected one, ``(ν + 1)/(ν + 3)/s²``.

    Args:
        least: the smallest s², (K,): of rounded targets more than zero, or a density has no end.
    """

    least: Tensor

    name: ClassVar[str] = "student"
    bends: ClassVar[bool] = True
    constant: ClassVar[bool] = True

    def first_noise(self, targets: Tensor) -> Tensor:  # (2, K)
        """Return a share of the variance of standardised targets, and five degrees of freedom."""
        scale = torch.full_like(targets[0], NOISE_AT_START)
        return torch.stack([scale, torch.full_like(scale, 5.0)])

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return the log density of Student's t, summed over targets."""
        return log_density(outputs - targets, noise).sum(-1)

    def whiten(self, vectors: Tensor, noise: Tensor) -> Tensor:
        """Return vectors in output space in units of the expected curvature."""
        return vectors * _curvature(noise).sqrt()

    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return the likeliest scale and degrees of freedom at residuals of samples left out.

        Of a leverage h and a curvature Λ that residual is ``r + h/(1 − h)/Λ·ψ``, ψ being the
        gradient of −log-likelihood: what is far out has pulled little.
        """
        noise, each = self.likeliest(fitted, 1 / left(fitted) - 1)
        return CrossValidated(noise, float(each.sum()))

    def remaining_noise(self, fitted: Fitted) -> Tensor:
        """Return the likeliest at residuals that are made larger half as much."""
        r = enlarged(fitted, left(fitted).rsqrt() - 1)
        return likeliest(r, fitted.weight, self.least, _DEGREES_IN_THE_END)[0]

    def noise_variance(self, noise: Tensor) -> Tensor:
        """Return ``s²·ν/(ν − 2)``."""
        square, degrees = noise
        return square * degrees / (degrees - 2)

    def likeliest(self, fitted: Fitted, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest noise, and its worth, at residuals enlarged by a share of a pull."""
        return likeliest(enlarged(fitted, share), fitted.weight, self.least)


def log_density(r: Tensor, noise: Tensor) -> Tensor:  # (…, K), (2, K) -> (…, K)
    """Return the log density of Student's t at residuals."""
    square, degrees = noise
    constant = (
        torch.lgamma((degrees + 1) / 2)
        - torch.lgamma(degrees / 2)
        - (math.pi * degrees * square).log() / 2
    )
    return constant - (degrees + 1) / 2 * (r.square() / (degrees * square)).log1p()


def _curvature(noise: Tensor) -> Tensor:  # (K,)
    square, degrees = noise
    return (degrees + 1) / (degrees + 3) / square


def enlarged(fitted: Fitted, share: Tensor) -> Tensor:  # (n, K)
    """Return residuals, enlarged by a share of what each sample has pulled."""
    r, (square, degrees) = fitted.targets - fitted.outputs, fitted.noise
    pull = (degrees + 1) * r / (degrees * square + r.square())
    return r + share * pull / _curvature(fitted.noise)


def likeliest(
    r: Tensor, weight: Tensor, least: Tensor, tried: Sequence[float] = _DEGREES
) -> tuple[Tensor, Tensor]:  # (2, K), (K,)
    """Return the likeliest noise of weighted residuals, and their log-likelihood."""
    share = weight / weight.sum()
    degrees = torch.tensor(tried).to(r).view(-1, 1, 1).expand(-1, 1, r.shape[1])
    square = (share @ r.square()).maximum(least).expand_as(degrees)
    for _ in range(_ROUNDS):
        weighted = (degrees + 1) * r.square() / (degrees + r.square() / square)
        square = torch.einsum("n,dnk->dk", share, weighted).unsqueeze(1).clamp(min=least)
    each = torch.stack([square, degrees])  # (2, degrees, 1, K)
    worth = torch.einsum("n,dnk->dk", weight, log_density(r, each))
    best = worth.argmax(0, keepdim=True)
    noise = each.squeeze(2).gather(1, best.expand(2, -1, -1)).squeeze(1)
    return noise, worth.gather(0, best).squeeze(0)
