"""What the records say: ranks, distances to the best method, and pairs with published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import pandas as pd

from adareg.lab.contest.suites import DEVELOPMENT, MEASURES, SUITES
from adareg.lab.judge import rank_tests
from adareg.lab.rounding import significant

PUBLISHED = "published-dropout"
#: Ratios of errors are of at least this many percent: one method may make none.
LEAST_ERROR = 0.1
KEY = ["table", "split"]


def with_published(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and those of the published dropout for the same tables and splits.

    Test error and log likelihood of Monte Carlo dropout, one hidden layer of 50, tuned for each
    split: Gal & Ghahramani's experiments, as published with their code.
    """
    path = files("adareg.lab.contest") / "published.csv"
    with path.open(encoding="utf-8") as file:
        published = pd.read_csv(file)
    tried = rows[rows["suite"] == "regression"][KEY].drop_duplicates()
    found = published.merge(tried, on=KEY)
    return pd.concat([rows, found.assign(suite="regression", method=PUBLISHED)], ignore_index=True)


def compare(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Scores of the methods that were tried on every table, on the splits that all of them share.

    Args:
        rows: of one suite, one for each trial.
        measure: a key of ``MEASURES``.

    Returns:
        A row for each (table, split), a column for each method.
    """
    table = rows.pivot_table(index=KEY, columns="method", values=measure, observed=True)
    tried = table.notna().groupby("table").any().all()
    return table.loc[:, tried[tried].index].dropna()


@dataclass(frozen=True)
class Standing:
    """How methods stand by one measure, over some tables.

    Attributes:
        ranks: a row for each table, by means over splits; a column for each method.
        average: the average rank of each method, the best first.
        distance: to the best method of a table, on average: a ratio (geometric mean), or a
            difference.
        friedman: how likely such ranks are if all methods are alike; nan with fewer than three
            tables or methods, or if they are all equal.
        difference: of average ranks that Nemenyi's test needs at 5 %.
    """

    ranks: pd.DataFrame
    average: pd.Series
    distance: pd.Series
    friedman: float
    difference: float


def standing(rows: pd.DataFrame, measure: str) -> Standing | None:
    """How methods stand by a measure; None if there are not two of them on the same tables."""
    means = compare(rows, measure).groupby("table").mean().map(significant)
    if min(means.shape[0], means.shape[1] - 1) < 1:
        return None
    kind = MEASURES[measure]
    sign = 1 if kind.more else -1
    ranks = pd.DataFrame(rank_tests.ranks(sign * means), index=means.index, columns=means.columns)
    average = ranks.mean().sort_values(kind="stable")
    enough = min(ranks.shape) >= 3 and bool((ranks.nunique(axis=1) > 1).any())
    return Standing(
        ranks=ranks,
        average=average,
        distance=_distance(means, measure)[average.index],
        friedman=rank_tests.friedman(sign * means) if enough else math.nan,
        difference=rank_tests.critical_difference(len(average), len(ranks)),
    )


def _distance(means: pd.DataFrame, measure: str) -> pd.Series:
    kind = MEASURES[measure]
    best = means.max(axis=1) if kind.more else means.min(axis=1)
    if not kind.relative:
        return means.sub(best, axis=0).abs().mean()
    floor = LEAST_ERROR if measure == "error" else 0.0
    ratios = means.clip(lower=floor).div(best.clip(lower=floor), axis=0)
    return pd.Series(np.exp(np.log(ratios).mean()), index=means.columns)


@dataclass(frozen=True)
class Pair:
    """A method against another on one table, paired split by split.

    Attributes:
        table: its key.
        other: the other method's mean.
        gain: by how much the method is better, on average; negative if it is worse.
        error: the standard error of the mean difference, as if splits were independent.
        wins: on how many splits it is better.
        splits: of so many.
    """

    table: str
    other: float
    gain: float
    error: float
    wins: int
    splits: int

    @property
    def verdict(self) -> str:
        """Better or worse by more than one standard error, else "alike"."""
        if abs(self.gain) <= self.error:
            return "alike"
        return "better" if self.gain > 0 else "worse"


def pairs(rows: pd.DataFrame, measure: str, method: str, other: str) -> list[Pair]:
    """A method against another on every table that both were tried on."""
    two = rows[rows["method"].isin([method, other])]
    table = two.pivot_table(index=KEY, columns="method", values=measure)
    if not {method, other} <= set(table.columns):
        return []
    sign = 1 if MEASURES[measure].more else -1
    found = []
    for name, part in table.dropna().groupby("table"):
        gains = sign * (part[method] - part[other])
        error = float(gains.std() / math.sqrt(len(gains))) if len(gains) > 1 else math.nan
        wins = int((gains > 0).sum())
        mean = float(part[other].mean())
        found.append(Pair(str(name), mean, float(gains.mean()), error, wins, len(gains)))
    return found


def unseen(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of tables that were not used to choose anything."""
    return rows[~rows["table"].isin(list(DEVELOPMENT))]


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of suites that are shown here, and not with other results."""
    if rows.empty:
        return rows
    return rows[rows["suite"].isin([name for name, suite in SUITES.items() if suite.measures])]


def suites_of(rows: pd.DataFrame) -> list[str]:
    """The suites that have records and are shown here, in the order of ``SUITES``."""
    tried = set(shown(rows)["suite"])
    return [name for name in SUITES if name in tried]


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a fit and of a prediction for each method: geometric means over tables."""
    columns = ["fit_seconds", "noise_seconds", "predict_seconds"]
    timed = rows.dropna(subset=["fit_seconds"])
    cells = timed.groupby(["table", "method"])[columns].mean()
    total = cells.assign(fit=cells["fit_seconds"] + cells["noise_seconds"])
    logs = total[["fit", "predict_seconds"]].clip(lower=1e-4).apply(np.log)
    return logs.groupby("method").mean().apply(np.exp)


def coverage(rows: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """The share of test targets inside 95 % intervals, in percent: tables by methods."""
    found = rows[rows["method"].isin(list(methods))].dropna(subset=["coverage"])
    return 100 * found.pivot_table(index="table", columns="method", values="coverage")
