"""Missing, partial, mixed and foreign records: the page says so and draws the rest."""

import json

import pandas as pd
import pytest

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.judge.selection import Records
from adareg.lab.report import build
from adareg.lab.run.records import Store
from adareg.lab.train.stacked import Replica
from fakes.records import fill, record
from read_page import Page


def test_what_is_missing_is_said_and_the_rest_is_drawn(tmp_path):
    fill(tmp_path, "mnist-generalization", methods=("none", "adareg"), seeds=1)
    page = Page(build(tmp_path))
    assert "accuracy.svg" in page.downloads
    assert "layers.svg" not in page.downloads
    assert "adareg reproduce cifar-generalization --scale paper" in page.text
    assert "adareg reproduce mnist-layers --scale paper" in page.text
    assert "mnist-generalization: 2 of 12 networks are recorded" in page.text
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
    assert "digits: recorded only with changed settings: lr = 0.5." in page.text
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
    assert "other.jsonl" in page.text
    assert "records of 'wine', which is no experiment: 1" in page.text


def test_a_network_that_was_not_timed_does_not_spoil_the_page(tmp_path):
    fill(tmp_path, "smalldata-wine", seeds=1)
    path = next(tmp_path.rglob("*.jsonl"))
    first, *others = path.read_text().splitlines()
    entry = json.loads(first)
    del entry["metrics"]["timed_on"]
    path.write_text("\n".join([json.dumps(entry), *others]) + "\n")
    assert "timed on a machine" in Page(build(tmp_path)).text


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


def test_files_with_values_of_a_wrong_kind_are_passed_over(tmp_path):
    fill(tmp_path, "mnist-layers", "digits", seeds=1)
    spoil(tmp_path, lambda entry: entry.update(metrics=[1]))
    found = Records.of(Store(tmp_path))
    assert found.studies.keys() == {"digits"}
    assert found.foreign == []
    assert ["metrics is [1]; expected an object" in why for why in found.unreadable] == [True]


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
    assert "networks of none that diverged: 1. They are not among the means." in page.text
