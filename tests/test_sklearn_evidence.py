"""adareg.sklearn with rule="evidence": log densities and a plain torch loop as oracles."""

import copy
import json
import math
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.distributions import Bernoulli, Categorical, MultivariateNormal, Normal

import adareg
from adareg.sklearn import AdaRegClassifier, AdaRegRegressor, _data
from adareg.sklearn import _prior as prior
from adareg.sklearn._network import Objective

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

EVIDENCE = {"rule": "evidence", "layers": "all", "random_state": 0}
TINY = EVIDENCE | {"hidden_layer_sizes": (7,), "alpha": 0, "learning_rate_init": 0.01}
ENDLESS = {"tol": 0, "n_iter_no_change": np.inf}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return scale(X)[:120], scale(y)[:120]


def problem(kind, iris):
    """An estimator of each kind of output, with data."""
    X, y = iris
    if kind == "classes":
        return AdaRegClassifier, X, y
    if kind == "two classes":
        return AdaRegClassifier, X, (y == 1).astype(int)
    return AdaRegRegressor, X[:, :2], X[:, 2] if kind == "target" else X[:, [2, 3, 2]] ** 2


KINDS = ["classes", "two classes", "target", "targets"]


def assert_same(a, b, atol=0.0):
    for mine, other in zip(a.coefs_ + a.intercepts_, b.coefs_ + b.intercepts_, strict=True):
        assert_allclose(mine, other, rtol=0, atol=atol)


# The contract ---------------------------------------------------------------------------------

_REFUSED = "rule='evidence' takes no sample_weight"
WEIGHTED = {
    "check_sample_weights_pandas_series": _REFUSED,
    "check_sample_weights_not_an_array": _REFUSED,
    "check_sample_weights_list": _REFUSED,
    "check_all_zero_sample_weights_error": _REFUSED,
    "check_sample_weights_shape": _REFUSED,
    "check_sample_weights_not_overwritten": _REFUSED,
    "check_sample_weight_equivalence_on_dense_data": _REFUSED,
    "check_sample_weight_equivalence_on_sparse_data": _REFUSED,
    "check_classifiers_one_label_sample_weights": _REFUSED,
}


@parametrize_with_checks(
    [
        AdaRegClassifier(rule="evidence", layers="all", max_iter=60),
        AdaRegRegressor(rule="evidence", layers="all", max_iter=60),
    ],
    expected_failed_checks=lambda estimator: WEIGHTED,
)
def test_estimator_check(estimator, check):
    check(estimator)


# Log densities as oracle ----------------------------------------------------------------------


def log_likelihood(kind, outputs, y, noise):
    if kind == "classes":
        return Categorical(logits=outputs).log_prob(y).sum()
    if kind == "two classes":
        return Bernoulli(logits=outputs.squeeze(1)).log_prob(y.double()).sum()
    return Normal(outputs, math.sqrt(noise)).log_prob(y.reshape(outputs.shape)).sum()


def log_prior(reg):
    total = 0
    for name, one in reg.priors.items():
        precision = torch.kron(one.row.dense(), one.col.dense()).double()
        zero = torch.zeros(len(precision), dtype=torch.float64)
        density = MultivariateNormal(zero, precision_matrix=precision)
        total = total + density.log_prob(reg.layers[name].weight.double().flatten())
    return total


def value(fitted, kind, X, y):
    """What is minimised, to a constant: −log posterior, on the scale of the loss.

    In regression times the noise over n; of classes the likelihood has the dispersion as its
    temperature.
    """
    X, y = torch.tensor(X), torch.tensor(y)
    noise, n = fitted.regularizer_.metrics()["noise"], len(X)
    likelihood = log_likelihood(kind, fitted.model_(X), y, noise)
    tempered = likelihood / noise if "class" in kind else likelihood
    return -noise / n * (tempered + log_prior(fitted.regularizer_))


