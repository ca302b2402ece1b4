"""The page has every section, says what is missing, and its numbers are those of the records."""

import base64
import io
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest
from fabricated_records import fill, record
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab.claims import CLAIMS
from adareg.lab.engine import Replica
from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.records import Store
from adareg.lab.report import build
from adareg.lab.report.figures import FIGURES
from adareg.lab.report.studies import readable

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would find; unbalanced tags raise."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.downloads, self.loads = [], [], {}, []
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a" and "download" in attrs:
            self.downloads[attrs["download"]] = attrs["href"]
        elif tag == "a":
            self.links.append(attrs["href"])
        else:
            names = ("src", "href", "xlink:href", "data", "srcset", "action")
            self.loads += [attrs[name] for name in names if name in attrs]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def csv(self, key):
        kind, _, content = self.downloads[f"{key}.csv"].partition(",")
        assert kind == "data:text/csv;base64"
        return pd.read_csv(io.BytesIO(base64.b64decode(content)))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    fill(root)
    return root, build(root)


@pytest.fixture(scope="module")
def page(everything):
    return Page(everything[1])


def test_every_section_figure_and_claim_is_there(page):
    for key in ("verdicts", "words", "figures", "cost", "again"):
        assert key in page.ids
    for figure in FIGURES:
        assert figure.key in page.ids
        assert {f"{figure.key}.svg", f"{figure.key}.csv"} <= page.downloads.keys()
    assert {f"claim-{key}" for key in CLAIMS} <= set(page.ids)
    for claim in CLAIMS.values():
        assert " ".join(claim.title.split()) in page.text
    for name in EXPERIMENTS:
        assert f"adareg reproduce {name} --scale smoke" in page.text


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


def test_what_is_missing_is_said_and_the_rest_is_drawn(tmp_path):
    fill(tmp_path, "mnist-generalization", methods=("none", "adareg"), seeds=1)
    page = Page(build(tmp_path))
    assert "accuracy.svg" in page.downloads
    assert "layers.svg" not in page.downloads
    assert "adareg reproduce cifar-generalization --scale paper" in page.text
    assert "adareg reproduce mnist-layers --scale paper" in page.text
    assert "mnist-generalization: not complete, 2 of 12 networks" in page.text
    assert "60 in place of 600" in page.text
    assert set(page.csv("spectra")["method"]) == {"none", "adareg"}


def test_the_largest_scale_is_drawn_alone(tmp_path):
    fill(tmp_path, "digits", scale="smoke")
    fill(tmp_path, "digits", scale="small", seeds=1)
    page = Page(build(tmp_path))
    assert set(page.csv("digits")["n"]) == {30, 60, 120, 240}
    assert "digits: 48 networks at scale smoke are left out." in page.text


def test_changed_settings_are_never_mixed_in(tmp_path):
    fill(tmp_path, "digits")
    alone = Page(build(tmp_path)).csv("digits")
    fill(tmp_path, "digits", lr=0.5)
    page = Page(build(tmp_path))
    pd.testing.assert_frame_equal(page.csv("digits"), alone)
    assert "digits: 48 networks at scale smoke with lr = 0.5 are left out." in page.text


def test_changed_settings_are_drawn_where_there_are_no_others(tmp_path):
    fill(tmp_path, "digits", lr=0.5)
    page = Page(build(tmp_path))
    assert "digits.svg" in page.downloads
    assert "digits: not its own setting, which is not recorded, but lr = 0.5." in page.text
    assert "adareg reproduce digits --scale smoke --set lr=0.5" in page.text


def test_all_samples_are_the_experiments_own_cell(tmp_path):
    fill(tmp_path, "sarcos", scale="paper", seeds=1)  # its n = 0 is recorded as a number
    page = Page(build(tmp_path))
    assert set(page.csv("sarcos")["n"]) == {100, 400, 1600, 3000}
    assert "left out" not in page.text


