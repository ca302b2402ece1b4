"""What README, documentation and examples say is run, and true."""

import json
import re
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import MagicMock
from xml.etree import ElementTree

import pytest
import torch
import transformers
import typer

from adareg.cli import app
from adareg.core import rules
from adareg.lab import data
from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.train.methods import METHODS
from adareg.nn import layout

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

#: What other packages warn of, whatever a page does.
IGNORED = [
    "ignore:The 'train_dataloader' does not have many workers",
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
]

#: Every example, the arguments that make it quick, and the size of its table of mean ± error.
EXAMPLES = {
    "distributed.py": ("--steps 2", (0, 0)),
    "digits.py": ("--sizes 40 --seeds 2", (3, 4)),
    "few_labels.py": ("--labels 2 --seeds 2 --steps 20", (6, 3)),
    "lightning_digits.py": ("--size 80 --epochs 2 --seeds 2", (4, 4)),
    "sklearn_digits.py": ("--max-iter 5", (0, 0)),
    "table_error_bars.py": ("--folds 2 --tables Friedman", (3, 3)),
    "task_correlations.py": ("--seeds 2 --steps 20", (5, 3)),
    "transformers_few_labels.py": ("--labels 6 --epochs 2 --seeds 2", (3, 4)),
}


@pytest.fixture
def _restored(monkeypatch, tmp_path):
    """Pages may register things and change settings; nothing of it stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(data, "DATASETS", dict(data.DATASETS))
    monkeypatch.setattr(layout, "_TABLE", dict(layout._TABLE))
    tables = [(table, dict(table)) for table in (METHODS, EXPERIMENTS)]
    verbosity, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    yield
    for table, before in tables:
        table.clear()
        table.update(before)
    transformers.logging.set_verbosity(verbosity)
    torch.set_num_threads(threads)


def blocks(page):
    """The fenced blocks of a page as (language, text, whether it follows the one before)."""
    text = (ROOT / page).read_text()
    end = 0
    for match in FENCE.finditer(text):
        yield match[1], match[2], end > 0 and not text[end : match.start()].strip()
        end = match.end()


def run(page):
    """Run the Python of a page in one namespace; return what is shown and what was printed."""
    namespace, outputs, printed = {"__name__": "__main__"}, [], None
    for language, text, follows in blocks(page):
        if language == "python":
            stream = StringIO()
            with redirect_stdout(stream):
                exec(compile(text, page, "exec"), namespace)
            printed = stream.getvalue()
        elif language == "text" and follows and printed is not None:
            outputs.append((text, printed))
            printed = None
    return outputs


def assert_alike(shown, printed):
    """The same words; numbers may differ a little, as they do between machines."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split(), printed
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    for one, other in pairs:
        assert float(one) == pytest.approx(float(other), rel=0.05, abs=0.03), printed


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("_restored", "one_thread")
@pytest.mark.filterwarnings(*IGNORED)
def test_python_of_a_page_runs_and_prints_what_it_shows(page, monkeypatch):
    if page == "docs/howto/loops.md":  # packages that nobody needs to install for the tests
        for package in ("mlflow", "wandb"):
            monkeypatch.setitem(sys.modules, package, MagicMock())
    for shown, printed in run(page):
        assert_alike(shown, printed)


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_commands_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(b for _, b, _ in blocks(page))])
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in re.findall(r"^make ([a-z ]+)", code, re.MULTILINE):
        assert set(words.split()) <= set(targets), f"make {words}"
    for words in re.findall(r"^adareg ([a-z ]+)", code, re.MULTILINE):
        assert_is_command(words.split())


def assert_is_command(words):
    command = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands") or command.name == "reproduce":
            return  # what follows are names of experiments, or other arguments
        assert word in command.commands, f"adareg {' '.join(words)}"
        command = command.commands[word]


def test_a_command_that_does_not_exist_is_noticed():
    with pytest.raises(AssertionError, match="adareg pray"):
        assert_is_command(["pray"])
    with pytest.raises(AssertionError, match="adareg data pray"):
        assert_is_command(["data", "pray"])


