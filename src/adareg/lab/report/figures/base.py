"""The parts of a figure of the page: panels that draw themselves, words, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.axes import Axes

from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Study, command
from adareg.lab.report.style import Dashes
from adareg.lab.rounding import fixed, written


@dataclass(frozen=True)
class Panel:
    """A part of a figure.

    Args:
        title: above it.
        draw: onto axes; None where records are missing.
        command: what makes the missing records.
    """

    title: str
    draw: Callable[[Axes], None] | None
    command: str = ""


@dataclass(frozen=True)
class Entry:
    """An entry of a table: the text that is shown, and the value that it is sorted by."""

    text: str
    value: float | str


@dataclass(frozen=True)
class Table:
    """Rows to sort and to read."""

    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn.

    Args:
        panels: in reading order.
        caption: what is seen, with sizes, seeds and the meaning of the error bars.
        data: every number that is drawn, for CSV.
        tables: the same for readers.
        legend: names of methods.
        lines: other entries of the legend, as (text, dashes).
        notes: what is missing or was left out.
        columns: panels side by side, where there is room.
        size: of a panel, in inches.
        open: whether the tables are to be seen at once.
        details: further tables, which are not.
    """

    panels: Sequence[Panel]
    caption: str
    data: pd.DataFrame
    tables: Sequence[Table] = ()
    legend: Sequence[str] = ()
    lines: Sequence[tuple[str, Dashes]] = ()
    notes: Sequence[str] = ()
    columns: int = 2
    size: tuple[float, float] = (3.9, 2.9)
    open: bool = False
    details: Sequence[Table] = ()


@dataclass(frozen=True)
class Figure:
    """One figure or table of the paper, or of our own.

    Args:
        key: its anchor, and the name of its files.
        title: above it.
        where: its place in the paper.
        experiments: whose records it is drawn from; the first is named when there are none.
        draw: from records to a drawing, or None if there is nothing to draw.
    """

    key: str
    title: str
    where: str
    experiments: tuple[str, ...]
    draw: Callable[[Records], Drawing | None]
    commands: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "commands", tuple(command(name) for name in self.experiments))


def number(value: float, digits: int = 2, sign: bool = False) -> Entry:
    """Return an entry with a number; a dash where there is none."""
    if not math.isfinite(value):
        return Entry("–", "")
    return Entry(written(value, digits, "+," if sign else ","), fixed(value, digits))


def spread(mean: float, error: float, digits: int = 2, sign: bool = False) -> Entry:
    """Return an entry with a mean and its standard error."""
    cell = number(mean, digits, sign)
    if not math.isfinite(error) or not isinstance(cell.value, float):
        return cell
    return Entry(f"{cell.text} ± {written(error, digits)}", cell.value)


def scales(*studies: Study) -> str:
    """Say what is drawn: experiments, scales, sizes and seeds."""
    return "Drawn from " + "; ".join(
        f"{study.experiment.name} at scale {study.scale} ({_sizes(study)}, {study.seeds()})"
        for study in studies
    )


def _sizes(study: Study) -> str:
    sizes = sorted({record["config"]["n"] for record in study.records})
    if len(sizes) < 4:
        return "n = " + ", ".join(f"{n:,}" for n in sizes)
    return f"{len(sizes)} training sizes from {sizes[0]:,} to {sizes[-1]:,}"


def notes(*studies: Study) -> tuple[str, ...]:
    """Return the notes of all studies, each once."""
    return tuple(dict.fromkeys(note for study in studies for note in study.notes()))
