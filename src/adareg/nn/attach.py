"""The penalty inside an optimizer's step: an unchanged training loop is regularized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adareg.core.linalg import result_dtype
from adareg.core.prior import MatrixNormal
from adareg.nn.select import Layer

if TYPE_CHECKING:
    from adareg.nn.regularizer import AdaReg

MODES = ("coupled", "proximal")


class Attachment:
    """The tie between an AdaReg and an optimizer; made by :meth:`AdaReg.attach`."""

    def __init__(
        self, reg: AdaReg, optimizer: Optimizer, mode: str, update_every: int | None
    ) -> None:
        self._reg = reg
        self._update_every = update_every
        self._groups = _groups(reg, optimizer)
        if mode == "proximal":
            _refuse_parametrized(reg)
            self._handles = [optimizer.register_step_post_hook(self._shrink)]
        else:
            self._handles = [optimizer.register_step_pre_hook(self._before_step)]
        self._handles.append(optimizer.register_step_post_hook(self._count))

    @property
    def active(self) -> bool:
        """Whether the optimizer still calls it."""
        return bool(self._handles)

    def remove(self) -> None:
        """Detach from the optimizer; harmless when done before."""
        while self._handles:
            self._handles.pop().remove()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Add the gradients now, or after each call of the closure that computes the others."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._add_gradients(optimizer)
            return None

        def regularized() -> Any:
            loss = closure()
            self._add_gradients(optimizer)
            return None if loss is None else loss + self._reg.penalty().detach()

        if len(args) > 1:
            return (args[0], regularized, *args[2:]), kwargs
        return args, {**kwargs, "closure": regularized}

    def _add_gradients(self, optimizer: Optimizer) -> None:
        # A fused optimizer unscales inside its kernel: what is added must be scaled like the rest.
        scale = getattr(optimizer, "grad_scale", None)
        for name, prior in self._reg.priors.items():
            layer = self._reg.layers[name]
            add = _add_through_parametrization if layer.parametrized else _add_gradient
            add(layer, prior, self._reg.strength, scale)

    @torch.no_grad()
    def _shrink(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        skipped = getattr(optimizer, "found_inf", None)
        for name, prior in self._reg.priors.items():
            layer = self._reg.layers[name]
            weight = layer.weight
            if weight.grad is None:
                continue
            step = optimizer.param_groups[self._groups[name]]["lr"] * self._reg.strength
            shrunk = layer.layout.from_matrix(prior.proximal(layer.matrix, step))
            weight.copy_(shrunk if skipped is None else torch.where(skipped > 0, weight, shrunk))

    def _count(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._reg.count_step(self._update_every)


@torch.no_grad()
def _add_gradient(layer: Layer, prior: MatrixNormal, strength: float, scale: Tensor | None) -> None:
    grad = layer.weight.grad
    if grad is None:
        return
    if grad.is_sparse:
        raise TypeError(
            f"{layer.name}: its gradient is sparse and the penalty's is not; "
            f"use mode='proximal', or make the layer with sparse=False"
        )
    gradient = layer.layout.from_matrix(prior.gradient(layer.matrix)).to(result_dtype(grad))
    grad.add_(gradient if scale is None else gradient * scale, alpha=strength)


@torch.enable_grad()
def _add_through_parametrization(
    layer: Layer, prior: MatrixNormal, strength: float, scale: Tensor | None
) -> None:
    parameters = [p for p in layer.parameters if p.grad is not None]
    penalty = strength * prior.penalty(layer.matrix).sum()
    penalty = penalty if scale is None else penalty * scale
    grads = torch.autograd.grad(penalty, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None and parameter.grad is not None:
            parameter.grad.add_(grad)


def _groups(reg: AdaReg, optimizer: Optimizer) -> dict[str, int]:
    """The index of the parameter group that holds each layer's weight."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim.Optimizer, got {optimizer!r}")
    held = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    groups = {}
    for name, layer in reg.layers.items():
        needed = [id(p) for p in layer.parameters if p.requires_grad]
        if not all(parameter in held for parameter in needed):
            raise ValueError(
                f"{name}: the optimizer does not hold this layer's weight; attach the optimizer "
                f"that trains it, or select other layers"
            )
        groups[name] = held[needed[0]]
    return groups


def _refuse_parametrized(reg: AdaReg) -> None:
    for name, layer in reg.layers.items():
        if layer.parametrized:
            raise ValueError(
                f"{name}: its weight is parametrized, so it cannot be set as mode='proximal' "
                f"must; use mode='coupled'"
            )
