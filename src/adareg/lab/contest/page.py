"""The contest's tables as Markdown: everything that a page shows of the records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from adareg.lab.contest import judge
from adareg.lab.contest.judge import PUBLISHED, Pair, Standing
from adareg.lab.contest.methods import METHODS
from adareg.lab.contest.suites import DEVELOPMENT, MEASURES, SUITES, Measure
from adareg.lab.rounding import short, written

OURS = ("evidence", "evidence-50")


def label(method: str) -> str:
    """A method's name for people."""
    return "dropout (published)" if method == PUBLISHED else METHODS[method].label


def methods_as_markdown() -> str:
    """A table of the methods that are compared here, and how they are run."""
    rows = [
        [row.label, ", ".join(row.suites), row.what]
        for row in METHODS.values()
        if any(SUITES[suite].measures for suite in row.suites)
    ]
    return "\n".join(_table(["method", "suites", "run as"], rows, "---|")) + "\n"


def places_as_markdown(rows: pd.DataFrame, method: str = "evidence") -> str:
    """One method's place in each suite, on all tables and on those by which nothing was chosen.

    Args:
        rows: of ``Results.frame``, one for each trial.
        method: a key of ``METHODS``.
    """
    rows = judge.shown(rows)
    if rows.empty:
        return "There are no records yet.\n"
    every = judge.with_published(rows)
    lines = []
    for name in judge.suites_of(rows):
        mine = every[every["suite"] == name]
        lines.append([name, *(_places(name, part, method) for part in (mine, judge.unseen(mine)))])
    head = ["kind", "place of ours, all tables", "tables not used to develop ours"]
    return "\n".join([*_table(head, lines, "---|"), ""])


def _places(suite: str, rows: pd.DataFrame, method: str) -> str:
    """Such as "2nd of 7 by RMSE (4 tables)", for what counts first in a suite."""
    found = {m: judge.standing(rows, m) for m in SUITES[suite].measures[:2]}
    places = [_place(s, m, method) for m, s in found.items() if s and method in s.average.index]
    count = rows["table"].nunique()
    return f"{', '.join(places)} ({count} table{'s' * (count != 1)})" if places else "–"


def _place(standing: Standing, measure: str, method: str) -> str:
    average = standing.average
    place = 1 + int((average < average[method] - 1e-9).sum())
    ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")
    return f"{ordinal} of {len(average)} by {MEASURES[measure].label.removesuffix(', %')}"


def results_as_markdown(rows: pd.DataFrame) -> str:
    """Everything that was measured, suite by suite.

    Args:
        rows: of ``Results.frame``, one for each trial.
    """
    rows = judge.shown(rows)
    if rows.empty:
        return "There are no records yet.\n"
    every = judge.with_published(rows)
    lines = [*_origin(rows)]
    for name in judge.suites_of(rows):
        lines += _suite(name, every[every["suite"] == name])
    return "\n".join(lines) + "\n"


def _origin(rows: pd.DataFrame) -> Iterator[str]:
    seconds = rows[["fit_seconds", "noise_seconds", "predict_seconds"]].sum().sum()
    hours = written(seconds / 3600, 1)
    yield f"{len(rows):,} trials on one thread each, {hours} hours of processor time."
    for name in ("device", "torch", "scikit-learn"):
        if name in rows:
            yield f"{name.capitalize()}: {_listed(sorted(map(str, rows[name].unique())))}."
    yield ""


def _suite(name: str, rows: pd.DataFrame) -> Iterator[str]:
    tables = sorted(rows["table"].unique())
    splits = rows.groupby("table")["split"].nunique()
    most, least = int(splits.max()), int(splits.min())
    count = str(most) if most == least else f"{least} to {most}"
    yield f"### {name.capitalize()}"
    yield ""
    what = SUITES[name].what
    yield f"{what[0].upper()}{what[1:]}: {len(tables)} tables, splits of each: {count}."
    yield from _developed(tables)
    yield from _ranks(name, rows, "All tables")
    free = judge.unseen(rows)
    if 0 < free["table"].nunique() < len(tables):
        yield from _ranks(name, free, "Tables that were not used to choose anything")
    for measure in SUITES[name].measures[:2]:
        yield from _means(rows, measure)
    if "coverage" in rows and rows["coverage"].notna().any():
        yield from _coverage(rows)
    yield from _against(rows, PUBLISHED, SUITES[name].measures)
    yield from _against(rows, "evidence-separate", SUITES[name].measures)


