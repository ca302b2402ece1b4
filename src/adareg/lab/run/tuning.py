"""Tuning by trials: many values at once, judged on a held-out fifth of a network's own samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from adareg.lab.train import draws
from adareg.lab.train.config import Config
from adareg.lab.train.draws import Purpose
from adareg.lab.train.methods import METHODS
from adareg.lab.train.stacked import Replica


class Choice(NamedTuple):
    """The value that tuning has chosen for a method and a seed."""

    value: float
    loss: float  # of the validation samples, at that value
    trials: list[list[float]]  # [value, loss] of each


#: By the method whose trials they were, and the seed.
Choices = Mapping[tuple[str, int], Choice]


def trials(config: Config, replicas: Iterable[Replica]) -> list[Replica]:
    """The networks to train on four fifths of the samples, for those that have something to tune.

    A seed's values are drawn one from each of as many equal parts of the space as there are
    trials. Every method that tunes the same number tries the same values.
    """
    made: dict[Replica, None] = {}
    for replica in replicas:
        space = METHODS[replica.method].tunes
        if space is not None and config.trials:
            numbers = draws.uniform(
                torch.tensor([replica.seed]), Purpose.TRIAL, torch.tensor(0), (config.trials,)
            )
            for i, draw in enumerate(numbers[0].tolist()):
                value = space.at((i + draw) / config.trials)
                made[Replica(tried_method(replica.method), replica.seed, value)] = None
    return list(made)


def tried_method(method: str) -> str:
    """Return the method that is tried to choose a method's value."""
    return METHODS[method].tuned_as or method


def choose(found: Iterable[tuple[Replica, tuple[float, float]]]) -> Choices:
    """The value with the fewest errors, then the lowest loss, of each method's and seed's trials.

    Errors are all 0 where the loss alone is to decide.
    """
    tried: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for replica, (errors, loss) in found:
        assert replica.value is not None
        tried[replica.method, replica.seed].append((errors, loss, replica.value))
    return {key: _best(each) for key, each in tried.items()}


def _best(tried: list[tuple[float, float, float]]) -> Choice:
    _, loss, value = min(tried, key=_by_validation)
    return Choice(value, loss, [[value, loss] for _, loss, value in tried])


def _by_validation(trial: tuple[float, float, float]) -> tuple[float, float]:
    errors, loss, _ = trial
    return (errors, loss) if math.isfinite(loss) else (math.inf, math.inf)


def find(replica: Replica, choices: Choices) -> Choice | None:
    """Return the choice for a network; None if it has nothing to tune."""
    return choices.get((tried_method(replica.method), replica.seed))


def chosen(replica: Replica, choices: Choices) -> Replica:
    """The network with what was chosen for it."""
    choice = find(replica, choices) if METHODS[replica.method].tunes else None
    return replica if choice is None else replace(replica, value=choice.value)


def tried(replica: Replica, choices: Choices) -> list[list[float]]:
    """Value and validation loss of each trial that decided for a network."""
    choice = find(replica, choices)
    return [] if choice is None else choice.trials


def trainings(config: Config, method: str) -> int:
    """Count the networks that are trained to get one of a method."""
    return 1 + (config.trials if METHODS[method].tunes is not None else 0)


def samples(config: Config, method: str) -> int:
    """Count the samples that are seen, with repetition, to get one network of a method."""
    tried = (trainings(config, method) - 1) * _seen(config.without_held_out())
    return tried + _last(config, method)


def samples_of_all(config: Config, replicas: Sequence[Replica]) -> int:
    """Count the samples that are seen to get several networks, which may share trials."""
    tried = len(trials(config, replicas)) * _seen(config.without_held_out())
    return tried + sum(_last(config, replica.method) for replica in replicas)


def _last(config: Config, method: str) -> int:
    """Count the samples that the network itself sees, after tuning."""
    return _seen(config.without_held_out() if METHODS[method].holds_out else config)


def _seen(config: Config) -> int:
    return config.n * config.blocks * config.epochs
