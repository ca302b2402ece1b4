"""The quantities that are compared: each with its reading from a record and its relevant change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adareg.lab.judge.claims.base import MIN_SEEDS, Effect, State, state
from adareg.lab.judge.statistics import interval
from adareg.lab.judge.study import Measure
from adareg.lab.run.records import Record

Values = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of a network.

    Args:
        name: in a sentence.
        measure: reads it from a record.
        unit: of a difference of two.
        relevant: the smallest difference that counts, in that unit.
        sign: 1 if the paper claims more of it for AdaReg, -1 if less.
        relative: compare ratios, so that differences are in percent.
        digits: after the point.
    """

    name: str
    measure: Measure
    unit: str
    relevant: float
    sign: int = 1
    relative: bool = False
    digits: int = 2

    def differences(self, first: Values, second: Values) -> dict[int, float]:
        """First less second for each seed that both have; of logarithms if ratios count."""
        seeds = sorted(first.keys() & second.keys())
        if not self.relative:
            return {seed: first[seed] - second[seed] for seed in seeds}
        return {
            seed: math.log(first[seed]) - math.log(second[seed])
            for seed in seeds
            if first[seed] > 0 and second[seed] > 0
        }

    def effect(self, what: str, differences: Values) -> Effect | None:
        """The mean of differences by seed, or None if there are too few."""
        if len(differences) < MIN_SEEDS:
            return None
        found = interval([differences[seed] for seed in sorted(differences)])
        value, low, high = (_percent(x) if self.relative else x for x in found)
        return Effect(
            what=what, value=value, low=low, high=high, seeds=len(differences), unit=self.unit
        )

    def state(self, effect: Effect) -> State:
        """Answer if a difference is what the paper claims."""
        return state(effect, self.sign, self.relevant)

    @property
    def direction(self) -> str:
        """The claimed one, in a word."""
        return "higher" if self.sign > 0 else "lower"


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(min(log_ratio, 100.0))  # beyond that, any number is large enough


def mean_by_seed(parts: Sequence[Values]) -> dict[int, float]:
    """The mean over several settings, for each seed that is in all of them."""
    seeds = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in sorted(seeds)}


def _last(record: Record) -> Mapping[str, Any]:
    layers: dict[str, Any] = record["spectra"]
    last: Mapping[str, Any] = layers[list(layers)[-1]]
    return last


def off_diagonal(matrix: Any) -> NDArray[np.float64]:
    """The entries beside the diagonal of a square matrix of at least 2 x 2."""
    square = np.asarray(matrix, dtype=float)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or len(square) < 2:
        raise ValueError(f"{square.shape=}: expected a square matrix")
    found: NDArray[np.float64] = square[~np.eye(len(square), dtype=bool)]
    return found


def strength(matrix: Any) -> float:
    """The mean absolute correlation beside the diagonal."""
    return float(np.abs(off_diagonal(matrix)).mean())


#: A tenth of a point is half of the smallest gain in accuracy that the paper reports (0.20).
POINT = 0.1

ACCURACY = Quantity(
    name="test accuracy",
    measure=lambda record: 100 * record["metrics"]["test_accuracy"],
    unit="points",
    relevant=POINT,
)
EXPLAINED = Quantity(
    name="explained variance",
    measure=lambda record: record["metrics"]["test_explained_variance"],
    unit="",
    relevant=0.005,
    digits=4,
)
STABLE_RANK = Quantity(
    name="stable rank",
    measure=lambda record: _last(record)["stable_rank"],
    unit="%",
    relevant=1.0,
    sign=-1,
    relative=True,
    digits=1,
)
SPECTRAL_NORM = Quantity(
    name="spectral norm",
    measure=lambda record: _last(record)["spectral_norm"],
    unit="%",
    relevant=1.0,
    sign=-1,
    relative=True,
    digits=1,
)
TRAIN_LOSS, TEST_LOSS = (
    Quantity(
        name=f"{part} cross-entropy",
        measure=lambda record, key=f"{part}_loss": record["metrics"][key],  # type: ignore[misc]
        unit="%",
        relevant=1.0,
        sign=-1,
        relative=True,
        digits=1,
    )
    for part in ("train", "test")
)
CORRELATION = Quantity(
    name="mean absolute correlation",
    measure=lambda record: strength(record["arrays"]["correlation"]),
    unit="",
    relevant=0.01,
    digits=3,
)
