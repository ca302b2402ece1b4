"""Several labels, each of which a sample has or has not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.base import Likelihood
from adareg.core.evidence.likelihood.directions import at_each, identity


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """K labels that a sample has or has not, from a logit of each. The noise is always one.

    The loss is ``nn.BCEWithLogitsLoss()``, the mean over samples *and* labels.
    """

    name: ClassVar[str] = "multilabel"

    def check_targets(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return a matrix of zeros and ones like the outputs."""
        made = targets.to(outputs).reshape(len(targets), -1)
        if made.shape != outputs.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}: "
                "expected a 0 or 1 for each label"
            )
        if not bool(((made == 0) | (made == 1)).all()):
            raise ValueError("targets: expected a 0 or 1 for each label")
        return made

    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return one."""
        return torch.ones((), dtype=torch.float64, device="cpu")

    def estimate_noise(
        self, outputs: Tensor, targets: Tensor, noise: Tensor, leverage: Tensor
    ) -> Tensor:
        """Return one: labels are as uncertain as the model says."""
        return torch.ones_like(noise)

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return ``Σ log p(y)`` over labels."""
        return logsigmoid((2 * targets - 1) * outputs).sum(-1)

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return the deviation ``√(p·(1 − p))`` of each label, along its logit."""
        p = outputs.sigmoid()
        return at_each(identity(outputs), outputs) * (p * (1 - p)).sqrt()

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``‖y − p‖²``."""
        return (outputs.double().sigmoid() - targets).square().sum(-1)

    def expected_residual(self, outputs: Tensor) -> Tensor:
        """Return ``Σ p·(1 − p)``."""
        p = outputs.double().sigmoid()
        return (p * (1 - p)).sum(-1).clamp(min=1e-12)

    def loss_per_nat(self, noise: Tensor, outputs: int) -> Tensor:
        """Return 1/K: the loss is the mean over labels."""
        return torch.ones((), dtype=torch.float64, device="cpu") / outputs
