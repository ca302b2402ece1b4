"""AdaReg: a learned matrix-normal prior as an adaptive regularizer for PyTorch models.

After "Learning Neural Networks with Adaptive Regularization" (NeurIPS 2019).
"""

from importlib.metadata import PackageNotFoundError, version

from adareg.core.linalg import NonFiniteError
from adareg.core.metrics import (
    correlation,
    covariance_correlation,
    spectral_norm,
    stable_rank,
)
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.core.rules import solve
from adareg.core.spectrum import inv_threshold
from adareg.nn.layout import Layout, register_layout
from adareg.nn.regularizer import AdaReg

try:
    __version__ = version("adareg")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdaReg",
    "Layout",
    "MatrixNormal",
    "NonFiniteError",
    "Precision",
    "correlation",
    "covariance_correlation",
    "inv_threshold",
    "register_layout",
    "solve",
    "spectral_norm",
    "stable_rank",
]
