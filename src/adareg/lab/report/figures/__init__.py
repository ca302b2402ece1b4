"""Every figure of the page, in its order. To add one, write a file like the others, list it."""

from __future__ import annotations

from adareg.lab.report.figures import (
    ablations,
    accuracy,
    correlations,
    covariances,
    embedded,
    optimization,
    sarcos,
    smalldata,
    spectra,
)
from adareg.lab.report.figures.base import Drawing, Figure, Panel, Table

__all__ = ["FIGURES", "SMALL_DATA", "Drawing", "Figure", "Panel", "Table"]

FIGURES: tuple[Figure, ...] = (
    accuracy.ACCURACY,
    accuracy.GAIN,
    optimization.FIGURE,
    spectra.FIGURE,
    correlations.FIGURE,
    sarcos.TASKS,
    sarcos.SPECTRA,
    ablations.COMBINATIONS,
    ablations.LAYERS,
    covariances.FIGURE,
    ablations.RULES,
    embedded.DIGITS,
    embedded.COMPLETION,
)

#: Those of the small-data benchmark, which has a section of its own.
SMALL_DATA: tuple[Figure, ...] = (smalldata.RANKS, smalldata.GAINS, smalldata.COSTS)
