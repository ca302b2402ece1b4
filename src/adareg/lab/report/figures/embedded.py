"""The studies that need no download: scikit-learn's digits, classified and completed."""

from __future__ import annotations

from functools import partial

import pandas as pd

from adareg.lab.experiments import COMPARED
from adareg.lab.judge.selection import Records
from adareg.lab.report import style
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import Drawing, Figure, notes, scales

_SPECTRA = ("stable_rank", "spectral_norm")
_SHOWN = ("none", "weight-decay", "adareg", "adareg-joint", "adareg-official")


def _draw(name: str, measure: str, what: str, records: Records) -> Drawing | None:
    """The measure itself, its changes by the paper's methods and by our others, the spectra."""
    if name not in records.studies:
        return None
    study = records.studies[name]
    frame = study.frame()
    methods = style.ordered(frame["method"])
    level = curves.means(frame, measure, methods)
    change = curves.changes(frame, measure, methods)
    main, others = (change[change["method"].isin(COMPARED) == own] for own in (True, False))
    unit = "points of accuracy" if measure == "test_accuracy" else "explained variance"
    shown = level[level["method"].isin(COMPARED)]
    gain = partial(curves.draw_changes, label=f"change, {unit}")
    spectra = [curves.means(frame, m, _SHOWN) for m in _SPECTRA]
    panels = curves.panels(
        (what, partial(curves.draw_means, measure=measure), shown),
        ("against no regularizer: the paper's methods", gain, main),
        ("against no regularizer: AdaReg's variants", gain, others),
        *(
            (curves.MEASURES[m], partial(curves.draw_means, measure=m), table)
            for m, table in zip(_SPECTRA, spectra, strict=True)
        ),
    )
    digits = 2 if measure == "test_accuracy" else 3
    changes = change.rename(columns={"change": "mean"})
    return Drawing(
        panels=panels,
        caption=f"{study.experiment.what}. {curves.BAND} In the panels against no regularizer: "
        f"{curves.INTERVAL[0].lower()}{curves.INTERVAL[1:]} {scales(study)}.",
        data=pd.concat([level, changes, *spectra]),
        tables=[
            curves.mean_table(level, f"{curves.MEASURES[measure]}: mean ± standard error", digits),
            curves.change_table(change, f"Change, {unit}: mean ± standard error", digits),
        ],
        legend=methods,
        notes=notes(study),
    )


DIGITS = Figure(
    "digits",
    "Small digits: accuracy of every method",
    "not in the paper; like Fig. 2, 4 and 6",
    ("digits",),
    partial(_draw, "digits", "test_accuracy", "test accuracy"),
)
COMPLETION = Figure(
    "digits-completion",
    "Small digits: half an image from the other half",
    "not in the paper; like Tables 1 and 2",
    ("digits-completion",),
    partial(_draw, "digits-completion", "test_explained_variance", "32 tasks together"),
)
