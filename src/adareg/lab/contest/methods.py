"""Who competes: one row for each method, run as its users run it.

To add one, write a row. Whatever is tuned is tuned by five-fold cross-validation on the training
rows alone, with standardisation inside each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV  # type: ignore[import-untyped]
from sklearn.compose import TransformedTargetRegressor  # type: ignore[import-untyped]
from sklearn.cross_decomposition import PLSRegression  # type: ignore[import-untyped]
from sklearn.ensemble import (  # type: ignore[import-untyped]
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import (  # type: ignore[import-untyped]
    RBF,
    ConstantKernel,
    WhiteKernel,
)
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
from sklearn.model_selection import (  # type: ignore[import-untyped]
    GridSearchCV,
    KFold,
    cross_val_predict,
)
from sklearn.multioutput import MultiOutputRegressor  # type: ignore[import-untyped]
from sklearn.neural_network import MLPClassifier, MLPRegressor  # type: ignore[import-untyped]
from sklearn.pipeline import Pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]
from sklearn.svm import SVC  # type: ignore[import-untyped]

from adareg.lab.contest.problem import FOLDS, Problem, preparation
from adareg.lab.contest.scores import log_likelihood
from adareg.lab.contest.suites import CELLS, SPLITS

#: A Gaussian process is cubic in its rows; it gets no more than these, drawn at random: so many
#: with one length scale, and so many with one for each input.
MOST_ROWS, MOST_ROWS_ARD = 2_000, 1_500
TREES = 300
MODEL = "model"

Noise = Callable[[Any, Problem], float]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A competitor.

    Attributes:
        label: for people.
        what: how its users run it, for people.
        suites: where it competes.
        build: makes an estimator for a problem, not fitted.
        noise: the variance of the errors, from the fitted estimator; None if it predicts with
            error bars of its own, or with probabilities.
        seconds: what a fit takes at 1,000 rows, roughly, to run long ones first.
        power: by which power of the rows that grows.
        most: rows that it looks at; all if None.
        smallest: the smallest scale at which it competes: "smoke", "small" or "paper".
    """

    label: str
    what: str
    suites: tuple[str, ...]
    build: Callable[[Problem], Any]
    noise: Noise | None = None
    seconds: float = 1.0
    power: float = 1.0
    most: int | None = None
    smallest: str = "smoke"

    def estimate(self, rows: int) -> float:
        """Seconds that a fit on so many rows takes, roughly."""
        return self.seconds * (min(rows, self.most or rows) / 1000) ** self.power


def _pipeline(problem: Problem, model: Any, *, scaled: bool = True) -> Pipeline:
    return Pipeline([("inputs", preparation(problem.x, scaled)), (MODEL, model)])


def _powers(first: float, last: float, step: float) -> list[float]:
    """Powers of ten with these exponents."""
    return [float(10**e) for e in np.arange(first, last + step / 2, step)]


def _tuned(
    problem: Problem,
    model: Any,
    grid: Mapping[str, Sequence[Any]],
    *,
    scaled: bool = True,
    scoring: Any = None,
    folds: Any = FOLDS,
) -> GridSearchCV:
    """A model whose settings cross-validation chooses: by squared error, or by log loss."""
    loss = "neg_log_loss" if problem.classes else "neg_mean_squared_error"
    space = {f"{MODEL}__{name}": list(values) for name, values in grid.items()}
    pipeline = _pipeline(problem, model, scaled=scaled)
    return GridSearchCV(pipeline, space, cv=folds, scoring=scoring or loss)


# The evidence rule


def _evidence(problem: Problem, **settings: Any) -> Pipeline:
    return _pipeline(problem, _evidence_model(problem, **settings), scaled=False)


def _separate(problem: Problem) -> Pipeline:
    model = MultiOutputRegressor(_evidence_model(problem))
    return _pipeline(problem, model, scaled=False)


def _evidence_model(problem: Problem, **settings: Any) -> Any:
    kind = "EvidenceClassifier" if problem.classes else "EvidenceRegressor"
    return getattr(import_module("adareg.sklearn"), kind)(random_state=problem.seed, **settings)


# Others that predict with error bars


class SubsetGaussianProcess(GaussianProcessRegressor):  # type: ignore[misc]
    """A Gaussian process that is fitted to ``MOST_ROWS`` rows at most, drawn at random."""

    most_rows = MOST_ROWS

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> SubsetGaussianProcess:
        """Fit to some of the rows."""
        chosen = np.random.default_rng(self.random_state).permutation(len(X))[: self.most_rows]
        super().fit(X[chosen], y[chosen])
        return self


