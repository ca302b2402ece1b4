"""Batches of model inputs: a tensor, or a tuple or dict of the model's arguments.

An argument may itself be a list, tuple or dict of tensors. Tensors have samples along the first
dimension; those without dimensions, like other values, are the same for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

#: A batch of model inputs: the argument, positional arguments, or keyword arguments.
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


def each(inputs: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """``f`` of every tensor of a batch."""
    if isinstance(inputs, Tensor):
        return f(inputs)
    if isinstance(inputs, Mapping):
        return {key: each(value, f) for key, value in inputs.items()}
    if isinstance(inputs, list):
        return [each(x, f) for x in inputs]
    return tuple(each(x, f) for x in inputs) if isinstance(inputs, tuple) else inputs


def _tensors(inputs: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    each(inputs, note)
    return found


def form(inputs: Any) -> Any:
    """What batches must have in common to be joined: all shapes but for the number of samples."""
    return [x.shape[1:] for x in _tensors(inputs)]


def take(inputs: Any, index: Tensor | slice) -> Any:
    """Some samples of a batch."""

    def some(x: Tensor) -> Tensor:
        return x[index.to(x.device) if isinstance(index, Tensor) else index] if x.ndim else x

    return each(inputs, some)


def size(inputs: Any) -> int:
    """The number of samples in a batch: the length of its first tensor that has one."""
    lengths = [len(x) for x in _tensors(inputs) if x.ndim]
    if not lengths:
        raise TypeError(f"a batch of inputs without a tensor: {type(inputs).__name__}")
    return lengths[0]


def joined(batches: Iterable[Any]) -> Any:
    """Batches as one; a list of the model's arguments, as loaders have them, as a tuple."""
    several = list(batches)
    if not several:
        raise ValueError("update() got no batch of inputs")
    made = _joined(several)
    return tuple(made) if isinstance(made, list) else made


def _joined(several: list[Any]) -> Any:
    first = several[0]
    if isinstance(first, Tensor):
        return torch.cat(several) if first.ndim else several[-1]
    if isinstance(first, Mapping):
        return {key: _joined([batch[key] for batch in several]) for key in first}
    if isinstance(first, tuple | list):
        parts = [_joined(list(same)) for same in zip(*several, strict=True)]
        return parts if isinstance(first, list) else tuple(parts)
    return first
