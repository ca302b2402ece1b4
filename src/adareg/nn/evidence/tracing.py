"""The curvature of a model's likelihood at each layer, from a batch of inputs.

A forward pass with hooks remembers what enters and leaves each layer; one backward pass for each
direction in output space gives the gradients there. Layers for which that is not enough
(attention, one that is called twice, kinds of your own) are differentiated sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from adareg.core.evidence import curvature as core
from adareg.core.evidence.constants import Constants
from adareg.core.evidence.curvature import Curvature
from adareg.core.evidence.likelihood.directions import random_signs
from adareg.core.evidence.update import natural
from adareg.core.linalg import NonFiniteError
from adareg.core.prior import MatrixNormal
from adareg.nn.evidence.batches import Inputs, size, take
from adareg.nn.evidence.kinds import Kind, kind_of
from adareg.nn.select import Layer

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class Collected(NamedTuple):
    """Curvature, kernel and outputs of a batch."""

    curvatures: dict[str, Curvature]
    priors: dict[str, MatrixNormal]  # what the kernel is of
    kernel: Tensor  # (m, m), summed over layers
    outputs: Tensor  # (m, K)
    normalised: set[str]
    unlike: dict[str, bool]  # layers whose gradients are not those of their own call


def samples(
    model: nn.Module, layers: Mapping[str, Layer], one: Inputs, constants: Constants
) -> int:
    """Return how many samples like this one to look at, so that weight gradients fit into memory.

    A linear layer has none if it maps one vector of each sample, and otherwise, for example of
    a text, as a convolution has them. Which it is shows when the model is called.
    """
    forming = {name: _forms_gradients(layer, constants) for name, layer in layers.items()}
    always = [layers[name] for name, forms in forming.items() if forms]
    perhaps = [layers[name] for name, forms in forming.items() if forms is None]
    most, least = _fitting(always, constants), _fitting([*always, *perhaps], constants)
    if most == least:
        return most
    model = getattr(model, "_orig_mod", model)
    with undisturbed(model), torch.no_grad(), _Recorder(model, layers, constants) as recorder:
        call(model, one)
    many = [layer for layer in perhaps if not recorder.maps_one(layer)]
    return _fitting([*always, *many], constants)


def _forms_gradients(layer: Layer, constants: Constants) -> bool | None:
    kind = kind_of(layer.module)
    return True if kind is None else kind.forms_gradients(layer, constants)


def _fitting(layers: Sequence[Layer], constants: Constants) -> int:
    largest = max((layer.weight.numel() for layer in layers), default=1)
    fitting = constants.entries // (2 * constants.sketch * largest)
    return max(8, min(constants.samples, fitting))


def collect(
    model: nn.Module,
    layers: Mapping[str, Layer],
    priors: Mapping[str, MatrixNormal],
    inputs: Inputs,
    directions: Callable[[Tensor], tuple[Tensor, Tensor]],  # (m, K) -> (draws, m, K) twice
    generator: torch.Generator,
    constants: Constants,
    begin: Callable[[Tensor, Curvature], MatrixNormal] | None = None,
    unlike: Mapping[str, bool] | None = None,
) -> Collected:
    """Return the curvature of one sample at every layer, and the kernel of the samples.

    Of the directions the first give curvatures, the others the kernel; see
    :meth:`adareg.Likelihood.directions`. The model runs in evaluation mode; it and its gradients
    are left as they were. With ``begin`` that makes each layer's prior. What was found before of
    how the model uses its layers and its inputs, ``unlike``, is not asked again.
    """
    model = getattr(model, "_orig_mod", model)
    if unlike is not None and not layers.keys() <= unlike.keys():
        unlike = None
    if unlike is None:
        with undisturbed(model):
            _refuse_other_axes(model, inputs)
    with undisturbed(model), torch.enable_grad(), _Recorder(model, layers, constants) as recorder:
        outputs = as_outputs(call(model, inputs))
        if not outputs.isfinite().all():
            raise NonFiniteError("the model's outputs are not finite")
        own, shared = directions(outputs.detach().double())
        v, power = _scaled(torch.cat([own, shared]), outputs.dtype)
        if unlike is None:
            recorder.leave_out_unlike(outputs)
        else:
            recorder.leave_out(unlike)
        sums, first = _sums(v, len(own), generator, constants.sketch)
        recorder.differentiate(outputs, v, sums)
        curvatures, used, kernels = {}, {}, []
        for name, layer in layers.items():
            if (found := recorder.linear(layer)) is not None:
                a, rows, split = *found, len(own)
            else:
                a, rows, split = None, recorder.matrices(layer, model, inputs, sums), first
            with torch.no_grad():
                matrix = layer.matrix.detach()
                curvatures[name] = of_layer = _curvature(a, rows[:split], power, constants.rank)
                used[name] = prior = begin(matrix, of_layer) if begin else priors[name]
                if name in recorder.normalised:
                    prior = natural(matrix, prior)
                kernels.append(part := _kernel(a, rows[split:], power, prior))
            if not all(x.isfinite().all() for x in (*of_layer, part)):
                raise NonFiniteError(f"{name}: the gradients of the model's outputs overflow")
    kernel = torch.stack([part.to(outputs.device) for part in kernels]).sum(0)
    return Collected(
        curvatures, used, kernel, outputs.detach(), recorder.normalised, recorder.unlike
    )


def _sums(
    directions: Tensor, own: int, generator: torch.Generator, size: int
) -> tuple[Tensor, int]:  # (draws, m, K) -> (≤ 2·size, m, K)
    """Return directions, or a few random sums of them, and how many are of samples' own.

    Signs are drawn for each sample, but for shared directions; second moments are those of all.
    """
    m = directions.shape[1]
    parts = [
        part if len(part) <= size else _random_sums(part, size, width, generator)
        for part, width in ((directions[:own], m), (directions[own:], 1))
    ]
    return torch.cat(parts), len(parts[0])


def _random_sums(directions: Tensor, size: int, width: int, generator: torch.Generator) -> Tensor:
    signs = random_signs((size, len(directions), width), generator).to(directions)
    return torch.einsum("srm,rmk->smk", signs.expand(-1, -1, directions.shape[1]), directions) / (
        size**0.5
    )


def _scaled(directions: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Return the directions over a power of two, so that no gradient overflows, and that power."""
    most = float(directions.abs().max())
    size = 2.0 ** math.floor(math.log2(most)) if 0 < most < math.inf else 1.0
    return (directions / size).to(dtype), size


