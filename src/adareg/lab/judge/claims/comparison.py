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
) -> Judgement:
    """A method against others in every setting, by ``base``'s rules.

    A setting is one answer: ``yes`` when the method is ahead of all the others, ``no`` when it is
    not ahead of one.

    Args:
        records: what there is.
        experiments: where to look; the first is the one to run if there is nothing.
        quantity: what to compare.
        others: the methods to be ahead of.
        method: the one that is claimed to be ahead.
        batch: one batch size, or None for all.
    """
    methods = (method, *others)
    settings = records.settings(experiments, methods, batch=batch)
    found = rows(settings, quantity, method, others)
    if not found:
        return lacking(records, experiments, methods)
    ahead = [row.state(quantity, others) for row in found]
    effects = [effect for row in found for effect in row.effects.values()]
    means = summaries(found, quantity, method, others)
    missing = incomplete(records, experiments, [row.setting for row in found], batch)
    decided = verdict(ahead)
    return Judgement(
        verdict=decided,
        reason=_reason(found, ahead, means, quantity, others),
        measured=f"{_counts(found, ahead, quantity, method, others)} "
        f"{_sizes(found, means, quantity)} ({about(settings, effects, methods)}).",
        effects=(*means.values(), *effects),
        missing=more_seeds(decided, [row.setting for row in found], methods) or missing,
    )


def _reason(
    found: Sequence[Row],
    states: Sequence[State],
    means: dict[str, Effect],
    quantity: Quantity,
    others: Sequence[str],
) -> str:
    """How often the method is ahead, and by how much of the strongest of the others."""
    than = f" than with {_every(len(others))}" if len(others) > 1 else ""
    text = f"{quantity.direction}{than} in {states.count('yes')} of "
    text += several(len(found), "setting")
    if unclear := states.count("unclear"):
        text += f", {unclear} unclear"
    if not means:
        return text
    strongest = min(means, key=lambda other: quantity.sign * means[other].value)
    size = change(means[strongest], quantity.digits)
    if len(means) > 1:
        size = f"{size.partition(' [')[0]} against {label(strongest)}"
    return f"{text}; {size}"


def _every(count: int) -> str:
    return "both" if count == 2 else f"all {count}"


def _counts(
    found: Sequence[Row],
    states: Sequence[State],
    quantity: Quantity,
    method: str,
    others: Sequence[str],
) -> str:
    compared = [other for other in others if any(other in row.effects for row in found)]
    counts = [f"with {label(o)} in {_ahead(found, quantity, o)}" for o in compared]
    text = f"{quantity.name[0].upper()}{quantity.name[1:]} is {quantity.direction} with "
    text += f"{label(method)} than {listing(counts)} of {several(len(found), 'setting')}"
    if len(compared) > 1:
        text += f", and than with {_every(len(compared))} in {states.count('yes')}"
    return f"{text}{undecided(states)}."


def undecided(states: Sequence[State]) -> str:
    """Say how many answers are open, as the end of a clause."""
    count = states.count("unclear")
    return f" ({count} unclear)" if count else ""


def _ahead(found: Sequence[Row], quantity: Quantity, other: str) -> int:
    return sum(quantity.state(row.effects[other]) == "yes" for row in found if other in row.effects)


def _sizes(found: Sequence[Row], means: dict[str, Effect], quantity: Quantity) -> str:
    """Say how large the differences are: on average, and their range if there is one method."""
    effects = [effect for row in found for effect in row.effects.values()]
    if not means:
        return f"The differences are {span(effects, quantity.digits)}"
    text = "Mean difference" if len(found) > 1 else "Difference"
    seeds, most = min(m.seeds for m in means.values()), max(effect.seeds for effect in effects)
    text += f" over the {seeds} seeds that all settings share" if seeds < most else ""
    if len(means) > 1:
        parts = [f"{change(m, quantity.digits)} against {label(o)}" for o, m in means.items()]
        return f"{text}: {listing(parts)}"
    (mean,) = means.values()
    ranged = f", from {span(effects, quantity.digits)}" if len(found) > 1 else ""
    return f"{text}: {change(mean, quantity.digits)}{ranged}"


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


def command(
    experiment: str, scale: str | None, seeds: int = MIN_SEEDS, exactly: bool = False
) -> str:
    """Return the command that makes records.

    Args:
        experiment: which.
        scale: None for the one that the claim is about.
        seeds: how many are needed.
        exactly: name that number also where the experiment has more.
    """
    scale = scale or ("small" if experiment.startswith("digits") else "paper")
    text = f"adareg reproduce {experiment} --scale {scale}"
    planned = EXPERIMENTS[experiment].seeds[scale]
    named = planned < seeds or (exactly and planned > seeds)
    return f"{text} --seeds {seeds}" if named else text


def lacking(records: Records, experiments: Sequence[str], methods: Sequence[str]) -> Judgement:
    """No setting has enough seeds of the methods to compare."""
    scale = records.scale(*experiments)
    text = f"no records of {experiments[0]}"
    if scale is not None:
        share = "share" if len(methods) > 1 else "has"
        names = listing([label(method) for method in methods])
        text = f"no setting has {MIN_SEEDS} seeds that {names} {share}, at {scale} scale"
    return unknown(text, command(experiments[0], scale))


def unknown(reason: str, *commands: str) -> Judgement:
    """No verdict for want of records; the commands make them."""
    text = f"{reason[0].upper()}{reason[1:]}."
    return Judgement(verdict=NOT_ENOUGH, reason=reason, measured=text, missing=commands)


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
    """The command for more seeds, if those there are do not tell.

    As many everywhere as the best setting has; twice as many if all have the same.
    """
    if verdict != NOT_ENOUGH:
        return ()
    counts = [setting.seeds(methods) for setting in settings]
    most = max(*counts, MIN_SEEDS)
    wanted = most if min(counts) < most else 2 * most
    return (command(settings[0].experiment, settings[0].scale, wanted, exactly=True),)
