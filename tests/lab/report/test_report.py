"""The page has every section, says what is missing, and its numbers are those of the records."""

import base64
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.judge.claims import CLAIMS, Records
from adareg.lab.report import build
from adareg.lab.report.figures import FIGURES, SMALL_DATA
from adareg.lab.run.records import Store
from adareg.lab.train.stacked import Replica
from fakes.records import fill, record
from read_page import Page


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    fill(root)
    return root, build(root)


@pytest.fixture(scope="module")
def page(everything):
    return Page(everything[1])


def test_every_section_figure_and_claim_is_there(page):
    for key in ("answers", "verdicts", "paper", "rule", "smalldata", "cost", "again"):
        assert key in page.ids
    for figure in (*FIGURES, *SMALL_DATA):
        assert figure.key in page.ids
        assert {f"{figure.key}.svg", f"{figure.key}.csv"} <= page.downloads.keys()
    assert {f"claim-{key}" for key in CLAIMS} <= set(page.ids)
    for claim in CLAIMS.values():
        assert " ".join(claim.title.split()) in page.text
    for name in EXPERIMENTS:
        assert f"adareg reproduce {name} --scale smoke" in page.text


def test_the_first_screen_has_the_sizes_and_the_table_its_rules(tmp_path):
    accuracy = {"none": 0.9, "adareg": 0.92}
    for config in EXPERIMENTS["digits"].cells("small"):
        made = [
            record("digits", "small", config, Replica(method, seed), test_accuracy=value)
            for method, value in accuracy.items()
            for seed in range(5)
        ]
        Store(tmp_path).write("digits", config, made)
    text = Page(build(tmp_path)).text
    said = text.index("+2.00 points [+2.00, +2.00] Test accuracy on scikit-learn's digits")
    assert "Does the paper's AdaReg improve accuracy?" in text[:said]
    claims = text.index("The same claims on scikit-learn’s digits ▸"[:-2])
    assert said < claims
    assert "1 reproduced" in text[claims : claims + 60]
    assert "MNIST" not in text[:claims]  # there are no records of it
    assert "A gain counts from 0.5 points of test accuracy on; shares of sizes by" in text
    assert "weight decay 0.01, dropout 0.5, DeCov 0.01" in text


def test_a_page_of_few_records_shows_what_it_has_first(tmp_path):
    fill(tmp_path, "digits", seeds=3, scale="small")
    page = Page(build(tmp_path))
    drawn = [figure.key for figure in FIGURES if figure.key in page.ids]
    assert drawn == ["digits"]
    own = [key for key, claim in CLAIMS.items() if claim.own and "digits" in claim.experiments]
    without = len(CLAIMS) - len(own)
    line = f"Not recorded: {len(FIGURES) - 1} figures and {without} claims"
    assert page.ids.index("digits") < page.ids.index("absent")
    assert page.text.index("Small digits") < page.text.index(line)
    shown = page.ids[: page.ids.index("absent")]
    assert {key for key in shown if key.startswith("claim-")} == {f"claim-{key}" for key in own}
    assert not {"smalldata", "claims"} & set(page.ids)


def test_ids_are_unique_and_links_resolve(page):
    assert [key for key, count in Counter(page.ids).items() if count > 1] == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_nothing_is_loaded(everything, page):
    assert [load for load in page.loads if not load.startswith(("#", "data:"))] == []
    assert "@import" not in everything[1]
    assert "url(http" not in everything[1]


def test_saved_figures_are_svg_in_black(page):
    for figure in FIGURES:
        kind, _, content = page.downloads[f"{figure.key}.svg"].partition(",")
        text = base64.b64decode(content).decode()
        assert kind == "data:image/svg+xml;base64"
        assert text.startswith("<?xml")
        assert "currentColor" not in text


def test_figures_have_the_colour_of_the_text(everything):
    assert "currentColor" in everything[1]
    assert "#010203" not in everything[1]


def test_accuracies_are_those_of_pandas(everything, page):
    frame = Store(everything[0]).frame("mnist-generalization")
    expected = frame.groupby("method")["test_accuracy"].agg(["mean", "sem"]) * 100
    table = page.csv("accuracy").query("data == 'mnist'").set_index("method")
    assert table["mean"].to_dict() == pytest.approx(expected["mean"].to_dict())
    assert table["standard_error"].to_dict() == pytest.approx(expected["sem"].to_dict())
    assert set(table["seeds"]) == {2}


