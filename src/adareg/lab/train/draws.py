"""Random numbers that are a function of where they are used, not of what was drawn before.

A network must see the same data, batches and dropout masks whether it is trained alone or in a
stack of hundred, on a CPU or a GPU, at once or after an interruption. So every number is a hash
of (seed, purpose, step, position); no generator has a state that could be in the way.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF

#: Hashed is an int64 tensor or an integer: the same operations give the same bits.
Bits = TypeVar("Bits", int, Tensor)


class Purpose(IntEnum):
    """The purposes of random numbers; each has a sequence of its own."""

    WEIGHTS = 1
    SUBSET = 2
    ORDER = 3
    CROP_DOWN = 4
    CROP_RIGHT = 5
    FLIP = 6
    TRIAL = 7
    DROPOUT = 16  # and one more for each further place


def _mix(x: Bits) -> Bits:
    """The finaliser of MurmurHash3 on 32 bits held in 64."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & _MASK
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def _key(seed: Bits, purpose: int, step: Bits) -> Bits:
    key = _mix((seed * 0x9E3779B1 + purpose) & _MASK)
    return _mix((key + step * 0x7FEB352D) & _MASK)


def _draw(key: Bits, position: Bits) -> Bits:
    """24 random bits: exact in float32."""
    x = _mix((key + position * 0x9E3779B1) & _MASK)
    return _mix((x + key) & _MASK) >> 8


def uniform(seeds: Tensor, purpose: int, step: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1) of shape (seeds, *shape), float32.

    Args:
        seeds: int64, (S,).
        purpose: see :class:`Purpose`.
        step: int64 scalar tensor, on the device of ``seeds``.
        shape: of what each seed gets.
    """
    size = torch.Size(shape)
    position = torch.arange(size.numel(), device=seeds.device)
    bits = _draw(_key(seeds, purpose, step).unsqueeze(-1), position)
    return bits.to(torch.float32).mul_(2**-24).view(-1, *size)


def generator(seed: int, purpose: int, step: int = 0) -> torch.Generator:
    """A generator on the CPU for one purpose, seeded by all three numbers."""
    key = _key(seed, purpose, step)
    return torch.Generator().manual_seed(_draw(key, 0) * 2**24 + _draw(key, 1))


def subset(total: int, n: int, seed: int) -> Tensor:
    """The n training samples of a seed, (n,); a larger n keeps those of a smaller one."""
    return torch.randperm(total, generator=generator(seed, Purpose.SUBSET))[:n]


def order(n: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits n samples, (n,)."""
    return torch.randperm(n, generator=generator(seed, Purpose.ORDER, epoch))
