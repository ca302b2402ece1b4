"""Times and peak memory of alternatives, taken in turns in one run."""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

Action = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds: the median over repetitions and the quartiles around it."""

    median: float
    low: float
    high: float
    repetitions: int


#: Repetitions, however long they take: the median of three still follows a machine's moods.
_AT_LEAST = 7


def compare(
    actions: Mapping[str, Action],
    device: torch.device,
    seconds: float,
    at_least: int = _AT_LEAST,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every action for about ``seconds`` in all, one repetition of each in turn.

    Machines are shared and drift: what is taken in turns drifts alike, so ratios hold. A
    repetition runs its action as often as fills 10 ms.

    Args:
        actions: what is timed, by name.
        device: where it works.
        seconds: time for all, if ``at_least`` so many repetitions fit into it.
        at_least: repetitions of each.
        clock: tells the time, or the time that this process has had.
    """
    loops = {}
    for name, action in actions.items():
        _timed(action, 1, device, clock)  # compile, allocate, warm caches
        loops[name] = max(1, int(0.01 / max(1e-9, _timed(action, 1, device, clock))))
    cost = sum(_timed(action, loops[name], device, clock) for name, action in actions.items())
    repetitions = min(50, max(at_least, int(seconds / cost)))
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repetitions):
        for name, action in actions.items():
            samples[name].append(_timed(action, loops[name], device, clock) / loops[name])
    return {name: _summary(times) for name, times in samples.items()}


def _timed(action: Action, loops: int, device: torch.device, clock: Callable[[], float]) -> float:
    _synchronize(device)
    start = clock()
    for _ in range(loops):
        action()
    _synchronize(device)
    return clock() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))


def peak_memory(
    prepare: Callable[..., Action], arguments: tuple[object, ...], device: torch.device
) -> int:
    """Bytes that ``prepare(*arguments)()`` needs on top of what preparing it left in place.

    A GPU's allocator knows its peak. On a CPU the kernel knows the process's, so a new
    process runs it; ``prepare`` must then be a function that can be imported by name.
    """
    if device.type == "cuda":
        return _peak_on_gpu(prepare(*arguments), device)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak_of_process, prepare, arguments).result()


def _peak_on_gpu(action: Action, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_of_process(prepare: Callable[..., Action], arguments: tuple[object, ...]) -> int:
    """Of the second run: the first one also loads libraries, and leaves freed memory behind."""
    action = prepare(*arguments)
    action()
    _return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def _return_freed_memory() -> None:
    """Give the kernel back what the C library keeps for later; it would not be counted again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))
