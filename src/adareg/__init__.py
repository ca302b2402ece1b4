"""AdaReg: a learned matrix-normal prior as an adaptive regularizer for PyTorch models.

After "Learning Neural Networks with Adaptive Regularization" (NeurIPS 2019).
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adareg import lightning as lightning
    from adareg import sklearn as sklearn
    from adareg import transformers as transformers
    from adareg.core.evidence.likelihood import (
        Bernoulli,
        Categorical,
        Counts,
        Gaussian,
        Likelihood,
    )
    from adareg.core.linalg import NonFiniteError
    from adareg.core.metrics import (
        correlation,
        covariance_correlation,
        spectral_norm,
        stable_rank,
    )
    from adareg.core.precision import Precision
    from adareg.core.prior import MatrixNormal
    from adareg.core.rules import register_rule, solve
    from adareg.core.spectrum import inv_threshold
    from adareg.core.steps import solve_side
    from adareg.nn.adareg import AdaReg
    from adareg.nn.alarm import PenaltyWarning
    from adareg.nn.evidence.regularizer import EvidenceReg
    from adareg.nn.layout import Layout, register_layout
    from adareg.nn.regularizer import Regularizer

try:
    __version__ = version("adareg")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdaReg",
    "Bernoulli",
    "Categorical",
    "Counts",
    "EvidenceReg",
    "Gaussian",
    "Layout",
    "Likelihood",
    "MatrixNormal",
    "NonFiniteError",
    "PenaltyWarning",
    "Precision",
    "Regularizer",
    "correlation",
    "covariance_correlation",
    "inv_threshold",
    "register_layout",
    "register_rule",
    "solve",
    "solve_side",
    "spectral_norm",
    "stable_rank",
]

#: Integrations, each called as the package that it needs.
_INTEGRATIONS = ("lightning", "sklearn", "transformers")
#: The module of every public name.
_HOMES = {
    "AdaReg": "nn.adareg",
    "Bernoulli": "core.evidence.likelihood",
    "Categorical": "core.evidence.likelihood",
    "Counts": "core.evidence.likelihood",
    "EvidenceReg": "nn.evidence.regularizer",
    "Gaussian": "core.evidence.likelihood",
    "Layout": "nn.layout",
    "Likelihood": "core.evidence.likelihood",
    "MatrixNormal": "core.prior",
    "NonFiniteError": "core.linalg",
    "PenaltyWarning": "nn.alarm",
    "Precision": "core.precision",
    "Regularizer": "nn.regularizer",
    "correlation": "core.metrics",
    "covariance_correlation": "core.metrics",
    "inv_threshold": "core.spectrum",
    "register_layout": "nn.layout",
    "register_rule": "core.rules",
    "solve": "core.rules",
    "solve_side": "core.steps",
    "spectral_norm": "core.metrics",
    "stable_rank": "core.metrics",
}

if not TYPE_CHECKING:  # type checkers know the names from the imports above

    def __getattr__(name: str) -> object:
        """Import a public name, and torch with it, when it is first asked for."""
        if name in _INTEGRATIONS:
            return import_module(f"adareg.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'adareg' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"adareg.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    """All names, with the integrations whose package is installed."""
    return sorted({*globals(), *_HOMES, *filter(find_spec, _INTEGRATIONS)})
