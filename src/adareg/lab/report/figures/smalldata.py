"""The small-data benchmark: average ranks, what each method gains, what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from adareg.lab.experiments.smalldata import DEVELOPMENT
from adareg.lab.judge import rank_tests
from adareg.lab.judge.claims.smalldata import EXPERIMENTS as NAMES
from adareg.lab.judge.claims.smalldata import quality
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Study
from adareg.lab.report import style
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import (
    Drawing,
    Entry,
    Figure,
    Panel,
    Table,
    number,
    scales,
)
from adareg.lab.rounding import SAFE, short, significant, written
from adareg.lab.run.records import frame as frame_of

CELL = ["data", "n"]

#: What is ranked: the column, its name, and whether more of it is better.
MEASURES = {
    "quality": ("accuracy or explained variance", True),
    "test_nll": ("negative log-likelihood", False),
    "test_calibration": ("calibration error", False),
}


def studied(records: Records) -> list[Study]:
    """Return what of the benchmark is judged."""
    return records.together(*NAMES)


def frame(found: Iterable[Study]) -> pd.DataFrame:
    """Return one row for each network, with its quality in points and what its trainings cost.

    One that diverged has no points, as in the verdicts, and no other scores.
    """
    networks = [record for each in found for record in each.records]
    rows = frame_of(networks)
    scores = {name: rows[name].where(~rows["diverged"]) for name in list(MEASURES)[1:]}
    one = rows["alone_seconds"].astype(float) / rows["plain_seconds"].astype(float)
    cost = one * rows["trainings"].astype(float)
    return rows.assign(quality=[quality(r) for r in networks], one=one, cost=cost, **scores)


def _notes(found: Iterable[Study]) -> tuple[str, ...]:
    texts = (note for each in found for note in each.notes("count as zero points"))
    return tuple(dict.fromkeys(texts))


def means(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Means over seeds: a row for each cell in which all methods are, a column for each method."""
    table = rows.pivot_table(index=CELL, columns="method", values=measure, dropna=False)
    return table[style.ordered(table.columns)].dropna(how="all")


