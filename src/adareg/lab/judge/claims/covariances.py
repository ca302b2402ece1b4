"""Fig. 8 of the appendix: the covariances that AdaReg learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import MIN_SEEDS, Claim, Effect, Judgement, State, verdict
from adareg.lab.judge.claims.phrases import change, listing, number
from adareg.lab.judge.claims.quantities import Quantity, off_diagonal, strength
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting
from adareg.lab.run.records import Record

EXPERIMENT = "mnist-covariances"
SIZES = (600, 60_000)
#: A variance up to this multiple of the bound is at the bound.
AT_BOUND = 1.1
#: A correlation of patterns from which on they are the same.
SAME = 0.5
#: Correlations below this are zero but for rounding.
ROUNDING = 1e-6


def correlation(covariance: Any) -> NDArray[np.float64]:
    """A covariance over its standard deviations; what is zero but for rounding is zero."""
    matrix = np.asarray(covariance, dtype=float)
    variances = matrix.diagonal()
    if not (variances > 0).all():
        raise ValueError("a covariance has positive variances")
    scaled: NDArray[np.float64] = matrix / np.sqrt(np.outer(variances, variances))
    return np.where(np.abs(scaled) < ROUNDING, 0.0, scaled)


def clarity(side: str) -> Quantity:
    """The mean absolute correlation in a learned covariance, of rows or of columns."""

    def measure(record: Record) -> float:
        arrays: Mapping[str, Any] = record["arrays"]
        return strength(correlation(arrays[f"{side}_covariance"]))

    name = {"row": "row", "col": "column"}[side]
    return Quantity(name=f"{name} covariance", measure=measure, unit="", relevant=0.01, digits=3)


def variance(record: Record) -> float:
    """The mean variance of the rows, in multiples of its lower bound.

    The bound is 1/v for precisions up to v; the paper, with uv = 1, calls it u.
    """
    variances = np.asarray(record["arrays"]["row_covariance"], dtype=float).diagonal()
    return float(variances.mean() * record["config"]["upper"])


def likeness(record: Record) -> float:
    """The correlation between two patterns: of the row covariance and of the weight's rows."""
    learned = off_diagonal(correlation(record["arrays"]["row_covariance"]))
    weights = off_diagonal(record["arrays"]["correlation"])
    if np.ptp(learned) == 0 or np.ptp(weights) == 0:
        return 0.0  # no pattern is like no other
    return float(np.corrcoef(learned, weights)[0, 1])


VARIANCE = Quantity(name="row variance", measure=variance, unit="× u", relevant=0)
LIKENESS = Quantity(name="likeness of patterns", measure=likeness, unit="", relevant=0)


def faintness(record: Record) -> float:
    """By how much the weights' rows are more correlated than the row covariance says."""
    arrays: Mapping[str, Any] = record["arrays"]
    return strength(arrays["correlation"]) - strength(correlation(arrays["row_covariance"]))


FAINTNESS = Quantity(
    name="correlation of weights − of row covariance", measure=faintness, unit="", relevant=0.01
)


def _settings(records: Records) -> list[Setting]:
    settings = [
        c for n in SIZES for c in records.settings([EXPERIMENT], ["adareg"], n=n, batch=256)
    ]
    return [setting for setting in settings if setting.seeds(["adareg"]) >= MIN_SEEDS]


def clearer(records: Records) -> Judgement:
    """Both covariances have stronger correlations at n = 60,000 than at n = 600.

    The mean absolute correlation beside the diagonal, paired by seed; a difference counts from
    0.01 on. Rows and columns ``yes``: reproduced; one of them: partly; both ``no``, or one ``no``
    and the other unclear: not reproduced.
    """
    settings = _settings(records)
    if len(settings) < len(SIZES) or not settings[0].like(settings[1], {"n"}):
        return comparison.lacking(records, [EXPERIMENT], ["adareg"])
    parts, effects, states = [], list[Effect](), list[State]()
    for quantity in (clarity("row"), clarity("col")):
        small, large = (setting.values("adareg", quantity.measure) for setting in settings)
        what = f"mean absolute correlation, {quantity.name}, n = 60,000 − n = 600"
        effect = quantity.effect(what, quantity.differences(large, small))
        if effect is None:
            return comparison.lacking(records, [EXPERIMENT], ["adareg"])
        effects.append(effect)
        states.append(quantity.state(effect))
        before, after = (number(sum(v.values()) / len(v), 3) for v in (small, large))
        parts.append(
            f"{quantity.name} {before} at n = 600, {after} at 60,000 ({change(effect, 3)})"
        )
    decided = verdict(states)
    return Judgement(
        verdict=decided,
        reason=f"rows {change(effects[0], 3)}, columns {change(effects[1], 3)}",
        measured=f"Mean absolute correlation of the {listing(parts)} "
        f"({comparison.about(settings, effects, ['adareg'])}).",
        effects=tuple(effects),
        missing=comparison.more_seeds(decided, settings, ["adareg"]),
    )


