"""Early stopping: training on four fifths of the samples, the best weights by the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from adareg.lab.train.ingredients.base import Ingredient, Occasion, Part, StackedPart

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer

#: How often the held-out samples are looked at, at most.
CHECKS = 200


@dataclass(frozen=True)
class EarlyStopping(Ingredient):
    """The weights of the epoch with the lowest loss on the held-out samples."""

    apart: ClassVar[bool] = True
    holds_out: ClassVar[bool] = True

    def make_part(self, training: Training) -> Part:
        """Do it for one network."""
        return _Part(training)

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for a stack."""
        return _StackedPart(trainer)


def is_due(epoch: int, epochs: int) -> bool:
    """Return whether the held-out samples are looked at after an epoch."""
    return (epoch + 1) % -(-epochs // CHECKS) == 0


class _Part(Part):
    def __init__(self, training: Training) -> None:
        self._training, config = training, training.config
        self._epochs = config.blocks * config.epochs

    def after_epoch(self, epoch: int) -> None:
        if is_due(epoch, self._epochs):
            self.check()

    def check(self) -> None:
        self._training.keep_if_best(self._training.validation_loss())

    def occasions(self) -> Sequence[Occasion]:
        count = sum(is_due(epoch, self._epochs) for epoch in range(self._epochs))
        return [Occasion(self.check, count)]


class _StackedPart(StackedPart):
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def after_epoch(self, epoch: int, epochs: int) -> None:
        if is_due(epoch, epochs):
            self._trainer.best.offer(self._trainer.validation_loss())

    def noises(self) -> dict[int, float]:
        """The lowest loss."""
        return dict(enumerate(self._trainer.best.scores.tolist()))
