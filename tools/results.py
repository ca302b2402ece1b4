"""Everything that is shown of ``results/records``, made again: ``make results``.

Writes ``results/report.html``, ``results/README.md``, ``results/gain.svg``, and the parts of
README.md that are between comments that name this file.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from adareg.lab.contest.figure import draw
from adareg.lab.contest.judge import shown
from adareg.lab.contest.page import places_as_markdown
from adareg.lab.contest.results import Results
from adareg.lab.judge.claims import Records, judge, markdown
from adareg.lab.report import build, figure
from adareg.lab.report.origin import summary
from adareg.lab.run.records import Record, Store

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results/records"
HOW = """\
by `adareg reproduce … --scale paper`.
"""
MEASURED = """\
# What the paper claims, and what we measured

`make results` writes this page and `report.html`, which has every figure, from `records`. Intervals
are 95 % intervals of a paired bootstrap over seeds; with three or four seeds, Student's.

The general rule: a comparison answers no when its whole interval lies below the smallest effect
that counts, otherwise yes when it lies on the claimed side of zero; otherwise the answer is
unclear. A claim is reproduced when at least 90 % of its answers are yes, not reproduced when at
most 10 % are, and partly in between. There is not enough data when more than half are unclear.
Where a sentence of the paper says two things, each has a verdict of its own.
"""
SECTION = re.compile(
    r"(<!-- from tools/results\.py: ([a-z ]+) -->\n).*?(<!-- to here -->\n)", re.DOTALL
)


def sections() -> dict[str, str]:
    """The parts of README that are made: places in the contest, counts of the claims' verdicts."""
    return {
        "contest": places_as_markdown(Results(ROOT / "results/tables").frame()),
        "claims": markdown.counts(judge(Records.of(Store(RECORDS)))),
    }


def measured() -> str:
    """``results/README.md``: every claim with what was measured."""
    store = Store(RECORDS)
    found = judge(Records.of(store))
    parts = [MEASURED, _origin(list(store.read())), markdown.contents(found)]
    return "\n".join([*parts, markdown.in_full(found)])


def _origin(records: list[Record]) -> str:
    """When, where and by which command the records came about."""
    known = summary(records)
    first, last = (date.fromisoformat(known[end]) for end in ("first", "last"))
    when = f"{last.day} {last:%B %Y}"
    when = when if first == last else f"{first.day} {first:%B %Y} to {when}"
    where = " and ".join(
        f"one {name}" if "NVIDIA" in name else f"CPUs ({name})" for name in known["devices"]
    )
    return f"{known['networks']:,} networks, trained on {where}, {when},\n{HOW}"


def readme(text: str) -> str:
    """README with its sections made anew."""
    made = sections()
    return SECTION.sub(lambda m: f"{m[1]}{made[m[2]]}{m[3]}", text)


def main() -> None:
    """Write all of them."""
    (ROOT / "results/README.md").write_text(measured(), encoding="utf-8")
    (ROOT / "results/report.html").write_text(build(RECORDS), encoding="utf-8")
    (ROOT / "results/gain.svg").write_text(figure(RECORDS, "gain"), encoding="utf-8")
    contest = shown(Results(ROOT / "results/tables").frame())
    if not contest.empty:
        (ROOT / "results/tables.svg").write_text(draw(contest), encoding="utf-8")
    page = ROOT / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
