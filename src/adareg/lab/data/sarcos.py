"""SARCOS: seven torques of a robot arm from 21 positions, velocities and accelerations.

The published test file is every 10th row of the train file, so the published split, here
``sarcos-paper``, tests on training data. Rows are in the order of the movement, neighbours are
alike, and a random split of rows leaks too; ``sarcos`` is cut into long stretches instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adareg.lab.data.base import (
    DataError,
    Dataset,
    File,
    LeakWarning,
    Source,
    counts,
    require,
)
from adareg.lab.data.scale import standardise

HOME = "http://www.gaussianprocess.org/gpml/data/"
INPUTS, TASKS = 21, 7
BLOCKS, EVERY = 20, 5  # of 20 blocks, every 5th is for the test
GAP = 400  # 1/400 of the rows, about two of the movement's periods, between training and test

TRAIN = File(
    name="sarcos_inv.mat",
    size=9_964_616,
    checksum="git:687b7aaa5faf5a9c67fc6655fd59fd8b4539ad55",
    urls=(HOME + "sarcos_inv.mat",),
)
TEST = File(
    name="sarcos_inv_test.mat",
    size=996_776,
    checksum="sha256:161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",
    urls=(HOME + "sarcos_inv_test.mat",),
)


def read(paths: Mapping[str, Path]) -> Dataset:
    """Split the train file by blocks; the test file, if that is all there is."""
    (name, path), *_ = paths.items()
    rows = read_matrix(path)
    is_train, is_test = block_split(len(rows))
    split = (
        f"{name}: {BLOCKS} blocks of consecutive rows, every {EVERY}th for the test; "
        f"{len(rows) // GAP} rows on either side of a test block are left out"
    )
    return _dataset("sarcos", rows[is_train], rows[is_test], split)


def read_paper(paths: Mapping[str, Path]) -> Dataset:
    """The published split, which tests on rows of the training data."""
    train, test = read_matrix(paths[TRAIN.name]), read_matrix(paths[TEST.name])
    return _dataset("sarcos-paper", train, test, f"{TRAIN.name} / {TEST.name}, as published")


def read_matrix(path: Path) -> Tensor:
    """Read the one matrix of a MATLAB file: float64, (n, 28), inputs before torques."""
    reader = require("scipy.io.matlab")
    try:
        content = reader.loadmat(path)
    except (reader.MatReadError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise DataError(f"{path} is not a MATLAB 5 file: {error}") from error
    found = {key: value for key, value in content.items() if not key.startswith("__")}
    shapes = [value.shape for value in found.values()]
    if len(shapes) != 1 or shapes[0][1:] != (INPUTS + TASKS,):
        raise DataError(f"{path}: expected one matrix of {INPUTS + TASKS} columns, found {shapes}")
    rows = torch.from_numpy(found.popitem()[1].astype("float64", order="C"))
    if not rows.isfinite().all():
        raise DataError(f"{path}: expected finite numbers only")
    return rows


def block_split(n: int) -> tuple[Tensor, Tensor]:
    """Masks of the training and of the test rows among n rows in order of time.

    Blocks are as equal as can be. Rows close to a test block are in neither.
    """
    block = torch.arange(n) * BLOCKS // n
    is_test = block % EVERY == EVERY - 1
    near = torch.nn.functional.max_pool1d(
        is_test.float()[None], 2 * (n // GAP) + 1, stride=1, padding=n // GAP
    )[0]
    return near == 0, is_test


def shared_rows(train: Tensor, test: Tensor) -> int:
    """Count the rows of ``test`` that occur in ``train``, to the last bit."""
    known = {row.tobytes() for row in train.numpy()}
    return sum(row.tobytes() in known for row in test.numpy())


def _dataset(name: str, train: Tensor, test: Tensor, split: str) -> Dataset:
    shared = shared_rows(train, test)
    if shared:
        warnings.warn(
            f"{name}: {shared:,} of the {len(test):,} test rows are in the training data",
            LeakWarning,
            stacklevel=5,  # whoever called load
        )
    x_train, x_test = standardise(train[:, :INPUTS], test[:, :INPUTS])
    y_train, y_test = standardise(train[:, INPUTS:], test[:, INPUTS:])
    return Dataset(
        name=name,
        task="regression",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        names=tuple(f"joint {i + 1}" for i in range(TASKS)),
        provenance=_provenance(x_train, x_test, split, shared),
    )


def _provenance(x_train: Tensor, x_test: Tensor, split: str, shared: int) -> dict[str, Any]:
    return {
        "split": split,
        "counts": counts(x_train, x_test),
        "shared_rows": shared,
        "normalisation": "inputs and targets less training mean, over training deviation",
    }


SARCOS = Source(
    description="torques of a robot's 7 joints",
    task="regression",
    sizes="34,811 + 8,896",
    home=HOME,
    read=read,
    files=(TRAIN,),
    fallback=(TEST,),
    folders=("sarcos", ""),
)
PAPER = Source(
    description="the paper's split, which tests on training rows",
    task="regression",
    sizes="44,484 + 4,449",
    home=HOME,
    read=read_paper,
    files=(TRAIN, TEST),
    folders=("sarcos", ""),
)
