"""The penalty inside an optimizer's step: an unchanged training loop is regularized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adareg.core.linalg import result_dtype
from adareg.nn.groups import Group
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
        for group in self._reg.groups:
            if group.layers[0].parametrized:
                _add_through_parametrization(group, self._reg.strength, scale)
            else:
                _add_gradients(group, self._reg.strength, scale)

    def _shrink(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        skipped = getattr(optimizer, "found_inf", None)
        for group in self._reg.groups:
            rates = [self._learning_rate(optimizer, layer) for layer in group.layers]
            if all(rate is rates[0] or rate == rates[0] for rate in rates):
                _shrink(group, rates[0] * self._reg.strength, skipped)
            else:
                for rate, one in zip(rates, group.singles(), strict=True):
                    _shrink(one, rate * self._reg.strength, skipped)

    def _learning_rate(self, optimizer: Optimizer, layer: Layer) -> float | Tensor:
        rate: float | Tensor = optimizer.param_groups[self._groups[layer.name]]["lr"]
        return rate

    def _count(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._reg.count_step(self._update_every)


@torch.no_grad()
def _add_gradients(group: Group, strength: float, scale: Tensor | None) -> None:
    grads = {i: layer.weight.grad for i, layer in enumerate(group.layers)}
    used = {i: grad for i, grad in grads.items() if grad is not None}
    for i, grad in used.items():
        if grad.is_sparse:
            raise TypeError(
                f"{group.layers[i].name}: its gradient is sparse and the penalty's is not; "
                f"use mode='proximal', or make the layer with sparse=False"
            )
    if used:
        gradient = group.prior.gradient(group.matrix).to(result_dtype(next(iter(used.values()))))
        each = group.unstack(gradient if scale is None else gradient * scale)
        torch._foreach_add_(list(used.values()), [each[i] for i in used], alpha=strength)


@torch.enable_grad()
def _add_through_parametrization(group: Group, strength: float, scale: Tensor | None) -> None:
    (layer,) = group.layers
    parameters = [p for p in layer.parameters if p.grad is not None]
    penalty = strength * group.prior.penalty(layer.matrix).sum()
    penalty = penalty if scale is None else penalty * scale
    grads = torch.autograd.grad(penalty, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None and parameter.grad is not None:
            parameter.grad.add_(grad)


@torch.no_grad()
def _shrink(group: Group, step: float | Tensor, skipped: Tensor | None) -> None:
    weights = [layer.weight for layer in group.layers]
    used = [i for i, weight in enumerate(weights) if weight.grad is not None]
    if not used:
        return
    shrunk = group.unstack(group.prior.proximal(group.matrix, step))
    if skipped is not None:
        shrunk = [torch.where(skipped > 0, w, x) for w, x in zip(weights, shrunk, strict=True)]
    torch._foreach_copy_([weights[i] for i in used], [shrunk[i] for i in used])


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
