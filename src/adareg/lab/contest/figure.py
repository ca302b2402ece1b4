"""The contest's picture: average ranks of all methods, a panel for each measure."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adareg.lab.contest import judge
from adareg.lab.contest.judge import Standing
from adareg.lab.contest.page import label
from adareg.lab.contest.suites import DEVELOPMENT, MEASURES, SUITES
from adareg.lab.judge.statistics import interval
from adareg.lab.rounding import written

OURS_COLOUR, OTHER_COLOUR = "#D55E00", "#0072B2"
STYLE: dict[Any, Any] = {
    "axes.facecolor": "white",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "#fafafa",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "savefig.facecolor": "#fafafa",
    "svg.fonttype": "none",
    "svg.hashsalt": "adareg",
}


def draw(rows: pd.DataFrame) -> str:
    """The picture as SVG.

    A row of panels for what is predicted, one for how sure it is; a column for each suite.

    Args:
        rows: of ``Results.frame``.

    Raises:
        ValueError: there is nothing to draw.
    """
    every = judge.with_published(rows)
    panels = {}
    for column, name in enumerate(judge.suites_of(rows)):
        mine = every[every["suite"] == name]
        for row, measure in enumerate(SUITES[name].measures[:2]):
            found = judge.standing(mine, measure)
            if found is not None:
                panels[row, column] = f"{name}: {MEASURES[measure].label}", found
    if not panels:
        raise ValueError("no two methods were tried on the same tables: nothing to draw")
    return _svg(panels)


def _svg(panels: dict[tuple[int, int], tuple[str, Standing]]) -> str:
    height, width = (max(place[i] for place in panels) + 1 for i in (0, 1))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * width, 2.7 * height))
        grid = figure.subplots(height, width, squeeze=False)
        for row in range(height):
            for column in range(width):
                if (row, column) in panels:
                    title, found = panels[row, column]
                    panel(grid[row, column], found, "black")
                    grid[row, column].set_title(title)
                else:
                    _explain(grid[row, column])
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


#: Bars are intervals over at least so many tables; those of fewer are as wide as the axis.
LEAST = 5


def panel(axes: Axes, found: Standing, ink: str) -> None:
    """Average ranks with intervals over tables; each table's rank as a small dot.

    Args:
        axes: where to draw.
        found: the ranks.
        ink: the colour of other methods' names.
    """
    methods = [str(method) for method in found.average.index]
    seen = np.array([name in DEVELOPMENT for name in found.ranks.index])
    for y, method in enumerate(methods):
        colour = OURS_COLOUR if method.startswith("evidence") else OTHER_COLOUR
        ranks = found.ranks[method].to_numpy()
        for part, face in ((seen, "none"), (~seen, colour)):
            axes.plot(
                ranks[part], np.full(part.sum(), y), "o", markersize=3.5, alpha=0.55,
                markeredgecolor=colour, markerfacecolor=face, zorder=1,
            )  # fmt: skip
        if len(ranks) >= LEAST:
            whole = interval(ranks.tolist())
            axes.plot([whole.low, whole.high], [y, y], color=colour, linewidth=2, zorder=2)
        axes.plot([found.average[method]], [y], "D", color=colour, markersize=6.5, zorder=3)
    names = [f"{label(method)}  {written(float(found.average[method]), 1)}" for method in methods]
    axes.set_yticks(range(len(methods)), names)
    for tick, method in zip(axes.get_yticklabels(), methods, strict=True):
        tick.set_color(OURS_COLOUR if method.startswith("evidence") else ink)
    axes.invert_yaxis()
    axes.set_xlim(0.6, len(methods) + 0.4)
    axes.set_xticks(range(1, len(methods) + 1))
    count = len(found.ranks)
    axes.set_xlabel(f"rank over {count} table{'s' * (count > 1)}, 1 the best")


def _explain(axes: Axes) -> None:
    text = (
        "Diamond: average rank.\nBar: its 95 % interval over tables.\nSmall dots: each table.\n"
        "Hollow: tables that were used\nto choose something in the library."
    )
    axes.set_axis_off()
    axes.text(0, 0.5, text, va="center", transform=axes.transAxes)
