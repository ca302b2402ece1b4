"""The form of an experiment: cells, methods and seeds at three scales."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from adareg.lab.train.config import Config

#: smoke: seconds, to see that it runs; small: minutes on two cores; paper: the paper's own sizes.
Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[str, ...] = get_args(Scale)

#: The methods of the paper's main comparison (Fig. 2, Table 1).
COMPARED = ("none", "weight-decay", "dropout", "batch-norm", "decov", "adareg")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure or table of the paper, or a study of our own.

    Args:
        name: what users type.
        figure: which figure or table of the paper it runs again.
        what: one line for a list.
        methods: names in ``methods.METHODS``.
        seeds: how many, at each scale.
        cells: the cells at a scale; ``n=0`` stands for all training samples.
    """

    name: str
    figure: str
    what: str
    methods: tuple[str, ...]
    seeds: dict[str, int]
    cells: Callable[[str], list[Config]]


def grid(data: str, sizes: Iterable[int], batches: Iterable[int], **settings: Any) -> list[Config]:
    """One cell for each training size and batch size, with the paper's schedule for that batch.

    Two blocks of 50 epochs at batch size 256, five at 2048 (section 4.2, Optimization), unless
    ``settings`` say otherwise.
    """
    return [
        replace(
            Config(data=data, n=n, batch=batch, blocks=5 if batch == 2048 else 2, epochs=50),
            **settings,
        )
        for batch in batches
        for n in sizes
    ]
