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

import torch
from torch import Tensor

from adareg.core.evidence.learn import Learned, each_output

#: Entries of the largest array of rows that is formed at once.
_ENTRIES = 2**24


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
    noise = torch.stack([_own_noise(one) for one in networks]).unsqueeze(1)  # (N, 1, K)
    precision = 1 / (variances + noise)
    return _Each(means, variances, precision / precision.sum(0))


def _own_noise(one: Learned) -> Tensor:  # (K,)
    noise = one.remaining_noise
    return noise.diagonal() if noise.ndim == 2 else noise


def _of_each(networks: Sequence[Learned], X: Tensor) -> _Each:
    means, variances = zip(*(_of_one(one, X) for one in networks), strict=True)
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


def _of_one(one: Learned, X: Tensor) -> Outputs:
    size = max(1, _ENTRIES // (one.network.size * one.network.outputs))
    parts = [_of_part(one, X[i : i + size]) for i in range(0, len(X), size)]
    return Outputs(*(torch.cat(x) for x in zip(*parts, strict=True)))


def _of_part(one: Learned, X: Tensor) -> Outputs:
    near = one.network.linearise(one.state.w, X)
    rows = near.rows(each_output(near.outputs))
    return Outputs(near.outputs, one.posterior.variance(rows.flatten(0, 1)).view(len(rows), -1).T)


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
