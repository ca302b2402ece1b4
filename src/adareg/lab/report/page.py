"""The page: verdicts first, then every figure, cost, and how to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from adareg.lab.atomic import write_atomically
from adareg.lab.experiments import EXPERIMENTS, SCALES
from adareg.lab.judge.claims import CLAIMS, Claim, Effect, Judgement, Records, judge, smalldata
from adareg.lab.judge.claims.base import NOT_ENOUGH, NOT_REPRODUCED, PARTLY, REPRODUCED
from adareg.lab.judge.claims.phrases import change
from adareg.lab.judge.claims.show import SYMBOLS
from adareg.lab.judge.claims.smalldata import MET, NOT_MET
from adareg.lab.judge.study import Study, command
from adareg.lab.report import cost, origin, render
from adareg.lab.report.figures import FIGURES, SMALL_DATA
from adareg.lab.rounding import short
from adareg.lab.run.records import NoRecordsError, Record, Store

#: How a verdict looks: its symbol, and the class of its style.
CLASSES = {REPRODUCED: "good", PARTLY: "half", NOT_REPRODUCED: "bad", NOT_ENOUGH: "open"}
VERDICTS = {verdict: (SYMBOLS[verdict], style) for verdict, style in CLASSES.items()}
CRITERIA = {MET: VERDICTS[REPRODUCED], NOT_MET: VERDICTS[NOT_REPRODUCED]} | {
    verdict: VERDICTS[verdict] for verdict in (PARTLY, NOT_ENOUGH)
}
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
#: The claims that answer a stranger's question: what changes, and the digits to show.
ANSWERS = {
    "mnist-improves": ("test accuracy, MNIST", 2),
    "cifar-improves": ("test accuracy, CIFAR-10", 2),
    "digits-generalization": ("test accuracy, small digits", 2),
    "sarcos-explained-variance": ("explained variance, SARCOS (seven torques of a robot arm)", 4),
    "digits-tasks": ("explained variance, half a digit from its other half", 4),
    "mnist-stable-rank": ("stable rank of MNIST's last layer (directions that it uses)", 1),
    "mnist-spectral-norm": ("spectral norm of MNIST's last layer (how much it amplifies)", 1),
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
    if unreadable is not None:
        unreadable += found.unreadable
    chosen = found.studies
    if not chosen:
        raise NoRecordsError(runs, found.foreign)
    records = [record for study in chosen.values() for record in study.records]
    claims = judge(found)
    return _template().render(
        verdicts=_verdicts(claims),
        answers=_answers(claims),
        figures=[render.show(figure, found) for figure in FIGURES],
        criteria=_rows(smalldata.CRITERIA, smalldata.judge(found), CRITERIA),
        contest=[render.show(figure, found) for figure in SMALL_DATA],
        run=_run(chosen, records),
        training=cost.training(found.networks),
        cells=cost.training(found.networks, by_cell=True),
        benchmarks=cost.benchmarks(runs),
        environments=origin.environments(records),
        sources=origin.sources(records),
        commands=[study.command for study in chosen.values()],
        absent=[command(name) for name in EXPERIMENTS if name not in chosen],
        foreign=[*found.unreadable, *found.foreign],
    )


def _rows(
    claims: Mapping[str, Claim], judged: Mapping[str, Judgement], looks: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A table of verdicts, those without enough data last."""
    keys = sorted(claims, key=lambda key: judged[key].verdict == NOT_ENOUGH)
    return [
        {"claim": claims[key], "judgement": judged[key], "look": looks[judged[key].verdict]}
        for key in keys
    ]


def _verdicts(judged: Mapping[str, Judgement]) -> dict[str, Any]:
    rows = _rows(CLAIMS, judged, VERDICTS)
    keys = [row["claim"].key for row in rows]
    grouped = {v: [key for key in keys if judged[key].verdict == v] for v in VERDICTS}
    return {"rows": rows, "grouped": grouped, "claims": CLAIMS, "looks": VERDICTS}


def _answers(judged: Mapping[str, Judgement]) -> dict[str, tuple[str, str]]:
    """Return AdaReg's mean change against no regularizer, over settings: size and interval."""
    first = {key: judged[key].effects[0] for key in ANSWERS if judged[key].effects}
    return {
        what: _size(first[key], digits)
        for key, (what, digits) in ANSWERS.items()
        if key in first and "AdaReg − no regularizer, mean of" in first[key].what
    }


def _size(effect: Effect, digits: int) -> tuple[str, str]:
    size, _, interval = change(effect, digits).partition(" [")
    return size, f"[{interval}"


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
    environment.filters["short"] = short
    environment.globals.update(
        css=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        js=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),
    )
    return environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
