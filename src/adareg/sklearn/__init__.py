"""scikit-learn estimators whose last layer has a learned matrix-normal prior.

:class:`AdaRegClassifier` and :class:`AdaRegRegressor` take the place of scikit-learn's
``MLPClassifier`` and ``MLPRegressor``. :class:`EvidenceClassifier` and
:class:`EvidenceRegressor` learn everything from the table and have nothing to choose.
Needs the extra ``sklearn``.
"""

from adareg._optional import require

require("sklearn", "1.6", extra="sklearn", distribution="scikit-learn")

from adareg.sklearn._estimators import AdaRegClassifier, AdaRegRegressor  # noqa: E402
from adareg.sklearn._evidence_classifier import EvidenceClassifier  # noqa: E402
from adareg.sklearn._evidence_regressor import EvidenceRegressor  # noqa: E402

__all__ = ["AdaRegClassifier", "AdaRegRegressor", "EvidenceClassifier", "EvidenceRegressor"]
