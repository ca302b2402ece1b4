"""Likelihoods for tables: what leaving samples out says, samples being weighted.

A table is small enough to know how far each direction in output space is determined by the data
(its leverage). That tells a noise that does not vanish when training data are interpolated, and
how well samples would be predicted that were left out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.likelihood import Gaussian, Likelihood

#: Noise is at least this share of a standardised target's variance, and at most all of it.
LEAST_NOISE, MOST_NOISE = 1e-7, 1.0

#: Of the targets' variance so much is noise when training starts.
NOISE_AT_START = 0.3

#: Of larger tables so many samples are left out, where that takes each sample's own covariance.
_LEFT_OUT = 2000

#: Keeps the solution of nearly singular equations finite.
_TINY = 1e-9

#: A larger leverage is taken as this one: a sample keeps a say in the noise.
_MOST_LEVERAGE = 0.98


class CrossValidated(NamedTuple):
    """What leaving out each sample would say."""

    noise: Tensor
    log_likelihood: float


#: Gives the covariance (m, K, K) of each sample's outputs, at the samples of an index (m,).
Covariance = Callable[[Tensor], Tensor]


class Fitted(NamedTuple):
    """What is known of a table's samples at a state of the network."""

    outputs: Tensor  # (n, K)
    targets: Tensor  # (n, …), as the likelihood has checked them
    weight: Tensor  # (n,)
    noise: Tensor  # at which the rest is known
    leverage: Tensor  # (R,): the mean of a sample's, by direction of Likelihood.roots
    covariance: Covariance


class LeftOut(NamedTuple):
    """Outputs of samples that were left out: a Gaussian."""

    mean: Tensor  # (n, K)
    covariance: Tensor  # (n, K, K)


def leave_out(
    outputs: Tensor,  # (n, K)
    error: Tensor,  # (n, K): the gradient of −log-likelihood at them
    curvature: Tensor,  # (n, K, K)
    covariance: Tensor,  # (n, K, K)
) -> LeftOut:
    """Return outputs as if each sample had been left out.

    Of the posterior's covariance Σ that of a sample's outputs without it is ``Σ' = Σ(I − ΛΣ)⁻¹``,
    and they move by ``Σ'·error``: exact for the linearised network.
    """
    eye = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    wider = torch.linalg.solve(eye * (1 + _TINY) - covariance @ curvature, covariance)
    return LeftOut(outputs + torch.einsum("nkl,nl->nk", wider, error), wider)


def some(n: int, device: torch.device) -> Tensor:
    """Return the indices of samples that are left out: all, or every so many."""
    return torch.linspace(0, n - 1, min(n, _LEFT_OUT), device=device).round().long()


class TableLikelihood(Likelihood):
    """A likelihood of weighted samples that can be left out."""

    #: At most so many steps before the first refit of the prior, and between refits.
    settling: ClassVar[tuple[int, int]] = (1, 1)

    #: Learning stops after so many refits without a better state.
    patience: ClassVar[float] = 10

    #: Leverages are wanted of each direction, not only of all together.
    by_direction: ClassVar[bool] = True

    #: The k-th root is in the direction of the k-th output, and the same at all samples.
    constant: ClassVar[bool] = False

    #: Steps bend where the outputs do.
    bends: ClassVar[bool] = False

    @abstractmethod
    def first_noise(self, targets: Tensor) -> Tensor:
        """Return the noise that learning starts from."""

    @abstractmethod
    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return the noise, and the log-likelihood of all samples, as if each were left out."""

    @abstractmethod
    def remaining_noise(self, fitted: Fitted) -> Tensor:
        """Return the noise that belongs beside the variance of the outputs."""

    def noise_variance(self, noise: Tensor) -> Tensor:  # (K,)
        """Return the variance of targets around their outputs, at a remaining noise."""
        return noise


@dataclass(frozen=True)
class TargetNoise(Gaussian, TableLikelihood):
    """K standardised targets with Gaussian noise, of each target its own."""

    name: ClassVar[str] = "gaussian"
    settling: ClassVar[tuple[int, int]] = (1, 2)
    patience: ClassVar[float] = 5
    bends: ClassVar[bool] = True
    constant: ClassVar[bool] = True

    def first_noise(self, targets: Tensor) -> Tensor:  # (K,)
        """Return a share of the variance of standardised targets."""
        return torch.full_like(targets[0], NOISE_AT_START)

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``−½ Σ (y − o)²/σ² + log(2πσ²)``."""
        squares = (outputs - targets).square() / noise
        return -(squares + (2 * math.pi * noise).log()).sum(-1) / 2

    def whiten(self, vectors: Tensor, noise: Tensor) -> Tensor:
        """Return vectors in output space in units of the noise."""
        return vectors / noise.sqrt()

    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return generalised cross-validation's ``RSS/n/(1 − γ/n)²``, and what it is worth."""
        r = (fitted.targets - fitted.outputs) / left(fitted)
        noise = (fitted.weight @ r.square() / fitted.weight.sum()).clamp(LEAST_NOISE, MOST_NOISE)
        worth = -fitted.weight.sum() * (2 * math.pi * math.e * noise).log().sum() / 2
        return CrossValidated(noise, float(worth))

    def remaining_noise(self, fitted: Fitted) -> Tensor:  # (K, K)
        """Return ``RSS/(n − γ)`` as a covariance of the targets."""
        r = (fitted.targets - fitted.outputs) / left(fitted).sqrt()
        return covariance_of(r, fitted.weight)

    def noise_variance(self, noise: Tensor) -> Tensor:
        """Return the diagonal."""
        return noise.diagonal()


def covariance_of(r: Tensor, weight: Tensor) -> Tensor:  # (n, K) -> (K, K)
    """Return the covariance of weighted residuals, with correlations as far as n samples tell.

    That is ``n/(n + K + 1)`` of them, an inverse Wishart prior's share.
    """
    n, K = weight.sum(), r.shape[1]
    found = (r * weight.unsqueeze(1)).mT @ r / n
    variances = found.diagonal().clamp(min=torch.finfo(r.dtype).tiny)
    correlations = found / (variances * variances.unsqueeze(1)).sqrt() * (n / (n + K + 1))
    correlations = correlations.fill_diagonal_(1)
    deviations = variances.clamp(LEAST_NOISE, MOST_NOISE).sqrt()
    return correlations * deviations * deviations.unsqueeze(1)


def left_out(outputs: Tensor, targets: Tensor, leverage: Tensor) -> Tensor:  # (n, K)
    """Return predictions of samples that are left out, from Gaussian noise and mean leverages."""
    return targets - (targets - outputs) / (1 - leverage.clamp(max=_MOST_LEVERAGE))


def left(fitted: Fitted) -> Tensor:
    """Return the share of itself that a sample does not determine, by direction."""
    return 1 - fitted.leverage.clamp(max=_MOST_LEVERAGE)