class SubsetGaussianProcessARD(SubsetGaussianProcess):
    """The same with ``MOST_ROWS_ARD`` rows at most: its gradient has an n x n matrix per input."""

    most_rows = MOST_ROWS_ARD


def _gaussian_process(problem: Problem) -> Pipeline:
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    model = SubsetGaussianProcess(kernel, normalize_y=True, random_state=problem.seed)
    return _pipeline(problem, model)


def _gaussian_process_ard(problem: Problem) -> Pipeline:
    kernel = ConstantKernel() * RBF(np.ones(problem.x.shape[1])) + WhiteKernel()
    model = SubsetGaussianProcessARD(kernel, normalize_y=True, random_state=problem.seed)
    return _pipeline(problem, model)


# The others: their noise is what cross-validation says of their errors


def _forest(problem: Problem) -> Pipeline:
    settings = {"n_estimators": TREES, "random_state": problem.seed}
    if problem.classes:
        return _pipeline(problem, RandomForestClassifier(**settings), scaled=False)
    return _pipeline(problem, RandomForestRegressor(oob_score=True, **settings), scaled=False)


def _boosting_model(problem: Problem) -> Any:
    kind = HistGradientBoostingClassifier if problem.classes else HistGradientBoostingRegressor
    return kind(random_state=problem.seed)


def _boosting(problem: Problem) -> Pipeline:
    return _pipeline(problem, _boosting_model(problem), scaled=False)


def _tuned_boosting(problem: Problem) -> GridSearchCV:
    grid = {"learning_rate": (0.03, 0.1), "max_leaf_nodes": (4, 10, 31)}
    return _tuned(problem, _boosting_model(problem), grid, scaled=False)


def _mlp(problem: Problem) -> Any:
    grid = {"alpha": _powers(-4, 1, 1)}
    settings = {"max_iter": 1000, "random_state": problem.seed}
    if problem.classes:
        return _tuned(problem, MLPClassifier(**settings), grid)
    tuned = _tuned(problem, MLPRegressor(**settings), grid)
    return TransformedTargetRegressor(tuned, transformer=StandardScaler())


def _ridge(problem: Problem) -> GridSearchCV:
    return _tuned(problem, Ridge(), {"alpha": _powers(-3, 4, 0.5)})


