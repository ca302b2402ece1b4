"""Comparing many methods over many data sets by their ranks.

Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats  # type: ignore[import-untyped]

from adareg.lab.rounding import SAFE, significant

Numbers = npt.NDArray[np.float64]

LEVEL = 0.05


def ranks(scores: npt.ArrayLike) -> Numbers:  # (settings, methods) -> (settings, methods)
    """Ranks in each setting, 1 for the highest score; equals share theirs, nan comes last.

    Scores are means: those that differ in last bits alone are equal.
    """
    values = np.nan_to_num(_safe(scores), nan=-math.inf)
    return np.asarray(stats.rankdata(-values, axis=-1))


def _safe(values: npt.ArrayLike) -> Numbers:
    """Round to the digits on which sums of any order agree."""
    numbers = np.asarray(values, dtype=float)
    rounded = [significant(value, SAFE) for value in numbers.ravel()]
    return np.array(rounded).reshape(numbers.shape)


def friedman(scores: npt.ArrayLike) -> float:
    """Return the probability of such different ranks if all methods are alike (χ², with ties)."""
    return float(stats.friedmanchisquare(*ranks(scores).T).pvalue)


def critical_difference(methods: int, settings: int, level: float = LEVEL) -> float:
    """Return the difference in average rank from which on two methods are told apart (Nemenyi).

    ``q·√(k(k + 1)/(6N))``, q the quantile of the studentised range over √2.

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    q = stats.studentized_range.ppf(1 - level, methods, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * settings)))


def groups(average: Mapping[str, float], difference: float) -> list[tuple[str, ...]]:
    """The largest sets of neighbours in rank that are not told apart; two methods or more."""
    names = sorted(average, key=lambda name: average[name])
    found: list[tuple[str, ...]] = []
    reached = 0
    for i, first in enumerate(names):
        end = max(
            j for j in range(i, len(names)) if average[names[j]] - average[first] <= difference
        )
        if end > max(i, reached):
            found.append(tuple(names[i : end + 1]))
        reached = max(reached, end)
    return found


def wilcoxon_holm(scores: Mapping[str, Sequence[float]], reference: str) -> dict[str, float]:
    """Adjusted probabilities that each method and the reference are alike, over all settings.

    Wilcoxon's signed-rank test of each pair, with Holm's correction for their number.
    """
    others = [name for name in scores if name != reference]
    base = np.asarray(scores[reference], dtype=float)
    raw = {name: _wilcoxon(_safe(base - np.asarray(scores[name]))) for name in others}
    adjusted: dict[str, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(others, key=lambda other: raw[other])):
        largest = max(largest, min(1.0, (len(others) - i) * raw[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in others}


def _wilcoxon(differences: Numbers) -> float:
    if not np.any(differences):
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)
