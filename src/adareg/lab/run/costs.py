"""The cost of a method: one network trained alone, by an ordinary loop, beside a plain one.

The time of a stack says nothing about it, as a stack shares its steps among all methods.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from adareg._threads import SMALL_STEP, one_thread
from adareg.lab import data
from adareg.lab.data import Dataset
from adareg.lab.run.records import Record, Store
from adareg.lab.run.schema import Metrics
from adareg.lab.run.tuning import samples, trainings
from adareg.lab.train.config import Config
from adareg.lab.train.ingredients.workshop import workshop_of
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.plain_loop import Training
from adareg.lab.train.stacked import Replica, products

#: Turns that are timed, at most, after those to warm up; a rare part is timed once every seven.
_TURNS, _WARM_UP, _RARE = 25, 4, 7

#: Steps in a turn, at most: one alone would find its data and code pushed out of the caches.
_BURST = 10


def measure(
    config: Config, methods: Iterable[str], source: Dataset, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Return the metrics of each method's cost: of a network alone, and of all that go into it.

    A network without a regularizer takes its turns beside them: ratios to it (``plain_seconds``)
    hold on any machine, seconds only on this one. Where a network is trained fastest: on the
    device if it has convolutions, else on a CPU.
    """
    where = workshop_of(ARCHITECTURES[config.data], device)
    names = list(dict.fromkeys(["none", *methods]))
    step = min(config.batch, config.n) * ARCHITECTURES[config.data].multiply_adds
    with one_thread(step < SMALL_STEP), products(config.precision) as dtype:
        x = source.x_train.to(where, dtype)
        y = source.y_train.to(where, dtype if source.task == "regression" else None)
        taken = dict(zip(names, seconds([Replica(m, 0) for m in names], config, x, y), strict=True))
    return {
        method: {
            "trainings": trainings(config, method),
            "samples": samples(config, method),
            "alone_seconds": taken[method],
            "plain_seconds": taken["none"],
            "timed_on": name_of(where),
        }
        for method in methods
    }


def name_of(device: torch.device) -> str:
    """Return the machine's name of a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def measure_again(
    store: Store,
    experiments: str,
    directory: Path | None,
    device: torch.device,
    environment: dict[str, Any],
) -> Iterator[tuple[str, Config]]:
    """Replace the costs in the records of some experiments by what they are here and now.

    Where several processes share a machine, or a cell's methods were not all trained at once,
    costs are those of the crowd. Best done when the machine has nothing else to do.

    Args:
        store: the records.
        experiments: their names, as a glob pattern.
        directory: of the data sets.
        device: where networks with convolutions are timed.
        environment: versions, commit and time, kept in the records as ``timed``.

    Yields:
        Each cell, before it is timed.
    """
    found: dict[tuple[str, str], tuple[Config, dict[str, None]]] = {}
    for record in store.read(experiments):
        if record["config"]["trials"]:
            config = Config(**record["config"])
            _, methods = found.setdefault((record["experiment"], config.digest), (config, {}))
            methods[record["method"]] = None
    for (experiment, _), (config, methods) in found.items():
        yield experiment, config
        costs = measure(config, methods, data.load(config.data, directory), device)
        store.rewrite(experiment, config, partial(_with_cost, costs, environment))


def _with_cost(
    costs: dict[str, dict[str, Any]], environment: dict[str, Any], record: Record
) -> Record:
    metrics = cast(Metrics, {**record["metrics"], **costs[record["method"]]})
    return {**record, "metrics": metrics, "timed": environment}


def seconds(replicas: Sequence[Replica], config: Config, x: Tensor, y: Tensor) -> list[float]:
    """Return the seconds of training each replica alone, from its parts, side by side.

    A part is a step, an update, a look at held-out samples. Its time is the median of many
    turns, between which the other replicas have theirs; then it counts as often as it occurs in
    a training. Dropout is torch's own, whose masks are cheaper than repeatable ones.
    """
    trained = [Training(replica, config, x, y) for replica in replicas]
    for training in trained:
        training.take_ordinary_dropout()
    parts = [_parts(training) for training in trained]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        for turn in range(_WARM_UP + min(_TURNS, config.blocks * config.epochs // 2)):
            for part in chain.from_iterable(parts):
                if turn % part.every == 0:
                    part.times.append(_time(part.run, part.burst, x.device))
    return [sum(part.count * part.seconds for part in own) for own in parts]


@dataclass
class _Part:
    """A part that occurs ``count`` times in a training, and is timed once every ``every`` turns."""

    run: Callable[[], None]
    count: int
    every: int = _RARE
    burst: int = 1
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median, the first turns left out."""
        return median(self.times[-(-_WARM_UP // self.every) :] or self.times)


def _parts(training: Training) -> list[_Part]:
    config, (_, batches) = training.config, next(training.epochs())
    epochs = config.blocks * config.epochs
    steps = epochs * math.ceil(config.n / config.batch)
    burst = min(_BURST, -(-steps // 100))
    parts = [_Part(partial(training.step, *next(batches)), steps, 1, burst)]
    occasions = chain.from_iterable(part.occasions() for part in training.parts)
    return parts + [_Part(*occasion) for occasion in occasions]


def _time(part: Callable[[], None], burst: int, device: torch.device) -> float:
    """Seconds of one call, in a row of some."""
    start = time.perf_counter()
    for _ in range(burst):
        part()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / burst
