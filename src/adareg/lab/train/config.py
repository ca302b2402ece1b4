"""The config of one cell of an experiment: every number that shapes its training."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

PRECISIONS = ("float32", "tf32", "float64")

CHOICES = ("loss", "accuracy")

#: Fields that are newer than the first records. At its default such a field does not count in the
#: digest, so that older records are still found.
_LATER: frozenset[str] = frozenset({"trials", "choose"})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One cell: shared by all its methods and seeds. Every field is recorded with the results.

    Args:
        data: name of the data set.
        n: training samples, drawn by seed; 0 for all there are.
        batch: minibatch size; the last batch of an epoch may be smaller.
        blocks: outer loops of Alg. 1; after each one AdaReg updates its precisions.
        epochs: passes over the training samples in each block.
        lr: of Adam (the authors' 5e-4).
        weight_decay: of Adam, on all parameters, for the methods that have it (the authors' 1e-2).
        dropout: the rate, for the methods that have it.
        decov: the weight of the DeCov loss, for the methods that have it.
        strength: AdaReg's λ, or "auto" for 1/(2n).
        lower, upper: AdaReg's bounds u, v.
        augment: random crops (padding 4) and horizontal flips.
        evaluate_every: epochs between evaluations; 0 for the end alone.
        test: how many test samples count; 0 for all.
        covariances: record the learned row and column covariances of the last layer.
        precision: of matrix products: "float32", "tf32" (GPU), or "float64" throughout.
        trials: how many values a method with something to tune tries on a held-out fifth of its
            own n samples, before it is trained on all of them; 0 for no tuning.
        choose: what trials are judged by on that fifth: "loss", or of classifiers "accuracy",
            and among those of equal accuracy the loss.
    """

    data: str
    n: int
    batch: int
    blocks: int
    epochs: int
    lr: float = 5e-4
    weight_decay: float = 1e-2
    dropout: float = 0.5
    decov: float = 1e-2
    strength: float | str = 1e-4
    lower: float = 1e-3
    upper: float = 1e3
    augment: bool = False
    evaluate_every: int = 0
    test: int = 0
    covariances: bool = False
    precision: str = "tf32"
    trials: int = 0
    choose: str = "loss"

    def __post_init__(self) -> None:
        for name in ("batch", "blocks", "epochs"):
            self._check(
                name,
                isinstance(getattr(self, name), int) and getattr(self, name) > 0,
                "a positive integer",
            )
        for name in ("n", "evaluate_every", "test", "trials"):
            self._check(
                name,
                isinstance(getattr(self, name), int) and getattr(self, name) >= 0,
                "an integer >= 0",
            )
        for name in ("weight_decay", "decov"):
            self._check(
                name, _is_number(getattr(self, name)) and getattr(self, name) >= 0, "a number >= 0"
            )
        self._check("lr", _is_number(self.lr) and self.lr > 0, "a number > 0")
        self._check(
            "dropout", _is_number(self.dropout) and 0 <= self.dropout < 1, "a number in [0, 1)"
        )
        self._check(
            "strength",
            self.strength == "auto" or (_is_number(self.strength) and float(self.strength) > 0),
            "a number > 0 or 'auto'",
        )
        self._check("upper", _is_number(self.upper) and self.upper > 0, "a number > 0")
        self._check(
            "lower",
            _is_number(self.lower) and 0 < self.lower < self.upper,
            "a number between 0 and upper",
        )
        self._check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        self._check("choose", self.choose in CHOICES, f"one of {', '.join(CHOICES)}")

    def _check(self, name: str, ok: bool, accepted: str) -> None:
        if not ok:
            raise ValueError(f"{name}={getattr(self, name)!r}: expected {accepted}")

    @property
    def bounds(self) -> tuple[float, float]:
        """(u, v)."""
        return self.lower, self.upper

    @property
    def penalty_strength(self) -> float:
        """λ as a number."""
        return 1 / (2 * self.n) if self.strength == "auto" else float(self.strength)

    @property
    def held_out(self) -> int:
        """The number of samples that are held out: a fifth of n."""
        return self.n // 5

    def without_held_out(self) -> Config:
        """The same number of steps on the other four fifths."""
        n = self.n - self.held_out
        steps, fewer = (math.ceil(size / self.batch) for size in (self.n, n))
        return replace(self, n=n, epochs=max(1, round(self.epochs * steps / fewer)))

    @property
    def slug(self) -> str:
        """A short name for files and progress bars."""
        return f"n{self.n}-b{self.batch}"

    @property
    def digest(self) -> str:
        """Eight letters that differ when any field does."""
        values = asdict(self)
        for field in fields(self):
            if field.name in _LATER and values[field.name] == field.default:
                del values[field.name]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def override(self, values: Mapping[str, str]) -> Config:
        """A copy with some fields set from text, as ``--set key=value`` gives them."""
        types = {field.name: field.type for field in fields(self)}
        unknown = [key for key in values if key not in types]
        if unknown:
            raise ValueError(f"unknown config key {unknown[0]!r}; there are: {', '.join(types)}")
        parsed = {key: _parse(key, str(types[key]), text) for key, text in values.items()}
        return replace(self, **parsed)


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded config with the fields that are newer than it, all in one order."""
    names = [field.name for field in fields(Config)]
    found = {f.name: f.default for f in fields(Config) if f.name in _LATER} | dict(values)
    return {name: found.pop(name) for name in names if name in found} | found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse(key: str, kind: str, text: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "float" or (kind == "float | str" and text != "auto"):
            return float(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{key}={text!r}: expected a value of type {kind}") from error
    return text
