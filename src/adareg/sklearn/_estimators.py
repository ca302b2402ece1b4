"""The two estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score, r2_score  # type: ignore[import-untyped]
from sklearn.preprocessing import LabelBinarizer  # type: ignore[import-untyped]
from sklearn.utils import column_or_1d  # type: ignore[import-untyped]
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    type_of_target,
    unique_labels,
)
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]
from torch.nn.functional import log_softmax, logsigmoid

from adareg.sklearn._base import BaseAdaReg
from adareg.sklearn._data import Array
from adareg.sklearn._parameters import Loss


@dataclass(eq=False, repr=False)
class AdaRegClassifier(ClassifierMixin, BaseAdaReg):  # type: ignore[misc]
    """scikit-learn's ``MLPClassifier`` with a learned matrix-normal prior on its last layer.

    Exchange the class name; parameters, attributes and behaviour are those of
    :class:`sklearn.neural_network.MLPClassifier`. With ``strength=None`` a given ``random_state``
    leads to the same weights, up to rounding. What is minimised is

        mean log-loss + alpha/2n·Σ‖W‖² + λ·(tr(Ωr W Ωc Wᵀ) − d·logdet Ωr − p·logdet Ωc)

    where n is the size of a batch, as in scikit-learn, and λ is not divided by it.

    Several classes have a softmax. Two have one logistic output, as in scikit-learn: a second
    row would only repeat the first with the other sign, so there is nothing to correlate and
    ``row_correlation_`` is 1 x 1. Multi-label targets have one logistic output for each label.

    Args:
        hidden_layer_sizes: units of each hidden layer; ``()`` for none.
        activation: of the hidden layers: ``"relu"``, ``"tanh"``, ``"logistic"`` or
            ``"identity"``.
        solver: ``"adam"``, ``"sgd"`` (the prior then acts by proximal steps, which are stable
            at any learning rate) or ``"lbfgs"`` (restarted after each update of the prior, so
            that it needs a larger ``max_iter``).
        alpha: strength of plain weight decay, on all layers, beside the learned prior.
        batch_size: ``"auto"`` is ``min(200, n_samples)``; without effect for ``"lbfgs"``.
        learning_rate: for ``"sgd"``: ``"constant"``, ``"invscaling"`` or ``"adaptive"``.
        learning_rate_init: initial learning rate.
        power_t: exponent of ``"invscaling"``.
        max_iter: largest number of epochs, or of L-BFGS iterations.
        shuffle: draw the batches anew in each epoch.
        random_state: seed or ``RandomState`` for weights, batches and the validation split.
            None is a seed of its own; NumPy's and torch's global states are never touched.
        tol: what counts as an improvement of the loss. ``"lbfgs"``: largest gradient at the end.
        verbose: show a progress bar (needs rich).
        warm_start: a further :meth:`fit` goes on from weights and prior as they are.
        momentum: for ``"sgd"``.
        nesterovs_momentum: for ``"sgd"``.
        early_stopping: hold out ``validation_fraction`` of the data, stop when the score there
            no longer improves, and return to weights and prior of the best epoch.
        validation_fraction: the share held out.
        beta_1: for ``"adam"``.
        beta_2: for ``"adam"``.
        epsilon: for ``"adam"``.
        n_iter_no_change: epochs without improvement before training stops.
        max_fun: largest number of function calls of ``"lbfgs"``.
        strength: λ of the learned prior. ``"auto"`` is 1/(2·n_samples), in ``partial_fit`` of
            the samples seen so far; 0 or None is no prior.
        rule: ``"alternating"`` (Alg. 1), ``"joint"`` or ``"official"``; see
            :func:`adareg.solve`.
        bounds: smallest and largest eigenvalue of the precisions.
        layers: where the prior is: ``"last"``, ``"all"``, or names in ``model_``, which are
            ``"0"``, ``"2"``, ``"4"``, … from the inputs on.
        update_every: epochs, calls of ``partial_fit`` or L-BFGS iterations between closed-form
            updates of the prior.
        device: a torch device such as ``"cuda"``; None is the CPU.

    Attributes:
        classes_: the class labels.
        coefs_, intercepts_: weights and biases of each layer.
        model_: the network, a ``torch.nn.Sequential`` that returns logits.
        regularizer_: the :class:`adareg.AdaReg` on it, or None.
        row_correlation_: how the classes' weights correlate; a data frame, if pandas is there.
        stable_rank_: of the last layer's weight.
        output_names_: the names of the last layer's rows.
        loss_, loss_curve_, best_loss_: mean loss with alpha's term, as in scikit-learn. The
            prior's term, whose scale changes with every update, is left out, so that losses are
            comparable.
        validation_scores_, best_validation_score_: with early stopping, else None.
        n_iter_, t_: epochs run, and training samples seen.
        n_features_in_, feature_names_in_, n_layers_, n_outputs_, out_activation_: as in
            scikit-learn.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from adareg.sklearn import AdaRegClassifier
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> classifier = AdaRegClassifier(strength="auto", learning_rate_init=0.02, random_state=0)
    >>> model = make_pipeline(StandardScaler(), classifier).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> classifier.row_correlation_.shape
    (3, 3)
    """

    def _validate_input(self, X: Any, y: Any, incremental: bool, reset: bool) -> tuple[Any, Array]:
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            dtype=(np.float64, np.float32),
            reset=reset,
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if reset and not incremental:
            self._label_binarizer = LabelBinarizer().fit(y)
            self.classes_ = self._label_binarizer.classes_
        else:
            self._check_labels(y, incremental)
        return X, self._label_binarizer.transform(y).astype(np.uint8)

    def _check_labels(self, y: Array, incremental: bool) -> None:
        labels = unique_labels(y)
        if np.setdiff1d(labels, self.classes_).size:
            raise ValueError(
                f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. "
                f"'y' has {labels}."
            )
        if not incremental and len(labels) != len(self.classes_):
            raise ValueError(
                f"warm_start can only be used where `y` has the same classes as in the previous "
                f"call to fit. Previously got {self.classes_}, `y` has {labels}"
            )

    def _output_names(self, names: list[Any] | None) -> Array:
        if self._label_binarizer.y_type_.startswith("multilabel"):
            return np.asarray(self.classes_ if names is None else names)
        return self.classes_[-self.n_outputs_ :]

    def _out_activation(self) -> str:
        return "softmax" if self._label_binarizer.y_type_ == "multiclass" else "logistic"

    def _stratify_by(self, Y: Array) -> Array | None:
        return Y if Y.shape[1] == 1 else None

    def _decode(self, Y: Array) -> Array:
        """Labels from 0 and 1, or from probabilities."""
        return self._label_binarizer.inverse_transform(Y.ravel() if Y.shape[1] == 1 else Y)

    def _score(self, y: Array, outputs: Array, weight: Array | None) -> float:
        return float(accuracy_score(y, self._decode(self._link(outputs)), sample_weight=weight))

    def predict(self, X: Any) -> Array:
        """The most likely class of each row, or with several labels which of them apply."""
        return self._decode(self._link(self._checked_outputs(X)))

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (n_samples, n_classes), in the order of ``classes_``."""
        p = self._link(self._checked_outputs(X))
        return np.hstack([1 - p, p]) if self.n_outputs_ == 1 else p

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of :meth:`predict_proba`, finite however small the probabilities are."""
        z = torch.from_numpy(self._checked_outputs(X))
        if self.out_activation_ == "softmax":
            return log_softmax(z, 1).numpy()
        return logsigmoid(torch.hstack([-z, z]) if self.n_outputs_ == 1 else z).numpy()

    @available_if(BaseAdaReg._check_incremental)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on more data, and every ``update_every`` calls update the prior.

        Args:
            X: (n_samples, n_features).
            y: (n_samples,), or (n_samples, n_labels) of 0 and 1.
            sample_weight: (n_samples,).
            classes: all classes that any call will bring; needed in the first.

        Returns:
            The estimator itself.

        >>> import numpy as np
        >>> from adareg.sklearn import AdaRegClassifier
        >>> stream = ((np.eye(3)[[k]], ["abc"[k]]) for k in [0, 1, 2] * 100)
        >>> classifier = AdaRegClassifier(random_state=0)
        >>> for X, y in stream:
        ...     _ = classifier.partial_fit(X, y, classes=["a", "b", "c"])
        >>> print(*classifier.predict(np.eye(3)))
        a b c
        """
        self._declare_classes(y, classes)
        return self._fit(X, y, sample_weight, incremental=True)

    def _declare_classes(self, y: Any, classes: Any) -> None:
        known = getattr(self, "classes_", None)
        if classes is None:
            if known is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            return
        given = unique_labels(classes)
        if known is None:
            several = type_of_target(y).startswith("multilabel")
            self._label_binarizer = LabelBinarizer().fit(y if several else given)
            self.classes_ = given
        elif not np.array_equal(known, given):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{known!r}"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@dataclass(eq=False, repr=False)
