"""Random crops and flips, as in the authors' code, for many networks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from adareg.lab.train import draws
from adareg.lab.train.config import Config
from adareg.lab.train.draws import Purpose
from adareg.lab.train.ingredients.base import Ingredient, Part, StackedPart

if TYPE_CHECKING:
    from adareg.lab.train.plain_loop import Training
    from adareg.lab.train.stacked import Trainer

#: Pixels of padding before a random crop (the authors').
_PADDING = 4


@dataclass(frozen=True)
class Augmentation(Ingredient):
    """Images moved by up to four pixels and flipped half of the time: in every method of a cell."""

    def is_used(self, config: Config) -> bool:
        """Return whether the cell has it."""
        return config.augment

    def make_part(self, training: Training) -> Part:
        """Do it for one network."""
        return _Part(training)

    @classmethod
    def make_stacked_part(cls, own: Mapping[int, Self], trainer: Trainer) -> StackedPart:
        """Do it for a stack."""
        return _StackedPart(trainer)


class _Part(Part):
    def __init__(self, training: Training) -> None:
        self._padded = pad_images(training.x.permute(0, 2, 3, 1))
        self._seeds = torch.tensor([training.seed], device=training.x.device)

    def inputs(self, samples: Tensor, step: int) -> Tensor:
        at = torch.tensor(step, device=samples.device)
        return crop_and_flip(self._padded, samples[None], self._seeds, at)[0].permute(0, 3, 1, 2)


class _StackedPart(StackedPart):
    def __init__(self, trainer: Trainer) -> None:
        self._padded = pad_images(trainer.data.x)
        self._seeds, self._step = trainer.seeds, trainer.step

    def inputs(self, samples: Tensor) -> Tensor:
        return crop_and_flip(self._padded, samples, self._seeds, self._step)


def pad_images(images: Tensor) -> Tensor:  # (N, H, W, C) -> (N, H + 8, W + 8, C)
    """Return images with room for :func:`crop_and_flip` to move them in."""
    return pad(images, (0, 0, *[_PADDING] * 4))


def crop_and_flip(padded: Tensor, samples: Tensor, seeds: Tensor, step: Tensor) -> Tensor:
    """Return images of samples (R, B), each moved by up to four pixels, and half of them flipped.

    Args:
        padded: all images, (N, H + 8, W + 8, C).
        samples: indices of the batch.
        seeds: of each replica, (R,).
        step: the number of the training step.
    """
    (R, B), (H, W) = samples.shape, (side - 2 * _PADDING for side in padded.shape[1:3])
    purposes = Purpose.CROP_DOWN, Purpose.CROP_RIGHT, Purpose.FLIP
    drawn = [draws.uniform(seeds, purpose, step, (B,)) for purpose in purposes]
    down, right = ((draw * (2 * _PADDING + 1)).long() for draw in drawn[:2])
    rows = down[..., None] + torch.arange(H, device=padded.device)
    columns = torch.arange(W, device=padded.device).expand(R, B, W)
    columns = torch.where(drawn[2][..., None] < 0.5, W - 1 - columns, columns)
    columns = right[..., None] + columns
    return padded[samples[..., None, None], rows[..., None], columns[..., None, :]]
