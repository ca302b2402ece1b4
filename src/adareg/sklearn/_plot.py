"""The heat map of what belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adareg._optional import load
from adareg.sklearn._data import Array


def draw_correlation(correlation: Array, names: Sequence[object], ax: Any = None) -> Any:
    """Draw a correlation matrix with its names on both sides; return the Axes."""
    pyplot = load("matplotlib.pyplot", extra="sklearn")
    if ax is None:
        _, ax = pyplot.subplots(layout="constrained")
    image = ax.imshow(correlation, cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set_xticks(range(len(names)), labels=list(map(str, names)), rotation=45, ha="right")
    ax.set_yticks(range(len(names)), labels=list(map(str, names)))
    ax.figure.colorbar(image, ax=ax, label="correlation of the output weights")
    return ax