class AdaRegRegressor(RegressorMixin, BaseAdaReg, Loss):  # type: ignore[misc]
    """scikit-learn's ``MLPRegressor`` with a learned matrix-normal prior on its last layer.

    Exchange the class name. What :class:`AdaRegClassifier` says holds here too, except for this:
    With several targets, the prior learns which belong together.

    The loss is *summed* over targets. ``MLPRegressor`` follows the gradient of that sum too,
    but reports the squared error's mean over them, so with several targets its ``loss_`` is
    smaller and its ``tol`` stops training sooner.

    Args:
        loss: ``"squared_error"``, half of it, or ``"poisson"``, half the deviance of counts
            y ≥ 0, with predictions ``exp(output)``.
        hidden_layer_sizes: this and all further parameters as for :class:`AdaRegClassifier`.

    >>> from sklearn.datasets import load_linnerud
    >>> from sklearn.preprocessing import scale
    >>> from adareg.sklearn import AdaRegRegressor
    >>> X, Y = load_linnerud(return_X_y=True, as_frame=True)
    >>> regressor = AdaRegRegressor(learning_rate_init=0.02, max_iter=1000, random_state=0)
    >>> _ = regressor.fit(scale(X), (Y - Y.mean()) / Y.std())
    >>> list(regressor.row_correlation_.columns)
    ['Weight', 'Waist', 'Pulse']
    """

    def _validate_input(self, X: Any, y: Any, incremental: bool, reset: bool) -> tuple[Any, Array]:
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            y_numeric=True,
            dtype=(np.float64, np.float32),
            reset=reset,
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if self.loss == "poisson" and y.min() < 0:
            raise ValueError(f"loss='poisson' is for counts: expected y >= 0, found {y.min()}")
        return X, y.reshape(len(y), -1).astype(X.dtype, copy=False)

    def _output_names(self, names: list[Any] | None) -> Array:
        return np.arange(self.n_outputs_) if names is None else np.asarray(names)

    def _out_activation(self) -> str:
        return "exp" if self.loss == "poisson" else "identity"

    def _stratify_by(self, Y: Array) -> None:
        return None

    def _decode(self, Y: Array) -> Array:
        return Y

    def _score(self, y: Array, outputs: Array, weight: Array | None) -> float:
        return float(r2_score(y, self._link(outputs), sample_weight=weight))

    def predict(self, X: Any) -> Array:
        """The value of each target, (n_samples,) or (n_samples, n_targets)."""
        values = self._link(self._checked_outputs(X))
        return values.ravel() if self.n_outputs_ == 1 else values

    @available_if(BaseAdaReg._check_incremental)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on more data, and every ``update_every`` calls update the prior.

        Args:
            X: (n_samples, n_features).
            y: (n_samples,) or (n_samples, n_targets).
            sample_weight: (n_samples,).

        Returns:
            The estimator itself.
        """
        return self._fit(X, y, sample_weight, incremental=True)
