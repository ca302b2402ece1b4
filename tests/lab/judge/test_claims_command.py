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


def run(*arguments, columns=80):
    environment = {"COLUMNS": str(columns)}
    return CliRunner().invoke(cli.app, ["claims", *map(str, arguments)], env=environment)


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


def test_the_list_has_what_is_recorded_two_lines_each(store):
    result = run(store.root)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    counts = "The same on scikit-learn's digits: 1 reproduced, 4 not reproduced, 1 not enough data"
    assert " ".join(lines[:2]) == counts
    assert lines[2] == "✔ AdaReg improves accuracy on digits"
    assert lines[3].startswith("  digits-generalization: higher in 4 of 4 settings; +")
    assert not any("MNIST" in line or "evidence rule" in line for line in lines)
    without = len(CLAIMS) + len(CRITERIA) - 5
    assert f"{without} claims without records; --long says what to run." in lines


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not in this copy")
def test_it_fits_a_terminal_and_counts_the_papers_claims_alone():
    lines = run(RECORDS).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 3 * len(CLAIMS | CRITERIA)
    claims = [key for key, claim in CLAIMS.items() if not claim.own]
    heading = " ".join(lines[:2])
    assert heading.startswith("The paper's claims: ")
    numbers = [int(word) for word in heading.split() if word.isdigit()]
    assert sum(numbers) == len(claims) < len(CLAIMS)


def test_a_claim_that_is_named_is_printed_in_full(store):
    text = " ".join(run(store.root, "digits-generalization").stdout.split())
    assert text.startswith("✔ AdaReg improves accuracy on digits Reproduced. digits-gen")
    assert "Paper: On MNIST" in text
    assert "Measured: Test accuracy is higher with AdaReg than with no regularizer" in text
    assert "Rule: Digits: AdaReg against no regularizer" in text
    assert text.count("AdaReg − no regularizer, n = ") == 4
    assert "stable rank" not in text
    named = run(store.root, "prayer")
    assert named.exit_code == 1
    assert "no claim 'prayer'; there are: closed-form" in named.stderr


def test_all_of_them_in_full_say_what_to_run(store):
    text = " ".join(run(store.root, "--long").stdout.split())
    assert all(claim.title in text for claim in (CLAIMS | CRITERIA).values())
    assert "To find out: adareg reproduce sarcos --scale paper" in text
    assert "adareg reproduce smalldata --scale paper" in text


def test_it_writes_json(store, tmp_path):
    path = tmp_path / "verdicts.json"
    assert run(store.root, "--json", path).exit_code == 0
    content = json.loads(path.read_text())
    assert content.keys() == CLAIMS.keys() | CRITERIA.keys()
    assert content["digits-generalization"]["own"]
    assert not content["mnist-improves"]["own"]
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
