"""One training with EvidenceReg attached, beside plain Adam."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import adareg
from adareg.bench.steps import mnist_cnn, resnet18
from adareg.bench.timing import Action, compare

#: Repetitions, however long they take.
_AT_LEAST = 3

#: Steps of a training, samples that it has, and samples of a batch.
STEPS, SAMPLES, BATCH = 600, 600, 64


@dataclass(frozen=True)
class Workload:
    """A network, the shape of its inputs, and where it is measured."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    devices: tuple[str, ...]


def mlp() -> nn.Module:
    """Return a network for digits, whose steps take half a millisecond."""
    return nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
    )


WORKLOADS = [
    Workload("MLP 64-100-50-10", mlp, (64,), ("cpu", "cuda")),
    Workload("MNIST CNN", mnist_cnn, (1, 28, 28), ("cpu", "cuda")),
    Workload("ResNet-18 size", resnet18, (3, 32, 32), ("cuda",)),
]


def measure(workload: Workload, device: torch.device, seconds: float) -> dict[str, Any]:
    """Time a training without a regularizer, and with EvidenceReg as it comes; on one CPU thread.

    On a CPU that is the time that the process has had, whatever else the machine does.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        actions = {
            "plain Adam": prepare(workload, False, device),
            "with EvidenceReg": prepare(workload, True, device),
        }
        times = compare(actions, device, seconds, _AT_LEAST, clock)
    finally:
        torch.set_num_threads(before)
    return {
        "workload": f"{workload.name}, {STEPS} steps of {BATCH}",
        "seconds": {name: asdict(timing) for name, timing in times.items()},
    }


def prepare(workload: Workload, regularized: bool, device: torch.device) -> Action:
    """Return one training as an action, each time from the same start."""
    x, y = _samples(workload.shape, device)

    def train() -> None:
        torch.manual_seed(0)
        model = workload.model().to(device)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        if regularized:
            adareg.EvidenceReg(model, len(x), "classification").attach(optimizer)
        for _ in range(STEPS):
            batch = torch.randint(len(x), (BATCH,), device=device)
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    return train


def _samples(shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return noisy copies of ten random patterns: there is something to learn."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (SAMPLES,), generator=draw)
    patterns = torch.randn(10, *shape, generator=draw)
    inputs = patterns[labels] + 2 * torch.randn(SAMPLES, *shape, generator=draw)
    return inputs.to(device), labels.to(device)
