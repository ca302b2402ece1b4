"""Fig. 3 (fig:mnist_opt): training and test loss, epoch by epoch, on a log axis."""

from __future__ import annotations

from functools import partial
from itertools import product

import pandas as pd
from matplotlib.axes import Axes

from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Study
from adareg.lab.report import style
from adareg.lab.report.figures.base import (
    Drawing,
    Entry,
    Figure,
    Panel,
    Table,
    notes,
    number,
    scales,
    spread,
)

NAME = "mnist-optimization"
_LINES: dict[str, style.Dashes] = {"train_loss": "--", "test_loss": "-"}


def _trajectories(study: Study) -> pd.DataFrame:
    """Mean and standard error over seeds, for each cell, method, curve and epoch."""
    rows = []
    for record in (r for r in study.records if not r["metrics"]["diverged"]):
        config, every = record["config"], record["config"]["evaluate_every"]
        for curve in _LINES:
            for i, value in enumerate(record["curves"].get(curve, []), 1):
                cell = (config["n"], config["batch"], config["epochs"])
                rows.append((*cell, record["method"], curve, i * every, value))
    names = ["n", "batch", "block", "method", "curve", "epoch"]
    frame = pd.DataFrame(rows, columns=[*names, "value"]).dropna()
    table = frame.groupby(names)["value"].agg(["mean", "sem", "count"]).reset_index()
    table.columns = pd.Index([*names, "mean", "standard_error", "seeds"])
    return table


def _draw(axes: Axes, table: pd.DataFrame) -> None:
    block, last = int(table["block"].iloc[0]), int(table["epoch"].max())
    for update in range(block, last, block):
        axes.axvline(update, color=style.INK, linewidth=0.7, linestyle=":", alpha=0.6)
    found = dict(iter(table.groupby(["method", "curve"])))
    for method, curve in product(style.ordered(table["method"]), _LINES):
        rows, colour = found[method, curve], style.look(method).colour
        epoch, mean = rows["epoch"].to_numpy(), rows["mean"].to_numpy()
        error = rows["standard_error"].fillna(0).to_numpy()
        axes.plot(epoch, mean, linestyle=_LINES[curve], color=colour, linewidth=1.3)
        low = (mean - error).clip(min=mean / 3)
        axes.fill_between(epoch, low, mean + error, color=colour, alpha=0.2, lw=0)
    axes.set_yscale("log")
    axes.set(xlabel="epoch", ylabel="cross-entropy (log)")


def _ends(table: pd.DataFrame) -> Table:
    last = table[table["epoch"] == table.groupby(["n", "batch"])["epoch"].transform("max")]
    rows = [
        [
            number(row["n"], 0),
            Entry(str(row["batch"]), row["batch"]),
            Entry(style.label(row["method"]), row["method"]),
            Entry(row["curve"].replace("_", " "), row["curve"]),
            spread(row["mean"], row["standard_error"], 4),
            number(row["seeds"], 0),
        ]
        for row in last.to_dict("records")
    ]
    head = ["n", "batch", "method", "curve", "cross-entropy", "seeds"]
    return Table(head, rows, "Cross-entropy after the last epoch: mean ± standard error")


def draw(records: Records) -> Drawing | None:
    """A panel for each training size and batch size."""
    study = records.studies.get(NAME)
    table = pd.DataFrame() if study is None else _trajectories(study)
    if study is None or table.empty:
        return None
    panels = [
        Panel(f"n = {n:,}, batch size {batch}", partial(_draw, table=rows))
        for (batch, n), rows in table.groupby(["batch", "n"])
    ]
    return Drawing(
        panels=panels,
        caption="Cross-entropy on the training samples (dashed) and on the test samples (solid) "
        "after each epoch, log axis. Lines are means over seeds, bands one standard error. "
        f"AdaReg updates its covariances at the dotted lines. {scales(study)}.",
        data=table,
        tables=[_ends(table)],
        legend=style.ordered(table["method"]),
        lines=[("test", "-"), ("training", "--")],
        notes=notes(study),
    )


FIGURE = Figure("optimization", "Loss on the way", "Fig. 3", (NAME,), draw)
