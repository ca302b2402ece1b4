"""Fig. 5: correlations between the rows of MNIST's softmax layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import MIN_SEEDS, Claim, Judgement, state, verdict
from adareg.lab.judge.claims.phrases import change, listing, number
from adareg.lab.judge.claims.quantities import CORRELATION, Quantity
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting
from adareg.lab.run.records import Record

SIZES = (600, 60_000)
EXPERIMENTS = ("mnist-correlations", "mnist-optimization", "mnist-generalization")
BATCH = 256
METHODS = ("adareg", "none")
#: Pairs of digits, and the sign that the paper sees in their correlation.
PAIRS = {(1, 7): 1, (1, 8): -1}
#: What may differ between the two sizes: it does not shape the training.
APART = {"n", "evaluate_every", "covariances"}
#: A correlation nearer to zero than this does not count.
RELEVANT = 0.05


def settings_of(records: Records, methods: Sequence[str]) -> list[Setting]:
    """Return the two settings of Fig. 5, wherever there are networks of them.

    Args:
        records: what there is.
        methods: those that must have enough seeds.
    """
    return [
        setting
        for n in SIZES
        for setting in records.settings(EXPERIMENTS, METHODS, n=n, batch=BATCH)
        if setting.seeds(methods) >= MIN_SEEDS
    ]


def stronger(records: Records) -> Judgement:
    """The mean absolute correlation of the rows is higher with AdaReg, at both training sizes.

    A difference counts from 0.01 on. Both sizes ``yes``: reproduced; one of them: partly; both
    ``no``, or one ``no`` and the other unclear: not reproduced.
    """
    found = comparison.rows(settings_of(records, METHODS), CORRELATION, "adareg", ["none"])
    if not found:
        return comparison.lacking(records, EXPERIMENTS, METHODS)
    effects = [row.effects["none"] for row in found]
    decided = verdict([CORRELATION.state(effect) for effect in effects])
    parts = [
        f"{_level(row.setting, 'none')} without and {_level(row.setting, 'adareg')} with AdaReg at "
        f"n = {row.setting.n:,} ({change(effect, 3)})"
        for row, effect in zip(found, effects, strict=True)
    ]
    return Judgement(
        verdict=decided,
        reason="; ".join(
            f"{change(effect, 3)} at n = {row.setting.n:,}"
            for row, effect in zip(found, effects, strict=True)
        ),
        measured=f"Mean absolute correlation: {', '.join(parts)} "
        f"({comparison.circumstances(found, METHODS)}).",
        effects=tuple(effects),
        missing=_missing(records, decided, [row.setting for row in found], METHODS),
    )


def _level(setting: Setting, method: str) -> str:
    values = setting.values(method, CORRELATION.measure).values()
    return number(sum(values) / len(values), 3)


def _missing(
    records: Records, decided: str, settings: Sequence[Setting], methods: Sequence[str]
) -> tuple[str, ...]:
    """More seeds, or the training size that has not been run."""
    return comparison.more_seeds(decided, settings, methods) or comparison.incomplete(
        records, EXPERIMENTS[:1], settings, 256
    )


def growing(records: Records) -> Judgement:
    """AdaReg's lead in mean absolute correlation is larger at n = 60,000 than at n = 600.

    The difference of the two leads, paired by seed, counts from 0.01 on. The two settings must
    have the same config but for n and for what is recorded.
    """
    settings = settings_of(records, METHODS)
    if len(settings) < len(SIZES) or not settings[0].like(settings[1], APART):
        return comparison.lacking(records, EXPERIMENTS, METHODS)
    small, large = (
        CORRELATION.differences(
            *(setting.values(method, CORRELATION.measure) for method in METHODS)
        )
        for setting in settings
    )
    what = "AdaReg's lead in mean absolute correlation, n = 60,000 − n = 600"
    effect = CORRELATION.effect(what, CORRELATION.differences(large, small))
    if effect is None:
        return comparison.lacking(records, EXPERIMENTS, METHODS)
    decided = verdict([CORRELATION.state(effect)])
    return Judgement(
        verdict=decided,
        reason=f"its lead changes by {change(effect, 3)} from n = 600 to 60,000",
        measured=f"From n = 600 to 60,000 AdaReg's lead over no regularizer changes by "
        f"{change(effect, 3)} ({comparison.about(settings, [effect], METHODS)}).",
        effects=(effect,),
        missing=comparison.more_seeds(decided, settings, METHODS),
    )


def digits(records: Records, pair: tuple[int, int]) -> Judgement:
    """With AdaReg, the rows of two digits have a correlation of the claimed sign, at both sizes.

    A correlation counts from 0.05 on, in absolute value; the mean over seeds must have the claimed
    sign. Both sizes ``yes``: reproduced; one of them: partly; both ``no``, or one ``no`` and the
    other unclear: not reproduced.
    """
    settings = settings_of(records, ["adareg"])
    quantity = _entry(pair)
    effects = [
        effect
        for setting in settings
        if (
            effect := quantity.effect(
                f"{quantity.name}, n = {setting.n:,}", setting.values("adareg", quantity.measure)
            )
        )
    ]
    if not effects:
        return comparison.lacking(records, EXPERIMENTS, ["adareg"])
    decided = verdict([state(effect, PAIRS[pair], RELEVANT) for effect in effects])
    parts = [f"{change(effect)} at {effect.what.split(', ', 1)[1]}" for effect in effects]
    return Judgement(
        verdict=decided,
        reason="; ".join(parts),
        measured=f"Correlation of rows {pair[0]} and {pair[1]} with AdaReg: {listing(parts)} "
        f"({comparison.about(settings, effects, ['adareg'])}).",
        effects=tuple(effects),
        missing=_missing(records, decided, settings, ["adareg"]),
    )


def _entry(pair: tuple[int, int]) -> Quantity:
    i, j = pair

    def measure(record: Record) -> float:
        return float(record["arrays"]["correlation"][i][j])

    return Quantity(name=f"correlation {i}–{j}", measure=measure, unit="", relevant=RELEVANT)


CORRELATIONS = [
    Claim(
        key="correlation-stronger",
        title="AdaReg makes the softmax layer's rows more correlated",
        paper="Training with AdaReg leads to weights with stronger correlations.",
        where="Fig. 5",
        experiments=EXPERIMENTS,
        judge=stronger,
    ),
    Claim(
        key="correlation-growing",
        title="AdaReg adds more correlation with more data",
        paper="The stronger correlations are more evident when the training set is large "
        "(60,000 against 600).",
        where="Fig. 5",
        experiments=EXPERIMENTS,
        judge=growing,
    ),
    *(
        Claim(
            key=f"correlation-{one}-{other}",
            title=f"The rows of {one} and {other} are {signs[0]} correlated",
            paper=f"{kind} digits, e.g. {one} and {other}, share a {signs[1]} correlation.",
            where="Fig. 5",
            experiments=EXPERIMENTS,
            judge=partial(digits, pair=(one, other)),
        )
        for (one, other), kind, signs in (
            ((1, 7), "Similar", ("positively", "positive")),
            ((1, 8), "Dissimilar", ("negatively", "negative")),
        )
    ),
]
