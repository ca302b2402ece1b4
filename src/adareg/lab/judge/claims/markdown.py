"""The verdicts as Markdown, for README and ``results``."""

from __future__ import annotations

from collections.abc import Mapping

from adareg.lab.judge.claims import CLAIMS
from adareg.lab.judge.claims.base import VERDICTS, Judgement
from adareg.lab.judge.claims.show import SYMBOLS, remedy
from adareg.lab.judge.claims.smalldata import CRITERIA


def counts(judgements: Mapping[str, Judgement]) -> str:
    """How many of the paper's claims have each verdict; those on our own data are left out."""
    found = by_verdict(judgements, own=False)
    heads = [f"{SYMBOLS[verdict]} {verdict}" for verdict in found]
    numbers = [str(len(keys)) for keys in found.values()]
    rows = [heads, ["--:"] * len(found), numbers]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), ""])


def contents(judgements: Mapping[str, Judgement]) -> str:
    """A table of all claims in the order of the paper, each a link to its section."""
    lines = ["| claim | in the paper | verdict |", "|---|---|---|"]
    for key, judgement in judgements.items():
        claim = CLAIMS[key]
        verdict = f"{SYMBOLS[judgement.verdict]} {judgement.verdict}".replace(" ", "\u00a0")
        lines.append(f"| [{claim.title}](#{key}) | {claim.where} | {verdict} |")
    return "\n".join([*lines, ""])


def by_verdict(judgements: Mapping[str, Judgement], *, own: bool) -> dict[str, list[str]]:
    """The keys of the paper's claims, or of those on our own data, by verdict, where there are."""
    keys = [key for key in judgements if CLAIMS[key].own == own]
    found = {v: [key for key in keys if judgements[key].verdict == v] for v in VERDICTS}
    return {verdict: keys for verdict, keys in found.items() if keys}


def in_full(judgements: Mapping[str, Judgement]) -> str:
    """Every claim: what the paper says, what was measured, the verdict and its rule."""
    return "\n".join(_whole(key, judgement) for key, judgement in judgements.items())


def _whole(key: str, judgement: Judgement) -> str:
    claim = CLAIMS[key]
    lines = [
        f'<a id="{key}"></a>',
        "",
        f"## {SYMBOLS[judgement.verdict]} {claim.title}",
        "",
        f"**{judgement.verdict.capitalize()}** ({claim.where}): {judgement.reason}.",
        "",
        f"- The paper: {claim.paper}",
        f"- We measured: {judgement.measured}",
        f"- The rule: {claim.rule}",
        *(f"- {remedy(judgement)} `{command}`" for command in judgement.missing),
    ]
    return "\n".join([*lines, ""])


def criteria(judgements: Mapping[str, Judgement]) -> str:
    """A table of what was asked of the small-data benchmark, with its verdicts."""
    rows = [
        f"| {CRITERIA[key].paper} | **{judgement.verdict}** | {judgement.measured} |"
        for key, judgement in judgements.items()
    ]
    return "\n".join(["| asked for | verdict | measured |", "|---|---|---|", *rows, ""])
