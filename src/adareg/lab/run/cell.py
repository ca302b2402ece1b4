"""One cell of an experiment: train its networks, measure them."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from adareg._threads import SMALL_STEP, one_thread
from adareg.core.metrics import correlation, spectral_norm, stable_rank
from adareg.lab.data import Dataset
from adareg.lab.run import costs, tuning
from adareg.lab.run.scores import scores
from adareg.lab.train.config import Config
from adareg.lab.train.methods import METHODS
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Data, Progress, Replica, Trainer, products, stacks

#: How torch says it where it has no class for it: on a CPU, and for the workspace of a product.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass
class Outcome:
    """One trained network in plain numbers and lists."""

    replica: Replica
    metrics: dict[str, Any]
    curves: dict[str, list[float]]
    spectra: dict[str, dict[str, float]]
    arrays: dict[str, list[Any]] = field(default_factory=dict)


def check(config: Config, source: Dataset, replicas: Sequence[Replica]) -> None:
    """Refuse a cell that cannot be trained, before anything is."""
    if config.n > source.n_train:
        raise ValueError(f"n={config.n}: {source.name} has {source.n_train} training samples")
    if config.augment and source.x_train.ndim != 4:
        raise ValueError(f"augment=True: {source.name} has no images to crop and flip")
    for name in dict.fromkeys(replica.method for replica in replicas):
        METHODS[name].check(config, ARCHITECTURES[config.data])
    if config.choose == "accuracy" and source.task == "regression":
        raise ValueError(f"choose='accuracy': {source.name} has no classes; use choose='loss'")
    if config.trials and not config.held_out:
        raise ValueError(f"n={config.n}: trials need five samples or more, to hold out a fifth")


def run(
    config: Config,
    replicas: Sequence[Replica],
    source: Dataset,
    device: torch.device,
    progress: Progress = lambda samples: None,
) -> list[Outcome]:
    """Train all replicas of a cell, in as few stacks as there is memory for.

    In a cell with trials, what a method tunes is chosen first, for each seed, and the records
    say what that was and what it cost.
    """
    check(config, source, replicas)
    outcomes: list[Outcome] = []
    with one_thread(_is_small(config, replicas)), products(config.precision) as dtype:
        data = Data(source, config, device, dtype)
        choices = _tune(config, replicas, data, progress) if config.trials else {}
        train = partial(_train, config, data, choices)
        for group in stacks([tuning.chosen(replica, choices) for replica in replicas]):
            outcomes += _train_or_split(config, group, train, progress)
    if config.trials:
        _add_costs(config, outcomes, source, device)
    return outcomes


def _is_small(config: Config, replicas: Sequence[Replica]) -> bool:
    """Return if one thread is enough for a step of the largest stack."""
    trained = [*replicas, *(tuning.trials(config, replicas) if config.trials else [])]
    samples = max(map(len, stacks(trained))) * min(config.batch, config.n)
    return samples * ARCHITECTURES[config.data].multiply_adds < SMALL_STEP


def _tune(
    config: Config, replicas: Sequence[Replica], data: Data, progress: Progress
) -> tuning.Choices:
    trials = tuning.trials(config, replicas)
    validate = partial(_validate, config, data)
    found = [
        pair
        for group in stacks(trials)
        for pair in _train_or_split(config, group, validate, progress)
    ]
    return tuning.choose(found)


def _validate(
    config: Config, data: Data, replicas: Sequence[Replica], progress: Progress
) -> list[tuple[Replica, tuple[float, float]]]:
    """Train on four fifths of the samples; what each replica is judged by on the others.

    The share of errors if that is to count, else 0, and the loss.
    """
    architecture = ARCHITECTURES[config.data]
    trainer = Trainer(replicas, architecture, config, data, progress, hold_out=True)
    deque(trainer.run(), maxlen=0)
    loss = trainer.validation_loss()
    errors = trainer.validation_errors() if config.choose == "accuracy" else torch.zeros_like(loss)
    return list(zip(replicas, zip(errors.tolist(), loss.tolist(), strict=True), strict=True))


def _add_costs(
    config: Config, outcomes: Sequence[Outcome], source: Dataset, device: torch.device
) -> None:
    methods = dict.fromkeys(outcome.replica.method for outcome in outcomes)
    found = costs.measure(config, methods, source, device)
    for outcome in outcomes:
        outcome.metrics.update(found[outcome.replica.method])


T = TypeVar("T")


def _train_or_split(
    config: Config,
    replicas: Sequence[Replica],
    train: Callable[[Sequence[Replica], Progress], list[T]],
    progress: Progress,
) -> list[T]:
    """Out of memory: two stacks of half the size, one after the other.

    Raises:
        MemoryError: a single network is too large.
    """
    told = 0

    def counted(samples: int) -> None:
        nonlocal told
        told += samples
        progress(samples)

    try:
        return train(replicas, counted)
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        if len(replicas) == 1:
            raise MemoryError(
                f"{config.slug}: not even one network fits into memory; set a smaller batch"
            ) from error
    progress(-told)
    gc.collect()  # the first optimizer of a process is part of a cycle, and holds its stack
    torch.cuda.empty_cache()
    half = len(replicas) // 2
    return [
        outcome
        for part in (replicas[:half], replicas[half:])
        for outcome in _train_or_split(config, part, train, progress)
    ]


def _out_of_memory(error: BaseException | None) -> bool:
    """Tell if memory was lacking, or led to the error: a CUDA graph then cannot be ended."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if any(words in str(error) for words in _OUT_OF_MEMORY):
            return True
        error = error.__context__
    return False


