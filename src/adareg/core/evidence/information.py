"""The curvature of all samples in a network's weights, told apart by direction in output space.

Where each direction is one output's own, as with independent noise, its rows touch the hidden
layers and the weights of that output alone, and no zeros are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from adareg.core.evidence.perceptron import Linearised, Perceptron
from adareg.core.evidence.weights import InRows, InWeights, WeightPosterior


class Information:
    """Sums over samples, in the space of weights or of rows, whichever is smaller."""

    def __init__(self, network: Perceptron, samples: int, by_direction: bool) -> None:
        self._network, self._samples, self._by_direction = network, samples, by_direction
        self._rows: list[Tensor] = []
        self._blocks: list[Tensor] = []  # Gram matrices, by direction
        self._places: list[Tensor] = []  # of their rows and columns among the weights

    def add(self, near: Linearised, roots: Tensor) -> None:  # roots: (R, n, K)
        """Add samples."""
        if len(roots) * self._samples < self._network.size:
            self._rows.append(near.rows(roots))
        elif self._by_direction and len(roots) > 1 and _own(roots):
            self._add_own(near, roots)
        else:
            M = near.rows(roots)
            self._add_blocks(_grams(M if self._by_direction else M.flatten(0, 1).unsqueeze(0)))

    def _add_own(self, near: Linearised, roots: Tensor) -> None:
        hidden, last = near.hidden_rows(roots), near.last_rows()
        scaled = (roots[k, :, k : k + 1] * last for k in range(len(roots)))
        self._add_blocks(_grams(torch.cat(x, 1) for x in zip(hidden, scaled, strict=True)))
        if not self._places:
            shared = torch.arange(hidden.shape[-1])
            own = [torch.cat([shared, self._network.own(k)]) for k in range(len(roots))]
            self._places = [places.to(roots.device) for places in own]

    def _add_blocks(self, blocks: list[Tensor]) -> None:
        if not self._blocks:
            self._blocks = blocks
            return
        for old, new in zip(self._blocks, blocks, strict=True):
            old.add_(new)

    def close(self) -> None:
        """Sum over directions; to be called when all samples are there."""
        self.rows = torch.cat(self._rows, 1).flatten(0, 1) if self._rows else None
        self.gram = None if self._rows else self._total()

    def _total(self) -> Tensor:
        if not self._places:
            return torch.stack(self._blocks).sum(0)
        total = self._blocks[0].new_zeros(self._network.size, self._network.size)
        for places, block in zip(self._places, self._blocks, strict=True):
            total[places.unsqueeze(1), places] += block
        return total

    def posterior(self, variances: Tensor, damping: float = 0.0) -> WeightPosterior:
        """Return the posterior of the weights under a prior."""
        if self.rows is not None:
            return InRows(self.rows, variances, damping)
        assert self.gram is not None
        return InWeights(self.gram, variances, damping)

    def leverage(self, posterior: WeightPosterior) -> Tensor:  # (R,)
        """Return how many weights each direction's rows determine."""
        if isinstance(posterior, InRows):
            each = posterior.leverage()
            return each.view(-1, self._samples).sum(1) if self._by_direction else each.sum()[None]
        assert isinstance(posterior, InWeights)
        r = posterior.deviations
        covariance = posterior.inverse() * r * r.unsqueeze(1)
        if not self._places:
            return torch.stack([(block * covariance).sum() for block in self._blocks])
        pairs = zip(self._places, self._blocks, strict=True)
        return torch.stack([(b * covariance[at.unsqueeze(1), at]).sum() for at, b in pairs])

    def bend(self, step: Tensor) -> Tensor:
        """Return the squared length of a step, in units of what the samples say."""
        if self.rows is not None:
            return (self.rows @ step).square().sum()
        assert self.gram is not None
        return step @ (self.gram @ step)


def _grams(parts: Iterable[Tensor]) -> list[Tensor]:
    return [M.mT @ M for M in parts]


def _own(roots: Tensor) -> bool:
    """Return if the k-th direction is the k-th output's own, for all samples."""
    R, _, K = roots.shape
    return R == K and not bool((roots * (1 - torch.eye(K).to(roots)).unsqueeze(1)).any())
