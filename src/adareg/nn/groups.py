"""Layers of one shape, worked on together: a handful of kernels, however many layers there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adareg.core.linalg import is_sharded
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.nn.select import Layer

#: Weights up to this many entries are stacked. Beyond it a product is long enough to hide the
#: time of its launch, and a copy of the weight would be worth noticing.
_STACK_UP_TO = 2**18


@dataclass(frozen=True)
class Group:
    """Layers whose matrices have one shape, and their priors as one batch."""

    layers: tuple[Layer, ...]
    prior: MatrixNormal  # (layers, …, p, d), or (…, p, d) for a single layer

    def __post_init__(self) -> None:
        """Have the prior ready before a step, or torch.compile, looks at it."""
        self.prior.maps.product()

    @property
    def matrix(self) -> Tensor:
        """The weights as the prior wants them."""
        matrices = [layer.matrix for layer in self.layers]
        return matrices[0] if len(matrices) == 1 else torch.stack(matrices)

    def unstack(self, matrix: Tensor) -> list[Tensor]:
        """What belongs to each layer, in the shape of its weight."""
        matrices = [matrix] if len(self.layers) == 1 else matrix.unbind()
        return [layer.from_matrix(m) for layer, m in zip(self.layers, matrices, strict=True)]

    def singles(self) -> list[Group]:
        """Each layer as a group of its own."""
        if len(self.layers) == 1:
            return [self]
        return [Group((layer,), _item(self.prior, i)) for i, layer in enumerate(self.layers)]


def placement(layers: Iterable[Layer]) -> tuple[tuple[torch.device, torch.dtype, object], ...]:
    """Where each weight is and what it is made of; when this changes, groups are made anew."""
    sources = (layer.parameters[0] for layer in layers)
    return tuple(
        (source.device, source.dtype, getattr(source, "placements", None)) for source in sources
    )


def make_groups(layers: Mapping[str, Layer], priors: Mapping[str, MatrixNormal]) -> list[Group]:
    """Group ``layers``, with the given priors moved to the weights."""
    members: dict[object, list[Layer]] = defaultdict(list)
    for name, layer in layers.items():
        weight, prior = layer.weight, priors[name]
        large = weight.numel() > _STACK_UP_TO
        alone = name if large or layer.parametrized or is_sharded(weight) else None
        ranks = prior.row.basis.shape, prior.col.basis.shape
        members[alone, weight.device, weight.dtype, prior.shape, ranks].append(layer)
    return [
        Group(tuple(same), _stack([layer.fit(priors[layer.name]) for layer in same]))
        for same in members.values()
    ]


def _item(prior: MatrixNormal, i: int) -> MatrixNormal:
    return prior.apply(lambda factor: factor[i].clone())


def _stack(priors: list[MatrixNormal]) -> MatrixNormal:
    if len(priors) == 1:
        return priors[0]
    return MatrixNormal(
        Precision.stack([prior.row for prior in priors]),
        Precision.stack([prior.col for prior in priors]),
    )
