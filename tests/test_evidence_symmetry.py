"""What the Evidence estimators say does not depend on units, nor on the order of anything.

The first weights are drawn column by column, so that another order of columns, targets or classes
is another draw: results then agree as those of two random states do. With the draw in the same
order they agree to rounding; see tests/core/test_table_symmetry.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adareg.sklearn import EvidenceClassifier, EvidenceRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = settings(max_examples=10, deadline=None)
SEEDS = st.integers(0, 99)


def table(seed, n=20, d=3):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.exp(random.normal(size=d))
    Y = np.tanh(X) @ random.normal(size=(d, 2)) + 0.2 * random.normal(size=(n, 2))
    return X, Y, np.array(list("abc"))[np.c_[Y, -Y.sum(1)].argmax(1)]


def regressor(**more):
    return EvidenceRegressor(3, **{"n_networks": 1, "max_iter": 8, "random_state": 0} | more)


def classifier(**more):
    return EvidenceClassifier(3, **{"n_networks": 1, "max_iter": 8, "random_state": 0} | more)


@QUICK
@given(SEEDS, *[st.lists(st.integers(-300, 300), min_size=k, max_size=k) for k in (3, 2)])
def test_units_do_not_matter_at_all(seed, of_columns, of_targets):
    """Powers of two, so that nothing is rounded: the same to the last bit but for logarithms."""
    X, Y, classes = table(seed)
    a, b = (2.0 ** np.array(powers) for powers in (of_columns, of_targets))
    plain, scaled = regressor().fit(X, Y), regressor().fit(a * X, b * Y)
    for one, other in zip(
        plain.predict(X, return_std=True), scaled.predict(a * X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(b * one, other, rtol=1e-9)
    np.testing.assert_allclose(b**2 * plain.noise_, scaled.noise_, rtol=1e-9)
    jacobian = -len(X) * np.log(b).sum()
    assert scaled.log_evidence_ == pytest.approx(plain.log_evidence_ + jacobian, rel=1e-9)
    np.testing.assert_allclose(plain.relevance_, scaled.relevance_, rtol=1e-9)
    shares = [classifier().fit(Z, classes).predict_proba(Z) for Z in (X, a * X)]
    np.testing.assert_allclose(*shares, rtol=1e-9)


@QUICK
@given(
    SEEDS,
    *[st.lists(st.floats(-1e3, 1e3), min_size=k, max_size=k) for k in (3, 2)],
    st.permutations(range(20)),
)
def test_zero_points_and_the_order_of_rows_do_not_matter(seed, of_columns, of_targets, rows):
    X, Y, classes = table(seed)
    Z, rows = X + of_columns, list(rows)
    plain, other = regressor().fit(X, Y), regressor().fit(Z[rows], (Y + of_targets)[rows])
    mean, std = plain.predict(X, return_std=True)
    found, its_std = other.predict(Z, return_std=True)
    assert (abs(found - of_targets - mean) < 1e-3 * std).all()
    np.testing.assert_allclose(std, its_std, rtol=1e-3)
    shares = classifier().fit(X, classes).predict_proba(X)
    other = classifier().fit(Z[rows], classes[rows]).predict_proba(Z)
    np.testing.assert_allclose(shares, other, atol=2e-3)


@QUICK
@given(SEEDS, st.lists(st.integers(0, 3), min_size=20, max_size=20).filter(lambda w: sum(w) > 9))
def test_weights_are_numbers_of_samples(seed, weight):
    """None of no weight says anything, and one of weight three is three."""
    X, Y, classes = table(seed)
    Z = np.repeat(X, weight, 0)
    weighted, written_out = regressor().fit(X, Y, weight), regressor().fit(Z, Y.repeat(weight, 0))
    mean, std = written_out.predict(Z, return_std=True)
    found, its_std = weighted.predict(Z, return_std=True)
    assert (abs(found - mean) < 1e-3 * std).all()
    np.testing.assert_allclose(std, its_std, rtol=1e-3)
    if len(set(classes.repeat(weight))) > 1:
        shares = classifier().fit(X, classes, weight).predict_proba(Z)
        other = classifier().fit(Z, classes.repeat(weight)).predict_proba(Z)
        np.testing.assert_allclose(shares, other, atol=2e-3)
