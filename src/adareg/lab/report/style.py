"""The look of methods: one table, the same everywhere, told apart by marker and dashes too."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from adareg.lab.train.methods import METHODS

#: Stands for the colour of the page's text, which differs by day and by night.
INK = "#010203"
GRID = "#88888855"
#: Of correlations and covariances: orange is negative, purple positive.
DIVERGING = "PuOr"


Dashes = Literal["-", "--", "-.", ":"] | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """A method's colour, marker and dashes."""

    colour: str
    marker: str
    dashes: Dashes = "-"
    width: float = 1.4


#: The colours of Okabe and Ito for the methods of the paper, more of the kind for the others.
LOOKS: dict[str, Look] = {
    "none": Look(INK, "x"),
    "weight-decay": Look("#0072B2", "s", "--"),
    "dropout": Look("#56B4E9", "^", "-."),
    "batch-norm": Look("#009E73", "D", (0, (4, 1, 1, 1, 1, 1))),
    "decov": Look("#CC79A7", "v", ":"),
    "adareg": Look("#D55E00", "o", "-", 2.0),
    "evidence": Look("#E0368C", "p", "-", 2.0),
    "evidence+dropout": Look("#B565A7", "d", (0, (5, 1, 1, 1))),
    "early-stopping": Look("#999933", "1", "--"),
    "marginal-likelihood": Look("#6F5FB7", "H", "-."),
    "adareg+batch-norm": Look("#E69F00", "D", (0, (6, 2))),
    "adareg+dropout": Look("#8F9E1F", "^", (0, (3, 1, 1, 1))),
    "adareg+weight-decay": Look("#CC6677", "s", (0, (6, 2))),
    "adareg-joint": Look("#44AA99", "P", "--"),
    "adareg-official": Look("#7F7FD5", "X", "-."),
    "adareg-fc": Look("#66A61E", "h", "--"),
    "adareg-conv": Look("#8C6BB1", "<", "-."),
    "adareg-all": Look("#A6761D", ">", ":"),
}
_OTHER = Look("#808080", "*", (0, (1, 2)))

RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.linewidth": 0.8,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "adareg",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def look(method: str) -> Look:
    """The look of a method; grey stars for one that is not in the table."""
    return LOOKS.get(method, _OTHER)


def label(method: str) -> str:
    """Return a method's label for readers; its name where it has none."""
    return METHODS[method].label if method in METHODS else method


def ordered(methods: Iterable[str]) -> list[str]:
    """Return methods in the order of the table, unknown ones last."""
    names, table = set(methods), list(LOOKS)
    return [name for name in table if name in names] + sorted(names - set(table))


def svg(draw: Callable[[Figure], None], size: tuple[float, float], key: str) -> str:
    """Draw a figure; its SVG for a page, in the colour of the text around it.

    Args:
        draw: fills the figure.
        size: width and height in inches.
        key: begins every id, as a page has many figures.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=size)
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font: \1 sans-serif", text)
    text = re.sub(r"-?\d+\.\d{3,}", _rounded, text)
    return _own_ids(text, key).replace(INK, "currentColor")


def _rounded(number: re.Match[str]) -> str:
    """A coordinate to a hundredth of a point, which nobody sees: it halves the page."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _own_ids(text: str, key: str) -> str:
    """Ids that are referred to get a prefix, others go."""
    used = set(re.findall(r"(?:url\(|href=\")#([^\")]+)", text))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{key}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r'\s+id="([^"]*)"', renamed, text)
    return re.sub(r"(url\(|href=\")#", rf"\1#{key}-", text)


def as_file(text: str) -> str:
    """An SVG of a page as a file of its own: black on white."""
    head, rest = text.split(">", 1)
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + f"{head}>{ground}{rest}".replace(
        "currentColor", "#000000"
    )
