"""``adareg claims`` as a user runs it, and on the records of this repository."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adareg import cli
from adareg.lab.judge.claims import CLAIMS, judge_all
from adareg.lab.judge.claims.smalldata import CRITERIA
from adareg.lab.run.records import Store
from adareg.lab.train.config import Config
from fakes.networks import networks
from fakes.worlds import WORLDS

RECORDS = Path(__file__).parents[3] / "results/records"


def run(*arguments):
    return CliRunner().invoke(cli.app, ["claims", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def store(tmp_path):
    """Digits, on which AdaReg is better."""
    levels = WORLDS["digits-generalization"][1]
    made = networks("digits", lambda m, c: levels(m, c, True), scale="small")
    store = Store(tmp_path / "runs")
    for n in {record["config"]["n"] for record in made}:
        cell = [record for record in made if record["config"]["n"] == n]
        store.write("digits", Config(**cell[0]["config"]), cell)
    return store


def test_it_prints_a_table_and_writes_json(store, tmp_path):
    path = tmp_path / "verdicts.json"
    result = run(store.root, "--json", path)
    assert result.exit_code == 0, result.output
    assert "On our embedded digits" in result.stdout
    assert "adareg reproduce sarcos --scale paper" in result.stdout
    content = json.loads(path.read_text())
    assert content.keys() == CLAIMS.keys() | CRITERIA.keys()
    assert "asked for" not in result.stdout  # there are no records of that benchmark
    found = content["digits-generalization"]
    assert found["verdict"] == "reproduced"
    assert found["effects"][0].keys() == {"what", "value", "low", "high", "seeds", "unit"}
    assert found["effects"][0]["value"] == pytest.approx(2.0, abs=0.1)
    assert content["with-dropout"]["verdict"] == "not enough data"


def test_strict_fails_when_not_all_are_reproduced(store):
    assert run(store.root, "--strict").exit_code == 1


def test_an_unreadable_file_is_named_and_the_rest_is_judged(store):
    path = store.root / "digits" / "other.jsonl"
    path.write_text("{")
    result = run(store.root)
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert "4 of 4 settings" in " ".join(result.stdout.split())
    assert judge_all(store)["digits-generalization"].verdict == "reproduced"


def test_benchmarks_are_found_beside_or_inside(store):
    benchmark = json.dumps({"updates": [{"p": 1, "d": 2, "error": {"float32 precisions": 0.0}}]})
    for folder in (store.root / "bench", store.root.parent / "bench"):
        folder.mkdir()
        (folder / "cpu.json").write_text(benchmark)
        (folder / "other.json").write_text("[")
        assert judge_all(store)["closed-form"].verdict == "reproduced"
        (folder / "cpu.json").unlink()
        assert judge_all(store)["closed-form"].verdict == "not enough data"


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not in this copy")
def test_the_committed_records_say_what_a_table_of_means_says():
    store = Store(RECORDS)
    judgements = judge_all(store)
    frame = store.frame("mnist-generalization")
    index = ["batch", "n", "seed"]
    accuracy = 100 * frame.pivot_table(index=index, columns="method", values="test_accuracy")
    lead = accuracy["adareg"] - accuracy["none"]
    found = judgements["mnist-improves"].effects
    assert found[0].value == pytest.approx(lead.mean())
    by_setting = lead.groupby(["batch", "n"]).mean()
    assert [effect.value for effect in found[1:]] == pytest.approx(list(by_setting))
    assert len(found) == 1 + 22
    at_256 = accuracy.loc[256, 60_000].mean()
    assert f"{at_256['none']:.2f} % without" in judgements["mnist-60000"].measured
