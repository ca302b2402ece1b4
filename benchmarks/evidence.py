"""The evidence rule against weight decay on small data, and how far each of its constants matters.

python benchmarks/evidence.py compare OUT        OUT.json: none, weight decay, evidence
python benchmarks/evidence.py sensitivity OUT    OUT.json and OUT.svg: one constant at a time
python benchmarks/evidence.py deep OUT           OUT.json: deep plain networks, which can collapse
python benchmarks/evidence.py depths OUT         OUT.json: which depth has the highest evidence
python benchmarks/evidence.py classes OUT        OUT.json: classifiers without their own constants
python benchmarks/evidence.py dropout OUT        OUT.json: dropout of fixed and of learned rates

``tools/tables.py`` makes the tables of docs/evidence.md from all but the second.

Small multilayer perceptrons on data that comes with scikit-learn, Adam, paired seeds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from concrete_dropout import concrete, penalty
from sklearn import datasets
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import adareg
from adareg.core.evidence.constants import DEFAULTS, Constants
from adareg.core.evidence.likelihood import Categorical, Gaussian, Likelihood

CELLS = [
    ("digits", 40),
    ("digits", 200),
    ("digits, 20 % wrong labels", 200),
    ("wine", 30),
    ("cancer", 50),
    ("diabetes", 60),
    ("friedman", 100),
    ("completion", 60),
]
#: Not looked at while the constants were chosen, as the cells above were.
HELD_OUT = [
    ("iris", 30),
    ("blobs of 6 classes", 60),
    ("blobs of 6 classes", 300),
    ("friedman2", 60),
    ("friedman3", 100),
    ("ten tasks", 80),
]
#: Where dropout is compared; its constants were chosen on the digits.
NOISY = [
    ("digits", 20),
    ("digits", 200),
    ("blobs of 6 classes", 300),
]
#: Layers and samples of plain networks as torch initialises them.
DEEP = [(4, 100), (8, 30), (8, 100), (12, 30), (12, 100), (20, 300)]
#: Hidden layers of networks to choose from.
DEPTHS: list[tuple[int, ...]] = [(), (32,), (32, 32), (32, 32, 32)]
STEPS, DEEP_STEPS, LONG_STEPS, BATCH, RATE = 600, 1000, 4000, 64, 1e-3
WEIGHT_DECAYS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
CONSTANTS: dict[str, tuple[str, list[Any]]] = {
    "ρ of a classifier": ("shape", [0.0, 0.5, 0.9, 0.97]),
    "count": ("count", [0.1, 1 / 3, 1.0]),
    "least dispersion": ("dispersion", [0.1, 0.3, 1.0]),
    "start": ("start", [0.001, 0.01, 0.1]),
    "first step": ("first", [20, 50, 150]),
    "growth of steps": ("growth", [1.15, 1.3, 1.7]),
    "samples": ("samples", [50, 100, 200, 300]),
    "draws": ("draws", [1, 3, 10]),
    "learned": ("learned", [0.9, 0.99, 0.999]),
    "part of the way": ("step", [0.25, 0.5, 1.0]),
}


GENERATED: dict[str, Callable[[], Any]] = {
    "friedman": lambda: datasets.make_friedman1(2000, n_features=15, noise=1.0, random_state=0),
    "friedman2": lambda: datasets.make_friedman2(2000, noise=100.0, random_state=0),
    "friedman3": lambda: datasets.make_friedman3(2000, noise=0.1, random_state=0),
    "ten tasks": lambda: datasets.make_regression(
        2000, 30, n_informative=10, n_targets=10, noise=80.0, random_state=0
    ),
    "blobs of 6 classes": lambda: datasets.make_classification(
        2500, 20, n_informative=10, n_classes=6, flip_y=0.05, random_state=0
    ),
}


def load(name: str) -> tuple[Tensor, Tensor]:
    """Standardised inputs; labels, or standardised targets."""
    if name in GENERATED:
        x, y = GENERATED[name]()
    else:
        source = {"iris": "iris", "wine": "wine", "cancer": "breast_cancer", "diabetes": "diabetes"}
        x, y = getattr(datasets, f"load_{source.get(name, 'digits')}")(return_X_y=True)
    inputs, targets = torch.tensor(x).float(), torch.tensor(y)
    if name.startswith(("digits", "completion")):
        inputs = inputs / 8 - 1
    if name == "completion":
        inputs, targets = inputs[:, :32], inputs[:, 32:]
    else:
        inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-6)
    if name.startswith("digits"):
        inputs = torch.tensor(x).float() / 8 - 1
    if targets.is_floating_point():
        targets = targets.float().reshape(len(targets), -1)
        targets = (targets - targets.mean()) / targets.std()
    return inputs, targets


def train(
    name: str,
    n: int,
    seed: int,
    weight_decay: float | None = 0.0,
    hidden: tuple[int, ...] = (64, 32),
    steps: int = STEPS,
    constants: Constants = DEFAULTS,
    likelihood: str | Likelihood | None = None,
    dropout: float | str | None = None,
) -> dict[str, float]:
    """Test score of one network; ``weight_decay=None`` is the evidence rule.

    ``dropout`` is a rate at the inputs of all layers, "concrete", or what EvidenceReg takes.
    """
    x, y = load(name)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    torch.manual_seed(seed)
    classes = not y.is_floating_point()
    outputs = int(y.max()) + 1 if classes else y.shape[1]
    labels = y[:n].clone()
    if "wrong" in name:
        labels[: n // 5] = torch.randint(outputs, (n // 5,))
    sizes = [x.shape[1], *hidden]
    inner = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*inner, nn.Linear(sizes[-1], outputs))
    if isinstance(dropout, float):
        model = nn.Sequential(
            *(
                nn.Sequential(nn.Dropout(dropout), part) if i % 2 == 0 else part
                for i, part in enumerate(model)
            )
        )
    model = concrete(model) if dropout == "concrete" else model
    loss = cross_entropy if classes else mse_loss
    rates = [parameter for name, parameter in model.named_parameters() if "logit" in name]
    weights = [parameter for name, parameter in model.named_parameters() if "logit" not in name]
    groups = [{"params": weights}, *([{"params": rates, "lr": 10 * RATE}] if rates else [])]
    optimizer = torch.optim.Adam(groups, RATE, weight_decay=weight_decay or 0.0)
    started, reg = time.process_time(), None
    if weight_decay is None:
        likelihood = likelihood or ("classification" if classes else "regression")
        learned = None if dropout != "learned" else dropout
        reg = adareg.EvidenceReg(model, n, likelihood, constants=constants, dropout=learned)
        reg.attach(optimizer, data=(x[:n], labels))
    optimise(model, optimizer, loss, x[:n], labels, steps)
    seconds = time.process_time() - started
    model.eval()
    with torch.no_grad():
        answer = model(x[n : n + 2000])
    truth = y[n : n + 2000]
    if classes:
        score = float((answer.argmax(1) == truth).float().mean())
    else:
        score = 1 - float((answer - truth).square().sum() / (truth - truth.mean(0)).square().sum())
    found = {"score": 100 * score, "loss": float(loss(answer, truth)), "seconds": seconds}
    if reg is not None:
        reg.update(x[:n], labels)
        found["evidence"] = reg.metrics()["log_evidence"] / n
    return found


def optimise(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    steps: int,
) -> None:
    """An ordinary training loop."""
    for _ in range(steps):
        batch = torch.randperm(len(x))[:BATCH]
        optimizer.zero_grad()
        (loss(model(x[batch]), y[batch]) + penalty(model, len(x))).backward()
        optimizer.step()


def compare(out: Path, seeds: int) -> None:
    """The change against no regularizer, and against the best weight decay on test data."""
    record: dict[str, Any] = {"seeds": seeds, "steps": STEPS, "rows": []}
    for name, n in (*CELLS, *HELD_OUT):
        runs: dict[float | None, list[dict[str, float]]] = {
            w: [] for w in (0.0, *WEIGHT_DECAYS, None)
        }
        for seed in range(seeds):  # methods take turns, so that noise on the machine hits all
            for w, each in runs.items():
                each.append(train(name, n, seed, w))
        score = {w: torch.tensor([r["score"] for r in each]) for w, each in runs.items()}
        loss = {w: sum(r["loss"] for r in each) / seeds for w, each in runs.items()}
        best = max(WEIGHT_DECAYS, key=lambda w: float(score[w].mean()))
        row = {
            "data": name,
            "n": n,
            "held_out": (name, n) in HELD_OUT,
            "none": [float(score[0.0].mean()), loss[0.0]],
            "best": best,
            "weight_decay": [*_change(score[best] - score[0.0]), loss[best]],
            "evidence": [*_change(score[None] - score[0.0]), loss[None]],
            "over": _change(score[None] - score[best]),
            "cost": sum(r["seconds"] for r in runs[None]) / sum(r["seconds"] for r in runs[0.0]),
        }
        record["rows"].append(row)
        print(json.dumps(row), flush=True)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def _change(differences: Tensor) -> list[float]:
    """Mean and standard error."""
    return [float(differences.mean()), float(differences.std() / len(differences) ** 0.5)]


class WishartShape(Categorical):
    """Classes whose shapes are learned as far as in regression."""

    shape_strength = Gaussian.shape_strength


def classes(out: Path, seeds: int) -> None:
    """Classifiers with a full count, a dispersion of one, and regression's share of the shape."""
    one: dict[str, Any] = {"dispersion": 1.0, "dispersions": (1.0, 1.0)}
    methods: dict[str, dict[str, Any]] = {
        "none": {"weight_decay": 0.0},
        "as it is": {},
        "count 1": {"constants": replace(DEFAULTS, count=1.0)},
        "dispersion 1": {"constants": replace(DEFAULTS, **one)},
        "regression's shape": {"likelihood": WishartShape()},
        "count and dispersion 1": {"constants": replace(DEFAULTS, count=1.0, **one)},
        "all three": {
            "constants": replace(DEFAULTS, count=1.0, **one),
            "likelihood": WishartShape(),
        },
    }
    methods = {m: {"weight_decay": None, **how} for m, how in methods.items()}
    every = (*CELLS, *HELD_OUT)
    cells = [cell for cell in every if not load(cell[0])[1].is_floating_point()]
    write_runs(out, seeds, cells, methods)


