"""EvidenceClassifier, as its users call it."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from adareg.sklearn import EvidenceClassifier

Array = NDArray[Any]


def small(**settings: Any) -> EvidenceClassifier:
    """One that is quick, and need not be good."""
    chosen = {"hidden_layer_sizes": 5, "n_networks": 2, "random_state": 0, **settings}
    return EvidenceClassifier(**chosen)


def table(n: int = 60, classes: int = 3, seed: int = 0) -> tuple[Array, Array]:
    X, y = make_classification(
        n, 5, n_informative=4, n_redundant=0, n_classes=classes, random_state=seed, flip_y=0.1
    )
    return X, np.array(["ant", "bee", "cat"])[y]


@pytest.fixture(scope="module")
def fitted() -> EvidenceClassifier:
    return small().fit(*table())


def test_scikit_learn_checks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(
            EvidenceClassifier(hidden_layer_sizes=3, n_networks=1, max_iter=40), on_skip=None
        )


def test_is_better_than_a_linear_model_where_that_is_wrong() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = ((X[:, 0] * X[:, 1] + 0.3 * random.normal(size=300)) > 0).astype(int)
    classifier = small(hidden_layer_sizes=20).fit(X[:150], y[:150])
    linear = LogisticRegression().fit(X[:150], y[:150])
    assert classifier.score(X[150:], y[150:]) > linear.score(X[150:], y[150:]) + 0.2


def test_names_of_classes_come_back(fitted: EvidenceClassifier) -> None:
    X, y = table()
    assert list(fitted.classes_) == ["ant", "bee", "cat"]
    assert set(fitted.predict(X)) <= set(y)
    assert list(fitted.row_correlation_.columns) == ["ant", "bee", "cat"]
    low, high = fitted.row_correlation_interval_
    assert (low <= fitted.row_correlation_).all(axis=None)
    assert (high >= fitted.row_correlation_).all(axis=None)


def test_probabilities_sum_to_one_and_say_what_is_predicted(fitted: EvidenceClassifier) -> None:
    X, _ = table(seed=1)
    p = fitted.predict_proba(X)
    assert np.allclose(p.sum(1), 1)
    assert (fitted.classes_[p.argmax(1)] == fitted.predict(X)).all()
    assert np.allclose(np.log(p), fitted.predict_log_proba(X))


def test_far_from_the_data_probabilities_are_less_sure_than_those_of_the_weights() -> None:
    X, y = table(40, classes=2)
    classifier = small(n_networks=1).fit(X, y)
    (one,) = classifier.networks_
    x = 3 * X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logits = one.network(one.state.w, classifier._inputs(x)).numpy()[:, 0]
        averaged = classifier.predict_log_proba(x)
    sure = np.abs(classifier.sharpness_ * logits)
    assert (np.abs(averaged[:, 1] - averaged[:, 0]) < sure).all()


def test_probabilities_are_calibrated_on_separable_and_on_noisy_data() -> None:
    for flip in (0.0, 0.4):
        X, y = make_classification(600, 4, n_redundant=0, flip_y=flip, random_state=1)
        classifier = small().fit(X[:150], y[:150])
        p = classifier.predict_proba(X[150:])
        wrong = (p.argmax(1) != y[150:]).mean()
        assert abs((1 - p.max(1)).mean() - wrong) < 0.06
        assert log_loss(y[150:], p) < log_loss(y[150:], np.full_like(p, 0.5))


def test_several_labels() -> None:
    X, Y = make_multilabel_classification(150, 6, n_classes=3, random_state=0)
    classifier = small().fit(X[:100], Y[:100])
    p, predicted = classifier.predict_proba(X[100:]), classifier.predict(X[100:])
    assert p.shape == predicted.shape == (50, 3)
    assert ((p > 0.5) == predicted).all()
    assert (predicted == Y[100:]).mean() > 0.75
    assert classifier.row_correlation_.shape == (3, 3)
    named = small().fit(X, pd.DataFrame(Y, columns=["a", "b", "c"]))
    assert list(named.row_correlation_.columns) == ["a", "b", "c"]


def test_one_class_is_refused() -> None:
    X, _ = table()
    with pytest.raises(ValueError, match="only one class, 'ant'"):
        small().fit(X, ["ant"] * len(X))
    y = np.array(["ant"] * (len(X) - 1) + ["bee"])
    with pytest.raises(ValueError, match="weight above zero"):
        small().fit(X, y, sample_weight=(y == "ant").astype(float))


def test_a_rare_class_is_predicted_with_its_frequency() -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 3)), np.zeros(200, int)
    y[:6] = 1
    p = small().fit(X, y).predict_proba(X)[:, 1]
    assert 0.01 < p.mean() < 0.1


def test_weights_count_samples() -> None:
    X, y = table()
    weight = np.resize([1.0, 2.0, 0.0], len(X))
    repeated = np.repeat(np.arange(len(X)), weight.astype(int))
    weighted = small().fit(X, y, sample_weight=weight)
    longer = small().fit(X[repeated], y[repeated])
    assert weighted.sharpness_ == pytest.approx(longer.sharpness_)
    assert np.allclose(weighted.predict_proba(X), longer.predict_proba(X), atol=1e-5)


def test_data_frames_sparse_matrices_pickles_clones_and_searches() -> None:
    X, y = load_iris(return_X_y=True, as_frame=True)
    X, y = X[::3], y[::3]
    classifier = small().fit(X, y)
    assert list(classifier.relevance_.index) == list(X.columns)
    expected = classifier.predict_proba(X)
    assert np.array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(X), expected)
    assert np.array_equal(clone(classifier).fit(X, y).predict_proba(X), expected)
    sparse = scipy.sparse.csr_matrix(X.to_numpy())
    assert np.allclose(small().fit(sparse, y).predict_proba(sparse), expected)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), small(n_networks=1)),
        {"evidenceclassifier__hidden_layer_sizes": [2, 4]},
        cv=2,
    )
    assert search.fit(X, y).best_score_ > 0.8


def test_warm_start_goes_on() -> None:
    X, y = table()
    with pytest.warns(ConvergenceWarning, match="warm_start"):
        classifier = small(max_iter=5, warm_start=True).fit(X, y)
    classifier.set_params(max_iter=300).fit(X, y)
    assert classifier.score(X, y) > 0.6


def test_larger_tables_are_learned_from_random_labels() -> None:
    X, y = make_classification(3000, 6, n_informative=5, n_redundant=0, n_classes=4, random_state=0)
    classifier = small(n_networks=1).fit(X[:2500], y[:2500])
    assert classifier._likelihood.draws < 4
    assert classifier.score(X[2500:], y[2500:]) > 0.7
