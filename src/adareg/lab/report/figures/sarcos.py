"""Tables 1 and 2 (tab:sarcos, tab:srank) and the last figure (fig:sarcos), beside the paper's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from adareg.lab.experiments import COMPARED
from adareg.lab.judge import published
from adareg.lab.judge.claims.sarcos import OTHERS, largest
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Study
from adareg.lab.report import style
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import (
    Drawing,
    Entry,
    Figure,
    Table,
    notes,
    number,
    scales,
    spread,
)

NAME = "sarcos"


def _tasks(study: Study) -> pd.DataFrame:
    """Explained variance of each task: mean and standard error over seeds, for every size."""
    rows = [
        (r["config"]["n"], r["method"], task, value)
        for r in study.records
        if not r["metrics"]["diverged"]
        for task, value in zip(r["names"], r["metrics"]["test_explained_variances"], strict=True)
    ]
    keys = ["n", "method", "task"]
    frame = pd.DataFrame(rows, columns=[*keys, "value"]).dropna()
    table = frame.groupby(keys)["value"].agg(["mean", "sem", "count"]).reset_index()
    table.columns = pd.Index([*keys, "mean", "standard_error", "seeds"])
    said = {
        (method, f"joint {i}"): value
        for method, values in published.EXPLAINED_VARIANCE.items()
        for i, value in enumerate(values, 1)
    }
    pairs = zip(table["method"], table["task"], strict=True)
    return table.assign(paper=[said.get(pair, np.nan) for pair in pairs])


def _bars(axes: Axes, table: pd.DataFrame, column: str) -> None:
    tasks = sorted(set(table["task"]))
    methods = style.ordered(table["method"])
    for i, method in enumerate(methods):
        rows = table[table["method"] == method].set_index("task").reindex(tasks)
        x = np.arange(len(tasks)) + (i - (len(methods) - 1) / 2) * 0.8 / len(methods)
        error = rows["standard_error"].fillna(0) if column == "mean" else None
        axes.bar(
            x, rows[column], 0.8 / len(methods), yerr=error, color=style.look(method).colour,
            edgecolor="none", error_kw={"ecolor": "#808080", "elinewidth": 0.9},
        )  # fmt: skip
    axes.set_xticks(range(len(tasks)), [task.removeprefix("joint ") for task in tasks])
    axes.grid(False, axis="x")
    low = min(0.0, float(table[column].min()))
    axes.set(xlabel="joint", ylabel="explained variance", ylim=(max(1.1 * low, -1), 1))


def _table(table: pd.DataFrame, n: int) -> Table:
    tasks = sorted(set(table["task"]))
    rows = []
    for method in style.ordered(table["method"]):
        found = {r["task"]: r for r in table[table["method"] == method].to_dict("records")}
        name = Entry(style.label(method), method)
        ours = [
            spread(found[task]["mean"], found[task]["standard_error"], 3)
            if task in found
            else number(np.nan)
            for task in tasks
        ]
        said = [number(v, 4) for v in published.EXPLAINED_VARIANCE.get(method, (np.nan,) * 7)]
        rows += [[name, Entry("ours", "ours"), *ours], [name, Entry("paper", "paper"), *said]]
    caption = f"Table 1: explained variance, n = {n:,}: mean ± standard error; the paper's below"
    return Table(["method", "whose", *tasks], rows, caption)


def draw_tasks(records: Records) -> Drawing | None:
    """Bars at the largest size, the paper's bars, and the mean over tasks at every size."""
    study = records.studies.get(NAME)
    table = pd.DataFrame() if study is None else _tasks(study)
    if study is None or table.empty:
        return None
    setting = largest(records, ("adareg", *OTHERS))
    n = int(table["n"].max()) if setting is None else setting.n
    tasks = table[table["n"] == n]
    sizes = curves.means(study.frame(), "test_explained_variance", COMPARED)
    panels = curves.panels(
        (f"ours, n = {n:,}", partial(_bars, column="mean"), tasks),
        ("the paper's", partial(_bars, column="paper"), tasks.dropna(subset="paper")),
        (
            "ours: all tasks together",
            partial(curves.draw_means, measure="test_explained_variance"),
            sizes,
        ),
    )
    return Drawing(
        panels=panels,
        caption="Explained variance of the seven torques of a robot arm, one minus mean squared "
        "error over variance. Bars and lines are means over seeds, error bars and bands one "
        f"standard error. {scales(study)}. We split the rows into stretches of consecutive "
        "rows; the paper's test rows are among its training rows. The paper does not say how it "
        "scaled inputs and outputs; we standardise them, so levels do not compare.",
        data=table,
        tables=[_table(tasks, n)],
        legend=COMPARED,
        notes=notes(study),
        open=True,
    )


def draw_spectra(records: Records) -> Drawing | None:
    """Stable rank and spectral norm at every size; the paper's numbers in the table."""
    study = records.studies.get(NAME)
    if study is None:
        return None
    frame = study.frame()
    tables = [
        curves.means(frame, m, list(published.SPECTRA)) for m in ("stable_rank", "spectral_norm")
    ]
    panels = curves.panels(
        *(
            (curves.MEASURES[m], partial(curves.draw_means, measure=m), table)
            for m, table in zip(("stable_rank", "spectral_norm"), tables, strict=True)
        )
    )
    return Drawing(
        panels=panels,
        caption="Stable rank and spectral norm of the last layer's weight (7 x 100). "
        f"{curves.BAND} {scales(study)}.",
        data=pd.concat(tables),
        tables=[_spectra_table(*tables)],
        legend=list(published.SPECTRA),
        notes=notes(study),
        open=True,
    )


def _spectra_table(rank: pd.DataFrame, norm: pd.DataFrame) -> Table:
    rows = [
        [
            Entry("ours", "ours"),
            number(a["n"], 0),
            Entry(style.label(a["method"]), a["method"]),
            spread(a["mean"], a["standard_error"]),
            spread(b["mean"], b["standard_error"]),
            number(a["seeds"], 0),
        ]
        for a, b in zip(rank.to_dict("records"), norm.to_dict("records"), strict=True)
    ]
    for method, (said_rank, said_norm) in published.SPECTRA.items():
        who = [Entry("paper", "paper"), number(44_484, 0), Entry(style.label(method), method)]
        rows.append([*who, number(said_rank), number(said_norm), number(np.nan)])
    head = ["whose", "n", "method", "stable rank", "spectral norm", "seeds"]
    return Table(head, rows, "Table 2: mean ± standard error, and the paper's numbers")


TASKS = Figure("sarcos", "SARCOS: seven tasks", "Table 1 and the last figure", (NAME,), draw_tasks)
SPECTRA = Figure(
    "sarcos-spectra", "SARCOS: stable rank and spectral norm", "Table 2", (NAME,), draw_spectra
)
