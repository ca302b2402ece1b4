"""Rows: gradients of directions in output space with respect to a weight. What follows from them.

A row is ``δ aᵀ`` for a linear map with input a and gradient δ at its output, or any matrix. From
those of m samples come the curvature of the log-likelihood, which a posterior needs, and the
kernel: the covariance of the outputs that a prior implies. A side of a curvature that is longer
than there are rows is kept as these rows: nothing here is cubic in the width of a layer.

All functions take leading dimensions: the groups of a convolution, or many networks at once.
Everything is float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.constants import DEFAULTS
from adareg.core.linalg import matmul, result_dtype
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal

#: Entries of the largest basis of a side that is longer than its rank.
_ENTRIES = 2**24


class Curvature(NamedTuple):
    """Curvature ``A⊗G`` of one sample's negative log-likelihood.

    Each side (…, n, n) is itself or, of a rank r < n, a factor X (…, r, n) of it, ``XᵀX``.
    """

    inputs: Tensor  # A: (…, d, d) or (…, r, d)
    outputs: Tensor  # G: (…, p, p) or (…, r, p)


def curvature(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
    rank: int = DEFAULTS.rank,
) -> Curvature:
    """Return the curvature of a linear map, from rows ``M = δ aᵀ``.

    ``A⊗G = E[MᵀM]⊗E[MMᵀ]/E‖M‖²``, the sum over draws and the mean over samples, keeps both
    marginals: a sample whose prediction is certain counts for nothing on either side. A side longer
    than ``rank`` is kept up to this rank, by random sums of rows.
    """
    a, g = inputs.double(), grads.double()
    norm_a, norm_g = a.norm(dim=-1), g.square().sum(-1).sum(-2).sqrt()
    A = _second_moment(a * norm_g.unsqueeze(-1), rank)
    G = _second_moment((g * norm_a[..., None, :, None]).flatten(-3, -2), rank)
    return _normalised(A, G, a.shape[-2])


def matrix_curvature(
    rows: Tensor,  # (…, draws, m, p, d)
    rank: int = DEFAULTS.rank,
    unit: float = 1.0,
) -> Curvature:
    """Return the same from rows that are matrices, in some unit.

    They are multiplied in their own dtype, at least float32, since they are many.
    """
    M, size = _scaled(rows, unit)
    M = M.flatten(-4, -3)
    A, G = _second_moment(M.flatten(-3, -2), rank), _second_moment_of_rows(M, rank)
    A, G = (F.double() * (size if is_factor(F) else size**2) for F in (A, G))
    return _normalised(A, G, rows.shape[-3])


def kernel(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
    prior: MatrixNormal,
) -> Tensor:  # (…, m, m)
    """Return the prior covariance of the outputs, summed over the draws: ``Σ JΣJᵀ``."""
    a, g = inputs.double(), grads.double()
    prior = prior.to(torch.float64)
    along = deviated(a, prior.col)
    across = deviated(g, _unsqueezed(prior.row, 1))
    across = across.movedim(-3, -2).flatten(-2)  # (…, m, draws·p): one product sums over draws
    return (along @ along.mT) * (across @ across.mT)


def matrix_kernel(
    rows: Tensor,  # (…, draws, m, p, d)
    prior: MatrixNormal,
    unit: float = 1.0,
) -> Tensor:  # (…, m, m)
    """Return the same from rows that are matrices, as :func:`matrix_curvature` takes them."""
    M, size = _scaled(rows, unit)
    prior = prior.to(torch.float64)
    draws, m, p, d = M.shape[-4:]
    along = deviated(M.flatten(-4, -2), prior.col.to(M.dtype))  # (…, draws·m·p, d)
    along = along.unflatten(-2, (draws * m, p)).transpose(-3, -2).flatten(-2)
    white = deviated(along.mT, prior.row.to(M.dtype)).mT  # (…, p, draws·m·d)
    white = white.unflatten(-1, (draws, m, d)).movedim(-4, -2).flatten(-2)
    return matmul(white, white.mT).sum(-3).double() * size**2


def _scaled(rows: Tensor, unit: float) -> tuple[Tensor, float]:
    """Return rows of which none is larger than one, so that no square overflows, and their unit."""
    rows = rows.to(result_dtype(rows))
    largest = float(rows.abs().amax()) or 1.0
    return rows / largest, unit * largest


def deviated(X: Tensor, precision: Precision) -> Tensor:  # (…, N, n)
    """Return ``X·H`` with ``H·Hᵀ = Ω⁻¹``; H is symmetric, unless Ω has all n directions."""
    if precision.scale is None:
        return matmul(X, precision.inverse().root())
    c, B, e = precision.factors
    assert c is not None
    c = c.rsqrt()[..., None, None]
    if not B.shape[-1]:
        return X * c
    return X * c + matmul(matmul(X, B) * (e.rsqrt().unsqueeze(-2) - c), B.mT)


def _unsqueezed(precision: Precision, axes: int) -> Precision:
    """Return the same with axes of length one after its own leading ones."""
    own = precision.basis.ndim - 2

    def apply(factor: Tensor) -> Tensor:
        return factor[(slice(None),) * own + (None,) * axes]

    return precision.apply(apply)


def rank_of(n: int, most: int = DEFAULTS.rank) -> int:
    """Return the largest rank of a side of length n: all of it, ``most``, or what memory allows."""
    return min(n, most, max(16, _ENTRIES // n))


def _second_moment(X: Tensor, rank: int) -> Tensor:  # (…, N, n) -> (…, n, n) or (…, r, n)
    N, n = X.shape[-2:]
    if min(N, n) > (most := rank_of(n, rank)):
        X = _random_sums(X, most)
    return X if X.shape[-2] < n else matmul(X.mT, X)


def _second_moment_of_rows(M: Tensor, rank: int) -> Tensor:  # (…, N, p, d) -> (…, p, p)
    """Return ``Σ M·Mᵀ``, or a factor of it."""
    N, p, d = M.shape[-3:]
    if N * d < p or p > rank_of(p, rank):
        return _second_moment(M.mT.flatten(-3, -2), rank)
    return matmul(M, M.mT).sum(-3)


def _random_sums(X: Tensor, count: int) -> Tensor:  # (…, N, n) -> (…, count, n)
    """Return sums of rows with random signs, each row in one of them: ``E[SᵀS] = XᵀX``."""
    generator = torch.Generator("cpu").manual_seed(X.shape[-2])
    N = X.shape[-2]
    signs = torch.randint(2, (N, 1), generator=generator, device="cpu") * 2.0 - 1
    places = torch.randperm(N, generator=generator, device="cpu") % count
    sums = X.new_zeros(*X.shape[:-2], count, X.shape[-1])
    return sums.index_add_(-2, places.to(X.device), X * signs.to(X))


def _normalised(A: Tensor, G: Tensor, samples: int) -> Curvature:
    energy = A.square().sum((-2, -1)) if is_factor(A) else A.diagonal(dim1=-2, dim2=-1).sum(-1)
    scale = (samples * energy.clamp(min=torch.finfo(A.dtype).tiny)).rsqrt()[..., None, None]
    return Curvature(*(F * (scale.sqrt() if is_factor(F) else scale) for F in (A, G)))


def is_factor(F: Tensor) -> bool:
    """Return if a side of a curvature is kept as a factor X of it, ``XᵀX``."""
    return F.shape[-2] != F.shape[-1]


def ignores_common_row(curvature: Curvature) -> bool:
    """Return if adding one vector to all rows of the weight has no effect, as before a softmax."""
    G = curvature.outputs
    return bool(G.sum(-1).norm() <= 1e-8 * G.norm())
