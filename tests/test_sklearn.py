"""adareg.sklearn: scikit-learn's contract, its own MLP, and a plain torch loop as oracles."""

import builtins
import copy
import importlib
import pickle
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import joblib
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import (
    load_iris,
    make_classification,
    make_multilabel_classification,
    make_regression,
)
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter
from torch import nn

import adareg
from adareg.sklearn import AdaRegClassifier, AdaRegRegressor, _data
from adareg.sklearn._network import Objective, build

mpl.use("Agg")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
TINY = {"hidden_layer_sizes": (7,), "max_iter": 12, "random_state": 0}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The networks are so small that a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def assert_same_weights(a, b, **tolerance):
    for ours, theirs in zip(a.coefs_ + a.intercepts_, b.coefs_ + b.intercepts_, strict=True):
        assert_allclose(ours, theirs, **{"rtol": 0, "atol": 1e-10, **tolerance})


# The contract ---------------------------------------------------------------------------------


@parametrize_with_checks([AdaRegClassifier(max_iter=60), AdaRegRegressor(max_iter=60)])
def test_estimator_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(AdaRegClassifier, MLPClassifier), (AdaRegRegressor, MLPRegressor)]
)
def test_parameters_of_the_mlp_and_their_defaults_are_all_there(ours, theirs):
    mine = ours().get_params()
    assert {name: mine[name] for name in theirs().get_params()} == theirs().get_params()


# The MLP as oracle ----------------------------------------------------------------------------

SETTINGS = [
    {},
    {"solver": "sgd"},
    {"solver": "sgd", "nesterovs_momentum": False, "learning_rate": "invscaling"},
    {"solver": "sgd", "learning_rate": "adaptive", "tol": 0.1, "n_iter_no_change": 1},
    {"solver": "lbfgs"},
    {"activation": "tanh", "hidden_layer_sizes": (5, 4), "batch_size": 17, "alpha": 0.3},
    {"activation": "logistic", "hidden_layer_sizes": 6, "shuffle": False},
    {"activation": "identity", "hidden_layer_sizes": ()},
    {"early_stopping": True, "validation_fraction": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_without_a_prior_it_is_the_mlp_classifier(iris, settings, weighted):
    X, y = iris
    more = {"sample_weight": np.linspace(0.1, 2, len(y))} if weighted else {}
    if weighted and not has_fit_parameter(MLPClassifier(), "sample_weight"):
        pytest.skip("MLPClassifier takes weights since scikit-learn 1.7")
    for labels in (y, y == 1):
        ours = AdaRegClassifier(strength=None, **TINY | settings).fit(X, labels, **more)
        theirs = MLPClassifier(**TINY | settings).fit(X, labels, **more)
        assert_same_weights(ours, theirs)
        assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
        assert_array_equal(ours.predict(X), theirs.predict(X))
        for name in ("n_iter_", "t_", "n_layers_", "n_outputs_", "out_activation_"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert_allclose(ours.loss_, theirs.loss_)
        for name in ("loss_curve_", "validation_scores_", "best_loss_"):
            mine, other = getattr(ours, name, None), getattr(theirs, name, None)
            assert (mine is None) == (other is None), name
            if mine is not None:
                assert_allclose(mine, other)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_without_a_prior_it_is_the_mlp_regressor(settings):
    X, y = make_regression(60, 5, noise=3, random_state=1)
    y = y / y.std()
    for extra in [{}, {"loss": "poisson"}] if "loss" in MLPRegressor().get_params() else [{}]:
        target = np.round(np.exp(y)) if extra else y
        ours = AdaRegRegressor(strength=0, **TINY | settings | extra).fit(X, target)
        theirs = MLPRegressor(**TINY | settings | extra).fit(X, target)
        assert_same_weights(ours, theirs)
        assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-8)
        assert_allclose(ours.loss_, theirs.loss_)


def test_multilabel_is_the_mlps(tmp_path):
    X, Y = make_multilabel_classification(80, 6, n_classes=4, random_state=2)
    ours = AdaRegClassifier(strength=None, **TINY).fit(X, Y)
    theirs = MLPClassifier(**TINY).fit(X, Y)
    assert_same_weights(ours, theirs)
    assert_array_equal(ours.predict(X), theirs.predict(X))
    assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-8)
    named = AdaRegClassifier(**TINY).fit(X, pd.DataFrame(Y, columns=list("abcd")))
    assert list(named.row_correlation_) == list("abcd")


# A plain torch loop as oracle -----------------------------------------------------------------


def plain_loop(X, y, loss, outputs, solver, rule, epochs=12, every=3, strength=1e-2):
    """What the estimator should do, as a user of adareg and torch would write it."""
    random = np.random.RandomState(0)  # the draws are scikit-learn's
    sizes = [X.shape[1], 7, outputs]
    model = nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:])).double()
    for layer in (model[0], model[2]):
        bound = np.sqrt(6 / (layer.in_features + layer.out_features))
        weight = random.uniform(-bound, bound, (layer.in_features, layer.out_features)).T
        layer.weight.data = torch.tensor(weight)
        layer.bias.data = torch.tensor(random.uniform(-bound, bound, layer.out_features))
    if solver == "adam":
        optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=1e-30)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 1e-2, 0.9, nesterov=True)
    reg = adareg.AdaReg(model, strength=strength, rule=rule)
    reg.attach(optimizer, "coupled" if solver == "adam" else "proximal")
    order, X, y = np.arange(len(X)), torch.tensor(X), torch.tensor(y)
    for epoch in range(epochs):
        permutation = np.arange(len(X))
        random.shuffle(permutation)
        order = order[permutation]
        for start in range(0, len(X), 40):
            batch = torch.tensor(order[start : start + 40])
            optimizer.zero_grad()
            squares = model[0].weight.square().sum() + model[2].weight.square().sum()
            (loss(model(X[batch]), y[batch]) + 0.05 / len(batch) * squares).backward()
            optimizer.step()
        if epoch % every == every - 1:
            reg.update()
    return model, reg


