"""A run in the terminal: live progress, and the list of what is recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from adareg.lab import contest
from adareg.lab.experiments import EXPERIMENTS, GROUPS, SCALES
from adareg.lab.run.plan import Job
from adareg.lab.run.records import NoRecordsError, Store
from adareg.lab.train.networks import ARCHITECTURES


class Terminal:
    """Tells a terminal (or a log file) how a run goes; a ``plan.Reporter``."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, rate="")
        self._running: dict[Job, _Clock] = {}
        self.done = self.total = 0

    def __enter__(self) -> Terminal:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def plan(self, jobs: Sequence[Job], finished: int) -> None:
        """Say how many networks there are to train, and how many were recorded before."""
        networks = sum(len(job.replicas) for job in jobs)
        self.total = len(jobs)
        self.console.print(f"{networks} networks to train, {finished} recorded already")
        self._bar.update(self._task, total=max(1, sum(job.work for job in jobs)))

    def start(self, job: Job) -> None:
        """Show that a job begins."""
        self._running[job] = _Clock()
        self._describe(job)

    def advance(self, job: Job, samples: int) -> None:
        """Show that the networks of a job have seen more samples, ``samples`` in all."""
        self._running[job].samples += samples
        rate = _count(sum(clock.rate for clock in self._running.values()))
        work = samples * ARCHITECTURES[job.config.data].multiply_adds
        self._bar.update(self._task, advance=work, rate=f"{rate} samples/s")

    def lose(self, job: Job, why: str) -> None:
        """Say that a job's worker is lost, and that the job begins anew."""
        if job in self._running:
            self.advance(job, -self._running[job].samples)
            del self._running[job]
        self.console.print(f"{job.title}: {why}; trying again", highlight=False)

    def finish(self, job: Job, path: Path) -> None:
        """Say that a job is recorded."""
        self.done += 1
        clock = self._running.pop(job)
        self.console.print(
            f"{self.done}/{self.total} {job.title}: {len(job.replicas)} networks "
            f"in {clock.seconds:.1f} s, {_count(clock.rate)} samples/s",
            highlight=False,
        )
        if self._running:
            self._describe(next(iter(self._running)))

    def _describe(self, job: Job) -> None:
        others = f" (and {len(self._running) - 1} more)" if len(self._running) > 1 else ""
        self._bar.update(
            self._task, description=f"{job.title}, {len(job.replicas)} networks{others}"
        )


class _Clock:
    """The speed of a job."""

    def __init__(self) -> None:
        self._start, self.samples = time.perf_counter(), 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


def say(console: Console, line: str) -> None:
    """Print a line with a path in it as it is: neither broken nor read as markup."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _count(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def experiments(console: Console) -> None:
    """List the experiments, a line for each group of them."""
    grouped = {experiment.name for group in GROUPS.values() for experiment in group}
    table = Table.grid(padding=(0, 2))
    for name, experiment in EXPERIMENTS.items():
        if name not in grouped:
            table.add_row(name, f"{experiment.what} ({experiment.figure})")
    for name, group in GROUPS.items():
        members = ", ".join(experiment.name for experiment in group)
        table.add_row(name, f"few samples, every method tuned (not in the paper): {members}")
    table.add_row(contest.NAME, f"{contest.WHAT} (not in the paper)")
    console.print(table, highlight=False)
    for line in (
        "",
        f"adareg reproduce NAME --scale {'|'.join(SCALES)}",
        f"adareg reproduce {contest.NAME} --help: options of its own",
    ):
        say(console, line)


def runs(store: Store, console: Console, unreadable: list[str]) -> None:
    """List what has been recorded.

    Args:
        store: the records.
        console: where to print.
        unreadable: a list to which is added why a file cannot be read.

    Raises:
        NoRecordsError: nothing has.
    """
    frame = store.frame(unreadable=unreadable)
    if frame.empty:
        raise NoRecordsError(store.root)
    table = Table(
        "experiment", "scale", "n", "batch", "methods", "seeds", "networks", "minutes",
        box=None, pad_edge=False,
    )  # fmt: skip
    for (experiment, scale, batch, n), cell in frame.groupby(["experiment", "scale", "batch", "n"]):
        row = (
            experiment,
            scale,
            f"{n:,}",
            batch,
            cell["method"].nunique(),
            cell["seed"].nunique(),
            len(cell),
            f"{cell['seconds'].sum() / 60:.1f}",
        )
        table.add_row(*map(str, row))
    console.print(table)