def test_costs_are_those_of_the_records():
    text = " ".join((ROOT / "docs/cost.md").read_text().split())
    gpu, cpu = records()
    assert f"head takes {1e3 * head(gpu, 'joint'):.0f} ms on an H200" in text
    assert "about two seconds on two cores" in text
    assert all(1 < head(cpu, rule) < 3 for rule in ("joint", "alternating"))
    ratios = [t["value"] for t in gpu["targets"] if t["what"].startswith("step, ResNet")]
    assert f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long" in text
    small = [t["value"] for t in cpu["targets"] if t["what"].startswith("step, MNIST")]
    assert "costs a few percent on a CPU" in text
    assert max(small) < 1.04
    steps = {t["what"]: t["value"] for t in gpu["targets"] if t["what"].startswith("step, MNIST")}
    graph = [ratio for what, ratio in steps.items() if "graph" in what]
    assert "or in a CUDA graph and about a tenth on a GPU without one" in text
    assert max(graph) < 1.05
    assert all(1.05 < ratio < 1.15 for ratio in steps.values() if ratio not in graph)


def test_the_costs_of_a_head_are_those_of_the_records():
    text = (ROOT / "docs/howto/language-model.md").read_text()
    gpu, cpu = records()
    for rule in ("joint", "alternating"):
        times = f"{1e3 * head(gpu, rule):.0f} ms | {head(cpu, rule):.1f} s |"
        assert f"| one update, {rule} | {times}" in text
    steps = {t["what"]: t["value"] for t in gpu["targets"]}
    for kind, row in (("float32", "8,192 tokens, float32"), ("bfloat16", "with bfloat16 autocast")):
        ratio = steps[f"step, head 50257 x 768, 8192 tokens, {kind}, proximal"]
        assert f"{row} | {ratio:.2f} times as long" in text
    memory = [next(r for r in x["updates"] if r["p"] == 50257)["extra_memory"] for x in (gpu, cpu)]
    times = [f"{m['joint']:.1f} times" for m in memory]
    assert f"during a joint update | {times[0]} the weight | {times[1]} |" in text


def records():
    return [json.loads((ROOT / f"results/bench/{n}.json").read_text()) for n in ("cuda", "cpu")]


def head(record, rule):
    (row,) = (r for r in record["updates"] if r["p"] == 50257)
    return row["seconds"][rule]["median"]


def test_every_link_to_a_file_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_can_be_found():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {p.removeprefix("docs/") for p in PAGES if p.startswith("docs/")}
    assert listed == pages | {"results/README.md"}


def test_figures_are_those_that_the_script_draws(tmp_path):
    drawn = runpy.run_path(str(ROOT / "tools/figures.py"))["write"](tmp_path)
    committed = {path.name: path for path in ROOT.glob("docs/figures/*.svg")}
    assert committed.keys() == {path.name for path in drawn}
    for path in drawn:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size < 100_000
        assert path.stat().st_size == pytest.approx(committed[path.name].stat().st_size, rel=0.1)


def test_docstrings_become_markdown():
    as_markdown = runpy.run_path(str(ROOT / "tools/docstrings.py"))["as_markdown"]
    text = "See :func:`adareg.solve` and :meth:`update`.\n\n>>> 1 + 1\n2\n\nThat is all."
    assert as_markdown(text) == (
        "See [`adareg.solve`][adareg.solve] and `update`.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```\n\nThat is all."
    )


def test_every_example_is_in_the_table():
    assert EXAMPLES.keys() == {path.name for path in ROOT.glob("examples/*.py")}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("_restored", "one_thread")
@pytest.mark.filterwarnings(*IGNORED)
def test_example_says_what_to_see_and_ends_in_a_picture(name, tmp_path, monkeypatch, capsys):
    arguments, (rows, columns) = EXAMPLES[name]
    monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
    monkeypatch.setenv("COLUMNS", "120")
    with warnings.catch_warnings():  # an example may change the filters
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    out = capsys.readouterr().out
    in_table = [
        line.count("±") for line in out.splitlines() if "±" in line and "mean ±" not in line
    ]
    assert in_table == rows * [columns]
    assert "nan" not in out
    picture = tmp_path / f"{Path(name).stem}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture.name}" in out
    assert "What to see: " in (ROOT / "examples" / name).read_text()
