"""Running experiments: missing networks are planned, trained and recorded; others stay."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, cast

import torch

import adareg
from adareg.lab import data
from adareg.lab.data import Dataset
from adareg.lab.experiments import Experiment
from adareg.lab.run import cell, records, tuning
from adareg.lab.run.costs import name_of
from adareg.lab.run.records import Record, RecordError, Store
from adareg.lab.train.config import Config
from adareg.lab.train.methods import find as find_method
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Progress, Replica, stacks


@dataclass(frozen=True)
class Job:
    """Networks of one cell that are trained together and recorded together."""

    experiment: str
    scale: str
    config: Config
    replicas: tuple[Replica, ...]

    @property
    def work(self) -> int:
        """Multiply-adds of all forward passes, trials included, to weigh jobs by."""
        per_sample = ARCHITECTURES[self.config.data].multiply_adds
        return tuning.samples_of_all(self.config, self.replicas) * per_sample

    @property
    def title(self) -> str:
        """The name in a progress bar."""
        return f"{self.experiment} {self.config.slug}"


class Reporter(Protocol):
    """Told of everything that happens in a run."""

    def plan(self, jobs: Sequence[Job], finished: int) -> None:
        """Take note of the jobs, and of how many networks were recorded before."""

    def start(self, job: Job) -> None:
        """Take note that a job begins."""

    def advance(self, job: Job, samples: int) -> None:
        """Take note that a job's networks have seen more samples, ``samples`` in all."""

    def lose(self, job: Job, why: str) -> None:
        """Take note that a job's worker is lost, and that the job begins anew."""

    def finish(self, job: Job, path: Path) -> None:
        """Take note that a job is recorded."""


class Sources:
    """Data sets, loaded when first asked for."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._loaded: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._loaded:
            self._loaded[name] = data.load(name, self._directory)
        return self._loaded[name]


def plan(
    experiments: Iterable[Experiment],
    scale: str,
    sources: Sources,
    store: Store,
    seeds: int | None = None,
    methods: Sequence[str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> tuple[list[Job], int]:
    """Return the jobs that are left, and how many networks are recorded already."""
    jobs: list[Job] = []
    finished = 0
    for experiment in experiments:
        chosen = dict.fromkeys(methods or experiment.methods)
        for name in chosen:
            find_method(name)
        count = seeds or experiment.seeds[scale]
        wanted = [Replica(method, seed) for method in chosen for seed in range(count)]
        cells = [config.override(overrides or {}) for config in experiment.cells(scale)]
        for config in dict.fromkeys(_resolve(config, sources) for config in cells):
            cell.check(config, sources[config.data], wanted)
            done = store.done(experiment.name, config)
            _refuse_other_data(done.values(), sources[config.data], store)
            finished += len(done.keys() & set(wanted))
            missing = [replica for replica in wanted if replica not in done]
            groups = stacks(missing)
            jobs += [Job(experiment.name, scale, config, tuple(group)) for group in groups]
    return jobs, finished


def _resolve(config: Config, sources: Sources) -> Config:
    return config if config.n else replace(config, n=sources[config.data].n_train)


def _refuse_other_data(found: Iterable[Record], source: Dataset, store: Store) -> None:
    """SARCOS, for one, is read from a smaller file where the larger one is not there."""
    for record in found:
        if not _same_data(record, source):
            raise RecordError(
                f"{store.root} has records of {record['experiment']} that were trained on other "
                f"data ({record['data'].get('split')}) than are here now "
                f"({source.provenance.get('split')}); choose another folder with --out"
            )


def _same_data(record: Record, source: Dataset) -> bool:
    keys = ("files", "split", "counts")
    return all(record["data"].get(key) == source.provenance.get(key) for key in keys)


class Engine(Protocol):
    """Turns jobs into their records, in any order: here, or on a cluster."""

    def __call__(
        self, jobs: Sequence[Job], sources: Sources, reporter: Reporter
    ) -> Generator[tuple[Job, list[Record]]]:
        """Tell the reporter when a job starts and advances; yield it when it is trained."""


@dataclass(frozen=True)
class Local:
    """The engine of one process: job after job."""

    device: torch.device

    def __call__(
        self, jobs: Sequence[Job], sources: Sources, reporter: Reporter
    ) -> Generator[tuple[Job, list[Record]]]:
        """Train and yield the jobs in their order."""
        for job in jobs:
            reporter.start(job)
            progress = partial(reporter.advance, job)
            yield job, train(job, sources[job.config.data], self.device, progress)


def run(
    jobs: Sequence[Job],
    finished: int,
    sources: Sources,
    store: Store,
    engine: Engine,
    reporter: Reporter,
) -> None:
    """Do all jobs; each is recorded, here, when it ends.

    Records that another experiment has made of the very same cell, from the same data, are
    copied, not made again.
    """
    reporter.plan(jobs, finished)
    for name in dict.fromkeys(job.experiment for job in jobs):
        store.prepare(name)
    for independent in _rounds(jobs):
        left = [rest for job in independent if (rest := _copy(job, sources, store, reporter))]
        if left:
            with closing(engine(left, sources, reporter)) as trained:
                for job, made in trained:
                    reporter.finish(job, store.write(job.experiment, job.config, made))


def _rounds(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs of one round share no network; one that shares some with another can copy it later."""
    rounds: dict[int, list[Job]] = defaultdict(list)
    following: dict[tuple[Config, Replica], int] = defaultdict(int)
    for job in jobs:
        networks = [(job.config, replica) for replica in job.replicas]
        own = max(following[network] for network in networks)
        rounds[own].append(job)
        following.update(dict.fromkeys(networks, own + 1))
    return [rounds[number] for number in sorted(rounds)]


