"""The best weights so far of every replica of a stack, by a score of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class BestWeights:
    """Remembers what replicas had when their score was lowest.

    Args:
        tensors: what to remember, (R, …) each.
        replicas: R.
    """

    def __init__(self, tensors: Mapping[str, Tensor], replicas: int) -> None:
        self._now = dict(tensors)
        device = next(iter(self._now.values())).device
        self.scores = torch.full((replicas,), torch.inf, dtype=torch.float64, device=device)
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def offer(self, scores: Tensor) -> None:  # (R,), infinite for those that have none
        """Remember the present state of the replicas whose score is lower than ever."""
        better = scores < self.scores
        self.scores = torch.where(better, scores, self.scores)
        for name, now in self._now.items():
            self._kept[name] = torch.where(_over(better, now), now, self._kept.get(name, now))

    @torch.no_grad()
    def restore(self) -> None:
        """Give back what was remembered, where anything was."""
        for name, kept in self._kept.items():
            now = self._now[name]
            now.copy_(torch.where(_over(self.scores.isfinite(), now), kept, now))


def _over(mask: Tensor, tensor: Tensor) -> Tensor:  # (R,) -> (R, 1, …)
    return mask.view(-1, *[1] * (tensor.ndim - 1))
