"""The records, grouped into what may be compared."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from adareg.lab.experiments import EXPERIMENTS, SCALES
from adareg.lab.run.records import Record, Store

Measure = Callable[[Record], float]

#: No measure of a network is as large as this.
ABSURD = 1e100


@dataclass(frozen=True)
class Cell:
    """Networks of one experiment, one scale and one config: they differ in method and seed."""

    experiment: str
    scale: str
    config: Mapping[str, Any]
    networks: Mapping[str, Mapping[int, Record]] = field(repr=False)

    @property
    def n(self) -> int:
        """Training samples."""
        return int(self.config["n"])

    @property
    def batch(self) -> int:
        """Samples in a batch."""
        return int(self.config["batch"])

    @property
    def own(self) -> bool:
        """Whether the experiment has this very config, nothing changed by ``--set``."""
        known = _configs(self.experiment, self.scale)
        return any({**config, "n": config["n"] or self.n} == self.config for config in known)

    def like(self, other: Cell, apart: Collection[str]) -> bool:
        """Whether two configs are the same but for some fields."""
        left, right = (
            {key: value for key, value in cell.config.items() if key not in apart}
            for cell in (self, other)
        )
        return left == right

    def seeds(self, methods: Iterable[str]) -> int:
        """How many seeds all of some methods have."""
        found = [set(self.networks.get(method, ())) for method in methods]
        return len(set.intersection(*found)) if found else 0

    def values(self, method: str, measure: Measure) -> dict[int, float]:
        """A measure of each network of a method, by seed; those that have none are left out."""
        values = {
            seed: _measured(measure, record)
            for seed, record in self.networks.get(method, {}).items()
        }
        return {seed: value for seed, value in values.items() if abs(value) < ABSURD}

    def diverged(self, methods: Iterable[str]) -> int:
        """How many networks of some methods have weights that are not finite."""
        return sum(
            bool(_part(record, "metrics").get("diverged"))
            for method in methods
            for record in self.networks.get(method, {}).values()
        )


def _measured(measure: Measure, record: Record) -> float:
    """The measure, or nan where a record lacks it."""
    try:
        return float(measure(record))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return math.nan


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


@cache
def _configs(experiment: str, scale: str) -> list[dict[str, Any]]:
    if experiment not in EXPERIMENTS:
        return []
    return [asdict(config) for config in EXPERIMENTS[experiment].cells(scale)]


class Records:
    """Everything a claim may be judged from.

    Records that are not of this kind (no config, no seed, an unknown scale) are passed over.

    Args:
        records: networks, as ``Store.read`` gives them.
        benchmarks: contents of the files that ``adareg bench --out`` writes.
        unreadable: files that were passed over, and why.
    """

    def __init__(
        self,
        records: Iterable[Record],
        benchmarks: Sequence[Mapping[str, Any]] = (),
        unreadable: Sequence[str] = (),
    ) -> None:
        self.benchmarks = tuple(benchmarks)
        self.unreadable = tuple(unreadable)
        self._cells: dict[str, list[Cell]] = _grouped(records)

    @classmethod
    def of(cls, store: Store) -> Records:
        """All records of a store, and the benchmarks in ``bench/`` inside or beside it."""
        unreadable: list[str] = []
        records = store.read(unreadable=unreadable)
        folders = (store.root / "bench", store.root.parent / "bench")
        paths = [path for folder in folders for path in sorted(folder.glob("*.json"))]
        return cls(list(records), [b for path in paths for b in _benchmark(path)], unreadable)

    def scale(self, *experiments: str) -> str | None:
        """The largest scale there are records of; scales are never mixed."""
        found = {cell.scale for name in experiments for cell in self._cells.get(name, [])}
        return max(found, key=SCALES.index) if found else None

    def cells(
        self, experiments: Sequence[str], methods: Sequence[str], **where: int | None
    ) -> list[Cell]:
        """One cell for each batch size and training size, in that order, at the largest scale.

        Where several experiments (or configs) have networks of the same size, it is one with the
        experiment's own config and the most seeds of all ``methods``; the first of equals.

        Args:
            experiments: where to look.
            methods: what will be compared.
            where: fields of the config that must have a value; None for any.
        """
        scale = self.scale(*experiments)
        wanted = {key: value for key, value in where.items() if value is not None}
        groups = defaultdict(list)
        for cell in (c for name in experiments for c in self._cells.get(name, [])):
            if cell.scale == scale and all(cell.config.get(k) == v for k, v in wanted.items()):
                groups[cell.batch, cell.n].append(cell)
        best = [
            max(groups[size], key=lambda cell: (cell.own, cell.seeds(methods)))
            for size in sorted(groups)
        ]
        return [cell for cell in best if any(method in cell.networks for method in methods)]


def _grouped(records: Iterable[Record]) -> dict[str, list[Cell]]:
    """Records by experiment, scale and config, then by method and seed; the first of equals."""
    groups: dict[tuple[str, str, str], dict[str, dict[int, Record]]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for record in filter(_is_ours, records):
        text = json.dumps(record["config"], sort_keys=True)
        configs[text] = record["config"]
        methods = groups.setdefault((record["experiment"], record["scale"], text), {})
        methods.setdefault(record["method"], {}).setdefault(record["seed"], record)
    cells: dict[str, list[Cell]] = {}
    for (experiment, scale, text), networks in groups.items():
        cells.setdefault(experiment, []).append(Cell(experiment, scale, configs[text], networks))
    return cells


def _is_ours(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    config = _part(record, "config")
    texts = all(isinstance(record.get(key), str) for key in ("experiment", "method"))
    numbers = all(
        isinstance(number, int)
        for number in (config.get("n"), config.get("batch"), record.get("seed"))
    )
    return texts and numbers and record.get("scale") in SCALES


def _benchmark(path: Path) -> list[dict[str, Any]]:
    """The content of a benchmark's file, if it is one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [content] if isinstance(content, dict) and "updates" in content else []
