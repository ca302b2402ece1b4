"""Drawings as what the template shows: inline SVG, a legend, and files to save."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from adareg.lab import rounding
from adareg.lab.judge.selection import Records
from adareg.lab.report import style
from adareg.lab.report.figures.base import Drawing, Figure, Panel


def show(figure: Figure, records: Records) -> dict[str, Any]:
    """All that the page says of one figure."""
    drawing = figure.draw(records)
    shown = {"key": figure.key, "title": figure.title, "where": figure.where}
    if drawing is None or not any(panel.draw for panel in drawing.panels):
        return {**shown, "commands": figure.commands, "panels": []}
    return {
        **shown,
        "panels": [_panel(figure.key, i, panel, drawing) for i, panel in enumerate(drawing.panels)],
        "caption": drawing.caption,
        "notes": drawing.notes,
        "tables": drawing.tables,
        "open": drawing.open,
        "details": drawing.details,
        "wide": drawing.columns == 1,
        "legend": _legend(figure.key, drawing),
        "svg": file("image/svg+xml", style.as_file(_whole(figure, drawing))),
        "csv": file("text/csv", rounding.frame(drawing.data).to_csv(index=False)),
    }


def as_file(figure: Figure, records: Records) -> str | None:
    """A figure with all of its panels as an SVG file; None where there is nothing to draw."""
    drawing = figure.draw(records)
    if drawing is None or not any(panel.draw for panel in drawing.panels):
        return None
    return style.as_file(_whole(figure, drawing))


def file(kind: str, text: str) -> str:
    """A file inside a link."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _panel(key: str, i: int, panel: Panel, drawing: Drawing) -> dict[str, Any]:
    if panel.draw is None:
        return {"title": panel.title, "command": panel.command}

    def draw(canvas: Canvas) -> None:
        assert panel.draw is not None
        panel.draw(canvas.subplots())

    return {"title": panel.title, "svg": style.svg(draw, drawing.size, f"{key}-{i}")}


def _whole(figure: Figure, drawing: Drawing) -> str:
    """All panels in one picture, with titles and a legend, for print."""
    panels = [panel for panel in drawing.panels if panel.draw is not None]
    columns = min(drawing.columns, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            assert panel.draw is not None
            panel.draw(axes)
            axes.set_title(panel.title)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        if drawing.legend:
            handles = [*map(_handle, drawing.legend), *(_plain(*line) for line in drawing.lines)]
            canvas.legend(handles=handles, loc="outside lower center", ncols=3)

    legend = 0.25 * math.ceil((len(drawing.legend) + len(drawing.lines)) / 3)
    width, height = drawing.size
    return style.svg(draw, (columns * width, rows * height + legend), figure.key)


def _handle(method: str) -> Line2D:
    look = style.look(method)
    return Line2D(
        [0, 0.5, 1], [0, 0, 0], color=look.colour, marker=look.marker, markevery=[1],
        linestyle=look.dashes, linewidth=look.width, label=style.label(method),
    )  # fmt: skip


def _plain(text: str, dashes: style.Dashes) -> Line2D:
    return Line2D([0, 1], [0, 0], color=style.INK, linestyle=dashes, linewidth=1.3, label=text)


def _legend(key: str, drawing: Drawing) -> Sequence[dict[str, str]]:
    entries = [(style.label(m), _swatch(method=m)) for m in drawing.legend]
    entries += [(text, _swatch(line=(text, dashes))) for text, dashes in drawing.lines]
    return [
        {"label": label, "svg": svg.replace(_SWATCH, f"{key}-legend-{i}")}
        for i, (label, svg) in enumerate(entries)
    ]


_SWATCH = "swatch-of-a-legend"


@cache
def _swatch(method: str = "", line: tuple[str, style.Dashes] = ("", "-")) -> str:
    """A line with its marker; its ids begin with ``_SWATCH``."""

    def draw(canvas: Canvas) -> None:
        canvas.set_layout_engine("none")
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.add_line(_handle(method) if method else _plain(*line))
        axes.set(xlim=(-0.05, 1.05), ylim=(-1, 1))

    return style.svg(draw, (0.45, 0.18), _SWATCH)
