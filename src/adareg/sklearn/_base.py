"""What classifier and regressor share: fitting, stopping, and looking at the result.

They do not subclass scikit-learn's MLP. What would have to be overridden there (``_backprop``,
``_compute_loss_grad``, both solvers) is private and takes other arguments in 1.6 than in 1.9, it
knows neither devices nor a penalty that changes between steps, and updates of a prior belong in the
middle of its loops. Nor do they use torch.optim, whose Adam and SGD are not scikit-learn's.
"""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_is_fitted,
    validate_data,
)
from torch import nn

from adareg._threads import SMALL_STEP, one_thread
from adareg.core.linalg import NonFiniteError
from adareg.core.metrics import correlation, stable_rank
from adareg.nn.adareg import AdaReg
from adareg.sklearn import _prior as prior
from adareg.sklearn import _solvers as solvers
from adareg.sklearn._data import Array, Samples, check_sample_weight, chunks
from adareg.sklearn._network import NUMPY, OUTPUTS, Objective, build, layer_units, linears
from adareg.sklearn._parameters import Parameters, check_parameters
from adareg.sklearn._plot import draw_correlation
from adareg.sklearn._progress import progress_bar

_DIVERGED = (
    "Solver produced non-finite parameter weights. The input data may contain large values and "
    "need to be preprocessed, or learning_rate_init is too large."
)


#: What the stochastic solvers keep between calls, and its first values.
_RECORDS: dict[str, Any] = {
    "loss_curve_": None,
    "best_loss_": None,
    "validation_scores_": None,
    "best_validation_score_": None,
    "_no_improvement_count": 0,
    "_best": None,
}


