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
    Judgement,
)

STYLES = {REPRODUCED: "green", PARTLY: "yellow", NOT_REPRODUCED: "red", NOT_ENOUGH: "dim"}


def table(judgements: Mapping[str, Judgement], console: Console) -> None:
    """Print every claim, what the paper says, what was measured and the verdict."""
    columns = Table("claim", "paper", "measured", "verdict", show_lines=True)
    for key, judgement in judgements.items():
        claim = CLAIMS[key]
        columns.add_row(
            Text(f"{claim.title} ({claim.where})"),
            Text(claim.paper),
            Text(judgement.measured),
            Text(judgement.verdict, style=STYLES[judgement.verdict]),
        )
    console.print(columns)
    verdicts = [judgement.verdict for judgement in judgements.values()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    console.print(f"{len(verdicts)} claims: {counts}", highlight=False)
    missing = dict.fromkeys(c for judgement in judgements.values() for c in judgement.missing)
    if missing:
        console.print("what is missing, these would add:")
        for command in missing:
            console.print(f"  {command}", highlight=False, soft_wrap=True)


def all_reproduced(judgements: Mapping[str, Judgement]) -> bool:
    """Whether every verdict is the best one."""
    return all(judgement.verdict == REPRODUCED for judgement in judgements.values())


def as_json(judgements: Mapping[str, Judgement]) -> str:
    """Claims and judgements, by key."""
    content: dict[str, Any] = {
        key: {
            "title": CLAIMS[key].title,
            "paper": CLAIMS[key].paper,
            "where": CLAIMS[key].where,
            "experiments": list(CLAIMS[key].experiments),
            **asdict(judgement),
        }
        for key, judgement in judgements.items()
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
