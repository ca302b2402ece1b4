"""Claims, and the rule by which comparisons become a verdict.

Every comparison is paired by seed and has a direction that the paper claims for it and a smallest
effect that counts. With its 95 % interval turned so that up is the claimed direction, it is

- ``no`` when the whole interval lies below the smallest effect that counts: nothing relevant is
  there, or it points the other way;
- ``yes`` when it is not ``no`` and the whole interval lies above zero;
- ``unclear`` otherwise.

A sentence of the paper that says two things (of two methods, against two others, in two
directions) is two claims: what holds of one does not soften the verdict on the other. A claim
holds for many settings (training sizes, batch sizes, tasks). Over their answers it is

- ``not enough data`` when fewer than half of the answers are ``yes`` or ``no``;
- ``reproduced`` when at least 90 % are ``yes``;
- ``not reproduced`` when at most 10 % are;
- ``partly`` in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from adareg.lab.judge.selection import Records

REPRODUCED, PARTLY = "reproduced", "partly"
NOT_REPRODUCED, NOT_ENOUGH = "not reproduced", "not enough data"
VERDICTS = (REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_ENOUGH)

#: Fewer paired seeds than this say nothing: the interval of two is twelve times as wide as they
#: are apart.
MIN_SEEDS = 3
#: The share of settings that is "nearly all", and its counterpart.
NEARLY_ALL, NEARLY_NONE = 0.9, 0.1

State = Literal["yes", "no", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A paired difference (or a mean), with a 95 % interval over seeds (see ``bootstrap``).

    Args:
        what: what it is the size of, in words.
        value: the mean over seeds; of ratios, the geometric mean less one, in percent.
        low: the lower end of the interval.
        high: its upper end.
        seeds: how many seeds, or repetitions of a timing.
        unit: of the three numbers.
    """

    what: str
    value: float
    low: float
    high: float
    seeds: int
    unit: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict of our records on a claim.

    Args:
        verdict: one of ``VERDICTS``.
        reason: it in a few words, for a list.
        measured: one or two sentences with numbers.
        effects: the sizes behind the verdict; the first sum up the others where there are many.
        missing: commands that would make the records that are missing.
    """

    verdict: str
    reason: str
    measured: str
    effects: tuple[Effect, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper.

    Args:
        key: a short name for scripts.
        title: the claim, short.
        paper: what the paper says, with its numbers.
        where: the figure, table or section.
        experiments: whose records it is judged from.
        judge: records to judgement; its docstring states the rule.
        own: whether it is tried on the package's own data instead of the paper's.
    """

    key: str
    title: str
    paper: str
    where: str
    experiments: tuple[str, ...]
    judge: Callable[[Records], Judgement]
    own: bool = False

    @property
    def rule(self) -> str:
        """The rule of the verdict, for readers: the docstring of ``judge``."""
        text = inspect.getdoc(getattr(self.judge, "func", self.judge)) or ""
        text = " ".join(text.split()).replace("``base``'s rule", "the general rule")
        return text.replace("``", "")


def state(effect: Effect, sign: int, relevant: float) -> State:
    """Answer if an effect has the claimed sign (1 or -1), by the rule of this module."""
    low, high = sorted((sign * effect.low, sign * effect.high))
    if high < relevant:
        return "no"
    return "yes" if low > 0 else "unclear"


def negligible(effect: Effect, margin: float) -> State:
    """Answer if an effect is no larger than a margin, in either direction.

    ``yes`` when the interval lies within ± margin; ``no`` when it does not and excludes zero.
    """
    if -margin < effect.low and effect.high < margin:
        return "yes"
    return "no" if effect.low > 0 or effect.high < 0 else "unclear"


def all_of(states: Sequence[State], expected: int) -> State:
    """One answer from several that must all be ``yes``; those that are not there are unclear."""
    if "no" in states:
        return "no"
    return "yes" if len(states) == expected and set(states) == {"yes"} else "unclear"


def verdict(states: Sequence[State]) -> str:
    """The verdict over settings, by the rule of this module."""
    answered = [answer for answer in states if answer != "unclear"]
    if not states or 2 * len(answered) < len(states):
        return NOT_ENOUGH
    share = answered.count("yes") / len(states)
    if share >= NEARLY_ALL:
        return REPRODUCED
    return NOT_REPRODUCED if share <= NEARLY_NONE else PARTLY