def test_changes_are_paired_by_seed(everything, page):
    frame = Store(everything[0]).frame("mnist-generalization")
    wide = frame.pivot_table(index="seed", columns="method", values="test_accuracy") * 100
    change = wide.sub(wide["none"], axis=0)
    table = page.csv("gain").query("data == 'mnist'").set_index("method")
    for method in ("adareg", "dropout"):
        row = table.loc[method]
        assert row["change"] == pytest.approx(change[method].mean())
        half = 12.706204736 * change[method].sem()  # Student's t with one degree of freedom
        assert row["high"] - row["change"] == pytest.approx(half)


def test_spectra_and_tasks_are_those_of_the_records(everything, page):
    store = Store(everything[0])
    mean = store.frame("mnist-spectra").groupby("method")["stable_rank"].mean()
    table = page.csv("spectra").query("data == 'mnist' and measure == 'stable_rank'")
    assert table.set_index("method")["mean"].to_dict() == pytest.approx(mean.to_dict())
    first = [
        r["metrics"]["test_explained_variances"][0]
        for r in store.read("sarcos")
        if r["method"] == "adareg"
    ]
    row = page.csv("sarcos").query("method == 'adareg' and task == 'joint 1'").iloc[0]
    assert row["mean"] == pytest.approx(sum(first) / len(first))
    assert row["paper"] == 0.4769


def test_the_committed_page_is_small_and_has_the_numbers_of_the_records():
    """That it is what is built from them is seen in ``test_results.py``."""
    results = Path(__file__).parents[3] / "results"
    text = (results / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 5e6
    page, store = Page(text), Store(results / "records")
    for data, n in (("mnist", 60_000), ("cifar", 50_000)):
        frame = store.frame(f"{data}-generalization").query(f"n == {n} and batch == 256")
        table = page.csv("accuracy").query(f"data.str.startswith('{data}') and n == {n}")
        means = table.query("batch == 256").set_index("method")["mean"].to_dict()
        expected = 100 * frame.groupby("method")["test_accuracy"].mean()
        assert means == pytest.approx(expected.to_dict())


def test_figure_5_shows_the_networks_that_its_claims_are_judged_from():
    store = Store(Path(__file__).parents[3] / "results/records")
    (figure,) = (figure for figure in FIGURES if figure.key == "correlations")
    table = figure.draw(Records.of(store)).data.query("method == 'adareg'")
    table = table.astype({"row": str, "column": str}).set_index(["n", "row", "column"])["value"]
    records = Records.of(store)
    pairs = [CLAIMS[key].judge(records) for key in ("correlation-1-7", "correlation-1-8")]
    for effect in (effect for judgement in pairs for effect in judgement.effects):
        i, j, n = re.findall(r"\d+", effect.what.replace(",", ""))
        assert table[int(n), i, j] == pytest.approx(effect.value), effect.what


def test_trajectories_and_matrices_are_those_of_the_records(everything, page):
    store = Store(everything[0])
    ends = [
        r["curves"]["test_loss"][-1]
        for r in store.read("mnist-optimization")
        if r["method"] == "none"
    ]
    rows = page.csv("optimization").query("method == 'none' and curve == 'test_loss'")
    assert rows["mean"].iloc[-1] == pytest.approx(sum(ends) / len(ends))
    one = next(r for r in store.read("mnist-covariances") if r["method"] == "adareg")
    rows = page.csv("covariances").query("side == 'rows' and row == 1 or row == '1'")
    value = rows.query("side == 'rows' and column.astype('str') == '7'")["value"].iloc[0]
    assert value == pytest.approx(one["arrays"]["row_covariance"][1][7])


def test_the_page_is_the_same_in_another_process(tmp_path):
    fill(tmp_path / "runs", "digits")
    code = "import sys; from pathlib import Path; from adareg.lab.report import write; "
    code += "write(Path(sys.argv[1]), Path(sys.argv[2]))"
    out = tmp_path / "page.html"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "runs", out], check=True, env=environment
    )
    assert out.read_text(encoding="utf-8") == build(tmp_path / "runs")


def test_odd_names_are_escaped(tmp_path):
    name = "<script>alert('x')</script>&amp;"
    config = EXPERIMENTS["digits"].cells("smoke")[0]
    made = [record("digits", "smoke", config, Replica(m, 0)) for m in ("none", name)]
    for entry in made:
        entry["environment"] = {**entry["environment"], "device": "<b>fast</b>"}
    Store(tmp_path).write("digits", config, made)
    text = build(tmp_path)
    assert "<script>alert" not in text
    assert "<b>fast</b>" not in text
    assert name in Page(text).text
    assert name in set(Page(text).csv("digits")["method"])


def test_no_records_are_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=f"no records below {tmp_path}; .*adareg reproduce digits"):
        build(tmp_path)


def test_the_command_writes_the_page(tmp_path):
    fill(tmp_path / "runs", "digits-completion")
    out = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "page.html" in result.stdout
    assert out.read_text(encoding="utf-8") == build(tmp_path / "runs")
