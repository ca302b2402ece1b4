"""Batches of 256 against batches of 2048, in the networks of Fig. 2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from adareg.lab.experiments import COMPARED
from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import (
    MIN_SEEDS,
    NOT_ENOUGH,
    NOT_REPRODUCED,
    REPRODUCED,
    Claim,
    Effect,
    Judgement,
    State,
    state,
    verdict,
)
from adareg.lab.judge.claims.phrases import change, label, listing, several
from adareg.lab.judge.claims.quantities import ACCURACY, POINT, mean_by_seed
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting

OTHERS = tuple(name for name in COMPARED if name != "adareg")
#: What differs between the two: the schedule has more blocks at 2048 (section 4.2).
APART = {"batch", "blocks"}


class Change(NamedTuple):
    """A method's gain in accuracy from large batches at one training size."""

    settings: tuple[Setting, Setting]
    effect: Effect


def changes(records: Records, experiment: str, method: str) -> list[Change]:
    """Accuracy at 2048 less accuracy at 256, at each size that has both, else equal configs."""
    small = records.settings([experiment], [method], batch=256)
    large = {setting.n: setting for setting in records.settings([experiment], [method], batch=2048)}
    found = []
    for setting in small:
        if setting.n not in large or not setting.like(large[setting.n], APART):
            continue
        pair = setting, large[setting.n]
        what = f"test accuracy, batch 2048 − batch 256, {label(method)}, n = {setting.n:,}"
        if effect := ACCURACY.effect(what, _differences(pair, method)):
            found.append(Change(pair, effect))
    return found


def _differences(pair: tuple[Setting, Setting], method: str) -> dict[int, float]:
    small, large = (setting.values(method, ACCURACY.measure) for setting in pair)
    return ACCURACY.differences(large, small)


def _mean(found: Sequence[Change], method: str) -> Effect | None:
    parts = [_differences(change.settings, method) for change in found]
    what = f"test accuracy, batch 2048 − batch 256, {label(method)}, mean of "
    return ACCURACY.effect(what + several(len(found), "size"), mean_by_seed(parts))


def loses(effect: Effect) -> State:
    """Answer if accuracy falls with large batches, by 0.1 points or more."""
    return state(effect, sign=-1, relevant=POINT)


def robust(records: Records, experiment: str, method: str = "adareg") -> Judgement:
    """The method does not lose accuracy from batch 256 to 2048, on average over training sizes.

    Not reproduced when the mean change is surely below zero and may reach a loss of 0.1 points;
    reproduced when the interval excludes such a loss; otherwise there is not enough data.
    """
    found = changes(records, experiment, method)
    mean = _mean(found, method)
    if mean is None:
        return _without(records, experiment, [method])
    return _judgement(records, experiment, method, found, _ROBUST[loses(mean)])


#: The verdict on "it does not suffer", by the answer to "it suffers".
_ROBUST: dict[State, str] = {"yes": NOT_REPRODUCED, "no": REPRODUCED, "unclear": NOT_ENOUGH}


def others_suffer(records: Records, experiment: str) -> Judgement:
    """Most of the other methods lose accuracy from 256 to 2048, on average over training sizes.

    The others are no regularizer, weight decay, dropout, batch norm and DeCov. One suffers when the
    mean of its change is surely below zero and may reach 0.1 points; it does not when the interval
    excludes such a loss. Reproduced when more than half suffer, not reproduced when at least half
    do not; otherwise there is not enough data.
    """
    found = {method: changes(records, experiment, method) for method in OTHERS}
    means = {m: mean for m in OTHERS if (mean := _mean(found[m], m)) is not None}
    if len(means) < len(OTHERS):
        return _without(records, experiment, OTHERS)
    states = {method: loses(effect) for method, effect in means.items()}
    decided = _most(list(states.values()))
    settings = [setting for change in found["none"] for setting in change.settings]
    effects = [change.effect for method in OTHERS for change in found[method]]
    suffering = [m for m, state in states.items() if state == "yes"]
    names = listing([label(m) for m in suffering] or ["none"])
    sizes = listing([f"{label(m)} {change(means[m])}" for m in OTHERS])
    return Judgement(
        verdict=decided,
        reason=f"{len(suffering)} of {len(OTHERS)} lose accuracy: {names}",
        measured=f"Of the {len(OTHERS)} other methods these lose accuracy from batch 256 to 2048: "
        f"{names}. Mean changes: {sizes} "
        f"({comparison.about(settings, effects, OTHERS)}).",
        effects=(*means.values(), *effects),
        missing=comparison.more_seeds(decided, settings, OTHERS)
        or comparison.incomplete(records, [experiment], settings),
    )


