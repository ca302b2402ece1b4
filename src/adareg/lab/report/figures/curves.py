"""Curves over the training size: means with their spread, and changes against no regularizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from adareg.lab.judge.statistics import interval, standard_error
from adareg.lab.report import style
from adareg.lab.report.figures.base import Entry, Panel, Table, number, spread

Numbers = npt.NDArray[np.floating[Any]]
KEYS = ["data", "batch", "n", "method"]
MEASURES = {
    "test_accuracy": "test accuracy, %",
    "test_loss": "test cross-entropy",
    "test_explained_variance": "explained variance",
    "stable_rank": "stable rank",
    "spectral_norm": "spectral norm",
    "quality": "points",
    "test_nll": "negative log-likelihood",
    "test_calibration": "calibration error",
}
#: What a difference of each is called.
CHANGES = {**MEASURES, "test_accuracy": "test accuracy, points"}
#: Accuracies are recorded as fractions and shown in percent.
UNITS = {"test_accuracy": 100.0}
BAND = "Lines are means over seeds, bands one standard error to either side."
INTERVAL = (
    "Points are means over seeds of the difference to the same network without a regularizer "
    "(same initial weights, samples and batches); bars are the 95 % intervals of the verdicts: a "
    "bootstrap over seeds, or Student's with four seeds or fewer."
)


def panels(*parts: tuple[str, Callable[..., None], pd.DataFrame]) -> list[Panel]:
    """A panel for each title, way of drawing and table that has rows."""
    return [Panel(title, partial(draw, table=table)) for title, draw, table in parts if len(table)]


def means(frame: pd.DataFrame, measure: str, methods: Sequence[str]) -> pd.DataFrame:
    """Mean, standard error and number of seeds of each cell and method."""
    rows = frame[frame["method"].isin(methods)].dropna(subset=[measure])
    values = rows.assign(value=rows[measure].astype(float) * UNITS.get(measure, 1.0))
    table = values.groupby(KEYS)["value"].agg(["mean", "sem", "count"]).reset_index()
    table.columns = pd.Index([*KEYS, "mean", "standard_error", "seeds"])
    return _in_order(table).assign(measure=measure)


def changes(frame: pd.DataFrame, measure: str, methods: Sequence[str]) -> pd.DataFrame:
    """Return the paired change against "none": mean, standard error, 95 % interval, pairs.

    The interval is that of the verdicts.
    """
    rows = frame.dropna(subset=[measure])
    values = rows.assign(value=rows[measure].astype(float) * UNITS.get(measure, 1.0))
    cells = [*KEYS[:3], "seed"]
    base = values[values["method"] == "none"][[*cells, "value"]]
    pairs = values[values["method"].isin(methods)].merge(base, on=cells, suffixes=("", "_none"))
    pairs = pairs[pairs["method"] != "none"]
    pairs = pairs.assign(change=pairs["value"] - pairs["value_none"]).sort_values("seed")
    found = [_change(cell, own.to_list()) for cell, own in pairs.groupby(KEYS)["change"]]
    columns = [*KEYS, "change", "standard_error", "seeds", "low", "high"]
    return _in_order(pd.DataFrame(found, columns=columns)).assign(measure=f"change in {measure}")


def _change(cell: Any, differences: list[float]) -> tuple[Any, ...]:
    mean, low, high = interval(differences)
    return (*cell, mean, standard_error(differences), len(differences), low, high)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Cells by size, methods as in the legend."""
    order = {name: i for i, name in enumerate(style.ordered(table["method"]))}
    place = table["method"].map(order)
    return table.assign(place=place).sort_values([*KEYS[:3], "place"]).drop(columns="place")


def draw_means(axes: Axes, table: pd.DataFrame, measure: str) -> None:
    """Lines with bands; bars where there is a single size."""
    single = table["n"].nunique() == 1
    methods = style.ordered(table["method"])
    for i, method in enumerate(methods):
        rows = table[table["method"] == method].sort_values("n")
        colour = style.look(method).colour
        mean, error = rows["mean"].to_numpy(), rows["standard_error"].fillna(0).to_numpy()
        x = _apart(rows["n"], i - (len(methods) - 1) / 2) if single else rows["n"].to_numpy(float)
        _line(axes, method, x, mean)
        if single:
            axes.errorbar(x, mean, error, fmt="none", ecolor=colour, elinewidth=1)
        else:
            axes.fill_between(x, mean - error, mean + error, color=colour, alpha=0.18, lw=0)
    sizes(axes, table["n"])
    axes.set_ylabel(MEASURES[measure])


