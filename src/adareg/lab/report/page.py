"""The page: answers first, then verdicts, the contest, the paper, cost, how to run it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from adareg.lab.atomic import write_atomically
from adareg.lab.contest import NAME
from adareg.lab.contest.judge import shown
from adareg.lab.contest.results import ResultError, Results
from adareg.lab.contest.suites import SUITES
from adareg.lab.experiments import EXPERIMENTS, SCALES
from adareg.lab.judge.claims import CLAIMS, Claim, Judgement, Records, judge, smalldata
from adareg.lab.judge.claims.base import (
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    VERDICTS,
)
from adareg.lab.judge.claims.show import SYMBOLS, remedy
from adareg.lab.judge.claims.smalldata import MET, NOT_MET
from adareg.lab.judge.study import Study, command
from adareg.lab.report import answers, cost, origin, render
from adareg.lab.report.figures import FIGURES, SMALL_DATA, Figure, contest
from adareg.lab.rounding import short
from adareg.lab.run.records import NoRecordsError, Record, Store

CLASSES = {
    REPRODUCED: "good",
    MET: "good",
    PARTLY: "half",
    NOT_REPRODUCED: "bad",
    NOT_MET: "bad",
    NOT_ENOUGH: "open",
}
#: How a verdict looks: its symbol, and the class of its style.
LOOKS = {verdict: (SYMBOLS[verdict], style) for verdict, style in CLASSES.items()}
DATA = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "sarcos": "SARCOS",
    "digits": "scikit-learn's 8 x 8 digits",
    "digits-completion": "halves of scikit-learn's digits",
    "wine": "scikit-learn's wines",
    "breast-cancer": "scikit-learn's breast cancers",
    "diabetes": "scikit-learn's diabetes patients",
}
SETTINGS = {
    "lr": "Adam's step size",
    "strength": "AdaReg's λ",
    "weight_decay": "weight decay",
    "dropout": "dropout",
    "decov": "DeCov",
}


def write(runs: Path, out: Path, unreadable: list[str] | None = None) -> Path:
    """Write the page of the records below a folder.

    Args:
        runs: the folder of the records.
        out: the HTML file.
        unreadable: a list to which is added why a file cannot be read; the page says it, too.
    """
    text = build(runs, unreadable)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode())
    return out


def figure(runs: Path, key: str) -> str:
    """One figure of the page as an SVG file; ``ValueError`` if there are no records for it."""
    (wanted,) = (figure for figure in FIGURES if figure.key == key)
    svg = render.as_file(wanted, Records.of(Store(runs)))
    if svg is None:
        raise ValueError(f"no records below {runs} for the figure {key!r}")
    return svg


def build(runs: Path, unreadable: list[str] | None = None) -> str:
    """The page's HTML; ``NoRecordsError`` if there are no records. Arguments as in ``write``."""
    found = Records.of(Store(runs))
    problems = list(found.unreadable)
    rows = _contest(runs, problems)
    if unreadable is not None:
        unreadable += problems
    if not found.studies and rows.empty:
        raise NoRecordsError(runs, found.foreign)
    return _template().render(
        answers=answers.answers(found, rows),
        contest=_shown([contest.figure_of(rows)], found)[0],
        **_networks(found, runs),
        foreign=[*problems, *found.foreign],
        commands=[*_contests(rows), *(study.command for study in found.studies.values())],
    )


def _contests(rows: pd.DataFrame) -> list[str]:
    """The command that made the contest's records: at the smallest scale that has its tables."""
    tried = set() if rows.empty else set(rows["table"])
    for scale in SCALES:
        if tried and tried <= {name for suite in SUITES.values() for name in suite.sets[scale]}:
            return [command(NAME, scale)]
    return [command(NAME)] if tried else []


