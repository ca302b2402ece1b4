"""The marginal likelihood's prior: a precision for each parameter tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from adareg.lab.train.ingredients.base import Ingredient, Occasion, Part, StackedPart
from adareg.lab.train.ingredients.weight_decay import add_decay
from adareg.lab.train.ingredients.workshop import Workshop
from adareg.lab.train.marginal_likelihood import MarginalLikelihood

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class LaplacePrior(Ingredient):
    """See :class:`MarginalLikelihood`; the weights with the best score are kept."""

    def make_part(self, training: Training) -> Part:
        """Do it for one network."""
        return _Part(training)

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return _StackedPart(list(own), trainer)


class _Part(Part):
    def __init__(self, training: Training) -> None:
        self._training = training
        self._learner = MarginalLikelihood(training.network, training.config.n, training.task)

    def add_gradients(self) -> None:
        self._learner.add_gradients()

    def after_block(self) -> None:
        self._training.keep_if_best(self._learner.update(*self._training.samples()))

    def occasions(self) -> Sequence[Occasion]:
        return [Occasion(self.after_block, self._training.config.blocks)]


class _StackedPart(StackedPart):
    def __init__(self, replicas: Sequence[int], trainer: Trainer) -> None:
        self._trainer, self._workshop = trainer, Workshop(replicas, trainer)
        n, task = trainer.config.n, trainer.data.task
        self._learners = [MarginalLikelihood(net, n, task) for net in self._workshop.networks]
        self._members = trainer.members(replicas)
        self._decays = self._found().to(trainer.data.x.device, trainer.data.x.dtype)

    def _found(self) -> Tensor:  # (members, parameters)
        return torch.stack([learner.decay for learner in self._learners])

    def add_gradients(self, grads: dict[str, Tensor]) -> None:
        add_decay(grads, self._trainer.stack.parameters, self._members, self._decays)

    @torch.no_grad()
    def after_block(self) -> None:
        scores = torch.full_like(self._trainer.best.scores, torch.inf)
        for at, samples in self._workshop.samples():
            scores[self._workshop.replicas[at]] = self._learners[at].update(*samples)
        self._decays.copy_(self._found())
        self._trainer.best.offer(scores)

    def noises(self) -> dict[int, float]:
        found = [learner.noise for learner in self._learners]
        return dict(zip(self._workshop.replicas, found, strict=True))
