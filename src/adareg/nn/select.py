"""Which layers of a model a prior is put on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from adareg.core.linalg import is_sharded, whole
from adareg.core.prior import MatrixNormal
from adareg.nn.layout import Layout, kind_of, kinds, layouts_of

Selection = str | nn.Module | Iterable[str | nn.Module]


@dataclass(frozen=True)
class Layer:
    """A weight of a model that can be read as a matrix."""

    name: str
    module: nn.Module
    layout: Layout
    _sharded: list[Any] = field(default_factory=list, compare=False, repr=False)
    """The weight as it was when last seen sharded; empty if it never was."""

    @property
    def weight(self) -> Tensor:
        """The weight itself; if it is parametrized, computed anew as in evaluation.

        Reading it must not change the model, as training mode's spectral norm would.
        """
        plain = self.module._parameters.get(self.layout.parameter)
        if plain is not None:
            return self._at_rest(plain)
        if not self.parametrized:
            return getattr(self.module, self.layout.parameter)
        chain = self._parametrization
        training = chain.training
        try:
            chain.eval()
            return getattr(self.module, self.layout.parameter)
        finally:
            chain.train(training)

    @property
    def matrix(self) -> Tensor:
        """The weight as (…, out, fan_in); a sharded one spread along the longer of the two."""
        weight = self.weight
        if is_sharded(weight):
            return _sharding().to_matrix(weight, self.layout.to_matrix)
        return self.layout.to_matrix(weight)

    @property
    def blank(self) -> Tensor:
        """A tensor of the matrix's shape and dtype, to be looked at only: nothing is sent."""
        weight = self.weight
        return self.layout.to_matrix(_sharding().blank(weight) if is_sharded(weight) else weight)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """A matrix like :attr:`matrix` in the shape of the weight."""
        weight, layout = self.weight, self.layout
        if is_sharded(weight):
            return _sharding().from_matrix(matrix, weight, layout.to_matrix, layout.from_matrix)
        return layout.from_matrix(matrix)

    def fit(self, prior: MatrixNormal) -> MatrixNormal:
        """The prior with its factors where the weight is, and spread as the matrix is."""
        weight = self.weight
        if is_sharded(weight):
            return _sharding().fit(prior, weight, self.layout.to_matrix)
        return prior.apply(lambda factor: whole(factor).to(weight.device))

    @property
    def parametrized(self) -> bool:
        """Whether the weight is a function of other parameters (weight norm and the like)."""
        name = self.layout.parameter
        return name not in self.module._parameters and parametrize.is_parametrized(
            self.module, name
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters an optimizer must hold to move the weight."""
        if self.parametrized:
            return list(self._parametrization.parameters())
        plain = self.module._parameters.get(self.layout.parameter)
        if plain is None:
            raise RuntimeError(
                f"{self.name}: {self.layout.parameter!r} has been replaced and is no parameter any "
                f"more, as torch.nn.utils.prune does it; call prune.remove, or make the "
                f"regularizer anew without this layer"
            )
        return [self._at_rest(plain)]

    def _at_rest(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter that the optimizer holds.

        Between forward and backward FSDP puts a gathered copy in the place of some parameters:
        a plain one, or with tensor parallelism one on a part of the mesh.
        """
        known, mesh = self._sharded, getattr(parameter, "device_mesh", None)
        if mesh is not None and (not known or mesh == known[0].device_mesh):
            known[:] = [parameter]
        return known[0] if known else parameter

    @property
    def _parametrization(self) -> nn.Module:
        return self.module.get_submodule(f"parametrizations.{self.layout.parameter}")

    def problem(self) -> str | None:
        """Why this weight cannot have a prior, or None."""
        if not self.parametrized and not hasattr(self.module, self.layout.parameter):
            kind = type(self.module).__name__
            return f"its layout names the parameter {self.layout.parameter!r}, which {kind} lacks"
        if sharding := self._sharding_problem():
            return sharding
        weight = self.weight
        if isinstance(weight, UninitializedParameter):
            return "the weight is lazy; run one forward pass before making AdaReg"
        if not isinstance(weight, nn.Parameter) and not self.parametrized:
            return (
                "the weight is not a parameter, as torch.nn.utils.prune, weight_norm and "
                "spectral_norm make it; parametrizations (torch.nn.utils.parametrizations) work"
            )
        if weight.is_meta:
            return "the weight is on the meta device; make AdaReg when the weights are there"
        if weight.numel() == 0:
            return f"the weight is empty, {tuple(weight.shape)}"
        if not weight.is_floating_point():
            return f"the weight is {weight.dtype}, not real floating point"
        if not any(parameter.requires_grad for parameter in self.parameters):
            return (
                "the weight is frozen (requires_grad=False) and would not follow a prior; unfreeze "
                "it first, or name others as layers"
            )
        matrix = self.blank
        if matrix.ndim < 2 or not self.layout.leads_back(weight.shape):
            return (
                f"its layout makes {tuple(matrix.shape)} of {tuple(weight.shape)}, which is no "
                f"matrix, or from_matrix does not put each entry back where it was"
            )
        return None

    def _sharding_problem(self) -> str | None:
        if not self.parametrized:
            return _sharding().problem(self.weight) if is_sharded(self.weight) else None
        if any(map(is_sharded, self.parameters)):
            return "the weight is parametrized and its parameters are sharded; drop one of the two"
        return None


@dataclass(frozen=True)
class _Candidate:
    """A weight that might be selected; no layer if its module is of an unknown kind."""

    name: str
    module_name: str
    module: nn.Module
    layer: Layer | None

    @property
    def is_matrix(self) -> bool:
        return self.layer is not None or any(w.ndim > 1 for w in _own_weights(self.module))

    def problem(self) -> str | None:
        if self.layer is not None:
            return self.layer.problem()
        kind = type(self.module).__name__
        if self.is_matrix:
            return f"layers of type {kind} are not supported; adareg.register_layout adds a type"
        return f"the weight of this {kind} is one-dimensional, not a matrix"


def select(model: nn.Module, layers: Selection) -> list[Layer]:
    """The layers of ``model`` that ``layers`` names, in the model's order, tied weights once.

    Args:
        model: any module; a compiled or DistributedDataParallel one stands for what it wraps.
        layers: one of, or an iterable of: ``"last"``, the layer registered last; ``"fc"``,
            ``"conv"`` or another kind in the layout table; ``"all"``; a module or its name,
            which stands for every layer in it; a glob pattern over names, for example
            ``"encoder.*.fc?"``.

    Raises:
        ValueError: nothing matches, or a selected weight cannot have a prior.
        TypeError: an item of ``layers`` is neither a string nor a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {model!r}")
    model = unwrapped(model)
    candidates = list(_candidates(model))
    if not isinstance(layers, str | nn.Module | Iterable):
        raise TypeError(f"layers: expected strings or modules, got {layers!r}")
    items = [layers] if isinstance(layers, str | nn.Module) else list(layers)
    chosen = [c for item in items for c in _matching(item, model, candidates)]
    if not chosen:
        raise ValueError(f"layers={layers!r} selects nothing; {_known(candidates)}")
    _refuse_problems(chosen, candidates)
    wanted = {c.name for c in chosen}
    once: dict[int, Layer] = {}
    for c in candidates:
        if c.name in wanted and c.layer is not None:
            once.setdefault(id(c.layer.parameters[0]), c.layer)
    return list(once.values())


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module, out of torch.compile and DistributedDataParallel."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        inner = getattr(inner, "_orig_mod", inner)
        if inner is model:
            return model
        model = inner


#: A module, the name of a child, the child, and its name in the whole model.
Path = tuple[nn.Module, str, nn.Module, str]


def paths(model: nn.Module, layers: Iterable[Layer]) -> list[Path]:
    """Return every step on the ways from a model to its layers."""
    wanted = {layer.module for layer in layers}
    above: dict[nn.Module, list[Path]] = {}
    for name, module in unwrapped(model).named_modules():
        for key, child in module.named_children():
            above.setdefault(child, []).append((module, key, child, f"{name}.{key}".strip(".")))
    found: list[Path] = []
    pending, seen = [*wanted], set(wanted)
    while pending:
        for path in above.get(pending.pop(), [])[:1]:
            found.append(path)
            if path[0] not in seen:
                seen.add(path[0])
                pending.append(path[0])
    return found


def refuse_replaced(paths: Iterable[Path]) -> None:
    """Raise a RuntimeError if a module on a path is not where it was, but for torch.compile."""
    for parent, key, child, name in paths:
        now = parent._modules.get(key)
        if now is not child and (now is None or unwrapped(now) is not child):
            raise RuntimeError(
                f"{name}: this module has been replaced or removed since the regularizer was made; "
                f"make it anew, and attach it"
            )


def by_name(model: nn.Module, names: Iterable[str]) -> list[Layer]:
    """The layers that :func:`select` gave these names, whatever has become of them since."""
    candidates = _candidates(unwrapped(model))
    layers = {c.name: c.layer for c in candidates if c.layer is not None}
    return [layers[name] for name in names]


def _sharding() -> Any:
    """Imported by those who meet a DTensor; it loads torch.distributed.tensor."""
    from adareg.nn import sharding

    return sharding


def _candidates(model: nn.Module) -> Iterator[_Candidate]:
    for module_name, module in model.named_modules():
        if "parametrizations" in module_name.split("."):
            continue  # belongs to the layer whose weight it makes
        layouts = layouts_of(module)
        if layouts is None:
            if _own_weights(module):
                yield _Candidate(module_name or "weight", module_name, module, None)
            continue
        for layout in layouts:
            suffix = "" if layout.parameter == "weight" else layout.parameter
            name = ".".join(filter(None, [module_name, suffix])) or "weight"
            yield _Candidate(name, module_name, module, Layer(name, module, layout))


def _own_weights(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that make the module a layer: those called weight…, and any other matrix.

    Other tensors, such as a (1, tokens, width) position embedding, are no layer's weight.
    """
    return [
        parameter
        for name, parameter in module.named_parameters(recurse=False)
        if not isinstance(parameter, UninitializedParameter)
        and (name.startswith("weight") or parameter.ndim == 2)
    ]


def _matching(
    item: str | nn.Module, model: nn.Module, candidates: Sequence[_Candidate]
) -> list[_Candidate]:
    matrices = [c for c in candidates if c.is_matrix]
    if isinstance(item, nn.Module):
        return _inside(unwrapped(item), candidates, f"this {type(item).__name__}")
    if not isinstance(item, str):
        raise TypeError(f"layers: expected strings or modules, got {item!r}")
    if item == "last":
        return matrices[-1:]
    if item == "all":
        return matrices
    if item in kinds():
        return [c for c in matrices if kind_of(c.module) == item]
    modules = dict(model.named_modules(remove_duplicate=False))
    if item and item in modules:
        kind = type(modules[item]).__name__
        return _inside(modules[item], candidates, f"{item!r}, a {kind},")
    named = [c for c in matrices if fnmatchcase(c.name, item) or fnmatchcase(c.module_name, item)]
    if not named:
        raise ValueError(f"{item!r} matches no layer; {_known(candidates)}")
    return named


def _inside(module: nn.Module, candidates: Sequence[_Candidate], called: str) -> list[_Candidate]:
    """Every layer in ``module``; if there is none, itself, to say what is wrong with it."""
    inside = set(map(id, module.modules()))
    found = [c for c in candidates if c.is_matrix and id(c.module) in inside]
    found = found or [c for c in candidates if c.module is module]
    if not found:
        raise ValueError(f"{called} holds no layer of the model; {_known(candidates)}")
    return found


def _known(candidates: Sequence[_Candidate]) -> str:
    names = [c.name for c in candidates if c.layer is not None]
    if not names:
        return "the model has no layer that can have a prior"
    return "the layers there are: " + ", ".join(names)


def _refuse_problems(chosen: Sequence[_Candidate], candidates: Sequence[_Candidate]) -> None:
    problems = {c.name: problem for c in chosen if (problem := c.problem())}
    if not problems:
        return
    listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    usable = [c.name for c in candidates if c in chosen and c.name not in problems]
    others = [c.name for c in candidates if c.layer is not None and c.problem() is None]
    if usable:
        remedy = f" To leave it out, use layers={usable!r}."
    else:
        remedy = f" The layers that can have one: {', '.join(others)}." if others else ""
    raise ValueError(f"cannot put a prior on {listed}.{remedy}")
