"""The variance of learned dropout, against a search for the same fixed point."""

import itertools

import numpy as np
import pytest

from adareg.core.evidence import dropout
from adareg.core.evidence.constants import Constants


def curvature_under_noise(W, x, c):
    """Mean curvature of the cross-entropy along each mask, over all 2^d masks, in the mean."""
    rate, d, total = c / (1 + c), len(x), 0.0
    for kept in itertools.product([0, 1], repeat=d):
        m = np.array(kept) / (1 - rate)
        chance = np.prod(np.where(kept, 1 - rate, rate))
        p = np.exp(W @ (x * m))
        p /= p.sum()
        along = W * x  # derivative of the logits with respect to the masks
        total += chance * np.trace(along.T @ (np.diag(p) - np.outer(p, p)) @ along)
    return total


@pytest.mark.parametrize("cost", [0.05, 0.3])
def test_updates_end_where_a_search_finds_the_fixed_point(cost):
    random = np.random.default_rng(0)
    W, x = random.normal(size=(3, 5)), random.normal(size=5)
    grid = np.geomspace(1e-2, 1, 400)
    on_grid = [c * curvature_under_noise(W, x, c) - cost for c in grid]
    crossing = grid[np.flatnonzero(np.diff(np.sign(on_grid)))[0]]
    found = {"0": 0.0}
    for _ in range(40):
        t = {"0": curvature_under_noise(W, x, found["0"])}
        found = dropout.refit_variances(found, t, {"0": 2.0, "1": 6.0}, 4 * cost)
    assert found["0"] == pytest.approx(crossing, rel=0.01)


def test_layers_share_the_cost_as_they_share_what_is_determined():
    gamma, t = {"a": 3.0, "b": 1.0, "embedding": 4.0}, {"a": 2.0, "b": 5.0}
    found = dropout.refit_variances({"a": 0.0, "b": 0.0}, t, gamma, 0.4)
    assert found["a"] * t["a"] == pytest.approx(0.4 * 3 / 8)
    assert found["b"] * t["b"] == pytest.approx(0.4 * 1 / 8)


def test_an_update_goes_half_of_the_way_in_logarithms():
    found = dropout.refit_variances({"a": 0.4}, {"a": 1.0}, {"a": 5.0}, 0.1)
    assert found["a"] == pytest.approx(0.2)


@pytest.mark.parametrize("t", [0.0, 1e-300, 0.01])
def test_the_rate_is_at_most_a_half(t):
    found = dropout.refit_variances({"a": 0.0}, {"a": t}, {"a": 5.0}, 0.5)
    assert dropout.rate(found["a"]) == pytest.approx(0.5)
    less = dropout.refit_variances(
        {"a": 0.0}, {"a": t}, {"a": 5.0}, 0.5, Constants(most_dropout=0.2)
    )
    assert dropout.rate(less["a"]) == pytest.approx(0.2)


def test_nothing_determined_is_no_noise():
    for t in (0.0, 1.0):
        assert dropout.refit_variances({"a": 0.0}, {"a": t}, {"a": 0.0}, 0.5) == {"a": 0.0}


def test_layers_that_no_sample_reached_stay():
    found = dropout.refit_variances({"a": 0.1, "b": 0.3}, {"a": 1.0}, {"a": 5.0, "b": 5.0}, 0.2)
    assert found["b"] == 0.3


def test_rate_and_variance_are_inverse():
    assert dropout.rate(dropout.variance(0.3)) == pytest.approx(0.3)
    draws = np.random.default_rng(0).random(200_000) >= 0.3
    assert np.var(draws / 0.7) == pytest.approx(dropout.variance(0.3), rel=0.01)
