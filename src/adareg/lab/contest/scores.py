"""Numbers that say how good predictions are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Numbers = NDArray[np.float64]

#: Probabilities below this count as this: one certain and wrong answer costs 14 nats, not infinity.
LEAST = 1e-6
BINS = 15
LEVEL = 0.95


def regression(y: Numbers, mean: Numbers, deviation: Numbers) -> dict[str, float]:
    """Error and Gaussian log likelihood, in units of the target; share inside 95 % intervals.

    Args:
        y: the test targets, (n,).
        mean: predictions, (n,).
        deviation: their standard deviations, noise included, (n,) or ().
    """
    density = stats.norm.logpdf(y, mean, deviation)
    inside = np.abs(y - mean) <= stats.norm.ppf((1 + LEVEL) / 2) * deviation
    return {
        "rmse": float(math.sqrt(np.mean((y - mean) ** 2))),
        "log_likelihood": float(np.mean(density)),
        "coverage": float(np.mean(inside)),
    }


def multi_target(y: Numbers, mean: Numbers, centre: Numbers) -> dict[str, Any]:
    """The error of each target relative to predicting its training mean, and their average.

    Args:
        y: the test targets, (n, targets).
        mean: predictions, (n, targets).
        centre: means of the training targets, (targets,).
    """
    relative = np.sqrt(np.sum((y - mean) ** 2, axis=0) / np.sum((y - centre) ** 2, axis=0))
    return {"arrmse": float(np.mean(relative)), "rrmse": relative.tolist()}


def classification(y: NDArray[np.int64], probabilities: Numbers) -> dict[str, float]:
    """Errors in percent, log loss in nats, Brier score, expected calibration error.

    Args:
        y: the test labels, (n,).
        probabilities: of each class, (n, classes).
    """
    rows = np.arange(len(y))
    answer, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wanted = np.zeros_like(probabilities)
    wanted[rows, y] = 1
    true = np.clip(probabilities[rows, y], LEAST, 1)
    return {
        "error": float(100 * np.mean(answer != y)),
        "log_loss": float(-np.mean(np.log(true))),
        "brier": float(np.mean(np.sum((probabilities - wanted) ** 2, axis=1))),
        "calibration": _calibration(answer == y, confidence),
    }


def _calibration(right: NDArray[np.bool_], confidence: Numbers) -> float:
    """The mean distance between confidence and accuracy, over bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gap = np.bincount(bins, right - confidence, minlength=BINS)
    return float(np.abs(gap).sum() / len(right))