def _train(
    config: Config,
    data: Data,
    choices: tuning.Choices,
    replicas: Sequence[Replica],
    progress: Progress,
) -> list[Outcome]:
    """All blocks of epochs; cells with trials may have thousands, and keep each block's last."""
    trainer = Trainer(replicas, ARCHITECTURES[config.data], config, data, progress)
    losses: list[Tensor] = []
    curves: list[dict[str, Tensor]] = []
    for epoch, loss in trainer.run():
        if not config.trials or (epoch + 1) % trainer.config.epochs == 0:
            losses.append(loss)
        if config.evaluate_every and (epoch + 1) % config.evaluate_every == 0:
            curves.append(_losses(trainer))
    outcomes = _outcomes(trainer, losses, curves)
    if config.trials:
        for outcome, found in zip(outcomes, scores(trainer, choices), strict=True):
            outcome.metrics.update(found)
            outcome.arrays = {"trials": tuning.tried(outcome.replica, choices)}
    return outcomes


def _losses(trainer: Trainer) -> dict[str, Tensor]:
    """Loss on the training samples and on the test samples, and the test accuracy, (R,) each."""
    data = trainer.data
    test = _evaluate(trainer, data.x_test, data.y_test)
    train = _evaluate(trainer, data.x, data.y, trainer.subset)
    kept = {f"test_{key}": value for key, value in test.items() if value.ndim == 1}
    return {"train_loss": train["loss"], **kept}


def _evaluate(
    trainer: Trainer, x: Tensor, y: Tensor, samples: Tensor | None = None
) -> dict[str, Tensor]:
    """Mean loss and accuracy, or loss and explained variance, of all tasks and of each.

    On all of ``x``, or on each replica's own ``samples`` of it, (R, n) indices.
    """
    loss, hits = torch.zeros(2, len(trainer.replicas), dtype=torch.float64, device=x.device)
    squares = torch.zeros((), dtype=torch.float64, device=x.device)
    y = y.expand(len(trainer.replicas), *y.shape) if samples is None else y[samples]
    for part, output in trainer.predict(x, samples):
        target = y[:, part]
        loss += trainer.data.loss(output, target).sum(1, dtype=torch.float64)
        if trainer.data.task == "classification":
            hits += (output.argmax(-1) == target).sum(1)
        else:
            squares = squares + (output - target).square().sum(1, dtype=torch.float64)
    count = y.shape[1]
    if trainer.data.task == "classification":
        return {"loss": loss / count, "accuracy": hits / count}
    variance, errors = y.double().var(-2, correction=0), squares / count
    return {
        "loss": loss / count,
        "explained_variance": 1 - errors.sum(-1) / variance.sum(-1),
        "explained_variances": 1 - errors / variance,  # nan or -inf for a task that is constant
    }


def _outcomes(
    trainer: Trainer, losses: Sequence[Tensor], evaluated: Sequence[dict[str, Tensor]]
) -> list[Outcome]:
    data, stack, config = trainer.data, trainer.stack, trainer.config
    test = _evaluate(trainer, data.x_test, data.y_test)
    train = _evaluate(trainer, data.x, data.y, trainer.subset)
    finals = {
        **{f"test_{key}": value.tolist() for key, value in test.items()},
        **{f"train_{key}": value.tolist() for key, value in train.items()},
    }
    running = torch.stack(list(losses), 1).tolist()
    names = list(evaluated[0]) if evaluated else []
    curves = {name: torch.stack([e[name] for e in evaluated], 1).tolist() for name in names}
    spectra = _spectra(trainer)
    with torch.no_grad():
        related = correlation(stack.matrix(stack.last).double()).tolist()
        singular = _singular_values(stack.matrix(stack.last).double()).tolist()
    outcomes = []
    for i, replica in enumerate(trainer.replicas):
        metrics = {name: values[i] for name, values in finals.items()}
        metrics["diverged"] = not all(
            bool(p[i].isfinite().all()) for p in stack.parameters.values()
        )
        arrays: dict[str, list[Any]] = {"correlation": related[i], "singular_values": singular[i]}
        if config.covariances:
            arrays.update(_covariances(trainer, i))
        outcome = Outcome(
            Replica(replica.method, replica.seed),
            metrics,
            {"running_loss": running[i], **{name: values[i] for name, values in curves.items()}},
            {layer: {key: v[i] for key, v in values.items()} for layer, values in spectra.items()},
            arrays,
        )
        outcomes.append(outcome)
    return outcomes


def _singular_values(W: Tensor) -> Tensor:  # (R, p, d) -> (R, min(p, d))
    """NaN for a replica that diverged; its matrix would be refused, and the whole stack with it."""
    finite = W.isfinite().all(-1).all(-1)[:, None, None]
    values = torch.linalg.svdvals(torch.where(finite, W, 0))
    return torch.where(finite[..., 0], values, math.nan)


@torch.no_grad()
def _spectra(trainer: Trainer) -> dict[str, dict[str, list[float]]]:
    """Stable rank and spectral norm of every layer."""
    stack = trainer.stack
    return {
        layer: {
            "stable_rank": stable_rank(stack.matrix(layer).double()).tolist(),
            "spectral_norm": spectral_norm(stack.matrix(layer).double()).tolist(),
        }
        for layer in stack.layers("all")
    }


def _covariances(trainer: Trainer, i: int) -> dict[str, list[Any]]:
    prior = trainer.prior(i).get(trainer.stack.last)
    if prior is None:
        return {}
    return {
        "row_covariance": prior.row.covariance().tolist(),
        "col_covariance": prior.col.covariance().tolist(),
    }
