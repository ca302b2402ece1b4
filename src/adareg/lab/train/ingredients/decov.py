"""DeCov: hidden units that do not vary together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from adareg.lab.train.ingredients.base import Part, Scaled, StackedPart

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer


@dataclass(frozen=True)
class DeCov(Scaled):
    """A multiple of :func:`decov` of every hidden layer, added to the loss."""

    setting: ClassVar[str] = "decov"

    def make_part(self, training: Training) -> Part:
        """Do it for one network."""
        return _Part(self.strength_in(training.config))

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for own replicas."""
        return _StackedPart(own, trainer)


class _Part(Part):
    def __init__(self, strength: float) -> None:
        self._strength = strength

    def loss(self, hidden: Sequence[Tensor]) -> Tensor:
        return self._strength * torch.stack([decov(h) for h in hidden]).sum()


class _StackedPart(StackedPart):
    def __init__(self, own: Mapping[int, DeCov], trainer: Trainer) -> None:
        self._members = trainer.members(own)
        self._strength = Scaled.strengths(own, trainer)[self._members]

    def loss(self, hidden: Sequence[Tensor]) -> Tensor:
        each = [(self._strength * decov(h[self._members])).sum() for h in hidden]
        return torch.stack(each).sum()


def decov(hidden: Tensor) -> Tensor:  # (…, samples, units) -> (…)
    """Return ``½(‖C‖² − ‖diag C‖²)``, C the covariance of the activations over the batch.

    Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations".
    """
    centred = hidden - hidden.mean(-2, keepdim=True)
    C = centred.mT @ centred / hidden.shape[-2]
    diagonal = torch.diagonal(C, dim1=-2, dim2=-1)
    return 0.5 * (C.square().sum((-2, -1)) - diagonal.square().sum(-1))
