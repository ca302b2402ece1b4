"""What the Evidence estimators share: several networks learned from a table, and a look at them."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils._param_validation import Interval  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_is_fitted,
    validate_data,
)

from adareg._optional import load
from adareg._threads import one_thread
from adareg.core.evidence.information import cost
from adareg.core.evidence.learn import Learned, State, Table, learn
from adareg.core.evidence.perceptron import Perceptron
from adareg.core.evidence.tabular import TableLikelihood
from adareg.sklearn._checks import (
    as_sizes,
    check_counts,
    checked_device,
    numbers_wanted,
    refuse_huge,
    refuse_masked,
    refuse_sparse_targets,
    refuse_times,
)
from adareg.sklearn._data import Array, check_sample_weight
from adareg.sklearn._plot import draw_correlation
from adareg.sklearn._progress import progress_bar
from adareg.sklearn._standardise import Inputs

#: Networks differ in their first weights and, in turn, in their units: mixed they predict better.
_UNITS = ("erf", "silu")

#: Units of the hidden layer to choose from, if nobody says how many.
_WIDTHS = (10, 30)

#: Multiplications of a step; where there would be more, leading directions of the inputs are kept,
#: but at least so many.
_AFFORDABLE, _LEAST_COLUMNS = 1.2e9, 8

#: Another likelihood than the first is not tried where a step would take more.
_DEAREST = 2e9

#: Larger tables are learned from a part first.
_LARGE, _PART = 8192, 4096

#: Refits without gain until all rows of a large table are taken as learned.
_PATIENCE_OF_LARGE = 2

#: Draws from the posterior for an interval of the correlations.
_DRAWS = 200

#: Operations in a step below which one thread is fastest.
_SMALL = 1e10


class BaseEvidence(BaseEstimator):  # type: ignore[misc]
    """Networks whose priors and noise are learned from the table; see the classes derived."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left"), None],
        "n_networks": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "device": [str, torch.device, None],
    }

    networks_: list[Learned]
    output_names_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a table.

        Args:
            X: array, data frame or sparse matrix, (n_samples, n_features).
            y: what is to be predicted, (n_samples,) or (n_samples, n_targets).
            sample_weight: (n_samples,), how many samples each stands for.

        Returns:
            The estimator itself.
        """
        self._validate_params()
        device = checked_device(self.device)
        again = self.warm_start and hasattr(self, "networks_")
        names = _names(y)
        X, y = self._checked(X, y, reset=not again)
        weight = check_sample_weight(sample_weight, X)
        weight = np.ones(X.shape[0]) if weight is None else weight.astype(np.float64)
        used = check_counts(weight) > 0
        X, y, weight = X[used], y[used], weight[used]
        Y, likelihood = self._targets(y, weight, names)
        self._likelihood = likelihood
        columns = self._most_columns(X.shape[0], 2 * X.shape[1], self._outputs(Y))
        self.inputs_ = Inputs.of(X, weight, columns)
        tensors = (self.inputs_.standardise(X), Y, torch.from_numpy(weight))
        table = Table(*(x.to(device) for x in tensors))
        table, self.networks_ = self._learn(table, self.networks_ if again else None)
        self._describe(table)
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        """Validate what ``fit`` was given."""
        for values, name in ((X, "X"), (y, "y")):
            refuse_masked(values, name)
        refuse_times(X, "X")
        refuse_sparse_targets(y)
        with numbers_wanted():
            X, y = self._check(X, y, reset)
        refuse_huge(X)
        return X, y

    # For the classes derived from it

    def _check(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        """Validate what ``fit`` was given; targets stay as they are."""
        raise NotImplementedError

    def _targets(self, y: Array, weight: Array, names: Any) -> tuple[Any, TableLikelihood]:
        """Return targets as a likelihood takes them, and the likelihood."""
        raise NotImplementedError

    def _outputs(self, Y: Any) -> int:
        """Return how many outputs a network has."""
        return int(Y.shape[1])

    def _reconsider(
        self, table: Table, first: Learned, seed: int, progress: Any
    ) -> tuple[Table, Learned]:
        """Return the first network, or one of a likelihood that fits better, with its table."""
        return table, first

    # Learning

    def _hidden(self) -> tuple[int, ...]:
        """Return the units of the hidden layers; the widest to choose from, if none are given."""
        if self.hidden_layer_sizes is None:
            return _WIDTHS[-1:]
        return as_sizes(self.hidden_layer_sizes)

    def _most_columns(self, samples: int, columns: int, outputs: int) -> int:
        """Return how many inputs a network may have, so that its steps stay affordable."""
        most, hidden = columns, self._hidden()
        samples = min(samples, _PART)
        while most > _LEAST_COLUMNS:
            network = Perceptron(most, outputs, hidden)
            if cost(network, self._likelihood, samples, outputs) < _AFFORDABLE:
                break
            most -= max(1, most // 10)
        return most

    def _is_dear(self, network: Perceptron, likelihood: TableLikelihood, samples: int) -> bool:
        return cost(network, likelihood, min(samples, _PART), network.outputs) > _DEAREST

    def _learn(self, table: Table, before: list[Learned] | None) -> tuple[Table, list[Learned]]:
        random = check_random_state(self.random_state)
        seeds = [int(x) for x in random.randint(np.iinfo(np.int32).max, size=int(self.n_networks))]
        starts = before if before and len(before) == self.n_networks else [None] * self.n_networks
        sizes = self._sizes(starts[0])
        steps = (self.n_networks - 1 + len(sizes)) * self.max_iter
        size = Perceptron(table.X.shape[1], self._outputs(table.Y), self._hidden()).size
        small = len(table.X) * size * min(size, len(table.X)) < _SMALL
        shown = progress_bar(bool(self.verbose), steps, "log evidence")
        with one_thread(small), shown as progress:
            firsts = [
                self._learn_one(table, hidden, 0, seeds[0], starts[0], progress) for hidden in sizes
            ]
            first = max(firsts, key=lambda one: one.score)
            if starts[0] is None:
                table, first = self._reconsider(table, first, seeds[0], progress)
            others = [
                self._learn_one(table, first.network.hidden, k, seeds[k], starts[k], progress)
                for k in range(1, self.n_networks)
            ]
        self.hidden_layer_sizes_ = first.network.hidden
        self._warn_of_early_end([first, *others])
        return table, [first, *others]

    def _sizes(self, before: Learned | None) -> list[tuple[int, ...]]:
        """Return the hidden layers to choose from; those of a network to go on from stay."""
        if self.hidden_layer_sizes is not None:
            return [self._hidden()]
        return [(width,) for width in _WIDTHS] if before is None else [before.network.hidden]

    def _learn_one(
        self,
        table: Table,
        hidden: tuple[int, ...],
        k: int,
        seed: int,
        before: Learned | None,
        progress: Any,
    ) -> Learned:
        outputs = self._outputs(table.Y)
        network = Perceptron(table.X.shape[1], outputs, hidden, _UNITS[k % len(_UNITS)])
        settings: dict[str, Any] = {
            "max_steps": self.max_iter,
            "tol": self.tol,
            "progress": progress,
        }
        if before is not None and before.network == network:
            return learn(network, self._likelihood, table, before.state, **settings)
        w, variances = (x.to(table.X.device) for x in network.start(seed))
        state = State(w, variances, self._likelihood.first_noise(table.Y))
        if len(table.X) > _LARGE:
            part = _part(table, seed)
            state = learn(network, self._likelihood, part, state, **settings).state
            settings["patience"] = _PATIENCE_OF_LARGE
        return learn(network, self._likelihood, table, state, **settings)

    def _warn_of_early_end(self, networks: list[Learned]) -> None:
        early = sum(not one.converged for one in networks)
        if early:
            warnings.warn(
                f"{early} of {len(networks)} networks were still learning after "
                f"max_iter={self.max_iter} steps; raise max_iter, or fit again with "
                "warm_start=True",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _describe(self, table: Table) -> None:
        """Set what a user may want to look at."""
        networks = self.networks_
        self.n_iter_ = max(one.steps for one in networks)
        self.gamma_ = float(np.mean([float(one.leverage.sum()) * table.size for one in networks]))
        self.evidence_curve_ = [[evidence for evidence, _ in one.course] for one in networks]
        self.relevance_ = self._named(self._relevance(table))

    def _relevance(self, table: Table) -> Array:
        """Return root mean square gradients with respect to standardised columns, summing to one.

        Over all targets, networks and training samples.
        """
        X, total = table.X[:1024], np.zeros(())
        for one in self.networks_:
            gradients = self.inputs_.spread(_input_gradients(one, X), X.cpu().numpy())
            total = total + (gradients**2).mean((0, 1))
        root = np.sqrt(total)
        return root / root.sum() if root.sum() > 0 else root

    def _named(self, values: Array) -> Any:
        """Return values by the name of their column, if columns have names."""
        if not hasattr(self, "feature_names_in_"):
            return values
        try:
            from pandas import Series
        except ImportError:
            return values
        return Series(values, index=self.feature_names_in_)

    def _describe_correlation(self, centred: bool = False) -> None:
        """Set ``row_correlation_`` and its interval; centred, rows are taken off their mean."""
        generator = torch.Generator().manual_seed(0)
        count = _DRAWS // len(self.networks_) if self.output_names_.size > 1 else 1
        every = np.concatenate(
            [_correlations(one, count, centred, generator) for one in self.networks_]
        )
        self.row_correlation_interval_ = np.quantile(every, [0.025, 0.975], axis=0)
        self.row_correlation_ = values = every.mean(0)
        try:
            from pandas import DataFrame
        except ImportError:
            return
        names = self.output_names_
        self.row_correlation_ = DataFrame(values, index=names, columns=names)

    # Predicting

    def _inputs(self, X: Any) -> Any:
        check_is_fitted(self, "networks_")
        refuse_masked(X, "X")
        refuse_times(X, "X")
        with numbers_wanted():
            X = validate_data(self, X, reset=False, accept_sparse=["csr", "csc"], dtype=np.float64)
        return self.inputs_.standardise(X).to(self.networks_[0].state.w.device)

    # Plots

    def plot_correlation(self, ax: Any = None) -> Any:
        """Draw ``row_correlation_`` as a heat map; return the Axes."""
        check_is_fitted(self, "networks_")
        return draw_correlation(np.asarray(self.row_correlation_), list(self.output_names_), ax)

    def plot_relevance(self, ax: Any = None) -> Any:
        """Draw ``relevance_`` as bars, the most relevant column on top; return the Axes."""
        check_is_fitted(self, "networks_")
        pyplot = load("matplotlib.pyplot", extra="sklearn")
        ax = pyplot.subplots(layout="constrained")[1] if ax is None else ax
        values = np.asarray(self.relevance_)
        names = getattr(self, "feature_names_in_", np.arange(len(values)))
        order = np.argsort(values)
        ax.barh(np.arange(len(values)), values[order])
        ax.set_yticks(np.arange(len(values)), labels=[str(names[i]) for i in order])
        ax.set_xlabel("relevance")
        return ax

    def plot_evidence(self, ax: Any = None) -> Any:
        """Draw the log evidence of each network after each step; return the Axes."""
        check_is_fitted(self, "networks_")
        pyplot = load("matplotlib.pyplot", extra="sklearn")
        ax = pyplot.subplots(layout="constrained")[1] if ax is None else ax
        for k, curve in enumerate(self.evidence_curve_):
            ax.plot(range(1, len(curve) + 1), curve, label=f"network {k + 1}")
        best = max(map(max, self.evidence_curve_))
        ax.set_ylim(best - 4 * abs(best) - 10, None)
        ax.set_xlabel("step")
        ax.set_ylabel("log evidence")
        ax.legend()
        return ax

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags


def _part(table: Table, seed: int) -> Table:
    """Return some of the samples."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(table.X), generator=generator)[:_PART].to(table.X.device)
    return Table(table.X[index], table.Y[index], table.weight[index])


