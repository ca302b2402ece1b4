"""Fig. 5 (fig:correlation): correlations between the rows of the softmax layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from adareg.lab.judge import published
from adareg.lab.judge.claims.correlations import BATCH, EXPERIMENTS, METHODS, SIZES
from adareg.lab.judge.selection import Records
from adareg.lab.judge.study import Setting
from adareg.lab.report import style
from adareg.lab.report.figures import matrices
from adareg.lab.report.figures.base import (
    Drawing,
    Entry,
    Figure,
    Panel,
    Table,
    notes,
    number,
    spread,
)
from adareg.lab.report.figures.curves import Numbers
from adareg.lab.run.records import Record


def nearest(records: Records) -> list[tuple[int, Setting]]:
    """Return the setting nearest to each of the paper's sizes, in ratio; of one if it is the same.

    The paper's own sizes are those that the verdicts are about.
    """
    known = records.settings(EXPERIMENTS, METHODS, batch=BATCH)
    chosen = {n: min(known, key=lambda s: abs(np.log(s.n / n))) for n in SIZES if known}
    found = {setting.n: (wanted, setting) for wanted, setting in reversed(chosen.items())}
    return list(reversed(found.values()))


def _row(records: list[Record], wanted: int, n: int, method: str) -> list[Entry]:
    related = matrices.stacked(records, "correlation")
    strength = matrices.off_diagonal(related)
    accuracy = 100 * np.array([r["metrics"].get("test_accuracy") for r in records], float)

    def mean(values: Numbers, digits: int) -> Entry:
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        return spread(float(values.mean()), float(error), digits)

    said = published.ACCURACY[wanted, method] if n == wanted else np.nan
    return [
        number(n, 0),
        Entry(style.label(method), method),
        mean(strength, 3),
        mean(related[:, 1, 7], 3),
        mean(related[:, 1, 8], 3),
        mean(accuracy, 2),
        number(said, 2),
        number(len(records), 0),
    ]


HEAD = ["n", "method", "mean |r|", "1 with 7", "1 with 8"]
HEAD += ["accuracy, %", "paper's accuracy, %", "seeds"]


def draw(records: Records) -> Drawing | None:
    """Mean correlation matrices at both sizes, with and without AdaReg, on one scale."""
    sizes = nearest(records)
    found = {
        (wanted, setting.n, method): networks
        for wanted, setting in sizes
        for method in reversed(METHODS)
        if (networks := setting.records(method))
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
    used = records.behind(setting for _, setting in sizes)
    sources = ", ".join(f"n = {s.n:,} from {s.experiment}" for _, s in sizes)
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


def _sizes_note(sizes: list[tuple[int, Setting]]) -> list[str]:
    other = [f"{s.n:,} in place of {wanted:,}" for wanted, s in sizes if s.n != wanted]
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