def _developed(tables: Sequence[str]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for table in tables:
        if table in DEVELOPMENT:
            reasons.setdefault(DEVELOPMENT[table], []).append(table)
    for reason, names in reasons.items():
        yield f"These tables were used to choose {reason}: {_listed(names)}."
    others = [table for table in tables if table not in DEVELOPMENT]
    if others:
        yield f"These were not used to choose anything: {_listed(others)}."
    yield ""


def _ranks(name: str, rows: pd.DataFrame, title: str) -> Iterator[str]:
    """Average ranks by each measure, with the distance to the best method."""
    found = {m: s for m in SUITES[name].measures if (s := judge.standing(rows, m)) is not None}
    if not found:
        return
    first = next(iter(found.values()))
    costs = judge.costs(rows)
    yield f"**{title}** ({len(first.ranks)}: {_listed(first.ranks.index)}): average ranks, 1 the"
    yield (
        "best, and in brackets the mean distance to the best method of each table, as a ratio or a"
    )
    yield "difference. Processor seconds are for one fit, as a geometric mean over tables."
    yield ""
    head = ["method", *(MEASURES[m].label for m in found), "processor seconds"]
    body = []
    for method in first.average.index:
        cells = [_rank(s, m, str(method)) for m, s in found.items()]
        fit = written(float(costs["fit"][method]), 1) if method in costs.index else "–"
        body.append([_name(str(method)), *cells, fit])
    yield from _table(head, body)
    yield ""
    yield from _tests(found)
    yield ""


def _rank(standing: Standing, measure: str, method: str) -> str:
    if method not in standing.average.index:
        return "–"
    kind = MEASURES[measure]
    distance = written(float(standing.distance[method]), 2 if kind.relative else 3)
    return f"{written(float(standing.average[method]), 1)} ({distance})"


def _tests(found: dict[str, Standing]) -> Iterator[str]:
    parts = [
        f"{MEASURES[m].label}: p = {short(s.friedman, 2)}, {written(s.difference, 1)}"
        for m, s in found.items()
        if not math.isnan(s.friedman)
    ]
    if parts:
        yield "Friedman's test that all methods are alike, and the difference between average ranks"
        yield f"that Nemenyi's test needs at 5 %: {'; '.join(parts)}."


def _means(rows: pd.DataFrame, measure: str) -> Iterator[str]:
    kind = MEASURES[measure]
    table = judge.compare(rows, measure)
    if table.empty:
        return
    methods = [str(m) for m in table.mean().index]
    mean = table.groupby("table").mean()
    error = table.groupby("table").std() / table.groupby("table").count() ** 0.5
    yield f"Table by table, {kind.label}: mean over splits ± standard error, the best in bold."
    yield "Tables marked ° were not used to choose anything in the library."
    yield ""
    body = []
    for name in mean.index:
        best = mean.loc[name].max() if kind.more else mean.loc[name].min()
        digits = digits_of(float(best), kind)
        cells = []
        for method in methods:
            value, deviation = float(mean.loc[name, method]), float(error.loc[name, method])
            text = _with_error(value, deviation, digits)
            cells.append(f"**{text}**" if value == best else text)
        body.append([f"{name}{'' if name in DEVELOPMENT else ' °'}", *cells])
    yield from _table(["table", *map(label, methods)], body)
    yield ""


def digits_of(best: float, kind: Measure) -> int:
    """Digits after the point: three in all of small errors, else those of the measure."""
    if not kind.relative or best == 0 or kind.label.startswith("errors"):
        return kind.digits
    return max(kind.digits - 1, 2 - math.floor(math.log10(best)))


def _coverage(rows: pd.DataFrame) -> Iterator[str]:
    methods = [m for m in METHODS if m in set(rows.loc[rows["coverage"].notna(), "method"])]
    table = judge.coverage(rows, methods)
    table = table[[m for m in methods if m in table]].dropna(axis=1)
    if table.empty:
        return
    yield "Test targets inside 95 % intervals, percent:"
    yield ""
    body = [[str(name), *(written(x, 0) for x in table.loc[name])] for name in table.index]
    body.append(["**mean**", *(f"**{written(x, 1)}**" for x in table.mean())])
    body.append(["least", *(written(x, 0) for x in table.min())])
    yield from _table(["table", *map(label, table.columns)], body)
    yield ""


def _against(rows: pd.DataFrame, other: str, measures: Sequence[str]) -> Iterator[str]:
    """Our methods against another one, paired split by split."""
    for measure in measures[:2]:
        found = {m: judge.pairs(rows, measure, m, other) for m in OURS}
        found = {method: each for method, each in found.items() if each}
        if not found:
            continue
        kind = MEASURES[measure]
        yield f"Against {label(other)}, by {kind.label}, paired split by split: gain ± standard"
        yield "error (positive is better for us), splits won:"
        yield ""
        yield from _pair_table(found, other, kind)
        yield ""
        for method, each in found.items():
            yield f"{label(method).capitalize()}: {_count(each)}."
        yield ""


def _pair_table(found: dict[str, list[Pair]], other: str, kind: Measure) -> Iterator[str]:
    tables = sorted({pair.table for each in found.values() for pair in each})
    body = []
    for name in tables:
        mine = {m: next((p for p in each if p.table == name), None) for m, each in found.items()}
        known = next(pair for pair in mine.values() if pair is not None)
        digits = digits_of(known.other, kind)
        cells = ["–" if pair is None else _pair(pair, digits) for pair in mine.values()]
        body.append([name, written(known.other, digits), *cells])
    yield from _table(["table", label(other), *map(label, found)], body)


def _pair(pair: Pair, digits: int) -> str:
    text = f"{_with_error(pair.gain, pair.error, digits, '+')}, {pair.wins} of {pair.splits}"
    return f"**{text}**" if pair.verdict == "better" else text


def _count(found: Sequence[Pair]) -> str:
    better = sum(pair.verdict == "better" for pair in found)
    worse = [pair.table for pair in found if pair.verdict == "worse"]
    text = f"better by more than one standard error on {better} of {len(found)} tables"
    return f"{text}, worse on {len(worse)}" + (f" ({_listed(worse)})" if worse else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "--:|") -> list[str]:
    """The lines of a table; ``align`` is that of all columns but the first, by default right."""
    lines = [f"| {' | '.join(head)} |", "|---|" + align * (len(head) - 1)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _name(method: str) -> str:
    return f"**{label(method)}**" if method in OURS else label(method)


def _with_error(value: float, error: float, digits: int, form: str = "") -> str:
    """A number with its standard error, if it has one."""
    text = written(value, digits, form)
    return text if math.isnan(error) else f"{text} ± {written(error, digits)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names))
