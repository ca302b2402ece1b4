"""Section 3.3: closed form, and what it costs. Judged from the benchmark's records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import NOT_ENOUGH, Claim, Effect, Judgement, State, verdict
from adareg.lab.judge.claims.phrases import listing, number, several
from adareg.lab.judge.selection import Records

COMMAND = "adareg bench --out RUNS/bench"

#: Relative error up to which two ways to the same solution agree, for float32 weights.
AGREE = 1e-5
#: Quadratic growth.
QUADRATIC = 2.0


def closed_form(records: Records) -> Judgement:
    """Both precisions in closed form, as we compute them, are those of dense decompositions.

    ``yes`` for a layer's shape when the relative error of both precisions is at most 1e-5 for
    float32 weights, ``no`` otherwise; shares of shapes by ``base``'s rule. That this solution is
    the optimum is a theorem; the tests of ``adareg.core`` compare it with a convex solver.
    """
    effects = tuple(_errors(records))
    if not effects:
        return _without()
    states: list[State] = ["yes" if effect.value <= AGREE else "no" for effect in effects]
    worst = max(effect.value for effect in effects)
    return Judgement(
        verdict=verdict(states),
        reason=f"relative error of at most {worst:.0e} in {several(len(effects), 'shape')}",
        measured="Both precisions come from one decomposition, without iterations; for float32 "
        f"weights they agree with the dense solution in float64 to {AGREE:.0e} for "
        f"{states.count('yes')} of {several(len(effects), 'measured shape')}, at worst to "
        f"{worst:.0e}.",
        effects=effects,
    )


def _errors(records: Records) -> Iterator[Effect]:
    for machine, row in _updates(records):
        error = row.get("error")
        value = error.get("float32 precisions") if isinstance(error, dict) else None
        if isinstance(value, int | float) and math.isfinite(value):
            what = f"relative error of an update, {row['p']} x {row['d']}, {machine}"
            yield Effect(what=what, value=value, low=value, high=value, seeds=1, unit="")


def subquadratic(records: Records) -> Judgement:
    """The time of the paper's update grows less than quadratically with the number of weights.

    For each pair of neighbouring layers with equal p and growing d that the benchmark has timed,
    with the dense update of Alg. 1: the exponent k in time ∝ (p·d)^k. ``yes`` when it is below 2
    with the quartiles of both timings, ``no`` when it is above 2 with them, by ``base``'s rule over
    pairs. The structured update's exponents are given beside it and do not count. (By the paper's
    own O(max(d³, p³)) it is sub-quadratic only while the longer side is below the square of the
    shorter.)
    """
    dense, ours = (list(_exponents(records, name)) for name in ("dense", "joint"))
    if not dense:
        return _without()
    states = [_side(effect) for effect in dense]
    decided = verdict(states)
    parts = [f"{number(e.value, 1)} ({e.what.split(', ', 1)[1]})" for e in dense]
    most = number(max(e.value for e in ours), 1) if ours else ""
    fast = f" The power of our update is at most {most}." if ours else ""
    return Judgement(
        verdict=decided,
        reason=f"exponents {listing([number(e.value, 1) for e in dense])}",
        measured=f"The time of the paper's dense update grows as a power of the number of weights: "
        f"{listing(parts)}.{fast}",
        effects=(*dense, *ours),
        missing=(COMMAND,) if decided == NOT_ENOUGH else (),
    )


def _side(effect: Effect) -> State:
    if effect.high < QUADRATIC:
        return "yes"
    return "no" if effect.low > QUADRATIC else "unclear"


def _exponents(records: Records, name: str) -> Iterator[Effect]:
    timed = [
        (machine, row["p"], row["d"], row["seconds"][name])
        for machine, row in _updates(records)
        if _is_timing(row, name)
    ]
    for (machine, p), group in groupby(sorted(timed, key=lambda t: t[:3]), key=lambda t: t[:2]):
        rows = list(group)
        for (_, _, d, first), (_, _, more, second) in pairwise(rows):
            if more == d:
                continue
            k = [
                math.log(second[b] / first[a]) / math.log(more / d)
                for a, b in (("median", "median"), ("high", "low"), ("low", "high"))
            ]
            what = f"exponent of the {name} update's time, {p} x {d} to {p} x {more}, {machine}"
            seeds = int(min(first.get("repetitions", 1), second.get("repetitions", 1)))
            yield Effect(what=what, value=k[0], low=k[1], high=k[2], seeds=seeds, unit="")


def _is_timing(row: Mapping[str, Any], name: str) -> bool:
    seconds = row.get("seconds")
    timing = seconds.get(name) if isinstance(seconds, dict) else None
    return isinstance(timing, dict) and all(
        isinstance(timing.get(key), int | float) and timing[key] > 0
        for key in ("median", "low", "high")
    )


def _updates(records: Records) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each machine's name with each timed update."""
    for benchmark in records.benchmarks:
        machine = benchmark.get("machine")
        name = machine.get("device") if isinstance(machine, dict) else None
        updates = benchmark.get("updates")
        for row in updates if isinstance(updates, list) else []:
            if isinstance(row, dict) and all(isinstance(row.get(k), int) for k in ("p", "d")):
                yield str(name or "unknown device"), row


def _without() -> Judgement:
    text = "no benchmark records in bench/, inside the folder of records or beside it"
    return comparison.unknown(text, COMMAND)


COST = [
    Claim(
        key="closed-form",
        title="Both precisions have a closed form",
        paper="Each subproblem is solved exactly by one decomposition and a threshold.",
        where="Alg. 1",
        experiments=(),
        judge=closed_form,
    ),
    Claim(
        key="cost",
        title="The update's cost grows sub-quadratically",
        paper="One SVD, O(max(d³, p³)), hence sub-quadratic in the number of parameters.",
        where="Section 3.3",
        experiments=(),
        judge=subquadratic,
    ),
]
