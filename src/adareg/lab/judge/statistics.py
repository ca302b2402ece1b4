"""A mean over seeds with its interval, for verdicts and figures alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from adareg.lab.rounding import SAFE, significant

RESAMPLES = 10_000
LEVEL = 0.95
#: Means of fewer values than this are not resampled: even the range of four values misses the true
#: mean 12 times in 100, and that of three 25 times.
RESAMPLED = 5


class Interval(NamedTuple):
    """A mean, and the interval that covers the true one about 95 times in 100."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of ``values`` with its bootstrap interval; the same values give the same one.

    Values are one for each seed; differences between two methods are paired before they come here.
    The interval is Hesterberg's expanded percentile interval ("What Teachers Should Know About the
    Bootstrap", 2015): quantiles of resampled means, further out than the nominal ones by what
    Student's t asks for at so few values. Without that, the interval of five seeds would cover
    the true mean 83 times in 100; with it, 92 times. Of fewer values it is Student's own: exact for
    normal values, and wide; of a single one there is none. All three numbers are rounded to what
    every order of the sums agrees on, so that an end at zero is zero.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0]).mean
    3.0
    """
    data = [float(value) for value in values]
    ends = _students(data) if len(data) < RESAMPLED else _resampled(data)
    return Interval(*(significant(number, SAFE) for number in (fmean(data), *ends)))


def _resampled(data: list[float]) -> tuple[float, float]:
    drawn = _draws(len(data))
    totals = sum(value * drawn[:, i] for i, value in enumerate(data))  # on any CPU in this order
    tail = tail_probability(len(data))
    low, high = np.quantile(totals, [tail, 1 - tail])
    return float(low) / len(data), float(high) / len(data)


def tail_probability(count: int) -> float:
    """Return the share that is cut off at each end of the distribution of resampled means."""
    return float(special.ndtr(-math.sqrt(count / (count - 1)) * _quantile(count)))


def _students(data: list[float]) -> tuple[float, float]:
    if len(data) < 2:
        return math.nan, math.nan
    margin = _quantile(len(data)) * standard_error(data)
    return fmean(data) - margin, fmean(data) + margin


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; nan of a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _quantile(count: int) -> float:
    """Return the quantile of Student's distribution for the mean of ``count`` values."""
    return float(special.stdtrit(count - 1, (1 + LEVEL) / 2))


@cache
def _draws(count: int) -> NDArray[np.int64]:
    """Return how often each of ``count`` values is drawn: (resamples, count)."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
