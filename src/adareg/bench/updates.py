"""One closed-form update: the dense reference against the rules, over layer sizes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import adareg
from adareg.bench.reference import dense_update
from adareg.bench.timing import Action, compare, peak_memory

BOUNDS = (1e-3, 1e3)

SHAPES = [
    (10, 50),
    (7, 100),
    (10, 500),
    (500, 500),
    (1000, 2048),
    (1000, 4096),
    (4096, 4096),
    (50257, 768),
    (128256, 4096),
]

#: The dense reference decomposes matrices of the longer side; beyond these it takes minutes.
_DENSE_UP_TO = {"cpu": 2048, "cuda": 4096}
#: Ours decomposes a matrix of the shorter side; beyond this a CPU takes half a minute.
_SHORTER_UP_TO = {"cpu": 2048, "cuda": 4096}


def shapes_for(device: torch.device, largest: int | None) -> list[tuple[int, int]]:
    """The sizes that make sense on a device, up to ``largest`` weights if given."""
    fits = _SHORTER_UP_TO[device.type]
    return [(p, d) for p, d in SHAPES if min(p, d) <= fits and p * d <= (largest or p * d)]


def measure(p: int, d: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Times, peak memory and accuracy of one update of a p x d float32 weight."""
    names = ["joint", "alternating"]
    if max(p, d) <= _DENSE_UP_TO[device.type]:
        names.append("dense")
    actions = {name: prepare(name, p, d, str(device)) for name in names}
    times = compare(actions, device, seconds)
    del actions
    return {
        "p": p,
        "d": d,
        "seconds": {name: asdict(timing) for name, timing in times.items()},
        "extra_memory": {
            name: peak_memory(prepare, (name, p, d, str(device)), device) / (4 * p * d)
            for name in names
        },
        "error": _errors(_weight(p, d, str(device))) if p * d <= 1000 * 4096 else None,
    }


def prepare(name: str, p: int, d: int, device: str) -> Action:
    """One update as an action: of a weight that has been updated before."""
    W = _weight(p, d, device)
    if name == "joint":
        return lambda: adareg.solve(W, "joint", BOUNDS)
    if name == "alternating":
        old = adareg.solve(W, "alternating", BOUNDS)
        return lambda: adareg.solve(W, "alternating", BOUNDS, old)
    _, col = dense_update(W, BOUNDS)
    return lambda: dense_update(W, BOUNDS, col)


def _weight(p: int, d: int, device: str) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(p, d, device=device, generator=generator) / d**0.5


def _errors(W: Tensor) -> dict[str, float]:
    """Relative error of the joint rule's precisions and penalty against dense float64."""
    errors = {}
    for dtype in (torch.float32, torch.bfloat16):
        cast = W.to(dtype)
        fast = adareg.solve(cast, "joint", BOUNDS)
        row, col, penalty = _dense_joint(W.double())
        name = str(dtype).removeprefix("torch.")
        errors[f"{name} precisions"] = max(
            _relative(fast.row.dense(), row), _relative(fast.col.dense(), col)
        )
        errors[f"{name} penalty"] = _relative(fast.penalty(cast), penalty)
    return errors


def _dense_joint(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The joint rule from a full float64 SVD: the reference for accuracy."""
    (p, d), (u, v) = W.shape, BOUNDS
    U, s, Vt = torch.linalg.svd(W)
    k, s2 = min(p, d), s.square()
    if p == d:
        short = long = (k / s2).clamp(u**2, v**2).sqrt()
    else:
        long = (k / (s2 * v)).clamp(u, v)
        short = torch.where(k / (s2 * v) < u, (max(p, d) / (s2 * u)).clamp(u, v), v)
    a, b = (short, long) if p <= d else (long, short)
    full_a, full_b = torch.full_like(U[0], v), torch.full_like(Vt[0], v)
    full_a[:k], full_b[:k] = a, b
    return (U * full_a) @ U.T, (Vt.T * full_b) @ Vt, (s2 * a * b).sum()


def _relative(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected))