def at_bound(records: Records) -> Judgement:
    """The mean variance in the row covariance is at its lower bound, at both training sizes.

    At the bound is up to 1.1 times it: ``yes`` when the interval ends below that, ``no`` when it
    starts above; shares of the two sizes by ``base``'s rule.
    """
    return _levels(records, VARIANCE, AT_BOUND, below=True, text="Mean row variance")


def same_pattern(records: Records) -> Judgement:
    """The row covariance has the pattern of the weights' correlation, at both training sizes.

    The correlation between the entries of the two beside the diagonal: ``yes`` when the interval
    lies above 0.5, ``no`` when it lies below; shares of the two sizes by ``base``'s rule.
    """
    text = "Correlation between the two patterns"
    return _levels(records, LIKENESS, SAME, below=False, text=text)


def fainter(records: Records) -> Judgement:
    """The weights' rows are more correlated than the row covariance, at both training sizes.

    The mean absolute correlation beside the diagonal of the one less that of the other, paired by
    seed; a difference counts from 0.01 on; shares of the two sizes by ``base``'s rule.
    """
    settings = _settings(records)
    effects = [
        effect
        for setting in settings
        if (
            effect := FAINTNESS.effect(
                f"{FAINTNESS.name}, n = {setting.n:,}",
                setting.values("adareg", FAINTNESS.measure),
            )
        )
    ]
    if not effects:
        return comparison.lacking(records, [EXPERIMENT], ["adareg"])
    decided = verdict([FAINTNESS.state(effect) for effect in effects])
    parts = [f"{change(e, 3)} at {e.what.split(', ', 1)[1]}" for e in effects]
    return Judgement(
        verdict=decided,
        reason="; ".join(parts),
        measured="Mean absolute correlation of the weights' rows less that of the row covariance: "
        f"{listing(parts)} ({comparison.about(settings, effects, ['adareg'])}).",
        effects=tuple(effects),
        missing=comparison.more_seeds(decided, settings, ["adareg"])
        or comparison.incomplete(records, [EXPERIMENT], settings),
    )


def _levels(
    records: Records, quantity: Quantity, threshold: float, *, below: bool, text: str
) -> Judgement:
    """A level on one side of a threshold, at each size."""
    settings = _settings(records)
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
        return comparison.lacking(records, [EXPERIMENT], ["adareg"])
    decided = verdict([_side(effect, threshold, below) for effect in effects])
    parts = [
        f"{number(e.value)} {e.unit}".rstrip()
        + f" [{number(e.low)}, {number(e.high)}] at {e.what.split(', ', 1)[1]}"
        for e in effects
    ]
    return Judgement(
        verdict=decided,
        reason="; ".join(parts),
        measured=f"{text}: {listing(parts)} ({comparison.about(settings, effects, ['adareg'])}).",
        effects=tuple(effects),
        missing=comparison.more_seeds(decided, settings, ["adareg"])
        or comparison.incomplete(records, [EXPERIMENT], settings),
    )


def _side(effect: Effect, threshold: float, below: bool) -> State:
    if effect.high < threshold:
        return "yes" if below else "no"
    if effect.low > threshold:
        return "no" if below else "yes"
    return "unclear"


COVARIANCES = [
    Claim(
        key="covariance-clearer",
        title="The learned covariances are clearer with more data",
        paper="The structure of both covariance matrices becomes more evident with the larger "
        "data set (60,000 against 600).",
        where="Fig. 8",
        experiments=(EXPERIMENT,),
        judge=clearer,
    ),
    Claim(
        key="covariance-bound",
        title="The row variance is at its lower bound",
        paper="The variance of the row covariance achieves the lower bound u at convergence.",
        where="Appendix, Fig. 8",
        experiments=(EXPERIMENT,),
        judge=at_bound,
    ),
    Claim(
        key="covariance-pattern",
        title="The row covariance looks like the weights' correlation",
        paper="Both matrices exhibit the same correlation patterns.",
        where="Fig. 8, Fig. 5",
        experiments=(EXPERIMENT,),
        judge=same_pattern,
    ),
    Claim(
        key="covariance-fainter",
        title="The pattern is clearer in the weights than in the row covariance",
        paper="The pattern obtained from the model's weights is more evident.",
        where="Fig. 8, Fig. 5",
        experiments=(EXPERIMENT,),
        judge=fainter,
    ),
]