def _curvature(a: Tensor | None, rows: Tensor, unit: float, rank: int) -> Curvature:
    """Return a layer's curvature from inputs and gradients, or from rows that are matrices."""
    if a is not None:
        return core.curvature(a, unit * rows.double(), rank)
    return core.matrix_curvature(_groups_first(rows), rank, unit)


def _kernel(a: Tensor | None, rows: Tensor, unit: float, prior: MatrixNormal) -> Tensor:
    """Return a layer's part of the kernel, from the same."""
    if a is not None:
        return core.kernel(a, unit * rows.double(), prior)
    kernel = core.matrix_kernel(_groups_first(rows), prior, unit)
    return kernel.reshape(-1, *kernel.shape[-2:]).sum(0)


def _groups_first(rows: Tensor) -> Tensor:  # (draws, m, …, p, d) -> (…, draws, m, p, d)
    return rows.movedim((0, 1), (-4, -3))


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Return the model's answer to a batch."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def logits(outputs: Any) -> Any:
    """Return the logits among what a model returned, or all of it."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits")
    return getattr(outputs, "logits", outputs)


def as_outputs(outputs: Any) -> Tensor:
    """Return the model's outputs as (samples, classes or targets)."""
    found = logits(outputs)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the model returned {type(outputs).__name__}; EvidenceReg needs a tensor of "
            f"outputs, or an object or dict with one named logits"
        )
    found = found.unsqueeze(-1) if found.ndim == 1 else found
    if found.ndim != 2:
        raise ValueError(
            f"the model's outputs have shape {tuple(found.shape)}; EvidenceReg needs "
            f"(samples, classes or targets)"
        )
    return found


