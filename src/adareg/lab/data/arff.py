"""Tables in ARFF, the format of Weka: seven with several targets, eight with classes.

Inputs come first. Those with several targets are of the suite of Spyromitros-Xioufis et al.
("Multi-target regression via input space expansion", 2016) as its authors publish it; the others
are old tables of the UCI repository.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adareg.lab.data.base import DataError, File, Source, Table, require

if TYPE_CHECKING:
    import pandas as pd

MISSING = b"?"  # of a nominal input; of a number the reader makes nan


def read(paths: Mapping[str, Path], name: str, rows: int, targets: int) -> Table:
    """Read one file; its last columns are the targets.

    Args:
        paths: of the one file.
        name: the key of the table.
        rows: how many there are.
        targets: how many columns are; 0 if the last one is the class.
    """
    (path,) = paths.values()
    content, kinds = _load(path)
    if len(content) != rows:
        raise DataError(f"{path}: expected {rows} rows, found {len(content)}")
    names = list(kinds)
    count = targets or 1
    columns = {name: _column(content[name], kinds[name]) for name in names[:-count]}
    x = require("pandas").DataFrame(columns)
    if not targets:
        classes, labels = np.unique(content[names[-1]], return_inverse=True)
        shown = tuple(label.decode() for label in classes)
        return Table(name=name, task="classification", x=x, y=labels.astype(np.int64), names=shown)
    last = names[-targets:]
    y = np.stack([content[column] for column in last], axis=1)
    return Table(name=name, task="regression", x=x, y=y, names=tuple(last))


def _load(path: Path) -> tuple[Any, dict[str, tuple[bytes, ...] | None]]:
    """The rows as a structured array, and each column's values; None if it holds numbers."""
    reader = require("scipy.io.arff")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            content, meta = reader.loadarff(path)
    except (reader.ArffError, ValueError, TypeError, StopIteration, NotImplementedError) as error:
        raise DataError(f"{path} is not an ARFF file: {error}") from error
    values = {name: meta[name][1] for name in meta.names()}
    kinds = {n: None if v is None else tuple(x.encode() for x in v) for n, v in values.items()}
    return content, kinds


def _column(values: Any, kinds: tuple[bytes, ...] | None) -> pd.Series:
    """Numbers as they are; a nominal column as categories, nan where it is missing."""
    pandas = require("pandas")
    if kinds is None:
        return pandas.Series(values.astype(np.float64))
    codes = {kind: i for i, kind in enumerate(kinds)}
    known = [kind.decode() for kind in kinds]
    found = [-1 if value == MISSING else codes[value] for value in values]
    return pandas.Series(pandas.Categorical.from_codes(found, categories=known))


class _Row(NamedTuple):
    file: str
    what: str
    rows: int
    targets: int
    size: int  # of the file, in bytes
    sha256: str


class _Home(NamedTuple):
    address: str
    raw: str
    folder: str


_MULAN = _Home(
    "https://github.com/tsoumakas/mulan",
    "https://raw.githubusercontent.com/tsoumakas/mulan/master/data/multi-target",
    "mulan",
)
_CLASSES = _Home(
    "https://github.com/renatopp/arff-datasets",
    "https://raw.githubusercontent.com/renatopp/arff-datasets/master/classification",
    "tables",
)

