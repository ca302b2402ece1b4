"""Comparing methods in every setting of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.judge.claims.base import (
    MIN_SEEDS,
    NOT_ENOUGH,
    Effect,
    Judgement,
    State,
    all_of,
    verdict,
)
from adareg.lab.judge.claims.phrases import change, label, listing, several, span
from adareg.lab.judge.claims.quantities import Quantity, mean_by_seed
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting


@dataclass(frozen=True)
class Row:
    """One setting: the differences between a method and others, those with enough seeds."""

    setting: Setting
    effects: dict[str, Effect]

    def state(self, quantity: Quantity, others: Sequence[str]) -> State:
        """Answer if the method is ahead of all the others."""
        return all_of([quantity.state(effect) for effect in self.effects.values()], len(others))


def rows(
    settings: Sequence[Setting], quantity: Quantity, method: str, others: Sequence[str]
) -> list[Row]:
    """The settings in which at least one comparison has enough seeds."""
    found = []
    for setting in settings:
        first = setting.values(method, quantity.measure)
        effects = {}
        for other in others:
            differences = quantity.differences(first, setting.values(other, quantity.measure))
            what = f"{quantity.name}, {versus_words(method, other)}, {named(setting)}"
            if (effect := quantity.effect(what, differences)) is not None:
                effects[other] = effect
        if effects:
            found.append(Row(setting, effects))
    return found


def summaries(
    found: Sequence[Row], quantity: Quantity, method: str, others: Sequence[str]
) -> dict[str, Effect]:
    """Return each other method's mean difference over all settings, paired by seed."""
    means = {}
    for other in others:
        parts = [
            quantity.differences(
                row.setting.values(method, quantity.measure),
                row.setting.values(other, quantity.measure),
            )
            for row in found
            if other in row.effects
        ]
        what = f"{quantity.name}, {versus_words(method, other)}, mean of "
        what += several(len(parts), "setting")
        if (effect := quantity.effect(what, mean_by_seed(parts))) is not None:
            means[other] = effect
    return means


def compare(
    records: Records,
    experiments: Sequence[str],
    quantity: Quantity,
    others: Sequence[str],
    *,
    method: str = "adareg",
    batch: int | None = None,
    together: bool = True,
) -> Judgement:
    """A method against others in every setting, by ``base``'s rules.

    Args:
        records: what there is.
        experiments: where to look; the first is the one to run if there is nothing.
        quantity: what to compare.
        others: the methods to be ahead of.
        method: the one that is claimed to be ahead.
        batch: one batch size, or None for all.
        together: a setting is one answer, ``yes`` when the method is ahead of all the others and
            ``no`` when it is not of one; otherwise each comparison is an answer of its own.
    """
    methods = (method, *others)
    settings = records.settings(experiments, methods, batch=batch)
    found = rows(settings, quantity, method, others)
    if not found:
        return lacking(records, experiments, methods)
    ahead = [row.state(quantity, others) for row in found]
    effects = [effect for row in found for effect in row.effects.values()]
    each = [quantity.state(effect) for effect in effects]
    means = summaries(found, quantity, method, others)
    missing = incomplete(records, experiments, [row.setting for row in found], batch)
    decided = verdict(ahead if together else each)
    return Judgement(
        verdict=decided,
        measured=_sentence(found, ahead, means, quantity, method, others)
        + f" ({about(settings, effects, methods)}).",
        effects=(*means.values(), *effects),
        missing=more_seeds(decided, [row.setting for row in found], methods) or missing,
    )


def _sentence(
    found: Sequence[Row],
    states: Sequence[State],
    means: dict[str, Effect],
    quantity: Quantity,
    method: str,
    others: Sequence[str],
) -> str:
    compared = [other for other in others if any(other in row.effects for row in found)]
    counts = [f"than with {label(o)} in {_ahead(found, quantity, o)}" for o in compared]
    text = f"With {label(method)} the {quantity.name} is {quantity.direction} {listing(counts)} "
    text += f"of {several(len(found), 'setting')}"
    if len(compared) > 1:
        every = "both" if len(compared) == 2 else "all of them"
        text += f" (than with {every} in {states.count('yes')})"
    text += undecided(states)
    return f"{text}; {_sizes(found, means, quantity)}"