def dropout(out: Path, seeds: int) -> None:
    """Dropout of fixed, concrete and learned rates."""
    methods: dict[str, dict[str, Any]] = {
        "none": {},
        "weight decay 0.01": {"weight_decay": 0.01},
        "evidence": {"weight_decay": None},
        "dropout 0.25": {"dropout": 0.25},
        "dropout 0.5": {"dropout": 0.5},
        "concrete dropout": {"dropout": "concrete"},
        "learned dropout": {"weight_decay": None, "dropout": "learned"},
    }
    write_runs(out, seeds, NOISY, methods)


def write_runs(
    out: Path, seeds: int, cells: list[tuple[str, int]], methods: dict[str, dict[str, Any]]
) -> None:
    """Train with each method in each cell, and write score and loss of every run."""
    rows = []
    for name, n in cells:
        runs = {
            method: [train(name, n, seed, **how) for seed in range(seeds)]
            for method, how in methods.items()
        }
        found = {m: [[r["score"], r["loss"]] for r in each] for m, each in runs.items()}
        rows.append({"data": name, "n": n, "runs": found})
        print(json.dumps(rows[-1]), flush=True)
        record = {"seeds": seeds, "steps": STEPS, "rows": rows}
        out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def train_deep(layers: int, n: int, seed: int, weight_decay: float | None) -> list[float]:
    """Accuracy on training and test samples; ``weight_decay=None`` is the evidence rule."""
    made = datasets.make_classification(
        n + 1000, 20, n_informative=10, n_classes=6, random_state=seed
    )
    x, y = torch.tensor(made[0]).float(), torch.tensor(made[1])
    x = (x - x.mean(0)) / x.std(0)
    torch.manual_seed(seed)
    hidden = [part for _ in range(layers - 2) for part in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), *hidden, nn.Linear(32, 6))
    optimizer = torch.optim.Adam(model.parameters(), RATE, weight_decay=weight_decay or 0.0)
    if weight_decay is None:
        reg = adareg.EvidenceReg(model, n, "classification")
        reg.attach(optimizer, data=(x[:n], y[:n]))
    optimise(model, optimizer, cross_entropy, x[:n], y[:n], DEEP_STEPS)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float()
    return [100 * float(right[:n].mean()), 100 * float(right[n:].mean())]


