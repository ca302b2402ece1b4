"""One trial: a method learns the training rows of one split and is measured on its test rows."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from adareg.lab.contest import cells, scores
from adareg.lab.contest import problem as problems
from adareg.lab.contest.methods import METHODS, Method
from adareg.lab.contest.problem import Problem
from adareg.lab.contest.suites import CELLS

Record = dict[str, Any]

FORMAT = 1


@dataclass(frozen=True, order=True)
class Trial:
    """What is done once: its table, its split, its method."""

    suite: str
    table: str
    split: int
    method: str

    @property
    def title(self) -> str:
        """A name for people."""
        return f"{self.method} on {self.table} (split {self.split})"


def run(trial: Trial, directory: Path | None, environment: dict[str, Any]) -> Record:
    """Fit, predict and score on one thread; return the record.

    Args:
        trial: what to do.
        directory: of the data.
        environment: versions, commit and machine, for the record.

    Raises:
        ValueError: a prediction is not a finite number, or the method refuses the data.
    """
    kind = cells if trial.suite == CELLS else problems
    problem = kind.load(trial.table, trial.split, directory)
    method = METHODS[trial.method]
    with _one_thread(), _counted_warnings() as warned:
        model, seconds, found = _measured(method, method.build(problem), problem)
    return {
        "format": FORMAT,
        "suite": trial.suite,
        "table": trial.table,
        "split": trial.split,
        "method": trial.method,
        "settings": re.sub(r" at 0x\w+", "", " ".join(repr(model).split())),
        "rows": len(problem.x),
        "inputs": problem.x.shape[1],
        "outputs": problem.classes or problem.outputs,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "scores": found,
        "warnings": dict(warned),
        "environment": environment,
    }


def _measured(
    method: Method, model: Any, problem: Problem
) -> tuple[Any, dict[str, float], dict[str, Any]]:
    """The model, its seconds of one core and its scores.

    Processor time, which other work on the machine does not change; ``noise`` is the time for
    error bars beside a fit.
    """
    started = time.process_time()
    model.fit(problem.x, problem.y)
    fitted = time.process_time()
    noise = None
    if (
        method.noise is not None
        and not problem.classes
        and (problem.outputs == 1 or problem.in_cell)
    ):
        noise = method.noise(model, problem)
    known = time.process_time()
    predicted, deviation = _predictions(method, model, problem, noise)
    ended = time.process_time()
    seconds = {"fit": fitted - started, "noise": known - fitted, "predict": ended - known}
    return model, seconds, _scores(problem, predicted, deviation)


def _predictions(method: Method, model: Any, problem: Problem, noise: float | None) -> Any:
    """What the model says of the test rows, and how sure it is; None if it does not say that."""
    x = problem.x_test
    if problem.classes:
        return scores.probabilities(model, x, problem.classes), None
    if noise is not None:
        return model.predict(x), np.sqrt(noise)
    if problem.outputs > 1 or method.noise is not None:
        return model.predict(x), None
    return model.predict(x, return_std=True)


def _scores(problem: Problem, predicted: Any, deviation: Any) -> dict[str, Any]:
    if not np.isfinite(predicted).all():
        raise ValueError("predictions are not finite")
    y = problem.y_test
    if problem.in_cell:
        return scores.in_cell(y, predicted, deviation)
    if problem.classes:
        return dict(scores.classification(y, predicted))
    predicted = predicted.reshape(y.shape)
    if problem.outputs > 1:
        return scores.multi_target(y, predicted, problem.y.mean(axis=0))
    return dict(scores.regression(y, predicted, np.asarray(deviation).reshape(-1)))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _counted_warnings() -> Iterator[Counter[str]]:
    """Count warnings by category instead of showing them."""
    counted: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield counted
    counted.update(warning.category.__name__ for warning in caught)
