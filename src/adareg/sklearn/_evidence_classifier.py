"""Classification with nothing to choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils import check_array, column_or_1d  # type: ignore[import-untyped]
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    check_classification_targets,
    type_of_target,
)
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from adareg.core.evidence import classes
from adareg.core.evidence.classes import Classes, ClassLikelihood, Labels
from adareg.core.evidence.learn import Table
from adareg.sklearn._checks import refuse_odd_labels
from adareg.sklearn._data import Array
from adareg.sklearn._evidence_base import BaseEvidence

#: Rows of Jacobians that a step looks at: of large tables not all classes at each sample.
_ROWS = 8192


class EvidenceClassifier(ClassifierMixin, BaseEvidence):  # type: ignore[misc]
    """Classification on a table, with calibrated probabilities and nothing to choose.

    A few small networks with a linear path, each with a Gaussian prior whose variances (one for
    each input column, one for each layer) are learned from the training data by their log evidence.
    Probabilities are averaged over the posterior and over networks, and made as sharp as suits
    samples that are left out, which the posterior tells without learning again. Inputs are
    standardised inside, and skewed columns also enter by a power that makes them nearly normal. No
    validation data are needed, and there is nothing to tune.

    Targets are labels of two or more classes, or a matrix of zeros and ones: of which labels
    each sample has.

    Args:
        hidden_layer_sizes: units of each hidden layer. None is one layer of 10 or of 30, whichever
            has the higher mean of log evidence and left-out log-likelihood.
        n_networks: probabilities are the mean over so many, which differ in their first weights.
        max_iter: steps for each network, at most.
        tol: a network has learned when ten refits of its prior gain no more than this, in nats
            for each sample.
        warm_start: begin where the last ``fit`` ended.
        verbose: show progress.
        random_state: draws the first weights.
        device: where to learn, ``"cuda"`` for example. None is the CPU.

    Attributes:
        hidden_layer_sizes_: units of each hidden layer, chosen or given.
        classes_: the classes; of several labels their numbers.
        sharpness_: by what log probabilities are multiplied after averaging.
        log_evidence_: of the training targets, in the mean over networks.
        gamma_: how many weights the data determine.
        relevance_: what each input column is worth: root mean square gradients of the logits
            with respect to standardised columns, as shares.
        row_correlation_: how the output weights of classes or labels correlate; of two classes
            there is one row.
        row_correlation_interval_: within which they lie with a probability of 95 %, (2, K, K).
        n_iter_: steps of the network that took most.
        evidence_curve_: the log evidence of each network after each refit.

    >>> from sklearn.datasets import load_iris
    >>> from adareg.sklearn import EvidenceClassifier
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> classifier = EvidenceClassifier(random_state=0).fit(X[::2], y[::2])
    >>> bool(classifier.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    def __init__(
        self,
        hidden_layer_sizes: Any = None,
        *,
        n_networks: int = 4,
        max_iter: int = 200,
        tol: float = 5e-3,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
        device: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_networks = n_networks
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    _likelihood: ClassLikelihood

    def _check(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        refuse_odd_labels(y)
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            dtype=np.float64,
            reset=reset,
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if type_of_target(y) == "multiclass-multioutput":
            raise ValueError(
                f"y has {y.shape[1]} columns of classes: expected one label for each sample, or "
                "columns of zeros and ones; sklearn.multioutput.MultiOutputClassifier fits one "
                "classifier to each"
            )
        return X, y

    def _targets(self, y: Array, weight: Array, names: Any) -> tuple[Any, ClassLikelihood]:
        draws = max(1, _ROWS // len(y))
        self._multilabel = type_of_target(y).startswith("multilabel")
        if self._multilabel:
            y = check_array(y, accept_sparse=False, dtype=np.float64, ensure_2d=True)
            if not np.isin(y, (0, 1)).all():
                raise ValueError(
                    f"y has several columns, with {y[~np.isin(y, (0, 1))][0]:g} for example: "
                    "expected zeros and ones, which labels each sample has"
                )
            self.classes_ = np.arange(y.shape[1])
            self.output_names_ = self.classes_ if names is None else np.asarray(names)
            return torch.from_numpy(y), Labels(draws)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has only one class, {str(self.classes_[0])!r}: expected samples of at least "
                "two classes, of a weight above zero"
            )
        self.output_names_ = self.classes_ if len(self.classes_) > 2 else self.classes_[1:]
        return torch.from_numpy(places.reshape(-1)), Classes(draws)

    def _outputs(self, Y: Any) -> int:
        return len(self.output_names_)

    def _describe(self, table: Table) -> None:
        super()._describe(table)
        self.log_evidence_ = float(np.mean([one.log_evidence for one in self.networks_]))
        self.sharpness_ = classes.sharpness(self.networks_, self._likelihood, table)
        several = not self._multilabel and len(self.output_names_) > 1
        self._describe_correlation(centred=several)

    def _log_p(self, X: Any) -> Array:  # (n, C), or of labels (n, K, 2)
        x = self._inputs(X)
        log_p = classes.log_probabilities(self.networks_, self._likelihood, x)
        found: Array = classes.sharpen(log_p, self.sharpness_).cpu().numpy()
        return found

    def predict(self, X: Any) -> Array:
        """Return the class of each sample; of several labels, (n_samples, n_labels) of 0 and 1."""
        chosen = self._log_p(X).argmax(-1)
        found: Array = chosen if self._multilabel else self.classes_[chosen]
        return found

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities, averaged over the posterior.

        Returns:
            (n_samples, n_classes), in the order of ``classes_``; of several labels
            (n_samples, n_labels), the probability of having each.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of :meth:`predict_proba`."""
        log_p = self._log_p(X)
        return log_p[..., 1] if self._multilabel else log_p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
