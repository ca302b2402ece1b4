"""Every row of the table of methods: it can be built, copied and fitted in each of its suites."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from adareg.lab.contest import methods, problem
from adareg.lab.contest.problem import Problem
from adareg.lab.contest.suites import CELLS, SUITES

ROWS = [(suite, name) for name, row in methods.METHODS.items() for suite in row.suites]


def made(suite, n=40):
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(n, 3)))
    y = x.to_numpy() @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(n, 2))
    classes = 2 if suite == methods.CLASSIFICATION else 0
    if classes:
        y = (y[:, 0] > 0).astype(int)
    elif suite == methods.REGRESSION:
        y = y[:, 0]
    return Problem(x=x, y=y, x_test=x, y_test=y, classes=classes, seed=1)


@pytest.mark.parametrize(("suite", "name"), ROWS)
def test_rows_can_be_built_and_copied(suite, name):
    assert suite in SUITES
    model = methods.METHODS[name].build(made(suite))
    copy = clone(model)
    assert type(copy) is type(model)
    assert copy.get_params().keys() == model.get_params().keys()


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("regression", "ridge-cv"),
        ("regression", "gaussian-process-ard"),
        ("regression", "evidence-50"),
        ("multi-target", "pls-cv"),
        ("classification", "logistic-cv"),
        (CELLS, "linear"),
    ],
)
def test_what_is_learned_is_better_than_nothing(suite, name):
    given = made(suite)
    model = methods.METHODS[name].build(given).fit(given.x, given.y)
    assert model.predict(given.x).reshape(given.y.shape).std() > 0
    baseline = given.y.mean(axis=0)
    if given.classes:
        assert (model.predict(given.x) == given.y).mean() > 0.9
    else:
        errors = given.y - model.predict(given.x).reshape(given.y.shape)
        assert (errors**2).mean() < 0.2 * ((given.y - baseline) ** 2).mean()


def test_a_gaussian_process_has_some_of_many_rows(monkeypatch):
    monkeypatch.setattr(methods.SubsetGaussianProcess, "most_rows", 15)
    given = made("regression")
    model = methods.METHODS["gaussian-process"].build(given).fit(given.x, given.y)
    assert model[-1].X_train_.shape == (15, 3)


def test_tuned_models_see_standardised_inputs_of_their_fold_alone():
    """The pipeline is what is searched, so that each fold fits its own scaler."""
    search = methods.METHODS["ridge-cv"].build(made("regression"))
    assert [step for step, _ in search.estimator.steps] == ["inputs", "model"]
    assert search.cv == problem.FOLDS


def test_estimates_grow_to_the_rows_that_are_looked_at():
    row = methods.METHODS["gaussian-process"]
    assert row.estimate(1000) < row.estimate(2000) == row.estimate(20_000)
