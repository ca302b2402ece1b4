"""Random crops and flips, as in the authors' code, for many networks at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from adareg.lab.train import draws
from adareg.lab.train.draws import Purpose

#: Pixels of padding before a random crop (the authors').
_PADDING = 4


def pad_images(images: Tensor) -> Tensor:  # (N, H, W, C) -> (N, H + 8, W + 8, C)
    """Room for :func:`crop_and_flip` to move an image in."""
    return pad(images, (0, 0, *[_PADDING] * 4))


def crop_and_flip(padded: Tensor, samples: Tensor, seeds: Tensor, step: Tensor) -> Tensor:
    """Images of samples (R, B), each shifted by up to four pixels and flipped half of the time.

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
