"""Counts on tables: they vary as much as Poisson's, or more.

The likelihood is the negative binomial's, of mean μ and variance ``μ + αμ²``. Poisson's is its
limit for a dispersion α of zero. The mean is exponential in the output up to the largest counts
that are common, and linear beyond, so that a row far out does not explode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.likelihood import Gaussian
from adareg.core.evidence.likelihood.directions import at_each, identity
from adareg.core.evidence.tabular import (
    CrossValidated,
    Fitted,
    TableLikelihood,
    leave_out,
    some,
)

#: The mean is exponential up to this quantile of the counts, but at least up to twice their mean.
_COMMON = 0.95

#: A mean count is at least this, for logarithms.
_LEAST_MEAN = 1e-3

#: Dispersions: the smallest, where hardly any count differs from Poisson's, and the largest.
_RANGE = 1e-5, 1e3

#: How many are tried in each round: in all of the range, then between the neighbours of the best.
_TRIED, _ROUNDS = 13, 3

#: Nodes by which likelihoods are averaged over a Gaussian.
_NODES = 12


class Link(NamedTuple):
    """The mean of counts as a function of the output."""

    base: Tensor  # (K,): the logarithm of the mean at an output of zero
    top: Tensor  # (K,): the output from which on the mean is linear

    def mean(self, outputs: Tensor) -> Tensor:  # (…, K)
        """Return μ."""
        inside = torch.minimum(outputs, self.top)
        return (self.base + inside).exp() * (1 + outputs - inside)

    def log_mean(self, outputs: Tensor) -> Tensor:  # (…, K)
        """Return log μ."""
        inside = torch.minimum(outputs, self.top)
        return self.base + inside + (outputs - inside).log1p()

    def slope(self, outputs: Tensor) -> Tensor:  # (…, K)
        """Return ``d log μ/d output``."""
        return 1 / (1 + (outputs - self.top).clamp(min=0))


@dataclass(frozen=True)
class Counts(Gaussian, TableLikelihood):
    """K counts of mean μ, given by a link, and variance ``μ + αμ²``; the noise is α, (K,)."""

    link: Link

    name: ClassVar[str] = "counts"
    settling: ClassVar[tuple[int, int]] = (30, 3)
    by_direction: ClassVar[bool] = False

    @classmethod
    def of(cls, counts: Tensor, weight: Tensor) -> Counts:
        """Return the likelihood whose link suits these counts, (n, K)."""
        base = (weight @ counts / weight.sum()).clamp(min=_LEAST_MEAN).log()
        common = _quantile(counts, weight, _COMMON).clamp(min=_LEAST_MEAN).log()
        return cls(Link(base, (common - base).clamp(min=math.log(2))))

    def first_noise(self, targets: Tensor) -> Tensor:  # (K,)
        """Return one: a deviation as large as the mean."""
        return torch.ones_like(targets[0])

    def log_likelihood(self, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Return the sum over targets."""
        return log_probability(self.link.log_mean(outputs), targets, noise).sum(-1)

    def curvature(self, outputs: Tensor, noise: Tensor) -> Tensor:  # (n, K)
        """Return what is expected: ``(d log μ)²·μ/(1 + αμ)``."""
        mean = self.link.mean(outputs)
        return self.link.slope(outputs).square() * mean / (1 + noise * mean)

    def roots(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return the root of the curvature of each count, along its output."""
        return at_each(identity(outputs), outputs) * self.curvature(outputs, noise).sqrt()

    def left_out(self, fitted: Fitted, index: Tensor) -> tuple[Tensor, Tensor]:  # (m, K) both
        """Return the mean and the variance of outputs, as if each sample had been left out."""
        outputs, noise = fitted.outputs[index], fitted.noise
        mean = self.link.mean(outputs)
        error = self.link.slope(outputs) * (mean - fitted.targets[index]) / (1 + noise * mean)
        curvature = torch.diag_embed(self.curvature(outputs, noise))
        found = leave_out(outputs, error, curvature, fitted.covariance(index))
        return found.mean, found.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)

    def cross_validate(self, fitted: Fitted) -> CrossValidated:
        """Return the likeliest dispersion, and what it is worth."""
        index = some(len(fitted.outputs), fitted.outputs.device)
        share = fitted.weight[index]
        log_mean = self.link.log_mean(self.left_out(fitted, index)[0])
        alone = torch.zeros(1).to(share)
        noise, worth = likeliest(log_mean[None], fitted.targets[index], share, alone)
        return CrossValidated(noise, float(worth.sum() * (fitted.weight.sum() / share.sum())))

    def remaining_noise(self, fitted: Fitted) -> Tensor:
        """Return the likeliest dispersion, averaged over the posterior."""
        index = some(len(fitted.outputs), fitted.outputs.device)
        mean, variance = self.left_out(fitted, index)
        z, log_w = nodes(mean)
        log_mean = self.link.log_mean(mean + z[:, None, None] * variance.sqrt())
        return likeliest(log_mean, fitted.targets[index], fitted.weight[index], log_w)[0]

    def noise_variance(self, noise: Tensor) -> Tensor:
        """Return that of outputs which one count tells, at the mean count."""
        return 1 / self.curvature(torch.zeros_like(self.link.base), noise)


def log_probability(log_mean: Tensor, counts: Tensor, dispersion: Tensor) -> Tensor:
    """Return the log probability of each count."""
    r = 1 / dispersion
    log_r = r.log()
    ways = torch.lgamma(counts + r) - torch.lgamma(r) - torch.lgamma(counts + 1)
    total = torch.logaddexp(log_r, log_mean)
    return ways + r * (log_r - total) + counts * (log_mean - total)


def _quantile(counts: Tensor, weight: Tensor, share: float) -> Tensor:  # (n, K) -> (K,)
    """Return the smallest count that at least a share of all weight does not exceed."""
    values, order = counts.sort(0)
    under = (weight[order].cumsum(0) < share * weight.sum()).sum(0, keepdim=True)
    return values.gather(0, under.clamp(max=len(values) - 1)).squeeze(0)


def nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return Gauss and Hermite's nodes for a standard normal, and the logs of their weights."""
    beside = torch.arange(1, _NODES, dtype=torch.float64).sqrt()
    z, Q = torch.linalg.eigh(beside.diag(1) + beside.diag(-1))
    return z.to(like), Q[0].square().log().to(like)


def likeliest(
    log_mean: Tensor,  # (nodes, n, K)
    counts: Tensor,  # (n, K)
    weight: Tensor,  # (n,)
    log_w: Tensor,  # (nodes,)
) -> tuple[Tensor, Tensor]:  # (K,), (K,)
    """Return the likeliest dispersion of each target, averaged over nodes; and its worth."""

    def worth(dispersion: Tensor) -> Tensor:  # (K,) -> (K,)
        log_p = log_probability(log_mean, counts, dispersion) + log_w.view(-1, 1, 1)
        return weight @ log_p.logsumexp(0)

    low, high = (torch.full_like(counts[0], math.log(x)) for x in _RANGE)
    for _ in range(_ROUNDS):
        steps = torch.linspace(0, 1, _TRIED).to(counts).unsqueeze(1)
        tried = low + steps * (high - low)  # (tried, K)
        found = torch.stack([worth(one.exp()) for one in tried])
        best = found.argmax(0, keepdim=True)
        at, width = tried.gather(0, best).squeeze(0), (high - low) / (_TRIED - 1)
        low, high = at - width, at + width
    return at.exp(), found.max(0).values
