"""The interface of an ingredient: the calls of both trainers, which do nothing by default.

A method is a row of ingredients. The plain loop asks each for its :class:`Part` in the training of
one network; the stacked trainer asks equal ones together for their :class:`StackedPart` in the
training of many. A new ingredient is a file with a class like its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor

import adareg
from adareg.core.prior import MatrixNormal
from adareg.lab.train.config import Config
from adareg.lab.train.networks import Architecture

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer

#: An index of some replicas of a stack.
Members = slice | Tensor


class Occasion(NamedTuple):
    """Something that takes time beside the steps of a training, and how often it occurs."""

    run: Callable[[], None]
    times: int


class Part:
    """One network's part in its training, by the plain loop."""

    regularizer: adareg.Regularizer | None = None

    def inputs(self, samples: Tensor, step: int) -> Tensor | None:
        """Return the inputs of a batch, (B, …), if they are not those of the data set."""

    def loss(self, hidden: Sequence[Tensor]) -> Tensor | None:
        """Return what is added to the loss, from the hidden activations (B, h)."""

    def add_gradients(self) -> None:
        """Add to the gradients of the network's parameters, before a step."""

    def after_block(self) -> None:
        """Act when a block of epochs ends."""

    def after_epoch(self, epoch: int) -> None:
        """Act when an epoch ends, after the block's end."""

    def occasions(self) -> Sequence[Occasion]:
        """Return what takes time beside the steps."""
        return ()


class StackedPart:
    """The part of several replicas in the training of their stack; row r is replica r."""

    def inputs(self, samples: Tensor) -> Tensor | None:  # (R, B) -> (R, B, …)
        """Return the inputs of a batch, if they are not those of the data set."""

    def drop(self, h: Tensor, place: int) -> Tensor:  # (R, B, d) -> (R, B, d)
        """Return the inputs of a fully connected layer, some of them dropped."""
        return h

    def loss(self, hidden: Sequence[Tensor]) -> Tensor | None:  # (R, B, h) each -> ()
        """Return what is added to the sum of all losses."""

    def add_gradients(self, grads: dict[str, Tensor]) -> None:
        """Add to the gradients (R, …) of own replicas, in place."""

    def after_step(self, steps: int) -> bool:
        """Act after so many steps; return whether a recorded step no longer holds."""
        return False

    def after_block(self) -> None:
        """Act when a block of epochs ends; recorded steps are made anew."""

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Act when an epoch ends, after the block's end."""

    def noises(self) -> dict[int, float]:
        """Return σ² of the replicas that know the variance of their errors."""
        return {}

    def prior(self, replica: int) -> dict[str, MatrixNormal]:
        """Return a replica's priors, by layer."""
        return {}


@dataclass(frozen=True)
class Ingredient:
    """A part of a method; objects are equal if they do the same."""

    #: Networks with and without it cannot share a stack.
    apart: ClassVar[bool] = False
    #: A fifth of the samples is held out of training.
    holds_out: ClassVar[bool] = False

    @property
    def group(self) -> Hashable:
        """Equal for ingredients that have one part in a stack."""
        return (type(self),)

    def is_used(self, config: Config) -> bool:
        """Return whether it does anything in a cell."""
        return True

    def check(self, config: Config, architecture: Architecture) -> None:
        """Raise ``ValueError`` if it has no place in a cell."""

    def network(self, config: Config) -> dict[str, Any]:
        """Return arguments of ``Network``."""
        return {}

    def optimizer(self, config: Config) -> dict[str, Any]:
        """Return arguments of ``torch.optim.Adam``, for a network alone."""
        return {}

    def make_part(self, training: Training) -> Part:
        """Return its part in the training of one network."""
        return Part()

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Return the part of some replicas in the training of a stack, each with its ingredient."""
        return StackedPart()


@dataclass(frozen=True)
class Scaled(Ingredient):
    """An ingredient with a strength, which may be tuned.

    Args:
        strength: None for that of the cell.
    """

    strength: float | None = None

    #: The field or property of ``Config`` with the strength of a cell.
    setting: ClassVar[str]

    def strength_in(self, config: Config) -> float:
        """Return the strength in a cell."""
        own: float = getattr(config, self.setting) if self.strength is None else self.strength
        return own

    def is_used(self, config: Config) -> bool:
        """Return whether the strength is above zero."""
        return self.strength_in(config) > 0

    @staticmethod
    def strengths(own: Mapping[int, Scaled], trainer: Trainer) -> Tensor:  # (R,), 0 without it
        """Return the strength of every replica of a stack."""
        found = [own[i].strength_in(trainer.config) if i in own else 0.0 for i in trainer.indices]
        return trainer.tensor(found)
