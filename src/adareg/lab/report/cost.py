"""Tables of cost: training, from the records, and updates, from ``adareg bench``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from adareg.lab.report.figures.base import Entry, Table, number
from adareg.lab.run.records import Record

_RULES = ("alternating", "joint", "dense")


def training(records: Iterable[Record], by_cell: bool = False) -> Table:
    """Seconds of networks, for each experiment or each of its cells; a stack shares its time."""
    frame = pd.DataFrame([_row(record) for record in records])
    keys = ["experiment", "scale", "device", *(["batch", "n"] if by_cell else [])]
    rows = []
    for key, cell in frame.groupby(keys):
        names = [Entry(str(name), name) for name in cast("tuple[str | int, ...]", key)]
        times = [number(cell["seconds"].mean(), 3), number(cell["seconds"].sum() / 60, 2)]
        stack = number(float(cell["stacked"].max()), 0)
        memory = number(cell["peak"].max() / 2**30, 2)
        rows.append([*names, number(len(cell), 0), stack, *times, memory])
    head = [*keys, "networks", "largest stack", "seconds per network", "minutes in all"]
    what = "by cell" if by_cell else "by experiment; networks that experiments share count in each"
    caption = f"Training, {what}. Methods of one stack share its time equally"
    return Table([*head, "peak GPU memory, GiB"], rows, caption)


def _row(record: Record) -> dict[str, Any]:
    return {
        "experiment": record["experiment"],
        "scale": record["scale"],
        "device": str(record["environment"].get("device", "unknown")),
        "batch": record["config"]["batch"],
        "n": record["config"]["n"],
        "seconds": record["seconds"],
        "stacked": record["stacked"],
        "peak": record.get("peak_bytes") or float("nan"),
    }


def benchmarks(root: Path) -> list[Table]:
    """Tables of the benchmarks in ``bench`` inside or beside a folder; none if there are none."""
    paths = [*sorted(root.glob("bench/*.json")), *sorted(root.parent.glob("bench/*.json"))]
    found = [data for path in paths if (data := _load(path))]
    steps = [data for data in found if "steps" in data]
    stacking = [data for data in found if "stacked_seconds_per_epoch" in data]
    tables = [_updates(data) for data in found if "updates" in data]
    return [
        *([_steps(steps)] if steps else []),
        *([_stacking(stacking)] if stacking else []),
        *tables,
    ]


def _steps(found: list[dict[str, Any]]) -> Table:
    """A step of training without AdaReg and with it."""
    rows = []
    for data in found:
        for step in data["steps"]:
            names = (data["machine"]["device"], step["workload"], step["variant"])
            ms = [1000 * step["seconds"][how]["median"] for how in ("without", "coupled")]
            more = 100 * (ms[1] / ms[0] - 1)
            numbers = [number(ms[0], 2), number(ms[1], 2), number(more, 1, sign=True)]
            rows.append([*(Entry(str(name), str(name)) for name in names), *numbers])
    head = ["device", "what", "variant", "without, ms", "with AdaReg, ms", "more, %"]
    return Table(head, rows, "One step of training, without and with AdaReg: medians")


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
        size = Entry(f"{update['p']:,} x {update['d']:,}", float(update["p"] * update["d"]))
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
        device = Entry(str(data["machine"]["device"]), str(data["machine"]["device"]))
        counts = [number(float(data[name]), 0) for name in ("networks", "n", "batch")]
        rows.append([device, *counts, *medians, number(float(data["ratio"]), 1)])
    head = ["device", "networks", "n", "batch", "in a stack, ms", "one by one, ms", "ratio"]
    return Table(head, rows, "One epoch of MNIST networks, in a stack and one by one")
