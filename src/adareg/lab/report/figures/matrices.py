"""Matrices as coloured squares, orange negative and purple positive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from adareg.lab.report import style
from adareg.lab.run.records import Record

Matrix = npt.NDArray[np.float64]


def draw(axes: Axes, matrix: Matrix, limit: float, names: Sequence[str], label: str) -> None:
    """One matrix with its scale; names along both sides if there are few."""
    image = axes.imshow(matrix, cmap=style.DIVERGING, vmin=-limit, vmax=limit, interpolation="none")
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)
    if names:
        turned = max(map(len, names)) > 2
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=90 if turned else 0)
        axes.set_yticks(range(len(names)), names, fontsize=8)
    else:
        axes.set(xticks=[], yticks=[], xlabel=f"{len(matrix)} units")
    figure: Any = axes.figure
    bar = figure.colorbar(image, cax=axes.inset_axes((1.05, 0.05, 0.05, 0.9)), label=label)
    bar.outline.set_linewidth(0.5)


def array(record: Record, name: str) -> Matrix:
    """One of a record's arrays."""
    arrays: Mapping[str, Any] = record["arrays"]
    return np.array(arrays[name], dtype=float)


def stacked(records: Iterable[Record], name: str) -> Matrix:
    """An array of many records, (records, p, p)."""
    return np.array([array(record, name) for record in records])


def off_diagonal(matrices: Matrix) -> Matrix:
    """The mean magnitude beside the diagonal of each matrix."""
    p = matrices.shape[-1]
    return np.abs(matrices[:, ~np.eye(p, dtype=bool)]).mean(-1)


def long(matrix: Matrix, names: Sequence[str], **keys: Any) -> pd.DataFrame:
    """One row for each entry."""
    labels = names or [str(i) for i in range(1, len(matrix) + 1)]
    rows = [(a, b, matrix[i, j]) for i, a in enumerate(labels) for j, b in enumerate(labels)]
    return pd.DataFrame(rows, columns=["row", "column", "value"]).assign(**keys)
