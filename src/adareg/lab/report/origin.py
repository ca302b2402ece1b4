"""The origin of the records: versions, commits, machines and dates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from adareg.lab.report.figures.base import Entry, Table, number
from adareg.lab.run.records import Record

_PARTS = ("device", "torch", "python", "adareg", "commit")


def environments(records: Iterable[Record]) -> Table:
    """A row for each machine and version, with the days of its first and last record."""
    counts: Counter[tuple[str, ...]] = Counter()
    days: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for record in records:
        environment = record["environment"]
        key = (record["experiment"], *(str(environment.get(p) or "unknown") for p in _PARTS))
        counts[key] += 1
        days[key].add(str(environment.get("time", ""))[:10])
    rows = []
    for key, count in sorted(counts.items()):
        *names, commit = key
        commit = commit[:10] + "+" * commit.endswith("+")
        period = " to ".join(sorted({min(days[key]), max(days[key])}))
        cells = [Entry(name, name) for name in (*names, commit, period)]
        rows.append([*cells, number(float(count), 0)])
    head = ["experiment", "device", "torch", "Python", "adareg", "commit", "days", "networks"]
    return Table(
        head, rows, "What made the records; a + after a commit means that the source was changed"
    )


def sources(records: Iterable[Record]) -> list[str]:
    """Return the source and the split of each data set."""
    found: dict[str, None] = {}
    for record in records:
        data = record["data"]
        text = f"{record['config']['data']}: {data.get('source', 'unknown source')}"
        if data.get("split"):
            text += f"; split: {data['split']}"
        found[text] = None
    return sorted(found)


def summary(records: list[Record]) -> dict[str, Any]:
    """Sum up what was run in a few numbers."""
    times = sorted(str(r["environment"].get("time", ""))[:10] for r in records)
    return {
        "networks": len({(str(r["config"]), r["method"], r["seed"]) for r in records}),
        "data": sorted({r["config"]["data"] for r in records}),
        "devices": sorted({str(r["environment"].get("device", "unknown")) for r in records}),
        "first": times[0],
        "last": times[-1],
    }
