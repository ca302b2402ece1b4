"""Plans, running on, time limits and failures."""

import dataclasses
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab.contest import methods, run, suites
from adareg.lab.contest.results import Results
from adareg.lab.contest.trial import Trial
from adareg.lab.contest.trial import run as try_once

FAST = ("ridge-cv", "pls-cv")


def carry_out(planned, results, jobs=1, minutes=None):
    told = []
    return run.carry_out(planned, results, None, {}, jobs, minutes, told.append), told


def change(monkeypatch, name, **changed):
    row = dataclasses.replace(methods.METHODS[name], **changed)
    monkeypatch.setitem(methods.METHODS, name, row)


def test_long_trials_first(tmp_path, monkeypatch):
    change(monkeypatch, "pls-cv", seconds=100)
    planned = run.plan("smoke", Results(tmp_path), None, ["multi-target"], FAST)
    assert [trial.method for trial, _ in planned.trials] == ["pls-cv", "ridge-cv"]
    assert planned.finished == 0


def test_splits_are_done_in_blocks(tmp_path, monkeypatch):
    """So that methods can be compared over the same splits, whenever a run is stopped."""
    monkeypatch.setitem(suites.SPLITS, "smoke", 20)
    monkeypatch.setattr(run, "BLOCK", 2)
    change(monkeypatch, "pls-cv", seconds=100)
    planned = run.plan("smoke", Results(tmp_path), None, ["multi-target"], FAST)
    found = [(trial.split // 2, trial.method) for trial, _ in planned.trials]
    assert found == sorted(found)
    assert {split for split, _ in found} == {0, 1, 2}


def test_what_is_recorded_is_not_done_again(tmp_path):
    results = Results(tmp_path)
    planned = run.plan("smoke", results, None, ["multi-target"], FAST)
    outcome, told = carry_out(planned, results)
    assert len(outcome.done) == len(told) == 2
    assert (outcome.failed, outcome.left) == ({}, [])
    again = run.plan("smoke", results, None, ["multi-target"], FAST)
    assert (again.trials, again.finished) == ((), 2)
    anew = run.plan("smoke", results, None, ["multi-target"], FAST, again=["pls-cv"])
    assert [trial.method for trial, _ in anew.trials] == ["pls-cv"]


def test_scale_chooses_tables_and_methods(tmp_path):
    planned = run.plan("small", Results(tmp_path), None)
    tables = {trial.table for trial, _ in planned.trials}
    assert tables == {table for suite in suites.SUITES.values() for table in suite.sets["small"]}
    competing = {trial.method for trial, _ in planned.trials}
    assert {"evidence", "gaussian-process", "forest", "ridge-cv", "mlp-cv"} <= competing
    assert "boosting-cv" not in competing
    smoke = run.plan("smoke", Results(tmp_path), None)
    assert "mlp-cv" not in {trial.method for trial, _ in smoke.trials}
    named = run.plan("smoke", Results(tmp_path), None, ["embedded-iris"], ["mlp-cv"])
    assert [trial.method for trial, _ in named.trials] == ["mlp-cv"]


@pytest.mark.parametrize(
    ("only", "tables"),
    [
        (["uci"], suites.SUITES["regression"].sets["paper"]),
        (["multi-target"], suites.SUITES["multi-target"].sets["paper"]),
        (["arff-glass", "uci-yacht"], ("uci-yacht", "arff-glass")),
    ],
)
def test_names_stand_for_tables(only, tables):
    chosen = suites.choose("paper", only)
    assert tuple(name for names in chosen.values() for name in names) == tables


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--only uc: no such suite or table at scale paper"):
        suites.choose("paper", ["uc", "arff"])
    for arguments in ({"names": ["ridgecv"]}, {"again": ["ridgecv"]}):
        with pytest.raises(ValueError, match="no method ridgecv; there are: evidence"):
            run.plan("smoke", Results(tmp_path), None, **arguments)


def test_no_trial_begins_that_would_not_end_in_time(tmp_path, monkeypatch):
    change(monkeypatch, "pls-cv", seconds=1e6)
    change(monkeypatch, "ridge-cv", seconds=1e-6)
    results = Results(tmp_path)
    planned = run.plan("smoke", results, None, ["multi-target"], FAST)
    outcome, _ = carry_out(planned, results, minutes=1)
    assert [trial.method for trial in outcome.done] == ["ridge-cv"]
    assert [trial.method for trial in outcome.left] == ["pls-cv"]


class Broken:
    def fit(self, x, y):
        raise ValueError("no such\nthing")


class Diverging:
    def fit(self, x, y):
        self.shape = y.shape[1:]

    def predict(self, x):
        return np.full((len(x), *self.shape), np.nan)


@pytest.mark.parametrize(
    ("model", "message"),
    [(Broken, "ValueError: no such thing"), (Diverging, "ValueError: predictions are not finite")],
)
def test_a_failure_is_told_and_not_recorded(tmp_path, monkeypatch, model, message):
    change(monkeypatch, "pls-cv", build=lambda problem: model())
    results = Results(tmp_path)
    planned = run.plan("smoke", results, None, ["multi-target"], FAST)
    outcome, told = carry_out(planned, results)
    assert list(outcome.failed.values()) == [message]
    assert any(message in line for line in told)
    assert [trial.method for trial in results.done()] == ["ridge-cv"]


def test_a_record_says_all(monkeypatch):
    trial = Trial("regression", "embedded-diabetes", 0, "ridge-cv")
    made = try_once(trial, None, {"adareg": "1"})
    assert (made["rows"], made["inputs"], made["outputs"]) == (353, 10, 1)
    assert "Ridge()" in made["settings"]
    assert "0x" not in made["settings"]
    assert made["scores"].keys() == {"rmse", "log_likelihood", "coverage"}
    assert 40 < made["scores"]["rmse"] < 80  # of a target whose deviation is 77
    assert made["environment"] == {"adareg": "1"}


def test_warnings_are_counted(monkeypatch):
    change(monkeypatch, "mlp-cv", build=lambda problem: Warning_())
    made = try_once(Trial("multi-target", "embedded-linnerud", 0, "mlp-cv"), None, {})
    assert made["warnings"] == {"UserWarning": 2}


class Warning_(Diverging):  # noqa: N801
    def predict(self, x):
        import warnings

        for _ in range(2):
            warnings.warn("careful", stacklevel=1)
        return np.zeros((len(x), *self.shape))


def test_processes_record_the_same(tmp_path):
    """Two at once; the time limit ends those that are late and keeps what was done."""
    one, two = Results(tmp_path / "one"), Results(tmp_path / "two")
    planned = run.plan("smoke", one, None, ["multi-target"], FAST)
    carry_out(planned, one)
    outcome, _ = carry_out(planned, two, jobs=2)
    assert sorted(outcome.done) == sorted(trial for trial, _ in planned.trials)
    here, there = ({_key(r): r["scores"] for r in results.read()} for results in (one, two))
    assert here.keys() == there.keys()
    for key, scores in here.items():
        assert there[key]["arrmse"] == pytest.approx(scores["arrmse"], rel=1e-6)


def _key(record):
    return record["table"], record["split"], record["method"]


def test_processes_that_are_late_are_ended(tmp_path, monkeypatch):
    change(monkeypatch, "pls-cv", seconds=0)
    results = Results(tmp_path)
    planned = run.plan("smoke", results, None, ["multi-target"], ["pls-cv"])
    started = time.monotonic()
    outcome, _ = carry_out(planned, results, jobs=2, minutes=1e-3)
    assert time.monotonic() - started < 30
    assert outcome.left == [trial for trial, _ in planned.trials]
    assert list(results.read()) == []


# The command


def command(*arguments):
    return CliRunner().invoke(app, ["reproduce", "tables", *map(str, arguments)])


def test_the_command_records_and_goes_on(tmp_path):
    arguments = ["--scale", "smoke", "--only", "multi-target", "--methods", "pls-cv,ridge-cv"]
    first = command(*arguments, "--jobs", 1, "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert "2 trials to do" in first.stdout
    assert f"2 trials recorded below {tmp_path / 'tables'}" in first.stdout
    second = command(*arguments, "--jobs", 1, "--out", tmp_path)
    assert "0 trials to do, about 0 seconds of one core; 2 recorded already" in second.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale", "large"], "--scale 'large': expected one of smoke, small, paper"),
        (["--methods", "nobody"], "no method nobody"),
        (["--only", "nothing"], "--only nothing: no such suite or table"),
        (["--seeds", "2"], "No such option: --seeds"),
        (["digits"], "unexpected extra argument"),
    ],
)
def test_wrong_requests_are_refused_in_a_line(tmp_path, arguments, message):
    result = command(*arguments, "--out", tmp_path)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--jobs", "2"], "No such option: --jobs"),
        (["digits", "tables"], "tables runs by itself: adareg reproduce tables [OPTIONS]"),
        (["--scale", "smoke", "tables"], "tables runs by itself"),
    ],
)
def test_the_contest_is_a_command_of_its_own(arguments, message):
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == 2
    assert message in result.stderr


def test_both_commands_say_their_own_options():
    networks, tables = (
        CliRunner().invoke(app, ["reproduce", *arguments]).stdout
        for arguments in (["--help"], ["tables", "--help"])
    )
    for option in ("--seeds", "--engine"):
        assert option in networks
        assert option not in tables
    for option in ("--only", "--again", "--jobs", "--minutes"):
        assert option in tables
        assert option not in networks


def test_missing_data_are_one_line(tmp_path):
    result = command("--scale", "paper", "--only", "uci-yacht", "--data", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: uci-yacht: data.txt not found in ")
    assert "adareg data fetch uci-yacht" in result.stderr
