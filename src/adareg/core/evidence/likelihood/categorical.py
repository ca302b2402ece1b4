"""One of several classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.base import Likelihood
from adareg.core.evidence.likelihood.directions import (
    at_each,
    identity,
    orthonormal,
    random_signs,
    sums_to_zero,
)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of K classes, from their logits; of two, also from one logit. The noise is a dispersion.

    The loss is the mean cross-entropy. The dispersion φ is 1 where labels are as uncertain as the
    model says, less on clean data, more where labels are wrong. It scales the penalty alone: the
    posterior takes labels at their word.
    """

    name: ClassVar[str] = "classification"
    loss_name: ClassVar[str] = "a cross-entropy over classes"
    needs_targets: ClassVar[bool] = False
    suits_dropout: ClassVar[bool] = True

    def check_targets(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return one label for each sample."""
        labels = targets.reshape(len(targets), -1).squeeze(-1) if targets.ndim == 2 else targets
        K = max(2, outputs.shape[-1])
        if labels.ndim != 1:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} for {K} classes: expected one label "
                f"0…{K - 1} for each sample"
            )
        known = (labels >= 0) & (labels < K) & (labels == labels.long())
        if not bool(known.all()):
            raise ValueError(
                f"targets: the label {labels[~known][0].item()} is none of {K} classes; expected "
                f"integers 0…{K - 1}"
            )
        return labels.to(outputs.device).long()

    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return a small dispersion."""
        return torch.tensor(constants.dispersion, dtype=torch.float64, device="cpu")

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return log p of each label, at a dispersion of one."""
        return _log_p(outputs).gather(-1, _places(outputs, targets)).squeeze(-1)

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return gradients at every label, weighted with its probability."""
        p = _log_p(outputs).exp()
        if outputs.shape[-1] == 1:
            return p.prod(-1, keepdim=True).sqrt().unsqueeze(0)
        return p.movedim(-1, 0).sqrt().unsqueeze(-1) * (at_each(identity(p), p) - p)

    def directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return the roots, or random sums of them, none of which has to be formed.

        They vary less than gradients at labels that are drawn, most of which are nearly zero where
        the network is certain.
        """
        if outputs.shape[-1] <= draws:
            return self.roots(outputs, noise)
        p = outputs.softmax(-1)
        weighted = random_signs((draws, *p.shape), generator).to(p) * p.sqrt()
        return (weighted - p * weighted.sum(-1, keepdim=True)) / math.sqrt(draws)

    def shared_directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return directions that sum to zero: adding a constant to all logits says nothing."""
        K = outputs.shape[-1]
        return at_each(orthonormal(K, draws, generator, centred=K > 1), outputs)

    def effective_curvature(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return those of ``Λ = diag(p) − ppᵀ``; of one logit, ``p·(1 − p)``.

        It has K − 1 directions for an open question, one if two classes are in doubt.
        """
        if outputs.shape[-1] == 1:
            return super().effective_curvature(outputs, noise)
        p = _log_p(outputs).exp()
        second, trace = p.square().sum(-1), self.expected_residual(outputs)
        squares = (second - 2 * p.pow(3).sum(-1) + second.square()).clamp(min=1e-24)
        count = (trace.square() / squares).clamp(1, p.shape[-1] - 1)
        return trace / count, count

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared distance of a one-hot label from p."""
        p = _log_p(outputs).exp()
        of_label = p.gather(-1, _places(outputs, targets)).squeeze(-1)
        return (p.square().sum(-1) - 2 * of_label + 1).clamp(min=0)

    def expected_residual(self, outputs: Tensor) -> Tensor:
        """Return tr(Λ)."""
        return (1 - _log_p(outputs).exp().square().sum(-1)).clamp(min=1e-12)

    def dispersion(self, noise: Tensor) -> Tensor:
        """Return φ: the likelihood does not know of it."""
        return noise

    def loss_per_nat(self, noise: Tensor, outputs: int) -> Tensor:
        """Return the dispersion: the loss is in nats."""
        return noise

    def noise_range(
        self, targets: Tensor | None, constants: Constants
    ) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """Return a range that does not depend on the data."""
        return constants.dispersions

    def unlearned(self, targets: Tensor) -> Tensor:
        """Return ``1 − Σ q²``, q being the frequencies of the labels."""
        return 1 - one_hot(targets).double().mean(-2).square().sum(-1)

    def shape_strength(self, gamma: Tensor, size: int, constants: Constants) -> Tensor:
        """Return the same for every shape."""
        return torch.full_like(gamma, constants.shape)

    def count(self, constants: Constants) -> float:
        """Return less than one."""
        return constants.count

    def fits_gradient(self, gradient: Tensor) -> bool:
        """Return if it sums to zero over classes, or is that of log-probabilities at the labels.

        Of one logit nothing can be said. A loss may have some small term beside the cross-entropy.
        """
        if gradient.ndim < 2 or gradient.shape[-1] == 1:
            return True
        at_labels = ((gradient != 0).sum(-1) <= 1).all() and (gradient <= 0).all()
        return bool(at_labels) or sums_to_zero(gradient, 0.05)

    def read_targets(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        """Return labels: the gradient is ``p − y`` but for a positive factor.

        Where it is zero the sample is certain or ignored by the loss, and the label is what is
        predicted.
        """
        if gradient.ndim == 1 or gradient.shape[-1] == 1:
            gradient, outputs = gradient.reshape(len(gradient)), outputs.reshape(len(gradient))
            return torch.where(gradient == 0, outputs > 0, gradient < 0).long()
        missing = (gradient == 0).all(-1)
        return torch.where(missing, outputs.argmax(-1), gradient.argmin(-1))

    def fill_gaps(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return what is predicted for negative labels, which the loss ignores."""
        if targets.shape != outputs.shape[:-1]:
            return targets  # an update says what is wrong
        return torch.where(targets < 0, outputs.argmax(-1), targets)


def _log_p(logits: Tensor) -> Tensor:
    """Log probabilities of all classes, of two if there is one logit."""
    o = logits.double()
    return logsigmoid(torch.cat([o, -o], -1)) if o.shape[-1] == 1 else o.log_softmax(-1)


def _places(logits: Tensor, labels: Tensor) -> Tensor:
    """The place of each label in :func:`_log_p`."""
    return (1 - labels if logits.shape[-1] == 1 else labels).long().unsqueeze(-1)
