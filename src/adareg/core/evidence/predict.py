"""From the posterior of the weights to the outputs: means, variances, draws; of one or several.

Outputs are those of the network linearised at its weights, so that they are Gaussian; with a linear
model this is exact. Several networks make a mixture: its mean is the mean of their means, and its
covariance also has how far these are apart.
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


@torch.no_grad()
def mean(networks: Sequence[Learned], X: Tensor) -> Tensor:  # (n, K)
    """Return the mean of the outputs."""
    return torch.stack([one.network(one.state.w, X) for one in networks]).mean(0)


@torch.no_grad()
def outputs(networks: Sequence[Learned], X: Tensor) -> Outputs:
    """Return the mean and the variance of the outputs."""
    found = [_of_one(one, X) for one in networks]
    means, variances = (torch.stack(x) for x in zip(*found, strict=True))
    return Outputs(means.mean(0), variances.mean(0) + means.var(0, correction=0))


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
    found = torch.stack(means)
    apart = (found - found.mean(0)).permute(2, 1, 0)  # (K, n, networks)
    between = apart @ apart.mT / len(networks)
    return found.mean(0), torch.stack(covariances).mean(0) + between


@torch.no_grad()
def draw(
    networks: Sequence[Learned], X: Tensor, count: int, generator: torch.Generator
) -> Tensor:  # (count, n, K)
    """Return outputs drawn from the posterior, each of one of the networks, all inputs together."""
    chosen = torch.randint(len(networks), (count,), generator=generator).tolist()
    drawn = []
    for index in chosen:
        one = networks[index]
        near = one.network.linearise(one.state.w, X)
        rows = near.rows(each_output(near.outputs))
        step = one.posterior.draw(generator)
        drawn.append(near.outputs + (rows @ step).T)
    return torch.stack(drawn)
