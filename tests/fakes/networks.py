"""Made-up records: a world in which a claim is true or false, seen through noise."""

import math
from dataclasses import replace

import numpy as np

from adareg.lab.experiments import EXPERIMENTS
from adareg.lab.run import records
from adareg.lab.train.stacked import Replica

#: What every network is like, unless a world says otherwise.
LEVELS = {
    "accuracy": 90.0,
    "explained": 0.5,
    "correlation": 0.1,
    "pair_17": 0.0,
    "pair_18": 0.0,
    "row_strength": 0.1,
    "col_strength": 0.1,
    "likeness": 0.95,
    "stable_rank": 5.0,
    "spectral_norm": 1.0,
    "train_loss": 0.01,
    "test_loss": 0.1,
    "peak": 0.9,
    "variance": 1e-3,
}
#: Noise of a network; those not here have 0.2 % of their level.
NOISE = {
    "accuracy": 0.02,
    "explained": 5e-4,
    "correlation": 5e-4,
    "pair_17": 2e-3,
    "pair_18": 2e-3,
    "row_strength": 5e-4,
    "col_strength": 5e-4,
    "likeness": 5e-3,
}
#: Experiments whose claims look at matrices; the others' records go without.
WITH_ARRAYS = ("mnist-correlations", "mnist-covariances")
ROWS = 3000  # of SARCOS, all of them

CIRCUMSTANCES = {
    "names": [f"task {i}" for i in range(7)],
    "data": {},
    "seconds": 1.0,
    "stacked": 1,
    "peak_bytes": None,
    "environment": {},
}

_rng = np.random.default_rng(0)
PATTERNS = [_rng.normal(size=(10, 10)) for _ in range(2)]
BESIDE = ~np.eye(10, dtype=bool)


def networks(experiment, levels, *, seeds=6, noise=1.0, scale="paper", methods=None, **changes):
    """Records of an experiment; ``levels(method, config)`` says how its networks differ.

    The noise of a method's seeds adds up to nothing, so that luck does not make verdicts.
    """
    rng = np.random.default_rng(7)
    known = EXPERIMENTS[experiment]
    made = []
    for config in known.cells(scale):
        config = replace(config, n=config.n or ROWS, **changes)
        shared = {name: rng.normal(size=seeds) for name in LEVELS}
        for method in methods or known.methods:
            own = {name: rng.normal(size=seeds) for name in LEVELS}
            for seed in range(seeds):
                level = LEVELS | levels(method, config)
                drawn = {
                    name: float(
                        _noisy(
                            name,
                            value,
                            3 * shared[name][seed],
                            noise * (own[name][seed] - own[name].mean()),
                        )
                    )
                    for name, value in level.items()
                }
                replica = Replica(method, seed)
                parts = measured(experiment, config, drawn)
                made.append(
                    records.record(experiment, scale, config, replica, parts, CIRCUMSTANCES)
                )
    return made


def _noisy(name, level, shared, own):
    """What all methods of a seed share does not grow with the noise: pairing takes it out."""
    if name in NOISE:
        return level + NOISE[name] * (shared + own)
    return level * math.exp(0.002 * ((name != "variance") * shared + own))


def measured(experiment, config, level):
    """What a record holds of such a network."""
    return {
        "metrics": {
            "test_accuracy": level["accuracy"] / 100,
            "test_loss": level["test_loss"],
            "train_loss": level["train_loss"],
            "test_explained_variance": level["explained"],
            "test_explained_variances": [level["explained"]] * 7,
            "diverged": False,
        },
        "curves": {"train_loss": curve(config, level)} if config.evaluate_every else {},
        "spectra": {
            "fc.0": {"stable_rank": 1.0, "spectral_norm": 1.0},
            "fc.1": {k: level[k] for k in ("stable_rank", "spectral_norm")},
        },
        "arrays": arrays(level) if experiment in WITH_ARRAYS else few_arrays(config),
    }


def few_arrays(config):
    """Those that no claim looks at."""
    return {"trials": []} if config.trials else {"correlation": [[1.0]]}


def curve(config, level):
    """A loss that changes for three epochs after the first block."""
    losses = [level["train_loss"]] * (config.blocks * config.epochs)
    for epoch in range(config.epochs, config.epochs + 3):
        losses[epoch] *= level["peak"]
    return losses


def arrays(level):
    """Correlations and covariances."""
    likeness = min(max(level["likeness"], -1.0), 1.0)
    mixed = likeness * PATTERNS[0] + math.sqrt(1 - likeness**2) * PATTERNS[1]
    weights = pattern(PATTERNS[0], level["correlation"])
    if level["pair_17"] or level["pair_18"]:
        weights[1, 7], weights[1, 8] = level["pair_17"], level["pair_18"]
    return {
        "correlation": weights.tolist(),
        "row_covariance": (level["variance"] * pattern(mixed, level["row_strength"])).tolist(),
        "col_covariance": (pattern(PATTERNS[1], level["col_strength"])).tolist(),
    }


def pattern(entries, strength):
    """Ones on the diagonal; beside it these entries, of that mean absolute value."""
    matrix = entries * strength / np.abs(entries[BESIDE]).mean()
    return np.where(BESIDE, matrix, 1.0)