def _input_gradients(one: Learned, X: Any) -> Array:  # (K, n, d)
    """Return gradients of each output with respect to the inputs."""
    near = one.network.linearise(one.state.w, X)
    first, path = near.weights[0], near.weights[-1]
    K = len(path)
    each = torch.eye(K, dtype=X.dtype, device=X.device).unsqueeze(1).expand(K, len(X), K)
    return (near.deltas(each)[0] @ first[:, :-1] + each @ path).cpu().numpy()


def _correlations(
    one: Learned, count: int, centred: bool, generator: torch.Generator
) -> Array:  # (count, K, K)
    """Return correlations of the rows of output weights, drawn from the posterior."""
    found = []
    deviations = one.state.variances[one.network.group.to(one.state.w.device)].sqrt()
    for _ in range(count):
        w = (one.state.w + one.posterior.draw(generator)) / deviations
        *_, out, path = one.network.split(w)
        rows = torch.cat([out[:, :-1], path], 1)
        rows = rows - rows.mean(0) if centred else rows
        rows = rows / rows.norm(dim=1, keepdim=True)
        found.append((rows @ rows.T).cpu().numpy())
    return np.stack(found)


def _names(y: Any) -> list[Any] | None:
    """Return the names of targets, of a data frame or a series."""
    columns = getattr(y, "columns", None)
    if columns is not None:
        return list(columns)
    name = getattr(y, "name", None)
    return None if name is None else [name]
