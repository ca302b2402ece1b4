"""Splits, rare classes and the preparation of inputs."""

import numpy as np
import pandas as pd
import pytest

from adareg.lab.contest import problem
from adareg.lab.data import Table


def table(y, task="classification", **columns):
    x = pd.DataFrame(columns or {"a": np.arange(len(y), dtype=float)})
    names = tuple(f"class {k}" for k in range(int(max(y)) + 1)) if task[0] == "c" else ("t",)
    return Table(name="fabricated", task=task, x=x, y=np.asarray(y), names=names)


def test_rare_classes_are_left_out_and_the_others_renumbered():
    labels = [0] * 7 + [1] * 6 + [2] * 8 + [3] * 2
    kept = problem.without_rare_classes(table(labels))
    assert kept.names == ("class 0", "class 2")
    assert kept.y.tolist() == [0] * 7 + [1] * 8
    assert kept.x["a"].tolist() == [*range(7), *range(13, 21)]


def test_targets_are_never_left_out():
    made = table([0.0, 1.0, 5.0], "regression")
    assert problem.without_rare_classes(made) is made


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_five_folds_cover_all_rows_once(task):
    y = np.arange(53) % 3 if task == "classification" else np.linspace(0, 1, 53)
    splits = problem.splits_of(table(y, task))
    assert len(splits) == 5
    assert sorted(np.concatenate([test for _, test in splits])) == list(range(53))
    for train, test in splits:
        assert set(train).isdisjoint(test)
        if task == "classification":
            assert np.bincount(y[test]).min() >= 3
    again = problem.splits_of(table(y, task))
    assert all((a[1] == b[1]).all() for a, b in zip(splits, again, strict=True))


def test_preparation_knows_nothing_of_test_rows():
    kinds = pd.Categorical(["a", "b", "b", None, "c"], categories=["a", "b", "c"])
    x = pd.DataFrame({"n": [1.0, np.nan, 3.0, 5.0, 100.0], "k": kinds})
    train, test = x.iloc[:4], x.iloc[4:]
    made = problem.preparation(train, scaled=True).fit(train)
    inside = made.transform(train)
    assert inside.shape == (4, 3)
    numbers = np.array([1.0, 3.0, 3.0, 5.0])  # the mean of the training rows where one is missing
    np.testing.assert_allclose(inside[:, 0], (numbers - 3) / numbers.std())
    np.testing.assert_array_equal(inside[:, 1:], [[1, 0], [0, 1], [0, 1], [0, 1]])
    np.testing.assert_allclose(made.transform(test)[0], [97 / numbers.std(), 0, 0])


def test_without_missing_and_nominal_values_numbers_pass_through():
    x = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, -4.0]})
    made = problem.preparation(x, scaled=False).fit_transform(x)
    np.testing.assert_array_equal(made, x)
