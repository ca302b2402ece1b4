"""What ``adareg reproduce tables`` does and prints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import sklearn  # type: ignore[import-untyped]
import torch
from rich.console import Console

from adareg.lab.contest import NAME, judge, page
from adareg.lab.contest.results import Results
from adareg.lab.contest.run import Outcome, Tell, carry_out, names_of, plan
from adareg.lab.contest.suites import MEASURES, SPLITS, SUITES
from adareg.lab.rounding import written
from adareg.lab.run.plan import environment


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        scale: "smoke", "small" or "paper".
        only: suites, tables, or what tables begin with; all if empty.
        methods: all if empty.
        again: methods that are tried again though recorded.
        jobs: processes at once; by default one for each core.
        minutes: after which it stops.
    """

    scale: str
    only: Sequence[str] = ()
    methods: Sequence[str] = ()
    again: Sequence[str] = ()
    jobs: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in SPLITS:
            raise ValueError(f"--scale {self.scale!r}: expected one of {', '.join(SPLITS)}")


def reproduce(request: Request, directory: Path | None, out: Path, console: Console) -> bool:
    """Run what is missing below ``out``; return whether nothing failed.

    Raises:
        ValueError: a name stands for nothing.
        OSError: a table is missing, or results cannot be written.
    """
    results = Results(out / NAME)
    results.prepare()
    planned = plan(request.scale, results, directory, request.only, request.methods, request.again)
    seconds = sum(seconds for _, seconds in planned.trials)

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    tell(
        f"{len(planned.trials)} trials to do, about {_duration(seconds)} of one core; "
        f"{planned.finished} recorded already"
    )
    jobs = request.jobs or os.cpu_count() or 1
    versions = {**environment(torch.device("cpu")), "scikit-learn": sklearn.__version__}
    outcome = carry_out(planned, results, directory, versions, jobs, request.minutes, tell)
    _conclude(outcome, results, tell)
    return not outcome.failed


def _duration(seconds: float) -> str:
    """A number of seconds, or of minutes from two on."""
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _conclude(outcome: Outcome, results: Results, tell: Tell) -> None:
    if outcome.left:
        tell(
            f"stopped in time: {len(outcome.left)} trials are left ({names_of(outcome.left)}); "
            "run the same command to go on"
        )
    if outcome.failed:
        tell(f"{len(outcome.failed)} trials failed: {names_of(outcome.failed)}")
    tell(f"{len(outcome.done)} trials recorded below {results.root}")
    for line in summary(results.frame()):
        tell(line)


def summary(rows: pd.DataFrame) -> Iterator[str]:
    """A line for each measure: average ranks, the best first."""
    if rows.empty:
        return
    every = judge.with_published(rows)
    for suite in judge.suites_of(rows):
        for measure in SUITES[suite].measures[:2]:
            found = judge.standing(every[every["suite"] == suite], measure)
            if found is not None:
                ranks = (
                    f"{page.label(str(m))} {written(rank, 1)}" for m, rank in found.average.items()
                )
                yield f"{suite}, average ranks by {MEASURES[measure].label}: {', '.join(ranks)}"
