"""Counts, whose logarithm of the mean is what a network puts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.base import Likelihood
from adareg.core.evidence.likelihood.directions import at_each, identity


@dataclass(frozen=True)
class Counts(Likelihood):
    """K counts of mean ``μ = exp(o)`` and variance ``φμ``: Efron's double Poisson.

    The loss is ``nn.PoissonNLLLoss()``, the mean over samples *and* counts. The noise is φ, one
    where counts are Poisson's, more where they vary more.

    Reference: Efron, "Double exponential families and their use in generalized linear regression"
    (1986).
    """

    name: ClassVar[str] = "counts"
    loss_name: ClassVar[str] = "a Poisson loss of log rates"

    def check_targets(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return a matrix of counts like the outputs."""
        made = targets.to(outputs).reshape(len(targets), -1)
        if made.shape != outputs.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}"
            )
        if not bool(((made >= 0) & (made == made.round())).all()):
            raise ValueError("targets: expected counts, integers of zero and more")
        return made

    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return one."""
        return torch.ones((), dtype=torch.float64, device="cpu")

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``Σ log p(y | μ)/φ + (1 − 1/φ)·log p(y | y) − ½ log φ``, p being Poisson's."""
        noise = noise.unsqueeze(-1)
        y, ways = targets, torch.lgamma(targets + 1)
        fitted = (y * outputs - outputs.exp() - ways).sum(-1)
        most = (torch.xlogy(y, y) - y - ways).sum(-1)
        return fitted / noise + (1 - 1 / noise) * most - y.shape[-1] * noise.log() / 2

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return ``√(μ/φ)`` of each count, along its output."""
        deviations = (outputs / 2).exp() / noise.sqrt()[..., None, None]
        return at_each(identity(outputs), outputs) * deviations

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``‖y − μ‖²``."""
        return (outputs.double().exp() - targets).square().sum(-1)

    def expected_residual(self, outputs: Tensor) -> Tensor:
        """Return ``Σ μ``."""
        return outputs.double().exp().sum(-1).clamp(min=1e-12)

    def loss_per_nat(self, noise: Tensor, outputs: int) -> Tensor:
        """Return φ/K: the loss is Poisson's, and the mean over counts."""
        return noise / outputs

    def noise_range(
        self, targets: Tensor | None, constants: Constants
    ) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """Return a range that does not depend on the data."""
        return 0.1, 1e6
