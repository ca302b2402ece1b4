"""Thousands of fits in one process: does memory, a file handle, a hook or a thread stay behind?

    python benchmarks/endurance.py [FITS]

In turns: EvidenceRegressor, EvidenceClassifier, AdaRegClassifier, EvidenceReg and AdaReg attached
to an optimizer, on tiny tables. Prints what the process holds, ten times. It ends with an error if
in the second half of the run memory grew by more than 32 MiB, or anything else grew at all.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import adareg
from adareg.sklearn import AdaRegClassifier, EvidenceClassifier, EvidenceRegressor

FITS = 10_000
MOST_GROWTH = 32  # MiB

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.1 * RANDOM.normal(size=16)
LABELS = (Y > 0).astype(int)


def regress(seed: int) -> None:
    """Fit and predict a regression."""
    fitted = EvidenceRegressor(3, n_networks=1, max_iter=2, random_state=seed).fit(X, Y)
    fitted.predict(X, return_std=True)


def classify(seed: int) -> None:
    """Fit and predict classes."""
    fitted = EvidenceClassifier(3, n_networks=1, max_iter=2, random_state=seed).fit(X, LABELS)
    fitted.predict_proba(X)


def classify_with_a_prior(seed: int) -> None:
    """Fit scikit-learn's MLP with the paper's prior."""
    AdaRegClassifier(3, max_iter=2, random_state=seed).fit(X, LABELS).predict(X)


#: One model for all trainings, so that hooks left behind on it would show.
MODEL = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def train(attach: Callable[[torch.optim.Optimizer], adareg.nn.attach.Attachment]) -> None:
    """Train attached, and detach."""
    optimizer = torch.optim.Adam(MODEL.parameters())
    handle = attach(optimizer)
    x, y = torch.tensor(X).float(), torch.tensor(LABELS)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(MODEL(x), y).backward()
        optimizer.step()
    handle.remove()


def train_with_evidence(seed: int) -> None:
    """Train with EvidenceReg, from the batches that it sees."""
    reg = adareg.EvidenceReg(MODEL, len(X), "classification")
    train(lambda optimizer: reg.attach(optimizer, update_every=1))


def train_with_the_papers_prior(seed: int) -> None:
    """Train with AdaReg."""
    reg = adareg.AdaReg(MODEL, strength="auto", n_samples=len(X))
    train(lambda optimizer: reg.attach(optimizer, update_every=1))


WORK = [regress, classify, classify_with_a_prior, train_with_evidence, train_with_the_papers_prior]


def held() -> dict[str, float]:
    """Return what the process holds."""
    gc.collect()
    process = psutil.Process()
    hooks = sum(
        len(hooks)
        for module in MODEL.modules()
        for name, hooks in vars(module).items()
        if "hooks" in name and hooks is not None
    )
    return {
        "MiB": process.memory_info().rss / 2**20,
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "hooks": hooks,
        "threads": threading.active_count(),
        "native threads": process.num_threads(),
        "filters": len(warnings.filters),
        "tensors": sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()),
    }


def endure(fits: int, show: Callable[[str], None] = print) -> list[dict[str, float]]:
    """Fit so often; return what is held at ten times."""
    found = []
    for i in range(fits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            WORK[i % len(WORK)](i)
        if (i + 1) % max(1, fits // 10) == 0:
            found.append(held())
            cells = ", ".join(f"{value:.1f} {name}" for name, value in found[-1].items())
            show(f"{i + 1} fits, {time.process_time():.0f} s: {cells}")
    return found


def growth(found: list[dict[str, float]]) -> dict[str, float]:
    """Return by how much each number grew in the second half of a run."""
    middle = found[len(found) // 2]
    return {name: value - middle[name] for name, value in found[-1].items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    grown = growth(endure(int(sys.argv[1]) if len(sys.argv) > 1 else FITS))
    print("grown in the second half:", grown)
    memory = grown.pop("MiB")
    if memory > MOST_GROWTH or any(value > 0 for value in grown.values()):
        sys.exit("something stays behind")
