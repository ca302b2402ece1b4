"""Dropout on the inputs of layers, as hooks; and how much it costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core.evidence import dropout as core
from adareg.core.linalg import NonFiniteError
from adareg.nn.evidence.batches import Inputs, size
from adareg.nn.evidence.tracing import as_outputs, call, undisturbed
from adareg.nn.select import Layer

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def suited(layers: Mapping[str, Layer]) -> list[str]:
    """Return the layers whose inputs may have noise: linear maps."""
    return [name for name, layer in layers.items() if isinstance(layer.module, nn.Linear)]


class Dropout:
    """Multiplies the inputs of layers by noise while they are in training mode.

    Draws are made by torch's global generator, as those of ``nn.Dropout``. The rates are tensors,
    which captured and compiled steps read anew.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._hooks = {name: _Hook(module) for name, module in modules.items()}
        self._is_trusted = not self._hooks

    def set(self, variances: Mapping[str, float]) -> None:
        """Draw masks of these variances from now on."""
        for name, hook in self._hooks.items():
            hook.set(core.rate(variances[name]))

    def watch(self) -> list[RemovableHandle]:
        """Draw at every training pass from now on, until the hooks are removed."""
        return [hook.register() for hook in self._hooks.values()]

    def warn_if_idle(self) -> None:
        """Warn, once, if there are hooks and none was ever called in training mode."""
        if self._is_trusted or any(hook.was_called for hook in self._hooks.values()):
            return
        self._is_trusted = True
        warnings.warn(
            f"{', '.join(self._hooks)}: training has called none of these layers, and so there is "
            f"no dropout; was the model compiled, and called, before attach()?",
            stacklevel=4,
        )


class _Hook:
    """Multiplies the first input of a module by noise."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._rate = torch.zeros((), device=_device(module))
        self._is_copy, self.was_called = False, False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model has no noise: it is not the one that is trained."""
        return {**vars(self), "_is_copy": True}

    def register(self) -> RemovableHandle:
        """Draw at every training pass from now on."""
        self.set(float(self._rate))
        return self._module.register_forward_pre_hook(self, with_kwargs=True)

    def set(self, rate: float) -> None:
        """Draw with this rate from now on."""
        if self._rate.device == (device := _device(self._module)):
            self._rate.fill_(rate)
        else:
            self._rate = torch.full((), rate, device=device)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Arguments | None:
        if not module.training or self._is_copy:
            return None
        self.was_called = True
        return _with_first(args, kwargs, lambda x: x * mask(x, self._rate))


def mask(x: Tensor, rate: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return masks like x of mean one: zero at this rate, and else ``1/(1 − rate)``."""
    drawn = (
        torch.rand_like(x, dtype=torch.float32)
        if generator is None
        else torch.rand(x.shape, generator=generator, device="cpu").to(x.device)
    )
    return ((drawn >= rate) / (1 - rate)).to(x.dtype)


def _with_first(
    args: tuple[Any, ...], kwargs: dict[str, Any], f: Callable[[Tensor], Tensor]
) -> _Arguments:
    """Return a layer's arguments with f of the first in its place."""
    if args:
        return (f(args[0]), *args[1:]), kwargs
    name, x = next(iter(kwargs.items()))
    return args, {**kwargs, name: f(x)}


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


# What it costs


def sensitivities(
    model: nn.Module,
    layers: Mapping[str, Layer],
    rates: Mapping[str, float],
    inputs: Inputs,
    direction: Callable[[Tensor], Tensor],  # (m, K) -> (m, K)
    generator: torch.Generator,
    passes: int,
) -> dict[str, float]:
    """Return the curvature of a sample's loss along the masks of each layer, under the noise.

    Layers that no sample reaches are left out. The model runs in evaluation mode but for this
    noise; it and its gradients are left as they were.

    Raises:
        NonFiniteError: it is not finite.
    """
    model, names = getattr(model, "_orig_mod", model), [*rates]
    total = dict.fromkeys(names, 0.0)
    reached: set[str] = set()
    for _ in range(passes):
        with undisturbed(model), torch.enable_grad(), _masking(layers, rates, generator) as masks:
            outputs = as_outputs(call(model, inputs))
            v = direction(outputs.detach().double())
            reached |= {name for name in names if masks[name]}
            drawn = [one for name in names for one in masks[name]]
            along = (outputs.double() * v).sum()
            found = iter(torch.autograd.grad(along, drawn, materialize_grads=True))
        for name in names:
            gradients = [next(found) for _ in masks[name]]
            if gradients:
                total[name] += float(core.sensitivity(gradients, size(inputs))) / passes
    bad = [name for name, t in total.items() if not t < float("inf")]
    if bad:
        raise NonFiniteError(f"{', '.join(bad)}: the gradients of the model's outputs overflow")
    return {name: t for name, t in total.items() if name in reached}


@contextmanager
def _masking(
    layers: Mapping[str, Layer], rates: Mapping[str, float], generator: torch.Generator
) -> Iterator[dict[str, list[Tensor]]]:
    """Multiply inputs by masks that gradients can be taken of, and collect these."""
    masks: dict[str, list[Tensor]] = {name: [] for name in rates}

    def hook(name: str) -> Callable[..., _Arguments]:
        rate = torch.tensor(rates[name])

        def apply(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
            def masked(x: Tensor) -> Tensor:
                masks[name].append(mask(x, rate.to(x.device), generator).requires_grad_())
                return x * masks[name][-1]

            return _with_first(args, kwargs, masked)

        return apply

    handles = [
        layers[name].module.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name in rates
    ]
    try:
        yield masks
    finally:
        for handle in handles:
            handle.remove()
