"""Several processes for real: gloo on CPUs, started by torchrun as users start them."""

import json
import os
import runpy
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from check_checkpoints import load
from checks import CASES, CHECKS, LATER
from jobs import STEPS, Training, assert_alike, make_model

from adareg.bench.distributed import HEADS, Head
from adareg.nn.distributed import cost, owners

ROOT = Path(__file__).parents[2]


def torchrun(ranks, *arguments, device="cpu"):
    """Run a script; return what it printed."""
    settings = {
        "ADAREG_TEST_DEVICE": device,
        "OMP_NUM_THREADS": "1",
        # Attempts must not share a store: gloo might read the addresses of the attempt before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    options = ["--standalone", f"--nproc-per-node={ranks}", *map(str, arguments)]
    job = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options],
        env={**os.environ, **settings, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return job.stdout, job.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checks")


@pytest.fixture(scope="module")
def outcomes(folder):
    """What every rank says of every check, by number of ranks."""
    return Worlds(folder)


class Worlds(dict):
    """Each number of ranks is started when its outcomes are asked for."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __missing__(self, ranks):
        self[ranks] = run_checks(ranks, self.folder)
        return self[ranks]


def run_checks(ranks, folder, *names, **options):
    _, errors = torchrun(ranks, Path(__file__).with_name("checks.py"), folder, *names, **options)
    files = [folder / f"{ranks}-{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), errors
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        pytest.param(ranks, name, marks=pytest.mark.exhaustive if ranks == 4 else ())
        for name, (sizes, *_) in CHECKS.items()
        for ranks in sizes
        if name not in LATER
    ],
)
def test_on_so_many_ranks(ranks, name, outcomes):
    said = [outcome.get(name, "not run: a check before it failed") for outcome in outcomes[ranks]]
    assert said == ["passed"] * ranks, "\n".join(said)


@pytest.mark.exhaustive
def test_checkpoints_of_four_ranks_are_loaded_by_two(outcomes, folder):
    assert all(outcome["checkpoints_are_saved"] == "passed" for outcome in outcomes[4])
    assert run_checks(2, folder, *LATER) == [dict.fromkeys(LATER, "passed")] * 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "steps"), [("fsdp-1", 1), ("fsdp-3", 3), ("ddp-3", 3)])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_a_checkpoint_of_four_ranks_is_loaded_by_one(name, steps, outcomes, folder):
    assert all(outcome["checkpoints_are_saved"] == "passed" for outcome in outcomes[4])
    losses, *rest = Training(make_model(), *CASES[4]).run().outcome()
    training = Training(make_model(), *CASES[4])
    load(training, folder / name)
    training.run(range(steps, STEPS))
    assert_alike(training.outcome(), (losses[steps:], *rest))


@pytest.mark.exhaustive
def test_a_job_that_breaks_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, capsys):
    script = ROOT / "examples/distributed.py"
    restarts = "--max-restarts=3"  # torch's own threads may abort a process that is done
    picture = tmp_path / "losses.png"
    options = ["--out", picture, "--steps", 12, "--save-every", 4, "--engine"]
    broken, errors = torchrun(
        2, restarts, script, *options, "fsdp", "--fail-at", 6, "--checkpoints", tmp_path / "broken"
    )
    assert "broken on purpose at step 6" in errors
    started, resumed, last = broken.splitlines()[:3]
    assert (started[-6:], resumed[-6:]) == ("step 0", "step 4")
    assert picture.read_bytes().startswith(b"\x89PNG")
    arguments = [script, *options, "ddp", "--checkpoints", tmp_path / "whole"]
    monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[:2] == ["ddp on 1 processes, from step 0", last]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_on_gpus(tmp_path):
    """On one GPU a world of one: NCCL, its streams, and CPU offload are real all the same."""
    ranks = max(n for n in (1, 2, 4) if n <= torch.cuda.device_count())
    for outcome in run_checks(ranks, tmp_path, device="cuda"):
        assert {*outcome.values()} == {"passed"}, outcome
        assert len(outcome) == sum(cuda for _, cuda, _ in CHECKS.values())


def test_costs_on_the_page_are_those_counted_and_measured():
    page = (ROOT / "docs/howto/distributed.md").read_text()
    for head in HEADS:
        assert head.row() in page
    records = json.loads((ROOT / "results/bench/sharded-cpu.json").read_text())
    assert [record["ranks"] for record in records] == [1, 2, 4]
    for record in records:
        head = Head(record["p"], record["d"], record["ranks"], record["rule"])
        assert record["counted"] == head.peak
        sizes = " | ".join(f"{record[key] / 1e6:,.0f}" for key in ("counted", "peak"))
        assert f"| {head.p:,} x {head.d:,} | {head.ranks} | {sizes} |" in page


def test_owners_are_balanced():
    """Never worse than 4/3 of the best there is (Graham 1969), found by trying all."""
    torch.manual_seed(0)
    for ranks in (2, 3):
        for _ in range(20):
            shapes = {str(i): torch.Size(torch.randint(2, 40, (2,)).tolist()) for i in range(6)}
            costs = {name: cost(shape) for name, shape in shapes.items()}
            chosen = owners(costs, ranks)
            every = (dict(zip(costs, who, strict=True)) for who in product(range(ranks), repeat=6))
            best = min(_longest(who, costs, ranks) for who in every)
            assert best <= _longest(chosen, costs, ranks) <= 4 / 3 * best


def _longest(chosen, costs, ranks):
    return max(sum(costs[n] for n in costs if chosen[n] == rank) for rank in range(ranks))


def test_what_an_update_costs():
    assert cost(torch.Size([7, 3])) == 7 * 3 * 3 + 20 * 27
    assert cost(torch.Size([2, 5, 3, 7])) == 10 * cost(torch.Size([7, 3]))
