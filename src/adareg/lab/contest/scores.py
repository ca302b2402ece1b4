"""Numbers that say how good predictions are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from adareg.lab.run import calibration

Numbers = NDArray[np.float64]

#: Probabilities below this count as this: one certain and wrong answer costs 14 nats, not infinity.
LEAST = 1e-6
BINS = 15
LEVEL = 0.95


def probabilities(model: Any, x: Any, classes: int) -> Numbers:
    """What a classifier says of all classes, zero for those that it has never seen."""
    found = np.zeros((len(x), classes))
    found[:, model.classes_] = model.predict_proba(x)
    return found


def log_likelihood(model: Any, x: Any, y: NDArray[np.int64]) -> float:
    """The mean log probability of the labels: a scorer that does not mind unseen classes."""
    found = probabilities(model, x, int(max(y.max(), model.classes_.max())) + 1)
    return float(np.mean(np.log(np.clip(found[np.arange(len(y)), y], LEAST, 1))))


def in_cell(y: Any, predicted: Numbers, deviation: Any) -> dict[str, float]:
    """The measures of the small-data benchmark: points of quality, likelihood, calibration.

    Args:
        y: the test labels, (n,), or targets, (n, tasks).
        predicted: probabilities, (n, classes), or means, (n, tasks).
        deviation: of a regression's errors, the same for all; None in classification.
    """
    if deviation is None:
        labels = torch.from_numpy(y)
        logits = torch.from_numpy(np.log(np.clip(predicted, LEAST, 1)))
        return {
            "quality": float(100 * np.mean(predicted.argmax(axis=1) == y)),
            "test_nll": float(torch.nn.functional.cross_entropy(logits, labels)),
            "test_calibration": float(calibration.classification(logits, labels)),
        }
    y = y.astype(np.float64)
    errors = y - predicted.reshape(y.shape)
    variance = torch.tensor(float(deviation) ** 2)
    explained = 1 - np.sum(errors**2) / np.sum((y - y.mean(axis=0)) ** 2)
    return {
        "quality": float(100 * explained),
        "test_nll": float(calibration.gaussian_loss(torch.from_numpy(errors), variance)),
        "test_calibration": float(calibration.regression(torch.from_numpy(errors), variance)),
    }


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
