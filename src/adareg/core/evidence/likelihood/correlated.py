"""Targets with Gaussian noise of a full covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.gaussian import Gaussian


@dataclass(frozen=True)
class CorrelatedGaussian(Gaussian):
    """K targets with Gaussian noise of a covariance S, (…, K, K).

    The loss is the mean −log-likelihood at the noise so far.
    """

    name: ClassVar[str] = "correlated"
    loss_name: ClassVar[str] = "the mean −log-likelihood at the noise so far"

    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return the targets' variances."""
        assert targets is not None, "needs_targets"
        return torch.diag_embed(targets.double().var(-2, correction=0).clamp(min=1e-30))

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``−½ rᵀS⁻¹r − ½ logdet(2πS)``."""
        factor = torch.linalg.cholesky(noise)
        r = (targets - outputs).to(noise)
        white = torch.linalg.solve_triangular(factor, r.mT, upper=False)
        logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        constant = outputs.shape[-1] * math.log(2 * math.pi)
        return -(white.square().sum(-2) + logdet + constant) / 2

    def whiten(self, vectors: Tensor, noise: Tensor) -> Tensor:
        """Return ``Q·L^−½·v``, of S's eigenvectors Q and eigenvalues L: in units of the noise."""
        values, Q = torch.linalg.eigh(noise)
        return (vectors / values.sqrt().unsqueeze(-2)) @ Q.mT

    def approach(self, old: Tensor, new: Tensor, step: float) -> Tensor:
        """Return the covariance that is ``step`` of the way on the geodesic from old to new."""
        L = torch.linalg.cholesky(old)
        inner = torch.linalg.solve_triangular(L, new, upper=False)
        inner = torch.linalg.solve_triangular(L, inner.mT, upper=False)
        values, Q = torch.linalg.eigh((inner + inner.mT) / 2)
        root = L @ Q * values.clamp(min=1e-12).pow(step / 2).unsqueeze(-2)
        return root @ root.mT
