"""The Gaussian posterior of a network's weights, exact for the linearised network.

Its precision is ``MᵀM + V⁻¹``: rows M of all samples and directions, whitened by the noise, and a
diagonal of prior variances V. It is decomposed in the space of weights or in that of rows,
whichever is smaller; a damping μ multiplies ``V⁻¹`` by 1 + μ, which makes steps shorter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from adareg.core.linalg import NonFiniteError


class WeightPosterior(ABC):
    """A posterior, in the space of weights or of rows."""

    logdet: Tensor
    """``logdet(I + V^½MᵀMV^½)``: twice what the weights cost in evidence."""

    @abstractmethod
    def solve(self, g: Tensor) -> Tensor:  # (P,)
        """Return the covariance times g."""

    @abstractmethod
    def open(self) -> Tensor:  # (P,)
        """Return each weight's variance as a share of the prior's."""

    def forget(self) -> None:  # noqa: B027
        """Drop what can be computed again."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Tensor:  # (P,)
        """Return a draw, less the mean."""

    @abstractmethod
    def variance(self, rows: Tensor) -> Tensor:  # (m, P) -> (m,)
        """Return the variance of the outputs that these are the rows of."""

    @abstractmethod
    def covariance(self, rows: Tensor) -> Tensor:  # (…, m, P) -> (…, m, m)
        """Return their covariance."""

    @abstractmethod
    def within_samples(self, rows: Tensor) -> Tensor:  # (K, n, P) -> (n, K, K)
        """Return the covariance of each sample's K outputs, that these are the rows of."""


class InWeights(WeightPosterior):
    """From the Gram matrix ``MᵀM``, P x P."""

    def __init__(self, gram: Tensor, variances: Tensor, damping: float = 0.0) -> None:
        self.deviations = (variances / (1 + damping)).sqrt()
        self.factor = factorised(gram * self.deviations * self.deviations.unsqueeze(1))
        self.logdet = 2 * self.factor.diagonal().log().sum()
        self._inverse: Tensor | None = None

    def solve(self, g: Tensor) -> Tensor:
        """Return the covariance times g."""
        white = (self.deviations * g).unsqueeze(1)
        return self.deviations * torch.cholesky_solve(white, self.factor).squeeze(1)

    def inverse(self) -> Tensor:
        """Return the covariance in units of the prior's deviations."""
        if self._inverse is None:
            self._inverse = torch.cholesky_inverse(self.factor)
        return self._inverse

    def forget(self) -> None:
        """Drop what can be computed again."""
        self._inverse = None

    def open(self) -> Tensor:
        """Return each weight's variance as a share of the prior's."""
        return self.inverse().diagonal()

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return a draw, less the mean."""
        z = normal(len(self.deviations), generator, self.deviations).unsqueeze(1)
        return self.deviations * torch.linalg.solve_triangular(
            self.factor.mT, z, upper=True
        ).squeeze(1)

    def _white(self, rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor, (rows * self.deviations).mT, upper=False)

    def variance(self, rows: Tensor) -> Tensor:
        """Return the variance of the outputs that these are the rows of."""
        return self._white(rows).square().sum(-2)

    def covariance(self, rows: Tensor) -> Tensor:
        """Return their covariance."""
        white = self._white(rows)
        return white.mT @ white

    def within_samples(self, rows: Tensor) -> Tensor:
        """Return the covariance of each sample's outputs."""
        white = self._white(rows.flatten(0, 1)).unflatten(1, rows.shape[:2])
        return torch.einsum("pkn,pln->nkl", white, white)


class InRows(WeightPosterior):
    """From the rows themselves, for many weights and few samples."""

    def __init__(
        self, rows: Tensor, variances: Tensor, damping: float = 0.0, kernel: Tensor | None = None
    ) -> None:
        self.rows, self.variances = rows, variances / (1 + damping)
        kernel = (rows * variances) @ rows.mT if kernel is None else kernel
        self.factor = factorised(kernel / (1 + damping))
        self.logdet = 2 * self.factor.diagonal().log().sum()

    def solve(self, g: Tensor) -> Tensor:
        """Return the covariance times g."""
        t = self.variances * g
        inner = torch.cholesky_solve((self.rows @ t).unsqueeze(1), self.factor).squeeze(1)
        return t - self.variances * (self.rows.mT @ inner)

    def leverage(self) -> Tensor:
        """Return how far each row determines its own prediction."""
        return 1 - torch.cholesky_inverse(self.factor).diagonal()

    def open(self) -> Tensor:
        """Return each weight's variance as a share of the prior's."""
        white = torch.linalg.solve_triangular(self.factor, self.rows, upper=False)
        return 1 - self.variances * white.square().sum(0)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return a draw from the prior, corrected by what the rows say of it."""
        prior = self.variances.sqrt() * normal(len(self.variances), generator, self.variances)
        seen = self.rows @ prior + normal(len(self.rows), generator, self.variances)
        inner = torch.cholesky_solve(seen.unsqueeze(1), self.factor).squeeze(1)
        return prior - self.variances * (self.rows.mT @ inner)

    def _explained(self, rows: Tensor) -> Tensor:
        cross = (rows * self.variances) @ self.rows.mT
        return torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)

    def variance(self, rows: Tensor) -> Tensor:
        """Return the variance of the outputs that these are the rows of."""
        prior = (rows.square() * self.variances).sum(-1)
        return (prior - self._explained(rows).square().sum(-2)).clamp(min=0)

    def covariance(self, rows: Tensor) -> Tensor:
        """Return their covariance."""
        explained = self._explained(rows)
        return (rows * self.variances) @ rows.mT - explained.mT @ explained

    def within_samples(self, rows: Tensor) -> Tensor:
        """Return the covariance of each sample's outputs."""
        explained = self._explained(rows.flatten(0, 1)).unflatten(1, rows.shape[:2])
        prior = torch.einsum("knp,lnp->nkl", rows * self.variances, rows)
        return prior - torch.einsum("pkn,pln->nkl", explained, explained)


def factorised(B: Tensor) -> Tensor:
    """Return the Cholesky factor of ``I + B``."""
    B.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(B)
    if bool(failed.any()):
        raise NonFiniteError(
            "the curvature of the weights could not be decomposed: inputs or targets are too "
            "large or not finite; standardise them"
        )
    return factor


def normal(size: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(like)
