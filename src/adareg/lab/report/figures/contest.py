"""The contest on tables: average ranks, scores table by table, coverage of intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from adareg.lab import contest
from adareg.lab.contest import judge
from adareg.lab.contest.figure import panel
from adareg.lab.contest.judge import Standing
from adareg.lab.contest.methods import METHODS
from adareg.lab.contest.page import digits_of, label
from adareg.lab.contest.suites import DEVELOPMENT, MEASURES, SUITES
from adareg.lab.report import style
from adareg.lab.report.figures.base import Drawing, Entry, Figure, Panel, Table, number, spread
from adareg.lab.rounding import written

Standings = dict[tuple[str, str], Standing]


def figure_of(rows: pd.DataFrame) -> Figure:
    """The contest's figure.

    Args:
        rows: of ``Results.frame``, one for each trial.
    """
    return Figure(
        key="contest",
        title="Average ranks, the lower the better",
        where="not in the paper",
        experiments=(contest.NAME,),
        draw=lambda records: draw(rows),
    )


def standings(rows: pd.DataFrame) -> Standings:
    """How methods stand, by suite and measure: errors first, then likelihoods."""
    if rows.empty:
        return {}
    every = judge.with_published(rows)
    found = {
        (suite, measure): judge.standing(every[every["suite"] == suite], measure)
        for suite in judge.suites_of(rows)
        for measure in SUITES[suite].measures[:2]
    }
    return {key: standing for key, standing in found.items() if standing is not None}


def draw(rows: pd.DataFrame) -> Drawing | None:
    """A panel for each suite and measure; None if no two methods were tried on the same tables."""
    found = standings(rows)
    if not found:
        return None
    return Drawing(
        panels=[
            Panel(f"{suite}: {MEASURES[measure].label}", partial(_draw, found=standing))
            for (suite, measure), standing in found.items()
        ],
        caption="Diamonds are average ranks over tables, dots the ranks in each table; a bar is a "
        "95 % interval over five tables or more. A hollow dot is a table that was used to choose "
        "something in the library. Each method runs as its users run it, and what it tunes it "
        "tunes by cross-validation on the training rows. Evidence is this library's "
        f"EvidenceRegressor or EvidenceClassifier, as it comes. {' '.join(_sizes(rows))}",
        data=_data(found),
        tables=[_rank_table(suite, rows, found) for suite in judge.suites_of(rows)],
        details=[
            *(_score_table(suite, measure, rows) for suite, measure in found),
            *_coverage_tables(rows),
        ],
        size=(3.9, 3.1),
        open=True,
    )


def _draw(axes: Axes, found: Standing) -> None:
    panel(axes, found, style.INK)


def _sizes(rows: pd.DataFrame) -> Iterator[str]:
    for suite in judge.suites_of(rows):
        mine = rows[rows["suite"] == suite]
        splits = mine.groupby("table")["split"].nunique()
        least, most = int(splits.min()), int(splits.max())
        each = f"{most} split{'s' * (most > 1)}" if least == most else f"{least} to {most} splits"
        count = mine["table"].nunique()
        yield f"{suite.capitalize()}: {count} table{'s' * (count > 1)}, {each} of each."


def _data(found: Standings) -> pd.DataFrame:
    parts = [
        standing.ranks.reset_index()
        .melt("table", var_name="method", value_name="rank")
        .assign(suite=suite, measure=measure)
        for (suite, measure), standing in found.items()
    ]
    return pd.concat(parts)[["suite", "measure", "table", "method", "rank"]]


def _rank_table(suite: str, rows: pd.DataFrame, found: Standings) -> Table:
    """Average ranks, with the distance to the best method, and what a fit costs."""
    mine = {measure: standing for (name, measure), standing in found.items() if name == suite}
    costs = judge.costs(rows[rows["suite"] == suite])["fit"]
    first = next(iter(mine.values()))
    lines = [
        [
            Entry(label(method), label(method)),
            *(_rank(standing, measure, method) for measure, standing in mine.items()),
            number(costs[method], 1) if method in costs else number(float("nan")),
        ]
        for method in map(str, first.average.index)
    ]
    head = ["method", *(MEASURES[measure].label for measure in mine), "seconds"]
    tables = ", ".join(map(str, first.ranks.index))
    return Table(
        head,
        lines,
        f"{suite.capitalize()} ({tables}): average rank, in brackets the mean distance to the best "
        "method of each table, a ratio or a difference; processor seconds of one fit",
    )


def _rank(standing: Standing, measure: str, method: str) -> Entry:
    if method not in standing.average.index:
        return number(float("nan"))
    digits = 2 if MEASURES[measure].relative else 3
    rank = number(float(standing.average[method]), 1)
    distance = written(float(standing.distance[method]), digits)
    return Entry(f"{rank.text} ({distance})", rank.value)


def _score_table(suite: str, measure: str, rows: pd.DataFrame) -> Table:
    """Scores table by table: means over the splits that all methods share."""
    every = judge.with_published(rows)
    table = judge.compare(every[every["suite"] == suite], measure)
    groups = table.groupby("table")
    mean, error = groups.mean(), groups.std() / groups.count() ** 0.5
    kind = MEASURES[measure]
    lines = []
    for name in mean.index:
        best = mean.loc[name].max() if kind.more else mean.loc[name].min()
        digits = digits_of(float(best), kind)
        cells = (spread(mean.loc[name, m], error.loc[name, m], digits) for m in mean.columns)
        title = f"{name}{'' if name in DEVELOPMENT else ' °'}"
        lines.append([Entry(title, str(name)), *cells])
    more = "the higher the better" if kind.more else "the lower the better"
    return Table(
        ["table", *map(label, map(str, mean.columns))],
        lines,
        f"{suite.capitalize()}, {kind.label}, {more}: mean over splits ± standard error; tables "
        "marked ° were not used to choose anything in the library",
    )


def _coverage_tables(rows: pd.DataFrame) -> Iterable[Table]:
    if "coverage" not in rows or not rows["coverage"].notna().any():
        return
    tried: Sequence[str] = [m for m in METHODS if m in set(rows["method"])]
    table = judge.coverage(rows, tried)
    table = table[[m for m in tried if m in table]].dropna(axis=1)
    lines = [
        [Entry(str(name), str(name)), *(number(x, 0) for x in table.loc[name])]
        for name in table.index
    ]
    lines.append([Entry("mean", "~"), *(number(x, 1) for x in table.mean())])
    head = ["table", *map(label, map(str, table.columns))]
    yield Table(head, lines, "Test targets inside 95 % intervals, percent")
