"""The part of an experiment that is judged and drawn: one scale and variant, never a mixture."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from adareg.lab.experiments import EXPERIMENTS, SCALES, Experiment
from adareg.lab.run.records import Record, frame
from adareg.lab.train.config import Config

#: Reads a number from a record.
Measure = Callable[[Record], float]

#: The fields in which a config differs from the experiment's own, with their values.
Variant = tuple[tuple[str, object], ...]

#: No measure of a network is as large as this.
ABSURD = 1e100


@dataclass(frozen=True)
class Setting:
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

    def like(self, other: Setting, apart: Collection[str]) -> bool:
        """Return whether two configs are the same but for some fields."""
        left, right = (
            {key: value for key, value in setting.config.items() if key not in apart}
            for setting in (self, other)
        )
        return left == right

    def seeds(self, methods: Iterable[str]) -> int:
        """Count the seeds that all the methods have."""
        found = [set(self.networks.get(method, ())) for method in methods]
        return len(set.intersection(*found)) if found else 0

    def records(self, method: str) -> list[Record]:
        """Return the networks of a method that did not diverge, by seed."""
        own = self.networks.get(method, {})
        return [own[seed] for seed in sorted(own) if not own[seed]["metrics"]["diverged"]]

    def values(
        self, method: str, measure: Measure, with_diverged: bool = False
    ) -> dict[int, float]:
        """Return a measure of each network of a method, by seed.

        Those that lack it are left out, as are those that diverged unless they are asked for.
        """
        values = {
            seed: _measured(measure, record)
            for seed, record in self.networks.get(method, {}).items()
            if with_diverged or not record["metrics"]["diverged"]
        }
        return {seed: value for seed, value in values.items() if abs(value) < ABSURD}

    def diverged(self, methods: Iterable[str]) -> int:
        """Count the networks of some methods whose weights are not finite."""
        return sum(
            record["metrics"]["diverged"]
            for method in methods
            for record in self.networks.get(method, {}).values()
        )


def _measured(measure: Measure, record: Record) -> float:
    """Return the measure, or nan where a record lacks it."""
    try:
        return float(measure(record))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return math.nan


@dataclass(frozen=True)
class Study:
    """The records of one experiment at one scale and in one variant.

    Args:
        experiment: which.
        scale: of all records.
        variant: how the configs differ from the experiment's own; empty if they do not.
        records: one for each network.
        left_out: how many networks there are at other scales and in other variants.
    """

    experiment: Experiment
    scale: str
    variant: Variant
    records: tuple[Record, ...]
    left_out: tuple[tuple[str, Variant, int], ...] = ()

    @property
    def command(self) -> str:
        """The command that makes these records, or those that are missing."""
        return command(self.experiment.name, self.scale, self.variant)

    @property
    def rank(self) -> tuple[bool, int]:
        """Higher for what is judged and drawn before others: own configs, then larger scales."""
        return not self.variant, SCALES.index(self.scale)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The networks by config, in the order of batch size and training size."""
        groups: dict[str, list[Record]] = {}
        for record in self.records:
            groups.setdefault(json.dumps(record["config"]), []).append(record)
        settings = [_setting(group) for group in groups.values()]
        return tuple(sorted(settings, key=lambda setting: (setting.batch, setting.n)))

    def frame(self) -> pd.DataFrame:
        """Return one row for each network that did not diverge."""
        rows = frame(self.records)
        return rows[~rows["diverged"]]

    def seeds(self) -> str:
        """Return how many networks stand behind a mean, in words."""
        counts = self.frame().groupby(["n", "batch", "method"]).size()
        if counts.empty:
            return "no seeds"
        low, high = int(counts.min()), int(counts.max())
        return f"{low} seed{'s' * (low > 1)}" if low == high else f"{low} to {high} seeds"

    def notes(self, diverged: str = "are not among the means") -> Iterator[str]:
        """Say what is missing and what was left out; ``diverged`` is what became of those."""
        name = self.experiment.name
        counts = Counter(r["method"] for r in self.records if r["metrics"]["diverged"])
        for method, count in sorted(counts.items()):
            yield f"{name}: networks of {method} that diverged: {count}. They {diverged}."
        if self.variant:
            yield f"{name}: recorded only with changed settings: {told(self.variant)}."
        else:
            yield from self._incomplete()
        for scale, variant, count in self.left_out:
            at = f"scale {scale}" + f" with {told(variant)}" * bool(variant)
            yield f"{name}: {count:,} networks at {at} are left out."

    def _incomplete(self) -> Iterator[str]:
        experiment, seeds = self.experiment, self.experiment.seeds[self.scale]
        planned = len(experiment.cells(self.scale)) * len(experiment.methods) * seeds
        have = sum(r["method"] in experiment.methods and r["seed"] < seeds for r in self.records)
        if have < planned:
            yield (
                f"{experiment.name}: {have:,} of {planned:,} networks are recorded; to train the "
                f"rest: {self.command}"
            )


def _setting(records: list[Record]) -> Setting:
    networks: dict[str, dict[int, Record]] = {}
    for record in records:
        networks.setdefault(record["method"], {})[record["seed"]] = record
    first = records[0]
    return Setting(first["experiment"], first["scale"], first["config"], networks)


def told(variant: Variant) -> str:
    """Return the changed fields of a variant in words."""
    return ", ".join(f"{name} = {value}" for name, value in variant)


def command(experiment: str, scale: str = "paper", variant: Variant = ()) -> str:
    """Return the command that runs an experiment."""
    settings = "".join(f" --set {name}={value}" for name, value in variant)
    return f"adareg reproduce {experiment} --scale {scale}{settings}"


def choose(name: str, records: Iterable[Record]) -> Study:
    """Return the study of an experiment's records.

    Own configs come before changed ones, then the larger scale, then the larger number: a claim is
    judged from what was run as its experiment says, if there is any of it.
    """
    groups = _grouped(EXPERIMENTS[name], records)
    ranked = sorted(
        groups, key=lambda g: (not g[1], SCALES.index(g[0]), len(groups[g]), str(g)), reverse=True
    )
    scale, variant = ranked[0]
    left_out = tuple((*group, len(groups[group])) for group in ranked[1:])
    return Study(EXPERIMENTS[name], scale, variant, tuple(groups[ranked[0]]), left_out)


def _grouped(
    experiment: Experiment, records: Iterable[Record]
) -> dict[tuple[str, Variant], list[Record]]:
    """Return the first record of each network, by scale and variant."""
    known: dict[tuple[str, str], Variant] = {}
    groups: dict[tuple[str, Variant], dict[tuple[object, ...], Record]] = {}
    for record in records:
        cell = record["scale"], json.dumps(record["config"])
        if cell not in known:
            known[cell] = _variant(record, experiment.cells(record["scale"]))
        networks = groups.setdefault((record["scale"], known[cell]), {})
        networks.setdefault((cell, record["method"], record["seed"]), record)
    return {group: list(networks.values()) for group, networks in groups.items()}


def _variant(record: Record, own: list[Config]) -> Variant:
    """Return how a record's config differs from the nearest of the experiment's own."""
    config = record["config"]
    everything = record["data"].get("counts", {}).get("train") or config["n"]
    changes: list[Variant] = []
    for cell in own:
        fields = asdict(cell if cell.n else replace(cell, n=everything))
        different = [name for name in sorted(fields) if fields[name] != config[name]]
        changes.append(tuple((name, config[name]) for name in different))
    return min(changes, key=lambda change: (len(change), str(change)))
