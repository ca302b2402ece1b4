"""Likelihoods for tables of classes: samples left out, and probabilities averaged.

Logits have a Gaussian posterior, that of the linearised network. Averaged over it, probabilities
are those of the mean, damped by its variance. How far to trust them is learned by leaving out each
sample, which the posterior tells without learning again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from adareg.core.evidence.learn import Learned, Table, covariances
from adareg.core.evidence.likelihood import Bernoulli, Categorical
from adareg.core.evidence.tabular import Covariance, CrossValidated, TableLikelihood

#: Of larger tables so many samples are left out.
_LEFT_OUT = 2000

#: Weight by which log probabilities may be multiplied, and how many are tried.
_SHARPNESS, _TRIED = (0.2, 5.0), 65

#: Keeps the solution of nearly singular equations finite.
_TINY = 1e-9


class LeftOut(NamedTuple):
    """Logits of samples that were left out: a Gaussian."""

    mean: Tensor  # (n, K)
    covariance: Tensor  # (n, K, K)


class ClassLikelihood(TableLikelihood):
    """A likelihood of classes, or of labels: there is no noise beside it."""

    #: Logits move far under the first prior, so that a refit must wait until they have.
    settling: ClassVar[tuple[int, int]] = (30, 3)
    by_direction: ClassVar[bool] = False

    @abstractmethod
    def curvature(self, outputs: Tensor) -> Tensor:  # (n, K) -> (n, K, K)
        """Return Λ, the curvature of each sample's −log-likelihood."""

    @abstractmethod
    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, K)
        """Return ``p − y``, the gradient of −log-likelihood."""

    @abstractmethod
    def average(self, logits: Tensor, covariance: Tensor) -> Tensor:  # (n, C), or (n, K, 2)
        """Return log probabilities, averaged over Gaussian logits; the last axis sums to one."""

    @abstractmethod
    def choose(self, log_p: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """Return the log probability of each sample's targets."""

    def first_noise(self, targets: Tensor) -> Tensor:
        """Return one."""
        return torch.ones((), dtype=torch.float64, device=targets.device)

    def remaining_noise(
        self, outputs: Tensor, targets: Tensor, leverage: Tensor, weight: Tensor
    ) -> Tensor:
        """Return one."""
        return self.first_noise(targets)

    def leave_out(self, outputs: Tensor, targets: Tensor, covariance: Tensor) -> LeftOut:
        """Return logits as if each sample had been left out.

        Of the posterior's covariance Σ that of a sample's logits without it is
        ``Σ' = Σ(I − ΛΣ)⁻¹``, and they move by ``Σ'(p − y)``: exact for the linearised network.
        """
        eye = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        left = eye * (1 + _TINY) - covariance @ self.curvature(outputs)
        wider = torch.linalg.solve(left, covariance)
        moved = torch.einsum("nkl,nl->nk", wider, self.error(outputs, targets))
        return LeftOut(outputs + moved, wider)

    def cross_validate(
        self,
        outputs: Tensor,
        targets: Tensor,
        leverage: Tensor,
        weight: Tensor,
        covariance: Covariance,
    ) -> CrossValidated:
        """Return a noise of one, and the log-likelihood at logits left out."""
        index = some(len(outputs), outputs.device)
        found = self.leave_out(outputs[index], targets[index], covariance(index))
        noise = self.first_noise(targets)
        each = self.log_likelihood(found.mean, targets[index], noise)
        share = weight[index]
        return CrossValidated(noise, float(share @ each * (weight.sum() / share.sum())))


@dataclass(frozen=True)
class Classes(Categorical, ClassLikelihood):
    """One of K classes, from K logits; of two, from one.

    Args:
        draws: take the curvature of more classes than this from so many random labels.
    """

    draws: int = 2**31

    name: ClassVar[str] = "classes"

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return gradients at every label, weighted with its probability, or at random labels."""
        if outputs.shape[-1] <= self.draws:
            return super().roots(outputs, noise)
        generator = torch.Generator().manual_seed(0)
        return self.directions(outputs, noise, self.draws, generator)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Return ``diag(p) − ppᵀ``."""
        p = _probabilities(outputs)
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``p − y``."""
        p = _probabilities(outputs)
        y = targets.unsqueeze(-1) if p.shape[-1] == 1 else one_hot(targets, p.shape[-1])
        return p - y.to(p)

    def average(self, logits: Tensor, covariance: Tensor) -> Tensor:
        """Return those of logits damped as MacKay does, by one variance for each sample.

        That is the mean variance of contrasts between classes: what all logits have in common
        says nothing.
        """
        K = logits.shape[-1]
        variance = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        if K > 1:
            variance = (variance - covariance.sum((-2, -1)) / K) / (K - 1)
        damped = _damp(logits, variance.unsqueeze(-1))
        if K > 1:
            return damped.log_softmax(-1)
        return logsigmoid(torch.cat([-damped, damped], -1))

    def choose(self, log_p: Tensor, targets: Tensor) -> Tensor:
        """Return the log probability of the class."""
        return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Labels(Bernoulli, ClassLikelihood):
    """K labels that a sample has or has not, from a logit of each.

    Args:
        draws: take the curvature of more labels than this from so many random sums.
    """

    draws: int = 2**31

    name: ClassVar[str] = "labels"

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return the deviation of each label, or random sums of them."""
        roots = super().roots(outputs, noise)
        if len(roots) <= self.draws:
            return roots
        shape = (self.draws, len(roots), *outputs.shape[:-1])
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(2, shape, generator=generator, device="cpu").to(roots) * 2 - 1
        return torch.einsum("srn,rnk->snk", signs, roots) / math.sqrt(self.draws)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Return ``diag(p·(1 − p))``."""
        p = outputs.sigmoid()
        return torch.diag_embed(p * (1 - p))

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``p − y``."""
        return outputs.sigmoid() - targets

    def average(self, logits: Tensor, covariance: Tensor) -> Tensor:
        """Return those of not having and of having each label, by the variance of its logit."""
        damped = _damp(logits, covariance.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)
        return logsigmoid(torch.cat([-damped, damped], -1))

    def choose(self, log_p: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over labels."""
        return log_p.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1).sum(-1)


def _probabilities(outputs: Tensor) -> Tensor:
    return outputs.sigmoid() if outputs.shape[-1] == 1 else outputs.softmax(-1)


def _damp(logits: Tensor, variance: Tensor) -> Tensor:
    """Return logits of ``E σ(f)``, f Gaussian: MacKay's ``f/√(1 + π·v/8)``."""
    return logits / (1 + math.pi / 8 * variance.clamp(min=0)).sqrt()


def some(n: int, device: torch.device) -> Tensor:
    """Return the indices of samples that are left out: all, or every so many."""
    return torch.linspace(0, n - 1, min(n, _LEFT_OUT), device=device).round().long()


# Several networks


@torch.no_grad()
def log_probabilities(
    networks: Sequence[Learned], likelihood: ClassLikelihood, X: Tensor
) -> Tensor:
    """Return log probabilities, averaged over the posterior of each network, and networks."""
    found = [
        likelihood.average(*covariances(one.network, one.state.w, one.posterior, X))
        for one in networks
    ]
    return mix(found)


@torch.no_grad()
def sharpness(networks: Sequence[Learned], likelihood: ClassLikelihood, table: Table) -> float:
    """Return the weight of log probabilities at which samples that are left out are likeliest.

    Above one, probabilities are sharper than averaging says; below, they are duller.
    """
    index = some(len(table.X), table.X.device)
    X, Y, weight = table.X[index], table.Y[index], table.weight[index]
    found = []
    for one in networks:
        outputs, covariance = covariances(one.network, one.state.w, one.posterior, X)
        found.append(likelihood.average(*likelihood.leave_out(outputs, Y, covariance)))
    log_p = mix(found)
    low, high = (math.log(x) for x in _SHARPNESS)
    tried = torch.linspace(low, high, _TRIED, dtype=torch.float64).exp().tolist()
    worth = [float(weight @ likelihood.choose(sharpen(log_p, x), Y)) for x in tried]
    return tried[max(range(_TRIED), key=worth.__getitem__)]


def mix(log_p: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probability."""
    return torch.stack(list(log_p)).logsumexp(0) - math.log(len(log_p))


def sharpen(log_p: Tensor, weight: float) -> Tensor:
    """Return weighted log probabilities, the last axis summing to one again."""
    return (weight * log_p).log_softmax(-1)
