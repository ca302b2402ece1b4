"""What is shown is the same for every order in which a sum was taken."""

import math
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adareg.lab.judge.rank_tests import ranks
from adareg.lab.judge.statistics import interval
from adareg.lab.rounding import fixed, frame, short, significant, written

#: Accuracies in points: their means over a few seeds lie half-way between two digits often.
POINTS = st.lists(st.integers(0, 10_000).map(lambda count: count / 100), min_size=3, max_size=10)


@given(POINTS, st.randoms(use_true_random=False))
def test_no_rounding_depends_on_the_order_of_a_sum(points, order):
    exact = math.fsum(points) / len(points)
    shuffled = sum(random.Random(order.random()).sample(points, len(points))) / len(points)
    for digits in range(5):
        assert fixed(shuffled, digits) == fixed(exact, digits)
        assert written(shuffled, digits) == written(exact, digits)
        assert short(shuffled, digits + 1) == short(exact, digits + 1)
    assert significant(shuffled) == significant(exact)
    assert significant(shuffled - exact) == 0


@given(POINTS)
def test_rounding_changes_no_more_than_it_should(points):
    for value in points:
        assert abs(fixed(value, 1) - value) <= 0.05 + 1e-9
        assert significant(value) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays(value):
    for rounded in (fixed(value, 2), significant(value)):
        assert rounded == value or (math.isnan(value) and math.isnan(rounded))


def test_a_table_keeps_its_words_and_counts():
    table = pd.DataFrame({"method": ["none"], "n": [1_234_567_890], "mean": [0.1 + 0.2]})
    shown = frame(table)
    assert shown.to_dict("records") == [{"method": "none", "n": 1_234_567_890, "mean": 0.3}]
    assert table["mean"][0] != 0.3


@pytest.mark.parametrize("more", [[], [0.0, 0.0]])
def test_differences_that_cancel_are_zero(more):
    """0.1 + 0.2 − 0.3 is 5.6e-17 in this order, and 0 in another."""
    assert interval([0.1, 0.2, -0.3, *more]).mean == 0


def test_means_that_differ_in_last_bits_share_a_rank():
    scores = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.5]
    assert scores[0] != scores[1]
    assert list(ranks(scores)) == [1.5, 1.5, 3]
