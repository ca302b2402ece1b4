"""Likelihoods: what the outputs of a network say of its targets.

A likelihood knows the curvature of a sample's log-likelihood, its residual and the residual that is
expected, and the noise. The noise is a tensor whose shape the likelihood owns: one number, one for
each target, or a covariance of the targets. It may be part of the likelihood, as the variance of a
Gaussian, or a dispersion that scales the penalty alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from adareg.core.evidence.constants import Constants
from adareg.core.linalg import NonFiniteError


class Likelihood(ABC):
    """What a network's outputs say of its targets; a base class for your own.

    A subclass says the six things that are abstract. The rest has defaults: for one noise, or one
    for each target, that belongs to the likelihood, and for outputs that are all alike.

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
        return _at_each(orthonormal(outputs.shape[-1], draws, generator), outputs)

    def effective_curvature(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature in each of a sample's effective directions, and how many these are.

        Their number is the participation ratio ``tr(Λ)²/tr(Λ²)``; (…, m) both.
        """
        roots = self.roots(outputs, noise)
        trace = roots.square().sum((0, -1)).clamp(min=1e-12)
        gram = torch.einsum("r...k,s...k->rs...", roots, roots)
        count = trace.square() / gram.square().sum((0, 1)).clamp(min=1e-24)
        return trace / count, count

    # What is learned, and from what

    def unlearned(self, targets: Tensor) -> Tensor:  # (…)
        """Return the mean squared residual of the best constant prediction."""
        return targets.double().var(-2, correction=0).sum(-1)

    def has_learned(self, outputs: Tensor, targets: Tensor | None, learned: float) -> Tensor:
        """Return if the network knows more of its samples than one prediction for all would say.

        True where that says everything, and where there are no targets.
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


# Those there are


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
        return p.movedim(-1, 0).sqrt().unsqueeze(-1) * (_at_each(_eye(p), p) - p)

    def directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return the roots, or gradients at labels that the model itself predicts."""
        if outputs.shape[-1] <= draws:
            return self.roots(outputs, noise)
        p = outputs.softmax(-1)
        flat = p.flatten(0, -2).to(generator.device)
        labels = torch.multinomial(flat, draws, replacement=True, generator=generator)
        drawn = _eye(p)[labels.mT.to(p.device)].view(draws, *p.shape)
        return (drawn - p) / math.sqrt(draws)

    def shared_directions(
        self, outputs: Tensor, noise: Tensor, draws: int, generator: torch.Generator
    ) -> Tensor:
        """Return directions that sum to zero: adding a constant to all logits says nothing."""
        K = outputs.shape[-1]
        return _at_each(orthonormal(K, draws, generator, centred=K > 1), outputs)

    def effective_curvature(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return those of ``Λ = diag(p) − ppᵀ``.

        It has K − 1 directions for an open question, one if two classes are in doubt.
        """
        p = _log_p(outputs).exp()
        second, trace = p.square().sum(-1), self.expected_residual(outputs)
        squares = (second - 2 * p.pow(3).sum(-1) + second.square()).clamp(min=1e-24)
        count = (trace.square() / squares).clamp(1, max(1, p.shape[-1] - 1))
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
        return _at_each(_eye(outputs), outputs) * (p * (1 - p)).sqrt()

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
        return self.whiten(_at_each(_eye(outputs), outputs), noise)

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


#: Likelihoods by the name that a user may give.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    one.name: one for one in (Categorical, Bernoulli, Gaussian)
}


def as_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of this name, or the object itself."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        return LIKELIHOODS[likelihood]()
    accepted = ", ".join(map(repr, LIKELIHOODS))
    raise ValueError(
        f"likelihood={likelihood!r}: expected one of {accepted}, or an adareg.Likelihood"
    )


# Vectors in output space


def sums_to_zero(gradient: Tensor, tolerance: float = 1e-3) -> bool:  # (m, K)
    """Return if each sample's gradient sums to zero over outputs, within a share of its size."""
    if gradient.ndim < 2 or gradient.shape[-1] == 1:
        return False
    g = gradient.detach().double()
    g = g[g.isfinite().all(-1) & (g != 0).any(-1)]
    sums, sizes = g.sum(-1).abs(), g.abs().sum(-1)
    rounding = 4 * torch.finfo(gradient.dtype).eps * gradient.shape[-1] ** 0.5
    return len(g) > 0 and bool((sums <= max(rounding, tolerance) * sizes).all())


def orthonormal(
    K: int, draws: int, generator: torch.Generator, centred: bool = False
) -> Tensor:  # (≤ draws, K)
    """Return vectors whose outer products sum to the mean over K outputs, or draws of them."""
    vectors = torch.eye(K, dtype=torch.float64, device="cpu")
    if centred:
        vectors = vectors - 1 / K
    rank = K - 1 if centred else K
    if len(vectors) > draws:
        random = torch.randn(K, draws, generator=generator, dtype=torch.float64, device="cpu")
        vectors = torch.linalg.qr(vectors @ random).Q.mT
        rank = draws
    return vectors / math.sqrt(rank)


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return −1 or 1, as likely; on the CPU."""
    return torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1


def _eye(outputs: Tensor) -> Tensor:
    return torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)


def _at_each(vectors: Tensor, outputs: Tensor) -> Tensor:  # (draws, K) -> (draws, …, m, K)
    shape = (len(vectors), *(1 for _ in outputs.shape[:-1]), vectors.shape[-1])
    return vectors.to(outputs).view(shape).expand(len(vectors), *outputs.shape)


def _log_p(logits: Tensor) -> Tensor:
    """Log probabilities of all classes, of two if there is one logit."""
    o = logits.double()
    return logsigmoid(torch.cat([o, -o], -1)) if o.shape[-1] == 1 else o.log_softmax(-1)


def _places(logits: Tensor, labels: Tensor) -> Tensor:
    """The place of each label in :func:`_log_p`."""
    return (1 - labels if logits.shape[-1] == 1 else labels).long().unsqueeze(-1)
