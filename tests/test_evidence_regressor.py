"""EvidenceRegressor, as its users call it."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.stats import nbinom
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_linnerud, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from adareg.sklearn import EvidenceRegressor

Array = NDArray[Any]


def small(**settings: Any) -> EvidenceRegressor:
    """One that is quick, and need not be good."""
    chosen = {
        "hidden_layer_sizes": 6,
        "n_networks": 2,
        "max_iter": 300,
        "random_state": 0,
        **settings,
    }
    return EvidenceRegressor(**chosen)


def table(n: int = 60, targets: int = 1, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3))
    Y = np.stack([np.sin(X[:, 0]) + X[:, 1] * k for k in range(targets)], 1)
    Y = Y + 0.1 * random.normal(size=Y.shape)
    return X, Y[:, 0] if targets == 1 else Y


@pytest.fixture(scope="module")
def fitted() -> EvidenceRegressor:
    return small().fit(*table())


def test_scikit_learn_checks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(
            EvidenceRegressor(hidden_layer_sizes=3, n_networks=1, max_iter=30), on_skip=None
        )


def test_it_is_good_as_it_comes() -> None:
    X, y = make_friedman1(600, noise=1, random_state=0)
    regressor = EvidenceRegressor(random_state=0).fit(X[:100], y[:100])
    assert regressor.score(X[100:], y[100:]) > 0.88  # a forest has 0.7; at most 0.96 are possible
    low, high = regressor.predict_interval(X[100:])
    assert ((low < y[100:]) & (y[100:] < high)).mean() > 0.92
    assert 0.5 < float(regressor.noise_[0]) < 2


def test_linear_data_are_predicted_as_ridge_does() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(1040, 10))
    y = X @ np.arange(10) + 5 * random.normal(size=1040)
    ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(X[:40], y[:40])
    regressor = EvidenceRegressor(random_state=0).fit(X[:40], y[:40])
    errors = [np.mean((one.predict(X[40:]) - y[40:]) ** 2) for one in (regressor, ridge)]
    assert errors[0] < 1.25 * errors[1]


def test_several_targets_have_their_own_noise_and_a_correlation() -> None:
    X, Y = table(120, targets=3)
    Y[:, 2] += 0.5 * np.random.default_rng(1).normal(size=120)
    regressor = small().fit(X, pd.DataFrame(Y, columns=["a", "b", "c"]))
    assert regressor.noise_[2] > 4 * regressor.noise_[1]
    assert list(regressor.row_correlation_.columns) == ["a", "b", "c"]
    low, high = regressor.row_correlation_interval_
    mean = regressor.row_correlation_.to_numpy()
    assert (low <= mean + 1e-9).all()
    assert (mean <= high + 1e-9).all()
    assert np.allclose(np.diag(mean), 1)


def counted(n: int = 150, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return inputs, counts that vary more than Poisson's, and their means."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2))
    mean = np.exp(0.5 + np.sin(X[:, 0]))
    return X, random.poisson(mean * random.gamma(4, 0.25, n)).astype(float), mean


def far_out(n: int = 120, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return inputs, targets of which some are far out, and their means."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2))
    mean = np.sin(X[:, 0])
    return X, mean + 0.1 * random.standard_t(2, size=n), mean


def test_counts_are_found_to_be_counts() -> None:
    X, y, mean = counted()
    regressor = small().fit(X, y)
    assert regressor.likelihood_ == "counts"
    assert 0.05 < float(regressor.noise_[0]) < 0.6  # 0.25 is true
    others, y, mean = counted(2000, seed=1)
    assert np.mean((regressor.predict(others) - mean) ** 2) < 0.25 * mean.var()
    low, high = regressor.predict_interval(others, 0.9)
    best = nbinom(4, 4 / (4 + mean)).ppf([[0.05], [0.95]])  # steps make them cover more than 90 %
    expected = ((best[0] <= y) & (y <= best[1])).mean()
    assert ((low <= y) & (y <= high)).mean() == pytest.approx(expected, abs=0.03)
    assert (low >= 0).all()
    assert np.array_equal(high, np.round(high))


def test_outliers_are_found_and_harm_less() -> None:
    X, y, _ = far_out()
    regressor, gaussian = small().fit(X, y), small(likelihood="gaussian").fit(X, y)
    assert regressor.likelihood_ == "student"
    others, y, mean = far_out(1000, seed=1)
    errors = [np.mean((one.predict(others) - mean) ** 2) for one in (regressor, gaussian)]
    assert errors[0] < 0.7 * errors[1]
    low, high = regressor.predict_interval(others, 0.9)
    assert 0.85 < ((low <= y) & (y <= high)).mean() < 0.95


def test_nothing_else_is_tried_on_ordinary_targets(fitted: EvidenceRegressor) -> None:
    assert fitted.likelihood_ == "gaussian"
    X, y = table()
    given = small(likelihood="gaussian").fit(X, y)
    assert np.array_equal(given.predict(X), fitted.predict(X))


@pytest.mark.parametrize("likelihood", [None, "correlated"])
def test_noise_of_several_targets_is_correlated(likelihood: str | None) -> None:
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(200, 2)), np.array([[1.0, -0.7], [-0.7, 1.0]])
    Y = X + 0.5 * random.multivariate_normal(np.zeros(2), noise, 200)
    regressor = small(likelihood=likelihood).fit(X, Y)
    assert np.allclose(regressor.noise_covariance_, noise / 4, atol=0.07)
    assert np.allclose(np.diag(regressor.noise_covariance_), regressor.noise_)
    drawn = regressor.sample_y(X[:1], 4000)[0]
    assert np.corrcoef(drawn)[0, 1] == pytest.approx(-0.7, abs=0.1)
    _, std = regressor.predict(X[:1], return_std=True)
    assert np.allclose(drawn.std(1), std[0], rtol=0.1)


@pytest.mark.parametrize("make", [counted, far_out])
def test_intervals_and_deviations_are_those_of_draws(make: Any) -> None:
    X, y, _ = make()
    regressor = small(likelihood={counted: "counts", far_out: "student"}[make]).fit(X, y)
    drawn = regressor.sample_y(X[:4], 4000)
    low, high = regressor.predict_interval(X[:4], 0.8)
    assert np.allclose(np.quantile(drawn, 0.1, axis=1), low, atol=0.06 + (make is counted))
    assert np.allclose(np.quantile(drawn, 0.9, axis=1), high, atol=0.06 + (make is counted))
    mean, std = regressor.predict(X[:4], return_std=True)
    assert np.allclose(drawn.mean(1), mean, atol=4 * std.max() / np.sqrt(4000))
    if make is counted:  # a deviation of Student's t takes many more draws
        assert np.allclose(drawn.std(1), std, rtol=0.1)
        _, covariance = regressor.predict(X[:4], return_cov=True)
        assert np.allclose(np.diag(covariance), std**2)


def test_a_likelihood_that_does_not_fit_is_refused() -> None:
    X, y = table()
    with pytest.raises(ValueError, match="'counts' does not fit the targets: expected integers"):
        small(likelihood="counts").fit(X, y)
    with pytest.raises(ValueError, match="'correlated' does not fit .* several targets"):
        small(likelihood="correlated").fit(X, y)


def test_a_warm_start_keeps_the_likelihood() -> None:
    X, y, _ = counted()
    regressor = small(warm_start=True).fit(X, y)
    assert regressor.fit(X, y).likelihood_ == "counts"


def test_shapes(fitted: EvidenceRegressor) -> None:
    X, Y = table(20, targets=2)
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (20,)
    _, covariance = fitted.predict(X, return_cov=True)
    assert covariance.shape == (20, 20)
    assert np.allclose(np.sqrt(np.diag(covariance)), std)
    assert fitted.sample_y(X, 5).shape == (20, 5)
    several = small().fit(X, Y)
    mean, covariance = several.predict(X, return_cov=True)
    assert mean.shape == (20, 2)
    assert covariance.shape == (20, 20, 2)
    assert several.sample_y(X, 5).shape == (20, 2, 5)
    assert several.predict(X, return_std=True)[1].shape == (20, 2)
    with pytest.raises(ValueError, match="at most one"):
        fitted.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="level=95"):
        fitted.predict_interval(X, level=95)


def test_draws_agree_with_error_bars(fitted: EvidenceRegressor) -> None:
    X, _ = table(5, seed=3)
    mean, std = fitted.predict(X, return_std=True)
    drawn = fitted.sample_y(X, 3000, random_state=0)
    assert np.allclose(drawn.mean(1), mean, atol=4 * std.max() / np.sqrt(3000))
    assert np.allclose(drawn.std(1), std, rtol=0.1)


def test_units_do_not_matter(fitted: EvidenceRegressor) -> None:
    X, y = table()
    scale, shift = np.array([1e-6, 1.0, 1e9]), np.array([3.0, -1e3, 0.0])
    other = small().fit(X * scale + shift, 1e5 * y - 7)
    expected = 1e5 * fitted.predict(X) - 7
    assert np.allclose(other.predict(X * scale + shift), expected, rtol=1e-3, atol=1e2)


def test_order_of_rows_does_not_matter(fitted: EvidenceRegressor) -> None:
    X, y = table()
    assert np.allclose(small().fit(X[::-1], y[::-1]).predict(X), fitted.predict(X), atol=1e-4)


def test_a_weight_of_two_is_a_sample_twice() -> None:
    X, y = table()
    weight = np.arange(60) % 3
    index = np.repeat(np.arange(60), weight)
    once = small().fit(X, y, sample_weight=weight)
    twice = small().fit(X[index], y[index])
    for one, other in zip(
        once.predict(X, return_std=True), twice.predict(X, return_std=True), strict=True
    ):
        assert np.allclose(one, other, atol=1e-3)
    assert once.log_evidence_ == pytest.approx(twice.log_evidence_, rel=1e-4)


def test_random_state_decides(fitted: EvidenceRegressor) -> None:
    X, y = table()
    assert np.array_equal(small().fit(X, y).predict(X), fitted.predict(X))
    assert not np.array_equal(small(random_state=1).fit(X, y).predict(X), fitted.predict(X))


def test_sparse_and_frames() -> None:
    X, y = table()
    X[np.abs(X) < 0.5] = 0
    dense = small(max_iter=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = dense.fit(X, y).predict(X)
        sparse = scipy.sparse.csr_matrix(X)
        assert np.allclose(clone(dense).fit(sparse, y).predict(sparse), expected)
        frame = pd.DataFrame(X, columns=["x", "y", "z"])
        named = clone(dense).fit(frame, pd.Series(y, name="t"))
    assert np.allclose(named.predict(frame), expected)
    assert list(named.relevance_.index) == ["x", "y", "z"]
    assert named.relevance_["z"] < 0.2 * named.relevance_["x"]


def test_missing_values_are_refused_with_a_remedy() -> None:
    X, y = table()
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"NaN[\s\S]*imput"):
        small().fit(X, y)


@pytest.mark.parametrize("spread", [0.0, 1e-15, 1e-9])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_a_column_that_hardly_varied_does_not_explode_when_it_does(
    spread: float, offset: float
) -> None:
    X, y = table()
    X[:, 2] = offset + spread * X[:, 2]
    regressor = small().fit(X, y)
    later = X.copy()
    later[:, 2] = offset + 10.0
    with pytest.warns(UserWarning, match="column"):
        predicted = regressor.predict(later)
    assert np.abs(predicted - regressor.predict(X)).max() < 3 * y.std()


@pytest.mark.parametrize(
    ("n", "d"), [(2, 1), (2, 3), (3, 1), (30, 1), (20, 4000)], ids=lambda x: str(x)
)
def test_tables_of_odd_shapes(n: int, d: int) -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(n, d)), random.normal(size=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mean, std = small(max_iter=30).fit(X, y).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.abs(mean - y.mean()).max() < 4 * y.std()


def test_a_constant_target_is_predicted() -> None:
    X, _ = table()
    mean, std = small().fit(X, np.full(60, 7.0)).predict(X, return_std=True)
    assert np.allclose(mean, 7)
    assert (std < 0.1).all()


def test_clone_pickle_pipeline_and_search(fitted: EvidenceRegressor) -> None:
    X, y = table()
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(X), fitted.predict(X))
    piped = make_pipeline(StandardScaler(), clone(fitted)).fit(X, y)
    assert np.allclose(piped.predict(X), fitted.predict(X), atol=1e-3)
    search = GridSearchCV(small(max_iter=60), {"hidden_layer_sizes": [2, 6]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8


def test_in_threads_and_threads_are_given_back() -> None:
    X, y = table()
    before = torch.get_num_threads()
    one = cross_val_score(small(), X, y, cv=2)
    with joblib.parallel_backend("threading"):
        two = cross_val_score(small(), X, y, cv=2, n_jobs=2)
    assert np.allclose(one, two, atol=1e-6)
    assert torch.get_num_threads() == before


def test_warm_start_goes_on() -> None:
    X, y = table()
    regressor = small(max_iter=4, warm_start=True)
    with pytest.warns(ConvergenceWarning, match="max_iter=4"):
        regressor.fit(X, y)
    first = regressor.log_evidence_
    regressor.set_params(max_iter=100).fit(X, y)
    assert regressor.log_evidence_ > first
    regressor.fit(X, y)
    assert regressor.n_iter_ < 20


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_linnerud(return_X_y=True)
    small(verbose=True).fit(X, y)
    assert "log evidence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_layer_sizes": ()}, "at least one layer"),
        ({"hidden_layer_sizes": (3, 0)}, "at least one unit"),
        ({"likelihood": "some"}, "'likelihood' parameter"),
        ({"n_networks": 0}, "'n_networks' parameter"),
        ({"max_iter": 0}, "'max_iter' parameter"),
    ],
)
def test_parameters_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings).fit(*table())


@pytest.mark.parametrize("device", ["abacus", "meta", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"device='{device}': expected a torch device"):
        small(device=device).fit(*table())


def test_a_device_may_have_a_number() -> None:
    X, y = table()
    expected = small().fit(X, y).predict(X)
    assert np.allclose(small(device="cpu:0").fit(X, y).predict(X), expected)


def test_negative_weights_are_refused() -> None:
    X, y = table()
    with pytest.raises(ValueError, match="negative"):
        small().fit(X, y, sample_weight=np.linspace(-1, 1, 60))


def test_plots(fitted: EvidenceRegressor) -> None:
    X, y = table()
    assert len(fitted.plot_relevance().patches) == 3
    assert len(fitted.plot_evidence().lines) == 2
    assert fitted.plot_predictions(X, y).get_xlabel() == "predicted"
    X, Y = load_linnerud(return_X_y=True, as_frame=True)
    several = small().fit(X, Y)
    axes = several.plot_correlation()
    assert [text.get_text() for text in axes.get_xticklabels()] == list(Y.columns)


def test_many_rows_are_learned_from_a_part_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adareg.sklearn._evidence_base._LARGE", 200)
    monkeypatch.setattr("adareg.sklearn._evidence_base._PART", 100)
    X, y = table(400)
    assert small().fit(X, y).score(X, y) > 0.95


def test_many_columns_and_targets_keep_the_leading_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adareg.sklearn._evidence_base._AFFORDABLE", 1e6)
    X, Y = load_diabetes(return_X_y=True)
    X = np.hstack([X, X @ np.random.default_rng(0).normal(size=(10, 20))])
    regressor = small(hidden_layer_sizes=2).fit(X[:200], Y[:200])
    assert regressor.relevance_.shape == (30,)
    assert regressor.score(X[200:], Y[200:]) > 0.4


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_the_width_of_the_better_score_is_taken(noise):
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (60, 2))
    y = np.sin(2 * X[:, 0]) + noise * generator.normal(size=60)
    gaussian = {"likelihood": "gaussian"}
    scores = {
        width: small(hidden_layer_sizes=width, n_networks=1, **gaussian)
        .fit(X, y)
        .networks_[0]
        .score
        for width in (10, 30)
    }
    chosen = small(hidden_layer_sizes=None, n_networks=2, **gaussian).fit(X, y)
    assert chosen.hidden_layer_sizes_ == (max(scores, key=scores.get),)
    assert all(one.network.hidden == chosen.hidden_layer_sizes_ for one in chosen.networks_)
    again = small(hidden_layer_sizes=None, n_networks=2, warm_start=True, **gaussian).fit(X, y)
    assert again.fit(X, y).hidden_layer_sizes_ == chosen.hidden_layer_sizes_
