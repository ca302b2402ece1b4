"""The engine on a Ray cluster: every job is a task; what is recorded is recorded by the driver.

Nodes need this package and nothing else: data sets travel through Ray's object store, and records
come back as values.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from adareg._optional import load, require
from adareg.lab.data import Dataset
from adareg.lab.run.plan import Job, Reporter, Sources, train
from adareg.lab.run.records import Record

#: How often a job is begun before it is given up: what kills its workers may be the job itself.
ATTEMPTS = 10

#: Of a GPU, for each job: one alone seldom keeps it busy, and a stack that does not fit is halved.
_GPU_SHARE = 0.5

#: Seconds between two words of a worker about its progress.
_PERIOD = 0.5

#: Seconds in which a cluster has to answer.
_PATIENCE = 10


@dataclass(frozen=True)
class Cluster:
    """An engine (``plan.Engine``) whose jobs run at once, on all nodes of a Ray cluster.

    Args:
        address: ``host:port`` of the head, ``"auto"`` for a cluster that has a node here, or
            ``"local"`` to start one on this machine; without one, ``$RAY_ADDRESS``, or local.
        device: ``"cpu"``, ``"cuda"``, or ``""`` for GPUs if the cluster has some.
        gpus_per_cell: the share of a GPU that a job reserves, in (0, 1]; half of one by default.
    """

    address: str | None = None
    device: str = ""
    gpus_per_cell: float | None = None

    def __post_init__(self) -> None:
        if self.device not in ("", "cpu", "cuda"):
            raise ValueError(f"--device {self.device!r}: expected cpu or cuda")
        if self.gpus_per_cell is not None and not 0 < self.gpus_per_cell <= 1:
            raise ValueError(f"--gpus-per-cell {self.gpus_per_cell}: expected a number in (0, 1]")
        if self.gpus_per_cell is not None and self.device == "cpu":
            raise ValueError("--gpus-per-cell is the share of a GPU, and --device is cpu")
        require("ray", "2.30", extra="ray")

    def __call__(
        self, jobs: Sequence[Job], sources: Sources, reporter: Reporter
    ) -> Generator[tuple[Job, list[Record]]]:
        """Train all jobs, those with most work first, and yield each when it is trained."""
        with _connected(self.address or os.environ.get("RAY_ADDRESS") or "local") as ray:
            device, gpus = self._place(ray.cluster_resources().get("GPU", 0))
            task = ray.remote(_train).options(
                num_returns="streaming", num_cpus=1, num_gpus=gpus, max_retries=0
            )
            names = {job.config.data for job in jobs}
            shared = {name: ray.put(sources[name]) for name in names}

            def submit(job: Job) -> Any:
                return task.remote(job, shared[job.config.data], device)

            first = sorted(jobs, key=lambda job: -job.work)
            yield from _Tasks(ray, submit, reporter).run(first)

    def _place(self, gpus: float) -> tuple[str, float]:
        """Return the device of jobs in a cluster of ``gpus``, and the share that each reserves."""
        wanted = self.device == "cuda" or self.gpus_per_cell is not None
        if wanted and not gpus:
            raise ValueError(
                "--device cuda: the Ray cluster has no GPU; add a node that has one, or use "
                "--device cpu"
            )
        if self.device == "cpu" or not gpus:
            return "cpu", 0.0
        return "cuda", self.gpus_per_cell or _GPU_SHARE


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected for a while; what still runs at the end is stopped."""
    ray = load("ray", extra="ray")
    if address not in ("auto", "local"):
        _reach(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # there is no other way to say it
    ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Knock at a cluster's door; Ray itself would do so for more than ten minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(
            f"--address {address!r}: expected HOST:PORT of the head, auto or local; from outside "
            f"of a cluster use: ray job submit"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"--address {address}: no Ray cluster answers ({error}); start one with: "
            f"ray start --head"
        ) from error


def _train(job: Job, source: Dataset, device: str) -> Iterator[int | list[Record] | None]:
    """Train on a worker: yield None at the start, then counts of samples, at last the records."""
    seen: deque[int] = deque()
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, job, source, torch.device(device), seen.append)
        yield None
        while wait([training], _PERIOD).not_done:
            yield sum(seen.popleft() for _ in range(len(seen)))
        yield sum(seen)
        yield training.result()


class _Tasks:
    """Jobs under way, each with the stream of what its worker says."""

    def __init__(self, ray: Any, submit: Callable[[Job], Any], reporter: Reporter) -> None:
        self._ray, self._submit, self._reporter = ray, submit, reporter
        self._streams: dict[Any, Job] = {}
        self._attempts: Counter[Job] = Counter()
        errors = ray.exceptions
        self._lost = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        )

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Record]]]:
        """Begin all; yield each when it is trained.

        A job whose worker is lost is begun anew. One that fails by itself would fail again: what
        else has ended by then is yielded, and the error raised.
        """
        for job in jobs:
            self._begin(job)
        failure: Exception | None = None
        while self._streams:
            ready, _ = self._ray.wait(list(self._streams), timeout=None if failure is None else 0)
            if not ready:
                break
            job = self._streams[ready[0]]
            try:
                made = self._hear(ready[0])
            except Exception as error:
                failure = failure or error
            else:
                if made is not None:
                    yield job, made
        if failure is not None:
            raise failure

    def _begin(self, job: Job) -> None:
        self._attempts[job] += 1
        self._streams[self._submit(job)] = job

    def _hear(self, stream: Any) -> list[Record] | None:
        """Take the next message of a worker: return records, pass on anything else."""
        job = self._streams.pop(stream)
        try:
            news = self._ray.get(next(stream))
        except self._lost as error:
            self._begin_anew(job, error)
            return None
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        if isinstance(news, list):
            return news
        self._streams[stream] = job
        if news is None:
            self._reporter.start(job)
        else:
            self._reporter.advance(job, news)
        return None

    def _begin_anew(self, job: Job, error: Exception) -> None:
        if self._attempts[job] == ATTEMPTS:
            raise OSError(
                f"{job.title}: {ATTEMPTS} workers were lost while they trained it, the last to "
                f"{type(error).__name__}; if it needs more memory than a node has, set a smaller "
                f"batch"
            ) from error
        self._reporter.lose(job, f"its worker was lost ({type(error).__name__})")
        self._begin(job)
