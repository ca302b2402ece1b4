"""``rule="evidence"`` beside scikit-learn's MLP whose ``alpha`` is tuned by cross-validation.

Run it with ``python benchmarks/sklearn_evidence.py``. Data that come with scikit-learn, inputs (and
targets) standardised, a few rows to train on and the rest to test, the same split and the same
initial weights for all. A time is that of all that has to be done, the search included.
"""

import argparse
import os
import time
import warnings

import numpy as np
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from adareg.sklearn import AdaRegClassifier, AdaRegRegressor

#: Rows to train on.
SIZES = {"wine": 40, "digits": 200, "breast_cancer": 60, "diabetes": 100, "linnerud": 12}
REGRESSION = {"diabetes", "linnerud"}
ALPHAS = {"alpha": np.logspace(-4, 2, 7)}
SOLVERS = {
    "adam": {"learning_rate_init": 0.01, "max_iter": 1000},
    "lbfgs": {"max_iter": 2000},
}


def estimators(regression: bool, settings: dict) -> dict:
    """What is compared, by name."""
    MLP, Ours = (MLPRegressor, AdaRegRegressor) if regression else (MLPClassifier, AdaRegClassifier)
    return {
        "MLP": MLP(**settings),
        "MLP, alpha tuned": GridSearchCV(MLP(**settings), ALPHAS, cv=5),
        "evidence": Ours(rule="evidence", layers="all", **settings),
    }


def data(name: str, seed: int) -> tuple:
    """A split, standardised by its training part."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    stratify = None if name in REGRESSION else y
    X, X_test, y, y_test = train_test_split(
        X, y, train_size=SIZES[name], random_state=seed, stratify=stratify
    )
    scaler = StandardScaler().fit(X)
    if name in REGRESSION:
        y, y_test = (y - y.mean(0)) / y.std(0), (y_test - y.mean(0)) / y.std(0)
    return scaler.transform(X), y, scaler.transform(X_test), y_test


def measure(name: str, solver: str, splits: int) -> dict[str, np.ndarray]:
    """Score, log loss and seconds of each split, by estimator."""
    rows: dict[str, list] = {}
    for seed in range(splits):
        X, y, X_test, y_test = data(name, seed)
        settings = {"hidden_layer_sizes": (50,), "solver": solver, "random_state": seed}
        for key, estimator in estimators(name in REGRESSION, settings | SOLVERS[solver]).items():
            start = time.perf_counter()
            estimator.fit(X, y)
            seconds = time.perf_counter() - start
            loss = np.nan
            if name not in REGRESSION:
                loss = log_loss(y_test, estimator.predict_proba(X_test))
            rows.setdefault(key, []).append((estimator.score(X_test, y_test), loss, seconds))
    return {key: np.array(values) for key, values in rows.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--data", nargs="+", choices=SIZES, default=list(SIZES))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{arguments.splits} splits, load {os.getloadavg()[0]:.1f}")
    print(f"{'':24}{'':18}{'accuracy or R²':>16}{'over tuned':>16}{'log loss':>10}{'fit':>10}")
    for name in arguments.data:
        for solver in SOLVERS:
            results = measure(name, solver, arguments.splits)
            tuned = results["MLP, alpha tuned"][:, 0]
            for key, values in results.items():
                score, loss, seconds = values.mean(0)
                gain = values[:, 0] - tuned
                error = gain.std(ddof=1) / len(gain) ** 0.5
                row = f"{name + ' ' + str(SIZES[name]) + ' ' + solver:24}{key:18}{score:16.3f}"
                print(f"{row}{gain.mean():+9.3f}±{error:.3f}{loss:10.3f}{seconds:8.2f} s")


if __name__ == "__main__":
    main()