class BaseAdaReg(Parameters, BaseEstimator):  # type: ignore[misc]
    """A multilayer perceptron with a learned prior; see the two classes derived from it."""

    loss_curve_: list[float]
    best_loss_: float | None
    validation_scores_: list[float] | None
    best_validation_score_: float | None
    _no_improvement_count: int
    _best: tuple[dict[str, Any], dict[str, Any] | None] | None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on all of the data.

        Args:
            X: array, data frame or sparse matrix, (n_samples, n_features).
            y: labels or numbers, (n_samples,) or (n_samples, n_outputs).
            sample_weight: (n_samples,); the loss is a weighted mean.

        Returns:
            The estimator itself.
        """
        return self._fit(X, y, sample_weight, incremental=False)

    @property
    def coefs_(self) -> list[Array]:
        """The weights of each layer, (fan_in, fan_out) as scikit-learn has them."""
        return [layer.weight.detach().cpu().numpy().T for layer in linears(self._fitted())]

    @property
    def intercepts_(self) -> list[Array]:
        """The biases of each layer."""
        return [layer.bias.detach().cpu().numpy() for layer in linears(self._fitted())]

    @property
    def stable_rank_(self) -> float:
        """The stable rank of the last layer's weight, which the prior is there to lower."""
        return stable_rank(linears(self._fitted())[-1].weight).item()

    @property
    def row_correlation_(self) -> Any:
        """How the outputs' weights correlate, (n_outputs, n_outputs): which classes are alike.

        A data frame with names where pandas is installed, else an array. As the paper draws
        it: between the rows of the last layer's weight (:func:`adareg.correlation`).
        """
        values = correlation(linears(self._fitted())[-1].weight.detach()).cpu().numpy()
        try:
            from pandas import DataFrame
        except ImportError:
            return values
        return DataFrame(values, index=self.output_names_, columns=self.output_names_)

    def plot_correlation(self, ax: Any = None) -> Any:
        """Draw ``row_correlation_`` as a heat map with the names of classes or targets.

        Args:
            ax: matplotlib Axes to draw on; None makes a figure.

        Returns:
            The Axes.
        """
        return draw_correlation(np.asarray(self.row_correlation_), self.output_names_, ax)

    def _fit(self, X: Any, y: Any, sample_weight: Any, incremental: bool) -> Self:
        check_parameters(self.get_params(deep=False))
        if incremental and self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True")
        first = not hasattr(self, "model_") or not (self.warm_start or incremental)
        names = _names_in(y)
        X, Y = self._validate_input(X, y, incremental, reset=first)
        weight = check_sample_weight(sample_weight, X)
        random = _random_source(self.random_state)
        units = [X.shape[1], *self._hidden_sizes(), Y.shape[1]]
        if first:
            self._initialize(units, random, X.dtype)
            self.output_names_ = self._output_names(names)
        elif units != layer_units(self.model_):
            raise ValueError(
                f"a network of {layer_units(self.model_)} units cannot go on as one of {units}; "
                f"fit a new one, with warm_start=False"
            )
        with one_thread(self._is_small(X.shape[0], units)):
            self._train(X.astype(self._dtype, copy=False), Y, weight, random, incremental)
        return self

    def _is_small(self, n_samples: int, units: list[int]) -> bool:
        """Return if one thread is enough for a step."""
        whole = self.solver == "lbfgs"
        batch = 200 if self.batch_size == "auto" else int(self.batch_size)
        weights = sum(a * b for a, b in pairwise(units))
        return (n_samples if whole else min(batch, n_samples)) * weights < SMALL_STEP

    def _train(
        self,
        X: Any,
        Y: Array,
        weight: Array | None,
        random: np.random.RandomState,
        incremental: bool,
    ) -> None:
        try:
            if self.solver == "lbfgs":
                self._fit_lbfgs(X, Y, weight)
            else:
                self._fit_stochastic(X, Y, weight, random, incremental)
        except NonFiniteError as error:
            raise ValueError(_DIVERGED) from error
        if not all(bool(p.isfinite().all()) for p in self.model_.parameters()):
            raise ValueError(_DIVERGED)

    def _hidden_sizes(self) -> list[int]:
        sizes = self.hidden_layer_sizes
        return list(map(int, sizes if np.iterable(sizes) else [sizes]))

    def _initialize(self, units: list[int], random: np.random.RandomState, dtype: Any) -> None:
        torch_dtype = torch.float32 if dtype == np.float32 else torch.float64
        device = torch.device("cpu" if self.device is None else self.device)
        self.model_ = build(units, self.activation, random, torch_dtype).to(device)
        self._activation = self.activation
        self.regularizer_: AdaReg | None = None
        self.n_iter_, self.t_ = 0, 0
        self.n_outputs_, self.n_layers_ = units[-1], len(units)
        self.out_activation_ = self._out_activation()
        for name in _RECORDS:
            self.__dict__.pop(name, None)

    def _begin_records(self) -> None:
        """Make what is not there: from the start, or because parameters were changed since."""
        for name, value in _RECORDS.items():
            self.__dict__.setdefault(name, value)
        self.loss_curve_ = self.loss_curve_ or []
        if self.early_stopping and self.validation_scores_ is None:
            self.validation_scores_, self.best_validation_score_ = [], -math.inf
        if not self.early_stopping and self.best_loss_ is None:
            self.best_loss_ = math.inf

    def _fit_stochastic(
        self,
        X: Any,
        Y: Array,
        weight: Array | None,
        random: np.random.RandomState,
        incremental: bool,
    ) -> None:
        self._begin_records()
        training, validation = self._split(X, Y, weight, random)
        samples = Samples.of(*training, self._device)
        self._prepare_prior(len(samples), incremental)
        objective = self._objective()
        if not incremental or not hasattr(self, "_optimizer"):
            self._optimizer = solvers.STOCHASTIC[self.solver](self, objective.gradient)
        epochs = 1 if incremental else self.max_iter
        try:
            with progress_bar(bool(self.verbose), epochs) as progress:
                converged = self._run(objective, samples, validation, random, epochs, progress)
            if not (converged or incremental):
                limit = f"Maximum iterations ({self.max_iter})"
                _warn_not_converged("Stochastic Optimizer", limit)
        except KeyboardInterrupt:
            warnings.warn("Training interrupted by user.", stacklevel=5)
        self.model_.zero_grad()
        if validation is not None:
            self._restore_best()

    def _run(
        self,
        objective: Objective,
        samples: Samples,
        validation: Any,
        random: np.random.RandomState,
        epochs: int,
        progress: Any,
    ) -> bool:
        """Train for some epochs; whether it stopped because nothing improved any more."""
        order = np.arange(len(samples))
        size = self._batch_size(len(samples))
        self.n_iter_ = 0
        while self.n_iter_ < epochs:
            if self.shuffle:
                order = order[_permutation(len(order), random)]
            reg = self.regularizer_
            loss = solvers.run_epoch(objective, self._optimizer, reg, samples, order, size)
            self._count_epoch(loss, len(samples))
            self._update_prior()
            self._judge(validation)
            progress(loss)
            if self._no_improvement_count > self.n_iter_no_change:
                if not self._optimizer.slow_down():
                    return True
                self._no_improvement_count = 0
        return False

    def _count_epoch(self, loss: float, n_samples: int) -> None:
        self.n_iter_ += 1
        self.t_ += n_samples
        self.loss_ = loss
        self.loss_curve_.append(loss)

    def _update_prior(self) -> None:
        """Update the prior after an epoch, if it is time."""
        reg = self.regularizer_
        if reg is not None and len(self.loss_curve_) % self.update_every == 0:
            prior.update(reg)

    def _judge(self, validation: Any) -> None:
        if validation is None:
            self._judge_loss()
        else:
            self._judge_validation(*validation)
        self._optimizer.end_epoch(self.t_)

    def _judge_loss(self) -> None:
        assert self.best_loss_ is not None
        self._count_stagnation(self.loss_ > self.best_loss_ - self.tol)
        self.best_loss_ = min(self.best_loss_, self.loss_)

    def _judge_validation(self, X: Any, y: Array, weight: Array | None) -> None:
        assert self.validation_scores_ is not None
        assert self.best_validation_score_ is not None
        outputs = self._outputs(X)
        score = self._score(y, outputs, weight) if np.isfinite(outputs).all() else math.nan
        self.validation_scores_.append(score)
        self._count_stagnation(score < self.best_validation_score_ + self.tol)
        if score > self.best_validation_score_:
            self.best_validation_score_ = score
            weights = {name: x.clone() for name, x in self.model_.state_dict().items()}
            reg = self.regularizer_
            self._best = weights, None if reg is None else reg.state_dict()

    def _count_stagnation(self, stagnates: bool) -> None:
        self._no_improvement_count = self._no_improvement_count + 1 if stagnates else 0

    def _restore_best(self) -> None:
        if self._best is not None:
            weights, prior = self._best
            self.model_.load_state_dict(weights)
            if self.regularizer_ is not None and prior is not None:
                self.regularizer_.load_state_dict(prior)

    def _fit_lbfgs(self, X: Any, Y: Array, weight: Array | None) -> None:
        samples = Samples.of(X, Y, weight, self._device)
        self._prepare_prior(len(samples), incremental=False)
        with progress_bar(bool(self.verbose), self.max_iter) as progress:
            self.n_iter_, self.loss_, converged = solvers.minimize(
                self._objective(), self.regularizer_, samples, self, progress
            )
        self.model_.zero_grad()
        if not converged:
            all_run = self.n_iter_ >= self.max_iter
            limit = f"iterations ({self.max_iter})" if all_run else f"calls ({self.max_fun})"
            _warn_not_converged("lbfgs", f"Maximum {limit}")

    def _prepare_prior(self, n_samples: int, incremental: bool) -> None:
        seen = self.t_ + n_samples if incremental else n_samples
        old, self.regularizer_ = self.regularizer_, None
        self.regularizer_ = prior.prepare(self, self.model_, seen, old)

    def _split(
        self, X: Any, Y: Array, weight: Array | None, random: np.random.RandomState
    ) -> tuple[tuple[Any, Any, Any], Any]:
        """What is trained on, and with early stopping what the score is computed on."""
        if not self.early_stopping:
            return (X, Y, weight), None
        arrays = [X, Y] if weight is None else [X, Y, weight]
        parts = train_test_split(
            *arrays,
            random_state=random,
            test_size=self.validation_fraction,
            stratify=self._stratify_by(Y),
        )
        X, X_held, Y, Y_held, weight, weight_held = [*parts, None, None][:6]
        if X_held.shape[0] < 2:
            raise ValueError(
                "The validation set is too small. Increase 'validation_fraction' or the size of "
                "your dataset."
            )
        return (X, Y, weight), (X_held, self._decode(Y_held), weight_held)

    def _batch_size(self, n_samples: int) -> int:
        if self.batch_size == "auto":
            return min(200, n_samples)
        if self.batch_size > n_samples:
            message = f"batch_size={self.batch_size} is larger than the {n_samples} samples"
            warnings.warn(f"{message}; all of them make one batch", stacklevel=7)
        return min(int(self.batch_size), n_samples)

    def _objective(self) -> Objective:
        return Objective(self.model_, self._activation, self.out_activation_, self.alpha)

    @torch.no_grad()
    def _outputs(self, X: Any) -> Array:
        """The last layer's values for rows that have been checked."""
        like = next(self.model_.parameters())
        return torch.cat([self.model_(x) for x in chunks(X, like)]).cpu().numpy()

    def _checked_outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=self._dtype, reset=False)
        return self._outputs(X)

    def _link(self, outputs: Array) -> Array:
        """Predictions from the last layer's values."""
        return OUTPUTS[self.out_activation_](NUMPY, outputs, outputs)[0]

    @property
    def _dtype(self) -> Any:
        like = next(self.model_.parameters())
        return np.float32 if like.dtype == torch.float32 else np.float64

    @property
    def _device(self) -> torch.device:
        return next(self.model_.parameters()).device

    def _fitted(self) -> nn.Sequential:
        check_is_fitted(self)
        return self.model_

    def _check_incremental(self) -> bool:
        if self.solver not in solvers.STOCHASTIC:
            raise AttributeError(
                f"partial_fit is only available for stochastic optimizers; solver="
                f"{self.solver!r} is not one of {', '.join(map(repr, solvers.STOCHASTIC))}"
            )
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _random_source(seed: Any) -> np.random.RandomState:
    """A source of our own for None, so that nobody else's is moved on."""
    return check_random_state(np.random.RandomState() if seed is None else seed)


def _permutation(n: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """The order that ``sklearn.utils.shuffle`` would make."""
    order = np.arange(n)
    random.shuffle(order)
    return order


def _names_in(y: Any) -> list[Any] | None:
    """The names that a data frame or a series brings along."""
    if hasattr(y, "columns"):
        return list(y.columns)
    return [y.name] if getattr(y, "name", None) is not None else None


def _warn_not_converged(solver: str, limit: str) -> None:
    warnings.warn(
        f"{solver}: {limit} reached and the optimization hasn't converged yet.",
        ConvergenceWarning,
        stacklevel=6,
    )
