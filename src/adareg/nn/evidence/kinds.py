"""How each kind of layer's weight gradients follow from what enters it and what comes back.

A table from module class to :class:`Kind`, subclasses included. Layers that are not in it are
differentiated one sample at a time, which is slow and always right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from adareg.core.evidence.constants import Constants
from adareg.nn.select import Layer


class Kind:
    """Layers whose weight gradient follows from the first input and the gradient at the output."""

    def forms_gradients(self, layer: Layer, constants: Constants) -> bool | None:
        """Return if each sample's weight gradient is formed, which takes memory.

        None if that depends on the input.
        """
        return True

    def vectors(
        self,
        layer: Layer,
        inputs: Tensor,  # (m, …)
        grads: Tensor,  # (draws, m, …)
        constants: Constants,
    ) -> tuple[Tensor, Tensor] | None:  # (m, d), (draws, m, p)
        """Return a and δ if each sample's weight gradient is ``δ aᵀ``, else None."""
        return None

    def gradients(
        self,
        layer: Layer,
        inputs: Tensor,  # (m, …)
        grads: Tensor,  # (draws, m, …)
    ) -> Tensor:  # (draws, m, …, p, d)
        """Return each sample's weight gradients, from :meth:`outputs`."""
        weight = layer.weight.detach()

        def one(x: Tensor, g: Tensor) -> Tensor:
            pullback = torch.func.vjp(lambda w: self.outputs(layer, w, x.unsqueeze(0)), weight)[1]
            return layer.layout.to_matrix(pullback(g.unsqueeze(0))[0])

        return torch.vmap(torch.vmap(one), in_dims=(None, 0))(inputs, grads)

    def outputs(self, layer: Layer, weight: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs for samples as a function of the weight."""
        values = {layer.layout.parameter: weight}
        found: Tensor = torch.func.functional_call(layer.module, values, (inputs,))
        return found


_TABLE: dict[type[nn.Module], Kind] = {}

_K = TypeVar("_K", bound=type[Kind])


def register_kind(*types: type[nn.Module]) -> Callable[[_K], _K]:
    """Enter a kind in the table, for these modules and their subclasses."""

    def register(kind: _K) -> _K:
        _TABLE.update(dict.fromkeys(types, kind()))
        return kind

    return register


def kind_of(module: nn.Module) -> Kind | None:
    """Return the kind of a module; None if it is not in the table."""
    return next((_TABLE[cls] for cls in type(module).__mro__ if cls in _TABLE), None)


@register_kind(nn.Linear)
class LinearKind(Kind):
    """Linear maps of one vector of each sample, or of many, as those of a text."""

    def forms_gradients(self, layer: Layer, constants: Constants) -> bool | None:
        """Return None: those of one vector are never formed."""
        return None

    def vectors(
        self, layer: Layer, inputs: Tensor, grads: Tensor, constants: Constants
    ) -> tuple[Tensor, Tensor] | None:
        """Return what enters and what comes back, if that is one vector of each sample."""
        return (inputs, grads) if inputs.ndim == 2 else None


@register_kind(
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
class ConvolutionKind(Kind):
    """Convolutions, which use their weight at many places."""

    def gradients(self, layer: Layer, inputs: Tensor, grads: Tensor) -> Tensor:
        """Return products of unfolded patches and gradients, for plain convolutions of images."""
        module = layer.module
        if not (isinstance(module, nn.Conv2d) and _is_plain(module)):
            return super().gradients(layer, inputs, grads)
        padding = module.padding
        assert not isinstance(padding, str), "else it is not plain"
        patches = functional.unfold(
            inputs, module.kernel_size, module.dilation, padding, module.stride
        )
        draws, m, p = grads.shape[:3]
        rows = grads.transpose(0, 1).reshape(m, draws * p, -1) @ patches.mT  # (m, draws·p, d)
        return rows.view(m, draws, p, -1).transpose(0, 1)


def _is_plain(module: nn.Conv2d) -> bool:
    """Return if a convolution is one of unfolded patches with the whole weight."""
    own = type(module)
    return (
        own.forward is nn.Conv2d.forward
        and own._conv_forward is nn.Conv2d._conv_forward
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


@register_kind(nn.Embedding)
class EmbeddingKind(Kind):
    """Embeddings; large ones are read as if each sample had one mean token."""

    def forms_gradients(self, layer: Layer, constants: Constants) -> bool | None:
        """Return False for large ones."""
        return layer.weight.numel() <= constants.large_embedding

    def vectors(
        self, layer: Layer, inputs: Tensor, grads: Tensor, constants: Constants
    ) -> tuple[Tensor, Tensor] | None:
        """Return the shares of tokens and the sum of gradients, for large ones."""
        if self.forms_gradients(layer, constants):
            return None
        tokens = inputs.reshape(len(inputs), -1)
        share = torch.full(tokens.shape, 1 / tokens.shape[1], device=tokens.device)
        counts = share.new_zeros(len(tokens), layer.weight.shape[0])
        return counts.scatter_add_(1, tokens, share), grads.flatten(2, -2).sum(2)

    def outputs(self, layer: Layer, weight: Tensor, inputs: Tensor) -> Tensor:
        """Return the lookup alone, whatever else the module does to weight and gradient."""
        module = layer.module
        if type(module) is not nn.Embedding:
            return super().outputs(layer, weight, inputs)
        return functional.embedding(inputs, weight, module.padding_idx)
