"""The benchmark as a whole: run it, print it, write it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

import adareg
from adareg.bench import growth, steps, trainings, updates

Record = dict[str, Any]


class Target(NamedTuple):
    """A ratio (or a time) that we want to reach, read from the record."""

    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def reached(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def run(
    device: torch.device, seconds: float, largest: int | None, log: Callable[[str], None]
) -> Record:
    """Measure everything, ``seconds`` for each comparison, and return one record."""
    record: Record = {"machine": machine(device), "updates": [], "steps": [], "trainings": []}
    for p, d in updates.shapes_for(device, largest):
        log(f"update, {p} x {d}")
        record["updates"].append(updates.measure(p, d, device, seconds))
    for workload in steps.WORKLOADS:
        if device.type in workload.devices:
            for variant in steps.VARIANTS[device.type]:
                log(f"step, {workload.name}, {variant}")
                record["steps"].append(steps.measure(workload, variant, device, 2 * seconds))
    for training in trainings.WORKLOADS:
        if device.type in training.devices:
            log(f"training, {training.name}")
            row = trainings.measure(training, device, 4 * seconds)
            record["trainings"].append({**row, "machine": machine(device)})
    log("growth")
    record["growth"] = growth.measure(device, 4 * seconds)
    record["targets"] = [
        target._asdict() | {"reached": target.reached} for target in targets(record)
    ]
    return record


def machine(device: torch.device) -> Record:
    """What was measured on, and when."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "adareg": adareg.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def targets(record: Record) -> Iterator[Target]:
    """The ratios that the benchmark is judged by, as far as the record has them."""
    on_gpu = record["machine"]["cuda"] is not None
    wanted = {(1000, 2048): 40, (1000, 4096): 250} if on_gpu else {(10, 500): 100, (1000, 2048): 8}
    for row in record["updates"]:
        size, median = f"{row['p']} x {row['d']}", _medians(row)
        if (limit := wanted.get((row["p"], row["d"]))) and "dense" in median:
            yield Target(f"dense / joint, {size}", median["dense"] / median["joint"], limit, True)
        yield Target(
            f"alternating / joint, {size}", median["alternating"] / median["joint"], 2.5, False
        )
        if (row["p"], row["d"]) == (128256, 4096):
            yield Target(f"seconds, joint, {size}", median["joint"], 0.35, False)
            yield Target(f"extra memory / weight, {size}", row["extra_memory"]["joint"], 2, False)
        for name, error in (row["error"] or {}).items():
            yield Target(
                f"error, {name}, {size}", error, 1e-2 if "bfloat16" in name else 1e-5, False
            )
    for row in record["steps"]:
        median, name = _medians(row), f"{row['workload']}, {row['variant']}"
        for mode in steps.MODES:
            ratio = median[mode] / median["without"]
            yield Target(f"step, {name}, {mode}", ratio, _step_limit(row, on_gpu), False)
    for row in record.get("trainings", []):
        median = _medians(row)
        ratio = median["with EvidenceReg"] / median["plain Adam"]
        yield Target(f"training, {row['workload']}", ratio, _training_limit(on_gpu), False)


def _training_limit(on_gpu: bool) -> float:
    return 1.1 if on_gpu else 1.2


def _step_limit(row: Record, on_gpu: bool) -> float:
    if row["workload"].startswith("ResNet"):
        return 1.15
    if row["workload"].startswith("MNIST") and (not on_gpu or row["variant"] == "graph"):
        return 1.03
    return 1.10


def _medians(row: Record) -> dict[str, float]:
    return {name: timing["median"] for name, timing in row["seconds"].items()}


def show(record: Record, console: Console) -> None:
    """Print the tables, the ratios last."""
    about = record["machine"]
    console.print(f"{about['device']}, torch {about['torch']}, {about['threads']} threads")
    title = "one update, ms (quartiles), peak memory on top of the weight"
    console.print(_table(title, record["updates"], _shape))
    console.print(
        _table(
            "one training step, ms (quartiles), peak memory of the step", record["steps"], _workload
        )
    )
    title = "one training, one thread of a CPU, s (quartiles)"
    console.print(_table(title, record.get("trainings", []), _training, 1.0))
    verdict = Table(title="what it comes to", box=None)
    for column in ("", "measured", "wanted", "reached"):
        verdict.add_column(column, justify="left" if column == "" else "right")
    for target in targets(record):
        sign = "≥" if target.at_least else "≤"
        answer = "yes" if target.reached else "[bold red]no[/]"
        verdict.add_row(target.what, f"{target.value:.3g}", f"{sign} {target.limit:g}", answer)
    console.print(verdict)


def _table(
    title: str, rows: list[Record], label: Callable[[Record], str], unit: float = 1e3
) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    table = Table("", *names, title=title, box=None)
    for row in rows:
        cells = [_cell(row, name, unit) for name in names]
        table.add_row(label(row), *cells)
    return table


def _cell(row: Record, name: str, unit: float) -> str:
    if name not in row["seconds"]:
        return "–"
    low, median, high = (unit * row["seconds"][name][key] for key in ("low", "median", "high"))
    memory = ""
    if "extra_memory" in row:
        memory = f", {row['extra_memory'][name] * 4 * row['p'] * row['d'] / 2**20:.0f} MiB"
    elif name in row.get("peak_bytes", {}):
        memory = f", {row['peak_bytes'][name] / 2**20:.0f} MiB"
    return f"{median:.3g} ({low:.3g}–{high:.3g}){memory}"


def _shape(row: Record) -> str:
    return f"{row['p']} x {row['d']}"


def _training(row: Record) -> str:
    return str(row["workload"])


def _workload(row: Record) -> str:
    return f"{row['workload']}, {row['variant']}"


def save(record: Record, folder: Path) -> list[Path]:
    """Write the record as JSON and the growth figure as SVG; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "cuda" if record["machine"]["cuda"] else "cpu"
    paths = [folder / f"{name}.json", folder / f"{name}-growth.svg"]
    temporary = paths[0].with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(paths[0])
    draw_growth(record, paths[1])
    return paths


def draw_growth(record: Record, path: Path) -> None:
    """Update and step time against size, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    by_size, by_count = figure.subplots(1, 2)
    for name, points in record["growth"].items():
        axes = by_count if "layers" in name else by_size
        sizes = [point["size"] for point in points]
        axes.loglog(sizes, [1e3 * point["seconds"] for point in points], "o-", label=name)
    by_size.set(xlabel="d or n", ylabel="milliseconds", title="one layer, joint rule")
    by_count.set(
        xlabel="number of layers m", ylabel="milliseconds", title="many layers of one shape"
    )
    for axes in (by_size, by_count):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.suptitle(f"{record['machine']['device']}, torch {record['machine']['torch']}")
    figure.savefig(path, metadata={"Date": None})
