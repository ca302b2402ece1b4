"""The cells of the small-data benchmark as problems, for linear models beside its networks.

A cell is a data set at a training size, a split is a seed: the samples of the networks of that
seed, prepared as for them. Tests and figures of the benchmark are those of its own page.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from adareg.lab import data
from adareg.lab.contest.problem import Problem
from adareg.lab.data import files
from adareg.lab.experiments.smalldata import CONTESTS, EXPERIMENTS, PREFIX
from adareg.lab.train import draws

CELLS = tuple(f"{PREFIX}{contest.data}-{n}" for contest in CONTESTS for n in contest.sizes)
SEEDS = EXPERIMENTS[0].seeds["paper"]


def parse(name: str) -> tuple[str, int]:
    """The data set and the training size of a cell.

    >>> parse("smalldata-digits-completion-50")
    ('digits-completion', 50)
    """
    dataset, _, size = name.removeprefix(PREFIX).rpartition("-")
    return dataset, int(size)


def size(name: str, directory: Path | None) -> tuple[int, int]:
    """How many samples a cell has, and how many seeds; its data must be there."""
    dataset, n = parse(name)
    files.locate(dataset, data.source_of(dataset), directory)
    return n, SEEDS


def load(name: str, seed: int, directory: Path | None) -> Problem:
    """The samples that the networks of a seed are trained on, and all test samples."""
    dataset, n = parse(name)
    source = data.load(dataset, directory)
    rows = draws.subset(source.n_train, n, seed)
    x, x_test = (part.flatten(1).double().numpy() for part in (source.x_train[rows], source.x_test))
    return Problem(
        x=pd.DataFrame(x),
        y=source.y_train[rows].numpy(),
        x_test=pd.DataFrame(x_test),
        y_test=source.y_test.numpy(),
        classes=len(source.names) if source.task == "classification" else 0,
        seed=seed,
        in_cell=True,
    )