def gradient(fitted, kind, X, y):
    return torch.autograd.grad(value(fitted, kind, X, y), list(fitted.model_.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_that_is_followed_is_the_log_posteriors(iris, kind):
    Estimator, X, y = problem(kind, iris)
    fitted = Estimator(**TINY, max_iter=70).fit(X, y)
    reg, model = fitted.regularizer_, fitted.model_
    assert reg.metrics()["updates"] >= 1
    objective = Objective(model, "relu", fitted.out_activation_, 0)
    Y = np.eye(3)[y] if kind == "classes" else y.reshape(len(y), -1)
    objective.gradients(X, Y, None)
    without = model[0].weight.grad.clone()
    for add in prior.add_gradients(reg):
        add()
    assert (model[0].weight.grad - without).abs().max() > 1e-5
    wanted = gradient(fitted, kind, X, y)
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", ["two classes", "target", "targets"])
@pytest.mark.parametrize("solver", ["sgd", "lbfgs"])  # SGD has momentum, and proximal steps
def test_weights_end_where_the_log_posterior_has_its_maximum(iris, kind, solver, monkeypatch):
    Estimator, X, y = problem(kind, iris)
    settings = TINY | {"hidden_layer_sizes": (), "learning_rate_init": 0.1, "max_iter": 200}
    fitted = Estimator(**settings, solver=solver, warm_start=True).fit(X, y)
    monkeypatch.setattr(adareg.EvidenceReg, "count_steps", lambda *args: False)
    monkeypatch.setattr(prior, "update", lambda *args: None)
    fitted.set_params(max_iter=1500, tol=1e-9).fit(X, y)
    reg = fitted.regularizer_
    assert reg.metrics()["updates"] >= 1
    (pull,) = torch.autograd.grad(reg.penalty(), fitted.model_[0].weight)
    steepest = max(g.abs().max() for g in gradient(fitted, kind, X, y))
    assert steepest < 1e-2 * pull.abs().max()


@pytest.mark.parametrize("kind", ["classes", "targets"])
def test_lbfgs_stops_where_updates_no_longer_move_the_weights(iris, kind):
    Estimator, X, y = problem(kind, iris)
    ours = Estimator(**TINY | {"alpha": 0.01}, solver="lbfgs", max_iter=5000, warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours.fit(X, y)
    loss = ours.loss_
    assert ours.regularizer_.metrics()["updates"] > 1
    for _ in range(3):
        ours.regularizer_.update(torch.tensor(X), torch.tensor(y))
        ours.fit(X, y)
        assert_allclose(ours.loss_, loss, atol=1e-3)


# A plain torch loop as oracle -----------------------------------------------------------------


def plain_loop(fitted, kind, X, y, solver, epochs):
    """From the estimator's own start; updates and penalty as docs/evidence.md has them."""
    model = copy.deepcopy(fitted.model_)
    likelihood = "classification" if "class" in kind else "regression"
    reg = adareg.EvidenceReg(model, len(X), likelihood)
    X, y, steps, due = torch.tensor(X), torch.tensor(y), 0, 50
    if solver == "adam":
        optimizer = torch.optim.Adam(model.parameters(), 0.01, eps=1e-30)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, nesterov=True)
    for _ in range(epochs):
        for part in torch.arange(len(X)).split(40):
            optimizer.zero_grad()
            (-log_likelihood(kind, model(X[part]), y[part], 1.0) / len(part)).backward()
            if solver == "adam":
                (noise(reg) / len(X) * -log_prior(reg)).backward()
            optimizer.step()
            if solver == "sgd":
                shrink(reg, 0.01 / (1 - 0.9) * noise(reg) / len(X))
            steps += 1
        if steps >= due:
            reg.update(X, y)
            due = 1.3 * steps
    return model, reg


def noise(reg):
    """Nothing pulls until the first update; by then these networks have learned something."""
    metrics = reg.metrics()
    return metrics["noise"] if metrics["updates"] else 0.0


@torch.no_grad()
def shrink(reg, step):
    """The minimum of ``½‖X − W‖² + step/2·tr(Ωr X Ωc Xᵀ)``."""
    for name, one in reg.priors.items():
        W = reg.layers[name].weight
        precision = torch.kron(one.row.dense(), one.col.dense())
        W.copy_(torch.linalg.solve(torch.eye(W.numel()) + step * precision, W.flatten()).view_as(W))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_fit_is_a_plain_loop_with_updates_when_they_are_due(iris, kind, solver, monkeypatch):
    Estimator, X, y = problem(kind, iris)
    settings = TINY | ENDLESS | {"solver": solver, "shuffle": False, "batch_size": 40}
    settings |= {"epsilon": 1e-30, "activation": "tanh"}
    start = Estimator(**settings | {"max_iter": 1, "learning_rate_init": 1e-300}).fit(X, y)
    model, reg = plain_loop(start, kind, X, y, solver, epochs=30)
    ours = Estimator(**settings, max_iter=30).fit(X, y)
    assert ours.regularizer_.metrics()["updates"] == reg.metrics()["updates"] == 4
    for mine, other in zip(ours.model_.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-7)
    assert_allclose(ours.regularizer_.metrics()["noise"], reg.metrics()["noise"], rtol=1e-6)


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_before_the_first_update_a_regressor_has_no_penalty(diabetes, solver):
    settings = TINY | {"solver": solver, "max_iter": 40}
    ours = AdaRegRegressor(**settings).fit(*diabetes)
    assert ours.regularizer_.strength == 0
    assert_same(ours, AdaRegRegressor(**settings | {"strength": None}).fit(*diabetes), atol=1e-12)


def test_a_classifier_has_its_penalty_from_the_start_with_lbfgs_alone(iris):
    for solver in ("adam", "sgd", "lbfgs"):
        settings = TINY | {"solver": solver, "max_iter": 15}
        fitted = AdaRegClassifier(**settings).fit(*iris)
        assert fitted.regularizer_.metrics()["updates"] == 0
        assert (fitted.regularizer_.strength > 0) == (solver == "lbfgs")


def test_it_regularizes_where_a_plain_network_overfits(diabetes):
    X, y = diabetes
    held = slice(60, None)
    settings = {"hidden_layer_sizes": (50,), "solver": "lbfgs", "max_iter": 3000}
    ours = AdaRegRegressor(**EVIDENCE | settings).fit(X[:60], y[:60])
    plain = AdaRegRegressor(**EVIDENCE | settings | {"strength": None}).fit(X[:60], y[:60])
    assert ours.score(X[held], y[held]) > 0.3 > plain.score(X[held], y[held])


def test_training_goes_on_until_there_was_an_update_that_changed_nothing(diabetes):
    impatient = TINY | {"tol": 0.5, "n_iter_no_change": 1, "max_iter": 300}
    fitted = AdaRegRegressor(**impatient).fit(*diabetes)
    assert fitted.regularizer_.metrics()["updates"] == 1
    assert fitted.n_iter_ < 50
    plain = AdaRegRegressor(**impatient | {"strength": None}).fit(*diabetes)
    assert plain.n_iter_ < fitted.n_iter_


# The data of an update ------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """What updates are given."""
    calls, update = [], adareg.EvidenceReg.update

    def spy(self, inputs, targets):
        calls.append((inputs, targets))
        update(self, inputs, targets)

    monkeypatch.setattr(adareg.EvidenceReg, "update", spy)
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_updates_see_200_rows_with_what_belongs_to_them(iris, kind, seen):
    Estimator, X, y = problem(kind, iris)
    X = np.tile(X, (4, 1)) + np.linspace(0, 1e-6, 4 * len(X))[:, None]  # every row is known by it
    y = np.concatenate([y] * 4)
    Estimator(**TINY | ENDLESS, max_iter=40).fit(X, y)
    assert len(seen) > 1
    drawn = []
    for inputs, targets in seen:
        rows = [int(np.flatnonzero((row == X).all(1)).item()) for row in inputs.numpy()]
        assert len(set(rows)) == 200
        assert_array_equal(targets.numpy().reshape(200, -1), y[rows].reshape(200, -1))
        drawn.append(rows)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
@pytest.mark.parametrize("kind", KINDS)
def test_sparse_data_and_training_in_torch_make_no_difference(iris, kind, solver, monkeypatch):
    Estimator, X, y = problem(kind, iris)
    X, y = np.concatenate([np.maximum(X, 0)] * 3), np.concatenate([y] * 3)
    settings = TINY | {"solver": solver, "max_iter": 70, "activation": "tanh"}
    dense = Estimator(**settings).fit(X, y)
    assert dense.regularizer_.metrics()["updates"] >= 1
    assert_same(Estimator(**settings).fit(scipy.sparse.csr_matrix(X), y), dense, atol=1e-3)
    monkeypatch.setattr(_data, "in_numpy", lambda device: False)
    for data in (X, scipy.sparse.csr_matrix(X)):
        assert_same(Estimator(**settings).fit(data, y), dense, atol=1e-3)


def test_float32_stays_float32(diabetes):
    X, y = diabetes
    for solver in ("adam", "sgd", "lbfgs"):
        settings = TINY | {"solver": solver, "max_iter": 70, "activation": "tanh"}
        fitted = AdaRegRegressor(**settings).fit(X.astype("f4"), y)
        assert {w.dtype for w in fitted.coefs_} == {np.dtype("f4")}
        assert_allclose(fitted.loss_, AdaRegRegressor(**settings).fit(X, y).loss_, rtol=1e-2)


def test_global_random_states_are_left_alone_and_the_seed_decides(iris):
    before, state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    X, y = np.tile(iris[0], (3, 1)), np.tile(iris[1], 3)
    one, two = (AdaRegClassifier(**TINY, max_iter=30).fit(X, y) for _ in range(2))
    assert_same(one, two)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state)


# Going on -------------------------------------------------------------------------------------


def learned(fitted):
    state = fitted.regularizer_.state_dict()
    state = {key: value for key, value in state.items() if key not in ("priors", "steps")}
    return state, {name: p.col.dense() for name, p in fitted.regularizer_.priors.items()}


def test_warm_start_goes_on_with_priors_noise_and_counts(diabetes):
    X, y = diabetes
    warm = AdaRegRegressor(**TINY, warm_start=True, max_iter=80).fit(X, y)
    before, priors = learned(warm)
    assert before["updates"] == 2
    warm.set_params(max_iter=1).fit(X[:70], y[:70])
    after, same = learned(warm)
    assert after == before | {"n_samples": 70}
    assert_allclose(warm.regularizer_.strength, json.loads(before["noise"]) / 2 / 70)
    torch.testing.assert_close(same, priors)
    warm.set_params(max_iter=60).fit(X, y)
    assert learned(warm)[0]["updates"] > before["updates"]
    warm.set_params(layers="last", max_iter=1).fit(X, y)
    assert learned(warm)[0]["updates"] == 0


def test_rules_may_change_between_fits(diabetes):
    for warm in (False, True):
        estimator = AdaRegRegressor(**TINY, max_iter=60, warm_start=warm, early_stopping=warm)
        for rule in ("evidence", "joint", "evidence"):
            estimator.set_params(rule=rule).fit(*diabetes)
        estimator.set_params(rule="alternating", early_stopping=False).partial_fit(*diabetes)
        assert estimator.regularizer_.rule == "alternating"


def test_early_stopping_returns_to_the_best_epochs_prior(diabetes):
    settings = TINY | {"early_stopping": True, "validation_fraction": 0.3, "max_iter": 300}
    settings |= {"batch_size": 10}
    stopped = AdaRegRegressor(**settings).fit(*diabetes)
    best = int(np.argmax(stopped.validation_scores_)) + 1
    assert best < stopped.n_iter_ < 300
    again = AdaRegRegressor(**settings | {"max_iter": best}).fit(*diabetes)
    assert_same(stopped, again, atol=1e-12)
    (mine, priors), (other, others) = learned(stopped), learned(again)
    assert mine == other
    assert mine["updates"] > 0
    assert mine["n_samples"] == 84
    torch.testing.assert_close(priors, others)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_exactly(diabetes, duplicate):
    first = AdaRegRegressor(**TINY, max_iter=60, warm_start=True).fit(*diabetes)
    second = duplicate(first)
    assert_same(first.fit(*diabetes), second.fit(*diabetes))
    assert learned(first)[0] == learned(second)[0]


def test_grid_search_compares_it_with_other_rules(iris):
    plain = clone(AdaRegClassifier(**TINY, max_iter=60))
    search = GridSearchCV(plain, {"rule": ["evidence", "joint"], "strength": [None, 1e-3]}, cv=2)
    assert search.fit(*iris).best_score_ > 0.6
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# Refusals -------------------------------------------------------------------------------------


def test_what_it_cannot_do_is_refused(iris):
    X, y = iris
    with pytest.raises(ValueError, match=r"loss='poisson'.*expected loss='squared_error'; use"):
        AdaRegRegressor(**EVIDENCE, loss="poisson").fit(X, y)
    with pytest.raises(ValueError, match=r"sample_weight.*expected None.*repeat rows"):
        AdaRegClassifier(**EVIDENCE).fit(X, y, np.ones(len(y)))
    labels = make_multilabel_classification(150, 4, n_classes=3, random_state=0)[1]
    with pytest.raises(ValueError, match=r"multi-label targets \(3 labels\).*expected one class"):
        AdaRegClassifier(**EVIDENCE).fit(X, labels)
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as caught:
        AdaRegClassifier(**EVIDENCE).partial_fit(X, y, classes=[0, 1, 2])
    assert "use fit, or another rule" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match=r"rule='gibbs': expected.*'evidence'"):
        AdaRegClassifier(rule="gibbs").fit(X, y)


@pytest.mark.parametrize("strength", [None, 0])
def test_without_a_prior_nothing_is_refused(iris, strength):
    X, y = iris
    none = EVIDENCE | {"strength": strength, "max_iter": 2}
    assert AdaRegClassifier(**none).fit(X, y, np.ones(len(y))).regularizer_ is None
    assert AdaRegRegressor(**none, loss="poisson").partial_fit(X, y).regularizer_ is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_what_the_cpu_does(iris, kind, solver):
    Estimator, X, y = problem(kind, iris)
    settings = TINY | {"solver": solver, "max_iter": 70, "activation": "tanh"}
    cpu = Estimator(**settings).fit(X, y)
    for data in (X, scipy.sparse.csr_matrix(X)):
        assert_same(Estimator(device="cuda", **settings).fit(data, y), cpu, atol=1e-4)
