"""Fig. 5 (fig:correlation): correlations between the rows of the softmax layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from adareg.lab.experiments import SCALES
from adareg.lab.judge import published
from adareg.lab.report import style
from adareg.lab.report.figures import matrices
from adareg.lab.report.figures.base import (
    Cell,
    Drawing,
    Figure,
    Panel,
    Studies,
    Table,
    notes,
    number,
    spread,
)
from adareg.lab.report.figures.curves import Numbers
from adareg.lab.report.studies import Study
from adareg.lab.run.records import Record

METHODS = ("none", "adareg")
SIZES = (600, 60_000)
#: Networks of one kind: the paper's schedule at batch size 256.
SOURCES = ("mnist-correlations", "mnist-generalization", "mnist-optimization")


def nearest(studies: Studies) -> list[tuple[int, int, Study]]:
    """For each of the paper's sizes, the nearest at hand, in ratio, and the study that has it.

    Of several studies it is the one with the most networks of it, as in the verdicts.
    """
    found = [studies[name] for name in SOURCES if name in studies]
    if not found:
        return []
    scale = max(found, key=lambda s: (not s.variant, SCALES.index(s.scale))).scale
    known = [
        (n, study)
        for study in found
        if study.scale == scale
        for n in sorted({r["config"]["n"] for r in study.records})
    ]
    chosen = []
    for wanted in SIZES:
        n, study = min(
            known,
            key=lambda item: (abs(np.log(item[0] / wanted)), -_pairs(item[1], item[0])),
        )
        chosen.append((wanted, n, study))
    return chosen if chosen[0][1] != chosen[1][1] else chosen[:1]


def _pairs(study: Study, n: int) -> int:
    """How many seeds both methods have."""
    seeds = [{r["seed"] for r in _networks(study, n, method)} for method in METHODS]
    return len(set.intersection(*seeds))


def _networks(study: Study, n: int, method: str) -> list[Record]:
    batch = min(r["config"]["batch"] for r in study.records)
    return [
        r
        for r in study.records
        if (r["config"]["n"], r["config"]["batch"], r["method"]) == (n, batch, method)
        and not r["metrics"]["diverged"]
    ]


def _row(records: list[Record], wanted: int, n: int, method: str) -> list[Cell]:
    related = matrices.stacked(records, "correlation")
    strength = matrices.off_diagonal(related)
    accuracy = 100 * np.array([r["metrics"].get("test_accuracy") for r in records], float)

    def mean(values: Numbers, digits: int) -> Cell:
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        return spread(float(values.mean()), float(error), digits)

    said = published.ACCURACY[wanted, method] if n == wanted else np.nan
    return [
        number(n, 0),
        Cell(style.label(method), method),
        mean(strength, 3),
        mean(related[:, 1, 7], 3),
        mean(related[:, 1, 8], 3),
        mean(accuracy, 2),
        number(said, 2),
        number(len(records), 0),
    ]


HEAD = ["n", "method", "mean |r|", "1 with 7", "1 with 8"]
HEAD += ["accuracy, %", "paper's accuracy, %", "seeds"]


def draw(studies: Studies) -> Drawing | None:
    """Mean correlation matrices at both sizes, with and without AdaReg, on one scale."""
    sizes = nearest(studies)
    found = {
        (wanted, n, method): records
        for wanted, n, study in sizes
        for method in METHODS
        if (records := _networks(study, n, method))
    }
    if not found:
        return None
    names = next(iter(found.values()))[0]["names"]
    mean = {key: matrices.stacked(rs, "correlation").mean(0) for key, rs in found.items()}
    limit = max(np.abs(m - np.eye(len(m))).max() for m in mean.values())
    panels = [
        Panel(
            f"{style.label(method)}, n = {n:,}",
            partial(matrices.draw, matrix=matrix, limit=limit, names=names, label="correlation"),
        )
        for (_, n, method), matrix in mean.items()
    ]
    data = [matrices.long(m, names, n=n, method=method) for (_, n, method), m in mean.items()]
    used = list({study.experiment.name: study for _, _, study in sizes}.values())
    sources = ", ".join(f"n = {n:,} from {study.experiment.name}" for _, n, study in sizes)
    return Drawing(
        panels=panels,
        caption="Correlation between the rows of the softmax layer's weight, one for each digit: "
        "mean over seeds, all panels on one scale, the diagonal (1) beyond it. Drawn from the "
        f"networks at scale {used[0].scale}: {sources}; seeds are in the table.",
        data=pd.concat(data),
        tables=[Table(HEAD, [_row(rs, *key) for key, rs in found.items()], _CAPTION)],
        notes=(*_sizes_note(sizes), *notes(*used)),
        size=(3.6, 2.9),
        open=True,
    )


_CAPTION = (
    "Mean magnitude of a correlation beside the diagonal in one network, the correlations of 1 "
    "with 7 (alike, says the paper) and with 8 (unlike): mean ± standard error over seeds"
)


def _sizes_note(sizes: list[tuple[int, int, Study]]) -> list[str]:
    other = [f"{n:,} in place of {wanted:,}" for wanted, n, _ in sizes if n != wanted]
    if not other:
        return []
    return [
        f"The training sizes nearest to the paper's among the records: {', '.join(other)}; "
        "the paper's own: adareg reproduce mnist-correlations --scale paper"
    ]


FIGURE = Figure(
    "correlations",
    "Correlations in the softmax layer",
    "Fig. 5",
    ("mnist-correlations",),
    draw,
)
