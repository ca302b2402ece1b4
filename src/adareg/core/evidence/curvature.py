"""Rows: gradients of directions in output space with respect to a weight. What follows from them.

A row is ``δ aᵀ`` for a linear map with input a and gradient δ at its output, or any matrix. From
those of m samples come the curvature of the log-likelihood, which a posterior needs, and the
kernel: the covariance of the outputs that a prior implies. All functions take leading dimensions:
the groups of a convolution, or many networks at once. Everything is float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.constants import DEFAULTS
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal


class Curvature(NamedTuple):
    """Curvature ``A⊗G`` of one sample's negative log-likelihood; diagonals are (…, 1, n)."""

    inputs: Tensor  # A: (…, d, d)
    outputs: Tensor  # G: (…, p, p)


def curvature(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
    widest: int = DEFAULTS.widest,
) -> Curvature:
    """Return the curvature of a linear map, from rows ``M = δ aᵀ``.

    ``A⊗G = E[MᵀM]⊗E[MMᵀ]/E‖M‖²``, the sum over draws and the mean over samples, keeps both
    marginals: a sample whose prediction is certain counts for nothing on either side. A side longer
    than ``widest`` keeps its diagonal alone.
    """
    a, g = inputs.double(), grads.double()
    norm_a, norm_g = a.norm(dim=-1), g.square().sum(-1).sum(-2).sqrt()
    A = _second_moment(a * norm_g.unsqueeze(-1), widest)
    G = _second_moment((g * norm_a[..., None, :, None]).flatten(-3, -2), widest)
    return _normalised(A, G, a.shape[-2])


def matrix_curvature(
    rows: Tensor,  # (…, draws, m, p, d)
    widest: int = DEFAULTS.widest,
) -> Curvature:
    """Return the same from rows that are matrices."""
    M = rows.double().flatten(-4, -3)
    A = _second_moment(M.flatten(-3, -2), widest)
    G = _second_moment(M.mT.flatten(-3, -2), widest)
    return _normalised(A, G, rows.shape[-3])


def kernel(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
    prior: MatrixNormal,
) -> Tensor:  # (…, m, m)
    """Return the prior covariance of the outputs, summed over the draws: ``Σ JΣJᵀ``."""
    a, g = inputs.double(), grads.double()
    prior = prior.to(torch.float64)
    along = _times(a, _deviations(prior.col))
    across = _times(g, _deviations(prior.row).unsqueeze(-3))
    across = across.movedim(-3, -2).flatten(-2)  # (…, m, draws·p): one product sums over draws
    return (along @ along.mT) * (across @ across.mT)


def matrix_kernel(rows: Tensor, prior: MatrixNormal) -> Tensor:  # (…, draws, m, p, d) -> (…, m, m)
    """Return the same from rows that are matrices."""
    M, prior = rows.double(), prior.to(torch.float64)
    col = _deviations(prior.col)[..., None, None, :, :]
    row = _deviations(prior.row)[..., None, None, :, :]
    white = _times(_times(M, col).mT, row).mT.flatten(-2)
    return (white @ white.mT).sum(-3)


def _deviations(precision: Precision) -> Tensor:
    """Return H with ``H·Hᵀ = Ω⁻¹``, (…, n, n); of a multiple of the identity, (…, 1, 1)."""
    if precision.scale is None or precision.basis.shape[-1]:
        return precision.inverse().root()
    return precision.scale.reciprocal().sqrt()[..., None, None]


def _times(X: Tensor, H: Tensor) -> Tensor:
    return X * H if H.shape[-1] == 1 else X @ H


def _second_moment(X: Tensor, widest: int) -> Tensor:  # (…, N, n) -> (…, n, n) or (…, 1, n)
    return X.square().sum(-2, keepdim=True) if X.shape[-1] > widest else X.mT @ X


def _normalised(A: Tensor, G: Tensor, samples: int) -> Curvature:
    energy = A.sum((-2, -1)) if is_diagonal(A) else A.diagonal(dim1=-2, dim2=-1).sum(-1)
    scale = (samples * energy.clamp(min=torch.finfo(A.dtype).tiny)).rsqrt()[..., None, None]
    return Curvature(A * scale, G * scale)


def is_diagonal(F: Tensor) -> bool:
    """Return if a side of a curvature is kept as its diagonal, (…, 1, n)."""
    return F.shape[-2] != F.shape[-1]


def ignores_common_row(curvature: Curvature) -> bool:
    """Return if adding one vector to all rows of the weight has no effect, as before a softmax."""
    G = curvature.outputs
    return not is_diagonal(G) and bool(G.sum(-1).norm() <= 1e-8 * G.norm())
