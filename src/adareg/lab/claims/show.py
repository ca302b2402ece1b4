"""The verdicts in a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from adareg.lab.claims import CLAIMS
from adareg.lab.claims.base import (
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    VERDICTS,
    Claim,
    Judgement,
)
from adareg.lab.claims.smalldata import CRITERIA, MET, NOT_MET

STYLES = {
    REPRODUCED: "green",
    MET: "green",
    PARTLY: "yellow",
    NOT_REPRODUCED: "red",
    NOT_MET: "red",
    NOT_ENOUGH: "dim",
}


def table(judgements: Mapping[str, Judgement], console: Console) -> None:
    """Print every claim, what the paper says, what was measured and the verdict."""
    _print(CLAIMS, judgements, ("claim", "paper", "measured", "verdict"), console)
    verdicts = [judgement.verdict for judgement in judgements.values()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    console.print(f"{len(verdicts)} claims: {counts}", highlight=False)
    missing = dict.fromkeys(c for judgement in judgements.values() for c in judgement.missing)
    if missing:
        console.print("what is missing, these would add:")
        for command in missing:
            console.print(f"  {command}", highlight=False, soft_wrap=True)


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
    """Whether every verdict is the best one."""
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
        }
        for key, judgement in judgements.items()
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
