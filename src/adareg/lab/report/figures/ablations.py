"""Fig. 6 and 7 (fig:mnistcombined, fig:mnist_diff_layer), and the rules of the authors' code."""

from __future__ import annotations

from functools import partial

import pandas as pd

from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Study
from adareg.lab.report import style
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import Drawing, Figure, notes, scales


def _accuracies(name: str, records: Records) -> Drawing | None:
    """Draw accuracy on the left and change on the right, for each batch size."""
    if name not in records.studies:
        return None
    study = records.studies[name]
    frame = study.frame()
    methods = style.ordered(set(frame["method"]) & set(study.experiment.methods))
    means = curves.means(frame, "test_accuracy", methods)
    changes = curves.changes(frame, "test_accuracy", methods)
    level = partial(curves.draw_means, measure="test_accuracy")
    gain = partial(curves.draw_changes, label="change, points of accuracy")
    panels = []
    for batch in sorted(set(means["batch"])):
        own = [table[table["batch"] == batch] for table in (means, changes)]
        title = f"batch size {batch}"
        panels += curves.panels((title, level, own[0]), (title, gain, own[1]))
    return Drawing(
        panels=panels,
        caption=f"Left: test accuracy on MNIST. {curves.BAND} Right: the same networks against no "
        f"regularizer. {curves.INTERVAL} {scales(study)}.",
        data=pd.concat([means, changes.rename(columns={"change": "mean"})]),
        tables=[
            curves.mean_table(means, "Test accuracy, %: mean ± standard error"),
            curves.change_table(changes, "Change in points of accuracy ± standard error"),
        ],
        legend=methods,
        notes=notes(study),
    )


def _rules(records: Records) -> Drawing | None:
    """Change in accuracy, test loss, stable rank and spectral norm."""
    if "mnist-rules" not in records.studies:
        return None
    study = records.studies["mnist-rules"]
    frame = study.frame()
    methods = style.ordered(set(frame["method"]) & set(study.experiment.methods))
    measures = ("test_accuracy", "test_loss", "stable_rank", "spectral_norm")
    tables = {m: curves.changes(frame, m, methods) for m in measures}
    draw = partial(curves.draw_changes, label="change")
    panels = curves.panels(
        *((f"change in {curves.CHANGES[m]}", draw, table) for m, table in tables.items())
    )
    return Drawing(
        panels=panels,
        caption="The three ways to update the covariances, and the authors' published code, which "
        f"has weight decay beside AdaReg; {_schedule(study)} (theirs: ten of 30). Zero is no "
        "regularizer. "
        f"{curves.INTERVAL} {scales(study)}.",
        data=pd.concat(tables.values()),
        tables=[
            curves.change_table(t, f"Change in {curves.CHANGES[m]} ± standard error", 3)
            for m, t in tables.items()
        ],
        legend=[m for m in methods if m != "none"],
        notes=notes(study),
    )


def _schedule(study: Study) -> str:
    config = study.records[0]["config"]
    return f"{config['blocks']} blocks of {config['epochs']} epochs"


COMBINATIONS = Figure(
    "combinations",
    "AdaReg together with batch norm and dropout",
    "Appendix, Fig. 6",
    ("mnist-combinations",),
    partial(_accuracies, "mnist-combinations"),
)
LAYERS = Figure(
    "layers",
    "AdaReg on the last layer, or on more",
    "Appendix, Fig. 7",
    ("mnist-layers",),
    partial(_accuracies, "mnist-layers"),
)
RULES = Figure(
    "rules", "The authors' code beside the paper", "not in the paper", ("mnist-rules",), _rules
)
