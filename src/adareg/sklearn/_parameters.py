"""The parameters of the estimators: names, defaults and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch

from adareg.core.rules import check_rule
from adareg.core.spectrum import BOUNDS, check_bounds
from adareg.nn.adareg import STRENGTH
from adareg.nn.select import Selection

Check = tuple[Callable[[Any], bool], str]


@dataclass(eq=False, repr=False)
class Parameters:
    """What ``__init__`` takes; the first block is scikit-learn's, with its defaults."""

    hidden_layer_sizes: int | Iterable[int] = (100,)
    activation: Literal["identity", "logistic", "tanh", "relu"] = "relu"
    _: KW_ONLY
    solver: Literal["adam", "sgd", "lbfgs"] = "adam"
    alpha: float = 0.0001
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: Literal["constant", "invscaling", "adaptive"] = "constant"
    learning_rate_init: float = 0.001
    power_t: float = 0.5
    max_iter: int = 200
    shuffle: bool = True
    random_state: Any = None
    tol: float = 1e-4
    verbose: bool | int = False
    warm_start: bool = False
    momentum: float = 0.9
    nesterovs_momentum: bool = True
    early_stopping: bool = False
    validation_fraction: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    n_iter_no_change: float = 10
    max_fun: int = 15000

    strength: float | Literal["auto"] | None = STRENGTH
    rule: str = "alternating"
    bounds: tuple[float, float] = BOUNDS
    layers: Selection = "last"
    update_every: int = 10
    device: str | torch.device | None = None


@dataclass(eq=False, repr=False)
class Loss:
    """The regressor's own parameter; scikit-learn has it in the first place."""

    loss: Literal["squared_error", "poisson"] = "squared_error"


def _one_of(*words: str) -> Check:
    return lambda x: isinstance(x, str) and x in words, "one of " + ", ".join(map(repr, words))


def _is(kind: type) -> Callable[[Any], bool]:
    """A test for numbers of a kind, NumPy's among them; True and False are none."""
    return lambda x: isinstance(x, kind) and not isinstance(x, bool | np.bool_)


def _positive(kind: type = Real) -> Check:
    noun = "integer" if kind is Integral else "number"
    return lambda x: _is(kind)(x) and 0 < x < math.inf, f"a positive {noun}"


def _at_least_zero(below: float = math.inf) -> Check:
    limit = "" if below == math.inf else f" and < {below:g}"
    return lambda x: _is(Real)(x) and 0 <= x < below, f"a number >= 0{limit}"


def _or(check: Check, also: Callable[[Any], bool], text: str) -> Check:
    accepts, expected = check
    return lambda x: accepts(x) or also(x), f"{expected}, or {text}"


_BOOLEAN: Check = (lambda x: isinstance(x, bool | np.bool_), "True or False")


def _are_sizes(value: Any) -> bool:
    size = _positive(Integral)[0]
    is_sequence = isinstance(value, Iterable) and not isinstance(value, str)
    return all(map(size, value)) if is_sequence else size(value)


def _is_device(value: Any) -> bool:
    """Whether a number can be put there."""
    try:
        return value is None or bool(torch.empty(0, device=value).device)
    except (AssertionError, RuntimeError, TypeError, NotImplementedError):
        return False


#: For each parameter a test, and in words what passes it. ``layers`` needs the network.
ACCEPTED: dict[str, Check] = {
    "hidden_layer_sizes": (_are_sizes, "a positive integer or a sequence of them"),
    "activation": _one_of("identity", "logistic", "tanh", "relu"),
    "solver": _one_of("adam", "sgd", "lbfgs"),
    "alpha": _at_least_zero(),
    "batch_size": _or(_positive(Integral), lambda x: isinstance(x, str) and x == "auto", "'auto'"),
    "learning_rate": _one_of("constant", "invscaling", "adaptive"),
    "learning_rate_init": _positive(),
    "power_t": _at_least_zero(),
    "max_iter": _positive(Integral),
    "shuffle": _BOOLEAN,
    "tol": _at_least_zero(),
    "verbose": _or(_BOOLEAN, lambda x: isinstance(x, int) and x >= 0, "an integer >= 0"),
    "warm_start": _BOOLEAN,
    "momentum": _or(_at_least_zero(1), lambda x: x == 1, "1"),
    "nesterovs_momentum": _BOOLEAN,
    "early_stopping": _BOOLEAN,
    "validation_fraction": (
        lambda x: isinstance(x, Real) and 0 < float(x) < 1,
        "a number between 0 and 1",
    ),
    "beta_1": _at_least_zero(1),
    "beta_2": _at_least_zero(1),
    "epsilon": _positive(),
    "n_iter_no_change": _or(_positive(Integral), lambda x: x == math.inf, "numpy.inf"),
    "max_fun": _positive(Integral),
    "loss": _one_of("squared_error", "poisson"),
    "strength": _or(_at_least_zero(), lambda x: x is None or x == "auto", "'auto', or None"),
    "update_every": _positive(Integral),
    "device": (_is_device, "a torch device that is there, or None for the CPU"),
}


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise a ValueError that names the first wrong value and what is accepted."""
    for name, (accepts, expected) in ACCEPTED.items():
        if name in parameters and not accepts(parameters[name]):
            raise ValueError(f"{name}={parameters[name]!r}: expected {expected}")
    check_rule(parameters["rule"])
    check_bounds(parameters["bounds"])
