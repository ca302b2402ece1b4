"""The interval covers what it should; comparisons become answers and verdicts as stated."""

from importlib.metadata import version

import numpy as np
import pytest
from scipy import stats

from adareg.lab.judge.claims.base import Effect, all_of, negligible, state, verdict
from adareg.lab.judge.claims.quantities import STABLE_RANK
from adareg.lab.judge.statistics import interval, tail_probability


@pytest.mark.parametrize("count", [5, 10, 20])
def test_the_interval_is_scipys_percentile_interval_further_out(count):
    values = np.random.default_rng(count).normal(size=count)
    tail = tail_probability(count)
    new = version("scipy") >= "1.15"  # which has it by another name
    generator = {"rng" if new else "random_state": np.random.default_rng(1)}
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=1 - 2 * tail,
        n_resamples=20_000,
        method="percentile",
        **generator,
    ).confidence_interval
    mean, low, high = interval(values)
    assert mean == pytest.approx(values.mean())
    assert [low, high] == pytest.approx(theirs, abs=0.1 * values.std())
    assert tail < 0.025
    assert tail_probability(10_000) == pytest.approx(0.025, rel=1e-2)


@pytest.mark.parametrize("count", [3, 4, 5, 10, 20])
def test_the_interval_covers_the_mean_as_often_as_it_says(count):
    rng = np.random.default_rng(count)
    found = [interval(rng.normal(1.0, 2.0, count)) for _ in range(1000)]
    covered = np.mean([low <= 1.0 <= high for _, low, high in found])
    assert 0.9 < covered < 0.975


def test_a_single_value_has_no_interval():
    mean, low, high = interval([0.5])
    assert mean == 0.5
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_interval_of_few_values_is_students(count):
    values = np.random.default_rng(count).normal(size=count)
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    mean, low, high = interval(values)
    assert (mean, low, high) == pytest.approx((values.mean(), *theirs))


def test_the_interval_is_the_same_each_time():
    values = [0.1, -0.2, 0.4, 0.3, 0.0, 0.2]
    assert interval(values) == interval(list(values))
    assert interval([0.5] * 6) == pytest.approx((0.5, 0.5, 0.5))


def effect(low, high):
    return Effect(what="", value=(low + high) / 2, low=low, high=high, seeds=5, unit="")


@pytest.mark.parametrize(
    ("low", "high", "up", "down"),
    [
        (0.2, 0.4, "yes", "no"),
        (0.05, 0.4, "yes", "no"),
        (0.01, 0.05, "no", "no"),
        (-0.05, 0.05, "no", "no"),
        (-0.05, 0.4, "unclear", "no"),
        (-0.4, 0.4, "unclear", "unclear"),
        (-0.4, -0.2, "no", "yes"),
    ],
)
def test_an_answer_is_the_same_in_both_directions(low, high, up, down):
    assert state(effect(low, high), 1, 0.1) == up
    assert state(effect(low, high), -1, 0.1) == down
    assert state(effect(-high, -low), -1, 0.1) == up


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (-0.2, 0.2, "yes"),
        (0.1, 0.2, "yes"),
        (0.1, 0.5, "no"),
        (-0.5, -0.1, "no"),
        (-0.1, 0.5, "unclear"),
    ],
)
def test_no_difference_is_an_answer_too(low, high, answer):
    assert negligible(effect(low, high), 0.3) == answer


@pytest.mark.parametrize(
    ("yes", "no", "unclear", "expected"),
    [
        (10, 0, 0, "reproduced"),
        (9, 1, 0, "reproduced"),
        (9, 0, 1, "reproduced"),
        (8, 2, 0, "partly"),
        (5, 0, 5, "partly"),
        (2, 8, 0, "partly"),
        (1, 9, 0, "not reproduced"),
        (0, 5, 5, "not reproduced"),
        (0, 4, 6, "not enough data"),
        (4, 0, 6, "not enough data"),
        (0, 0, 0, "not enough data"),
    ],
)
def test_shares_of_settings(yes, no, unclear, expected):
    assert verdict(["yes"] * yes + ["no"] * no + ["unclear"] * unclear) == expected


def test_several_answers_that_must_all_hold():
    assert all_of(["yes", "yes"], 2) == "yes"
    assert all_of(["yes"], 2) == "unclear"
    assert all_of(["yes", "unclear"], 2) == "unclear"
    assert all_of(["unclear", "no"], 3) == "no"


def test_ratios_are_in_percent():
    first, second = {s: 0.5 * (s + 1) for s in range(6)}, {s: s + 1.0 for s in range(6)}
    differences = STABLE_RANK.differences(first, {**second, 9: 1.0})
    halved = STABLE_RANK.effect("it", differences)
    assert (halved.value, halved.low, halved.high) == pytest.approx((-50, -50, -50))
    assert halved.seeds == 6
    assert STABLE_RANK.effect("it", {s: differences[s] for s in range(2)}) is None
