"""Running a contest: what is missing is tried, several trials at once."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from adareg.lab.contest import cells, methods, problem, suites
from adareg.lab.contest.results import Results
from adareg.lab.contest.trial import Record, Trial, run

Tell = Callable[[str], None]

#: Splits are done in blocks of so many: a run that is stopped leaves whole blocks to compare.
BLOCK = 5


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        done: trials that were recorded now.
        failed: those that raised an error, with its text.
        left: those that time did not allow.
    """

    done: list[Trial] = field(default_factory=list)
    failed: dict[Trial, str] = field(default_factory=dict)
    left: list[Trial] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Trials with the seconds that each may take: block by block of splits, long ones first."""

    trials: tuple[tuple[Trial, float], ...]
    finished: int


def plan(
    scale: str,
    results: Results,
    directory: Path | None,
    only: Sequence[str] = (),
    names: Sequence[str] = (),
    again: Sequence[str] = (),
) -> Plan:
    """What there is to do.

    Args:
        scale: "smoke", "small" or "paper".
        results: what has been done is not done again.
        directory: of the data.
        only: suites and tables, as in :func:`suites.choose`.
        names: methods; all if there are none.
        again: methods that are tried again though recorded.

    Raises:
        ValueError: a name stands for nothing.
        DataNotFoundError: a table's file is missing.
    """
    methods.check([*names, *again])
    done = {trial for trial in results.done() if trial.method not in again}
    wanted: dict[Trial, float] = {}
    for suite, tables in suites.choose(scale, only).items():
        for name in tables:
            rows, count = (cells if suite == suites.CELLS else problem).size(name, directory)
            splits = range(min(suites.SPLITS[scale], count))
            for method in methods.choose(suite, scale, names):
                seconds = methods.METHODS[method].estimate(rows)
                wanted |= {Trial(suite, name, split, method): seconds for split in splits}
    missing = [(trial, seconds) for trial, seconds in wanted.items() if trial not in done]
    ordered = sorted(missing, key=lambda item: (item[0].split // BLOCK, -item[1]))
    return Plan(tuple(ordered), len(wanted) - len(missing))


def carry_out(
    planned: Plan,
    results: Results,
    directory: Path | None,
    environment: dict[str, Any],
    jobs: int,
    minutes: float | None,
    tell: Tell,
) -> Outcome:
    """Run the trials of a plan and record each when it is done.

    Args:
        planned: what to do.
        results: where to record.
        directory: of the data.
        environment: versions, commit and machine.
        jobs: processes at once, one thread each; with 1, all is done in this one.
        minutes: after which it stops; trials in progress are lost, and none is begun that is
            not expected to end in time.
        tell: is given a line for each trial.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    engine = _Engine(planned, results, directory, environment, deadline, tell)
    if jobs == 1:
        engine.run_here()
    else:
        engine.run_in_processes(jobs)
    return engine.outcome


class _Engine:
    def __init__(
        self,
        planned: Plan,
        results: Results,
        directory: Path | None,
        environment: dict[str, Any],
        deadline: float | None,
        tell: Tell,
    ) -> None:
        self.waiting = list(planned.trials)
        self.total = len(self.waiting)
        self.results, self.tell = results, tell
        self.arguments = directory, environment
        self.deadline = deadline
        self.outcome = Outcome()

    def run_here(self) -> None:
        """One trial after the other, in this process."""
        while (trial := self._next()) is not None:
            self._finish(trial, _attempt(trial, *self.arguments))
        self.outcome.left = [trial for trial, _ in self.waiting]

    def run_in_processes(self, jobs: int) -> None:
        """A process for each trial, so many at once; those that are late are ended."""
        context = _context()
        running: dict[Connection, tuple[Trial, Any]] = {}
        try:
            while True:
                while len(running) < jobs and (trial := self._next()) is not None:
                    here, there = context.Pipe(duplex=False)
                    process = context.Process(target=_work, args=(there, trial, *self.arguments))
                    process.start()
                    there.close()
                    running[here] = trial, process
                ready = wait(list(running), self._seconds_left()) if running else []
                if not ready:
                    break
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    trial, process = running.pop(pipe)
                    self._finish(trial, _receive(pipe, process))
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.join()
        self.outcome.left = [trial for trial, _ in (*running.values(), *self.waiting)]

    def _next(self) -> Trial | None:
        """The first trial that is expected to end in time."""
        left = self._seconds_left()
        for i, (trial, seconds) in enumerate(self.waiting):
            if left is None or seconds < left:
                del self.waiting[i]
                return trial
        return None

    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _finish(self, trial: Trial, made: Record | str) -> None:
        if isinstance(made, str):
            self.outcome.failed[trial] = made
            text = f"failed: {made}"
        else:
            self.results.add(made)
            self.outcome.done.append(trial)
            text = f"{sum(made['seconds'].values()):.1f} s"
        count = len(self.outcome.done) + len(self.outcome.failed)
        self.tell(f"{count}/{self.total} {trial.title}: {text}")


def _context() -> Any:
    """Processes are copies of one that has imported everything, where there is such a thing."""
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        known_here = [name for name in ("adareg.cli",) if name in sys.modules]
        context.set_forkserver_preload([__name__, *known_here])
    return context


def _work(pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    with pipe:
        pipe.send(_attempt(*arguments))


def _attempt(trial: Trial, directory: Path | None, environment: dict[str, Any]) -> Record | str:
    """The record of a trial, or why there is none."""
    try:
        return run(trial, directory, environment)
    except (
        ValueError,
        ArithmeticError,
        RuntimeError,
        AttributeError,
        MemoryError,
        OSError,
    ) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _receive(pipe: Connection, process: Any) -> Record | str:
    with pipe:
        try:
            made: Record | str = pipe.recv()
        except EOFError:
            process.join()
            return f"its process ended with exit code {process.exitcode}"
    process.join()
    return made


def names_of(trials: Iterable[Trial]) -> str:
    """Titles of some trials, a few of many."""
    titles = [trial.title for trial in trials]
    return ", ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
