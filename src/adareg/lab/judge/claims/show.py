"""The verdicts in a terminal, as JSON, and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from adareg.lab.judge.claims import CLAIMS
from adareg.lab.judge.claims.base import (
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    VERDICTS,
    Claim,
    Effect,
    Judgement,
)
from adareg.lab.judge.claims.smalldata import CRITERIA, MET, NOT_MET
from adareg.lab.rounding import significant

STYLES = {
    REPRODUCED: "green",
    MET: "green",
    PARTLY: "yellow",
    NOT_REPRODUCED: "red",
    NOT_MET: "red",
    NOT_ENOUGH: "dim",
}


#: A symbol for each verdict, so that colour is never alone.
SYMBOLS = {REPRODUCED: "✔", PARTLY: "◐", NOT_REPRODUCED: "✘", NOT_ENOUGH: "?"}


def table(judgements: Mapping[str, Judgement], console: Console) -> None:
    """Print each claim of which something was measured: paper, measured, verdict; and the rest."""
    shown = {key: judgement for key, judgement in judgements.items() if judgement.effects}
    if shown:
        _print(CLAIMS, shown, ("claim", "paper", "measured", "verdict"), console)
    console.print(_counts(judgements), highlight=False)
    missing = dict.fromkeys(c for judgement in judgements.values() for c in judgement.missing)
    if missing:
        console.print("what is missing, these would add:")
        for command in missing:
            console.print(f"  {command}", highlight=False, soft_wrap=True)


def _counts(judgements: Mapping[str, Judgement]) -> str:
    verdicts = [judgement.verdict for judgement in judgements.values()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    without = sum(not judgement.effects for judgement in judgements.values())
    return f"{len(verdicts)} claims: {counts}" + (f" ({without} without records)" * bool(without))


def as_markdown(judgements: Mapping[str, Judgement]) -> str:
    """The verdicts at a glance."""
    lines = ["| verdict | claims |", "|---|---|"]
    for verdict in VERDICTS:
        keys = [key for key, judgement in judgements.items() if judgement.verdict == verdict]
        titles = "<br>".join(f"{CLAIMS[key].title} ({CLAIMS[key].where})" for key in keys)
        if keys:
            lines.append(f"| {SYMBOLS[verdict]} **{verdict}** ({len(keys)}) | {titles} |")
    return "\n".join([*lines, ""])


def measured_as_markdown(judgements: Mapping[str, Judgement]) -> str:
    """Every claim: what the paper says, what was measured, the verdict and its rule."""
    parts = [
        f"## {SYMBOLS[judgement.verdict]} {CLAIMS[key].title}\n\n"
        f"**{judgement.verdict.capitalize()}** ({CLAIMS[key].where}).\n\n"
        f"- The paper: {CLAIMS[key].paper}\n"
        f"- We measured: {judgement.measured}\n"
        f"- The rule: {CLAIMS[key].rule}\n"
        for key, judgement in judgements.items()
    ]
    return "\n".join(parts)


def criteria_as_markdown(judgements: Mapping[str, Judgement]) -> str:
    """Return what was asked of the small-data benchmark, with its verdicts."""
    rows = [
        f"| {CRITERIA[key].paper} | **{judgement.verdict}** | {judgement.measured} |"
        for key, judgement in judgements.items()
    ]
    return "\n".join(["| asked for | verdict | measured |", "|---|---|---|", *rows, ""])


def criteria(judgements: Mapping[str, Judgement], console: Console) -> None:
    """Print what was asked of the small-data benchmark, if there are records of it."""
    if any(judgement.verdict != NOT_ENOUGH for judgement in judgements.values()):
        _print(CRITERIA, judgements, ("small data", "asked for", "measured", "verdict"), console)


def _print(
    claims: Mapping[str, Claim],
    judgements: Mapping[str, Judgement],
    head: tuple[str, ...],
    console: Console,
) -> None:
    columns = Table(*head, show_lines=True)
    for key, judgement in judgements.items():
        claim = claims[key]
        columns.add_row(
            Text(f"{claim.title} ({claim.where})"),
            Text(claim.paper),
            Text(judgement.measured),
            Text(judgement.verdict, style=STYLES[judgement.verdict]),
        )
    console.print(columns)


def all_reproduced(judgements: Mapping[str, Judgement]) -> bool:
    """Tell if every verdict is the best one."""
    return all(judgement.verdict == REPRODUCED for judgement in judgements.values())


def as_json(judgements: Mapping[str, Judgement]) -> str:
    """Claims (or criteria) and judgements, by key."""
    claims = CLAIMS | CRITERIA
    content: dict[str, Any] = {
        key: {
            "title": claims[key].title,
            "paper": claims[key].paper,
            "where": claims[key].where,
            "experiments": list(claims[key].experiments),
            **asdict(judgement),
            "effects": [_rounded(effect) for effect in judgement.effects],
        }
        for key, judgement in judgements.items()
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(effect: Effect) -> dict[str, Any]:
    sizes = {name: significant(getattr(effect, name)) for name in ("value", "low", "high")}
    return asdict(effect) | sizes
