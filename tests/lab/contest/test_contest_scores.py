"""Scores against their definitions, written out."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import brier_score_loss, log_loss

from adareg.lab.contest import scores


def test_regression():
    rng = np.random.default_rng(0)
    y, mean = rng.normal(size=50), rng.normal(size=50)
    deviation = rng.uniform(0.5, 2, size=50)
    found = scores.regression(y, mean, deviation)
    squares = [(a - b) ** 2 for a, b in zip(y, mean, strict=True)]
    assert found["rmse"] == pytest.approx(math.sqrt(sum(squares) / 50))
    density = [
        -0.5 * math.log(2 * math.pi * s**2) - q / (2 * s**2)
        for q, s in zip(squares, deviation, strict=True)
    ]
    assert found["log_likelihood"] == pytest.approx(sum(density) / 50)
    inside = [stats.norm.interval(0.95, m, s) for m, s in zip(mean, deviation, strict=True)]
    share = np.mean([low <= a <= high for a, (low, high) in zip(y, inside, strict=True)])
    assert found["coverage"] == pytest.approx(share)


def test_one_deviation_stands_for_all():
    y, mean = np.array([0.0, 1.0, 2.0]), np.zeros(3)
    assert scores.regression(y, mean, np.array([2.0])) == scores.regression(
        y, mean, np.full(3, 2.0)
    )


def test_predicting_the_training_mean_has_relative_error_one():
    y = np.array([[1.0, 10.0], [3.0, 50.0]])
    centre = np.array([2.5, 20.0])
    found = scores.multi_target(y, np.tile(centre, (2, 1)), centre)
    assert found == {"arrmse": 1.0, "rrmse": [1.0, 1.0]}
    half = scores.multi_target(y, (y + centre) / 2, centre)
    assert half["rrmse"] == pytest.approx([0.5, 0.5])


def test_classification_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    found = scores.classification(y, p)
    assert found["log_loss"] == pytest.approx(log_loss(y, p))
    each = [brier_score_loss(y == k, p[:, k]) for k in range(3)]
    assert found["brier"] == pytest.approx(sum(each))
    assert found["error"] == pytest.approx(100 * np.mean(p.argmax(1) != y))


def test_calibration_by_hand():
    """Two bins: confidence 0.6 with one of two right, 0.9 with none right."""
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]])
    found = scores.classification(np.array([0, 1, 0]), p)
    assert found["calibration"] == pytest.approx((abs(1 - 1.2) + abs(0 - 0.9)) / 3)


def test_certain_and_wrong_is_not_infinite():
    found = scores.classification(np.array([0]), np.array([[0.0, 1.0]]))
    assert found["log_loss"] == pytest.approx(-math.log(scores.LEAST))
    assert found["calibration"] == pytest.approx(1)
