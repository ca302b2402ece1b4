"""Dropout, with masks that any trainer can repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from adareg.lab.train import draws
from adareg.lab.train.config import Config
from adareg.lab.train.draws import Purpose
from adareg.lab.train.ingredients.base import Scaled, StackedPart

if TYPE_CHECKING:
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class Dropout(Scaled):
    """Zeros among the inputs of every fully connected layer that does not read the data itself."""

    setting: ClassVar[str] = "dropout"

    def network(self, config: Config) -> dict[str, Any]:
        """Let the network do it."""
        return {"dropout": self.strength_in(config)}

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return _StackedPart(own, trainer)


class _StackedPart(StackedPart):
    def __init__(self, own: Mapping[int, Dropout], trainer: Trainer) -> None:
        self._members, self._step = trainer.members(own), trainer.step
        self._seeds = trainer.seeds[self._members]
        self._rate = Scaled.strengths(own, trainer)[self._members, None, None]
        self._first = 0 if trainer.stack.architecture.channels else 1

    def drop(self, h: Tensor, place: int) -> Tensor:
        if place < self._first:
            return h
        shape = (h.shape[1], h.shape[2])
        draw = draws.uniform(self._seeds, Purpose.DROPOUT + place, self._step, shape)
        scale = torch.ones_like(h)
        scale[self._members] = (draw >= self._rate.float()).to(h.dtype) / (1 - self._rate)
        return h * scale
