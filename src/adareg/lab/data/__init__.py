"""The data sets of the experiments: loaded from files that are verified, never downloaded unasked.

    ds = data.load("mnist")             # from $ADAREG_DATA, or the user's cache directory
    ds = data.load("mnist", "some/dir") # from there
    data.fetch("mnist")                 # download it first
    table = data.load_table("uci-yacht")  # rows as they were published, not split or scaled

A file of the data set is searched as ``<directory>/<data set>/<file>`` and as
``<directory>/<file>``. To add a data set, write a module that makes a ``Source`` and list it
in ``DATASETS``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from adareg.lab.data import (
    arff,
    cifar10,
    digits,
    download,
    embedded,
    files,
    mnist,
    sarcos,
    tables,
    uci,
)
from adareg.lab.data.base import (
    DataError,
    DataNotFoundError,
    Dataset,
    DownloadError,
    File,
    LeakWarning,
    Source,
    Table,
)
from adareg.lab.data.files import State

__all__ = [
    "DATASETS",
    "DataError",
    "DataNotFoundError",
    "Dataset",
    "DownloadError",
    "File",
    "LeakWarning",
    "Source",
    "State",
    "Table",
    "check",
    "fetch",
    "load",
    "load_table",
    "source_of",
]

DATASETS: dict[str, Source] = {
    "digits": digits.DIGITS,
    "digits-completion": digits.COMPLETION,
    "mnist": mnist.MNIST,
    "cifar10": cifar10.CIFAR10,
    "sarcos": sarcos.SARCOS,
    "sarcos-paper": sarcos.PAPER,
    "wine": tables.WINE,
    "breast-cancer": tables.BREAST_CANCER,
    "diabetes": tables.DIABETES,
    **uci.SOURCES,
    **arff.SOURCES,
    **embedded.SOURCES,
}


def load(name: str, directory: str | Path | None = None) -> Dataset:
    """Read a data set whose files are in a directory; every file is verified each time.

    Args:
        name: a key of ``DATASETS``.
        directory: where the files are; by default ``$ADAREG_DATA``, or else the user's cache
            directory, where :func:`fetch` puts them.

    Raises:
        ValueError: no such data set.
        DataNotFoundError: a file is missing; nothing is downloaded.
        DataError: a file is not what it should be.

    Example:
        >>> load("digits").x_train.shape
        torch.Size([1197, 1, 8, 8])
    """
    made = _read(name, directory)
    if not isinstance(made, Dataset):
        raise ValueError(f"{name!r} is a table without a split of its own; use load_table")
    return made


def load_table(name: str, directory: str | Path | None = None) -> Table:
    """Read a table whose files are in a directory; every file is verified each time.

    Args:
        name: a key of ``DATASETS``, one of the contest's tables.
        directory: as in :func:`load`.

    Raises:
        ValueError: no such table.
        DataNotFoundError: a file is missing; nothing is downloaded.
        DataError: a file is not what it should be.

    Example:
        >>> load_table("embedded-linnerud").y.shape
        (20, 3)
    """
    made = _read(name, directory)
    if not isinstance(made, Table):
        raise ValueError(f"{name!r} is not a table but has a split of its own; use load")
    return made


def _read(name: str, directory: str | Path | None) -> Dataset | Table:
    source = source_of(name)
    paths = files.locate(name, source, directory)
    made = source.read(paths)
    known = {file.name: file.checksum for file in (*source.files, *source.fallback)}
    origin = {"source": source.home, "files": {name: known[name] for name in paths}}
    return dataclasses.replace(made, provenance={**origin, **made.provenance})


def fetch(
    name: str, directory: str | Path | None = None, progress: download.Progress | None = None
) -> list[Path]:
    """Download the files of a data set that are missing or damaged; return what was written.

    Args:
        name: a key of ``DATASETS``.
        directory: where to put them; by default as in :func:`load`.
        progress: makes a progress bar for a file's name.

    Raises:
        ValueError: no such data set.
        DownloadError: no address gave the right file, or it could not be written.
    """
    return download.fetch(source_of(name), directory, progress)


def check(name: str, directory: str | Path | None = None) -> State:
    """Verify the files of a data set in a directory, by default as in :func:`load`."""
    return files.check(source_of(name), directory)


def source_of(name: str) -> Source:
    """The row of a data set."""
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}; there are: {', '.join(DATASETS)}")
    return DATASETS[name]
