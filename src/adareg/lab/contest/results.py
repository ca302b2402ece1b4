"""Results on disk: for each table a file of JSON lines, a line for each trial."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from adareg.lab.atomic import write_atomically
from adareg.lab.contest.trial import FORMAT, Record, Trial

_ENDS = (".jsonl", ".jsonl.gz")
_NEEDED = {"format", "suite", "table", "split", "method", "seconds", "scores"}
_DIGITS = 7


class ResultError(ValueError):
    """A file among the results is not one of ours."""


class Results:
    """The records below a folder: ``<suite>/<table>.jsonl``, or packed with ``.gz``.

    One process writes them. A file is replaced as a whole, so that a run which is killed loses the
    trials in progress and nothing else.

    Args:
        root: the folder; made when it is first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder and try to write to it, before anything is tried."""
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.root):
            pass

    def done(self) -> set[Trial]:
        """The trials that are recorded."""
        return {_trial(record) for record in self.read()}

    def read(self) -> Iterator[Record]:
        """Every record, in a fixed order.

        Raises:
            ResultError: a file cannot be read.
        """
        for path in sorted(p for end in _ENDS for p in self.root.glob(f"*/*{end}")):
            yield from sorted(_read(path), key=_trial)

    def add(self, record: Record) -> Path:
        """Write a record beside those of its table, or in the place of the same trial's."""
        folder = self.root / record["suite"]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{record['table']}.jsonl"
        packed = path.with_name(f"{path.name}.gz")
        files = [file for file in (packed, path) if file.exists()]
        known = {_trial(each): each for file in files for each in _read(file)}
        known[_trial(record)] = record
        _write(path, known.values())
        packed.unlink(missing_ok=True)
        return path

    def pack(self) -> None:
        """Compress every file that is not."""
        for path in sorted(self.root.glob("*/*.jsonl")):
            _write(path.with_name(f"{path.name}.gz"), _read(path))
            path.unlink()

    def frame(self) -> pd.DataFrame:
        """A row for each trial: what it was, its scores and seconds, versions and machine."""
        return pd.DataFrame([_row(record) for record in self.read()])


def _row(record: Record) -> Record:
    names = ("suite", "table", "split", "method", "rows", "inputs", "outputs")
    seconds = {f"{name}_seconds": value for name, value in record["seconds"].items()}
    scores = {k: v for k, v in record["scores"].items() if not isinstance(v, list)}
    return {
        **{name: record.get(name) for name in names},
        **scores,
        **seconds,
        **record.get("environment", {}),
    }


def _trial(record: Record) -> Trial:
    return Trial(record["suite"], record["table"], record["split"], record["method"])


def _read(path: Path) -> list[Record]:
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        records = [json.loads(line) for line in content.decode().splitlines()]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ResultError(f"{path} cannot be read ({error}); move it away to go on") from error
    for line, record in enumerate(records, 1):
        known = isinstance(record, dict) and record.get("format") == FORMAT
        if not known or not record.keys() >= _NEEDED:
            raise ResultError(f"{path}, line {line}: no record of format {FORMAT}; move it away")
    return records


def _write(path: Path, records: Iterable[Record]) -> None:
    lines = [json.dumps(_short(each), allow_nan=False) for each in sorted(records, key=_trial)]
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_atomically(path, content)


def _short(value: Any) -> Any:
    """The same with floats of seven digits."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return value
