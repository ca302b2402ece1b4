"""Write the tables of docs, from results/.

smalldata.md, evidence.md, tables.md, howto/choose.md and howto/small-tables.md:

python tools/tables.py
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd

from adareg.lab.contest import page as contest
from adareg.lab.contest.cells import parse
from adareg.lab.contest.judge import shown
from adareg.lab.contest.results import Results
from adareg.lab.contest.suites import CELLS
from adareg.lab.experiments.smalldata import DEVELOPMENT
from adareg.lab.judge.claims import Records, markdown
from adareg.lab.judge.claims.smalldata import judge
from adareg.lab.judge.study import Study
from adareg.lab.report import style
from adareg.lab.report.figures import curves, smalldata
from adareg.lab.rounding import written
from adareg.lab.run.records import Store

ROOT = Path(__file__).parents[1]
BENCHMARK, RULE = ROOT / "docs/smalldata.md", ROOT / "docs/evidence.md"
CONTEST, CHOICE = ROOT / "docs/tables.md", ROOT / "docs/howto/choose.md"
TABLES = ROOT / "docs/howto/small-tables.md"
COSTS = (("fit", 1, 2), ("predict", 1000, 1), ("error bars", 1000, 1), ("score", 1, 3))
PICTURE = "![Average ranks of all methods](../results/tables.svg)"


def tables(records: Path, by_accuracy: Path, linear: Path) -> str:
    """All tables of the benchmark, as Markdown.

    Args:
        records: of its networks.
        by_accuracy: of networks whose trials were judged by accuracy.
        linear: of the contest, which has a linear model for each cell.
    """
    found = smalldata.studied(Records.of(Store(records)))
    if not found:
        return "There are no records yet.\n"
    rows = smalldata.frame(found)
    every = _with_linear(rows, Results(linear).frame())
    free = every[~every["data"].isin(DEVELOPMENT)]
    lines = [
        *_origin(found, rows),
        markdown.criteria(judge(Records.of(Store(records)))),
        *_ranks(every, "Average ranks over data sets, 1 the best:"),
        *_ranks(
            free,
            f"The same over {', '.join(dict.fromkeys(free['data']))} alone: the evidence rule's "
            f"constants were chosen while looking at {', '.join(DEVELOPMENT)}.",
        ),
        *_costs(rows),
        *_gains(every),
        *_choices(rows, Store(by_accuracy).frame()),
    ]
    return "\n".join(lines) + "\n"


def _origin(found: list[Study], rows: pd.DataFrame) -> Iterator[str]:
    devices = sorted({str(r["environment"].get("device")) for s in found for r in s.records})
    cells = rows.groupby(["data", "n"]).ngroups
    scales = ", ".join(dict.fromkeys(study.scale for study in found))
    seeds = rows["seed"].nunique()
    yield f"{cells} cells at scale {scales}, {seeds} seeds, trained on {', '.join(devices)}."
    yield ""


def _with_linear(rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """The rows, and those of the linear model in the same cells with the same seeds."""
    if trials.empty:
        return rows
    mine = trials[trials["suite"] == CELLS]
    cells = pd.DataFrame([parse(name) for name in mine["table"]], columns=["data", "n"])
    linear = mine.reset_index(drop=True).join(cells).rename(columns={"split": "seed"})
    tried = rows[["data", "n", "seed"]].drop_duplicates()
    wanted = ["data", "n", "seed", "method", *smalldata.MEASURES]
    return pd.concat([rows, linear[wanted].merge(tried)], ignore_index=True)


def _ranks(rows: pd.DataFrame, title: str) -> Iterator[str]:
    yield title
    yield ""
    average = {m: smalldata.overall_ranks(rows, m) for m in smalldata.MEASURES}
    yield "| method | " + " | ".join(name for name, _ in smalldata.MEASURES.values()) + " |"
    yield "|---|" + "--:|" * len(average)
    for method in sorted(average["quality"], key=average["quality"].__getitem__):
        yield (
            f"| {_name(method)} | "
            + " | ".join(written(r[method], 1) for r in average.values())
            + " |"
        )
    yield ""


_COSTS = {"trainings": 0, "one": 2, "cost": 1}  # and the digits to show


def _costs(rows: pd.DataFrame) -> Iterator[str]:
    machines = ", ".join(sorted(set(rows["timed_on"])))
    yield f"Cost relative to one plain training, geometric mean over cells, timed on {machines}:"
    yield ""
    yield "| method | trainings | one training | all of them |"
    yield "|---|--:|--:|--:|"
    for row in smalldata.costs(rows).to_dict("records"):
        numbers = [written(row[name], digits) for name, digits in _COSTS.items()]
        yield f"| {_name(row['method'])} | {' | '.join(numbers)} |"
    yield ""


def _gains(rows: pd.DataFrame) -> Iterator[str]:
    methods = style.ordered(rows["method"])
    others = [method for method in methods if method != "none"]
    level = curves.means(rows, "quality", methods).set_index(["data", "n", "method"])
    change = curves.changes(rows, "quality", methods).set_index(["data", "n", "method"])
    yield (
        "Points of accuracy, or of explained variance, without a regularizer, and the change with "
        "each method ± the standard error of paired differences:"
    )
    for data in dict.fromkeys(rows["data"]):
        yield ""
        yield f"| {data}, n | none | " + " | ".join(map(_name, others)) + " |"
        yield "|--:|" + "--:|" * len(methods)
        for n in sorted(set(rows.loc[rows["data"] == data, "n"])):
            cells = [_change(change, (data, n, method)) for method in others]
            none = written(level.loc[(data, n, "none"), "mean"], 1)
            yield f"| {n:,} | {none} | {' | '.join(cells)} |"


def _choices(by_loss: pd.DataFrame, by_accuracy: pd.DataFrame) -> Iterator[str]:
    yield ""
    yield (
        "Points of accuracy if trials are judged by their accuracy, and among equals by their loss "
        "(`--set choose=accuracy`), instead of their loss:"
    )
    yield ""
    cell = ["data", "n", "method"]
    accuracy = {
        choice: 100 * rows.groupby(cell)["test_accuracy"].mean()
        for choice, rows in (("loss", by_loss), ("accuracy", by_accuracy))
    }
    methods = style.ordered(by_accuracy["method"])
    heads = [f"{_name(method)}, by {choice}" for method in methods for choice in accuracy]
    yield f"| data | n | {' | '.join(heads)} | evidence |"
    yield "|---|--:|" + "--:|" * (len(heads) + 1)
    for data, n in sorted(set(zip(by_accuracy["data"], by_accuracy["n"], strict=True))):
        each = [accuracy[choice][data, n, m] for m in methods for choice in accuracy]
        numbers = [written(x, 1) for x in (*each, accuracy["loss"][data, n, "evidence"])]
        yield f"| {data} | {n} | {' | '.join(numbers)} |"


def _change(table: pd.DataFrame, key: tuple[str, int, str]) -> str:
    if key not in table.index:
        return "–"
    mean, error = table.loc[key, "change"], table.loc[key, "standard_error"]
    text = written(mean, 1, "+")
    return text if math.isnan(error) else f"{text} ± {written(error, 1)}"


def _name(method: str) -> str:
    return style.label(method).split(" (")[0]


def comparison(record: Path) -> str:
    """The table of ``benchmarks/evidence.py compare``, as Markdown."""
    lines = [
        "| data | n | none | best weight decay | evidence | over weight decay | cost |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in json.loads(record.read_text(encoding="utf-8"))["rows"]:
        name = f"*{row['data']}*" if row["held_out"] else row["data"]
        score, loss = row["none"]
        cells = [name, str(row["n"]), f"{written(score, 2)} ({written(loss, 3)})"]
        for method in ("weight_decay", "evidence"):
            mean, error, loss = row[method]
            cells.append(f"{_with_error(mean, error)} ({written(loss, 3)})")
        mean, error = row["over"]
        cells += [_with_error(mean, error), f"{written(row['cost'], 2)}x"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _with_error(mean: float, error: float) -> str:
    return f"{written(mean, 2, '+')} ± {written(error, 2)}"


def deep_networks(record: Path) -> str:
    """The table of ``benchmarks/evidence.py deep``: mean accuracy, and how many collapsed."""
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    lines = [
        "",
        "Test accuracy of deep plain networks; in brackets, how many ended below 30 % on their own",
        "training samples:",
        "",
        f"| layers | n | {' | '.join(rows[0]['runs'])} |",
        "|--:|--:|" + "--:|" * len(rows[0]["runs"]),
    ]
    for row in rows:
        cells = [str(row["layers"]), str(row["n"])]
        for runs in row["runs"].values():
            test = fmean(test for _, test in runs)
            collapsed = sum(train < 30 for train, _ in runs)
            cells.append(written(test, 0) + (f" ({collapsed} of {len(runs)})" if collapsed else ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def depths(record: Path) -> str:
    """The table of ``benchmarks/evidence.py depths``, and how well evidence chooses."""
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    count = len(rows[0]["evidence"])
    lines = [
        "",
        "Log evidence for each sample, the highest bold, and test loss, with so many hidden layers",
        "of 32 units:",
        "",
        "| data | n | " + " | ".join(map(str, range(count))) + " |",
        "|---|--:|" + "--:|" * count,
    ]
    right, chosen_excess, excess = 0, [], []
    for row in rows:
        evidence, loss = ([fmean(each) for each in row[key]] for key in ("evidence", "loss"))
        chosen = evidence.index(max(evidence))
        right += loss[chosen] == min(loss)
        excess.append([100 * (x / min(loss) - 1) for x in loss])
        chosen_excess.append(excess[-1][chosen])
        shown = [written(e, 2) for e in evidence]
        shown[chosen] = f"**{shown[chosen]}**"
        cells = [f"{e} ({written(x, 3)})" for e, x in zip(shown, loss, strict=True)]
        line = " | ".join([row["data"], str(row["n"]), *cells])
        lines.append(f"| {line} |")
    fixed = ", ".join(f"{written(fmean(depth), 0)} %" for depth in zip(*excess, strict=True))
    lines += [
        "",
        f"The depth of the highest evidence has the lowest test loss in {right} of {len(rows)}",
        f"rows, and in the mean {written(fmean(chosen_excess), 0)} % more than the lowest. With 0 "
        f"to {count - 1} hidden layers everywhere it is {fixed} more.",
    ]
    return "\n".join(lines) + "\n"


def paired(record: Path, used: str) -> str:
    """The table of a study in ``benchmarks/evidence.py``: paired changes against a method."""
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    first = dict.fromkeys(["none", used])
    methods = [m for m in rows[0]["runs"] if m not in first]
    lines = [
        "",
        f"| data | n | {' | '.join([*first, *methods])} |",
        "|---|--:|" + "--:|" * (len(methods) + len(first)),
    ]
    for row in rows:
        cells = [row["data"], str(row["n"])]
        for method in first:
            scores, losses = zip(*row["runs"][method], strict=True)
            cells.append(f"{written(fmean(scores), 2)} ({written(fmean(losses), 3)})")
        for method in methods:
            pairs = zip(row["runs"][method], row["runs"][used], strict=True)
            changes = [one[0] - other[0] for one, other in pairs]
            error = stdev(changes) / math.sqrt(len(changes))
            loss = fmean(loss for _, loss in row["runs"][method])
            cells.append(f"{_with_error(fmean(changes), error)} ({written(loss, 3)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""]) + "\n"


def alarms(record: Path) -> str:
    """The table of ``benchmarks/alarm.py``: how often the alarm rings, by what became of it."""
    found = json.loads(record.read_text(encoding="utf-8"))
    trials = pd.DataFrame(found["trials"])
    without = trials[trials["strength"] == 0].groupby("network")["accuracy"].mean()
    trials = trials[trials["strength"] > 0]
    harm = trials["network"].map(without) - trials["accuracy"]
    kinds = {
        "destroyed: below 90 % on its own training samples": trials["known"] < 0.9,
        "harmed: more than 3 points of test accuracy lost": (trials["known"] >= 0.9)
        & (harm > 0.03),
        "all others": (trials["known"] >= 0.9) & (harm <= 0.03),
    }
    rows = [
        (f"{words} (trials)", trials[chosen]["said"].notna().sum(), chosen.sum())
        for words, chosen in kinds.items()
    ]
    rung = sum(bool(one["messages"]) for one in found["experiments"])
    rows.append(("settings of the committed records", rung, len(found["experiments"])))
    lines = ["| networks | alarms | of |", "|---|--:|--:|"]
    lines += [f"| {words} | {rung} | {count} |" for words, rung, count in rows]
    destroyed = trials[kinds["destroyed: below 90 % on its own training samples"]]
    first = int((destroyed["said"] == trials["said"].min()).sum())
    lines += [
        "",
        f"Of the destroyed ones {first} were told at the first update, after "
        f"{int(trials['said'].min())} of 1,000 steps.",
    ]
    if found["missing"]:
        lines[-1] += f" Not tried, for want of data: {', '.join(found['missing'])}."
    return "\n".join(lines) + "\n"


def costs_on_tables(record: Path) -> str:
    """The table of ``benchmarks/small_tables.py``, as Markdown."""
    found = json.loads(record.read_text(encoding="utf-8"))
    lines = [
        "| rows | noise | fit, seconds | Gaussian process | 1,000 predictions, ms "
        "| Gaussian process | with error bars, ms | Gaussian process | R² | Gaussian process |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        cells = [f"{row['rows']:,}", f"{row['noise']:g}"]
        for key, scale, digits in COSTS:
            for name in ("evidence", "gaussian process"):
                value = row.get(name)
                cells.append(written(value[key] * scale, digits) if value else "–")
        lines.append(f"| {' | '.join(cells)} |")
    where = found["machine"]
    lines += ["", f"One thread, {where['device']}, torch {where['torch']}, {where['date']}."]
    return "\n".join(lines) + "\n"


def filled(text: str, tables: str, part: str = "tables") -> str:
    """A page with its tables, or with another part that is between comments."""
    begin, end = f"<!-- {part}: begin; written by tools/tables.py -->\n", f"<!-- {part}: end -->"
    head, rest = text.split(begin)
    return head + begin + tables + end + rest.split(end)[1]


def contest_page(text: str) -> str:
    """The contest's page with its methods and results."""
    text = filled(text, contest.methods_as_markdown(), "methods")
    rows = shown(Results(ROOT / "results/tables").frame())
    made = contest.results_as_markdown(rows)
    return filled(text, made if rows.empty else f"{PICTURE}\n\n{made}")


def pages() -> dict[Path, str]:
    """Each page that has tables, as it should be."""
    made = {
        BENCHMARK: tables(
            ROOT / "results/records", ROOT / "results/by-accuracy", ROOT / "results/tables"
        ),
        RULE: comparison(ROOT / "results/bench/evidence-compare.json")
        + deep_networks(ROOT / "results/bench/evidence-deep.json")
        + depths(ROOT / "results/bench/evidence-depths.json"),
        CHOICE: alarms(ROOT / "results/bench/alarm.json"),
    }
    texts = {page: filled(page.read_text(encoding="utf-8"), text) for page, text in made.items()}
    for part, used in {"classes": "as it is", "dropout": "none"}.items():
        made_of = paired(ROOT / f"results/bench/evidence-{part}.json", used)
        texts[RULE] = filled(texts[RULE], made_of, part)
    costs = costs_on_tables(ROOT / "results/bench/small-tables.json")
    texts[TABLES] = filled(TABLES.read_text(encoding="utf-8"), costs, "costs")
    return {**texts, CONTEST: contest_page(CONTEST.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
