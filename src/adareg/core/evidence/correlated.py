"""Targets whose noise is correlated: a full covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.likelihood.correlated import CorrelatedGaussian
from adareg.core.evidence.tabular import (
    NOISE_AT_START,
    CrossValidated,
    Fitted,
    TableLikelihood,
    covariance_of,
    left,
)


@dataclass(frozen=True)
class CorrelatedNoise(CorrelatedGaussian, TableLikelihood):
    """K standardised targets with Gaussian noise of a full covariance S, (K, K)."""

    name: ClassVar[str] = "correlated"
    bends: ClassVar[bool] = True

    def first_noise(self, targets: Tensor) -> Tensor:  # (K, K)
        """Return a share of the variance of standardised targets."""
        return torch.diag(torch.full_like(targets[0], NOISE_AT_START))

    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return the covariance of residuals as if each sample were left out, and its worth.

        Of S's eigenvectors Q, whose directions have leverages h, residuals are ``rQ/(1 − h)``.
        """
        r = _rotated(fitted, left(fitted))
        noise = covariance_of(r, fitted.weight)
        worth = fitted.weight @ self.log_likelihood(torch.zeros_like(r), r, noise)
        return CrossValidated(noise, float(worth))

    def remaining_noise(self, fitted: Fitted) -> Tensor:
        """Return the covariance of residuals ``rQ/√(1 − h)``."""
        return covariance_of(_rotated(fitted, left(fitted).sqrt()), fitted.weight)

    def noise_variance(self, noise: Tensor) -> Tensor:
        """Return the diagonal."""
        return noise.diagonal()


def _rotated(fitted: Fitted, divisor: Tensor) -> Tensor:  # (n, K)
    """Return residuals, divided along the eigenvectors of the noise."""
    Q = torch.linalg.eigh(fitted.noise).eigenvectors
    return ((fitted.targets - fitted.outputs) @ Q / divisor) @ Q.mT
