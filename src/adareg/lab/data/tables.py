"""Three small tables of scikit-learn: wine, breast cancer, diabetes.

Rows are sorted by class or by patient, so both parts are drawn from a fixed random order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adareg.lab.data.base import DataError, Dataset, Source, Task, counts, require
from adareg.lab.data.scale import standardise

#: Tables have fewer decimals; what is behind them depends on how a version reads its file.
_DECIMALS = 9


class Rows(NamedTuple):
    """A table before it is split: inputs and targets as scikit-learn has them."""

    x: Any  # float64 (n, features)
    y: Any  # int64 (n,) labels or float64 (n,) targets
    names: tuple[str, ...]


def _classes(loader: str) -> Rows:
    bunch = getattr(require("sklearn.datasets"), loader)()
    return Rows(bunch.data, bunch.target, tuple(map(str, bunch.target_names)))


def _diabetes() -> Rows:
    bunch = require("sklearn.datasets").load_diabetes(scaled=False)
    return Rows(bunch.data, bunch.target, ("progression",))


def read(
    paths: Mapping[str, Path], name: str, load: Callable[[], Rows], n_train: int, content: str
) -> Dataset:
    """Split a table; columns, and targets of a regression, standardised by the training part."""
    rows = load()
    rows = rows._replace(x=rows.x.round(_DECIMALS))
    found = "sha256:" + hashlib.sha256(rows.x.tobytes() + rows.y.tobytes()).hexdigest()
    if found != content:
        version = require("sklearn").__version__
        raise DataError(
            f"{name} of scikit-learn {version} is not as expected ({content}, found {found}); "
            f"that of scikit-learn 1.9 is"
        )
    x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:n_train], order[n_train:]
    x_train, x_test = standardise(x[train], x[test])
    task: Task = "regression" if y.is_floating_point() else "classification"
    y_train, y_test = y[train], y[test]
    if task == "regression":
        y_train, y_test = standardise(y_train[:, None], y_test[:, None])
    return Dataset(
        name=name,
        task=task,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        names=rows.names,
        provenance={
            "files": {"columns and targets as bytes": content},
            "split": f"the first {n_train} rows in a fixed random order for training, the others "
            "for the test",
            "counts": counts(x_train, x_test),
            "normalisation": "less training mean, over training deviation",
        },
    )


_UCI = "https://archive.ics.uci.edu/dataset/{} (as in scikit-learn)"

WINE = Source(
    description="13 measurements of wines, 3 growers",
    task="classification",
    sizes="108 + 70",
    home=_UCI.format(109),
    read=partial(
        read,
        name="wine",
        load=partial(_classes, "load_wine"),
        n_train=108,
        content="sha256:3a28849ef2366c4b9d4e382b3fa5624a66f693c04d7fdcf43c529bbb0bb338d7",
    ),
)
BREAST_CANCER = Source(
    description="30 measurements of cells, 2 classes",
    task="classification",
    sizes="369 + 200",
    home=_UCI.format(17),
    read=partial(
        read,
        name="breast-cancer",
        load=partial(_classes, "load_breast_cancer"),
        n_train=369,
        content="sha256:25e2eb7b7a8745b1bde5ba18bc4969983d2e2f403291ecd5bde4a29ef30c3859",
    ),
)
DIABETES = Source(
    description="a disease's progress from 10 variables",
    task="regression",
    sizes="292 + 150",
    home="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html (as in scikit-learn)",
    read=partial(
        read,
        name="diabetes",
        load=_diabetes,
        n_train=292,
        content="sha256:e9c1f7559552854a24dc45b41c446ce5f79f96e5da081bcce24b57492720b3f7",
    ),
)
