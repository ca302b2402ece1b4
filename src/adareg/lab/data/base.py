"""The form of a data set and of its source, and the errors of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adareg._optional import load

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["classification", "regression"]


class DataError(ValueError):
    """A file does not hold what it should."""


class DataNotFoundError(FileNotFoundError):
    """A file of a data set is not where it was looked for."""


class DownloadError(OSError):
    """A file could not be downloaded or written."""


class LeakWarning(UserWarning):
    """Rows of the test data occur in the training data too."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training and test data, ready for a model.

    Attributes:
        name: the key in ``DATASETS``.
        task: "classification" or "regression".
        x_train: float32, normalised; images are (n, channels, height, width), tables
            (n, features).
        y_train: int64 (n,) for classification, float32 (n, tasks) for regression.
        x_test: as ``x_train``.
        y_test: as ``y_train``.
        names: of the classes or of the tasks.
        provenance: plain data for a run's record: source, files with their checksums, split,
            counts, normalisation.
    """

    name: str
    task: Task
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    names: tuple[str, ...]
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if problem := self._problem(x, y):
                raise DataError(f"{self.name}, {part} data: {problem}")

    def _problem(self, x: Tensor, y: Tensor) -> str | None:
        if len(x) != len(y) or len(x) == 0:
            return f"expected as many inputs as targets, and some, got {len(x)} and {len(y)}"
        if x.dtype != torch.float32 or x.shape[1:] != self.input_shape:
            return f"expected float32 inputs of {self.input_shape}, got {x.dtype}, {x.shape[1:]}"
        if self.task == "regression":
            if y.dtype != torch.float32 or y.shape[1:] != (self.n_outputs,):
                return f"expected float32 (n, {self.n_outputs}) targets, got {y.dtype}, {y.shape}"
        elif y.dtype != torch.int64 or y.ndim != 1:
            return f"expected int64 (n,) labels, got {y.dtype}, {tuple(y.shape)}"
        elif not 0 <= int(y.min()) <= int(y.max()) < self.n_outputs:
            return f"labels {int(y.min())}…{int(y.max())}, but {self.n_outputs} classes"
        return None

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.x_train)

    @property
    def n_outputs(self) -> int:
        """Number of classes or of tasks."""
        return len(self.names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x_train.shape[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Rows as they were published, for estimators that prepare their inputs themselves.

    Attributes:
        name: the key in ``DATASETS``.
        task: "classification" or "regression".
        x: (n, features): columns of float64, or of category for nominal inputs; missing values
            are nan.
        y: int64 (n,) for classification, float64 (n,) for one target, (n, targets) for several.
        names: of the classes or of the targets.
        splits: the published splits, as row numbers for training and test; empty if there are
            none.
        provenance: plain data for a run's record: source, files with their checksums.
    """

    name: str
    task: Task
    x: pd.DataFrame
    y: NDArray[Any]
    names: tuple[str, ...]
    splits: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or len(self.x) == 0:
            raise DataError(f"{self.name}: {len(self.x)} inputs, but {len(self.y)} targets")
        if not np.isfinite(self.y).all():
            raise DataError(f"{self.name}: expected targets that are finite")


@dataclass(frozen=True, kw_only=True)
class File:
    """A file, what identifies it, and where it can be downloaded.

    Attributes:
        name: its file name.
        checksum: "sha256:…", "sha1:…", "md5:…", or "git:…" for the id of a git blob.
        size: in bytes.
        urls: tried in this order; none if the file comes in an archive.
    """

    name: str
    checksum: str
    size: int
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A row of the table of data sets.

    Attributes:
        description: one line for people.
        task: "classification" or "regression".
        sizes: training + test samples, for people.
        home: who publishes it.
        read: makes the data set, or the table, from its verified files, given as
            {file name: path}.
        files: what ``read`` needs; none if the data come with a package.
        fallback: what ``read`` can do with when none of ``files`` is there.
        folders: where files are searched below the data directory, in this order; downloads go
            to the first.
        archive: a tar file that holds all of ``files``.
    """

    description: str
    task: Task
    sizes: str
    home: str
    read: Callable[[Mapping[str, Path]], Dataset | Table]
    files: tuple[File, ...] = ()
    fallback: tuple[File, ...] = ()
    folders: tuple[str, ...] = ("",)
    archive: File | None = None


def require(module: str) -> Any:
    """Import a package of the lab where it is used, and only there.

    A machine that reads files from a directory needs no package for downloads.
    """
    return load(module, extra="lab")


def counts(x_train: Tensor, x_test: Tensor) -> dict[str, int]:
    """The numbers of samples, for the provenance."""
    return {"train": len(x_train), "test": len(x_test)}
