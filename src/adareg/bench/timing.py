"""Times and peak memory of alternatives, taken in turns in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Action = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds: the median over repetitions and the quartiles around it."""

    median: float
    low: float
    high: float
    repetitions: int


def compare(
    actions: Mapping[str, Action], device: torch.device, seconds: float
) -> dict[str, Timing]:
    """Time every action for about ``seconds`` in all, one repetition of each in turn.

    Machines are shared and drift: what is taken in turns drifts alike, so ratios hold. A
    repetition runs its action as often as fills 10 ms.
    """
    loops = {}
    for name, action in actions.items():
        _timed(action, 1, device)  # compile, allocate, warm caches
        loops[name] = max(1, int(0.01 / _timed(action, 1, device)))
    cost = sum(_timed(action, loops[name], device) for name, action in actions.items())
    repetitions = min(50, max(3, int(seconds / cost)))
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repetitions):
        for name, action in actions.items():
            samples[name].append(_timed(action, loops[name], device) / loops[name])
    return {name: _summary(times) for name, times in samples.items()}


def _timed(action: Action, loops: int, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(loops):
        action()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))


def peak_memory(setup: str, action: str, device: torch.device) -> int:
    """Bytes that running ``action`` needs on top of what ``setup`` holds, in a fresh process.

    Both are Python source; on a GPU the allocator's peak is read, on a CPU the process's.
    """
    program = _MEMORY.format(setup=setup, action=action, device=device)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


_MEMORY = """
import torch, adareg
from adareg.bench.reference import dense_update
device = torch.device("{device}")
def reset():
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")
    return read("VmRSS")
def peak():
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else read("VmHWM")
def read(key):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(key))
adareg.solve(torch.randn(20, 30, device=device))  # load libraries
dense_update(torch.randn(20, 30, device=device), (1e-3, 1e3))
{setup}
before = reset()
{action}
print(peak() - before)
"""
