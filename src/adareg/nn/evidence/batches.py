"""Batches of model inputs: a tensor, or a tuple or dict of the model's arguments.

An argument may itself be a list, tuple or dict of tensors. Tensors have samples along the first
dimension; those without dimensions, like other values, are the same for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

#: A batch of model inputs: the argument, positional arguments, or keyword arguments.
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


def each(inputs: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """Return ``f`` of every tensor of a batch."""
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
    """Return what batches must have in common to be joined: shapes but for the samples."""
    return [x.shape[1:] for x in _tensors(inputs)]


def take(inputs: Any, index: Tensor | slice) -> Any:
    """Return some samples of a batch."""

    def some(x: Tensor) -> Tensor:
        return x[index.to(x.device) if isinstance(index, Tensor) else index] if x.ndim else x

    return each(inputs, some)


def size(inputs: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor that has one."""
    lengths = [len(x) for x in _tensors(inputs) if x.ndim]
    if not lengths:
        raise TypeError(f"a batch of inputs without a tensor: {type(inputs).__name__}")
    return lengths[0]


def joined(batches: Iterable[Any]) -> Any:
    """Return batches as one; a list of the model's arguments, as loaders have them, as a tuple."""
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


def enough(batches: Iterable[Any], samples: int) -> Iterator[Any]:
    """Yield batches until there are ``samples`` samples."""
    total = 0
    for batch in batches:
        yield batch
        total += size(batch)
        if total >= samples:
            return


def sample(
    inputs: Any,
    targets: Tensor | None,
    most: Callable[[Inputs], int],
    generator: torch.Generator,
    samples: int,
) -> tuple[Any, Tensor | None]:
    """Return as many samples as there should be at most, drawn without replacement.

    Args:
        inputs: a batch, or an iterable of batches.
        targets: of all of them.
        most: returns from a batch how many samples there should be.
        generator: draws.
        samples: how many are read at least from batches without targets.
    """
    if not isinstance(inputs, Tensor | tuple | Mapping):
        inputs = joined(enough(inputs, samples) if targets is None else inputs)
    if not isinstance(targets, Tensor | None):
        raise TypeError(f"targets: expected a tensor, got {type(targets).__name__}")
    if targets is not None and (targets.is_complex() or not targets.ndim):
        found = "complex numbers" if targets.is_complex() else "a number alone"
        raise ValueError(f"targets: expected real numbers, a row for each sample, got {found}")
    m = size(inputs)
    if m == 0:
        raise ValueError("update() got no samples")
    if targets is not None and len(targets) != m:
        raise ValueError(f"{m} inputs and {len(targets)} targets: expected as many of each")
    few = most(inputs)
    if m <= few:
        return inputs, targets
    index = torch.randperm(m, generator=generator, device="cpu")[:few]
    return take(inputs, index), None if targets is None else take(targets, index)
