"""Results on disk: JSON lines, one record for each network, one file for each stack of them.

A file appears complete or not at all, its records never change, and it is found by what is in it.
It may be compressed, to be kept or sent.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, cast

from adareg.lab.atomic import write_atomically
from adareg.lab.run import reading
from adareg.lab.run.reading import FORMAT, RecordError, TornLineWarning
from adareg.lab.run.schema import Record
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NoRecordsError", "Record", "RecordError", "Store", "TornLineWarning", "record"]

_SUFFIXES = (
    ".jsonl",
    ".jsonl.gz",
)  # in this order: packing adds the second, then removes the first


class NoRecordsError(ValueError):
    """There is nothing to read below a folder, or no such folder.

    Args:
        root: the folder.
        passed_over: what is there instead, in words.
    """

    def __init__(self, root: Path, passed_over: Iterable[str] = ()) -> None:
        what = f"no records below {root}" if root.is_dir() else f"{root} is not a folder"
        others = "".join(f"; passed over: {text}" for text in passed_over)
        super().__init__(f"{what}; make some with: adareg reproduce digits --out {root}{others}")


class Store:
    """The records below a folder: ``<experiment>/<cell>-<config>-<replicas>.jsonl[.gz]``.

    Args:
        root: the folder; made when it is first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self, experiment: str) -> None:
        """Make an experiment's folder and try to write to it, before anything is trained."""
        folder = self.root / experiment
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass

    def write(self, experiment: str, config: Config, records: Sequence[Record]) -> Path:
        """Write the records of one stack, all or none of them."""
        folder = self.root / experiment
        folder.mkdir(parents=True, exist_ok=True)
        who = json.dumps(sorted((record["method"], record["seed"]) for record in records))
        key = hashlib.sha256(who.encode()).hexdigest()[:8]
        path = folder / f"{config.slug}-{config.digest}-{key}.jsonl"
        self._put(path, _encoded(records))
        return path

    def rewrite(self, experiment: str, config: Config, change: Callable[[Record], Record]) -> None:
        """Put something else in the place of each record of a cell."""
        for path in self._files(f"{experiment}/{config.slug}-{config.digest}-*"):
            content = _encoded(map(change, self._read(path)))
            packed = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
            self._put(path, packed)

    def pack(self, *, unreadable: list[str] | None = None) -> int:
        """Compress every file that is not; how many there were.

        Args:
            unreadable: as in :meth:`read`; such a file is not touched.
        """
        files = [path for path in self._files("*/*") if path.suffix != ".gz"]
        plain = [path for path in files if self._read(path, unreadable)]
        for path in plain:
            packed = gzip.compress(path.read_bytes(), mtime=0)
            self._put(path.with_name(f"{path.name}.gz"), packed)
            path.unlink()
        return len(plain)

    def _put(self, path: Path, content: bytes) -> None:
        """Write a file of records, then remove what killed runs left beside it.

        Two runs may write the same records at once: each has a neighbour of its own, and if the
        faster run has removed the slower one's, the records are there.
        """
        try:
            write_atomically(path, content)
        except FileNotFoundError:
            if not path.exists():
                raise
        for left in path.parent.glob(f"{path.stem}.*partial"):
            left.unlink(missing_ok=True)

    def _read(self, path: Path, unreadable: list[str] | None = None) -> list[Record]:
        """The records of a file; none, and a line more in the list, if it cannot be read."""
        try:
            records, torn = reading.read(path)
        except RecordError as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
            return []
        if torn:
            warnings.warn(torn, TornLineWarning, stacklevel=2)
        return records

    def _files(self, pattern: str) -> list[Path]:
        return sorted(p for end in _SUFFIXES for p in self.root.glob(f"{pattern}{end}"))

    def done(self, experiment: str, config: Config) -> dict[Replica, Record]:
        """The records of a cell's networks that have been trained."""
        return {
            Replica(record["method"], record["seed"]): record
            for path in self._files(f"{experiment}/{config.slug}-{config.digest}-*")
            for record in self._read(path)
        }

    def elsewhere(self, experiment: str, config: Config) -> dict[Replica, Record]:
        """Records of the same cell that another experiment has made."""
        found = {}
        for path in self._files(f"*/{config.slug}-{config.digest}-*"):
            if path.parent.name != experiment:
                for record in self._read(path):
                    found[Replica(record["method"], record["seed"])] = record
        return found

    def read(
        self, experiment: str = "*", *, unreadable: list[str] | None = None
    ) -> Iterator[Record]:
        """Every network's record, of one experiment or of all, in a fixed order.

        Two runs at once, of different seeds or methods, can both have trained a network; it counts
        once.

        Args:
            experiment: its name.
            unreadable: a list to which is added why a file cannot be read; without one, such a
                file raises ``RecordError``.
        """
        seen = set()
        for path in self._files(f"{experiment}/*"):
            cell = path.parent.name, path.name.rpartition("-")[0]
            for record in self._read(path, unreadable):
                key = (*cell, record["method"], record["seed"])
                if key not in seen:
                    yield record
                seen.add(key)

    def frame(self, experiment: str = "*", *, unreadable: list[str] | None = None) -> pd.DataFrame:
        """Return one row for each network; arguments as of :meth:`read`."""
        return frame(self.read(experiment, unreadable=unreadable))


def _encoded(records: Iterable[Mapping[str, Any]]) -> bytes:
    lines = [json.dumps(plain(record), allow_nan=False) + "\n" for record in records]
    return "".join(lines).encode()


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row for each network: experiment, method, seed, config, metrics, last layer."""
    import pandas as pd

    return pd.DataFrame([_row(record) for record in records])


def _row(record: Record) -> dict[str, Any]:
    last = list(record["spectra"])[-1]
    scalars = {k: v for k, v in record["metrics"].items() if not isinstance(v, list)}
    return {
        "experiment": record["experiment"],
        "scale": record["scale"],
        "method": record["method"],
        "seed": record["seed"],
        **record["config"],
        **scalars,
        **record["spectra"][last],
        "seconds": record["seconds"],
    }


def plain(value: Any) -> Any:
    """The same with floats of seven digits in lists, and null for what is not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) if isinstance(item, float) else plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(number: float) -> float | None:
    return float(f"{number:.7g}") if math.isfinite(number) else None


def record(
    experiment: str,
    scale: str,
    config: Config,
    replica: Replica,
    parts: dict[str, Any],
    circumstances: dict[str, Any],
) -> Record:
    """Return a network's record: ``parts`` are measured, ``circumstances`` say where and how."""
    made = {
        "format": FORMAT,
        "experiment": experiment,
        "scale": scale,
        "cell": config.slug,
        "method": replica.method,
        "seed": replica.seed,
        "config": asdict(config),
        **parts,
        **circumstances,
    }
    return cast(Record, made)
