"""Fig. 8 (fig:covprior): the row and column covariances that AdaReg learns."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from adareg.lab.judge.selection import Records
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
    scales,
)
from adareg.lab.rounding import short, significant
from adareg.lab.run.records import Record

NAME = "mnist-covariances"
_SIDES = {"row_covariance": "rows", "col_covariance": "columns"}


def _networks(records: tuple[Record, ...]) -> dict[int, Record]:
    """The first seed of AdaReg at each training size: columns are in no order to average."""
    found: dict[int, Record] = {}
    for record in sorted(records, key=lambda r: r["seed"]):
        whole = "row_covariance" in record["arrays"] and not record["metrics"]["diverged"]
        if record["method"] == "adareg" and whole:
            found.setdefault(record["config"]["n"], record)
    return dict(sorted(found.items()))


def _panel(record: Record, side: str) -> Panel:
    matrix = matrices.array(record, side)
    names = record["names"] if side == "row_covariance" else []
    beside = float(np.abs(matrix - np.diag(matrix.diagonal())).max())
    draw = partial(
        matrices.draw, matrix=matrix, limit=beside or 1.0, names=names, label="covariance"
    )
    return Panel(f"{_SIDES[side]}, n = {record['config']['n']:,}", draw)


def _table(records: tuple[Record, ...]) -> Table:
    rows = []
    for record in records:
        for side, name in _SIDES.items():
            if side not in record["arrays"]:
                continue
            matrix = matrices.array(record, side)
            scale = np.sqrt(np.outer(matrix.diagonal(), matrix.diagonal()))
            related = matrices.off_diagonal((matrix / scale)[None])[0]
            eigenvalues = np.linalg.eigvalsh(matrix)
            variances = (matrix.diagonal().min(), matrix.diagonal().max())
            values = (*variances, eigenvalues[0], eigenvalues[-1])
            rows.append(
                [
                    number(record["config"]["n"], 0),
                    Entry(style.label(record["method"]), record["method"]),
                    number(record["seed"], 0),
                    Entry(name, name),
                    *(Entry(short(value), significant(value, 3)) for value in values),
                    number(float(related), 3),
                ]
            )
    head = ["n", "method", "seed", "side", "smallest variance", "largest variance"]
    head += ["smallest eigenvalue", "largest eigenvalue", "mean |correlation|"]
    return Table(head, rows, "What the learned covariances are like, network by network")


def draw(records: Records) -> Drawing | None:
    """Rows and columns of one network at each training size."""
    study = records.studies.get(NAME)
    networks = {} if study is None else _networks(study.records)
    if study is None or not networks:
        return None
    data = [
        matrices.long(
            matrices.array(record, side),
            record["names"] if side == "row_covariance" else [],
            n=n,
            side=name,
        )
        for n, record in networks.items()
        for side, name in _SIDES.items()
    ]
    config = study.records[0]["config"]
    return Drawing(
        panels=[_panel(record, side) for record in networks.values() for side in _SIDES],
        caption="The learned covariances of the rows (one for each digit) and of the columns (one "
        "for each unit of the layer below) of the softmax layer, from one network of seed "
        f"{next(iter(networks.values()))['seed']}; bounds on eigenvalues u = {config['lower']:g}, "
        f"v = {config['upper']:g}. Each panel has its own scale, which ends at the largest "
        f"covariance; variances, on the diagonal, may lie beyond it. {scales(study)}.",
        data=pd.concat(data),
        tables=[_table(study.records)],
        notes=notes(study),
        size=(3.6, 2.9),
    )


FIGURE = Figure(
    "covariances", "The learned row and column covariances", "Appendix, Fig. 8", (NAME,), draw
)
