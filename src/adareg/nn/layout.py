"""How each kind of layer's weight is read as a matrix: rows are outputs, columns fan-in.

The one place where orientation is decided. Support for a layer kind is a function from a
module to the :class:`Layout` of each weight it owns, entered in the table by
:func:`register_layout`; subclasses are covered by their base class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """One weight of a module as a matrix, or as a batch of matrices with a prior each.

    Args:
        parameter: the name of the weight on its module.
        to_matrix: weight -> (…, out, fan_in), by reshaping alone.
        from_matrix: the inverse of ``to_matrix``.
    """

    parameter: str = "weight"
    to_matrix: Callable[[Tensor], Tensor] = lambda weight: weight
    from_matrix: Callable[[Tensor], Tensor] = lambda matrix: matrix

    def leads_back(self, shape: torch.Size) -> bool:
        """Return true if ``from_matrix`` puts each entry back, those of a square matrix, too."""
        numbered = torch.arange(shape.numel(), dtype=torch.int32, device="cpu").view(shape)
        return torch.equal(self.from_matrix(self.to_matrix(numbered)), numbered)


@dataclass(frozen=True)
class _Entry:
    kind: str
    layouts: Callable[[Any], Iterable[Layout]]


_TABLE: dict[type[nn.Module], _Entry] = {}

_F = TypeVar("_F", bound=Callable[[Any], Iterable[Layout]])


def register_layout(*types: type[nn.Module], kind: str) -> Callable[[_F], _F]:
    """Decorator that teaches AdaReg a layer kind.

    Args:
        types: the module classes, subclasses included.
        kind: the group it belongs to: ``"fc"``, ``"conv"``, or a name of your own that can
            then be used to select layers.

    >>> import adareg, torch
    >>> class Transposed(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.randn(4, 3))  # (fan_in, out)
    >>> @adareg.register_layout(Transposed, kind="fc")
    ... def transposed(module):
    ...     return [adareg.Layout("weight", lambda w: w.mT, lambda m: m.mT)]
    >>> adareg.AdaReg(Transposed()).priors["weight"].shape
    torch.Size([3, 4])
    """

    def register(layouts: _F) -> _F:
        for cls in types:
            _TABLE[cls] = _Entry(kind, layouts)
        return layouts

    return register


def layouts_of(module: nn.Module) -> list[Layout] | None:
    """The layouts of the weights that ``module`` itself owns, or None for an unknown kind."""
    entry = _entry(module)
    return None if entry is None else list(entry.layouts(module))


def kind_of(module: nn.Module) -> str | None:
    """The kind of ``module``, or None if it is unknown."""
    entry = _entry(module)
    return None if entry is None else entry.kind


def kinds() -> set[str]:
    """All kinds in the table."""
    return {entry.kind for entry in _TABLE.values()}


def _entry(module: nn.Module) -> _Entry | None:
    return next((_TABLE[cls] for cls in type(module).__mro__ if cls in _TABLE), None)


@register_layout(nn.Linear, kind="fc")
def _linear(module: nn.Linear) -> list[Layout]:
    """(out, in) as it is."""
    return [Layout()]


@register_layout(nn.Conv1d, nn.Conv2d, nn.Conv3d, kind="conv")
def _convolution(module: nn.Conv2d) -> list[Layout]:
    """(out, in/g, *kernel) -> (out, in·kernel), or a batch of g groups, each with its own prior."""
    outputs, inputs, groups = module.out_channels, module.in_channels, module.groups
    shape = (outputs, inputs // groups, *module.kernel_size)
    matrix = (outputs, -1) if groups == 1 else (groups, outputs // groups, -1)
    return [Layout("weight", lambda w: w.reshape(matrix), lambda m: m.reshape(shape))]


@register_layout(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, kind="conv")
def _transposed_convolution(module: nn.ConvTranspose2d) -> list[Layout]:
    """(in, out/g, *kernel) -> (out/g, in/g·kernel), with g groups as a batch."""
    groups, inputs, kernel = module.groups, module.in_channels, module.kernel_size

    def to_matrix(weight: Tensor) -> Tensor:
        matrix = weight.unflatten(0, (groups, inputs // groups)).transpose(1, 2).flatten(2)
        return matrix.squeeze(0) if groups == 1 else matrix

    def from_matrix(matrix: Tensor) -> Tensor:
        batch = matrix.unsqueeze(0) if groups == 1 else matrix
        return batch.unflatten(-1, (inputs // groups, *kernel)).transpose(1, 2).flatten(0, 1)

    return [Layout("weight", to_matrix, from_matrix)]


@register_layout(nn.Embedding, nn.EmbeddingBag, kind="embedding")
def _embedding(module: nn.Embedding) -> list[Layout]:
    """(num_embeddings, dim) transposed: a lookup is a product with a one-hot input."""
    return [Layout("weight", lambda w: w.mT, lambda m: m.mT)]


@register_layout(nn.MultiheadAttention, kind="fc")
def _attention(module: nn.MultiheadAttention) -> list[Layout]:
    """The fused (3·E, E) projection as three E x E matrices; separate ones as they are.

    The output projection is a linear layer of its own.
    """
    if module.in_proj_weight is None:
        return [Layout(f"{which}_proj_weight") for which in "qkv"]
    return [Layout("in_proj_weight", lambda w: w.unflatten(0, (3, -1)), lambda m: m.flatten(0, 1))]
