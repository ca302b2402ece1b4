"""Experiments as a user runs them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from adareg import cli
from adareg.lab import atomic, data
from adareg.lab.data import DataNotFoundError
from adareg.lab.experiments import EXPERIMENTS, SCALES
from adareg.lab.run import cell, plan
from adareg.lab.run.records import Store
from adareg.lab.run.terminal import Terminal
from adareg.lab.train.methods import METHODS
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Replica
from fakes.datasets import fake

#: How often the run of the last test is killed; fifty were, once.
KILLS = int(os.environ.get("ADAREG_KILLS", "3"))


@pytest.fixture
def fabricated(monkeypatch):
    """Every data set that is not embedded, made up."""
    load = data.load

    def instead(name, directory=None):
        return load(name) if name.startswith("digits") else fake(name, n_train=80, n_test=40)

    monkeypatch.setattr(data, "load", instead)


def run(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


#: Ten methods with all of their trials on images of some size.
LONG = {"smalldata-cifar10"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.exhaustive if n in LONG else ()) for n in EXPERIMENTS],
)
def test_every_experiment_runs_at_smoke_scale(name, fabricated, tmp_path):
    result = run(name, "--scale", "smoke", "--out", tmp_path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    experiment = EXPERIMENTS[name]
    made = list(Store(tmp_path).read(name))
    cells = experiment.cells("smoke")
    assert len(made) == len(cells) * len(experiment.methods) * experiment.seeds["smoke"]
    for record in made:
        config = record["config"]
        assert record["method"] in experiment.methods
        kept = config["blocks"] * (1 if config["trials"] else config["epochs"])
        assert len(record["curves"]["running_loss"]) == kept
        assert not record["metrics"]["diverged"]
        assert record["spectra"]["fc.1"]["stable_rank"] >= 1
        assert record["environment"]["torch"] == torch.__version__
        if config["evaluate_every"]:
            assert len(record["curves"]["test_loss"]) == config["blocks"] * config["epochs"]
        if config["covariances"]:
            assert len(record["arrays"]["col_covariance"]) == 50


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_scale_is_possible(name):
    experiment = EXPERIMENTS[name]
    sizes = {
        "mnist": 60_000, "cifar10": 50_000, "sarcos": 3_483, "digits": 1_197,
        "wine": 108, "breast-cancer": 369, "diabetes": 292,
    }  # fmt: skip
    for scale in SCALES:
        for config in experiment.cells(scale):
            assert config.n <= sizes[config.data.removesuffix("-completion")]
            assert config.data in ARCHITECTURES
        assert set(experiment.methods) <= METHODS.keys()
        assert experiment.seeds[scale] >= 1


def test_the_papers_grid_is_complete():
    cells = EXPERIMENTS["mnist-generalization"].cells("paper")
    assert len({config.n for config in cells}) == 11
    assert {(c.batch, c.blocks, c.epochs) for c in cells} == {(256, 2, 50), (2048, 5, 50)}
    assert EXPERIMENTS["mnist-generalization"].seeds["paper"] == 10
    layers = {config.n for config in EXPERIMENTS["mnist-layers"].cells("paper")}
    assert layers == {128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 60000}
    assert {config.n for config in EXPERIMENTS["cifar-generalization"].cells("paper")} == set(
        range(5000, 50001, 5000)
    )


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch):
    first = run("digits", "--scale", "smoke", "--seeds", 1, "--out", tmp_path)
    assert "24 networks to train, 0 recorded already" in first.output
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    trained = []
    train = cell.run
    monkeypatch.setattr(cell, "run", lambda c, r, *args: trained.extend(r) or train(c, r, *args))
    again = run("digits", "--scale", "smoke", "--seeds", 1, "--out", tmp_path)
    assert "0 networks to train, 24 recorded already" in again.output
    assert trained == []
    more = run("digits", "--scale", "smoke", "--seeds", 2, "--out", tmp_path)
    assert "24 networks to train, 24 recorded already" in more.output
    assert {replica.seed for replica in trained} == {1}
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_what_is_named_twice_is_run_once(tmp_path):
    names = ("digits", "digits", "--methods", "none, adareg,none", "--seeds", 1)
    result = run(*names, "--scale", "smoke", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "4 networks to train" in result.output
    made = [(r["config"]["n"], r["method"]) for r in Store(tmp_path).read()]
    assert made == [(n, method) for n in (30, 60) for method in ("none", "adareg")]


def test_cells_that_overrides_make_the_same_are_one(tmp_path):
    arguments = ("digits", "--scale", "smoke", "--methods", "none", "--seeds", 1)
    result = run(*arguments, "--set", "n=40", "--out", tmp_path)
    assert "1 networks to train" in result.output


def test_a_cell_of_another_experiment_is_copied(tmp_path, fabricated, monkeypatch):
    run("mnist-generalization", "--scale", "smoke", "--out", tmp_path)

    def never(*args):
        raise AssertionError("trained again")

    monkeypatch.setattr(cell, "run", never)
    result = run("mnist-spectra", "--scale", "smoke", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    copies = {(r["method"], r["seed"]): r for r in Store(tmp_path).read("mnist-spectra")}
    origin = {(r["method"], r["seed"]): r for r in Store(tmp_path).read("mnist-generalization")}
    assert len(copies) == 6
    for key, copy in copies.items():
        assert copy == {**origin[key], "experiment": "mnist-spectra"}


class Reversed:
    """An engine that ends jobs in another order than it was given them."""

    def __init__(self):
        self.given = []

    def __call__(self, jobs, sources, reporter):
        self.given += jobs
        yield from reversed(list(plan.Local(torch.device("cpu"))(jobs, sources, reporter)))


def test_no_engine_is_given_a_network_twice(tmp_path, fabricated):
    """Two experiments with a cell in common, in one run; one of them has more seeds of it."""
    sources, store, engine = plan.Sources(None), Store(tmp_path), Reversed()
    names = ("mnist-generalization", "mnist-spectra")
    (first, _), (second, _) = (
        plan.plan([EXPERIMENTS[name]], "smoke", sources, store, seeds, ["none"])
        for name, seeds in zip(names, (1, 2), strict=True)
    )
    reporter = Terminal(Console(quiet=True))
    plan.run([*first, *second], 0, sources, store, engine, reporter)
    networks = [(job.config, replica) for job in engine.given for replica in job.replicas]
    assert len(networks) == len(set(networks)) == len(first) + len(second)
    made = [(r["experiment"], r["config"]["n"], r["seed"]) for r in store.read()]
    assert len(made) == len(set(made)) == len(first) + 2 * len(second)
    assert reporter.done == reporter.total == len(first) + len(second)
    assert reporter._bar.tasks[0].completed == reporter._bar.tasks[0].total


def test_records_of_other_data_are_not_taken_for_these(tmp_path, fabricated, monkeypatch):
    arguments = ("--scale", "smoke", "--methods", "none", "--out", tmp_path)
    run("mnist-generalization", *arguments)
    other = replace(fake("mnist", n_train=90), provenance={"split": "another", "files": {}})
    monkeypatch.setattr(data, "load", lambda name, directory=None: other)
    again = run("mnist-generalization", *arguments)
    assert again.exit_code == 1
    assert "records of mnist-generalization that were trained on other data" in again.output
    run("mnist-spectra", *arguments)
    (copied, *_) = Store(tmp_path).read("mnist-spectra")
    assert copied["data"] == other.provenance


def test_a_copy_has_the_scale_it_was_made_for(tmp_path, fabricated):
    run("mnist-generalization", "--scale", "smoke", "--methods", "none", "--out", tmp_path)
    (config,) = EXPERIMENTS["mnist-spectra"].cells("smoke")
    job = plan.Job("mnist-spectra", "paper", config, (Replica("none", 0),))
    (copy,) = plan._copies(job, Store(tmp_path), data.load("mnist"))
    assert (copy["experiment"], copy["scale"]) == ("mnist-spectra", "paper")


def test_a_folder_is_printed_as_it_is_called(tmp_path):
    folder = tmp_path / ("long-" * 20 + "[red]")
    result = run("digits", "--scale", "smoke", "--methods", "none", "--out", folder)
    assert f"all recorded below {folder}\n" in result.output


def test_overrides_make_another_cell(tmp_path):
    arguments = ("digits", "--scale", "smoke", "--methods", "none", "--out", tmp_path)
    run(*arguments)
    result = run(*arguments, "--set", "lr=0.1", "--set", "test=7")
    assert "4 networks to train, 0 recorded already" in result.output
    assert {record["config"]["lr"] for record in Store(tmp_path).read()} == {0.002, 0.1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnits"], "unknown experiment 'mnits'; there are: digits"),
        (["digits", "--methods", "none,magic"], "unknown method 'magic'; there are: none"),
        (["digits", "--methods", "adareg-conv"], "the network for digits has no convolutions"),
        (["digits", "--set", "rate=1"], "unknown config key 'rate'; there are: data"),
        (["digits", "--set", "lr"], "--set 'lr': expected KEY=VALUE"),
        (["digits", "--set", "n=5000"], "n=5000: digits has 1197 training samples"),
        (["digits", "--set", "batch=29"], "a batch of one sample has no variance"),
        (
            ["digits", "--set", "augment=true", "--methods", "none", "--set", "data=sarcos"],
            "sarcos",
        ),
        (["digits", "--scale", "huge"], "--scale 'huge': expected one of smoke, small, paper"),
    ],
)
def test_errors_say_what_is_accepted(arguments, message, tmp_path):
    result = run("--scale", "smoke", *arguments, "--out", tmp_path, "--data", tmp_path)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_missing_data_says_where_to_get_it(tmp_path):
    result = run("mnist-layers", "--scale", "smoke", "--out", tmp_path, "--data", tmp_path)
    assert result.exit_code == 1
    assert "adareg data fetch mnist" in result.output
    with pytest.raises(DataNotFoundError):
        plan.Sources(tmp_path)["mnist"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path):
    result = run("digits", "--device", "cuda", "--out", tmp_path)
    assert result.exit_code == 2
    assert "no GPU is available here; use cpu" in result.output


def test_a_folder_that_cannot_be_written_to_is_an_error_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(cell, "run", lambda *args: pytest.fail("trained in vain"))
    result = run("digits", "--scale", "smoke", "--out", tmp_path / "file")
    assert result.exit_code == 1
    assert f"Not a directory: '{tmp_path / 'file' / 'digits'}'" in result.output


def test_a_full_disk_is_one_line_that_says_where_and_what_to_do(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    result = run("digits", "--scale", "smoke", "--out", tmp_path)
    assert result.exit_code == 1
    (message,) = (line for line in result.output.splitlines() if line.startswith("error"))
    assert message.startswith(
        f"error: [Errno 28] No space left on device: '{tmp_path / 'digits' / 'n30-b32-'}"
    )
    assert message.endswith("or name another place, and run the same command again")


def test_ctrl_c_keeps_what_is_done(tmp_path, monkeypatch):
    train, count = cell.run, []

    def interrupted(*args):
        count.append(1)
        if len(count) == 2:
            raise KeyboardInterrupt
        return train(*args)

    monkeypatch.setattr(cell, "run", interrupted)
    result = run("digits", "--scale", "smoke", "--out", tmp_path)
    assert result.exit_code == 130
    assert "stopped; 1 of 4 jobs are recorded" in result.output.replace("\n", " ")
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1


def test_without_a_name_it_lists_what_there_is():
    result = CliRunner().invoke(cli.app, ["reproduce"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line[:1].strip()]
    alone = [name for name in EXPERIMENTS if not name.startswith("smalldata-")]
    assert names == [*alone, "smalldata", "tables", "adareg", "adareg"]
    assert all(name in result.stdout for name in EXPERIMENTS)
    assert run("--scale", "smoke").exit_code == 2  # options without a name


def test_runs_lists_what_is_there(tmp_path):
    runner = CliRunner()
    nothing = runner.invoke(cli.app, ["runs", str(tmp_path)])
    assert nothing.exit_code == 1
    assert "adareg reproduce digits" in nothing.output
    run("digits", "--scale", "smoke", "--seeds", 1, "--methods", "none", "--out", tmp_path)
    listed = runner.invoke(cli.app, ["runs", str(tmp_path)])
    assert listed.exit_code == 0
    rows = [line.split()[:4] for line in listed.output.splitlines() if line.startswith("digits")]
    assert rows == [["digits", "smoke", "30", "32"], ["digits", "smoke", "60", "32"]]


def test_without_a_name_experiments_are_listed():
    result = run()
    assert result.exit_code == 0
    assert all(name in result.output for name in EXPERIMENTS)


def test_the_commit_is_of_this_package_and_of_all_of_it(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True)

    package = tmp_path / "site-packages" / "adareg"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(plan.adareg, "__file__", str(package / "__init__.py"))
    monkeypatch.delenv("ADAREG_COMMIT", raising=False)
    commit = plan.commit.__wrapped__
    assert commit() is None
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "a repository around the package")
    assert commit() is None
    git("add", ".")
    git("commit", "--quiet", "--message", "the package's own")
    head = commit()
    assert len(head) == 40
    (package / "core" / "rules.py").write_text("changed")
    assert commit() == f"{head}+"


def results(folder):
    """All records, without what differs from run to run."""
    changing = {"seconds", "environment"}
    return [
        {key: value for key, value in record.items() if key not in changing}
        for record in Store(folder).read()
    ]


@pytest.mark.exhaustive
def test_killed_at_any_moment_a_run_loses_nothing(tmp_path):
    """SIGKILL, again and again, then to the end: the same records as those of an unbroken run.

    A run that has ended in spite of it is followed by one in another folder, so that every kill
    meets one with something left to do.
    """
    moments = random.Random(KILLS)
    command = [
        sys.executable, "-c", "from adareg.cli import app; app()", "reproduce", "digits",
        "--scale", "smoke", "--set", "epochs=6", "--device", "cpu", "--out",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    subprocess.run([*command, tmp_path / "whole"], check=True, env=environment, capture_output=True)
    duration = time.monotonic() - start
    folders = (tmp_path / str(number) for number in count())
    folder, killed, ended, seen = next(folders), 0, False, {}
    while killed < KILLS or not ended:
        process = subprocess.Popen([*command, folder], env=environment, stdout=subprocess.DEVNULL)
        try:
            process.wait(moments.uniform(0.3, 1.0) * duration if killed < KILLS else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        ended = process.wait() == 0
        assert ended or process.returncode == -signal.SIGKILL
        for path in folder.rglob("*.jsonl"):
            text, when = path.read_text(), path.stat().st_mtime_ns
            assert all(json.loads(line)["format"] == 1 for line in text.splitlines())
            assert seen.setdefault(path, (text, when)) == (text, when)
        assert all(path.exists() for path in seen)
        if ended:
            assert results(folder) == results(tmp_path / "whole")
            assert not list(folder.rglob("*.partial"))
            folder = next(folders)
