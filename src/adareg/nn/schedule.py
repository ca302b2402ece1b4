"""Schedules: after which optimizer steps a regularizer is updated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from adareg.nn.arguments import is_positive_integer


class Schedule(ABC):
    """Times of updates, in optimizer steps; an attachment owns one."""

    @abstractmethod
    def is_due(self, step: int, last: int) -> bool:
        """Return if an update is due.

        Args:
            step: how many steps have been made.
            last: after how many an update was due for the last time; 0 if it never was.
        """


@dataclass(frozen=True)
class Never(Schedule):
    """No update: the caller calls ``update()``."""

    def is_due(self, step: int, last: int) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class Every(Schedule):
    """An update after every ``steps`` steps."""

    steps: int

    def is_due(self, step: int, last: int) -> bool:
        """Return if the number of steps is a multiple."""
        return step % self.steps == 0


@dataclass(frozen=True)
class Growing(Schedule):
    """An update after ``first`` steps, and then whenever their number has grown by a factor."""

    first: int = 50
    growth: float = 1.3

    def is_due(self, step: int, last: int) -> bool:
        """Return if there are enough steps since the last update that was due."""
        return step >= (math.ceil(last * self.growth) if last else self.first)


def times(schedule: Schedule, steps: int) -> list[int]:
    """Return after which of so many steps an update is due."""
    due = [0]
    due.extend(step for step in range(1, steps + 1) if schedule.is_due(step, due[-1]))
    return due[1:]


def as_schedule(update_every: int | Schedule | None, default: Schedule) -> Schedule:
    """Return the schedule that ``update_every`` stands for.

    Raises:
        ValueError: it is neither a positive integer, nor a schedule, nor None.
    """
    if update_every is None:
        return default
    if isinstance(update_every, Schedule):
        return update_every
    if not is_positive_integer(update_every):
        raise ValueError(
            f"update_every={update_every!r}: expected a positive integer, a schedule or None"
        )
    return Every(int(update_every))