class _Recorder:
    """Hooks that remember the inputs and outputs of layers while a model runs."""

    def __init__(self, model: nn.Module, layers: Mapping[str, Layer], constants: Constants) -> None:
        self._model, self._layers, self._constants = model, layers, constants
        self._calls: dict[nn.Module, list[tuple[Any, Tensor]]] = {}
        self._grads: dict[nn.Module, Tensor] = {}
        self._handles: list[Any] = []
        self._left: dict[int, tuple[nn.Module, Tensor]] = {}
        self._unlike: set[nn.Module] = set()  # called in a way that its inputs do not tell
        self.normalised: set[str] = set()
        self._recording = True

    def __enter__(self) -> _Recorder:
        for layer in self._layers.values():
            kind = kind_of(layer.module)
            if layer.module not in self._calls and kind is not None:
                forms = kind.forms_gradients(layer, self._constants)
                if forms is not False and _is_tied(layer, self._model):
                    self._unlike.add(layer.module)
                self._calls[layer.module] = []
                hook = layer.module.register_forward_hook(self._record, with_kwargs=True)
                self._handles.append(hook)
        for module in self._model.modules():
            if isinstance(module, _NORMS):
                before = module.register_forward_pre_hook(self._notice, with_kwargs=True)
                self._handles.append(before)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._recording:  # the model has run; what is called now is a layer alone
            return output
        given = [*args, *kwargs.values()]
        if len(given) > 1 or not isinstance(output, Tensor):
            self._unlike.add(module)
            return output
        passed_on = output.clone()  # what follows may work in place
        self._calls[module].append((given[0].detach(), output))
        self._left[id(passed_on)] = (module, passed_on)  # kept alive, so that its id is its own
        return passed_on

    def _notice(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next(iter([*args, *kwargs.values()]), None)
        before, _ = self._left.get(id(given), (None, None))
        self.normalised |= {n for n, layer in self._layers.items() if layer.module is before}

    def maps_one(self, layer: Layer) -> bool:
        """Return if a layer was called once, with one vector, when the model saw one sample."""
        calls, unlike = self._calls[layer.module], layer.module in self._unlike
        return len(calls) == 1 and not unlike and calls[0][0].shape[:-1] == (1,)

    def _once(self, outputs: Tensor) -> dict[nn.Module, Tensor]:
        """Return what left every layer that was called once.

        But not where all samples have one output in common, as that of positions in a text.
        """
        once = {m: calls[0][1] for m, calls in self._calls.items() if len(calls) == 1}
        return {
            m: z
            for m, z in once.items()
            if len(z) == len(outputs) and m not in self._unlike and z.requires_grad
        }

    @property
    def unlike(self) -> dict[str, bool]:
        """Return of each layer if its gradients are not those of its own call."""
        return {name: layer.module in self._unlike for name, layer in self._layers.items()}

    def leave_out(self, unlike: Mapping[str, bool]) -> None:
        """Take over what :meth:`leave_out_unlike` has found before."""
        self._recording = False
        self._unlike |= {layer.module for name, layer in self._layers.items() if unlike[name]}

    def leave_out_unlike(self, outputs: Tensor) -> None:
        """Find layers whose gradients are not those of their own call, sample by sample.

        Along random directions of a half of the samples: gradients at the layer's output must be
        zero for the others (they are not where the model sorts or turns the batch), and those of
        the weight must follow from them (they do not where the weight is used elsewhere, too).
        """
        self._recording = False
        once, m = self._once(outputs), len(outputs)
        layers = [
            layer
            for layer in self._layers.values()
            if layer.module in once and not layer.parametrized and layer.weight.requires_grad
        ]
        if not once or m < 2:
            return
        generator = torch.Generator("cpu").manual_seed(m)
        chosen = torch.randperm(m, generator=generator, device="cpu")[: m // 2].to(outputs.device)
        v = torch.zeros_like(outputs)
        drawn = torch.randn((len(chosen), outputs.shape[-1]), generator=generator, device="cpu")
        v[chosen] = drawn.to(v)
        at = [*once.values(), *(layer.weight for layer in layers)]
        found = torch.autograd.grad(outputs, at, v, retain_graph=True, materialize_grads=True)
        grads = dict(zip(once, found, strict=False))
        self._unlike |= {k for k, g in grads.items() if _is_elsewhere(g, chosen)}
        for layer, total in zip(layers, found[len(once) :], strict=True):
            a = self._calls[layer.module][0][0]
            if not _follows(layer, a, grads[layer.module], total, self._constants):
                self._unlike.add(layer.module)

    def differentiate(self, outputs: Tensor, directions: Tensor, sums: Tensor) -> None:
        """Find gradients at the output of every layer that was called once, (draws, m, …).

        Along all directions where that is enough, and along their sums where gradients of weights
        are to be formed: convolutions are what takes long to go back through.
        """
        once = self._once(outputs)
        modules = {layer.module: layer for layer in self._layers.values() if layer.module in once}
        few = [m for m, layer in modules.items() if not self._is_linear(layer, once[m])]
        for along, some in ((sums, few), (directions, [m for m in modules if m not in few])):
            if some:
                found = _gradients(outputs, [once[module] for module in some], along)
                self._grads.update(zip(some, found, strict=True))

    def _is_linear(self, layer: Layer, output: Tensor) -> bool:
        """Return if a layer that was called once maps each sample's one vector linearly."""
        kind, a = kind_of(layer.module), self._calls[layer.module][0][0]
        if kind is None or len(a) != len(output):
            return False
        return kind.vectors(layer, a, output.detach().unsqueeze(0), self._constants) is not None

    def linear(self, layer: Layer) -> tuple[Tensor, Tensor] | None:
        """Return inputs and gradients of a layer that maps each sample's one vector linearly."""
        grads, kind = self._grads.get(layer.module), kind_of(layer.module)
        if grads is None or kind is None:
            return None
        a = self._calls[layer.module][0][0]
        return kind.vectors(layer, a, grads, self._constants) if len(a) == grads.shape[1] else None

    def matrices(
        self, layer: Layer, model: nn.Module, inputs: Inputs, directions: Tensor
    ) -> Tensor:
        """Return the gradient of a weight for every direction and sample, (draws, m, …, p, d)."""
        grads, kind = self._grads.get(layer.module), kind_of(layer.module)
        if layer.parametrized:
            grads = None  # its parameter is not the weight
        if kind is not None and grads is not None:
            return _local(layer, kind, self._calls[layer.module][0][0], grads)
        return _one_by_one(layer, model, inputs, directions)


def _gradients(outputs: Tensor, at: list[Tensor], directions: Tensor) -> list[Tensor]:
    """Return gradients (draws, m, …) at some tensors, along directions (draws, m, K)."""
    units = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    along = directions if len(directions) < len(units) else units.unsqueeze(1)
    rows = [
        torch.autograd.grad(
            outputs, at, v.expand_as(outputs), retain_graph=True, materialize_grads=True
        )
        for v in along
    ]
    found = []
    for each in zip(*rows, strict=True):
        grads = torch.stack(each).to(outputs.dtype)  # a model may use autocast inside
        if along is not directions:  # a direction's gradient is a sum of unit vectors'
            grads = torch.einsum("rmk,km...->rm...", directions, grads)
        found.append(grads)
    return found


@torch.no_grad()
def _refuse_other_axes(model: nn.Module, inputs: Inputs) -> None:
    """Refuse samples that are not along the first dimension, as in time-first sequences."""
    if size(inputs) <= 2:
        return
    of_two = len(as_outputs(call(model, take(inputs, slice(0, 2)))))
    if of_two != 2:
        raise ValueError(
            f"the first 2 of {size(inputs)} inputs give {of_two} outputs: samples must be along "
            f"the first dimension of all inputs, with one row of outputs each"
        )


def _is_elsewhere(grads: Tensor, chosen: Tensor) -> bool:
    """Return if gradients (m, …) of chosen samples are not zero for others."""
    sizes = grads.detach().flatten(1).double().abs().amax(1)
    others = torch.ones(len(sizes), dtype=torch.bool, device=sizes.device)
    others[chosen] = False
    return bool(sizes[others].max() > 1e-6 * sizes.max())


def _follows(
    layer: Layer, inputs: Tensor, grads: Tensor, total: Tensor, constants: Constants
) -> bool:
    """Return if a weight's gradient is what follows from the layer's inputs and its output's."""
    kind, weight = kind_of(layer.module), layer.weight.detach()
    if kind is None or kind.forms_gradients(layer, constants) is False:
        return True
    a = inputs.to(weight.dtype) if inputs.is_floating_point() else inputs
    made = torch.func.vjp(lambda w: kind.outputs(layer, w, a), weight)
    (expected,) = made[1](grads.to(made[0].dtype))
    total, expected = total.to_dense().double(), expected.double()
    eps = max(torch.finfo(grads.dtype).eps, torch.finfo(weight.dtype).eps)
    return bool((total - expected).norm() <= max(1e-3, 16 * eps) * total.norm())


def _is_tied(layer: Layer, model: nn.Module) -> bool:
    """Return if another module has the same weight."""
    own = layer.module._parameters.get(layer.layout.parameter)
    return own is not None and any(
        p is own
        for module in model.modules()
        if module is not layer.module
        for p in module.parameters(recurse=False)
    )


def _local(layer: Layer, kind: Kind, a: Tensor, grads: Tensor) -> Tensor:
    """Return weight gradients of each sample from a layer's inputs and gradients at its outputs."""
    weight = layer.weight.detach()
    a = a.to(weight.dtype) if a.is_floating_point() else a
    return kind.gradients(layer, a, grads.to(weight.dtype))


def _one_by_one(layer: Layer, model: nn.Module, inputs: Inputs, directions: Tensor) -> Tensor:
    """Return weight gradients of each sample by running the model on it alone."""
    rows = []
    for i in range(directions.shape[1]):
        with parametrize.cached():  # so that the weight is the one that the model uses
            weight = layer.weight
            outputs = as_outputs(call(model, take(inputs, slice(i, i + 1))))
        found = [
            torch.autograd.grad(outputs, weight, v[i : i + 1], True, materialize_grads=True)[0]
            for v in directions
        ]
        rows.append(torch.stack([layer.layout.to_matrix(grad.to_dense()) for grad in found]))
    return torch.stack(rows, 1)


def _renormalised(model: nn.Module) -> list[Tensor]:
    """Return weights that a forward pass changes in place."""
    return [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    ]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, and flags and buffers back as they were afterwards.

    The global random state is left alone, not rewound: other threads may draw meanwhile. A model
    that draws random numbers in evaluation mode draws them here, too.
    """
    training = {module: module.training for module in model.modules()}
    held = [(module, dict(module._buffers)) for module in model.modules()]
    changing = [*model.buffers(), *_renormalised(model)]
    kept = [(tensor, tensor._version, tensor.detach().clone()) for tensor in changing]
    model.eval()
    try:
        yield
    finally:
        for module, flag in training.items():
            module.training = flag
        for module, own in held:  # one may have been put in the place of another
            module._buffers.update(own)
        with torch.no_grad():
            for tensor, version, before in kept:
                if tensor._version != version:
                    tensor.copy_(before)