def _copy(job: Job, sources: Sources, store: Store, reporter: Reporter) -> Job | None:
    """Record what another experiment has made already; the job that is left, if any."""
    made = _copies(job, store, sources[job.config.data])
    if not made:
        return job
    there = {(record["method"], record["seed"]) for record in made}
    left = tuple(r for r in job.replicas if (r.method, r.seed) not in there)
    copied = [replica for replica in job.replicas if replica not in left]
    rest = replace(job, replicas=left) if left else job
    path = store.write(job.experiment, job.config, made)
    reporter.start(rest)
    reporter.advance(rest, tuning.samples_of_all(job.config, copied))
    if left:
        return rest
    reporter.finish(job, path)
    return None


def _copies(job: Job, store: Store, source: Dataset) -> list[Record]:
    found = store.elsewhere(job.experiment, job.config)
    return [
        cast(Record, {**found[r], "experiment": job.experiment, "scale": job.scale})
        for r in job.replicas
        if r in found and _same_data(found[r], source)
    ]


def train(job: Job, source: Dataset, device: torch.device, progress: Progress) -> list[Record]:
    """Train the networks of a job; their records. The same in any process, on any machine."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    outcomes = cell.run(job.config, job.replicas, source, device, progress)
    circumstances = {
        "names": list(source.names),
        "data": source.provenance,
        "seconds": (time.perf_counter() - start) / len(outcomes),
        "stacked": len(outcomes),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "environment": environment(device),
    }
    return list(_records(job, outcomes, circumstances))


def _records(
    job: Job, outcomes: Iterable[cell.Outcome], circumstances: dict[str, Any]
) -> Iterator[Record]:
    for outcome in outcomes:
        parts = {
            "metrics": outcome.metrics,
            "curves": outcome.curves,
            "spectra": outcome.spectra,
            "arrays": outcome.arrays,
        }
        yield records.record(
            job.experiment, job.scale, job.config, outcome.replica, parts, circumstances
        )


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit, machine and time."""
    return {
        "adareg": adareg.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "device": name_of(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def commit() -> str | None:
    """The commit of the source tree in use, with ``+`` if it was changed; None if it has none.

    A package that is installed inside somebody else's repository has none.
    """
    if "ADAREG_COMMIT" in os.environ:
        return os.environ["ADAREG_COMMIT"]
    package = Path(adareg.__file__)
    try:
        _git(package.parent, "ls-files", "--error-unmatch", package.name)
        head = _git(package.parent, "rev-parse", "HEAD")
        changed = _git(package.parent, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
