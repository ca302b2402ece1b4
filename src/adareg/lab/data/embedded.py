"""Tables that need no download: five of scikit-learn, and one that is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from adareg.lab.data.base import Source, Table, Task, require


def read(paths: Mapping[str, Path], name: str, loader: str) -> Table:
    """Read one of scikit-learn's tables."""
    datasets = require("sklearn.datasets")
    bunch = getattr(datasets, loader)()
    x = require("pandas").DataFrame(np.asarray(bunch.data, dtype=np.float64))
    if name in CLASSES:
        names = tuple(map(str, bunch.target_names))
        return Table(name=name, task="classification", x=x, y=bunch.target.astype(int), names=names)
    y = np.asarray(bunch.target, dtype=np.float64)
    names = tuple(bunch.target_names) if y.ndim == 2 else ("target",)
    return Table(name=name, task="regression", x=x, y=y, names=names)


def draw(paths: Mapping[str, Path], name: str) -> Table:
    """Draw Friedman's first function with noise 1: five of ten inputs matter."""
    x, y = require("sklearn.datasets").make_friedman1(n_samples=300, noise=1.0, random_state=0)
    frame = require("pandas").DataFrame(x)
    return Table(name=name, task="regression", x=frame, y=y, names=("target",))


#: Key: what it is, its task, rows, the loader.
_ROWS: dict[str, tuple[str, Task, int, str]] = {
    "embedded-diabetes": ("a disease's progress", "regression", 442, "load_diabetes"),
    "embedded-linnerud": ("weight, waist and pulse", "regression", 20, "load_linnerud"),
    "embedded-wine": ("three growers of wine", "classification", 178, "load_wine"),
    "embedded-cancer": ("two kinds of cells", "classification", 569, "load_breast_cancer"),
    "embedded-iris": ("three kinds of iris", "classification", 150, "load_iris"),
}
CLASSES = frozenset(name for name, row in _ROWS.items() if row[1] == "classification")

SOURCES: dict[str, Source] = {
    "embedded-friedman": Source(
        description="Friedman's first function, drawn",
        task="regression",
        sizes="300",
        home="scikit-learn",
        read=partial(draw, name="embedded-friedman"),
    ),
    **{
        name: Source(
            description=what,
            task=task,
            sizes=f"{rows:,}",
            home="scikit-learn",
            read=partial(read, name=name, loader=loader),
        )
        for name, (what, task, rows, loader) in _ROWS.items()
    },
}