def deep(out: Path, seeds: int) -> None:
    """Deep networks without a regularizer, with weak weight decay, with the evidence rule."""
    methods = {"none": 0.0, "weight decay 1e-4": 1e-4, "weight decay 1e-3": 1e-3, "evidence": None}
    rows = []
    for layers, n in DEEP:
        runs = {
            method: [train_deep(layers, n, seed, w) for seed in range(seeds)]
            for method, w in methods.items()
        }
        rows.append({"layers": layers, "n": n, "runs": runs})
        print(json.dumps(rows[-1]), flush=True)
    record = {"seeds": seeds, "steps": DEEP_STEPS, "rows": rows}
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def depths(out: Path, seeds: int) -> None:
    """Log evidence and test loss of networks of several depths, trained to the end."""
    rows = []
    for name, n in (*CELLS, *HELD_OUT):
        runs = [
            [train(name, n, seed, None, hidden, LONG_STEPS) for seed in range(seeds)]
            for hidden in DEPTHS
        ]
        row: dict[str, Any] = {"data": name, "n": n}
        for key in ("evidence", "loss"):
            row[key] = [[run[key] for run in each] for each in runs]
        rows.append(row)
        print(json.dumps(row), flush=True)
    record = {"seeds": seeds, "steps": LONG_STEPS, "rows": rows}
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def changed(constant: str, value: float) -> Constants:
    """The constants, with another value of one of them."""
    changes: dict[str, Any] = {constant: value}
    if constant == "dispersion":
        changes["dispersions"] = (value, DEFAULTS.dispersions[1])
    return replace(DEFAULTS, **changes)


