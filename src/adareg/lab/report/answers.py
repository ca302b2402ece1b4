"""The first screen: what a stranger asks, each with a number, a sentence and a small picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from adareg.lab.contest.figure import LEAST
from adareg.lab.contest.judge import Standing
from adareg.lab.contest.page import label as competitor
from adareg.lab.contest.suites import MEASURES
from adareg.lab.experiments import COMPARED
from adareg.lab.judge.claims import comparison, spectra
from adareg.lab.judge.claims.base import Effect
from adareg.lab.judge.claims.phrases import change, label, listing, signed
from adareg.lab.judge.claims.quantities import ACCURACY, SPECTRAL_NORM, STABLE_RANK
from adareg.lab.judge.selection import Records
from adareg.lab.report import style
from adareg.lab.report.figures import contest

OURS, OTHERS = "#D55E00", "#0072B2"
SIZE = (2.7, 2.2)
#: Where a question about networks is answered: the first that has records.
DATA = {
    "MNIST": ("mnist-generalization",),
    "CIFAR-10": ("cifar-generalization",),
    "scikit-learn's digits": ("digits",),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A card of the first screen.

    Args:
        key: of its picture.
        question: a stranger's.
        size: the answer, a number.
        beside: what is written small beside it.
        text: what was measured, in a sentence or two.
        picture: SVG.
        legend: what the marks of the picture are.
    """

    key: str
    question: str
    size: str
    beside: str
    text: str
    picture: str
    legend: str


def answers(records: Records, rows: pd.DataFrame) -> list[Answer]:
    """All that can be answered from the records of networks and of the contest."""
    found = (_tables(rows), _accuracy(records), _weights(records))
    return [answer for answer in found if answer is not None]


def _tables(rows: pd.DataFrame) -> Answer | None:
    found = {
        key: each for key, each in contest.standings(rows).items() if "evidence" in each.average
    }
    if not found:
        return None
    suite = next(iter(found))[0]
    mine = {measure: each for (name, measure), each in found.items() if name == suite}
    places = [
        f"{_place(each)} of {len(each.average)} by {MEASURES[measure].label}"
        for measure, each in mine.items()
    ]
    count = len(next(iter(mine.values())).ranks)
    name = "EvidenceClassifier" if suite == "classification" else "EvidenceRegressor"
    return Answer(
        key="answer-tables",
        question=f"Does {name} predict well from small tables?",
        size=places[0].split(" by ")[0],
        beside="by " + places[0].split(" by ")[1],
        text=f"{name}, with nothing to choose, on {count} table{'s' * (count > 1)} "
        f"({suite})"
        + "".join(f"; {place}" for place in places[1:])
        + (". So few tables cannot rank methods." if count < LEAST else "."),
        picture=_picture("answer-tables", lambda axes: _draw_ranks(axes, list(mine.values()))),
        legend=" ".join(
            f"{mark} average rank by {MEASURES[measure].label}."
            for mark, measure in zip("◆○", mine, strict=False)
        ),
    )


def _place(standing: Standing) -> str:
    """The place of this library's estimator; from which to which, if others share it."""
    mine = standing.average["evidence"]
    first = 1 + int((standing.average < mine).sum())
    last = int((standing.average <= mine).sum())
    return _ordinal(first) if first == last else f"{_ordinal(first)} to {_ordinal(last)}"


