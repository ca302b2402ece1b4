"""The engine on a real Ray, started here, with workers and drivers killed on purpose."""

import io
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from uuid import uuid4

import psutil
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from adareg import cli
from adareg.lab.experiments import find_all
from adareg.lab.run import plan, ray_engine
from adareg.lab.run.records import Store
from adareg.lab.run.terminal import Terminal
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica
from fakes.datasets import fake

#: The embedded grid; its cells are long enough to be killed in.
GRID = ("digits", "digits-completion", "--scale", "smoke", "--set", "epochs=10", "--device", "cpu")
JOBS = 6

#: How many workers are killed, fewer than it takes to give a job up.
KILLS = 3

#: Seconds that the most loaded machine may take for what usually takes three.
PATIENCE = 180

HEAD = """
import ray, sys
context = ray.init("local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""

#: A secret of this run's own: nobody else may join, and no file of the user's is read or written.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid4().hex,
}


class Head:
    """A cluster of two cores that belongs to a process of its own."""

    def __init__(self, process):
        self.process, self.address = process, process.stdout.readline().strip()

    def busy(self):
        """The workers that train."""
        return [p for p in descendants(self.process.pid) if "ray::_train" in name(p)]


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


def name(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@pytest.fixture(scope="module")
def settings():
    """Before Ray is imported, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in SETTINGS.items():
            patch.setenv(key, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        pytest.importorskip("ray", reason="ray is not installed")
        yield


@pytest.fixture(scope="module")
def head(settings):
    with subprocess.Popen(
        [sys.executable, "-c", HEAD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield Head(process)
        process.stdin.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the local engine records of the grid, with one thread, as a worker has it."""
    folder, threads = tmp_path_factory.mktemp("whole"), torch.get_num_threads()
    torch.set_num_threads(1)
    assert run(*GRID, "--out", folder).exit_code == 0
    torch.set_num_threads(threads)
    return results(folder)


def run(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


def results(folder):
    """All records, without what differs from run to run."""
    return [
        {key: value for key, value in record.items() if key not in {"seconds", "environment"}}
        for record in Store(folder).read()
    ]


def until(condition):
    """Wait for it, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


@pytest.mark.exhaustive
def test_records_are_those_of_the_local_engine(head, whole, tmp_path):
    arguments = (*GRID, "--out", tmp_path, "--engine", "ray", "--address", head.address)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert results(tmp_path) == whole
    assert len(list(tmp_path.rglob("*.jsonl"))) == JOBS
    again = run(*arguments)
    assert f"0 networks to train, {len(whole)} recorded already" in again.output


class Killer(Terminal):
    """Kills a worker whenever a job begins for the first time."""

    def __init__(self, head):
        super().__init__(Console(file=io.StringIO()))
        self.head, self.kills, self.lost = head, 0, 0
        self.begun, self.finished = [], []

    def start(self, job):
        super().start(job)
        if job not in self.begun and self.kills < KILLS and (busy := self.head.busy()):
            busy[0].kill()
            self.kills += 1
        self.begun.append(job)

    def lose(self, job, why):
        super().lose(job, why)
        self.lost += 1

    def finish(self, job, path):
        super().finish(job, path)
        self.finished.append(job)


@pytest.mark.exhaustive
def test_a_killed_worker_costs_one_retry_of_its_job_and_nothing_else(head, whole, tmp_path):
    sources, store, reporter = plan.Sources(None), Store(tmp_path), Killer(head)
    experiments = find_all(["digits", "digits-completion"])
    jobs, _ = plan.plan(experiments, "smoke", sources, store, overrides={"epochs": "10"})
    engine = ray_engine.Cluster(head.address, "cpu")
    plan.run(jobs, 0, sources, store, engine, reporter)
    assert 1 <= reporter.lost <= reporter.kills <= KILLS
    assert len(jobs) <= len(reporter.begun) <= len(jobs) + reporter.lost
    assert sorted(reporter.finished, key=repr) == sorted(jobs, key=repr)
    assert (
        "its worker was lost (WorkerCrashedError); trying again" in reporter.console.file.getvalue()
    )
    assert results(tmp_path) == whole
    assert reporter._bar.tasks[0].completed == reporter._bar.tasks[0].total


#: A shell's background jobs ignore Ctrl-C, and so would all that they start.
DRIVER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from adareg.cli import app
app()
"""


def start_driver(*arguments):
    command = [sys.executable, "-c", DRIVER, "reproduce", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.exhaustive
def test_a_killed_driver_loses_no_finished_job(head, whole, tmp_path):
    ray = ("--engine", "ray", "--address", head.address)
    with start_driver(*GRID, "--out", tmp_path, *ray) as driver:
        until(lambda: list(tmp_path.rglob("*.jsonl")))
        driver.kill()
    until(lambda: not head.busy())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    result = run(*GRID, "--out", tmp_path, *ray)
    assert result.exit_code == 0, result.output
    assert " 0 recorded already" not in result.output
    assert results(tmp_path) == whole
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert len(list(tmp_path.rglob("*.jsonl"))) == JOBS


@pytest.mark.exhaustive
@pytest.mark.usefixtures("settings")
def test_ctrl_c_stops_a_cluster_that_was_started_here(tmp_path):
    with start_driver(*GRID, "--out", tmp_path, "--engine", "ray", "--address", "local") as driver:
        until(lambda: list(tmp_path.rglob("*.jsonl")))
        started = descendants(driver.pid)
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130
    recorded = len(list(tmp_path.rglob("*.jsonl")))
    assert f"stopped; {recorded} of {JOBS} jobs are recorded below {tmp_path}" in output
    assert "Traceback" not in output
    assert psutil.wait_procs(started, PATIENCE)[1] == []


def train(engine, source):
    config = Config(data=source.name, n=30, batch=32, blocks=1, epochs=1)
    job = plan.Job(source.name, "smoke", config, (Replica("none", 0),))
    list(engine([job], {source.name: source}, Terminal(Console(file=io.StringIO()))))


@pytest.mark.exhaustive
def test_a_job_that_fails_by_itself_says_what_it_says_in_the_local_engine(head):
    """Ten million million samples, of which only the first is there: their order is too long."""
    small = fake("digits-completion")
    endless = replace(
        small,
        x_train=small.x_train[:1].expand(10**13, -1),
        y_train=small.y_train[:1].expand(10**13, -1),
    )
    for engine in (plan.Local(torch.device("cpu")), ray_engine.Cluster(head.address, "cpu")):
        with pytest.raises(MemoryError, match="n30-b32: not even one network fits into memory"):
            train(engine, endless)


class Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.exhaustive
def test_a_job_that_kills_its_workers_is_given_up(head, monkeypatch):
    monkeypatch.setattr(ray_engine, "ATTEMPTS", 2)
    source = replace(fake("digits"), provenance={"source": Deadly()})
    with pytest.raises(OSError, match="digits n30-b32: 2 workers were lost while they trained it"):
        train(ray_engine.Cluster(head.address, "cpu"), source)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--device cuda: the Ray cluster has no GPU; add a node"),
        (["--gpus-per-cell", "0.5"], "the Ray cluster has no GPU"),
        (["--gpus-per-cell", "2"], "--gpus-per-cell 2.0: expected a number in (0, 1]"),
        (["--gpus-per-cell", "1", "--device", "cpu"], "the share of a GPU, and --device is cpu"),
        (["--device", "tpu"], "--device 'tpu': expected cpu or cuda"),
        (["--address", "ray://head:10001"], "expected HOST:PORT of the head, auto or local"),
        (["--engine", "dask"], "--engine 'dask': expected local or ray"),
        (["--engine", "local"], "only with --engine ray"),
    ],
)
def test_errors_say_what_is_accepted(arguments, message, head, tmp_path):
    where = ("--engine", "ray", "--address", head.address, "--out", tmp_path)
    result = run("digits", "--scale", "smoke", *where, *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("settings")
def test_an_address_where_nobody_is(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("digits", "--engine", "ray", "--address", address, "--out", tmp_path)
    assert result.exit_code == 1
    assert f"--address {address}: no Ray cluster answers" in result.output


@pytest.mark.parametrize(
    ("device", "share", "gpus", "place"),
    [
        ("", None, 0, ("cpu", 0)),
        ("", None, 4, ("cuda", 0.5)),
        ("", 0.25, 4, ("cuda", 0.25)),
        ("cuda", None, 1, ("cuda", 0.5)),
        ("cpu", None, 4, ("cpu", 0)),
    ],
)
@pytest.mark.usefixtures("settings")
def test_gpus_are_shared_where_there_are_some(device, share, gpus, place):
    assert ray_engine.Cluster(None, device, share)._place(gpus) == place


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run("digits", "--engine", "ray", "--out", tmp_path)
    assert result.exit_code == 1
    assert (
        "which is not installed; in a checkout of AdaReg, run: pip install '.[ray]'"
        in result.output
    )


def test_the_local_engine_does_not_import_ray(tmp_path):
    code = (
        "import sys; from typer.testing import CliRunner; from adareg.cli import app; "
        "done = CliRunner().invoke(app, ['reproduce', *sys.argv[1:]]); "
        "print(done.exit_code, 'ray' in sys.modules)"
    )
    arguments = ("digits", "--scale", "smoke", "--methods", "none", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "False"]
