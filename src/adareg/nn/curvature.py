"""The curvature of a model's likelihood at each layer, from a batch of inputs.

A forward pass with hooks remembers what enters and leaves each layer; a backward pass for each
draw gives the gradient of one random linear function of the outputs, whose second moment over
draws is the curvature of the likelihood (the generalised Gauss-Newton matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from adareg.core.evidence import Curvature, curvature, matrix_curvature
from adareg.nn.select import Layer

#: Gradient rows that an update takes its curvature from: samples times draws.
ROWS = 300

#: A batch of model inputs: the argument, positional arguments, or keyword arguments.
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


def collect(
    model: nn.Module,
    layers: Mapping[str, Layer],
    inputs: Inputs,
    directions: Callable[[Tensor], Tensor],  # outputs (m, K) -> (draws, m, K)
) -> tuple[dict[str, Curvature], Tensor]:
    """The curvature of one sample at every layer, and the model's outputs.

    Model, gradients and the global random state are left as they were.
    """
    model = getattr(model, "_orig_mod", model)
    with _undisturbed(model), torch.enable_grad(), _Recorder(layers.values()) as recorder:
        outputs = _tensor(call(model, inputs))
        v = directions(outputs.detach())
        grads = recorder.gradients(outputs, v)
    m = len(outputs)
    found = {}
    with torch.no_grad():
        for name, layer in layers.items():
            found[name] = _of_layer(layer, recorder.inputs(layer.module), grads[layer.module], m)
    return found, outputs.detach()


def call(model: nn.Module, inputs: Inputs) -> Any:
    """The model's answer to a batch."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def take(inputs: Any, index: Tensor) -> Any:
    """Some samples of a batch."""
    if isinstance(inputs, Tensor):
        return inputs[index.to(inputs.device)]
    if isinstance(inputs, Mapping):
        return {key: take(value, index) for key, value in inputs.items()}
    return tuple(take(value, index) for value in inputs) if isinstance(inputs, tuple) else inputs


def size(inputs: Any) -> int:
    """The number of samples in a batch: the length of its first tensor."""
    if isinstance(inputs, Tensor):
        return len(inputs)
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return next(len(value) for value in values if isinstance(value, Tensor))


def _tensor(outputs: Any) -> Tensor:
    found = getattr(outputs, "logits", outputs)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the model returned {type(outputs).__name__}; rule='evidence' needs a tensor of "
            f"outputs, or an object with one in .logits"
        )
    if found.ndim == 1:
        found = found.unsqueeze(-1)
    if found.ndim != 2:
        raise ValueError(
            f"the model's outputs have shape {tuple(found.shape)}; rule='evidence' needs "
            f"(samples, classes or targets)"
        )
    return found


class _Recorder:
    """Hooks that remember the inputs and outputs of layers while a model runs."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._modules = {layer.module for layer in layers}
        self._calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {m: [] for m in self._modules}
        self._handles: list[Any] = []

    def __enter__(self) -> _Recorder:
        self._handles = [m.register_forward_hook(self._record) for m in self._modules]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        self._calls[module].append((args[0].detach(), output))
        return output.clone()  # what follows may work in place

    def inputs(self, module: nn.Module) -> Tensor:
        return self._calls[module][0][0]

    def gradients(self, outputs: Tensor, directions: Tensor) -> dict[nn.Module, Tensor]:
        """The gradient at every layer's output, (draws, m, …)."""
        at = [calls[0][1] for calls in self._calls.values()]
        rows = [
            torch.autograd.grad(outputs, at, v.to(outputs.dtype), retain_graph=True)
            for v in directions
        ]
        return {
            module: torch.stack(each)
            for module, each in zip(self._calls, zip(*rows, strict=True), strict=True)
        }


def _of_layer(layer: Layer, a: Tensor, grads: Tensor, m: int) -> Curvature:
    if isinstance(layer.module, nn.Linear) and a.ndim == 2:
        return curvature(a, grads)
    rows = _weight_gradients(layer, a, grads)
    return matrix_curvature(rows, m)


def _weight_gradients(layer: Layer, a: Tensor, grads: Tensor) -> Tensor:
    """The gradient of the weight for every draw and sample, as matrices (…, N, p, d)."""
    weight = layer.weight.detach()

    def one(x: Tensor, g: Tensor) -> Tensor:
        def output(w: Tensor) -> Tensor:
            values = {layer.layout.parameter: w}
            return torch.func.functional_call(layer.module, values, (x.unsqueeze(0),)).squeeze(0)

        _, pullback = torch.func.vjp(output, weight)
        return layer.layout.to_matrix(pullback(g)[0])

    each = torch.vmap(torch.vmap(one), in_dims=(None, 0))(a, grads).flatten(0, 1)
    return each if each.ndim == 3 else each.movedim(0, -3)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and everything as it was afterwards."""
    training = {module: module.training for module in model.modules()}
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=sorted(d.index for d in devices)):
        model.eval()
        try:
            yield
        finally:
            for module, flag in training.items():
                module.training = flag
