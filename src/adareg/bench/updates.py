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
#: So large a weight is left to machines that have the memory and the speed for it.
_WEIGHTS_UP_TO = {"cpu": 50257 * 768, "cuda": 128256 * 4096}


def shapes_for(device: torch.device, largest: int | None) -> list[tuple[int, int]]:
    """The sizes that make sense on a device, up to ``largest`` weights if given."""
    limit = min(_WEIGHTS_UP_TO[device.type], largest or _WEIGHTS_UP_TO[device.type])
    return [(p, d) for p, d in SHAPES if p * d <= limit]


def measure(p: int, d: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Times, peak memory and accuracy of one update of a p x d float32 weight."""
    W = torch.randn(p, d, device=device, generator=torch.Generator(device).manual_seed(0)) / d**0.5
    old = adareg.solve(W, "alternating", BOUNDS)
    actions: dict[str, Action] = {
        "joint": lambda: adareg.solve(W, "joint", BOUNDS),
        "alternating": lambda: adareg.solve(W, "alternating", BOUNDS, old),
    }
    if _dense_is_possible(p, d, device):
        col = old.col.dense().to(W.dtype)
        actions["dense"] = lambda: dense_update(W, BOUNDS, col)
    times = compare(actions, device, seconds)
    return {
        "p": p,
        "d": d,
        "seconds": {name: asdict(timing) for name, timing in times.items()},
        "extra_memory": _memory(p, d, list(actions), device),
        "error": _errors(W) if p * d <= 1000 * 4096 else None,
    }


def _dense_is_possible(p: int, d: int, device: torch.device) -> bool:
    return max(p, d) <= _DENSE_UP_TO[device.type]


def _memory(p: int, d: int, names: list[str], device: torch.device) -> dict[str, float]:
    """Peak memory on top of the weight, in multiples of the weight."""
    setup = f"W = torch.randn({p}, {d}, device=device)"
    calls = {
        "dense": f"dense_update(W, {BOUNDS})",
        "joint": f"adareg.solve(W, 'joint', {BOUNDS})",
        "alternating": f"adareg.solve(W, 'alternating', {BOUNDS})",
    }
    return {name: peak_memory(setup, calls[name], device) / (4 * p * d) for name in names}


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