def _ordinal(place: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{ends.get(place, 'th')}"


def _draw_ranks(axes: Axes, found: Sequence[Standing]) -> None:
    methods = [str(method) for method in found[0].average.index]
    looks = ({"marker": "D", "markersize": 6}, {"marker": "o", "markerfacecolor": "none"})
    for standing, look in zip(found, looks, strict=False):
        for y, method in enumerate(methods):
            if method in standing.average.index:
                colour = OURS if method.startswith("evidence") else OTHERS
                rank = float(standing.average[method])
                axes.plot([rank], [y], color=colour, linestyle="none", **look)  # type: ignore[arg-type]
    ours = [y for y, method in enumerate(methods) if method.startswith("evidence")]
    _names(axes, [competitor(method) for method in methods], ours)
    axes.set(xlim=(0.5, len(methods) + 0.5), xlabel="average rank")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _accuracy(records: Records) -> Answer | None:
    by_data = {name: _gains(records, experiments) for name, experiments in DATA.items()}
    found = {name: gains for name, gains in by_data.items() if "adareg" in gains}
    if not found:
        return None
    name, gains = next(iter(found.items()))
    size, _, ends = change(gains["adareg"]).partition(" [")
    others = [f"{change(each['adareg'])} on {which}" for which, each in found.items()][1:]
    return Answer(
        key="answer-accuracy",
        question="Does the paper's AdaReg improve accuracy?",
        size=size,
        beside=f"[{ends}",
        text=f"Test accuracy on {name} with AdaReg instead of no regularizer"
        + "".join(f"; {other}" for other in others)
        + ". The paper reports gains at every training size.",
        picture=_picture(
            "answer-accuracy",
            lambda axes: _draw_effects(axes, {label(m): e for m, e in gains.items()}, "points"),
        ),
        legend=f"Change in test accuracy on {name}, mean over training sizes, 95 % intervals.",
    )


def _gains(records: Records, experiments: Sequence[str]) -> dict[str, Effect]:
    """The mean change in accuracy with each method, over the settings that have enough seeds."""
    gains = {}
    for method in (name for name in COMPARED if name != "none"):
        settings = records.settings(experiments, (method, "none"))
        rows = comparison.rows(settings, ACCURACY, method, ["none"])
        if mean := comparison.summaries(rows, ACCURACY, method, ["none"]).get("none"):
            gains[method] = mean
    return dict(sorted(gains.items(), key=lambda item: -item[1].value))


def _weights(records: Records) -> Answer | None:
    for name, (experiment,) in DATA.items():
        experiments = (experiment.replace("-generalization", "-spectra"), experiment)
        batch = None if experiment == "digits" else spectra.BATCH
        found = {
            f"{quantity.name},\n{label(method)}": judged.effects[0]
            for quantity in (STABLE_RANK, SPECTRAL_NORM)
            for method in ("adareg", "weight-decay")
            if (
                judged := spectra.smaller(
                    records, experiments, quantity, method=method, batch=batch
                )
            ).effects
        }
        ours = [effect for what, effect in found.items() if what.endswith("AdaReg")]
        if len(ours) == 2:
            return _weights_answer(name, found, ours)
    return None


def _weights_answer(name: str, found: dict[str, Effect], ours: Sequence[Effect]) -> Answer:
    sizes = [f"{signed(effect.value, 0)} %" for effect in ours]
    ends = [change(effect, 1).partition(" [")[2] for effect in ours]
    return Answer(
        key="answer-weights",
        question="What does AdaReg do to the last layer?",
        size=listing(sizes),
        beside=f"[{ends[0]} and [{ends[1]}",
        text=f"Stable rank and spectral norm of its weight on {name}, with AdaReg instead of no "
        "regularizer. The paper reports lower ones than with weight decay, too.",
        picture=_picture("answer-weights", lambda axes: _draw_effects(axes, found, "%")),
        legend=f"Change on {name}, mean over training sizes, 95 % intervals.",
    )


def _draw_effects(axes: Axes, effects: dict[str, Effect], unit: str) -> None:
    axes.axvline(0, color=style.INK, linewidth=0.8)
    ours = []
    for y, (what, effect) in enumerate(effects.items()):
        if what.endswith("AdaReg"):
            ours.append(y)
        colour = OURS if y in ours else OTHERS
        axes.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2)
        axes.plot([effect.value], [y], marker="D", color=colour, markersize=6)
    _names(axes, list(effects), ours)
    axes.set_xlabel(f"change, {unit}")


def _names(axes: Axes, names: Sequence[str], ours: Sequence[int]) -> None:
    axes.set_yticks(range(len(names)), names)
    for y in ours:
        axes.get_yticklabels()[y].set_color(OURS)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _picture(key: str, draw: Callable[[Axes], None]) -> str:
    def fill(canvas: Canvas) -> None:
        draw(canvas.subplots())

    return style.svg(fill, SIZE, key)
