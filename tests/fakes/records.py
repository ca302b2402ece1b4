"""Records of networks that were never trained, for tests of what reads them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.run import records
from adareg.lab.run.records import Store
from adareg.lab.train.methods import METHODS
from adareg.lab.train.stacked import Replica

ENVIRONMENT = {
    "adareg": "0.1.0",
    "torch": "2.6.0",
    "python": "3.11.0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "device": "abacus",
    "time": "2026-01-02T03:04:05+00:00",
}
TASKS = {
    "sarcos": [f"joint {i}" for i in range(1, 8)],
    "digits-completion": [f"pixel {i}" for i in range(1, 33)],
    "diabetes": ["progression"],
}


def fill(root, *names, scale="smoke", seeds=2, methods=None, **changes):
    """Record networks of some experiments, or of all; ``changes`` are settings of every cell."""
    for name in names or EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        for config in experiment.cells(scale):
            config = replace(config, n=config.n or 3000, **changes)
            replicas = [Replica(m, s) for m in methods or experiment.methods for s in range(seeds)]
            made = [record(name, scale, config, replica) for replica in replicas]
            Store(Path(root)).write(name, config, made)


def record(experiment, scale, config, replica, **metrics):
    """A record with all its parts; its numbers follow from who it is."""
    who = f"{config.digest} {replica.method} {replica.seed}".encode()
    draw = np.random.default_rng(list(who))
    names = TASKS.get(config.data, [str(i) for i in range(10)])
    parts = {
        "metrics": {
            **_metrics(draw, config, names),
            **_contest(draw, config, replica.method),
            "diverged": False,
            **metrics,
        },
        "curves": _curves(draw, config),
        "spectra": {"fc.0": _spectrum(draw), "fc.1": _spectrum(draw)},
        "arrays": {"trials": []} if config.trials else _arrays(draw, config, len(names)),
    }
    circumstances = {
        "names": names,
        "data": {"source": "fabricated", "counts": {"train": 3000}},
        "seconds": 0.5,
        "stacked": 4,
        "peak_bytes": None,
        "environment": ENVIRONMENT,
    }
    return records.record(experiment, scale, config, replica, parts, circumstances)


def _metrics(draw, config, names):
    loss, quality = draw.uniform(0.1, 1), draw.uniform(0.5, 0.9)
    if config.data not in TASKS:
        return {"test_loss": loss, "train_loss": loss / 2, "test_accuracy": quality}
    each = (quality + 0.05 * draw.standard_normal(len(names))).tolist()
    values = {"test_explained_variance": quality, "test_explained_variances": each}
    return {"test_loss": loss, "train_loss": loss / 2, **values}


def _contest(draw, config, method):
    if not config.trials:
        return {}
    tuned = method in METHODS and METHODS[method].tunes is not None
    return {
        "test_nll": draw.uniform(0.1, 1),
        "test_calibration": draw.uniform(0.01, 0.2),
        "tuned": 0.5 if tuned else None,
        "noise": None,
        "alone_seconds": 1.0 if method == "none" else draw.uniform(1, 1.1),
        "plain_seconds": 1.0,
        "timed_on": "a machine",
        "trainings": 1 + tuned * config.trials,
        "samples": (1 + 0.8 * tuned * config.trials) * config.n,
    }


def _curves(draw, config):
    if not config.evaluate_every:
        return {"running_loss": [1.0]}
    falling = np.exp(-np.arange(config.blocks * config.epochs) / 10 + draw.uniform())
    return {"running_loss": [1.0], "train_loss": list(falling), "test_loss": list(falling + 0.1)}


def _spectrum(draw):
    return {"stable_rank": draw.uniform(3, 6), "spectral_norm": draw.uniform(0.5, 1.5)}


def _arrays(draw, config, p):
    weight = draw.standard_normal((p, 50))
    arrays = {"correlation": np.corrcoef(weight).tolist(), "singular_values": [1.0] * p}
    if config.covariances:
        arrays["row_covariance"] = (np.cov(weight) * 1e-3).tolist()
        arrays["col_covariance"] = np.cov(weight.T).tolist()
    return arrays
