"""Targets with Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.base import Likelihood
from adareg.core.evidence.likelihood.directions import at_each, identity, random_signs
from adareg.core.linalg import NonFiniteError

#: What varies by less than this share of its size is rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """K targets with independent Gaussian noise of one variance σ².

    The loss is ``nn.MSELoss()``, the mean over samples *and* targets. For noise of another shape
    override :meth:`whiten`, :meth:`log_likelihood`, and what speaks of the noise and the loss.
    """

    name: ClassVar[str] = "regression"
    loss_name: ClassVar[str] = "a squared error"

    def check_targets(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return a matrix like the outputs."""
        made = targets.to(outputs).reshape(len(targets), -1)
        if made.shape != outputs.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}"
            )
        if not made.isfinite().all():
            raise NonFiniteError("the targets have NaN or infinite entries")
        return made

    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return the targets' variance."""
        assert targets is not None, "needs_targets"
        return (self.unlearned(targets) / targets.shape[-1]).clamp(min=1e-30)

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``−‖y − o‖²/2σ² − K/2·log(2πσ²)``."""
        noise = noise.unsqueeze(-1)
        constant = outputs.shape[-1] * (2 * math.pi * noise).log() / 2
        return -self.residual(outputs, targets) / (2 * noise) - constant

    def whiten(self, vectors: Tensor, noise: Tensor) -> Tensor:  # (…, m, K)
        """Return vectors in output space in units of the noise."""
        return vectors / noise.sqrt()[..., None, None]

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return unit vectors, whitened."""
        return self.whiten(at_each(identity(outputs), outputs), noise)

    def directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return the roots, or vectors of random signs."""
        if outputs.shape[-1] <= draws:
            return self.roots(outputs, noise)
        signs = random_signs((draws, *outputs.shape), generator).to(outputs)
        return self.whiten(signs / math.sqrt(draws), noise)

    def shared_directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return orthonormal vectors, whitened."""
        return self.whiten(super().shared_directions(outputs, noise, draws, generator), noise)

    def effective_curvature(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return one, in K directions: they are whitened."""
        ones = torch.ones_like(outputs[..., 0])
        return ones, outputs.shape[-1] * ones

    def signal(self, outputs: Tensor, targets: Tensor | None, noise: Tensor) -> Tensor:
        """Return the targets' variance, whitened; zero where they are all the same."""
        assert targets is not None, "needs_targets"
        y = targets.double()
        varied = y - y.mean(-2, keepdim=True)
        rounding = _ROUNDING * y.abs().amax(-2, keepdim=True)
        varied = torch.where(varied.abs() > rounding, varied, 0.0)
        return self.whiten(varied, noise).square().sum(-1).mean(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``‖y − o‖²``."""
        return (outputs.double() - targets.double()).square().sum(-1)

    def expected_residual(self, outputs: Tensor) -> Tensor:
        """Return K."""
        return outputs.shape[-1] * torch.ones_like(outputs[..., 0])

    def loss_per_nat(self, noise: Tensor, outputs: int) -> Tensor:
        """Return ``2σ²/K``."""
        return 2 * noise / outputs

    def noise_range(
        self, targets: Tensor | None, constants: Constants
    ) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """Return a share of the targets' variance, and all of it."""
        most = self.initial_noise(targets, constants)
        return constants.least_noise * most, most
