"""The evidence rule: priors and noise learned from a posterior, at times of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from torch import nn

import adareg
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.lab.train.ingredients.base import Ingredient, Occasion, Part, StackedPart
from adareg.lab.train.ingredients.paper_prior import Penalised
from adareg.lab.train.ingredients.workshop import Workshop
from adareg.nn.schedule import times

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class EvidencePrior(Ingredient):
    """A prior on every layer, with nothing to choose."""

    def make_part(self, training: Training) -> Part:
        """Attach the regularizer, which updates itself."""
        return _Part(training)

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return StackedEvidence(list(own), trainer)


def _regularizer(network: nn.Module, n: int, task: str) -> adareg.EvidenceReg:
    return adareg.EvidenceReg(network, n, likelihood=task)


class _Part(Part):
    def __init__(self, training: Training) -> None:
        self._training, config = training, training.config
        reg = _regularizer(training.network, config.n, training.task)
        reg.attach(training.optimizer, data=training.samples())
        self.regularizer = self._learning = reg

    def occasions(self) -> Sequence[Occasion]:
        config = self._training.config
        steps = config.blocks * config.epochs * math.ceil(config.n / config.batch)
        due = times(self._learning.default_schedule, steps)
        update = partial(self._learning.update, *self._training.samples())
        return [Occasion(update, len(due))]


class StackedEvidence(Penalised):
    """Updated when the library would; λ is learned too."""

    def __init__(self, replicas: Sequence[int], trainer: Trainer) -> None:
        layers = dict.fromkeys(replicas, trainer.stack.layers("all"))
        super().__init__(layers, trainer.tensor([0.0] * len(trainer.indices)), trainer)
        n, task = trainer.config.n, trainer.data.task
        self._workshop = Workshop(replicas, trainer)
        self._regularizers = [_regularizer(net, n, task) for net in self._workshop.networks]
        self._schedule, self._last_due = self._regularizers[0].default_schedule, 0
        self._take_over()

    def after_step(self, steps: int) -> bool:
        """Update the priors if it is time; return whether they have another shape."""
        if not self._schedule.is_due(steps, self._last_due):
            return False
        self._last_due = steps
        return self.update()

    def update(self) -> bool:
        """Update the priors of all replicas whose weights and outputs are finite."""
        for at, samples in self._workshop.samples():
            if _is_finite(self._workshop.networks[at]):  # else the record says that it diverged
                with suppress(adareg.NonFiniteError):
                    self._regularizers[at].update(*samples)
        return self._take_over()

    def noises(self) -> dict[int, float]:
        """Return σ² of each replica, as its regularizer has learned it."""
        found = [reg.metrics().get("noise", 1.0) for reg in self._regularizers]
        return dict(zip(self._workshop.replicas, found, strict=True))

    def _take_over(self) -> bool:
        """Take what was found, in place where it has the shape of what was there."""
        learned = [reg.strength for reg in self._regularizers]
        self.strengths[self._workshop.replicas] = self.strengths.new_tensor(learned)
        reshaped = False
        for layer, old in self.priors.items():
            found = _stacked([reg.priors[layer] for reg in self._regularizers])
            prior = found.to(self.strengths.device)
            if all(a.basis.shape == b.basis.shape for a, b in _sides(old, prior)):
                old.copy_(prior)
            else:
                self.priors[layer], reshaped = prior, True
        return reshaped


def _is_finite(network: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in network.parameters())


def _sides(one: MatrixNormal, other: MatrixNormal) -> list[tuple[Precision, Precision]]:
    return [(one.row, other.row), (one.col, other.col)]


def _stacked(priors: Sequence[MatrixNormal]) -> MatrixNormal:
    row, col = ([getattr(prior, side) for prior in priors] for side in ("row", "col"))
    return MatrixNormal(_alike(row), _alike(col))


def _alike(precisions: Sequence[Precision]) -> Precision:
    """Return a stack; with all eigenvectors where some have a prior of another rank than others."""
    if len({(p.scale is None, p.basis.shape) for p in precisions}) == 1:
        return Precision.stack(precisions)
    spectra = [precision.eigenvectors() for precision in precisions]
    return Precision.stack([Precision(None, Q, e) for e, Q in spectra])
