"""Fig. 2 (fig:multiclass): test accuracy as the training set grows, and what each method gains."""

from __future__ import annotations

from functools import partial

import pandas as pd

from adareg.lab.experiments import COMPARED
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import command
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import (
    Drawing,
    Figure,
    Panel,
    notes,
    scales,
)

NAMES = ("mnist-generalization", "cifar-generalization")
_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_DATA = dict(zip(NAMES, _TITLES, strict=True))


def _frame(records: Records) -> pd.DataFrame:
    return pd.concat([records.studies[name].frame() for name in NAMES if name in records.studies])


def _panels(records: Records, table: pd.DataFrame, draw: partial[None]) -> list[Panel]:
    """(a) to (d): both data sets at the paper's batch sizes, and what else there is."""
    panels = []
    batches = sorted({256, 2048} | set(table["batch"]))
    for name, data in _DATA.items():
        for batch in batches:
            rows = table[(table["data"] == data) & (table["batch"] == batch)]
            title = f"{_TITLES[data]}, batch size {batch}"
            if len(rows):
                panels.append(Panel(title, partial(draw, table=rows)))
            elif batch in (256, 2048):
                panels.append(Panel(title, None, command(name)))
    return panels


def draw_accuracy(records: Records) -> Drawing | None:
    """Accuracy itself."""
    found = [records.studies[name] for name in NAMES if name in records.studies]
    if not found:
        return None
    table = curves.means(_frame(records), "test_accuracy", COMPARED)
    return Drawing(
        panels=_panels(records, table, partial(curves.draw_means, measure="test_accuracy")),
        caption=f"Test accuracy against the number of training samples. {curves.BAND} "
        f"The paper's bands are standard deviations. {scales(*found)}.",
        data=table,
        tables=[curves.mean_table(table, "Test accuracy, %: mean ± standard error")],
        legend=COMPARED,
        notes=notes(*found),
    )


def draw_gain(records: Records) -> Drawing | None:
    """Accuracy less that of the same network without a regularizer."""
    found = [records.studies[name] for name in NAMES if name in records.studies]
    if not found:
        return None
    table = curves.changes(_frame(records), "test_accuracy", COMPARED)
    if table.empty:
        return None
    draw = partial(curves.draw_changes, label="change, points of accuracy")
    return Drawing(
        panels=_panels(records, table, draw),
        caption="The same networks: what each method changes in test accuracy. Zero is no "
        f"regularizer. {curves.INTERVAL} {scales(*found)}.",
        data=table,
        tables=[curves.change_table(table, "Change in points of accuracy ± standard error")],
        legend=COMPARED[1:],
        notes=notes(*found),
    )


ACCURACY = Figure(
    "accuracy", "Test accuracy as the training set grows", "Fig. 2", NAMES, draw_accuracy
)
GAIN = Figure(
    "gain", "What each method gains over no regularizer", "beside Fig. 2", NAMES, draw_gain
)
