"""The small-data benchmark: every method at its tuned best, a cell for each data set and size.

Whatever a method tunes, it tunes on a fifth of its own n samples, 16 values for everybody, and is
then trained on all of them. The evidence rule has nothing to tune. All methods of a cell share
network, optimizer, learning rate and number of steps; a fixed number of steps, not of epochs, as
with few samples an epoch is one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adareg.lab.experiments.base import Experiment
from adareg.lab.train.config import Config

PREFIX = "smalldata-"

#: Data sets by which the constants of the evidence rule were chosen; it has an advantage there.
DEVELOPMENT = ("digits", "digits-completion", "wine", "breast-cancer", "diabetes")

#: Who competes.
METHODS = (
    "none",
    "early-stopping",
    "weight-decay",
    "dropout",
    "batch-norm",
    "decov",
    "adareg",
    "marginal-likelihood",
    "evidence",
    "evidence+dropout",
)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A data set's part of the benchmark.

    Args:
        data: its name.
        what: what is predicted.
        sizes: training sizes at scale "paper".
        few: those at scale "small".
        lr: the learning rate of all methods.
        heavy: whether two cores need fewer trials and steps to be done in minutes.
    """

    data: str
    what: str
    sizes: tuple[int, ...]
    few: tuple[int, ...]
    lr: float = 2e-3
    heavy: bool = False

    def cells(self, scale: str) -> list[Config]:
        """A cell for each training size: ten blocks, and 1,000 steps of 64 samples or fewer."""
        if scale == "smoke":
            return [self._cell(20, steps=10 if self.heavy else 60, trials=2, blocks=2, test=100)]
        if scale == "paper":
            return [self._cell(n, steps=1000, trials=16) for n in self.sizes]
        light = {"steps": 100, "trials": 4, "test": 1000}
        chosen = light if self.heavy else {"steps": 600, "trials": 16}
        return [self._cell(n, **chosen) for n in self.few]

    def _cell(self, n: int, steps: int, trials: int, blocks: int = 10, test: int = 0) -> Config:
        per_epoch = math.ceil(n / 64)
        return Config(
            data=self.data,
            n=n,
            batch=64,
            blocks=blocks,
            epochs=max(1, round(steps / blocks / per_epoch)),
            lr=self.lr,
            test=test,
            trials=trials,
            precision="tf32" if self.heavy else "float32",
        )

    @property
    def experiment(self) -> Experiment:
        """The line for the list of experiments."""
        return Experiment(
            name=PREFIX + self.data,
            figure="small data",
            what=f"{self.what}, few samples, every method tuned",
            methods=METHODS,
            seeds={"smoke": 1, "small": 2 if self.heavy else 5, "paper": 8},
            cells=self.cells,
        )


CONTESTS = (
    Contest(
        data="digits",
        what="8 x 8 digits",
        sizes=(20, 50, 100, 300, 1000),
        few=(50, 200),
    ),
    Contest(
        data="digits-completion",
        what="32 pixels of a digit from 32 others",
        sizes=(20, 50, 100, 300, 1000),
        few=(50, 200),
    ),
    Contest(data="wine", what="growers of wine", sizes=(20, 40, 80), few=(20, 80)),
    Contest(data="breast-cancer", what="kinds of cells", sizes=(20, 40, 80, 300), few=(20, 80)),
    Contest(data="diabetes", what="a disease's progress", sizes=(20, 40, 80, 280), few=(40, 160)),
    Contest(
        data="sarcos",
        what="seven torques of a robot arm",
        sizes=(20, 50, 100, 300, 1000, 3000),
        few=(50, 300),
    ),
    Contest(
        data="mnist",
        what="MNIST digits",
        sizes=(20, 60, 200, 600, 2000),
        few=(60,),
        lr=1e-3,
        heavy=True,
    ),
    Contest(
        data="cifar10",
        what="CIFAR-10 images",
        sizes=(100, 1000),
        few=(100,),
        lr=1e-3,
        heavy=True,
    ),
)

EXPERIMENTS = tuple(contest.experiment for contest in CONTESTS)
