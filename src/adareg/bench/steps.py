"""A training step with and without AdaReg, on three kinds of network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import adareg
from adareg.bench.timing import Action, compare, peak_memory

MODES = ("coupled", "proximal")


@dataclass(frozen=True)
class Workload:
    """A network, its batch, and which of its layers are regularized."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[torch.device], Tensor]
    classes: int
    layers: str
    devices: tuple[str, ...]


def mnist_cnn() -> nn.Module:
    """The paper's network for MNIST; its softmax layer is 10 x 50."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()


def resnet18() -> nn.Module:
    """A residual network of ResNet-18's size for 32 x 32 images: 11 million weights, 21 layers."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(_Residual(inputs, outputs, 2 if i in (2, 4, 6) else 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


WORKLOADS = [
    Workload(
        "MNIST CNN, batch 256, last layer",
        mnist_cnn,
        lambda device: torch.randn(256, 1, 28, 28, device=device),
        10,
        "last",
        ("cpu", "cuda"),
    ),
    Workload(
        "ResNet-18 size, batch 256, all layers",
        resnet18,
        lambda device: torch.randn(256, 3, 32, 32, device=device),
        10,
        "all",
        ("cuda",),
    ),
    Workload(
        "head 50257 x 768, 8192 tokens",
        lambda: nn.Linear(768, 50257, bias=False),
        lambda device: torch.randn(8192, 768, device=device),
        50257,
        "last",
        ("cuda",),
    ),
]

#: How each is trained: the default float32, with TF32, bfloat16 autocast, or a CUDA graph.
VARIANTS = {"cpu": ("float32",), "cuda": ("float32", "tf32", "bfloat16", "graph")}


#: Updates before the step that is timed, as in the midst of a training run: the precisions have
#: reached their bounds by then.
_UPDATES = 5


def measure(
    workload: Workload, variant: str, device: torch.device, seconds: float
) -> dict[str, Any]:
    """Time one step without AdaReg, and with it in each mode."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if variant == "tf32" else "highest")
    names = ("without", *MODES)
    try:
        actions = {name: prepare(workload.name, variant, name, str(device)) for name in names}
        times = compare(actions, device, seconds)
        del actions
        memory = {
            name: peak_memory(prepare, (workload.name, variant, name, str(device)), device)
            for name in names
            if variant != "graph"  # a graph holds its memory from the capture on
        }
    finally:
        torch.set_float32_matmul_precision(before)
    return {
        "workload": workload.name,
        "variant": variant,
        "seconds": {name: asdict(timing) for name, timing in times.items()},
        "peak_bytes": memory,
    }


def prepare(workload: str, variant: str, mode: str, device: str) -> Action:
    """One step as an action, of an optimizer that has made one before."""
    (chosen,) = (w for w in WORKLOADS if w.name == workload)
    step = _step(chosen, variant, None if mode == "without" else mode, torch.device(device))
    step()
    return step


def _step(workload: Workload, variant: str, mode: str | None, device: torch.device) -> Action:
    torch.manual_seed(0)
    model, x = workload.model().to(device), workload.inputs(device)
    y = torch.randint(workload.classes, (len(x),), device=device)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4, capturable=variant == "graph")
    if mode is not None:
        reg = adareg.AdaReg(model, workload.layers)
        for _ in range(_UPDATES):
            reg.update()
        reg.attach(optimizer, mode)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=variant == "bfloat16"):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return _captured(step) if variant == "graph" else step


def _captured(step: Callable[[], None]) -> Action:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(keep: object = step) -> None:  # the graph reads tensors that only the step holds
        graph.replay()

    return replay