def draw_changes(axes: Axes, table: pd.DataFrame, label: str) -> None:
    """Points with intervals, moved apart a little; zero is no regularizer."""
    axes.axhline(0, color=style.INK, linewidth=0.9)
    methods = style.ordered(table["method"])
    for i, method in enumerate(methods):
        rows = table[table["method"] == method].sort_values("n")
        x = _apart(rows["n"], i - (len(methods) - 1) / 2, table["n"])
        mean = rows["change"].to_numpy()
        bars = np.nan_to_num([mean - rows["low"], rows["high"] - mean])
        colour = style.look(method).colour
        _line(axes, method, x, mean)
        axes.errorbar(x, mean, bars, fmt="none", ecolor=colour, elinewidth=1, alpha=0.7)
    sizes(axes, table["n"])
    axes.set_ylabel(label)


def _apart(n: pd.Series[int], place: float, among: pd.Series[int] | None = None) -> Numbers:
    """Training sizes moved a little, so that the bars of one method do not hide another's."""
    known = np.unique(n if among is None else among)
    if is_log(n if among is None else among):
        return n.to_numpy(float) * (1 + (0.05 if len(known) > 1 else 0.1) * place)
    return n.to_numpy(float) + 0.035 * place * float(np.diff(known).min())


def _line(axes: Axes, method: str, x: Numbers, y: Numbers) -> None:
    look = style.look(method)
    axes.plot(
        x, y, marker=look.marker, linestyle=look.dashes, color=look.colour, linewidth=look.width
    )


def is_log(n: pd.Series[int]) -> bool:
    """Sizes that double want a log axis; those in equal steps do not."""
    known = np.unique(n)
    return bool(len(known) < 2 or known[-1] / known[-2] > 1.4)


def sizes(axes: Axes, n: pd.Series[int]) -> None:
    """An x axis with the training sizes that there are."""
    known = np.unique(n)
    if len(known) == 1:
        axes.set_xlim(0.5 * known[0], 1.5 * known[0])
        few = known
    elif is_log(n):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        few = known if len(known) < 7 else known[:: -(-len(known) // 6)]
        if known[-1] > few[-1]:  # the largest one is always named, and has room
            few = np.append(few[few < known[-1] / 2], known[-1])
    else:
        few = known[1::2] if len(known) > 6 else known
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in few]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.set_xlabel("training samples" + (" (log)" if len(known) > 1 and is_log(n) else ""))


def short(n: float) -> str:
    """A training size in few letters."""
    return f"{n / 1000:.3g}k" if n >= 10_000 else f"{n:,.0f}"


def mean_table(table: pd.DataFrame, caption: str, digits: int = 2) -> Table:
    """Rows are cells, columns methods, mean ± standard error."""
    return _pivot(table, caption, "mean", digits, sign=False)


def change_table(table: pd.DataFrame, caption: str, digits: int = 2) -> Table:
    """Rows are cells, columns methods, change ± standard error."""
    return _pivot(table, caption, "change", digits, sign=True)


def _pivot(table: pd.DataFrame, caption: str, column: str, digits: int, sign: bool) -> Table:
    methods = style.ordered(table["method"])
    found = {(r["data"], r["batch"], r["n"], r["method"]): r for r in table.to_dict("records")}
    rows = []
    for data, batch, n in dict.fromkeys(key[:3] for key in found):
        numbers = [
            spread(row[column], row["standard_error"], digits, sign)
            if (row := found.get((data, batch, n, method)))
            else number(math.nan)
            for method in methods
        ]
        rows.append([Entry(data, data), Entry(str(batch), batch), number(n, 0), *numbers])
    head = ["data", "batch", "n", *map(style.label, methods)]
    return Table(head, rows, caption)
