"""What training cost, from the records, and what an update costs, from ``adareg bench``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from adareg.lab.records import Record
from adareg.lab.report.figures.base import Cell, Table, number

_RULES = ("alternating", "joint", "dense")


def training(records: Iterable[Record]) -> Table:
    """Seconds of each cell's networks; those of a stack share its time."""
    rows = []
    frame = pd.DataFrame(
        [
            {
                "experiment": r["experiment"],
                "scale": r["scale"],
                "batch": r["config"]["batch"],
                "n": r["config"]["n"],
                "device": r["environment"]["device"],
                "seconds": r["seconds"],
                "stacked": r["stacked"],
                "peak": r.get("peak_bytes") or float("nan"),
            }
            for r in records
        ]
    )
    keys = ["experiment", "scale", "device", "batch", "n"]
    for key, cell in frame.groupby(keys):
        experiment, scale, device, batch, n = cast("tuple[str, str, str, int, int]", key)
        names = [Cell(name, name) for name in (experiment, scale, device)]
        counts = [Cell(str(batch), batch), number(n, 0), number(len(cell), 0)]
        stack = number(float(cell["stacked"].max()), 0)
        times = [number(cell["seconds"].mean(), 3), number(cell["seconds"].sum(), 1)]
        rows.append([*names, *counts, stack, *times, number(cell["peak"].max() / 2**30, 2)])
    head = ["experiment", "scale", "device", "batch", "n", "networks", "largest stack"]
    head += ["seconds per network", "seconds in all", "peak GPU memory, GiB"]
    return Table(head, rows, "Training, by cell. Methods of one stack share its time equally")


def benchmarks(folder: Path) -> list[Table]:
    """Tables of the benchmarks in a folder; none if there are none."""
    found = [(path.stem, _load(path)) for path in sorted(folder.glob("*.json"))]
    updates = [_updates(data) for _, data in found if "updates" in data]
    stacking = [data for _, data in found if "stacked_seconds_per_epoch" in data]
    return [*updates, *([_stacking(stacking)] if stacking else [])]


def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) and "machine" in data else {}


def _updates(data: dict[str, Any]) -> Table:
    rows = []
    for update in data["updates"]:
        times = [update["seconds"].get(rule, {}).get("median") for rule in _RULES]
        cells = [number(float("nan") if t is None else 1000 * t, 3) for t in times]
        size = Cell(f"{update['p']:,} x {update['d']:,}", float(update["p"] * update["d"]))
        rows.append([size, *cells])
    head = ["weight", "AdaReg, ms", "joint rule, ms", "as the paper writes it, ms"]
    machine = data["machine"]
    caption = f"One update of the covariances, median, on {machine['device']} ({machine['date']})"
    return Table(head, rows, caption)


def _stacking(found: list[dict[str, Any]]) -> Table:
    rows = []
    for data in found:
        times = [sorted(data[f"{how}_seconds_per_epoch"]) for how in ("stacked", "alone")]
        medians = [number(1000 * t[len(t) // 2], 1) for t in times]
        device = Cell(str(data["machine"]["device"]), str(data["machine"]["device"]))
        counts = [number(float(data[name]), 0) for name in ("networks", "n", "batch")]
        rows.append([device, *counts, *medians, number(float(data["ratio"]), 1)])
    head = ["device", "networks", "n", "batch", "in a stack, ms", "one by one, ms", "ratio"]
    return Table(head, rows, "One epoch of MNIST networks, in a stack and one by one")
