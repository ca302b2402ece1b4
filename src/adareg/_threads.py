"""One thread for small work, unless the user has chosen a number.

A second thread gains little in a network of some thousand weights, and on a busy machine threads
that wait for each other make it crawl.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

#: Steps of a training of up to so many multiply-adds, forwards, are small work.
SMALL_STEP = 2**27

#: Who sets one of these has chosen.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class OneThread:
    """One thread of torch and BLAS while something small is done, then the number from before.

    A number is the user's if the environment sets it, or if torch has another one than it starts
    with; it is left alone. Several at once, in threads of one process, are counted: limits of BLAS
    end with the last, torch's with each.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, 1
        self._limits: Any = None
        self._here = threading.local()  # .inside: this thread has one already

    @contextmanager
    def __call__(self, small: bool = True) -> Iterator[None]:
        """Have one thread within, if what is done is small."""
        nested = getattr(self._here, "inside", False)
        before = self._enter() if small and not nested else None
        if before is None:
            yield
            return
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = False
            self._leave(before)

    def _enter(self) -> int | None:
        """Return the number to go back to; None if it is not to be changed."""
        with self._lock:
            now = torch.get_num_threads()
            if self._users and now == 1:  # a new thread starts with what others have set
                now = self._before
            elif is_chosen(now):
                return None
            if not self._users:
                self._before, self._limits = now, threadpool_limits(1, user_api="blas")
            self._users += 1
            torch.set_num_threads(1)
            return now

    def _leave(self, before: int) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limits.restore_original_limits()
            torch.set_num_threads(before)


#: The one of this process.
one_thread = OneThread()


def is_chosen(threads: int) -> bool:
    """Return if a number of torch's threads is the user's own choice."""
    return any(os.environ.get(name) for name in _VARIABLES) or threads not in _usual()


def _usual() -> set[int]:
    """Return the numbers that torch may start with: of processors, or of cores with two each."""
    counts = {os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        counts.add(len(os.sched_getaffinity(0)))
    return {*counts, *(max(1, count // 2) for count in counts)}
