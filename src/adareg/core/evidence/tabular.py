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
_LEAST, _MOST = 1e-7, 1.0

#: Of the targets' variance so much is noise when training starts.
_START = 0.3

#: A larger leverage is taken as this one: a sample keeps a say in the noise.
_MOST_LEVERAGE = 0.98


class CrossValidated(NamedTuple):
    """What leaving out each sample would say."""

    noise: Tensor
    log_likelihood: float


#: Gives the covariance (m, K, K) of each sample's outputs, at the samples of an index (m,).
Covariance = Callable[[Tensor], Tensor]


class TableLikelihood(Likelihood):
    """A likelihood of weighted samples that can be left out.

    The leverage is the mean over samples, by direction: those of :meth:`Likelihood.roots`.
    """

    #: At most so many steps before the first refit of the prior, and between refits.
    settling: ClassVar[tuple[int, int]] = (1, 1)

    #: Leverages are wanted of each direction, not only of all together.
    by_direction: ClassVar[bool] = True

    #: Steps bend where the outputs do.
    bends: ClassVar[bool] = False

    @abstractmethod
    def first_noise(self, targets: Tensor) -> Tensor:
        """Return the noise that learning starts from."""

    @abstractmethod
    def cross_validate(
        self,
        outputs: Tensor,
        targets: Tensor,
        leverage: Tensor,
        weight: Tensor,
        covariance: Covariance,
    ) -> CrossValidated:
        """Return the noise, and the log-likelihood of all samples, as if each were left out."""

    @abstractmethod
    def remaining_noise(
        self, outputs: Tensor, targets: Tensor, leverage: Tensor, weight: Tensor
    ) -> Tensor:
        """Return the noise that belongs beside the variance of the outputs."""


@dataclass(frozen=True)
class TargetNoise(Gaussian, TableLikelihood):
    """K standardised targets with Gaussian noise: of each target, or one for all."""

    each: bool = True

    name: ClassVar[str] = "noise of each target"
    bends: ClassVar[bool] = True

    def first_noise(self, targets: Tensor) -> Tensor:  # (K,)
        """Return a share of the variance of standardised targets."""
        return torch.full_like(targets[0], _START)

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``−½ Σ (y − o)²/σ² + log(2πσ²)``."""
        squares = (outputs - targets).square() / noise
        return -(squares + (2 * math.pi * noise).log()).sum(-1) / 2

    def whiten(self, vectors: Tensor, noise: Tensor) -> Tensor:
        """Return vectors in output space in units of the noise."""
        return vectors / noise.sqrt()

    def cross_validate(
        self,
        outputs: Tensor,
        targets: Tensor,
        leverage: Tensor,
        weight: Tensor,
        covariance: Covariance,
    ) -> CrossValidated:
        """Return generalised cross-validation's ``RSS/n/(1 − γ/n)²``, and what it is worth."""
        left = 1 - leverage.clamp(max=_MOST_LEVERAGE)
        noise = self._mean_square(outputs, targets, weight, left.square())
        worth = -weight.sum() * (2 * math.pi * math.e * noise).log().sum() / 2
        return CrossValidated(noise, float(worth))

    def remaining_noise(
        self, outputs: Tensor, targets: Tensor, leverage: Tensor, weight: Tensor
    ) -> Tensor:
        """Return ``RSS/(n − γ)``."""
        left = 1 - leverage.clamp(max=_MOST_LEVERAGE)
        return self._mean_square(outputs, targets, weight, left)

    def _mean_square(
        self, outputs: Tensor, targets: Tensor, weight: Tensor, divisor: Tensor
    ) -> Tensor:
        squares = weight @ (outputs - targets).square() / weight.sum()
        if not self.each:
            squares, divisor = (x.mean().expand_as(x) for x in (squares, divisor))
        return (squares / divisor).clamp(_LEAST, _MOST)
