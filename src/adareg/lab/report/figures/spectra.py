"""Fig. 4 (fig:rank_norm): stable rank and spectral norm of the softmax layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from adareg.lab.judge.claims.spectra import BATCH, METHODS, experiments_of
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting, Study, command
from adareg.lab.report.figures import curves
from adareg.lab.report.figures.base import Drawing, Figure, Panel, notes, scales
from adareg.lab.run.records import frame

_TITLES = {"mnist": "MNIST", "cifar": "CIFAR-10"}
_MEASURES = ("stable_rank", "spectral_norm")


def _table(settings: Sequence[Setting]) -> pd.DataFrame:
    """Return both measures of the networks that the claims compare."""
    networks = [r for s in settings for method in METHODS for r in s.records(method)]
    if not networks:
        return pd.DataFrame()
    rows = frame(networks)
    return pd.concat([curves.means(rows, measure, METHODS) for measure in _MEASURES])


def draw(records: Records) -> Drawing | None:
    """Draw two panels for each data set."""
    panels: list[Panel] = []
    tables, found = [], list[Study]()
    for name, title in _TITLES.items():
        experiments = experiments_of(name)
        settings = records.settings(experiments, METHODS, batch=BATCH)
        headings = [f"{title}: {curves.MEASURES[measure]}" for measure in _MEASURES]
        if (table := _table(settings)).empty:
            panels += [Panel(heading, None, command(experiments[0])) for heading in headings]
            continue
        found += records.behind(settings)
        tables.append(table)
        for heading, measure in zip(headings, _MEASURES, strict=True):
            rows = table[table["measure"] == measure]
            panels += curves.panels((heading, partial(curves.draw_means, measure=measure), rows))
    if not found:
        return None
    data = pd.concat(tables)
    return Drawing(
        panels=panels,
        caption="Spectral norm (the largest singular value) and stable rank (the sum of all "
        "squared singular values over the largest of the squares) of the last layer's weight, "
        f"batch size {BATCH}: the networks that the verdicts compare. {curves.BAND} "
        f"{scales(*found)}.",
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
