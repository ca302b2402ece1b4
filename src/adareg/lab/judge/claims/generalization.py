"""Fig. 2, the accuracies under Fig. 5, and batch sizes: test accuracy."""

from __future__ import annotations

from functools import partial

from adareg.lab.experiments import COMPARED
from adareg.lab.judge import published
from adareg.lab.judge.claims import comparison, correlations
from adareg.lab.judge.claims.base import (
    MIN_SEEDS,
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Claim,
    Effect,
    Judgement,
)
from adareg.lab.judge.claims.phrases import change, number
from adareg.lab.judge.claims.quantities import ACCURACY, POINT
from adareg.lab.judge.selection import Records

OTHERS = tuple(name for name in COMPARED if name not in ("none", "adareg"))


def improves(records: Records, experiment: str) -> Judgement:
    """AdaReg against no regularizer at every training size and batch size.

    A gain counts from 0.1 points of test accuracy on; shares of settings by ``base``'s rule.
    """
    return comparison.compare(records, [experiment], ACCURACY, ["none"])


def best(records: Records, experiment: str) -> Judgement:
    """AdaReg against weight decay, dropout, batch norm and DeCov at every size and batch size.

    A gain counts from 0.1 points on. A setting is yes when AdaReg is ahead of all four, no when it
    is not ahead of one; shares of settings by ``base``'s rule.
    """
    return comparison.compare(records, [experiment], ACCURACY, OTHERS)


def accuracy(records: Records, n: int) -> Judgement:
    """The gain in test accuracy at one training size, batch 256, beside the paper's.

    Reproduced: the interval is above zero and the gain is at least half of the paper's. Partly:
    above zero, but less than half. Not reproduced: the interval excludes a gain of 0.1 points.
    Otherwise there is not enough data.
    """
    methods = ("none", "adareg")
    settings = records.settings(correlations.EXPERIMENTS, methods, n=n, batch=correlations.BATCH)
    rows = comparison.rows(settings, ACCURACY, "adareg", ["none"])
    if not rows:
        return _without(records, n)
    setting, effect = rows[0].setting, rows[0].effects["none"]
    levels = [setting.values(method, ACCURACY.measure) for method in methods]
    none, adareg = (number(sum(values.values()) / len(values)) for values in levels)
    verdict = _gain(effect, published.ACCURACY[n, "adareg"] - published.ACCURACY[n, "none"])
    return Judgement(
        verdict=verdict,
        reason=f"{none} % without, {adareg} % with AdaReg: {change(effect)}",
        measured=f"{none} % without and {adareg} % with AdaReg at n = {n:,}: {change(effect)} "
        f"({comparison.circumstances(rows, methods)}).",
        effects=(effect,),
        missing=comparison.more_seeds(verdict, [setting], methods),
    )


def _gain(effect: Effect, paper: float) -> str:
    if effect.high < POINT:
        return NOT_REPRODUCED
    if effect.low <= 0:
        return NOT_ENOUGH
    return REPRODUCED if effect.value >= paper / 2 else PARTLY


def _without(records: Records, n: int) -> Judgement:
    found = comparison.lacking(records, correlations.EXPERIMENTS, ("none", "adareg"))
    text = f"fewer than {MIN_SEEDS} seeds with and without AdaReg at n = {n:,}, batch 256"
    return comparison.unknown(text, *found.missing)


def _claims(data: str, name: str, panels: str) -> list[Claim]:
    experiment = f"{data}-generalization"
    return [
        Claim(
            key=f"{data}-improves",
            title=f"AdaReg improves accuracy on {name}",
            paper="AdaReg improves generalization under both minibatch settings, 256 and 2048.",
            where=f"Fig. 2 {panels}",
            experiments=(experiment,),
            judge=partial(improves, experiment=experiment),
        ),
        Claim(
            key=f"{data}-generalization",
            title=f"AdaReg beats the other regularizers on {name}",
            paper="As the training set grows, AdaReg consistently generalizes better than weight "
            "decay, dropout, batch norm and DeCov.",
            where=f"Fig. 2 {panels}",
            experiments=(experiment,),
            judge=partial(best, experiment=experiment),
        ),
    ]


def _accuracy_claim(n: int, key: str) -> Claim:
    none, adareg = (published.ACCURACY[n, method] for method in ("none", "adareg"))
    return Claim(
        key=key,
        title=f"AdaReg gains {adareg - none:.2f} points on {n:,} MNIST images",
        paper=f"{none:.2f} % without, {adareg:.2f} % with AdaReg: a gain of "
        f"{adareg - none:.2f} points.",
        where="Fig. 5",
        experiments=correlations.EXPERIMENTS,
        judge=partial(accuracy, n=n),
    )


GENERALIZATION = [
    *_claims("mnist", "MNIST", "a, b"),
    *_claims("cifar", "CIFAR-10", "c, d"),
]
ACCURACIES = [
    _accuracy_claim(600, "mnist-600"),
    _accuracy_claim(60_000, "mnist-60000"),
]
