"""Batches of 256 against batches of 2048, in the networks of Fig. 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

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
    both,
    state,
    verdict,
)
from adareg.lab.judge.claims.phrases import change, label, listing, several
from adareg.lab.judge.claims.quantities import ACCURACY, POINT, mean_by_seed
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting

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


def suffers(effect: Effect) -> State:
    """Answer if accuracy falls with large batches, by 0.1 points or more."""
    return state(effect, sign=-1, relevant=POINT)


def insensitive(records: Records, experiment: str) -> Judgement:
    """AdaReg does not lose accuracy from 256 to 2048 while most of the other methods do.

    A method suffers when the mean of its change over training sizes is surely below zero and may
    reach 0.1 points; it does not when such a loss is excluded. Two parts: AdaReg does not suffer;
    more than half of the others (no regularizer, weight decay, dropout, batch norm, DeCov) do.
    Both parts hold: reproduced; none does: not reproduced; one of them: partly.
    """
    found = {method: changes(records, experiment, method) for method in COMPARED}
    means = {method: _mean(found[method], method) for method in COMPARED}
    known = {method: effect for method, effect in means.items() if effect is not None}
    if len(known) < len(COMPARED):
        return _without(records, experiment, COMPARED)
    states = {method: suffers(effect) for method, effect in known.items()}
    decided = both([_ROBUST[states.pop("adareg")], _most(list(states.values()))])
    settings = [setting for change in found["adareg"] for setting in change.settings]
    effects = [change.effect for method in COMPARED for change in found[method]]
    return Judgement(
        verdict=decided,
        measured=_sentence(found, known, states)
        + f" ({comparison.about(settings, effects, COMPARED)}).",
        effects=(*known.values(), *effects),
        missing=comparison.more_seeds(decided, settings, ["adareg"])
        or comparison.incomplete(records, [experiment], settings),
    )


#: The verdict on "AdaReg does not suffer", by the answer to "it suffers".
_ROBUST: dict[State, str] = {"yes": NOT_REPRODUCED, "no": REPRODUCED, "unclear": NOT_ENOUGH}


def _sentence(
    found: Mapping[str, Sequence[Change]], means: Mapping[str, Effect], states: Mapping[str, State]
) -> str:
    lost = sum(suffers(change.effect) == "yes" for change in found["adareg"])
    suffering = [
        f"{label(m)} ({change(means[m])})" for m, state in states.items() if state == "yes"
    ]
    others = listing(suffering) if suffering else "none"
    least = min(means, key=lambda method: means[method].value)
    most = ", more than with any other method," if least == "adareg" else ""
    return (
        f"From batch 256 to 2048 the accuracy with AdaReg changes by {change(means['adareg'])} on "
        f"average{most} and falls at {lost} of {several(len(found['adareg']), 'training size')}; "
        f"of the {len(states)} other methods these lose on average: {others}"
    )


def _most(states: Sequence[State]) -> str:
    if 2 * states.count("yes") > len(states):
        return REPRODUCED
    return NOT_REPRODUCED if 2 * states.count("no") >= len(states) else NOT_ENOUGH


def batch_norm_suffers(records: Records, experiment: str) -> Judgement:
    """Batch norm loses accuracy from 256 to 2048 at every training size.

    A loss counts from 0.1 points on; shares of sizes by ``base``'s rule.
    """
    found = changes(records, experiment, "batch-norm")
    if not found:
        return _without(records, experiment, ["batch-norm"])
    states = [suffers(change.effect) for change in found]
    mean = _mean(found, "batch-norm")
    effects = [*([mean] if mean else []), *(change.effect for change in found)]
    settings = [setting for change in found for setting in change.settings]
    decided = verdict(states)
    average = f"; on average the change is {change(mean)}" if mean else ""
    return Judgement(
        verdict=decided,
        measured=f"From batch 256 to 2048 batch norm loses accuracy at {states.count('yes')} of "
        f"{several(len(states), 'training size')}{comparison.undecided(states, 'at')}{average} "
        f"({comparison.about(settings, effects, ['batch-norm'])}).",
        effects=tuple(effects),
        missing=comparison.more_seeds(decided, settings, ["batch-norm"])
        or comparison.incomplete(records, [experiment], settings),
    )


def _without(records: Records, experiment: str, methods: Sequence[str]) -> Judgement:
    scale = records.scale(experiment)
    names = listing([label(method) for method in methods])
    text = f"No {MIN_SEEDS} seeds of {names} at both batch sizes, 256 and 2048."
    command = comparison.command(experiment, "paper")  # smaller scales have one batch size
    return Judgement(
        verdict=NOT_ENOUGH,
        measured=text if scale else f"No records of {experiment}.",
        missing=(command,),
    )


def _insensitive_claim(data: str, name: str, panels: str) -> Claim:
    experiment = f"{data}-generalization"
    return Claim(
        key=f"{data}-batch-size",
        title=f"Large batches hurt most methods, but not AdaReg, on {name}",
        paper="AdaReg is not sensitive to the size of minibatches, while most of the other methods "
        "suffer from large ones (2048 against 256).",
        where=f"Fig. 2 {panels}",
        experiments=(experiment,),
        judge=partial(insensitive, experiment=experiment),
    )


BATCHES = [
    _insensitive_claim("mnist", "MNIST", "a, b"),
    _insensitive_claim("cifar", "CIFAR-10", "c, d"),
    Claim(
        key="cifar-batch-norm",
        title="Batch norm suffers from large batches on CIFAR-10",
        paper="Batch norm suffers from the large batch size (2048 against 256) on CIFAR-10.",
        where="Fig. 2 c, d",
        experiments=("cifar-generalization",),
        judge=partial(batch_norm_suffers, experiment="cifar-generalization"),
    ),
]
