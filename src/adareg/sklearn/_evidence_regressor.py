"""Regression with nothing to choose."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import RegressorMixin  # type: ignore[import-untyped]
from sklearn.utils import (  # type: ignore[import-untyped]
    assert_all_finite,
    check_random_state,
)
from sklearn.utils._param_validation import StrOptions  # type: ignore[import-untyped]
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from adareg._optional import load
from adareg.core.evidence import predict
from adareg.core.evidence.learn import Learned, Table
from adareg.core.evidence.tabular import TableLikelihood
from adareg.sklearn._checks import refuse_times
from adareg.sklearn._data import Array
from adareg.sklearn._evidence_base import BaseEvidence
from adareg.sklearn._observations import OBSERVATIONS, Observations, promising
from adareg.sklearn._standardise import Targets

#: Deviations of targets whose squares can be represented, with room for shares of them.
_SCALES = 1e-145, 1e150


class EvidenceRegressor(RegressorMixin, BaseEvidence):  # type: ignore[misc]
    """Regression of one or several targets on a table, with error bars and nothing to choose.

    A few small networks with a linear path, each with a Gaussian prior whose variances (one for
    each input column, one for each layer) and noise are learned from the training data by their log
    evidence. Inputs and targets are standardised inside, and skewed columns also enter by a power
    that makes them nearly normal. Predictions of the networks are mixed by their precision at each
    sample. No validation data are needed, and there is nothing to tune.

    Args:
        hidden_layer_sizes: units of each hidden layer. None is one layer of 10 or of 30, whichever
            has the higher mean of log evidence and left-out log-likelihood.
        likelihood: ``"gaussian"`` noise, of each target its own; ``"correlated"``, Gaussian noise
            with a covariance of the targets; ``"student"``, Student's t of each target, for
            outliers; ``"counts"``, a negative binomial. None is the one with the highest mean of
            log evidence and left-out log-likelihood, of those that fit the targets.
        n_networks: predictions are mixed from so many, which differ in their first weights.
        max_iter: steps for each network, at most.
        tol: a network has learned when ten steps gain no more than this, in nats for each sample.
        warm_start: begin where the last ``fit`` ended.
        verbose: show progress.
        random_state: draws the first weights.
        device: where to learn, ``"cuda"`` for example. None is the CPU.

    Attributes:
        hidden_layer_sizes_: units of each hidden layer, chosen or given.
        likelihood_: the name of the likelihood, chosen or given.
        noise_: variance of the noise of each target, in its units squared; of counts, whose
            variance is ``μ + αμ²``, the dispersion α.
        noise_covariance_: of Gaussian and Student's noise, (n_targets, n_targets).
        log_evidence_: of the training targets, in the mean over networks.
        gamma_: how many weights the data determine.
        relevance_: what each input column is worth: root mean square gradients of the predictions
            with respect to standardised columns, as shares.
        row_correlation_: how targets' output weights correlate.
        row_correlation_interval_: within which they lie with a probability of 95 %, (2, K, K).
        n_iter_: steps of the network that took most.
        evidence_curve_: the log evidence of each network after each refit of its prior.

    >>> from sklearn.datasets import load_diabetes
    >>> from adareg.sklearn import EvidenceRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> regressor = EvidenceRegressor(random_state=0).fit(X[:300], y[:300])
    >>> mean, std = regressor.predict(X[300:], return_std=True)
    >>> covered = (abs(y[300:] - mean) < 1.96 * std).mean()
    >>> bool(0.9 < covered < 1)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseEvidence._parameter_constraints,
        "likelihood": [StrOptions(set(OBSERVATIONS)), None],
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = None,
        *,
        likelihood: str | None = None,
        n_networks: int = 3,
        max_iter: int = 200,
        tol: float = 0.02,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
        device: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.likelihood = likelihood
        self.n_networks = n_networks
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    def _check(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        refuse_times(y, "y")
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            y_numeric=True,
            dtype=np.float64,
            ensure_min_samples=2,
            reset=reset,
        )
        y = y.astype(np.float64, copy=False)
        assert_all_finite(y, input_name="y")
        return X, y

    def _targets(self, y: Array, weight: Array, names: Any) -> tuple[Any, TableLikelihood]:
        self._one_target = y.ndim == 1
        Y = y.reshape(len(y), -1)
        self.output_names_ = np.asarray(names if names is not None else range(Y.shape[1]))
        if len(Y) < 2:
            raise ValueError("only one sample has a weight above zero: expected at least two")
        _refuse_units(Targets.of(Y, weight).scale, self.output_names_)
        self._raw = Y, weight
        name = self.likelihood or next(iter(OBSERVATIONS))
        if self.warm_start and hasattr(self, "likelihood_"):
            name = self.likelihood_
        kind = OBSERVATIONS[name]
        if expected := kind.misfit(Y):
            raise ValueError(f"likelihood={name!r} does not fit the targets: expected {expected}")
        self._observe(kind.of(Y, weight))
        return self._observations.prepared(Y), self._likelihood

    def _observe(self, observations: Observations) -> None:
        self._observations, self._likelihood = observations, observations.likelihood
        self.likelihood_ = observations.name

    def _reconsider(
        self, table: Table, first: Learned, seed: int, progress: Any
    ) -> tuple[Table, Learned]:
        if self.likelihood is not None:
            return table, first
        Y, weight = self._raw
        least = self.tol * table.size
        tried = [(self._score(first, table) + least, self._observations, table, first)]
        for one in promising(first, table, Y, weight, least):
            if self._is_dear(first.network, one.likelihood, len(Y)):
                continue
            self._observe(one)
            other = Table(table.X, one.prepared(Y).to(table.X.device), table.weight)
            before = _with_noise(first, one, other) if one.near_gaussian else None
            found = self._learn_one(other, first.network.hidden, 0, seed, before, progress)
            tried.append((self._score(found, other), one, other, found))
        _, observations, table, first = max(tried, key=lambda x: x[0])
        self._observe(observations)
        return table, first

    def _score(self, one: Learned, table: Table) -> float:
        return one.score - table.size * self._observations.units

    def _describe(self, table: Table) -> None:
        super()._describe(table)
        del self._raw
        known = self._observations
        each = [one.remaining_noise.cpu().numpy() for one in self.networks_]
        self._noise = np.mean(each, 0)  # as the likelihood has it
        self.noise_ = known.noise(self._noise) * known.targets.scale**2
        self.noise_covariance_ = known.covariance(self._noise)
        evidence = [one.log_evidence for one in self.networks_]
        units = table.size * known.units
        self.log_evidence_ = float(np.mean(evidence)) - units
        self.evidence_curve_ = [[x - units for x in curve] for curve in self.evidence_curve_]
        self._describe_correlation()

    # Predicting

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Predict the targets.

        Args:
            X: (n_samples, n_features).
            return_std: also return the standard deviation of new observations, noise included.
            return_cov: also return their covariance, (n_samples, n_samples), with several targets
                (n_samples, n_samples, n_targets).

        Returns:
            (n_samples,), or (n_samples, n_targets); with ``return_std`` or ``return_cov`` a pair.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov: at most one of them can be returned")
        x = self._inputs(X)
        if return_cov:
            return self._with_covariance(x)
        if not return_std:
            return self._shaped(self._mean(x))
        outputs = self._outputs_at(x)
        variance = self._observations.variance(*outputs, self._noise)
        return self._shaped(self._observations.mean(*outputs)), self._shaped(np.sqrt(variance))

    def _mean(self, x: Any) -> Array:
        if self._observations.linear:
            mean = predict.mean(self.networks_, x).cpu().numpy()
            return self._observations.targets.restore(mean)
        return self._observations.mean(*self._outputs_at(x))

    def _outputs_at(self, x: Any) -> tuple[Array, Array]:
        found = predict.outputs(self.networks_, x)
        return found.mean.cpu().numpy(), found.variance.cpu().numpy()

    def _with_covariance(self, x: Any) -> tuple[Array, Array]:
        known = self._observations
        mean, covariance = predict.covariance(self.networks_, x)
        outputs, found = mean.cpu().numpy(), covariance.permute(1, 2, 0).cpu().numpy()
        each = np.arange(len(found))
        variance = found[each, each]
        slope = known.slope(outputs)
        found = found * slope[:, None] * slope[None]
        found[each, each] = known.variance(outputs, variance, self._noise)
        of_all = self._shaped(known.mean(outputs, variance))
        return of_all, found[..., 0] if self._one_target else found

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends of intervals that cover new observations with a probability ``level``."""
        if not isinstance(level, Real) or not 0 < level < 1:
            raise ValueError(f"level={level!r}: expected a probability between 0 and 1")
        outputs = self._outputs_at(self._inputs(X))
        low, high = (
            self._observations.quantile(share, *outputs, self._noise)
            for share in ((1 - level) / 2, (1 + level) / 2)
        )
        return self._shaped(low), self._shaped(high)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw observations from the posterior, those of one draw together.

        Returns:
            (n_samples_X, n_samples), or (n_samples_X, n_targets, n_samples).
        """
        x = self._inputs(X)
        if not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples={n_samples!r}: expected a whole number, at least one")
        n_samples = int(n_samples)
        random = check_random_state(random_state)
        generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
        drawn = predict.draw(self.networks_, x, n_samples, generator).cpu().numpy()
        drawn = np.moveaxis(self._observations.draw(drawn, self._noise, random), 0, -1)
        return drawn[:, 0] if self._one_target else drawn

    def _shaped(self, values: Array) -> Array:
        return values[:, 0] if self._one_target else values

    # Plots

    def plot_predictions(self, X: Any, y: Any, ax: Any = None) -> Any:
        """Draw true against predicted targets, with intervals of 95 %; return the Axes.

        Args:
            X: (n_samples, n_features), best such as were not trained on.
            y: (n_samples,) or (n_samples, n_targets).
            ax: matplotlib Axes to draw on; None makes a figure.
        """
        pyplot = load("matplotlib.pyplot", extra="sklearn")
        ax = pyplot.subplots(layout="constrained")[1] if ax is None else ax
        mean, std = (np.reshape(x, (len(x), -1)) for x in self.predict(X, return_std=True))
        y = np.asarray(y)
        if y.size != mean.size:
            raise ValueError(f"y of shape {y.shape}: expected targets of shape {mean.shape}")
        y = y.reshape(mean.shape)
        for k, name in enumerate(self.output_names_):
            ax.errorbar(
                mean[:, k], y[:, k], xerr=1.96 * std[:, k], fmt="o", ms=3, lw=0.7, label=str(name)
            )
        ax.axline((float(y.mean()), float(y.mean())), slope=1, color="grey", lw=1)
        ax.set_xlabel("predicted")
        ax.set_ylabel("true")
        if len(self.output_names_) > 1:
            ax.legend()
        return ax


def _refuse_units(scale: Array, names: Array) -> None:
    """Refuse targets of which a variance cannot be represented."""
    out = (scale < _SCALES[0]) | (scale > _SCALES[1])
    if out.any():
        raise ValueError(
            f"y: target {names[out][0]} has a deviation of {scale[out][0]:g}, and no number can "
            "hold its variance; use other units"
        )


def _with_noise(one: Learned, observations: Observations, table: Table) -> Learned:
    """Return a network with the first noise of another likelihood."""
    noise = observations.likelihood.first_noise(table.Y)
    return replace(one, state=replace(one.state, noise=noise))
