"""What a record holds, and of which kind: what everything that reads records relies on."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
_OBJECT = _kind("an object", dict)

#: The kind of each entry of an object, some of which are objects; what is not named may be
#: anything, unless under "*" there is a kind for it.
_Entries = Mapping[str, "_Kind | _Entries"]

_LISTS: _Entries = {"*": _LIST}
_METRICS: _Entries = {
    **dict.fromkeys(("test_loss", "test_accuracy", "test_explained_variance"), _MEASURED),
    **dict.fromkeys(("train_loss", "train_accuracy", "train_explained_variance"), _MEASURED),
    **dict.fromkeys(("test_nll", "test_calibration", "trainings", "samples"), _MEASURED),
    **dict.fromkeys(("alone_seconds", "plain_seconds", "tuned", "noise"), _MEASURED),
    **dict.fromkeys(("test_explained_variances", "train_explained_variances"), _LIST),
    "diverged": _FLAG,
    "timed_on": _TEXT,
    "*": _METRIC,
}

#: What every record has.
REQUIRED: _Entries = {
    "experiment": _TEXT,
    "scale": _TEXT,
    "method": _TEXT,
    "seed": _INTEGER,
    "config": {"data": _TEXT, "n": _INTEGER, "batch": _INTEGER, "*": _SETTING},
    "metrics": _METRICS,
    "spectra": {"*": {"*": _MEASURED}},
    "seconds": _NUMBER,
}

_RECORD: _Entries = {
    **REQUIRED,
    "curves": _LISTS,
    "arrays": _LISTS,
    "names": _LIST,
    "data": {"counts": _OBJECT},
    "environment": _OBJECT,
    "stacked": _MEASURED,
    "peak_bytes": _MEASURED,
}

#: As much of a wrong value is shown.
_SHOWN = 40


def problem(record: Mapping[str, Any]) -> str | None:
    """The first value of a record that is not of its kind, in words; None if there is none."""
    return _problem(record, _RECORD, "") or _gap(record["config"], record["spectra"])


def _problem(values: Mapping[str, Any], kinds: _Entries, path: str) -> str | None:
    others = kinds.get("*")
    for name, value in values.items():
        kind = kinds.get(name, others)
        if kind is None:
            continue
        if isinstance(kind, _Kind):
            if type(value) not in kind.types:
                return _told(path + name, value, kind)
        elif not isinstance(value, dict):
            return _told(path + name, value, _OBJECT)
        elif wrong := _problem(value, kind, f"{path}{name}."):
            return wrong
    return None


def _gap(config: Mapping[str, Any], spectra: Mapping[str, Any]) -> str | None:
    for name in ("n", "batch"):
        if name not in config:
            return f"config.{name} is missing; expected {_INTEGER.words}"
    return None if spectra else "spectra is {}; expected an object with one layer or more"


def _told(name: str, value: Any, kind: _Kind) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{name} is {shown}; expected {kind.words}"
