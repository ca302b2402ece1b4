"""Likelihood: what the outputs of a network say of its targets; a base class.

A likelihood knows the curvature of a sample's log-likelihood, its residual and the residual that is
expected, and the noise. The noise is a tensor whose shape the likelihood owns: one number, one for
each target, or a covariance of the targets. It may be part of the likelihood, as the variance of a
Gaussian, or a dispersion that scales the penalty alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from adareg.core.evidence.constants import Constants
from adareg.core.evidence.likelihood.directions import (
    at_each,
    orthonormal,
    random_signs,
    sums_to_zero,
)


class Likelihood(ABC):
    """What a network's outputs say of its targets; a base class for your own.

    A subclass defines the six abstract methods. The others have defaults, for a likelihood with one
    noise, or one for each target, and for outputs that may be exchanged.

    Shapes: ``…`` are networks that are updated together, usually none. Outputs are (…, m, K) of m
    samples, in float64; targets are as :meth:`check_targets` returns them; noise is (…), and what
    the likelihood adds.
    """

    #: Names the likelihood in messages and in saved states.
    name: ClassVar[str]

    #: The training loss that ``loss_scale=1`` stands for, in messages.
    loss_name: ClassVar[str] = "its mean −log-likelihood"

    #: An update is refused without targets. Otherwise :meth:`read_targets` must be there.
    needs_targets: ClassVar[bool] = True

    #: Dropout can learn its rate; not where residuals set the noise, which dropout would feed.
    suits_dropout: ClassVar[bool] = False

    # What a likelihood must say

    @abstractmethod
    def check_targets(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return the targets of m samples in the form that the other methods take.

        Raises:
            ValueError: they do not fit the outputs.
        """

    @abstractmethod
    def initial_noise(self, targets: Tensor | None, constants: Constants) -> Tensor:
        """Return the noise before the first update."""

    @abstractmethod
    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:  # (…, m)
        """Return the log-likelihood of each sample."""

    @abstractmethod
    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:  # (R, …, m, K)
        """Return vectors v with ``Σ v·vᵀ`` the curvature Λ of each sample's −log-likelihood."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (…, m)
        """Return the squared distance of each sample's target from its expectation."""

    @abstractmethod
    def expected_residual(self, outputs: Tensor) -> Tensor:  # (…, m)
        """Return the expectation of :meth:`residual` at a noise of one."""

    # The loss, and the noise

    def loss_per_nat(self, noise: Tensor, outputs: int) -> Tensor:  # (…)
        """Return by how much the training loss changes with one nat of log-likelihood a sample.

        The loss is that which ``loss_scale=1`` stands for. By default it is the mean of
        −log-likelihood, so that this is one.
        """
        return torch.ones((), dtype=torch.float64, device="cpu")

    def dispersion(self, noise: Tensor) -> Tensor:  # (…)
        """Return what the penalty is scaled by beside a likelihood that does not know of it.

        By default one: the noise belongs to the likelihood.
        """
        return torch.ones((), dtype=noise.dtype, device=noise.device)

    def estimate_noise(
        self, outputs: Tensor, targets: Tensor, noise: Tensor, leverage: Tensor
    ) -> Tensor:
        """Return the noise by generalised cross-validation, in the shape of ``noise``.

        ``Σ residual / Σ expected residual / (1 − γ/N)²``: residuals as they would be at samples
        left out. With it the noise does not vanish when a network fits its training data exactly.
        """
        fit = self.residual(outputs, targets).sum(-1) / self.expected_residual(outputs).sum(-1)
        return fit / (1 - leverage).square()

    def noise_range(
        self, targets: Tensor | None, constants: Constants
    ) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """Return the smallest and the largest noise."""
        return 1e-300, math.inf

    def approach(self, old: Tensor, new: Tensor, step: float) -> Tensor:
        """Return the noise that is ``step`` of the way from old to new, in logarithms."""
        return old ** (1 - step) * new**step

    def mean_noise(self, noise: Tensor) -> float:
        """Return one number for the noise, to be logged."""
        return float(noise.mean())

    # Directions in output space

    def directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:  # (≤ draws, …, m, K)
        """Return directions of each sample's own, whose second moment is the curvature Λ.

        These are its :meth:`roots`, or, where they are more than ``draws``, random sums of them.
        """
        roots = self.roots(outputs, noise)
        if len(roots) <= draws:
            return roots
        signs = random_signs((draws, len(roots), *outputs.shape[:-1]), generator).to(roots)
        return torch.einsum("sr...,r...k->s...k", signs, roots) / math.sqrt(draws)

    def shared_directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:  # (≤ draws, …, m, K)
        """Return directions that all samples share; their kernels sum to the mean over outputs.

        By default all outputs are alike, in the units in which :meth:`effective_curvature` is.
        """
        return at_each(orthonormal(outputs.shape[-1], draws, generator), outputs)

    def effective_curvature(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature in each of a sample's effective directions, and how many these are.

        Their number is the participation ratio ``tr(Λ)²/tr(Λ²)``; (…, m) both.
        """
        roots = self.roots(outputs, noise)
        trace = roots.square().sum((0, -1)).clamp(min=1e-12)
        gram = torch.einsum("r...k,s...k->rs...", roots, roots)
        count = trace.square() / gram.square().sum((0, 1)).clamp(min=1e-24)
        return trace / count, count

    def signal(self, outputs: Tensor, targets: Tensor | None, noise: Tensor) -> Tensor:  # (…)
        """Return how much there is to say of a sample, ``E[oᵀΛo]`` of outputs o that say it.

        Layers' scales are measured by it. By default outputs are of size one, as logits are.
        """
        mean, count = self.effective_curvature(outputs, noise)
        return (mean * count).mean(-1)

    # What is learned, and from what

    def unlearned(self, targets: Tensor) -> Tensor:  # (…)
        """Return the mean squared residual of the best constant prediction."""
        return targets.double().var(-2, correction=0).sum(-1)

    def has_learned(self, outputs: Tensor, targets: Tensor | None, learned: float) -> Tensor:
        """Return whether the network predicts its samples better than one constant would.

        True where a constant is perfect, and where there are no targets.
        """
        if targets is None:
            return torch.ones(outputs.shape[:-2], dtype=torch.bool, device=outputs.device)
        unlearned = self.unlearned(targets)
        return (self.residual(outputs, targets).mean(-1) < learned * unlearned) | (unlearned <= 0)

    def shape_strength(self, gamma: Tensor, size: int, constants: Constants) -> Tensor:  # (…)
        """Return ρ, how much of a shape of this size is learned.

        By default an inverse Wishart prior's share, ``γ/(γ + size·(size + 1))``: a covariance is
        learned as far as there are determined weights to learn it from.
        """
        return gamma / (gamma + size * (size + 1))

    def count(self, constants: Constants) -> float:
        """Return the share of the kernel that is counted."""
        return 1.0

    def fits_gradient(self, gradient: Tensor) -> bool:
        """Return if the loss that this likelihood stands for can have this gradient at outputs.

        By default not if it is that of a cross-entropy.
        """
        return not sums_to_zero(gradient)

    def read_targets(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        """Return the targets of a batch, from the gradient of its loss at the outputs."""
        raise NotImplementedError(f"{self.name} needs targets: they are not in the gradient")

    def fill_gaps(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return the targets of a batch with predictions in place of those the loss ignores."""
        return targets
