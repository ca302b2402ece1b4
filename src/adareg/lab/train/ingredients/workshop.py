"""Networks to learn from: each replica whose prior is learned from a posterior has one of its own.

At an update, which is rare, a replica's weights are copied into its network, what learns does there
what it would do for a network trained alone, and the stack takes over the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adareg.lab.train.networks import Architecture, Network

if TYPE_CHECKING:
    from adareg.lab.train.stacked import Trainer


def workshop_of(architecture: Architecture, device: torch.device) -> torch.device:
    """Return where updates are made: a CPU, which decomposes small matrices many times faster.

    Convolutions of hundreds of images are another matter.
    """
    return device if architecture.channels else torch.device("cpu")


class Workshop:
    """A network for each of some replicas of a stack, with their weights."""

    def __init__(self, replicas: Collection[int], trainer: Trainer) -> None:
        self.replicas, self._trainer = list(replicas), trainer
        architecture, like = trainer.stack.architecture, trainer.data.x
        self._device = workshop_of(architecture, like.device)
        self.networks = [Network(architecture, 0).to(self._device, like.dtype) for _ in replicas]
        for at in range(len(self.networks)):
            self._load(at, trainer.stack.parameters, self.replicas[at])

    def samples(self) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
        """Give each network its replica's weights; yield its place and its training samples."""
        weights = {
            name: each.detach()[self.replicas].to(self._device)
            for name, each in self._trainer.stack.parameters.items()
        }
        for at, replica in enumerate(self.replicas):
            self._load(at, weights, at)
            x, y = self._trainer.samples(replica)
            yield at, (x.to(self._device), y.to(self._device))

    @torch.no_grad()
    def _load(self, at: int, weights: dict[str, Tensor], i: int) -> None:
        for name, parameter in self.networks[at].named_parameters():
            parameter.copy_(weights[name][i])
