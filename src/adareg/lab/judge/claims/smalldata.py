"""The small-data benchmark against what was asked of the evidence rule beforehand.

A cell is a data set at a training size; its quality is accuracy, or explained variance, in points.
Comparisons are of the same seeds: same initial weights, samples and batches. Most criteria have
two readings. *Strict*: the mean over seeds is not lower. *Lenient*: it is not lower by more than
the standard error of the paired differences. A criterion is ``met`` in the strict reading,
``partly`` if only the lenient one holds, else ``not met``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from adareg.lab.experiments import GROUPS
from adareg.lab.judge.claims.base import MIN_SEEDS, PARTLY, Claim, Effect, Judgement
from adareg.lab.judge.claims.comparison import unknown
from adareg.lab.judge.claims.phrases import change, label, number, several, signed
from adareg.lab.judge.selection import Records
from adareg.lab.judge.statistics import interval, standard_error
from adareg.lab.judge.study import Setting
from adareg.lab.run.records import Record
from adareg.lab.train.methods import METHODS

MET, NOT_MET = "met", "not met"

#: Shares of cells, and ratios of cost, that were asked for.
NINE_TENTHS, FOUR_FIFTHS = 0.9, 0.8
CHEAPER, PLAIN = 10.0, 1.2

EXPERIMENTS = tuple(experiment.name for experiment in GROUPS["smalldata"])
COMMAND = "adareg reproduce smalldata --scale paper"


def quality(record: Record) -> float:
    """Return accuracy or explained variance in points; 0 for a network that diverged."""
    metrics: Mapping[str, Any] = record["metrics"]
    name = "test_accuracy" if "test_accuracy" in metrics else "test_explained_variance"
    return 0.0 if metrics[name] is None or metrics["diverged"] else 100 * float(metrics[name])


def cost(record: Record) -> float:
    """Return what all trainings behind a network cost, one after another; a plain one costs 1."""
    metrics: Mapping[str, Any] = record["metrics"]
    return float(metrics["alone_seconds"] / metrics["plain_seconds"] * metrics["trainings"])


def cells(records: Records, *methods: str) -> list[Setting]:
    """Return the cells in which every one of the methods has enough seeds."""
    found = [cell for study in records.together(*EXPERIMENTS) for cell in study.settings]
    return [cell for cell in found if _is_enough(cell, methods)]


def _is_enough(cell: Setting, methods: Sequence[str]) -> bool:
    seeds = [cell.values(method, quality, with_diverged=True).keys() for method in methods]
    return len(set.intersection(*map(set, seeds))) >= MIN_SEEDS


def differences(cell: Setting, method: str, other: str) -> dict[int, float]:
    """Return by how many points a method is better than another, by seed."""
    one, two = (cell.values(name, quality, with_diverged=True) for name in (method, other))
    return {seed: one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())}


def in_cell(cell: Setting, method: str, other: str) -> Effect:
    """The difference of two methods in a cell, with its interval."""
    values = list(differences(cell, method, other).values())
    mean, low, high = interval(values)
    what = f"{_name(method)} less {_name(other)}, {cell.config['data']}, n = {cell.n:,}"
    return Effect(what=what, value=mean, low=low, high=high, seeds=len(values), unit="points")


def error(cell: Setting, method: str, other: str) -> float:
    """Return the standard error of the mean difference."""
    return standard_error(list(differences(cell, method, other).values()))


def _name(method: str) -> str:
    return label(method).split(" (")[0]


def _counted(records: Records, method: str, other: str, share: float) -> Judgement:
    """Strict and lenient share of cells in which a method is no worse than another."""
    found = cells(records, method, other)
    if not found:
        return _without()
    effects = [in_cell(cell, method, other) for cell in found]
    strict = sum(effect.value >= 0 for effect in effects)
    lenient = sum(
        effect.value >= -error(cell, method, other)
        for cell, effect in zip(found, effects, strict=True)
    )
    enough = share * len(found)
    verdict = MET if strict >= enough else PARTLY if lenient >= enough else NOT_MET
    mean = fmean(effect.value for effect in effects)
    count = f"in {strict} of {several(len(found), 'cell')}"
    return Judgement(
        verdict=verdict,
        reason=f"no worse {count}, in {lenient} within one standard error",
        measured=f"{_name(method).capitalize()} is no worse than {_name(other)} {count}, in "
        f"{lenient} within one standard error; the target was {number(share * 100, 0)} %. Mean "
        f"difference: {signed(mean, 2)} points.",
        effects=tuple(sorted(effects, key=lambda effect: effect.value)),
    )


def weight_decay_cells(records: Records) -> Judgement:
    """At least as good as validation-tuned weight decay in 90 % of the cells."""
    return _counted(records, "evidence", "weight-decay", NINE_TENTHS)


def dropout_cells(records: Records) -> Judgement:
    """With dropout no worse than tuned dropout, at the same rate, in 80 % of the cells."""
    return _counted(records, "evidence+dropout", "dropout", FOUR_FIFTHS)


def never_worse(records: Records) -> Judgement:
    """Never worse than no regularizer beyond one standard error; there is no lenient reading.

    ``partly`` if it is so in nine of ten cells.
    """
    found = cells(records, "evidence", "none")
    if not found:
        return _without()
    effects = [in_cell(cell, "evidence", "none") for cell in found]
    worse = [
        effect
        for cell, effect in zip(found, effects, strict=True)
        if effect.value < -error(cell, "evidence", "none")
    ]
    few = len(worse) <= (1 - NINE_TENTHS) * len(found)
    where = ", ".join(f"{_cell(e)} ({number(e.value, 2)})" for e in worse)
    return Judgement(
        verdict=MET if not worse else PARTLY if few else NOT_MET,
        reason=f"worse by more than one standard error in {len(worse)} of "
        f"{several(len(found), 'cell')}",
        measured=f"Worse than no regularizer by more than one standard error in {len(worse)} of "
        f"{several(len(found), 'cell')}{': ' * bool(where)}{where}.",
        effects=tuple(sorted(effects, key=lambda effect: effect.value)),
    )


def _cell(effect: Effect) -> str:
    return effect.what.split(", ", 1)[1].replace(",", "", 1)


def on_average(records: Records) -> Judgement:
    """Better than tuned weight decay on average over cells, the 95 % interval above zero.

    Each seed's difference is averaged over all cells; the interval is over seeds. ``partly`` if
    the mean is above zero and the interval is not.
    """
    found = cells(records, "evidence", "weight-decay")
    seeds = _common_seeds(found, "evidence", "weight-decay")
    if len(seeds) < MIN_SEEDS:
        return _without()
    each = [differences(cell, "evidence", "weight-decay") for cell in found]
    overall = _effect("all cells", [fmean(one[seed] for one in each) for seed in seeds])
    effects = [overall, *_by_data(found, each, seeds)]
    verdict = MET if overall.low > 0 else PARTLY if overall.value > 0 else NOT_MET
    middle = median(fmean(one.values()) for one in each)
    return Judgement(
        verdict=verdict,
        reason=f"{change(overall)}; {signed(middle, 2)} in the median cell",
        measured=f"Evidence gains {change(overall)} over tuned weight decay on average over "
        f"{several(len(found), 'cell')}, and {signed(middle, 2)} in the median cell.",
        effects=tuple(effects),
    )


def _by_data(
    found: Sequence[Setting], each: Sequence[Mapping[int, float]], seeds: Sequence[int]
) -> list[Effect]:
    names = dict.fromkeys(cell.config["data"] for cell in found)
    return [
        _effect(
            name,
            [
                fmean(o[seed] for c, o in zip(found, each, strict=True) if c.config["data"] == name)
                for seed in seeds
            ],
        )
        for name in names
    ]


def _effect(what: str, values: Sequence[float]) -> Effect:
    mean, low, high = interval(values)
    return Effect(what=what, value=mean, low=low, high=high, seeds=len(values), unit="points")


def _common_seeds(found: Sequence[Setting], method: str, other: str) -> list[int]:
    each = [set(differences(cell, method, other)) for cell in found]
    return sorted(set.intersection(*each)) if each else []


TUNED = tuple(m for m in ("weight-decay", "dropout", "decov", "adareg") if METHODS[m].tunes)


def cheap(records: Records) -> Judgement:
    """At least 10 times cheaper than every tuned method; there is no lenient reading.

    Costs are of all trainings, tuning included, of one network alone; ratios are geometric
    means over cells.
    """
    found = _timed(records, "evidence", "none", *TUNED)
    if not found:
        return _without()
    ratios = {name: _ratio(found, name, "evidence") for name in TUNED}
    nearest = min(ratios, key=lambda name: ratios[name].value)
    ratio = number(ratios[nearest].value, 1)
    return Judgement(
        verdict=MET if ratios[nearest].value >= CHEAPER else NOT_MET,
        reason=f"{label(nearest)} with its trials costs {ratio} times as much",
        measured=f"The cheapest tuned method, {label(nearest)}, costs {ratio} times as much as "
        f"evidence, trials included.",
        effects=tuple(ratios.values()),
    )


def nearly_plain(records: Records) -> Judgement:
    """At most 1.2 times the cost of one plain training; there is no lenient reading.

    Costs are of one network alone; the ratio is the geometric mean over cells.
    """
    found = _timed(records, "evidence", "none", *TUNED)
    if not found:
        return _without()
    ratio = _ratio(found, "evidence", "none")
    return Judgement(
        verdict=MET if ratio.value <= PLAIN else NOT_MET,
        reason=f"{number(ratio.value, 2)} times one plain training",
        measured=f"One evidence training costs {number(ratio.value, 2)} times a plain one, from "
        f"{number(ratio.low, 2)} to {number(ratio.high, 2)} over cells.",
        effects=(ratio,),
    )


def _timed(records: Records, *methods: str) -> list[Setting]:
    """The cells in which the cost of every one of the methods is known."""
    return [cell for cell in cells(records, *methods) if all(_costs(cell, m) for m in methods)]


def _costs(cell: Setting, method: str) -> list[float]:
    costs = cell.values(method, cost, with_diverged=True).values()
    return [each for each in costs if each > 0]


def _ratio(found: Sequence[Setting], method: str, other: str) -> Effect:
    """Return the ratio of two methods' costs: geometric mean, smallest and largest cell."""
    ratios = []
    for cell in found:
        one, two = (fmean(_costs(cell, name)) for name in (method, other))
        ratios.append(one / two)
    mean = math.exp(fmean(map(math.log, ratios)))
    what = f"cost of {_name(method)} over {_name(other)} (geometric mean, least, most)"
    low, high, seeds = min(ratios), max(ratios), min(c.seeds((method, other)) for c in found)
    return Effect(what=what, value=mean, low=low, high=high, seeds=seeds, unit="times")