ORACLE = {
    "hidden_layer_sizes": 7,
    "activation": "tanh",
    "alpha": 0.1,
    "learning_rate_init": 1e-2,
    "batch_size": 40,
    "max_iter": 12,
    "epsilon": 1e-30,  # torch and scikit-learn disagree on where it belongs
    "strength": 1e-2,
    "update_every": 3,
    "random_state": 0,
}


@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
def test_classifier_is_a_plain_loop_with_adareg(iris, solver, rule):
    X, y = iris
    model, reg = plain_loop(X, y, nn.functional.cross_entropy, 3, solver, rule)
    ours = AdaRegClassifier(solver=solver, rule=rule, **ORACLE).fit(X, y)
    for mine, other in zip(ours.model_.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        ours.regularizer_.priors["2"].col.dense(), reg.priors["2"].col.dense(), rtol=1e-7, atol=0
    )
    moved = AdaRegClassifier(solver=solver, **ORACLE | {"strength": None}).fit(X, y)
    assert abs(ours.coefs_[-1] - moved.coefs_[-1]).max() > 1e-3  # the prior did something


@pytest.mark.parametrize("outputs", [1, 9])  # fewer and more rows than the 7 columns
@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_regressor_is_a_plain_loop_with_adareg(solver, outputs):
    X, Y = make_regression(90, 4, n_targets=outputs, random_state=3)
    Y = (Y / Y.std()).reshape(90, outputs)

    def loss(z, y):
        return (z - y).square().sum() / 2 / len(y)

    model, _ = plain_loop(X, Y, loss, outputs, solver, "alternating")
    ours = AdaRegRegressor(solver=solver, **ORACLE).fit(X, Y.squeeze())
    for mine, other in zip(ours.model_.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("output", ["softmax", "logistic", "identity", "exp"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_autograds(activation, output, weighted):
    random = np.random.RandomState(4)
    model = build([5, 6, 4, 3], activation, random, torch.float64)
    x, weight = random.normal(size=(8, 5)), random.uniform(size=8) if weighted else None
    y = np.eye(3)[random.randint(3, size=8)]
    value = Objective(model, activation, output, 0.7).gradients(x, y, weight)
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    z, t = model(torch.tensor(x)), torch.tensor(y)
    summands = {
        "softmax": lambda: nn.functional.cross_entropy(z, t, reduction="none")[:, None],
        "logistic": lambda: nn.functional.binary_cross_entropy_with_logits(z, t, reduction="none"),
        "identity": lambda: nn.functional.mse_loss(z, t, reduction="none") / 2,
        "exp": lambda: nn.functional.poisson_nll_loss(z, t, reduction="none") - t,
    }[output]()
    w = torch.ones(8) if weight is None else torch.tensor(weight)
    squares = sum(p.square().sum() for p in model.parameters() if p.ndim == 2)
    loss = ((w[:, None] * summands).sum() + 0.35 * squares) / w.sum()
    loss.backward()
    assert_allclose(value, loss.item())
    for grad, parameter in zip(mine, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


def last_weight(estimator):
    return [p for p in estimator.model_.parameters() if p.ndim == 2][-1].detach()


def test_lbfgs_stops_where_weights_and_prior_agree(iris):
    X, y = iris
    settings = TINY | {"solver": "lbfgs", "max_iter": 5000, "strength": 1e-3, "alpha": 0.1}
    ours = AdaRegClassifier(warm_start=True, **settings)

    def value():
        logits, labels = ours.model_(torch.tensor(X)), torch.tensor(y)
        squares = sum(p.square().sum() for p in ours.model_.parameters() if p.ndim == 2)
        loss = nn.functional.cross_entropy(logits, labels) + 0.05 / len(y) * squares
        assert_allclose(loss.item(), ours.loss_)
        return loss.item() + ours.regularizer_.penalty().item()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        first = ours.fit(X, y) and value()
        ours.regularizer_.update()
        again = ours.fit(X, y) and value()
    assert abs(first - again) < 1e-3
    without = AdaRegClassifier(**settings | {"strength": None}).fit(X, y)
    (learned,) = ours.regularizer_.priors.values()
    assert learned.penalty(last_weight(ours)) < 0.01 * learned.penalty(last_weight(without))


# Kinds of data --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "csr_array"])
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_sparse_input_is_the_same_as_dense(iris, kind, solver):
    X = np.where(iris[0] > 0, iris[0], 0)
    sparse = getattr(scipy.sparse, kind)(X)
    dense_fit = AdaRegClassifier(solver=solver, **TINY).fit(X, iris[1])
    sparse_fit = AdaRegClassifier(solver=solver, **TINY).fit(sparse, iris[1])
    assert_same_weights(dense_fit, sparse_fit, atol=1e-8)
    assert_allclose(sparse_fit.predict_proba(sparse), dense_fit.predict_proba(X), atol=1e-7)


def test_float32_stays_float32(iris):
    X, y = iris
    for Estimator in (AdaRegClassifier, AdaRegRegressor):
        for solver in ("adam", "sgd", "lbfgs"):
            fitted = Estimator(solver=solver, **TINY).fit(X.astype(np.float32), y)
            wide = Estimator(solver=solver, **TINY).fit(X, y)
            assert {w.dtype for w in fitted.coefs_} == {np.dtype(np.float32)}
            assert_same_weights(fitted, wide, atol=1e-2)
    assert AdaRegClassifier(**TINY).fit(X.astype("f4"), y).predict_proba(X).dtype == np.float32


def test_names_come_from_labels_columns_and_frames(iris):
    X = pd.DataFrame(iris[0], columns=["sl", "sw", "pl", "pw"])
    species = np.array(["setosa", "versicolor", "virginica"])[iris[1]]
    classifier = AdaRegClassifier(**TINY).fit(X, species)
    assert list(classifier.feature_names_in_) == list(X)
    correlation = classifier.row_correlation_
    assert list(correlation.index) == list(correlation.columns) == sorted(set(species))
    assert_allclose(correlation, np.corrcoef(classifier.coefs_[-1].T), atol=1e-12)
    singular = np.linalg.svd(classifier.coefs_[-1], compute_uv=False)
    assert_allclose(classifier.stable_rank_, (singular**2).sum() / singular[0] ** 2)
    assert set(classifier.predict(X)) <= set(species)

    targets = X[["pl", "pw"]]
    regressor = AdaRegRegressor(**TINY).fit(X[["sl", "sw"]], targets)
    assert list(regressor.row_correlation_) == ["pl", "pw"]
    assert regressor.predict(X[["sl", "sw"]]).shape == (150, 2)
    assert list(AdaRegRegressor(**TINY).fit(X, X["pl"]).row_correlation_) == ["pl"]
    assert list(AdaRegRegressor(**TINY).fit(X, targets.to_numpy()).row_correlation_) == [0, 1]
    assert list(AdaRegClassifier(**TINY).fit(X, species == "setosa").row_correlation_) == [True]


def test_without_pandas_correlations_are_an_array(iris, monkeypatch):
    fitted = AdaRegClassifier(**TINY).fit(*iris)
    forbid(monkeypatch, "pandas")
    assert type(fitted.row_correlation_) is np.ndarray


def test_weighting_is_repeating(iris):
    X, y = iris
    counts = np.arange(len(y)) % 4
    repeated = np.repeat(np.arange(len(y)), counts)
    settings = TINY | {"batch_size": 1000, "tol": 0}
    with pytest.warns(UserWarning, match="batch_size=1000 is larger than the 150 samples"):
        weighted = AdaRegClassifier(**settings).fit(X, y, counts)
    with pytest.warns(UserWarning, match="batch_size=1000"):
        plain = AdaRegClassifier(**settings).fit(X[repeated], y[repeated])
    assert_same_weights(weighted, plain, atol=1e-8)


def test_batches_without_weight_are_passed_over(iris):
    X, y = iris
    weight = np.r_[np.zeros(100), np.ones(50)]
    fitted = AdaRegClassifier(batch_size=20, shuffle=False, **TINY).fit(X, y, weight)
    assert np.isfinite(fitted.loss_)
    assert (fitted.predict(X) == y[-1]).mean() > 0.3


# Going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_partial_fit_learns_a_stream_and_its_prior(iris, solver):
    X, y = iris
    online = AdaRegClassifier(solver=solver, strength="auto", update_every=2, random_state=0)
    order = np.random.RandomState(0).permutation(len(y))
    for epoch in range(20):
        for batch in np.array_split(order, 5):
            online.partial_fit(X[batch], y[batch], classes=[0, 1, 2])
            if epoch == 0:
                assert_allclose(online.regularizer_.strength, 1 / (2 * online.t_))
    assert online.t_ == 20 * 150
    eigenvalues = online.regularizer_.priors["2"].col.eigenvalues()
    assert eigenvalues.max() > 2 * eigenvalues.min()  # no longer the identity
    assert online.score(X, y) > 0.7


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("Estimator", [AdaRegClassifier, AdaRegRegressor])
def test_a_copy_goes_on_exactly(iris, duplicate, Estimator):
    X, y = iris
    parts = [(X[i::3], y[i::3]) for i in range(3)]

    def learn(estimator):
        for part in parts:
            estimator.partial_fit(*part)
        return estimator

    classes = {"classes": [0, 1, 2]} if Estimator is AdaRegClassifier else {}
    first = learn(Estimator(update_every=2, random_state=0).partial_fit(X, y, **classes))
    second = duplicate(first)
    before = [w.copy() for w in second.coefs_]
    learn(first)
    for mine, old in zip(second.coefs_, before, strict=True):
        assert_array_equal(mine, old)
    assert_same_weights(first, learn(second), atol=0)
    assert second.regularizer_.model is second.model_


def test_joblib_file_predicts_the_same(iris, tmp_path):
    fitted = AdaRegClassifier(**TINY).fit(*iris)
    joblib.dump(fitted, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    assert_array_equal(loaded.predict_proba(iris[0]), fitted.predict_proba(iris[0]))


def test_warm_start_goes_on_with_weights_and_prior(iris):
    X, y = iris
    warm = AdaRegClassifier(**TINY, warm_start=True, update_every=5).fit(X, y)
    prior, loss = warm.regularizer_.priors["2"].col.dense(), warm.loss_
    warm.set_params(max_iter=1, strength=1e-5).fit(X, y)
    assert warm.loss_ < loss
    assert len(warm.loss_curve_) == 13
    assert warm.regularizer_.strength == 1e-5
    torch.testing.assert_close(warm.regularizer_.priors["2"].col.dense(), prior)
    with pytest.raises(ValueError, match=r"\[4, 7, 3\] units cannot go on as one of \[4, 9, 3\]"):
        warm.set_params(hidden_layer_sizes=9).fit(X, y)
    with pytest.raises(ValueError, match="same classes"):
        warm.set_params(hidden_layer_sizes=7).fit(X, np.minimum(y, 1))


def test_parameters_may_change_between_warm_starts(iris):
    X, y = iris
    warm = AdaRegClassifier(solver="lbfgs", warm_start=True, **TINY).fit(X, y)
    assert not hasattr(warm, "loss_curve_")
    for change in (
        {"solver": "adam"},
        {"early_stopping": True},
        {"early_stopping": False, "activation": "tanh"},  # the network keeps the one it has
        {"solver": "sgd", "layers": "all"},
        {"rule": "joint"},
        {"strength": None},
    ):
        warm.set_params(**change).fit(X, y)
    assert len(warm.loss_curve_) > 12
    assert isinstance(warm.model_[1], nn.ReLU)
    assert warm.score(X, y) > 0.5
    warm.set_params(warm_start=False, solver="lbfgs").fit(X, y)
    assert not hasattr(warm, "loss_curve_")


def test_early_stopping_returns_to_the_best_epochs_weights_and_prior(iris):
    X, y = iris
    settings = {"early_stopping": True, "update_every": 1, "learning_rate_init": 0.1}
    settings |= {"random_state": 1, "n_iter_no_change": 5, "max_iter": 300}
    stopped = AdaRegClassifier(**settings).fit(X, y)
    best = int(np.argmax(stopped.validation_scores_)) + 1
    assert best < stopped.n_iter_ < 300
    again = AdaRegClassifier(**settings | {"max_iter": best}).fit(X, y)
    assert_same_weights(stopped, again, atol=1e-12)
    mine, other = (e.regularizer_.priors["2"].col.dense() for e in (stopped, again))
    torch.testing.assert_close(mine, other)


# In scikit-learn's company --------------------------------------------------------------------


def test_pipeline_grid_search_and_cross_validation(iris):
    X, y = load_iris(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), AdaRegClassifier(**TINY | {"max_iter": 60}))
    search = GridSearchCV(pipe, {"adaregclassifier__strength": [None, 1e-3, "auto"]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.6
    assert len(cross_val_score(clone(pipe), X, y, cv=3)) == 3


def test_global_random_states_are_left_alone(iris):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    threads = torch.get_num_threads()
    for state in (None, 3):
        for solver in ("adam", "lbfgs"):
            AdaRegClassifier(**TINY | {"random_state": state, "solver": solver}).fit(*iris)
    assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.get_num_threads() == threads


def test_the_seed_decides(iris):
    fits = [
        AdaRegClassifier(**TINY | {"random_state": s}).fit(*iris) for s in (0, 0, 1, None, None)
    ]
    assert_same_weights(fits[0], fits[1], atol=0)
    firsts = [fit.coefs_[0] for fit in fits[1:]]
    assert all((a != b).any() for i, a in enumerate(firsts) for b in firsts[:i])


def test_strengths_and_layers_reach_adareg(iris):
    X, y = iris
    auto = AdaRegClassifier(strength="auto", layers="all", bounds=(0.1, 10), **TINY).fit(X, y)
    assert auto.regularizer_.strength == 1 / 300
    assert list(auto.regularizer_.layers) == ["0", "2"]
    assert auto.regularizer_.bounds == (0.1, 10)
    assert auto.regularizer_.priors["0"].col.eigenvalues().max() <= 10 * (1 + 1e-9)
    for none in (None, 0, 0.0):
        assert AdaRegClassifier(strength=none, **TINY).fit(X, y).regularizer_ is None
    held = AdaRegClassifier(strength="auto", early_stopping=True, **TINY).fit(X, y)
    assert held.regularizer_.strength == 1 / (2 * 135)


def test_sgd_is_stable_at_strengths_that_blow_up_coupled_steps(iris):
    X, y = iris
    fitted = AdaRegClassifier(
        solver="sgd", strength=0.1, update_every=1, learning_rate_init=0.1, random_state=0
    ).fit(X, y)
    assert np.isfinite(fitted.loss_)


# Errors and messages --------------------------------------------------------------------------

WRONG = {
    "hidden_layer_sizes": [0, (3, -1), 2.5, "3"],
    "activation": ["selu", None],
    "solver": ["adamw"],
    "alpha": [-1, "a", np.nan],
    "batch_size": [0, 1.5, "all"],
    "learning_rate": ["cosine"],
    "learning_rate_init": [0, -1, np.inf],
    "max_iter": [0, 1.5, True],
    "shuffle": ["yes", 1],
    "tol": [-1],
    "momentum": [1.1, -0.1],
    "validation_fraction": [1, -0.1],
    "beta_1": [1, -0.1],
    "epsilon": [0],
    "n_iter_no_change": [0, 1.5],
    "strength": [-1, "none", np.inf],
    "rule": ["gibbs", "evidence", None],
    "bounds": [(2, 1), (1,), 3],
    "update_every": [0, 1.5],
    "device": ["gpu", 1.5],
    "verbose": [-1, "yes"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in WRONG.items() for v in vs])
def test_wrong_parameters_are_named_with_what_is_accepted(iris, name, value):
    estimator = AdaRegClassifier(**{"strength": None, name: value})  # not yet
    with pytest.raises(ValueError, match=rf"^{name}=.*: expected "):
        estimator.fit(*iris)
    with pytest.raises(NotFittedError):
        estimator.predict(iris[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "7"}, "7"),
        ({"rule": "evidence"}, "expected one of 'alternating', 'joint', 'official'"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "validation set is too small"),
    ],
)
def test_wrong_settings_of_the_prior_and_the_split(iris, settings, message):
    with pytest.raises(ValueError, match=message):
        AdaRegClassifier(**settings).fit(*iris)


def test_errors_of_data_and_of_order(iris):
    X, y = iris
    with pytest.raises(NotFittedError):
        _ = AdaRegClassifier().row_correlation_
    with pytest.raises(ValueError, match="classes must be passed"):
        AdaRegClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="does not support early_stopping"):
        AdaRegClassifier(early_stopping=True).partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="is not the same as on last call"):
        AdaRegClassifier().partial_fit(X, y, classes=[0, 1, 2]).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="classes not in"):
        AdaRegClassifier().partial_fit(X, y, classes=[0, 1])
    assert not hasattr(AdaRegClassifier(solver="lbfgs"), "partial_fit")
    with pytest.raises(ValueError, match="expected y >= 0, found -1"):
        AdaRegRegressor(loss="poisson").fit(X, y - 1)
    with pytest.raises(ValueError, match="zero everywhere"):
        AdaRegClassifier().fit(X, y, np.zeros(len(y)))
    with pytest.raises(ValueError, match="sample_weight has shape"):
        AdaRegClassifier().fit(X, y, np.ones((len(y), 2)))
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="non-finite parameter weights"):
        AdaRegRegressor(solver="sgd", learning_rate_init=1e6, update_every=1).fit(X * 1e9, y)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_running_out_of_iterations_warns(iris, solver):
    with pytest.warns(ConvergenceWarning, match=r"Maximum iterations \(2\) reached"):
        AdaRegClassifier(solver=solver, max_iter=2, random_state=0).fit(*iris)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_iter": 2}, "Maximum iterations"),
        ({"solver": "lbfgs", "max_iter": 2}, "Maximum iterations"),
        ({"batch_size": 1000}, "larger than the 150 samples"),
    ],
)
def test_warnings_name_the_line_that_calls_fit(iris, settings, message):
    with pytest.warns(Warning, match=message) as caught:
        AdaRegClassifier(**TINY | settings).fit(*iris)
    assert {w.filename for w in caught if message in str(w.message)} == {__file__}