def _pls(problem: Problem) -> GridSearchCV:
    most = min(problem.x.shape[1], len(problem.x) // 2, 20)
    return _tuned(problem, PLSRegression(), {"n_components": range(1, most + 1)})


def _logistic(problem: Problem) -> GridSearchCV:
    model = LogisticRegression(max_iter=10_000)
    return _tuned(problem, model, {"C": _powers(-3, 3, 0.5)})


def _linear(problem: Problem) -> GridSearchCV:
    """A linear model for few samples, of which a class may have none in a fold."""
    folds = KFold(FOLDS, shuffle=True, random_state=problem.seed)
    if not problem.classes:
        grid = {"alpha": _powers(-3, 4, 0.5)}
        return _tuned(problem, Ridge(), grid, scaled=False, folds=folds)
    return _tuned(
        problem,
        LogisticRegression(max_iter=1000),
        {"C": _powers(-4, 2, 1)},
        scaled=False,
        scoring=log_likelihood,
        folds=folds,
    )


def _svm(problem: Problem) -> CalibratedClassifierCV:
    grid = {"C": (0.1, 1, 10, 100), "gamma": (0.01, "scale", 0.3)}
    tuned = _tuned(problem, SVC(random_state=problem.seed), grid, scoring="accuracy")
    return CalibratedClassifierCV(tuned, ensemble=False, cv=FOLDS)


def _out_of_bag(forest: Pipeline, problem: Problem) -> float:
    return float(np.mean((problem.y - forest[-1].oob_prediction_) ** 2))


def _cross_validated(estimator: Any, problem: Problem) -> float:
    left_out = cross_val_predict(estimator, problem.x, problem.y, cv=FOLDS)
    return float(np.mean((problem.y - left_out) ** 2))


def _chosen(search: GridSearchCV, problem: Problem) -> float:
    return float(-search.best_score_)


def _chosen_mlp(model: TransformedTargetRegressor, problem: Problem) -> float:
    return float(-model.regressor_.best_score_ * model.transformer_.var_.item())


REGRESSION, MULTI_TARGET, CLASSIFICATION = "regression", "multi-target", "classification"
ALL = (REGRESSION, MULTI_TARGET, CLASSIFICATION)

METHODS: dict[str, Method] = {
    "evidence": Method(
        label="evidence",
        what="`EvidenceRegressor()`, `EvidenceClassifier()`",
        suites=ALL,
        build=_evidence,
        seconds=8,
    ),
    "evidence-50": Method(
        label="evidence, 50 units",
        what="`EvidenceRegressor(hidden_layer_sizes=(50,), n_networks=1)`, as the published one",
        suites=(REGRESSION,),
        build=partial(_evidence, hidden_layer_sizes=(50,), n_networks=1),
        seconds=2,
    ),
    "evidence-separate": Method(
        label="evidence, separate",
        what="`MultiOutputRegressor(EvidenceRegressor())`, a network for each target",
        suites=(MULTI_TARGET,),
        build=_separate,
        seconds=15,
    ),
    "gaussian-process": Method(
        label="Gaussian process",
        what=f"`ConstantKernel() * RBF() + WhiteKernel()`, at most {MOST_ROWS:,} rows",
        suites=(REGRESSION, MULTI_TARGET),
        build=_gaussian_process,
        seconds=4,
        power=2.5,
        most=MOST_ROWS,
    ),
    "gaussian-process-ard": Method(
        label="Gaussian process, ARD",
        what=f"the same with a length scale for each input, at most {MOST_ROWS_ARD:,} rows",
        suites=(REGRESSION,),
        build=_gaussian_process_ard,
        seconds=20,
        power=2.5,
        most=MOST_ROWS_ARD,
    ),
    "forest": Method(
        label="forest",
        what=f"random forest of {TREES} trees",
        suites=ALL,
        build=_forest,
        noise=_out_of_bag,
        seconds=1.5,
    ),
    "boosting": Method(
        label="boosting",
        what="`HistGradientBoosting*()`",
        suites=(REGRESSION, CLASSIFICATION),
        build=_boosting,
        noise=_cross_validated,
        seconds=0.5,
        power=0.3,
    ),
    "boosting-cv": Method(
        label="boosting-CV",
        what="the same, rate and leaves of six settings by cross-validation",
        suites=(REGRESSION, CLASSIFICATION),
        build=_tuned_boosting,
        noise=_chosen,
        seconds=5,
        power=0.3,
        smallest="paper",
    ),
    "mlp-cv": Method(
        label="MLP-CV",
        what="`MLP*(max_iter=1000)`, 100 units, alpha of six by cross-validation",
        suites=ALL,
        build=_mlp,
        noise=_chosen_mlp,
        seconds=30,
        power=0.5,
        smallest="small",
    ),
    "ridge-cv": Method(
        label="ridge-CV",
        what="alpha of 15 by cross-validation",
        suites=(REGRESSION, MULTI_TARGET),
        build=_ridge,
        noise=_chosen,
        seconds=0.5,
        power=0.3,
    ),
    "pls-cv": Method(
        label="PLS-CV",
        what="up to 20 components by cross-validation",
        suites=(MULTI_TARGET,),
        build=_pls,
        seconds=1,
    ),
    "logistic-cv": Method(
        label="logistic-CV",
        what="C of 13 by cross-validation",
        suites=(CLASSIFICATION,),
        build=_logistic,
        seconds=2,
    ),
    "svm-cv": Method(
        label="SVM-CV",
        what="RBF kernel, C and gamma of twelve settings by cross-validation, then calibrated",
        suites=(CLASSIFICATION,),
        build=_svm,
        seconds=10,
        smallest="paper",
    ),
    "linear": Method(
        label="linear",
        what="ridge or logistic regression, strength by cross-validation, inputs as the networks'",
        suites=(CELLS,),
        build=_linear,
        noise=_chosen,
        seconds=5,
    ),
}


def check(names: Sequence[str]) -> None:
    """Refuse names that are none of a method's.

    Raises:
        ValueError: a name is none of a method's.
    """
    if unknown := [name for name in names if name not in METHODS]:
        raise ValueError(f"no method {', '.join(unknown)}; there are: {', '.join(METHODS)}")


def choose(suite: str, scale: str, names: Sequence[str] = ()) -> list[str]:
    """The methods that compete in a suite at a scale, or those of some names."""
    rows = {name: row for name, row in METHODS.items() if suite in row.suites}
    if names:
        return [name for name in rows if name in names]
    scales = list(SPLITS)
    return [n for n, row in rows.items() if scales.index(row.smallest) <= scales.index(scale)]