def sensitivity(out: Path, seeds: int) -> None:
    """Score and loss as one constant after another is changed."""
    cells = [CELLS[0], CELLS[2], CELLS[5], CELLS[6]]
    record: dict[str, Any] = {"seeds": seeds, "steps": STEPS, "constants": {}}
    for label, (constant, values) in CONSTANTS.items():
        rows = record["constants"][label] = {
            "used": getattr(DEFAULTS, constant),
            "values": values,
            "score": {},
            "loss": {},
        }
        for name, n in cells:
            key = f"{name}, n = {n}"
            rows["score"][key], rows["loss"][key] = [], []
            for value in values:
                other = changed(constant, value)
                runs = [train(name, n, seed, None, constants=other) for seed in range(seeds)]
                rows["score"][key].append(sum(r["score"] for r in runs) / seeds)
                rows["loss"][key].append(sum(r["loss"] for r in runs) / seeds)
            print(label, key, [round(x, 2) for x in rows["score"][key]], flush=True)
    record["none"] = {
        f"{name}, n = {n}": sum(train(name, n, seed)["score"] for seed in range(seeds)) / seeds
        for name, n in cells
    }
    out.with_suffix(".json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    draw(out)


def draw(out: Path) -> None:
    """One panel for each constant: the change of score against no regularizer."""
    import matplotlib.pyplot as plt

    record = json.loads(out.with_suffix(".json").read_text())
    plt.rcParams["svg.hashsalt"] = "adareg"
    figure, axes = plt.subplots(3, 4, figsize=(11, 7), sharey=True, layout="constrained")
    for ax, (label, rows) in zip(axes.flat, record["constants"].items(), strict=False):
        for key, scores in rows["score"].items():
            ax.plot(rows["values"], [s - record["none"][key] for s in scores], "o-", label=key)
        ax.axvline(rows["used"], color="0.7", zorder=0)
        ax.set_title(label, fontsize=10)
        ax.set_xscale("linear" if 0 in rows["values"] else "log")
        labels = [f"{v:.3g}" for v in rows["values"]]
        ax.set_xticks(rows["values"], labels, rotation=60, fontsize=8)
        ax.minorticks_off()
    for ax in axes.flat[len(record["constants"]) :]:
        ax.axis("off")
    axes.flat[-1].legend(*axes.flat[0].get_legend_handles_labels(), loc="center", frameon=False)
    figure.supylabel("points above no regularizer", fontsize=10)
    figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    usual = {compare: 6, sensitivity: 4, deep: 3, depths: 3, classes: 3, dropout: 4}  # seeds
    studies = {study.__name__: (study, count) for study, count in usual.items()}
    if len(sys.argv) < 3 or sys.argv[1] not in {*studies, "draw"}:
        sys.exit(__doc__)
    what, out, *seeds = sys.argv[1:]
    if what == "draw":
        draw(Path(out))
    else:
        study, count = studies[what]
        study(Path(out), int(seeds[0]) if seeds else count)
