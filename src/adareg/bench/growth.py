"""How cost grows: update time against p and d, step overhead against the number of layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import adareg
from adareg.bench.timing import Action, compare

WIDTHS = (64, 256, 1024, 4096, 16384)
SQUARES = (16, 64, 256, 1024)
COUNTS = (1, 4, 16, 64)


def measure(device: torch.device, seconds: float) -> dict[str, Any]:
    """Series of (size, seconds): longer side, square, and number of layers, update and step."""
    series = {
        "update, 10 x d": {d: _update(10, d, device) for d in WIDTHS},
        "update, 64 x d": {d: _update(64, d, device) for d in WIDTHS},
        "update, n x n": {n: _update(n, n, device) for n in SQUARES},
        "penalty and gradient, 64 x d": {d: _gradient(64, d, device) for d in WIDTHS},
        "penalty and gradient, n x n": {n: _gradient(n, n, device) for n in SQUARES},
        "update, m layers 64 x 64": {m: _layers(m, device, "update") for m in COUNTS},
        "penalty and gradient, m layers 64 x 64": {m: _layers(m, device, "step") for m in COUNTS},
    }
    share = seconds / sum(len(points) for points in series.values())
    return {
        name: [
            {"size": size, "seconds": compare({"it": action}, device, share)["it"].median}
            for size, action in points.items()
        ]
        for name, points in series.items()
    }


def _update(p: int, d: int, device: torch.device) -> Action:
    W = torch.randn(p, d, device=device) / d**0.5
    return lambda: adareg.solve(W, "joint")


def _gradient(p: int, d: int, device: torch.device) -> Action:
    W = (torch.randn(p, d, device=device) / d**0.5).requires_grad_()
    prior = adareg.solve(W.detach(), "joint")
    return lambda: torch.autograd.grad(prior.penalty(W), W)


def _layers(count: int, device: torch.device, what: str) -> Action:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(count))).to(device)
    reg = adareg.AdaReg(model, "all", rule="joint")
    reg.update()
    if what == "update":
        return reg.update
    return lambda: reg.penalty().backward()
