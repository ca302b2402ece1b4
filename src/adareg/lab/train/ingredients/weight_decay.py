"""Weight decay: Adam's own, on all parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor

from adareg.lab.train.config import Config
from adareg.lab.train.ingredients.base import Members, Scaled, StackedPart

if TYPE_CHECKING:
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class WeightDecay(Scaled):
    """A multiple of the weights, added to their gradients."""

    setting: ClassVar[str] = "weight_decay"

    def optimizer(self, config: Config) -> dict[str, Any]:
        """Let Adam do it."""
        return {"weight_decay": self.strength_in(config)}

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return _StackedPart(own, trainer)


class _StackedPart(StackedPart):
    def __init__(self, own: Mapping[int, WeightDecay], trainer: Trainer) -> None:
        self._parameters, self._members = trainer.stack.parameters, trainer.members(own)
        self._decay = Scaled.strengths(own, trainer)[self._members, None]

    def add_gradients(self, grads: dict[str, Tensor]) -> None:
        add_decay(grads, self._parameters, self._members, self._decay)


def add_decay(
    grads: dict[str, Tensor], parameters: Mapping[str, Tensor], members: Members, decay: Tensor
) -> None:
    """Add a multiple of each parameter; ``decay`` is (members, parameters), or (members, 1)."""
    each = decay.expand(-1, len(parameters)).unbind(1)
    for (name, parameter), rate in zip(parameters.items(), each, strict=True):
        own = parameter[members]
        grads[name][members] += rate.view(-1, *[1] * (own.ndim - 1)) * own
