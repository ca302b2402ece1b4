"""What a record holds, and of which kind: what everything that reads records relies on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple


class _Kind(NamedTuple):
    """What a value may be: exact types, as JSON gives them, and the same in words."""

    words: str
    types: frozenset[type]


def _kind(words: str, *types: type) -> _Kind:
    return _Kind(words, frozenset(types))


_TEXT = _kind("text", str)
_INTEGER = _kind("an integer", int)
_NUMBER = _kind("a number", int, float)
_MEASURED = _kind("a number or null", int, float, NoneType)
_METRIC = _kind("a number, true, false, null, text or a list", *_MEASURED.types, bool, str, list)
_SETTING = _kind("a number, true, false, null or text", *_MEASURED.types, bool, str)
_FLAG = _kind("true or false", bool)
_LIST = _kind("a list", list)

#: The kind of each entry of an object, some of which are objects; what is not named may be
#: anything, unless under "*" there is a kind for it.
_Object = Mapping[str, "_Kind | _Object"]

_LISTS: _Object = {"*": _LIST}
_METRICS: _Object = {
    **dict.fromkeys(("test_loss", "test_accuracy", "test_explained_variance"), _MEASURED),
    **dict.fromkeys(("train_loss", "train_accuracy", "train_explained_variance"), _MEASURED),
    **dict.fromkeys(("test_nll", "test_calibration", "trainings", "samples"), _MEASURED),
    **dict.fromkeys(("alone_seconds", "plain_seconds", "tuned", "noise"), _MEASURED),
    **dict.fromkeys(("test_explained_variances", "train_explained_variances"), _LIST),
    "diverged": _FLAG,
    "*": _METRIC,
}

#: What every record has.
REQUIRED: _Object = {
    "experiment": _TEXT,
    "scale": _TEXT,
    "method": _TEXT,
    "seed": _INTEGER,
    "config": {"data": _TEXT, "n": _INTEGER, "batch": _INTEGER, "*": _SETTING},
    "metrics": _METRICS,
    "spectra": {"*": {"*": _MEASURED}},
    "seconds": _NUMBER,
}

_RECORD: _Object = {
    **REQUIRED,
    "curves": _LISTS,
    "arrays": _LISTS,
    "names": _LIST,
    "data": {"counts": {}},
    "environment": {},
    "stacked": _MEASURED,
    "peak_bytes": _MEASURED,
}

#: As much of a wrong value is shown.
_SHOWN = 40


def problem(record: Mapping[str, Any]) -> str | None:
    """The first value of a record that is not of its kind, in words; None if there is none."""
    return next(_problems(record, _RECORD, ""), None) or next(_gaps(record), None)


def _problems(values: Mapping[str, Any], kinds: _Object, path: str) -> Iterator[str]:
    others = kinds.get("*")
    for name, value in values.items():
        kind = kinds.get(name, others)
        if isinstance(kind, _Kind):
            if type(value) not in kind.types:
                yield _told(path + name, value, kind.words)
        elif kind is not None:
            if isinstance(value, dict):
                yield from _problems(value, kind, f"{path}{name}.")
            else:
                yield _told(path + name, value, "an object")


def _gaps(record: Mapping[str, Any]) -> Iterator[str]:
    for name in ("n", "batch"):
        if name not in record["config"]:
            yield f"config.{name} is missing; expected an integer"
    if not record["spectra"]:
        yield _told("spectra", record["spectra"], "an object with the spectrum of a layer or more")


def _told(name: str, value: Any, expected: str) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{name} is {shown}; expected {expected}"
