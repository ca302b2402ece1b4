"""A table with its splits, ready to be learned: rare classes left out, inputs prepared inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import (  # type: ignore[import-untyped]
    ColumnTransformer,
    make_column_selector,
)
from sklearn.impute import SimpleImputer  # type: ignore[import-untyped]
from sklearn.model_selection import KFold, StratifiedKFold  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # type: ignore[import-untyped]

from adareg.lab import data
from adareg.lab.data.base import Table

FOLDS = 5
#: Classes of fewer rows are left out: a training part would have too few for five folds of its own.
FEWEST = 7

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Training and test rows of one split.

    Attributes:
        x: all training inputs, as published.
        y: the training targets, or labels from 0.
        x_test: the test inputs.
        y_test: the test targets.
        classes: how many; 0 in regression.
        seed: for whatever a method draws.
        in_cell: whether it is a cell of the small-data benchmark: inputs are prepared already,
            and a class may be rare.
    """

    x: pd.DataFrame
    y: NDArray[Any]
    x_test: pd.DataFrame
    y_test: NDArray[Any]
    classes: int
    seed: int
    in_cell: bool = False

    @property
    def outputs(self) -> int:
        """How many targets."""
        return self.y.shape[1] if self.y.ndim == 2 else 1

    @property
    def has_noise(self) -> bool:
        """Whether scores ask for the variance of the errors."""
        return not self.classes and (self.outputs == 1 or self.in_cell)


def splits_of(table: Table) -> list[tuple[Rows, Rows]]:
    """The published splits of a table, or else five folds in a fixed random order."""
    if table.splits:
        return list(table.splits)
    kind = StratifiedKFold if table.task == "classification" else KFold
    folds = kind(FOLDS, shuffle=True, random_state=0)
    return list(folds.split(table.x, table.y))


def without_rare_classes(table: Table) -> Table:
    """The table without the rows of classes that have fewer than ``FEWEST``."""
    if table.task != "classification":
        return table
    counts = np.bincount(table.y)
    kept = np.isin(table.y, np.flatnonzero(counts >= FEWEST))
    labels = np.unique(table.y[kept], return_inverse=True)[1].astype(np.int64)
    names = tuple(n for n, count in zip(table.names, counts, strict=True) if count >= FEWEST)
    x = table.x[kept].reset_index(drop=True)
    return Table(name=table.name, task=table.task, x=x, y=labels, names=names)


def size(name: str, directory: Path | None) -> tuple[int, int]:
    """How many rows a table has, and how many splits."""
    table = without_rare_classes(data.load_table(name, directory))
    return len(table.x), len(splits_of(table))


def load(name: str, split: int, directory: Path | None) -> Problem:
    """Read a table and cut it at one of its splits."""
    table = without_rare_classes(data.load_table(name, directory))
    train, test = splits_of(table)[split]
    return Problem(
        x=table.x.iloc[train],
        y=table.y[train],
        x_test=table.x.iloc[test],
        y_test=table.y[test],
        classes=len(table.names) if table.task == "classification" else 0,
        seed=split,
    )


def preparation(x: pd.DataFrame, scaled: bool) -> ColumnTransformer:
    """A transformer, not fitted, that makes numbers of all columns.

    Nominal columns become a column for each value. Missing numbers become the mean, missing
    values the most frequent one.

    Args:
        x: inputs of the kind that will come.
        scaled: whether numbers are standardised.
    """
    missing = x.columns[x.isna().any()]
    kinds = {name: isinstance(x[name].dtype, pd.CategoricalDtype) for name in missing}
    steps = [SimpleImputer()] if False in kinds.values() else []
    steps += [StandardScaler()] if scaled else []
    values = [SimpleImputer(strategy="most_frequent")] if True in kinds.values() else []
    values.append(OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    numbers = make_pipeline(*steps) if steps else "passthrough"
    return ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include="number")),
            ("nominal", make_pipeline(*values), make_column_selector(dtype_include="category")),
        ]
    )
