"""The parts of a record and their types, declared once: for mypy, and to check what is read.

No library does the check. A record stays the dictionary that its line of JSON holds, so that it can
be written again unchanged, and the rules that matter here (exact types, finite numbers, which
parts belong together, whose file it is in) would have to be written beside any library.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache, lru_cache, partial
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypedDict,
    get_args,
    get_origin,
    is_typeddict,
)
from typing import get_type_hints as hints

import numpy as np

from adareg.lab.experiments.base import Scale
from adareg.lab.train.config import Config

Measured = Annotated[Any, "a number or null"]  # null: it was not finite
Scalar = Annotated[Any, "a number, true, false, null, text or a list"]
Numbers = list[Measured]
Names = list[str]
Matrix = list[Numbers]


class Metrics(TypedDict, total=False):
    """The measures of a trained network. Others may be there, each a ``Scalar``."""

    diverged: Required[bool]
    test_loss: Measured
    test_accuracy: Measured
    test_explained_variance: Measured
    test_explained_variances: Numbers
    train_loss: Measured
    train_accuracy: Measured
    train_explained_variance: Measured
    train_explained_variances: Numbers
    tuned: Measured
    noise: Measured
    test_nll: Measured
    test_calibration: Measured
    trainings: Measured
    samples: Measured
    alone_seconds: Measured
    plain_seconds: Measured
    timed_on: str


class Spectrum(TypedDict):
    """A layer's singular values, summed up."""

    stable_rank: Measured
    spectral_norm: Measured


class Arrays(TypedDict, total=False):
    """The last layer's matrices, or the trials of a tuned network."""

    correlation: Matrix
    singular_values: Numbers
    row_covariance: Matrix
    col_covariance: Matrix
    trials: list[Any]


class Data(TypedDict, total=False):
    """The provenance of the data set; see ``Dataset.provenance``."""

    source: str
    split: str | None
    counts: dict[str, int]
    files: dict[str, Any]


class Record(TypedDict):
    """One trained network. ``config`` has the fields of ``Config``, all of them."""

    format: int
    experiment: str
    scale: Scale
    cell: str
    method: str
    seed: int
    config: dict[str, Any]
    metrics: Metrics
    curves: dict[str, Numbers]
    spectra: dict[str, Spectrum]
    arrays: Arrays
    names: Names
    data: Data
    seconds: float
    stacked: int
    peak_bytes: Measured
    environment: dict[str, Any]
    timed: NotRequired[dict[str, Any]]


#: Each kind of value in words, and the exact types of its values as JSON gives them.
_PLAIN: dict[Any, tuple[str, frozenset[type]]] = {
    str: ("text", frozenset({str})),
    int: ("an integer", frozenset({int})),
    bool: ("true or false", frozenset({bool})),
    float: ("a number", frozenset({int, float})),
    float | str: ("a number or text", frozenset({int, float, str})),
    str | None: ("text or null", frozenset({str, NoneType})),
    Measured: (Measured.__metadata__[0], frozenset({int, float, NoneType})),
    Scalar: (Scalar.__metadata__[0], frozenset({int, float, bool, str, list, NoneType})),
    list[Any]: ("a list", frozenset({list})),
    dict[str, Any]: ("an object", frozenset({dict})),
}

#: As much of a wrong value is shown.
_SHOWN = 40


def problem(record: Mapping[str, Any]) -> str | None:
    """Return the first thing that is wrong with a record, with its path; None if nothing is."""
    return _problem(record, Record, "") or _config_problem(record["config"]) or _misfit(record)


class _Object(NamedTuple):
    """The kinds of an object's entries."""

    entries: Mapping[str, Any]
    required: Collection[str] = ()
    other: Any = None  # the kind of entries without a name; None for any