@pytest.mark.parametrize("strength", [None, 1e-4])
def test_running_out_of_function_calls_warns(iris, strength):
    with pytest.warns(ConvergenceWarning, match=r"lbfgs: Maximum calls \(5\) reached"):
        AdaRegClassifier(solver="lbfgs", max_fun=5, strength=strength, random_state=0).fit(*iris)


def test_an_interrupt_keeps_what_was_learned(iris, monkeypatch):
    calls = []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(adareg.AdaReg, "update", interrupted)
    with pytest.warns(UserWarning, match="interrupted") as caught:
        fitted = AdaRegClassifier(update_every=1, random_state=0).fit(*iris)
    assert caught[0].filename == __file__
    assert len(fitted.predict(iris[0])) == 150


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_verbose_shows_progress(iris, capsys, solver):
    AdaRegClassifier(verbose=True, solver=solver, **TINY).fit(*iris)
    out = capsys.readouterr().out
    assert "12/12" in out
    assert "loss" in out


def test_heat_map_has_the_names_and_the_numbers(iris):
    from matplotlib import pyplot

    species = np.array(["setosa", "versicolor", "virginica"])[iris[1]]
    fitted = AdaRegClassifier(**TINY).fit(iris[0], species)
    ax = fitted.plot_correlation()
    assert [t.get_text() for t in ax.get_yticklabels()] == sorted(set(species))
    assert_array_equal(ax.images[0].get_array(), fitted.row_correlation_)
    _, mine = pyplot.subplots()
    assert fitted.plot_correlation(mine) is mine
    pyplot.close("all")


