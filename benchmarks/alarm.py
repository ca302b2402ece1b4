"""How often the alarm of AdaReg rings: in networks that the penalty destroys, and in all others.

python benchmarks/alarm.py OUT [--data D] [--jobs N]      OUT.json

Two kinds of trainings. *Trials*: three small networks on 200 digits, over layers, strengths and
rules. One is destroyed if in the end it knows less than 90 % of its own training samples, where
without the penalty it knows all of them; it is harmed if its test accuracy is more than 3 points
below.
*Experiments*: the settings of the committed records, the smallest cell of each experiment, trained
for four blocks by the plain loop. ``tools/tables.py`` makes the table of docs/howto/choose.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import adareg
from adareg.lab import data
from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.train import plain_loop
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica

N, BATCH, STEPS, UPDATE_EVERY = 200, 64, 1000, 50
NETWORKS = ("fully connected", "convolutions", "batch norm")
STRENGTHS = (1e-5, 1e-4, 1e-3, 1 / (2 * N), 1e-2, 1e-1)
RULES = ("alternating", "joint", "official")
SEEDS = 2
BLOCKS = 4


def network(kind: str) -> nn.Sequential:
    """A small network for 8 x 8 digits."""
    if kind == "fully connected":
        return nn.Sequential(
            nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
        )
    if kind == "batch norm":
        first = [nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU()]
        return nn.Sequential(
            *first, nn.Linear(100, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 10)
        )
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()]
    head = [nn.Linear(512, 50), nn.ReLU(), nn.Linear(50, 10)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, *head)


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test samples, drawn for the seed."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(x, dtype=torch.float32)[order] / 16 - 0.3, torch.tensor(y)[order]
    return x[:N], y[:N], x[-800:], y[-800:]


def trial(kind: str, layers: str, strength: float, rule: str, seed: int) -> dict[str, Any]:
    """Train one network; a strength of 0 is none."""
    x, y, x_test, y_test = digits(seed)
    torch.manual_seed(seed)
    model = network(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    said: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", adareg.PenaltyWarning)
        if strength:
            adareg.AdaReg(model, layers, strength, rule=rule).attach(
                optimizer, update_every=UPDATE_EVERY
            )
        for step in range(1, STEPS + 1):
            batch = torch.randint(N, (BATCH,))
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if caught and not said:
                said.append(step)
    model.eval()
    with torch.no_grad():
        known = (model(x).argmax(1) == y).double().mean().item()
        accuracy = (model(x_test).argmax(1) == y_test).double().mean().item()
    settings = {"network": kind, "layers": layers, "strength": strength, "rule": rule, "seed": seed}
    return {
        **settings,
        "known": round(known, 4),
        "accuracy": round(accuracy, 4),
        "said": said[0] if said else None,
    }


def trials() -> list[tuple[Any, ...]]:
    """Arguments of all trials, those without a penalty first."""
    grid = product(NETWORKS, ("last", "all"), STRENGTHS, RULES, range(SEEDS))
    return [*product(NETWORKS, ("last",), (0.0,), ("none",), range(SEEDS)), *grid]


def experiments() -> list[tuple[str, str, Config]]:
    """Every method with the paper's prior, in the smallest cell of its experiment."""
    found = []
    for experiment in EXPERIMENTS.values():
        cell = min(experiment.cells("paper"), key=lambda config: config.n)
        methods = [method for method in experiment.methods if "adareg" in method]
        found.extend((experiment.name, method, cell) for method in methods)
    return found


def experiment(name: str, method: str, config: Config, directory: Path | None) -> dict[str, Any]:
    """Train a method in a cell and return what the alarm said."""
    source = data.load(config.data, directory)
    config = replace(config, blocks=BLOCKS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", adareg.PenaltyWarning)
        x, y = (torch.as_tensor(values) for values in (source.x_train, source.y_train))
        plain_loop.train(Replica(method, 0), config, x, y)
    return {"experiment": name, "method": method, "messages": [str(one.message) for one in caught]}


def _run(task: tuple[Any, ...]) -> dict[str, Any]:
    torch.set_num_threads(1)
    function, arguments = task
    return function(*arguments)


def main() -> None:
    """Train all and write what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    tasks = [(trial, one) for one in trials()]
    with get_context("spawn").Pool(args.jobs) as pool:
        tried = pool.map(_run, tasks, chunksize=1)
        ready, missing = [], []
        for name, method, config in experiments():
            try:
                data.load(config.data, args.data)
                ready.append((experiment, (name, method, config, args.data)))
            except OSError:
                missing.append(name)
        ran = pool.map(_run, ready, chunksize=1)
    result = {"trials": tried, "experiments": ran, "missing": sorted(set(missing))}
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    for one in ran:
        print(one["experiment"], one["method"], one["messages"])
    print(
        f"{len(tried)} trials; {len(ran)} experiments; without data: {', '.join(missing) or 'none'}"
    )


if __name__ == "__main__":
    main()