def undecided(states: Sequence[State], where: str = "in") -> str:
    """Say how many settings gave no answer, as the end of a clause."""
    count = states.count("unclear")
    return f", unclear {where} {count}" if count else ""


def _ahead(found: Sequence[Row], quantity: Quantity, other: str) -> int:
    return sum(quantity.state(row.effects[other]) == "yes" for row in found if other in row.effects)


def _sizes(found: Sequence[Row], means: dict[str, Effect], quantity: Quantity) -> str:
    """Say how large the differences are: on average, and their range if there is one method."""
    effects = [effect for row in found for effect in row.effects.values()]
    if not means:
        return f"the differences are {span(effects, quantity.digits)}"
    if len(means) == 1:
        parts = [change(mean, quantity.digits) for mean in means.values()]
    else:
        parts = [f"{change(m, quantity.digits)} from {label(o)}" for o, m in means.items()]
    seeds, most = min(m.seeds for m in means.values()), max(effect.seeds for effect in effects)
    over = f"over the {seeds} seeds that all settings have " if seeds < most else ""
    text = f"{'on average ' if len(found) > 1 else ''}{over}it differs by {listing(parts)}"
    ranged = len(means) == 1 and len(found) > 1
    return f"{text}, between {span(effects, quantity.digits, 'and')}" if ranged else text


def versus_words(method: str, other: str) -> str:
    """A comparison, in words."""
    return f"{label(method)} − {label(other)}"


def named(setting: Setting) -> str:
    """A setting, in words."""
    return f"n = {setting.n:,}, batch {setting.batch:,}"


def circumstances(found: Sequence[Row], methods: Sequence[str]) -> str:
    """Seeds and scale of comparisons, and what diverged."""
    effects = [effect for row in found for effect in row.effects.values()]
    return about([row.setting for row in found], effects, methods)


def about(settings: Sequence[Setting], effects: Sequence[Effect], methods: Sequence[str]) -> str:
    """Seeds and scale of comparisons, and what diverged."""
    counts = sorted({effect.seeds for effect in effects})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    text = f"{seeds} seeds, {settings[0].scale} scale"
    diverged = sum(setting.diverged(methods) for setting in settings)
    return f"{text}, {several(diverged, 'network')} diverged" if diverged else text


def command(experiment: str, scale: str | None, seeds: int = MIN_SEEDS) -> str:
    """Return the command that makes records: at a scale, or at the one that the claim is about."""
    scale = scale or ("small" if experiment.startswith("digits") else "paper")
    text = f"adareg reproduce {experiment} --scale {scale}"
    known = EXPERIMENTS.get(experiment)
    enough = known is not None and known.seeds[scale] >= seeds
    return text if enough else f"{text} --seeds {seeds}"


def lacking(records: Records, experiments: Sequence[str], methods: Sequence[str]) -> Judgement:
    """No setting has enough seeds of the methods to compare."""
    scale = records.scale(*experiments)
    first = experiments[0]
    if scale is None:
        text = f"No records of {first}."
    else:
        names = listing([label(method) for method in methods])
        text = (
            f"No setting has {MIN_SEEDS} seeds that {names} share ({scale} scale)."
            if len(methods) > 1
            else f"No setting has {MIN_SEEDS} seeds of {names} ({scale} scale)."
        )
    return Judgement(verdict=NOT_ENOUGH, measured=text, missing=(command(first, scale),))


def incomplete(
    records: Records,
    experiments: Sequence[str],
    settings: Sequence[Setting],
    batch: int | None = None,
) -> tuple[str, ...]:
    """The command for the settings of an experiment that have not been run (or too few of them)."""
    scale = records.scale(*experiments)
    expected = {
        (config.batch, config.n)
        for config in EXPERIMENTS[experiments[0]].cells(scale or "paper")
        if config.n and config.batch == (batch or config.batch)
    }
    missing = expected - {(setting.batch, setting.n) for setting in settings}
    return (command(experiments[0], scale),) if missing else ()


def more_seeds(
    verdict: str, settings: Sequence[Setting], methods: Sequence[str]
) -> tuple[str, ...]:
    """The command for twice the seeds, if those there are do not tell."""
    if verdict != NOT_ENOUGH:
        return ()
    most = max(setting.seeds(methods) for setting in settings)
    return (command(settings[0].experiment, settings[0].scale, 2 * max(most, MIN_SEEDS)),)
