"""Several processes for real: gloo on CPUs, started by torchrun as users start them."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from checks import CASES, CHECKS, load
from jobs import STEPS, Training, assert_alike, make_model

from adareg.nn.distributed import cost, owners

ROOT = Path(__file__).parents[2]


def torchrun(ranks, *arguments):
    """Run a script; return what it printed."""
    # Attempts must not share a store: gloo might read the addresses of the attempt before.
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    options = ["--standalone", f"--nproc-per-node={ranks}", *map(str, arguments)]
    job = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options],
        env={**os.environ, **apart, "PYTHONPATH": path},
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
    """What every rank says of every check, by number of ranks; four save what two load."""
    found = {}
    for ranks in (4, 2, 1):
        _, errors = torchrun(ranks, Path(__file__).with_name("checks.py"), folder)
        files = [folder / f"{ranks}-{rank}.json" for rank in range(ranks)]
        assert all(file.exists() for file in files), errors
        found[ranks] = [json.loads(file.read_text()) for file in files]
    return found


@pytest.mark.parametrize(
    ("ranks", "name"), [(r, n) for n, (sizes, _) in CHECKS.items() for r in sizes]
)
def test_on_so_many_ranks(ranks, name, outcomes):
    said = [outcome.get(name, "not run: a check before it failed") for outcome in outcomes[ranks]]
    assert said == ["passed"] * ranks, "\n".join(said)


@pytest.mark.parametrize(("name", "steps"), [("fsdp-1", 1), ("fsdp-3", 3), ("ddp-3", 3)])
@pytest.mark.usefixtures("outcomes")
def test_a_checkpoint_of_four_ranks_is_loaded_by_one(name, steps, folder):
    losses, *rest = Training(make_model(), *CASES[4]).run().outcome()
    training = Training(make_model(), *CASES[4])
    load(training, folder / name, no_dist=True)
    training.run(range(steps, STEPS))
    assert_alike(training.outcome(), (losses[steps:], *rest))


def test_a_job_that_breaks_goes_on_from_its_last_checkpoint(tmp_path):
    script = ROOT / "examples/distributed.py"
    restarts = "--max-restarts=3"  # torch's own threads may abort a process that is done
    options = ["--steps", 12, "--save-every", 4, "--engine"]
    broken, errors = torchrun(
        2, restarts, script, *options, "fsdp", "--fail-at", 6, "--checkpoints", tmp_path / "broken"
    )
    assert "broken on purpose at step 6" in errors
    started, resumed, last = broken.splitlines()[:3]
    assert (started[-6:], resumed[-6:]) == ("step 0", "step 4")
    whole, errors = torchrun(1, restarts, script, *options, "ddp", "--checkpoints", tmp_path / "a")
    assert whole.splitlines()[:2] == ["ddp on 1 processes, from step 0", last], errors


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
