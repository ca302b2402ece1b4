"""The penalty inside an optimizer's step: an unchanged training loop is regularized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from adareg.core.linalg import is_sharded, local, result_dtype
from adareg.core.prior import MatrixNormal
from adareg.nn.groups import Group
from adareg.nn.schedule import Never, Schedule
from adareg.nn.select import Layer

if TYPE_CHECKING:
    from adareg.nn.regularizer import Regularizer

MODES = ("coupled", "proximal")


def check_mode(mode: str) -> str:
    """Return the mode, if there is one of this name."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}")
    return mode


class Attachment:
    """The tie between a regularizer and an optimizer; made by :meth:`Regularizer.attach`."""

    def __init__(
        self, reg: Regularizer, optimizer: Optimizer, mode: str, schedule: Schedule
    ) -> None:
        optimizer = innermost(optimizer)
        self._reg = reg
        self.schedule = schedule
        self._places = _places(reg, optimizer)
        self._replaced: list[_Replaced] = []
        self.maximizes = all(self._sign(optimizer, layer) < 0 for layer in reg.layers.values())
        _refuse_overlap(reg, optimizer)
        if mode == "proximal":
            _refuse_what_cannot_shrink(reg, optimizer)
            hooks = [optimizer.register_step_post_hook(self._shrink)]
        else:
            hooks = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._restore_gradients),
            ]
        self._handles = [*hooks, optimizer.register_step_post_hook(self._count)]
        others = [other for other in _ATTACHED.get(optimizer, []) if other.active]
        _ATTACHED[optimizer] = [*others, self]

    @property
    def active(self) -> bool:
        """True while the optimizer calls it."""
        return bool(self._handles)

    def own(self, handles: Iterable[RemovableHandle]) -> None:
        """Remove these handles, too, when it is removed."""
        self._handles.extend(handles)

    def remove(self) -> None:
        """Detach from the optimizer; harmless when done before."""
        self._restore()
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
            return None if loss is None else loss + self._penalty(optimizer)

        if len(args) > 1:
            return (args[0], regularized, *args[2:]), kwargs
        return args, {**kwargs, "closure": regularized}

    @torch.no_grad()
    def _add_gradients(self, optimizer: Optimizer) -> None:
        """Put gradients with the penalty's added in place of the weights' own, for this step."""
        # A fused optimizer unscales inside its kernel: what is added must be scaled like the rest.
        scale = getattr(optimizer, "grad_scale", None)
        self._restore()  # what a step that raised has left behind
        for group in self._reg.groups:
            signs = [self._sign(optimizer, layer) for layer in group.layers]
            gradients = _through_parametrization if group.layers[0].parametrized else _gradients
            for parameter, grad in gradients(group, self._reg.strength, signs, scale):
                self._replaced.append(_Replaced(parameter, parameter.grad, grad, grad._version))
                parameter.grad = grad

    def _restore_gradients(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Leave the gradients as the step found them, as weight decay does."""
        for parameter, own, _, _ in self._replaced:
            parameter.grad = own
        self._replaced = []

    def _restore(self) -> None:
        """Restore the gradients after a step that raised, but for those that have changed since."""
        for parameter, own, put, version in self._replaced:
            if parameter.grad is put and put._version == version:
                parameter.grad = own
        self._replaced = []

    @torch.no_grad()
    def _penalty(self, optimizer: Optimizer) -> Tensor:
        """Return what the penalty adds to the value of a closure, less where it is maximized."""
        signs = {self._sign(optimizer, layer) for layer in self._reg.layers.values()}
        total = self._reg.penalty()
        if len(signs) == 1:
            return signs.pop() * total
        for group in (one for groups in self._reg.groups for one in groups.singles()):
            if self._sign(optimizer, *group.layers) < 0:
                penalty = self._reg.strength * group.prior.penalty(group.matrix).sum()
                total = total - 2 * penalty.to(total.device)
        return total

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
        return self._reg.proximal_rate(self._param_group(optimizer, layer))

    def _sign(self, optimizer: Optimizer, layer: Layer) -> int:
        """Return −1 where the optimizer maximizes."""
        return -1 if self._param_group(optimizer, layer).get("maximize") else 1

    def _param_group(self, optimizer: Optimizer, layer: Layer) -> dict[str, Any]:
        """Return the parameter group that holds a layer's weight, wherever it is by now."""
        parameter, index, at = self._places[layer.name]
        groups = optimizer.param_groups
        if index >= len(groups) or not _is_at(groups[index]["params"], at, parameter):
            self._places[layer.name] = parameter, index, at = _find(parameter, layer, groups)
        return groups[index]

    def _count(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Count the step, unless it was skipped, and update if one is due."""
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and not isinstance(self.schedule, Never) and skipped.item():
            return
        self._reg.note_step(getattr(optimizer, "grad_scale", None))
        if self._reg.count_steps(1, self.schedule):
            self._reg.update()


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose step has hooks: itself, or what Accelerate and the like wrap."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


#: The attachments of each optimizer.
_ATTACHED: WeakKeyDictionary[Optimizer, list[Attachment]] = WeakKeyDictionary()


def _gradients(
    group: Group, strength: float, signs: list[int], scale: Tensor | None
) -> Iterable[tuple[Tensor, Tensor]]:
    """Each weight that has a gradient, and that gradient with the penalty's added."""
    if len(group.layers) == 1 and scale is None:
        return _gradient(*group.layers, group.prior, 2 * strength * signs[0])
    used = [i for i, layer in enumerate(group.layers) if layer.weight.grad is not None]
    weights = [group.layers[i].weight for i in used]
    grads = [_dense_gradient(group.layers[i], group.layers[i].weight.grad) for i in used]
    if not used:
        return []
    product = group.prior.product(group.matrix).to(result_dtype(grads[0]))
    each = group.unstack(product if scale is None else product * scale)
    added = [each[i] if signs[i] > 0 else -each[i] for i in used]
    return zip(weights, _foreach_add(grads, added, 2 * strength), strict=True)


def _gradient(layer: Layer, prior: MatrixNormal, factor: float) -> list[tuple[Tensor, Tensor]]:
    """The same for a layer that is alone in its group, with as few calls as possible."""
    weight = layer.weight
    if weight.grad is None:
        return []
    grad = _dense_gradient(layer, weight.grad)
    if is_sharded(weight):
        product = layer.from_matrix(prior.product(layer.matrix).to(result_dtype(grad)))
        return [(weight, _foreach_add([grad], [product], factor)[0])]
    to_matrix, from_matrix = layer.layout.to_matrix, layer.layout.from_matrix
    total = prior.add_product(to_matrix(grad), to_matrix(weight), factor)
    return [(weight, from_matrix(total))]


def _dense_gradient(layer: Layer, grad: Tensor | None) -> Tensor:
    assert grad is not None
    if grad.is_sparse:
        raise TypeError(
            f"{layer.name}: its gradient is sparse and the penalty's is not; "
            f"use mode='proximal', or make the layer with sparse=False"
        )
    return grad


def _foreach_add(grads: list[Tensor], added: list[Tensor], alpha: float) -> list[Tensor]:
    """``grads + alpha·added``, each in its own dtype."""
    if all(grad.dtype == one.dtype for grad, one in zip(grads, added, strict=True)):
        return list(torch._foreach_add(grads, added, alpha=alpha))
    pairs = zip(grads, added, strict=True)
    return [grad.add(one, alpha=alpha).to(grad.dtype) for grad, one in pairs]


@torch.enable_grad()
def _through_parametrization(
    group: Group, strength: float, signs: list[int], scale: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """The same for the parameters that a parametrized weight is made of."""
    (layer,) = group.layers
    parameters = [p for p in layer.parameters if p.grad is not None]
    penalty = signs[0] * strength * group.prior.penalty(layer.matrix).sum()
    penalty = penalty if scale is None else penalty * scale
    grads = torch.autograd.grad(penalty, parameters, allow_unused=True)
    return [
        (parameter, (parameter.grad + grad).detach())
        for parameter, grad in zip(parameters, grads, strict=True)
        if grad is not None and parameter.grad is not None
    ]


@torch.no_grad()
def _shrink(group: Group, step: float | Tensor, skipped: Tensor | None) -> None:
    weights = [layer.weight for layer in group.layers]
    used = [i for i, weight in enumerate(weights) if weight.grad is not None]
    if not used:
        return
    shrunk = group.unstack(group.prior.shrink(group.matrix, step))
    if skipped is not None:
        shrunk = [torch.where(skipped > 0, w, x) for w, x in zip(weights, shrunk, strict=True)]
    torch._foreach_copy_([local(weights[i]) for i in used], [local(shrunk[i]) for i in used])


class _Replaced(NamedTuple):
    """A gradient that the penalty's was added to, for a step."""

    parameter: Tensor
    own: Tensor | None
    put: Tensor  # in its place
    version: int  # of that tensor then


#: A parameter, the index of its group in an optimizer, and its place there.
_Place = tuple[Tensor, int, int]


def _is_at(parameters: list[Tensor], at: int, parameter: Tensor) -> bool:
    return at < len(parameters) and parameters[at] is parameter


def _find(parameter: Tensor, layer: Layer, groups: list[dict[str, Any]]) -> _Place:
    for index, group in enumerate(groups):
        for at, one in enumerate(group["params"]):
            if one is parameter:
                return parameter, index, at
    raise RuntimeError(
        f"{layer.name}: the optimizer does not hold this layer's weight any more; call remove() "
        f"on the handle, and attach again"
    )


def _places(reg: Regularizer, optimizer: Optimizer) -> dict[str, _Place]:
    """Return where the optimizer holds each layer's weight."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim.Optimizer, got {optimizer!r}")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    places = {}
    for name, layer in reg.layers.items():
        needed = [p for p in layer.parameters if p.requires_grad]
        if not needed:
            raise ValueError(f"{name}: the weight is frozen (requires_grad=False)")
        if not all(id(parameter) in held for parameter in needed):
            raise ValueError(
                f"{name}: the optimizer does not hold this layer's weight; attach the optimizer "
                f"that trains it, or select other layers"
            )
        places[name] = _find(needed[0], layer, optimizer.param_groups)
    return places


def _refuse_overlap(reg: Regularizer, optimizer: Optimizer) -> None:
    mine = {id(p): name for name, layer in reg.layers.items() for p in layer.parameters}
    for other in _ATTACHED.get(optimizer, []):
        for layer in other._reg.layers.values() if other.active else ():
            for parameter in layer.parameters:
                if id(parameter) in mine:
                    raise RuntimeError(
                        f"{mine[id(parameter)]}: another regularizer attached to this optimizer "
                        f"regularizes this layer already; call remove() on its handle first"
                    )


def _refuse_what_cannot_shrink(reg: Regularizer, optimizer: Optimizer) -> None:
    for name, layer in reg.layers.items():
        if layer.parametrized:
            raise ValueError(
                f"{name}: its weight is parametrized, so it cannot be set as mode='proximal' "
                f"must; use mode='coupled'"
            )
    reg.check_proximal(optimizer)