def _without() -> Judgement:
    text = f"no cell of the small-data benchmark has {MIN_SEEDS} seeds of the methods compared"
    return unknown(text, COMMAND)


def _criterion(key: str, title: str, asked: str, judge: Any) -> Claim:
    return Claim(
        key=key,
        title=title,
        paper=asked,
        where="small data",
        experiments=EXPERIMENTS,
        judge=judge,
    )


CRITERIA: dict[str, Claim] = {
    claim.key: claim
    for claim in (
        _criterion(
            "evidence-weight-decay",
            "As good as tuned weight decay",
            "At least as good as validation-tuned weight decay in 90 % of the cells.",
            weight_decay_cells,
        ),
        _criterion(
            "evidence-average",
            "Better than tuned weight decay on average",
            "Better than validation-tuned weight decay on average, 95 % interval above zero.",
            on_average,
        ),
        _criterion(
            "evidence-none",
            "Never worse than no regularizer",
            "Never worse than no regularizer beyond one standard error.",
            never_worse,
        ),
        _criterion(
            "evidence-dropout",
            "As good as tuned dropout, together with it",
            "With dropout, no worse than tuned dropout in 80 % of the cells.",
            dropout_cells,
        ),
        _criterion(
            "evidence-cost",
            "Cheaper than tuning",
            "At least 10 times cheaper than the tuned methods, tuning included.",
            cheap,
        ),
        _criterion(
            "evidence-overhead",
            "Nearly as cheap as a plain training",
            "At most 1.2 times the cost of one plain training.",
            nearly_plain,
        ),
    )
}


def judge(records: Records) -> dict[str, Judgement]:
    """Judge every criterion, by key."""
    return {key: criterion.judge(records) for key, criterion in CRITERIA.items()}