def test_example_prints_its_table_and_saves_the_map(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parents[1] / "examples/sklearn_digits.py"
    out = tmp_path / "map.png"
    monkeypatch.setattr(sys, "argv", [script.name, "--out", str(out), "--max-iter", "15"])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "AdaRegClassifier" in printed
    assert "Most alike" in printed
    assert out.read_bytes().startswith(b"\x89PNG")


# What must be installed -----------------------------------------------------------------------


def forbid(monkeypatch, package):
    real = builtins.__import__

    def guarded(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("rich", lambda fitted: fitted.set_params(verbose=True).fit(np.eye(3), [0, 1, 2])),
        ("matplotlib", lambda fitted: fitted.plot_correlation()),
    ],
)
def test_a_missing_package_is_named_with_the_command(iris, monkeypatch, package, use):
    fitted = AdaRegClassifier(**TINY).fit(*iris)
    forbid(monkeypatch, package)
    with pytest.raises(ImportError, match=rf"needs {package}.*pip install '\.\[sklearn\]'"):
        use(fitted)


@pytest.mark.parametrize("version", ["1.5.2", "0.24", "1.5.dev0"])
def test_an_old_scikit_learn_is_refused(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=rf"scikit-learn 1\.6 or newer, and {version} is"):
        importlib.reload(sys.modules["adareg.sklearn"])


