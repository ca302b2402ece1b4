"""From the posterior of the weights to the outputs: means, variances, draws; of one or several.

Outputs are those of the network linearised at its weights, so that they are Gaussian; with a linear
model this is exact. Several networks are mixed at each sample by their precision there: a network
that does not know says less. With shares ``sᵢ``, means ``mᵢ`` and covariances ``Cᵢ``,

    m = Σ sᵢ mᵢ        C = Σ √sᵢ (Cᵢ + (mᵢ − m)(mᵢ − m)ᵀ) √sᵢ,

whose diagonal is the variance of the mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from adareg.core.evidence.learn import Learned, covariances, each_output
from adareg.core.evidence.spread import Spread
from adareg.core.evidence.weights import WeightPosterior


class Outputs(NamedTuple):
    """Outputs at some inputs, without noise."""

    mean: Tensor  # (n, K)
    variance: Tensor  # (n, K)


class _Each(NamedTuple):
    """What each network says."""

    means: Tensor  # (N, n, K)
    variances: Tensor  # (N, n, K)
    shares: Tensor  # (N, n, K), summing to one

    @property
    def mean(self) -> Tensor:  # (n, K)
        return (self.shares * self.means).sum(0)

    @property
    def variance(self) -> Tensor:  # (n, K)
        apart = (self.means - self.mean).square()
        return (self.shares * (self.variances + apart)).sum(0)


def _each(networks: Sequence[Learned], means: Tensor, variances: Tensor) -> _Each:
    noise = torch.stack([one.noise_variance for one in networks]).unsqueeze(1)  # (N, 1, K)
    precision = 1 / (variances + noise)
    return _Each(means, variances, precision / precision.sum(0))


def _of_each(networks: Sequence[Learned], X: Tensor) -> _Each:
    metrics = _single(networks[0])
    means, variances = zip(*(spread(one, X, metrics) for one in networks), strict=True)
    return _each(networks, torch.stack(means), torch.stack(variances))


@torch.no_grad()
def mean(networks: Sequence[Learned], X: Tensor) -> Tensor:  # (n, K)
    """Return the mean of the outputs."""
    if len(networks) == 1:
        return networks[0].network(networks[0].state.w, X)
    return _of_each(networks, X).mean


@torch.no_grad()
def outputs(networks: Sequence[Learned], X: Tensor) -> Outputs:
    """Return the mean and the variance of the outputs."""
    each = _of_each(networks, X)
    return Outputs(each.mean, each.variance)


def _single(one: Learned) -> Tensor:  # (K, K, K)
    """Return the metrics of single outputs."""
    return torch.diag_embed(torch.eye(one.network.outputs).to(one.state.w))


class _Folded:
    """A posterior that is folded once so many rows were asked for that this is cheaper."""

    def __init__(self, metrics: Tensor) -> None:
        self.metrics, self.rows = metrics, 0
        self.spread: Spread | None = None

    def of(self, one: Learned, rows: int) -> Spread | None:
        """Return the folded posterior, if it pays."""
        self.rows += rows * one.network.outputs
        pays = len(one.network.hidden) == 1 and self.rows >= one.network.size
        if self.spread is None and pays:
            everything = torch.eye(one.network.size).to(one.state.w)
            covariance = one.posterior.covariance(everything)
            self.spread = Spread(one.network, one.state.w, covariance, self.metrics)
        return self.spread


#: What was folded; not a part of posteriors, so that these stay small when they are pickled.
_FOLDED: WeakKeyDictionary[WeightPosterior, _Folded] = WeakKeyDictionary()


def spread(one: Learned, X: Tensor, metrics: Tensor) -> Outputs:
    """Return the outputs (n, K), and ``tr(D·C)`` of their covariance C for metrics D, (n, m).

    Args:
        one: a network.
        X: inputs.
        metrics: (m, K, K), symmetric.
    """
    folded = _FOLDED.get(one.posterior)
    if folded is None or not torch.equal(folded.metrics, metrics):
        folded = _FOLDED[one.posterior] = _Folded(metrics)
    found = folded.of(one, len(X))
    if found is None:
        mean, covariance = covariances(one.network, one.state.w, one.posterior, X)
        return Outputs(mean, torch.einsum("nkl,mkl->nm", covariance, metrics).clamp(min=0))
    near = one.network.linearise(one.state.w, X)
    return Outputs(near.outputs, found.variances(near))


@torch.no_grad()
def covariance(networks: Sequence[Learned], X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (n, K), and the covariance between inputs of each output, (K, n, n)."""
    means, covariances = [], []
    for one in networks:
        near = one.network.linearise(one.state.w, X)
        means.append(near.outputs)
        covariances.append(one.posterior.covariance(near.rows(each_output(near.outputs))))
    inside = torch.stack(covariances)  # (N, K, n, n)
    variances = inside.diagonal(dim1=-2, dim2=-1).mT
    each = _each(networks, torch.stack(means), variances)
    apart = (each.means - each.mean).mT  # (N, K, n)
    weight = each.shares.sqrt().mT
    inside = inside + apart.unsqueeze(-1) * apart.unsqueeze(-2)
    return each.mean, (weight.unsqueeze(-1) * inside * weight.unsqueeze(-2)).sum(0)


@torch.no_grad()
def draw(
    networks: Sequence[Learned], X: Tensor, count: int, generator: torch.Generator
) -> Tensor:  # (count, n, K)
    """Return outputs drawn from a Gaussian of this mean and covariance, all inputs together."""
    each = _of_each(networks, X)
    drawn = each.mean.expand(count, -1, -1).clone()
    for one, mean, share in zip(networks, each.means, each.shares, strict=True):
        near = one.network.linearise(one.state.w, X)
        rows = near.rows(each_output(near.outputs))
        steps = torch.stack([one.posterior.draw(generator) for _ in range(count)])
        inside = torch.einsum("knp,cp->cnk", rows, steps)
        apart = torch.randn(count, 1, 1, generator=generator, dtype=mean.dtype, device="cpu").to(
            mean
        )
        drawn += share.sqrt() * (inside + apart * (mean - each.mean))
    return drawn
