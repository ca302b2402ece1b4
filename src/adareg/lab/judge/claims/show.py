"""The verdicts in a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from adareg.lab.judge.claims import CLAIMS
from adareg.lab.judge.claims.base import (
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    VERDICTS,
    Effect,
    Judgement,
)
from adareg.lab.judge.claims.phrases import number, several, signed
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
SYMBOLS = {
    REPRODUCED: "✔",
    MET: "✔",
    PARTLY: "◐",
    NOT_REPRODUCED: "✘",
    NOT_MET: "✘",
    NOT_ENOUGH: "?",
}
HINT = "To see a claim in full: adareg claims RUNS KEY. To see all of them: --long."


def check(names: Sequence[str]) -> None:
    """Refuse names that are no claim's, with ``ValueError``."""
    for name in names:
        if name not in CLAIMS | CRITERIA:
            known = ", ".join([*CLAIMS, *CRITERIA])
            raise ValueError(f"no claim {name!r}; there are: {known}")


def summary(judgements: Mapping[str, Judgement], console: Console) -> None:
    """Print the verdicts on all claims and criteria of which something was measured, and why.

    Two lines each: the claim, and its key with the reason.
    """
    for title, keys in _parts(judgements).items():
        _print(console, _counts(title, [judgements[key] for key in keys]))
        for key in keys:
            if judgements[key].effects:
                _print(console, _title(key, judgements[key]))
                _print(console, Text(f"{key}: {judgements[key].reason}"), indent=2)
        _print(console, "")
    without = sum(not judgement.effects for judgement in judgements.values())
    if without:
        _print(console, f"{several(without, 'claim')} without records; --long says what to run.")
    _print(console, HINT)


def in_full(
    judgements: Mapping[str, Judgement], console: Console, *, effects: bool = False
) -> None:
    """Print all that is known of some claims or criteria, with every difference if asked for."""
    for key, judgement in judgements.items():
        claim = (CLAIMS | CRITERIA)[key]
        _print(console, _title(key, judgement))
        asked = "Paper" if key in CLAIMS else "Asked for"
        lines = [
            f"{judgement.verdict.capitalize()}. {key}, {claim.where}",
            f"{asked}: {claim.paper}",
            f"Measured: {judgement.measured}",
            f"Rule: {claim.rule}",
        ]
        for line in lines:
            _print(console, line, indent=2)
        for effect in judgement.effects if effects else ():
            _print(console, f"- {_size(effect)}", indent=2)
        for command in judgement.missing:
            _print(console, f"{remedy(judgement)} {command}", indent=2)
        _print(console, "")


def remedy(judgement: Judgement) -> str:
    """What the commands of a judgement are for."""
    if judgement.verdict != NOT_ENOUGH:
        return "Some of it is not recorded yet:"
    return "To settle it:" if judgement.effects else "To find out:"


def _parts(judgements: Mapping[str, Judgement]) -> dict[str, list[str]]:
    """Keys by heading: the paper's claims, those on our data, the criteria; if there is any."""
    headings = {
        "The paper's claims": [k for k in judgements if k in CLAIMS and not CLAIMS[k].own],
        "The same on scikit-learn's digits": [
            k for k in judgements if k in CLAIMS if CLAIMS[k].own
        ],
        "What was asked of the evidence rule": [k for k in judgements if k in CRITERIA],
    }
    return {
        heading: keys
        for heading, keys in headings.items()
        if any(judgements[key].effects for key in keys)
    }


def _counts(heading: str, judgements: Sequence[Judgement]) -> Text:
    verdicts = [judgement.verdict for judgement in judgements]
    counts = [f"{verdicts.count(v)} {v}" for v in (*VERDICTS, MET, NOT_MET) if v in verdicts]
    return Text(f"{heading}: {', '.join(counts)}", style="bold")


def _title(key: str, judgement: Judgement) -> Text:
    style = STYLES[judgement.verdict]
    return Text.assemble((SYMBOLS[judgement.verdict], style), " ", (CLAIMS | CRITERIA)[key].title)


def _size(effect: Effect) -> str:
    text = f"{effect.what}: {signed(effect.value, 3)} {effect.unit}".rstrip()
    if effect.seeds < 2:
        return text
    return f"{text} [{number(effect.low, 3)}, {number(effect.high, 3)}], {effect.seeds} seeds"


def _print(console: Console, text: str | Text, indent: int = 0) -> None:
    """Print a text without colours of its own, broken at the width, all lines indented."""
    body = Text(text) if isinstance(text, str) else text
    console.print(Padding(body, (0, 0, 0, indent), expand=False), highlight=False)


def all_reproduced(judgements: Mapping[str, Judgement]) -> bool:
    """Tell if every verdict is the best one."""
    return all(judgement.verdict == REPRODUCED for judgement in judgements.values())


def as_json(judgements: Mapping[str, Judgement]) -> str:
    """Claims (or criteria) and judgements, by key."""
    content = dict(_entries(judgements))
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _entries(judgements: Mapping[str, Judgement]) -> Iterator[tuple[str, dict[str, Any]]]:
    claims = CLAIMS | CRITERIA
    for key, judgement in judgements.items():
        yield (
            key,
            {
                "title": claims[key].title,
                "paper": claims[key].paper,
                "where": claims[key].where,
                "own": claims[key].own,
                "experiments": list(claims[key].experiments),
                **asdict(judgement),
                "effects": [_rounded(effect) for effect in judgement.effects],
            },
        )


def _rounded(effect: Effect) -> dict[str, Any]:
    sizes = {name: significant(getattr(effect, name)) for name in ("value", "low", "high")}
    return asdict(effect) | sizes