def _most(states: Sequence[State]) -> str:
    if 2 * states.count("yes") > len(states):
        return REPRODUCED
    return NOT_REPRODUCED if 2 * states.count("no") >= len(states) else NOT_ENOUGH


def suffers(records: Records, experiment: str, method: str) -> Judgement:
    """The method loses accuracy from batch 256 to 2048 at every training size.

    A loss counts from 0.1 points on; shares of sizes by ``base``'s rule.
    """
    found = changes(records, experiment, method)
    if not found:
        return _without(records, experiment, [method])
    decided = verdict([loses(change.effect) for change in found])
    return _judgement(records, experiment, method, found, decided)


def _judgement(
    records: Records, experiment: str, method: str, found: Sequence[Change], decided: str
) -> Judgement:
    """How one method's accuracy changes, at each size and on average."""
    states = [loses(change.effect) for change in found]
    mean = _mean(found, method)
    effects = [*([mean] if mean else []), *(change.effect for change in found)]
    settings = [setting for change in found for setting in change.settings]
    falls = f"falls at {states.count('yes')} of {several(len(found), 'training size')}"
    average = f"; mean change {change(mean)}" if mean else ""
    return Judgement(
        verdict=decided,
        reason=falls + average,
        measured=f"From batch 256 to 2048, accuracy with {label(method)} {falls}"
        f"{comparison.undecided(states)}{average} "
        f"({comparison.about(settings, effects, [method])}).",
        effects=tuple(effects),
        missing=comparison.more_seeds(decided, settings, [method])
        or comparison.incomplete(records, [experiment], settings),
    )


def _without(records: Records, experiment: str, methods: Sequence[str]) -> Judgement:
    text = f"no records of {experiment}"
    if records.scale(experiment):
        names = listing([label(method) for method in methods])
        text = f"fewer than {MIN_SEEDS} seeds of {names} at both batch sizes, 256 and 2048"
    command = comparison.command(experiment, "paper")  # smaller scales have one batch size
    return comparison.unknown(text, command)


def _claims(data: str, name: str, panels: str) -> list[Claim]:
    experiment = f"{data}-generalization"
    common: dict[str, Any] = {"where": f"Fig. 2 {panels}", "experiments": (experiment,)}
    return [
        Claim(
            key=f"{data}-batch-size",
            title=f"AdaReg does not suffer from large batches on {name}",
            paper="AdaReg is not sensitive to the size of minibatches (2048 against 256).",
            judge=partial(robust, experiment=experiment),
            **common,
        ),
        Claim(
            key=f"{data}-batch-size-others",
            title=f"Most other methods suffer from large batches on {name}",
            paper="Most of the methods suffer from large minibatches (2048 against 256).",
            judge=partial(others_suffer, experiment=experiment),
            **common,
        ),
    ]


BATCHES = [
    *_claims("mnist", "MNIST", "a, b"),
    *_claims("cifar", "CIFAR-10", "c, d"),
    Claim(
        key="cifar-batch-norm",
        title="Batch norm suffers from large batches on CIFAR-10",
        paper="Batch norm suffers from the large batch size (2048 against 256) on CIFAR-10.",
        where="Fig. 2 c, d",
        experiments=("cifar-generalization",),
        judge=partial(suffers, experiment="cifar-generalization", method="batch-norm"),
    ),
    Claim(
        key="mnist-batch-norm",
        title="Batch norm does not suffer from large batches on MNIST",
        paper="Batch norm is not sensitive to the batch size (2048 against 256) on MNIST.",
        where="Fig. 2 a, b",
        experiments=("mnist-generalization",),
        judge=partial(robust, experiment="mnist-generalization", method="batch-norm"),
    ),
]