# fmt: off
_MULTI_TARGET_ROWS = {
    "mulan-edm": _Row(
        "edm.arff", "controls of a spark machine", 154, 2, 13_939,
        "37777374030f592a53cbcf597ae0aa6105238a1c696dd04ccb229be982f6bc5b",
    ),
    "mulan-enb": _Row(
        "enb.arff", "heating and cooling of a building", 768, 2, 40_203,
        "8277d9094ccda6da2cd1c2b79c90ca201fa3695e75aca173ffc43138dcab0071",
    ),
    "mulan-jura": _Row(
        "jura.arff", "heavy metals in soil", 359, 3, 24_681,
        "78ce7655f49073e3622ef7ba25657b3900a2b279ba3d48cb82e353e56bac3d2a",
    ),
    "mulan-oes97": _Row(
        "oes97.arff", "people in 16 occupations, by city", 334, 16, 559_271,
        "aee74aa656c709f797f45d817c41996be94c2e924c0f1e7ad315fb7e2f1a9498",
    ),
    "mulan-scpf": _Row(
        "scpf.arff", "views, votes and comments of complaints", 1_137, 3, 90_524,
        "f7d3c7b134c0e5ddff56a7900371cb44328f9b7f550203c4a556929203ea81e9",
    ),
    "mulan-slump": _Row(
        "slump.arff", "three properties of concrete", 103, 3, 4_608,
        "3a9a9eba416b06c7668153b44073a0e165afbfc9e526d53b174e5f97a707ca6c",
    ),
    "mulan-wq": _Row(
        "wq.arff", "14 species in rivers", 1_060, 14, 316_219,
        "4a0906b4a51bf52c986790ddaf261ba51faa3da9cffe823badabd88d38d252fe",
    ),
}
_CLASS_ROWS = {
    "arff-column3c": _Row(
        "column3C.arff", "three states of a spine", 310, 0, 26_389,
        "cf768854cf4cf42b3a3b792a239a81ebfd4fbfafc25fbe2a19d15b3f73249879",
    ),
    "arff-credit-g": _Row(
        "credit.g.arff", "good and bad credits", 1_000, 0, 163_550,
        "177171ed80cfc816ef10a76813fa8f97695a6f7abab4d8435eb6ce0a65a37501",
    ),
    "arff-dermatology": _Row(
        "dermatology.arff", "six diseases of the skin", 366, 0, 32_947,
        "0d1c4236e524b90cc570c7c545c2c01d4043a3bba9ca0824b838e919771025ad",
    ),
    "arff-ecoli": _Row(
        "ecoli.arff", "eight sites of a cell's proteins", 336, 0, 16_142,
        "1628f2d06962f257949eb04cd0101a1ce8718d35da52122242f1778ffbaecc5f",
    ),
    "arff-glass": _Row(
        "glass.arff", "six kinds of glass", 214, 0, 18_155,
        "7666478791baf605953d43f670c2d24b6492dd6467b86520db9a93c5fd84c3d1",
    ),
    "arff-heart-statlog": _Row(
        "heart.statlog.arff", "hearts, sick or not", 270, 0, 13_489,
        "1f850f58512d989c5309c197afd576435faef177ae1b53a12437a9eecee058c9",
    ),
    "arff-lymph": _Row(
        "lymph.arff", "four states of lymph nodes", 148, 0, 22_865,
        "37b279ae6ceafd224dd48c3fd8d3225b3798ea76a0f79e06b8b749af95477701",
    ),
    "arff-vehicle": _Row(
        "vehicle.arff", "four silhouettes of vehicles", 846, 0, 64_896,
        "c815585534f9e8c51c6cbe535770891744f5883081709f3a36a58bd419ce0994",
    ),
}
# fmt: on


def _source(name: str, home: _Home, row: _Row) -> Source:
    file = File(
        name=row.file,
        size=row.size,
        checksum=f"sha256:{row.sha256}",
        urls=(f"{home.raw}/{row.file}",),
    )
    return Source(
        description=row.what,
        task="regression" if row.targets else "classification",
        sizes=f"{row.rows:,}",
        home=home.address,
        read=partial(read, name=name, rows=row.rows, targets=row.targets),
        files=(file,),
        folders=(home.folder, ""),
    )


SOURCES: dict[str, Source] = {
    **{name: _source(name, _MULAN, row) for name, row in _MULTI_TARGET_ROWS.items()},
    **{name: _source(name, _CLASSES, row) for name, row in _CLASS_ROWS.items()},
}
