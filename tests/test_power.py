"""Powers of skewed columns, held against SciPy's."""

import numpy as np
import pytest
from scipy import stats

from adareg.sklearn._power import Powers


def columns(n: int = 200) -> np.ndarray:
    """A skewed column, its mirror image, a normal one, one of two values, a constant."""
    random = np.random.default_rng(0)
    skewed = random.lognormal(size=n)
    X = np.stack([skewed, -skewed, random.normal(size=n), np.arange(n) % 2, np.zeros(n)], 1)
    return (X - X.mean(0)) / np.maximum(X.std(0), 1e-9)


def test_skewed_columns_have_the_power_that_scipy_finds() -> None:
    Z = columns()
    found = Powers.of(Z, np.ones(len(Z)), 5)
    assert found.columns.tolist() == [0, 1]
    expected = [stats.yeojohnson(z)[1] for z in Z.T[:2]]
    assert found.powers == pytest.approx(expected, abs=0.006)
    assert found.powers.sum() == pytest.approx(2)
    W = found.raised(Z)
    assert np.allclose(W.mean(0), 0)
    assert np.allclose(W.std(0), 1)
    assert np.abs(stats.skew(W)).max() < 0.2 * np.abs(stats.skew(Z[:, :2])).min()


def test_the_most_skewed_come_first() -> None:
    Z = columns()
    Z[:, 1] = np.sign(Z[:, 1]) * np.abs(Z[:, 1]) ** 0.5
    assert Powers.of(Z, np.ones(len(Z)), 1).columns.tolist() == [0]
    assert Powers.of(Z, np.ones(len(Z)), 0).columns.tolist() == []


def test_a_weight_of_two_is_a_sample_twice() -> None:
    Z, weight = columns(60), np.arange(60) % 3
    once = Powers.of(Z, weight.astype(float), 5)
    twice = Powers.of(np.repeat(Z, weight, 0), np.ones(weight.sum()), 5)
    assert once.powers.tolist() == twice.powers.tolist()
    assert np.allclose(once.raised(Z), twice.raised(Z))


def test_slopes_are_derivatives() -> None:
    Z, step = columns(), 1e-6
    found = Powers.of(Z, np.ones(len(Z)), 5)
    numeric = (found.raised(Z + step) - found.raised(Z - step)) / (2 * step)
    assert np.allclose(found.slopes(Z), numeric, rtol=1e-5)