def test_foreign_files_and_records_are_passed_over(tmp_path):
    fill(tmp_path, "digits")
    (tmp_path / "digits" / "notes.jsonl").write_text("{")
    (tmp_path / "digits" / "other.jsonl").write_text('{"format": 1, "experiment": "digits"}\n')
    config = EXPERIMENTS["digits"].cells("smoke")[0]
    other = record("wine", "smoke", config, Replica("none", 0))
    Store(tmp_path).write("wine", config, [other])
    page = Page(build(tmp_path))
    assert "digits.svg" in page.downloads
    assert "notes.jsonl" in page.text
    assert "records without some of their parts: 1" in page.text
    assert "records of 'wine', no experiment: 1" in page.text


@pytest.mark.parametrize("method", ["none", "mystery"])
def test_one_method_alone_is_drawn_as_far_as_it_goes(tmp_path, method):
    fill(tmp_path, methods=(method,), seeds=1)
    page = Page(build(tmp_path))
    assert ("accuracy.svg" in page.downloads) == (method == "none")
    assert "gain.svg" not in page.downloads


def spoil(root, change):
    for path in root.glob("mnist-*/*.jsonl"):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        for entry in found:
            change(entry)
        path.write_text("".join(json.dumps(entry) + "\n" for entry in found))


def unmeasured(entry):
    entry["metrics"]["test_accuracy"] = None
    entry["arrays"]["correlation"] = [[None] * 10] * 10
    entry.update(curves={}, environment={}, data={})


@pytest.mark.parametrize(
    ("change", "drawn"), [(unmeasured, True), (lambda r: r["metrics"].update(diverged=True), False)]
)
def test_records_without_numbers_do_not_spoil_the_page(tmp_path, change, drawn):
    names = ("mnist-generalization", "mnist-optimization", "mnist-covariances", "mnist-layers")
    fill(tmp_path, *names, "digits-completion", seeds=1)
    spoil(tmp_path, change)
    page = Page(build(tmp_path))
    assert "digits-completion.svg" in page.downloads
    assert "layers.svg" not in page.downloads
    assert ("spectra.svg" in page.downloads) == drawn


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {}},
        {"metrics": [1]},
        {"arrays": {}},
        {"spectra": {}},
        {"config": {}},
        {"config": {"data": "mnist", "n": "many", "batch": 1, "blocks": 1, "epochs": 1}},
        {"scale": "huge"},
        {"method": None},
        {"seed": "first"},
    ],
)
def test_records_that_lack_a_part_are_passed_over(tmp_path, change):
    fill(tmp_path, "mnist-layers", "digits", seeds=1)
    spoil(tmp_path, lambda entry: entry.update(change))
    whole, foreign = readable(Store(tmp_path))
    assert {entry["experiment"] for entry in whole} == {"digits"}
    assert foreign == ["records without some of their parts: 5"]


def test_networks_that_diverged_are_not_averaged(tmp_path):
    config = EXPERIMENTS["digits"].cells("smoke")[0]
    made = [record("digits", "smoke", config, Replica("none", seed)) for seed in range(3)]
    made.append(
        record(
            "digits", "smoke", config, Replica("none", 3), diverged=True, test_accuracy=None
        )
    )  # fmt: skip
    Store(tmp_path).write("digits", config, made)
    page = Page(build(tmp_path))
    table = page.csv("digits").query("measure == 'test_accuracy'")
    assert list(table["seeds"]) == [3]
    assert "networks of none that diverged, and are not among the means: 1." in page.text


def test_odd_names_are_escaped(tmp_path):
    name = "<script>alert('x')</script>&amp;"
    config = replace(EXPERIMENTS["digits"].cells("smoke")[0])
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
    result = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert f"no records below {tmp_path / 'none'}" in result.stderr
    assert "adareg reproduce digits" in result.stderr


def test_the_command_writes_the_page(tmp_path):
    fill(tmp_path / "runs", "digits-completion")
    out = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "page.html" in result.stdout
    assert out.read_text(encoding="utf-8") == build(tmp_path / "runs")
