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
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from adareg.core.evidence.learn import Learned, Table, covariances
from adareg.core.evidence.likelihood import Bernoulli, Categorical
from adareg.core.evidence.predict import spread
from adareg.core.evidence.tabular import (
    CrossValidated,
    Fitted,
    LeftOut,
    TableLikelihood,
    leave_out,
    some,
)

#: Weight by which log probabilities may be multiplied, and how many are tried.
_SHARPNESS, _TRIED = (0.2, 5.0), 65


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
    def metrics(self, logits: int) -> Tensor:  # (m, K, K)
        """Return D of the variances ``tr(D·C)`` of logits that probabilities are damped by."""

    @abstractmethod
    def average(self, logits: Tensor, variance: Tensor) -> Tensor:  # (n, C), or (n, K, 2)
        """Return log probabilities, averaged over Gaussian logits; the last axis sums to one.

        Args:
            logits: their mean, (n, K).
            variance: (n, m), by :meth:`metrics`.
        """

    @abstractmethod
    def choose(self, log_p: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """Return the log probability of each sample's targets."""

    def first_noise(self, targets: Tensor) -> Tensor:
        """Return one."""
        return torch.ones((), dtype=torch.float64, device=targets.device)

    def remaining_noise(self, fitted: Fitted) -> Tensor:
        """Return one."""
        return self.first_noise(fitted.targets)

    def leave_out(self, outputs: Tensor, targets: Tensor, covariance: Tensor) -> LeftOut:
        """Return logits as if each sample had been left out."""
        error = self.error(outputs, targets)
        return leave_out(outputs, error, self.curvature(outputs), covariance)

    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return a noise of one, and the log-likelihood at logits left out."""
        index = some(len(fitted.outputs), fitted.outputs.device)
        targets, share = fitted.targets[index], fitted.weight[index]
        found = self.leave_out(fitted.outputs[index], targets, fitted.covariance(index))
        each = self.log_likelihood(found.mean, targets, fitted.noise)
        worth = float(share @ each * (fitted.weight.sum() / share.sum()))
        return CrossValidated(self.first_noise(targets), worth)


@dataclass(frozen=True)
class Classes(Categorical, ClassLikelihood):
    """One of K classes, from K logits; of two, from one.

    Args:
        draws: take the curvature of more classes than this from so many random sums of gradients.
    """

    draws: int = 2**31

    name: ClassVar[str] = "classes"

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return gradients at every label, weighted with its probability, or random sums."""
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

    def metrics(self, logits: int) -> Tensor:
        """Return that of the mean variance of contrasts between classes.

        What all logits have in common says nothing.
        """
        eye = torch.eye(logits, dtype=torch.float64, device="cpu")
        return (eye if logits == 1 else (eye - 1 / logits) / (logits - 1)).unsqueeze(0)

    def average(self, logits: Tensor, variance: Tensor) -> Tensor:
        """Return those of logits damped as MacKay does, by one variance for each sample."""
        damped = _damp(logits, variance)
        if logits.shape[-1] > 1:
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

    def metrics(self, logits: int) -> Tensor:
        """Return that of each logit alone."""
        return torch.diag_embed(torch.eye(logits, dtype=torch.float64, device="cpu"))

    def average(self, logits: Tensor, variance: Tensor) -> Tensor:
        """Return those of not having and of having each label, by the variance of its logit."""
        damped = _damp(logits, variance).unsqueeze(-1)
        return logsigmoid(torch.cat([-damped, damped], -1))

    def choose(self, log_p: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over labels."""
        return log_p.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1).sum(-1)


def _probabilities(outputs: Tensor) -> Tensor:
    return outputs.sigmoid() if outputs.shape[-1] == 1 else outputs.softmax(-1)


def _damp(logits: Tensor, variance: Tensor) -> Tensor:
    """Return logits of ``E σ(f)``, f Gaussian: MacKay's ``f/√(1 + π·v/8)``."""
    return logits / (1 + math.pi / 8 * variance.clamp(min=0)).sqrt()


# Several networks


@torch.no_grad()
def log_probabilities(
    networks: Sequence[Learned], likelihood: ClassLikelihood, X: Tensor
) -> Tensor:
    """Return log probabilities, averaged over the posterior of each network, and networks."""
    metrics = likelihood.metrics(networks[0].network.outputs).to(X.device)
    return mix([likelihood.average(*spread(one, X, metrics)) for one in networks])


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
        mean, wider = likelihood.leave_out(outputs, Y, covariance)
        metrics = likelihood.metrics(outputs.shape[-1]).to(wider)
        found.append(likelihood.average(mean, torch.einsum("nkl,mkl->nm", wider, metrics)))
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