def test_a_missing_scikit_learn_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs scikit-learn 1\.6.*pip install '\.\[sklearn\]'"):
        importlib.reload(sys.modules["adareg.sklearn"])


def test_adareg_alone_does_not_import_scikit_learn():
    code = "import sys, adareg; print('sklearn' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


# Other devices --------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["classes", "labels", "targets", "counts"])
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_training_in_torch_is_training_in_numpy(monkeypatch, solver, output):
    X, y = make_classification(120, 8, n_informative=6, n_classes=3, random_state=0)
    settings = TINY | {"solver": solver, "update_every": 3, "strength": 1e-2, "batch_size": 50}
    settings |= {"activation": {"classes": "relu", "labels": "tanh"}.get(output, "logistic")}
    if output == "counts":
        settings["loss"] = "poisson"
    target = {"labels": np.eye(3, dtype=int)[y], "targets": X[:, :2]}.get(output, y)
    Estimator = AdaRegClassifier if output in ("classes", "labels") else AdaRegRegressor
    weight = np.linspace(0, 1, len(y))
    in_numpy = Estimator(**settings).fit(X, target, weight)
    monkeypatch.setattr(_data, "in_numpy", lambda device: False)
    for data in (X, scipy.sparse.csr_matrix(X)):
        in_torch = Estimator(**settings).fit(data, target, weight)
        assert_same_weights(in_torch, in_numpy, atol=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_a_gpu_gives_what_the_cpu_does(solver):
    X, y = make_classification(300, n_informative=6, n_classes=3, random_state=0)
    settings = TINY | {"solver": solver, "update_every": 3}
    cpu = AdaRegClassifier(**settings).fit(X, y)
    for data in (X, scipy.sparse.csr_matrix(X)):
        gpu = AdaRegClassifier(device="cuda", **settings).fit(data, y)
        assert_same_weights(gpu, cpu, atol=1e-6)
        assert_allclose(gpu.predict_proba(X), cpu.predict_proba(X), atol=1e-6)
