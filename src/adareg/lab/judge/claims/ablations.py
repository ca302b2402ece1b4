"""Figs. 6 and 7 of the appendix: AdaReg with other methods, AdaReg on other layers."""

from __future__ import annotations

from collections.abc import Sequence

from adareg.lab.judge.claims import comparison
from adareg.lab.judge.claims.base import MIN_SEEDS, Claim, Judgement, negligible, verdict
from adareg.lab.judge.claims.phrases import change, several, span
from adareg.lab.judge.claims.quantities import ACCURACY, mean_by_seed
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting

COMBINATIONS, LAYERS = "mnist-combinations", "mnist-layers"
OTHER_LAYERS = ("adareg-fc", "adareg-conv", "adareg-all")

#: Differences below this are none that Fig. 6 could show.
MARGIN = 0.3


def with_batch_norm(records: Records) -> Judgement:
    """AdaReg and batch norm together are better than batch norm and than AdaReg, in every setting.

    A gain counts from 0.1 points on; a setting is ``yes`` only against both; shares of settings by
    ``base``'s rule.
    """
    others = ("batch-norm", "adareg")
    return comparison.compare(records, [COMBINATIONS], ACCURACY, others, method="adareg+batch-norm")


def with_dropout(records: Records) -> Judgement:
    """AdaReg and dropout together are no different from dropout alone, in every setting.

    A setting is ``yes`` when the interval of the difference lies within ± 0.3 points, ``no`` when
    it does not and excludes zero; shares of settings by ``base``'s rule.
    """
    method, other = "adareg+dropout", "dropout"
    settings = records.settings([COMBINATIONS], (method, other))
    found = comparison.rows(settings, ACCURACY, method, [other])
    if not found:
        return comparison.lacking(records, [COMBINATIONS], (method, other))
    effects = [row.effects[other] for row in found]
    states = [negligible(effect, MARGIN) for effect in effects]
    decided = verdict(states)
    means = comparison.summaries(found, ACCURACY, method, [other])
    average = f"; mean {change(means[other])}" if means else ""
    return Judgement(
        verdict=decided,
        reason=f"the same in {states.count('yes')} of {several(len(found), 'setting')}{average}",
        measured=f"AdaReg + dropout and dropout differ by less than {MARGIN} points in "
        f"{states.count('yes')} of {several(len(found), 'setting')}, and surely differ in "
        f"{states.count('no')}: {span(effects)}{average} "
        f"({comparison.circumstances(found, (method, other))}).",
        effects=(*means.values(), *effects),
        missing=comparison.more_seeds(decided, [row.setting for row in found], (method, other))
        or comparison.incomplete(records, [COMBINATIONS], [row.setting for row in found]),
    )


def last_layer_best(records: Records) -> Judgement:
    """AdaReg on the last layer against fully connected, convolution and all layers, at every size.

    A gain counts from 0.1 points on; a size is ``yes`` only against all three; shares of sizes by
    ``base``'s rule.
    """
    return comparison.compare(records, [LAYERS], ACCURACY, OTHER_LAYERS)


def last_layer_gains(records: Records) -> Judgement:
    """AdaReg on the last layer against no regularizer, at every training size.

    A gain counts from 0.1 points on; shares of sizes by ``base``'s rule.
    """
    return comparison.compare(records, [LAYERS], ACCURACY, ["none"])


def last_layer_small(records: Records) -> Judgement:
    """The last layer's lead is larger at small training sizes.

    The lead over the mean of the three other choices, averaged over the smaller half of the sizes,
    less that over the larger half (the middle one of an odd number is in neither), paired by seed;
    it counts from 0.1 points on.
    """
    methods = ("adareg", *OTHER_LAYERS)
    settings = [c for c in records.settings([LAYERS], methods) if c.seeds(methods) >= MIN_SEEDS]
    settings.sort(key=lambda setting: setting.n)
    half = len(settings) // 2
    if not half:
        return comparison.lacking(records, [LAYERS], methods)
    small, large = settings[:half], settings[-half:]
    differences = ACCURACY.differences(_lead(small), _lead(large))
    what = f"lead of the last layer, n ≤ {small[-1].n:,} − n ≥ {large[0].n:,}"
    effect = ACCURACY.effect(what, differences)
    if effect is None:
        return comparison.lacking(records, [LAYERS], methods)
    decided = verdict([ACCURACY.state(effect)])
    return Judgement(
        verdict=decided,
        reason=f"{change(effect)} for n ≤ {small[-1].n:,} against n ≥ {large[0].n:,}",
        measured=f"The last layer's lead over the other choices is larger by {change(effect)} for "
        f"n ≤ {small[-1].n:,} than for n ≥ {large[0].n:,} "
        f"({comparison.about(settings, [effect], methods)}).",
        effects=(effect,),
        missing=comparison.more_seeds(decided, settings, methods)
        or comparison.incomplete(records, [LAYERS], settings),
    )


def _lead(settings: Sequence[Setting]) -> dict[int, float]:
    """Return by seed the mean lead in accuracy of the last layer over the other choices."""
    leads = []
    for setting in settings:
        others = [setting.values(method, ACCURACY.measure) for method in OTHER_LAYERS]
        last = setting.values("adareg", ACCURACY.measure)
        leads.append(ACCURACY.differences(last, mean_by_seed(others)))
    return mean_by_seed(leads)


ABLATIONS = [
    Claim(
        key="with-batch-norm",
        title="AdaReg and batch norm together beat either",
        paper="Combining AdaReg with batch norm can further improve the generalization.",
        where="Fig. 6",
        experiments=(COMBINATIONS,),
        judge=with_batch_norm,
    ),
    Claim(
        key="with-dropout",
        title="AdaReg adds nothing to dropout",
        paper="No significant difference when combining AdaReg with dropout.",
        where="Fig. 6",
        experiments=(COMBINATIONS,),
        judge=with_dropout,
    ),
    Claim(
        key="last-layer-best",
        title="AdaReg on the last layer beats AdaReg on more layers",
        paper="AdaReg on the softmax layer generalizes best, compared with AdaReg on all fully "
        "connected, all convolution or all layers.",
        where="Fig. 7",
        experiments=(LAYERS,),
        judge=last_layer_best,
    ),
    Claim(
        key="last-layer-gains",
        title="AdaReg on the last layer beats no regularizer",
        paper="AdaReg on the softmax layer is an improvement, above all with little data.",
        where="Fig. 7",
        experiments=(LAYERS,),
        judge=last_layer_gains,
    ),
    Claim(
        key="last-layer-small",
        title="The last layer's lead is larger with little data",
        paper="The improvement is more obvious when the training set is small.",
        where="Fig. 7",
        experiments=(LAYERS,),
        judge=last_layer_small,
    ),
]
