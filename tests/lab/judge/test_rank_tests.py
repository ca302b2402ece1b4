"""Ranks and what can be said of them, against published values and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from adareg.lab.judge import rank_tests

#: Demšar (2006), Table 5(a): critical values of the two-tailed Nemenyi test at 0.05.
PUBLISHED = {
    2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164,
}  # fmt: skip


@pytest.mark.parametrize(("methods", "q"), PUBLISHED.items())
def test_the_critical_difference_has_the_published_values(methods, q):
    found = rank_tests.critical_difference(methods, 14)
    assert found == pytest.approx(q * math.sqrt(methods * (methods + 1) / (6 * 14)), abs=1.1e-3)


def test_demsars_example():
    """Four methods, 14 data sets: ranks 3.143, 2.000, 2.893, 1.964 differ by up to 1.25 at 5 %."""
    average = {"C4.5": 3.143, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}
    difference = rank_tests.critical_difference(4, 14)
    assert difference == pytest.approx(1.25, abs=0.01)
    assert rank_tests.groups(average, difference) == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]
    overlapping = [("C4.5+m+cf", "C4.5+m", "C4.5+cf"), ("C4.5+cf", "C4.5")]
    assert rank_tests.groups(average, 1.12) == overlapping
    assert rank_tests.groups(average, 0.01) == []


def test_ranks_share_ties_and_put_nan_last():
    found = rank_tests.ranks([[0.9, 0.8, 0.9], [0.1, math.nan, 0.3]])
    np.testing.assert_array_equal(found, [[1.5, 3, 1.5], [2, 3, 1]])


def test_friedman_is_scipys():
    scores = np.random.default_rng(0).normal(size=(9, 4)) + np.array([0, 0, 0.5, 1])
    expected = stats.friedmanchisquare(*scores.T).pvalue
    assert rank_tests.friedman(scores) == pytest.approx(expected, rel=1e-12)


def test_holms_correction_by_hand():
    """Raw probabilities times 3, 2, 1 from the smallest on, never falling."""
    base = [0.0] * 6
    scores = {
        "evidence": base,
        "worse": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],  # p = 2/64
        "mixed": [1.0, -2.0, 3.0, -4.0, 5.0, -6.0],
        "same": base,
    }
    found = rank_tests.wilcoxon_holm(scores, "evidence")
    assert found["worse"] == pytest.approx(3 * 2 / 64)
    middle = stats.wilcoxon([-1.0, 2.0, -3.0, 4.0, -5.0, 6.0]).pvalue
    assert found["mixed"] == pytest.approx(min(1, 2 * middle))
    assert found["same"] == 1
    assert list(found) == ["worse", "mixed", "same"]
