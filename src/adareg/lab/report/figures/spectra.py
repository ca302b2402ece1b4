"""Fig. 4 (fig:rank_norm): stable rank and spectral norm of the softmax layer."""

from __future__ import annotations

from functools import partial

import pandas as pd

from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import (
    Drawing,
    Figure,
    Panel,
    Studies,
    best,
    notes,
    scales,
)
from adareg.lab.report.studies import Study, command

METHODS = ("none", "weight-decay", "adareg")
_SOURCES = {
    "MNIST": ("mnist-spectra", "mnist-generalization"),
    "CIFAR-10": ("cifar-spectra", "cifar-generalization"),
}
_MEASURES = ("stable_rank", "spectral_norm")


def _table(study: Study) -> pd.DataFrame:
    """Both measures at the smallest batch size, which is the paper's."""
    frame = study.frame()
    frame = frame[frame["batch"] == frame["batch"].min()]
    return pd.concat([curves.means(frame, measure, METHODS) for measure in _MEASURES])


def draw(studies: Studies) -> Drawing | None:
    """Two panels for each data set."""
    panels, tables, found = [], [], []
    for title, names in _SOURCES.items():
        study = best(studies, *names)
        if study is not None:
            found.append(study)
            tables.append(_table(study))
        for measure in _MEASURES:
            heading = f"{title}: {curves.MEASURES[measure]}"
            if study is None:
                panels.append(Panel(heading, None, command(names[0])))
                continue
            rows = tables[-1][tables[-1]["measure"] == measure]
            panels += curves.panels((heading, partial(curves.draw_means, measure=measure), rows))
    if not found:
        return None
    data = pd.concat(tables)
    batches = " and ".join(str(batch) for batch in sorted(set(data["batch"])))
    return Drawing(
        panels=panels,
        caption="Spectral norm (the largest singular value) and stable rank (the sum of all "
        "squared singular values over the largest of the squares) of the last layer's weight, "
        f"batch size {batches}. {curves.BAND} {scales(*found)}.",
        data=data,
        tables=[
            curves.mean_table(data[data["measure"] == m], f"{curves.MEASURES[m]}".capitalize())
            for m in _MEASURES
        ],
        legend=METHODS,
        notes=notes(*found),
    )


FIGURE = Figure(
    "spectra",
    "Stable rank and spectral norm of the softmax layer",
    "Fig. 4",
    ("mnist-spectra", "cifar-spectra"),
    draw,
)