def _contest(runs: Path, problems: list[str]) -> pd.DataFrame:
    """The contest's trials in ``tables/`` inside or beside the folder; why they cannot be read."""
    for folder in (runs / NAME, runs.parent / NAME):
        try:
            rows = shown(Results(folder).frame())
        except ResultError as error:
            problems.append(str(error))
        else:
            if not rows.empty:
                return rows
    return pd.DataFrame()


def _networks(found: Records, runs: Path) -> dict[str, Any]:
    """What the page says of the records of networks."""
    chosen = found.studies
    records = [record for study in chosen.values() for record in study.records]
    figures, absent = _shown(FIGURES, found)
    small, _ = _shown(SMALL_DATA, found)
    criteria = _rows(smalldata.CRITERIA, smalldata.judge(found), LOOKS)
    return {
        "verdicts": _verdicts(judge(found)),
        "figures": figures,
        "absent": absent,
        "criteria": [row for row in criteria if row["judgement"].effects],
        "small": small,
        "run": _run(chosen, records) if records else None,
        "training": cost.training(found.networks) if records else None,
        "cells": cost.training(found.networks, by_cell=True) if records else None,
        "benchmarks": cost.benchmarks(runs),
        "environments": origin.environments(records) if records else None,
        "sources": origin.sources(records),
        "missing": [command(name) for name in EXPERIMENTS if name not in chosen],
    }


def _shown(
    figures: Iterable[Figure], found: Records
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Figures that can be drawn from the records, and those that cannot."""
    all_of_them = [render.show(figure, found) for figure in figures]
    drawn = [figure for figure in all_of_them if figure["panels"]]
    return drawn, [figure for figure in all_of_them if not figure["panels"]]


def _rows(
    claims: Mapping[str, Claim], judged: Mapping[str, Judgement], looks: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [
        {"claim": claims[key], "judgement": judged[key], "look": looks[judged[key].verdict]}
        for key in claims
    ]


def _verdicts(judged: Mapping[str, Judgement]) -> list[dict[str, Any]]:
    """The paper's claims, then those on our own data: counts, rows, and what has no records."""
    parts = []
    for own, title in (
        (False, "The paper’s claims"),
        (True, "The same claims on scikit-learn’s digits"),
    ):
        rows = [row for row in _rows(CLAIMS, judged, LOOKS) if row["claim"].own == own]
        known = [row for row in rows if row["judgement"].effects]
        verdicts = [row["judgement"].verdict for row in known]
        counts = [(v, verdicts.count(v), LOOKS[v]) for v in VERDICTS if v in verdicts]
        unknown = [row for row in rows if not row["judgement"].effects]
        parts.append(
            {"key": "digits-claims" if own else "claims", "title": title, "counts": counts,
             "rows": known, "unknown": unknown}
        )  # fmt: skip
    return parts


def _settings(records: list[Record]) -> str:
    """The strengths of the methods where nothing is tuned, if they are the same everywhere."""
    configs = [record["config"] for record in records if not record["config"]["trials"]]
    found = {name: {config[name] for config in configs} for name in SETTINGS}
    same = {name: values.pop() for name, values in found.items() if len(values) == 1}
    return ", ".join(f"{SETTINGS[name]} {value}" for name, value in same.items())


def _run(chosen: dict[str, Study], records: list[Record]) -> dict[str, Any]:
    known = origin.summary(records)
    scales = {study.scale for study in chosen.values()}
    small = [name for name, study in chosen.items() if study.scale != "paper"]
    return {
        **known,
        "data": [DATA.get(name, name) for name in known["data"]],
        "settings": _settings(records),
        "experiments": len(chosen),
        "scales": [scale for scale in SCALES if scale in scales],
        "small": {scale: [n for n in small if chosen[n].scale == scale] for scale in scales},
    }


def _template() -> jinja2.Template:
    folder = files(__package__)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(short=short, remedy=remedy)
    environment.globals.update(
        css=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        targets=list(smalldata.CRITERIA),
        js=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),
    )
    return environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
