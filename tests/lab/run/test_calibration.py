"""Calibration errors and likelihoods against hand computations and scipy."""

import math

import pytest
import torch
from scipy import stats

from adareg.lab.run import calibration


def logits(*probabilities):
    """Of two classes, the first with these probabilities."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([p, 1 - p], -1).log()


def test_expected_calibration_error_by_hand():
    """0.9 (right), 0.92 (wrong): one bin of 15, |0.5 − 0.91|; 0.6 (right): |1 − 0.6|."""
    outputs, labels = logits(0.9, 0.92, 0.6), torch.tensor([0, 1, 0])
    expected = 2 / 3 * abs(0.5 - 0.91) + 1 / 3 * abs(1 - 0.6)
    assert calibration.classification(outputs, labels).item() == pytest.approx(expected, rel=1e-12)


def test_every_replica_has_an_error_of_its_own():
    outputs = torch.stack([logits(0.75, 0.75, 0.75, 0.75), logits(0.25, 0.25, 0.25, 0.25)])
    labels = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1]])
    found = calibration.classification(outputs, labels)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.25], dtype=torch.float64))


def test_a_certain_prediction_falls_into_the_last_bin():
    outputs = torch.tensor([[100.0, 0.0], [100.0, 0.0]])
    assert calibration.classification(outputs, torch.tensor([0, 1])).item() == pytest.approx(0.5)


def test_coverage_of_a_regression_is_counted():
    errors = torch.randn(2, 200, 3, generator=torch.Generator().manual_seed(0))
    variance = torch.tensor([0.5, 2.0])
    found = calibration.regression(errors, variance)
    for i in range(2):
        gaps = []
        for level in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
            half = stats.norm.ppf((1 + level) / 2) * math.sqrt(variance[i])
            gaps.append(abs((errors[i].abs() <= half).double().mean().item() - level))
        assert found[i].item() == pytest.approx(sum(gaps) / 9, abs=1e-6)


def test_the_gaussian_loss_is_scipys():
    errors = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = calibration.gaussian_loss(errors, torch.tensor(0.3))
    expected = -stats.norm.logpdf(errors.numpy(), scale=math.sqrt(0.3)).mean()
    assert found.item() == pytest.approx(expected, rel=1e-7)
