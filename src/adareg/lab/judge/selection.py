"""The networks that are judged; figures draw the same."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.judge.study import Setting, Study, choose
from adareg.lab.run.records import Record, Store


class Records:
    """Everything a claim may be judged from: a study of each experiment, and the benchmarks.

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
        self.networks = tuple(records)
        self.benchmarks = tuple(benchmarks)
        self.unreadable = tuple(unreadable)
        grouped: dict[str, list[Record]] = defaultdict(list)
        for record in self.networks:
            grouped[record["experiment"]].append(record)
        self.studies: dict[str, Study] = {
            name: choose(name, grouped[name]) for name in EXPERIMENTS if name in grouped
        }

    @classmethod
    def of(cls, store: Store) -> Records:
        """Return all records of a store, and the benchmarks in ``bench/`` inside or beside it."""
        unreadable: list[str] = []
        records = store.read(unreadable=unreadable)
        folders = (store.root / "bench", store.root.parent / "bench")
        paths = [path for folder in folders for path in sorted(folder.glob("*.json"))]
        return cls(list(records), [b for path in paths for b in _benchmark(path)], unreadable)

    @property
    def foreign(self) -> list[str]:
        """Records of no experiment, in words."""
        counts = Counter(r["experiment"] for r in self.networks)
        return [
            f"records of {name!r}, which is no experiment: {count:,}"
            for name, count in sorted(counts.items())
            if name not in EXPERIMENTS
        ]

    def together(self, *experiments: str) -> list[Study]:
        """Return the studies of some experiments that may be compared.

        They are of one scale, and all of own configs or all of changed ones.
        """
        found = [self.studies[name] for name in experiments if name in self.studies]
        best = max((study.rank for study in found), default=None)
        return [study for study in found if study.rank == best]

    def behind(self, settings: Iterable[Setting]) -> list[Study]:
        """Return the studies that some settings belong to."""
        names = dict.fromkeys(setting.experiment for setting in settings)
        return [self.studies[name] for name in names]

    def scale(self, *experiments: str) -> str | None:
        """Return the scale of the studies that may be compared; None if there are none."""
        return next((study.scale for study in self.together(*experiments)), None)

    def settings(
        self, experiments: Sequence[str], methods: Sequence[str], **where: int | None
    ) -> list[Setting]:
        """Return one setting for each batch size and training size, in that order.

        Where several experiments have networks of the same size, it is that with the most seeds of
        all ``methods``; the first of equals.

        Args:
            experiments: where to look.
            methods: what will be compared.
            where: fields of the config that must have a value; None for any.
        """
        wanted = {key: value for key, value in where.items() if value is not None}
        groups: dict[tuple[int, int], list[Setting]] = defaultdict(list)
        for setting in (s for study in self.together(*experiments) for s in study.settings):
            if all(setting.config[key] == value for key, value in wanted.items()):
                groups[setting.batch, setting.n].append(setting)
        best = [max(groups[size], key=lambda s: s.seeds(methods)) for size in sorted(groups)]
        return [setting for setting in best if not setting.networks.keys().isdisjoint(methods)]


def _benchmark(path: Path) -> list[dict[str, Any]]:
    """Return the content of a benchmark's file, if it is one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [content] if isinstance(content, dict) and "updates" in content else []