@cache
def _object(kind: Any) -> _Object:
    if is_typeddict(kind):
        entries = {name: _bare(each) for name, each in hints(kind, include_extras=True).items()}
        required = tuple(name for name in entries if name in kind.__required_keys__)
        return _Object(entries, required, Scalar if kind is Metrics else None)
    if kind is Config:
        return _Object(hints(Config), tuple(field.name for field in fields(Config)))
    return _Object({}, other=get_args(kind)[1])


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) in (Required, NotRequired) else kind


def _problem(value: Any, kind: Any, path: str) -> str | None:
    """Return the first value that is not of its kind."""
    if kind in _PLAIN:
        words, types = _PLAIN[kind]
        return None if type(value) in types else _told(path, value, words)
    if kind in _LISTS:
        words, fits = _LISTS[kind]
        return None if type(value) is list and fits(value) else _told(path, value, words)
    if get_origin(kind) is Literal:
        accepted = get_args(kind)
        return None if value in accepted else _told(path, value, f"one of {', '.join(accepted)}")
    return _entry_problem(value, _object(kind), path)


def _entry_problem(value: Any, expected: _Object, path: str) -> str | None:
    """Return an object's first missing or wrong entry."""
    if type(value) is not dict:
        return _told(path, value, "an object")
    start = f"{path}." if path else ""
    for name in expected.required:
        if name not in value:
            return f"{start}{name} is missing"
    for name, each in value.items():
        kind = expected.entries.get(name, expected.other)
        if kind is not None and (wrong := _problem(each, kind, f"{start}{name}")):
            return wrong
    return None


def _is_numeric(value: list[Any], dimensions: int) -> bool:
    try:
        array = np.array(value)
    except ValueError:  # rows of unequal lengths
        return False
    if array.size and array.ndim != dimensions:
        return False
    known = array.dtype.kind in "if"
    return known or all(type(x) in (int, float, NoneType) for x in array.flat)


#: Kinds of lists in words, and what tells that a list is of that kind.
_LISTS: dict[Any, tuple[str, Callable[[list[Any]], bool]]] = {
    Names: ("a list of text", lambda value: bool(value) and all(type(x) is str for x in value)),
    Numbers: ("a list of numbers", partial(_is_numeric, dimensions=1)),
    Matrix: ("a matrix of numbers", partial(_is_numeric, dimensions=2)),
}


def _config_problem(config: Mapping[str, Any]) -> str | None:
    expected = _object(Config)
    if wrong := _entry_problem(config, expected, "config"):
        return wrong
    if unknown := sorted(config.keys() - expected.entries.keys()):
        return f"config.{unknown[0]} is no setting; there are: {', '.join(expected.entries)}"
    try:
        cell_of(config)
    except ValueError as error:
        return f"config.{error}"
    return None


def cell_of(config: Mapping[str, Any]) -> str:
    """Return the name of a config's files; ``ValueError`` if it is none."""
    return _cell(json.dumps(config))


@lru_cache
def _cell(text: str) -> str:
    config = Config(**json.loads(text))
    return f"{config.slug}-{config.digest}"


def _misfit(record: Mapping[str, Any]) -> str | None:
    """Return which parts belong together, and do not fit."""
    metrics, arrays = record["metrics"], record["arrays"]
    if not record["spectra"]:
        return "spectra is {}; expected an object with one layer or more"
    needed = "trials" if record["config"]["trials"] else "correlation"
    if needed not in arrays:
        return f"arrays.{needed} is missing"
    if ("row_covariance" in arrays) != ("col_covariance" in arrays):
        return "arrays has one covariance; expected those of rows and columns, or none"
    if "test_accuracy" in metrics:
        return None
    if "test_explained_variance" not in metrics:
        return "metrics has neither test_accuracy nor test_explained_variance"
    tasks, names = metrics.get("test_explained_variances", ()), record["names"]
    if len(tasks) != len(names):
        return f"metrics.test_explained_variances has {len(tasks)} entries for {len(names)} names"
    return None


def _told(path: str, value: Any, words: str) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{path} is {shown}; expected {words}"
