"""AdaReg: the paper's prior, updated after each block by one of its rules."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

import adareg
from adareg.core.prior import MatrixNormal
from adareg.core.rules import solve_all
from adareg.lab.train.config import Config
from adareg.lab.train.ingredients.base import Members, Occasion, Part, Scaled, StackedPart
from adareg.lab.train.networks import Architecture

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class PaperPrior(Scaled):
    """AdaReg's penalty; its λ is the strength.

    Args:
        rule: by which precisions are updated.
        layers: which are regularized: "last", "fc", "conv" or "all".
    """

    rule: str = "alternating"
    layers: str = "last"

    setting: ClassVar[str] = "penalty_strength"

    @property
    def group(self) -> Hashable:
        """One part for each rule."""
        return type(self), self.rule

    def check(self, config: Config, architecture: Architecture) -> None:
        """Refuse a network that has none of the layers."""
        if self.layers == "conv" and not architecture.channels:
            raise ValueError(f"the network for {config.data} has no convolutions")

    def make_part(self, training: Training) -> Part:
        """Attach an ``AdaReg``."""
        reg = adareg.AdaReg(
            training.network,
            self.layers,
            self.strength_in(training.config),
            training.config.bounds,
            self.rule,
        )
        reg.attach(training.optimizer)
        return _Part(reg, training.config.blocks)

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return _StackedPart(own, trainer)


class _Part(Part):
    def __init__(self, reg: adareg.AdaReg, blocks: int) -> None:
        self.regularizer, self._blocks = reg, blocks

    def after_block(self) -> None:
        assert self.regularizer is not None
        self.regularizer.update()

    def occasions(self) -> Sequence[Occasion]:
        return [Occasion(self.after_block, self._blocks)]


class Penalised(StackedPart):
    """Replicas with a prior on some of their layers, whose penalty they descend.

    Args:
        layers: of each replica, those that have a prior.
        strengths: λ of every replica of the stack, (R,).
        trainer: of the stack.
    """

    def __init__(
        self, layers: Mapping[int, Sequence[str]], strengths: Tensor, trainer: Trainer
    ) -> None:
        self.stack, self.strengths = trainer.stack, strengths
        self._replicas = {
            layer: [i for i, own in layers.items() if layer in own]
            for layer in dict.fromkeys(layer for own in layers.values() for layer in own)
        }
        self.members: dict[str, Members] = {
            layer: trainer.members(replicas) for layer, replicas in self._replicas.items()
        }
        self.priors = {
            layer: MatrixNormal.identity(self.weights(layer)) for layer in self._replicas
        }

    def weights(self, layer: str) -> Tensor:
        """Return a layer's matrices in the replicas that have a prior on it."""
        return self.stack.matrix(layer)[self.members[layer]]

    def add_gradients(self, grads: dict[str, Tensor]) -> None:
        """Add ``2λ·ΩrWΩc``."""
        for layer, prior in self.priors.items():
            members, name = self.members[layer], f"{layer}.weight"
            added = 2 * self.strengths[members, None, None] * prior.product(self.weights(layer))
            grads[name][members] += added.view_as(grads[name][members]).to(grads[name].dtype)

    def prior(self, replica: int) -> dict[str, MatrixNormal]:
        """Return a replica's priors, by layer."""
        found = {}
        for layer, prior in self.priors.items():
            if replica in self._replicas[layer]:
                at = self._replicas[layer].index(replica)
                found[layer] = prior.apply(lambda factor, at=at: factor[at])  # type: ignore[misc]
        return found


class _StackedPart(Penalised):
    def __init__(self, own: Mapping[int, PaperPrior], trainer: Trainer) -> None:
        layers = {i: trainer.stack.layers(each.layers) for i, each in own.items()}
        super().__init__(layers, Scaled.strengths(own, trainer), trainer)
        (self._rule,) = {each.rule for each in own.values()}
        self._bounds = trainer.config.bounds

    @torch.no_grad()
    def after_block(self) -> None:
        """Update the precisions in closed form (Alg. 1's second half).

        A replica whose weights are no longer finite is given those of zero weights; its record
        says that it diverged.
        """
        for layer, prior in self.priors.items():
            W = self.weights(layer)
            W = torch.where(W.isfinite().all(-1).all(-1)[:, None, None], W, 0)
            solved = solve_all({layer: W}, {layer: prior}, self._rule, self._bounds)
            self.priors[layer] = solved[layer]