def average_ranks(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Average ranks in each data set, one row each: its training sizes count as one setting."""
    table = means(rows, measure)
    sign = 1 if MEASURES[measure][1] else -1
    found = pd.DataFrame(rank_tests.ranks(sign * table), index=table.index, columns=table.columns)
    return found.groupby("data").mean()


def overall_ranks(rows: pd.DataFrame, measure: str) -> dict[str, float]:
    """Return the mean over data sets of each method's average rank; equals are equal."""
    each = average_ranks(rows, measure)
    return {str(method): significant(rank, SAFE) for method, rank in each.mean().items()}


def draw_ranks(axes: Axes, average: Mapping[str, float], difference: float) -> None:
    """A critical-difference diagram: bars join methods that cannot be told apart."""
    names = sorted(average, key=lambda name: average[name])
    k, bars = len(names), rank_tests.groups(average, difference)
    axes.set(xlim=(-0.2 * k, 1.2 * k + 1), ylim=(-1.2 - 0.35 * len(bars) - (k + 1) // 2, 1.6))
    axes.set_axis_off()
    axes.plot([1, k], [0, 0], color=style.INK, linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.25], color=style.INK, linewidth=0.8)
        axes.text(rank, 0.35, str(rank), ha="center", va="bottom")
    for i, group in enumerate(bars):
        y = -0.35 * (i + 1)
        ends = average[group[0]] - 0.05, average[group[-1]] + 0.05
        axes.plot(ends, [y, y], color=style.INK, linewidth=3)
    for i, name in enumerate(names):
        left = i < (k + 1) // 2
        y = -0.8 - 0.35 * len(bars) - (i if left else k - 1 - i)
        _label(axes, name, average[name], y, -0.1 * k if left else 1 + 1.1 * k, left)
    axes.plot([1, min(1 + difference, k)], [1.25, 1.25], color=style.INK, linewidth=1.5)
    axes.text(1, 1.35, f"critical difference {written(difference, 2)}", ha="left", va="bottom")


def _label(axes: Axes, name: str, rank: float, y: float, edge: float, left: bool) -> None:
    look = style.look(name)
    axes.plot([rank, rank, edge], [0, y, y], color=look.colour, linewidth=1)
    axes.plot([rank], [0], marker=look.marker, color=look.colour, linestyle="none")
    text = f"{_name(name)} {written(rank, 1)}"
    axes.text(edge, y + 0.08, text, ha="left" if left else "right", va="bottom")


def _name(method: str) -> str:
    return style.label(method).split(" (")[0]


def draw_diagrams(records: Records) -> Drawing | None:
    """Average ranks by quality, likelihood and calibration."""
    found = studied(records)
    if not found:
        return None
    rows = frame(found)
    panels, tables, data = [], [], []
    for measure, (name, _) in MEASURES.items():
        each = average_ranks(rows, measure)
        if each.shape[1] < 2:
            return None
        difference = rank_tests.critical_difference(each.shape[1], len(each))
        average = overall_ranks(rows, measure)
        draw = partial(draw_ranks, average=average, difference=difference)
        panels.append(Panel(name, draw))
        tables.append(_rank_table(each, rows, measure))
        data.append(each.reset_index().melt("data", value_name="rank").assign(measure=measure))
    return Drawing(
        panels=panels,
        caption="Average ranks, 1 the best: methods are ranked in each cell by their mean over "
        "seeds, ranks are averaged over the training sizes of a data set, then over data sets. "
        "A bar joins methods that Nemenyi's test cannot tell apart at 5 %; its samples are data "
        "sets. Accuracy counts in classification, explained variance in "
        "regression. The constants of the evidence rule were chosen while looking at "
        f"{', '.join(DEVELOPMENT)}: it has an advantage there. {scales(*found)}.",
        data=pd.concat(data),
        tables=tables,
        legend=style.ordered(rows["method"]),
        notes=_notes(found),
        columns=1,
        size=(7.2, 3.4),
        open=True,
    )


def _rank_table(each: pd.DataFrame, rows: pd.DataFrame, measure: str) -> Table:
    """Average ranks by data set, and how sure it is that evidence differs, over all cells."""
    name, more = MEASURES[measure]
    table = means(rows, measure)
    lines = [
        [Entry(str(data), str(data)), *(number(rank, 1) for rank in line)]
        for data, line in zip(each.index, each.to_numpy(), strict=True)
    ]
    lines.append([Entry("all", "~"), *(number(rank, 2) for rank in each.mean())])
    if "evidence" in table and len(table) > 1:
        scores = {str(m): (table[m] * (1 if more else -1)).to_list() for m in table}
        p = {**rank_tests.wilcoxon_holm(scores, "evidence"), "evidence": np.nan}
        lines.append([Entry("p against evidence", "~~"), *(_probability(p[m]) for m in scores)])
    caption = (
        f"Average ranks by {name}{_friedman(each)}. The last row: Wilcoxon's signed-rank test "
        "over all cells against evidence, with Holm's correction"
    )
    return Table(["data", *map(_name, each.columns)], lines, caption)


def _probability(p: float) -> Entry:
    return Entry("< 0.001", significant(p)) if p < 0.001 else number(p, 3)


def _friedman(each: pd.DataFrame) -> str:
    if min(each.shape) < 3:
        return ""
    p = rank_tests.friedman(-each)
    return f" (all methods alike: p = {short(p, 2)}, Friedman's test over data sets)"


def draw_gains(records: Records) -> Drawing | None:
    """Quality against no regularizer, a panel for each data set; a table of each, too."""
    found = studied(records)
    if not found:
        return None
    rows = frame(found)
    methods = style.ordered(rows["method"])
    table = curves.changes(rows, "quality", methods)
    if table.empty:
        return None
    levels = {m: curves.means(rows, m, methods) for m in MEASURES}
    return Drawing(
        panels=[
            Panel(str(data), partial(curves.draw_changes, table=part, label="change, points"))
            for data, part in table.groupby("data", sort=False)
        ],
        caption="Points of accuracy, or of explained variance, that each method gains over the "
        f"same network without a regularizer. {curves.INTERVAL} {scales(*found)}.",
        data=pd.concat([*levels.values(), table.rename(columns={"change": "mean"})]),
        tables=_tables(levels),
        legend=[method for method in methods if method != "none"],
        notes=_notes(found),
    )


def _tables(levels: Mapping[str, pd.DataFrame]) -> list[Table]:
    """Return tables of quality, likelihood and calibration for each data set."""
    digits = {"quality": 1, "test_nll": 3, "test_calibration": 3}
    return [
        curves.mean_table(
            part, f"{data}, {MEASURES[measure][0]}: mean ± standard error", digits[measure]
        )
        for data in dict.fromkeys(levels["quality"]["data"])
        for measure, table in levels.items()
        if len(part := table[table["data"] == data])
    ]


def draw_costs(records: Records) -> Drawing | None:
    """Average rank against the cost of all trainings, relative to one plain training."""
    found = studied(records)
    if not found:
        return None
    rows = frame(found)
    table = costs(rows)
    if table.empty:
        return None
    return Drawing(
        panels=[Panel("quality and cost", partial(_scatter, table=table))],
        caption="Cost of a method: the time of one training, relative to a plain one timed beside "
        "it, times the number of trainings, trials included; geometric mean over cells, "
        f"timed on {', '.join(sorted(set(rows['timed_on'].dropna())))}. Samples are those that all "
        f"trainings see, relative to those of one plain training. {scales(*found)}.",
        data=table,
        tables=[_cost_table(table)],
        notes=_notes(found),
        columns=1,
        size=(7.2, 3.4),
        open=True,
    )


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's samples, rank, and cost of one training and of all; a plain one is 1."""
    columns = ["one", "cost", "trainings", "samples"]
    cell = rows.groupby([*CELL, "method"])[columns].mean().reset_index()
    plain = cell[cell["method"] == "none"].drop(columns="method")
    both = cell.merge(plain, on=CELL, suffixes=("", "_plain"))
    if both.empty:
        return both
    both["samples"] = both["samples"].astype(float) / both["samples_plain"].astype(float)
    logs = both.assign(**{name: np.log(both[name]) for name in ("one", "cost", "samples")})
    table = logs.groupby("method")[columns].mean().reset_index()
    table = table.assign(**{name: np.exp(table[name]) for name in ("one", "cost", "samples")})
    rank = overall_ranks(rows, "quality")
    table = table.assign(rank=table["method"].map(rank))
    order = {name: i for i, name in enumerate(style.ordered(table["method"]))}
    return table.sort_values("method", key=lambda column: column.map(order))


def _scatter(axes: Axes, table: pd.DataFrame) -> None:
    for row in table.to_dict("records"):
        look = style.look(str(row["method"]))
        axes.plot(
            [row["cost"]], [row["rank"]], marker=look.marker, color=look.colour, linestyle="none",
            markersize=8,
        )  # fmt: skip
        near = (table["rank"] - row["rank"]).abs() < 0.4
        ratio = table["cost"] / row["cost"]
        left = bool((near & (ratio > 1.3) & (ratio < 4)).any())  # another marker is in the way
        axes.annotate(
            _name(str(row["method"])), (row["cost"], row["rank"]), (-6 if left else 6, 4),
            textcoords="offset points", fontsize=8, ha="right" if left else "left",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.25)
    axes.invert_yaxis()
    axes.set(xlabel="cost of all trainings, plain training = 1 (log)", ylabel="average rank")


def _cost_table(table: pd.DataFrame) -> Table:
    rows: list[Sequence[Entry]] = [
        [
            Entry(_name(str(row["method"])), str(row["method"])),
            number(row["trainings"], 0),
            number(row["one"], 2),
            number(row["cost"], 1),
            number(row["samples"], 1),
            number(row["rank"], 2),
        ]
        for row in table.to_dict("records")
    ]
    head = ["method", "trainings", "one training", "all of them", "samples", "average rank"]
    return Table(head, rows, "Cost relative to one plain training")


RANKS = Figure("smalldata-ranks", "Average ranks", "not in the paper", NAMES, draw_diagrams)
GAINS = Figure("smalldata-gains", "What each method gains", "not in the paper", NAMES, draw_gains)
COSTS = Figure("smalldata-costs", "Quality and cost", "not in the paper", NAMES, draw_costs)
