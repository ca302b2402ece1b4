"""Which records a page draws: one scale and one setting of each experiment, never a mixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from adareg.lab.experiments import EXPERIMENTS, SCALES, Experiment
from adareg.lab.run.records import Record, Store
from adareg.lab.train.config import Config

#: A setting: the fields in which a cell differs from the experiment's own, with their values.
Variant = tuple[tuple[str, object], ...]


def readable(store: Store, unreadable: list[str] | None = None) -> tuple[list[Record], list[str]]:
    """All records, and which of them are of no experiment, in words.

    Args:
        store: the records.
        unreadable: as in ``Store.read``.
    """
    records = list(store.read(unreadable=unreadable))
    unknown = Counter(r["experiment"] for r in records if r["experiment"] not in EXPERIMENTS)
    foreign = [f"records of {name!r}, no experiment: {n:,}" for name, n in sorted(unknown.items())]
    return records, foreign


@dataclass(frozen=True)
class Study:
    """What one experiment has recorded, at one scale and in one setting.

    Args:
        experiment: which.
        scale: the largest that has records.
        variant: how its settings differ from the experiment's own; empty if they do not.
        records: one for each network.
        notes: what a reader has to know: what is missing, what was left out.
    """

    experiment: Experiment
    scale: str
    variant: Variant
    records: tuple[Record, ...]
    notes: tuple[str, ...]

    @property
    def command(self) -> str:
        """What makes these records, or those that are missing."""
        return command(self.experiment.name, self.scale, self.variant)

    def frame(self) -> pd.DataFrame:
        """One row for each network that did not diverge."""
        rows = pd.DataFrame([_row(record) for record in self.records])
        return rows[~rows["diverged"].astype(bool)].drop(columns="diverged")

    def seeds(self) -> str:
        """How many networks stand behind a mean, in words."""
        counts = self.frame().groupby(["n", "batch", "method"]).size()
        if counts.empty:
            return "no seeds"
        low, high = int(counts.min()), int(counts.max())
        return f"{low} seed{'s' * (low > 1)}" if low == high else f"{low} to {high} seeds"


def _row(record: Record) -> dict[str, Any]:
    last = list(record["spectra"])[-1]
    numbers = {k: v for k, v in record["metrics"].items() if not isinstance(v, list)}
    cell = {name: record["config"][name] for name in ("data", "n", "batch", "blocks", "epochs")}
    keys = {"method": record["method"], "seed": record["seed"]}
    return {**cell, **keys, "diverged": False, **numbers, **record["spectra"][last]}


def command(experiment: str, scale: str = "paper", variant: Variant = ()) -> str:
    """The command that runs an experiment."""
    settings = "".join(f" --set {name}={value}" for name, value in variant)
    return f"adareg reproduce {experiment} --scale {scale}{settings}"


def select(records: Iterable[Record]) -> dict[str, Study]:
    """The study of each experiment that has records, in the order of ``EXPERIMENTS``."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record["experiment"], []).append(record)
    return {
        name: _choose(EXPERIMENTS[name], grouped[name]) for name in EXPERIMENTS if name in grouped
    }


def _choose(experiment: Experiment, records: list[Record]) -> Study:
    """Own settings before changed ones, then the larger scale, then the larger number."""
    groups: dict[tuple[str, Variant], list[Record]] = {}
    own = {scale: experiment.cells(scale) for scale in SCALES}
    for record in _unique(records):
        group = record["scale"], variant(record, own[record["scale"]])
        groups.setdefault(group, []).append(record)
    ranked = sorted(
        groups, key=lambda g: (not g[1], SCALES.index(g[0]), len(groups[g]), str(g)), reverse=True
    )
    scale, changes = ranked[0]
    chosen = groups[ranked[0]]
    notes = [*_incomplete(experiment, scale, changes, chosen)]
    notes += [_left_out(experiment.name, *group, len(groups[group])) for group in ranked[1:]]
    return Study(experiment, scale, changes, tuple(chosen), tuple(notes))


def _unique(records: Iterable[Record]) -> list[Record]:
    """The first of the records of one network."""
    seen: dict[tuple[object, ...], Record] = {}
    for r in records:
        key = (r["scale"], str(sorted(r["config"].items())), r["method"], r["seed"])
        seen.setdefault(key, r)
    return list(seen.values())


def variant(record: Record, own: list[Config]) -> Variant:
    """How a record's cell differs from the nearest of the experiment's own."""
    config = record["config"]
    everything = record["data"].get("counts", {}).get("train")
    changes: list[Variant] = []
    for cell in own:
        fields = asdict(replace(cell, n=everything) if cell.n == 0 and everything else cell)
        names = sorted(fields.keys() | config.keys())
        different = [name for name in names if fields.get(name) != config.get(name)]
        changes.append(tuple((name, config.get(name)) for name in different))
    return min(changes, key=lambda change: (len(change), str(change)))


def _incomplete(
    experiment: Experiment, scale: str, changes: Variant, records: list[Record]
) -> Iterator[str]:
    diverged = Counter(r["method"] for r in records if r["metrics"].get("diverged"))
    for method, count in sorted(diverged.items()):
        yield (
            f"{experiment.name}: networks of {method} that diverged, and are not among the means: "
            f"{count}."
        )
    if changes:
        settings = ", ".join(f"{name} = {value}" for name, value in changes)
        yield f"{experiment.name}: not its own setting, which is not recorded, but {settings}."
        return
    planned = len(experiment.cells(scale)) * len(experiment.methods) * experiment.seeds[scale]
    have = sum(
        r["method"] in experiment.methods and r["seed"] < experiment.seeds[scale] for r in records
    )
    if have < planned:
        yield (
            f"{experiment.name}: not complete, {have:,} of {planned:,} networks are recorded; "
            f"the rest: {command(experiment.name, scale)}"
        )


def _left_out(name: str, scale: str, changes: Variant, count: int) -> str:
    settings = ", ".join(f"{field} = {value}" for field, value in changes)
    at = f"scale {scale}" + f" with {settings}" * bool(settings)
    return f"{name}: {count:,} networks at {at} are left out."
