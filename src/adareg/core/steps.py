"""The steps that rules are made of: one precision given the other, and a thin SVD.

With k = min(p, d), no matrix larger than k x k is ever decomposed or built: ``W Ω Wᵀ`` has at
most k eigenvalues that differ from zero, and every null direction gets exactly v.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.decompose import Answer, Request
from adareg.core.linalg import factor_dtype, inner, svd, unit_columns, wide
from adareg.core.precision import Precision
from adareg.core.spectrum import clip_inverse


class Weight(NamedTuple):
    """A weight as rules get it: its Gram matrix is computed once, for all their steps."""

    matrix: Tensor  # (…, p, d), W itself; a small one in float64, like its factors
    gram: Tensor  # (…, k, k), the smaller of W Wᵀ and Wᵀ W, in float64
    noise: Tensor  # (…), how far rounding may move the eigenvalues of gram
    is_wide: bool  # gram is W Wᵀ: W has no more rows than columns
    margin: float  # an eigenvalue so many times above the noise is exact to 1/margin

    @classmethod
    def of(cls, weight: Tensor) -> Weight:  # (…, p, d)
        """Prepare a weight of any floating dtype."""
        dtype = factor_dtype(weight)
        W = weight.double() if dtype == torch.float64 else weight
        margin = 1e3
        if dtype == torch.float64:
            margin = 1e10 if weight.dtype == dtype else 1e6
        G = inner(wide(W))
        noise = 10 * torch.finfo(G.dtype).eps * G.diagonal(dim1=-2, dim2=-1).sum(-1)
        return cls(W, G, noise, W.shape[-2] <= W.shape[-1], margin)

    @property
    def shape(self) -> torch.Size:
        """The shape (…, p, d) of the matrix."""
        return self.matrix.shape

    @property
    def mT(self) -> Weight:  # noqa: N802 (as torch calls it)
        """The transposed weight."""
        return self._replace(matrix=self.matrix.mT, is_wide=not self.is_wide)


def solve_side(
    W: Weight,  # (…, p, d)
    other: Precision,  # (…, d, d)
    m: float,
    bounds: tuple[float, float],
) -> Generator[Request, Answer, Precision]:
    """Return ``InvThreshold(W Ω Wᵀ, m)``, the best precision of W's rows when the columns' is Ω.

    It minimises ``tr(X·W Ω Wᵀ) − m·logdet X`` subject to ``u·I ⪯ X ⪯ v·I``. For the best precision
    of the columns, give it ``W.mT`` and the rows' precision. Use it with ``yield from``.

    A k x k matrix is decomposed that has the nonzero eigenvalues of ``W Ω Wᵀ``.

    Args:
        W: the weight.
        other: the precision Ω of the other side.
        m: numerator, > 0; in Alg. 1 the size of the other side.
        bounds: smallest and largest eigenvalue (u, v).
    """
    v = bounds[1]
    floor = m / v
    noise = other.spectrum().amax(-1) * W.noise
    if W.is_wide:
        C = inner(W.matrix, other.basis)
        scale = other.outside.double()[..., None, None]
        gain = other.values.double().unsqueeze(-2) - scale
        delta = scale * W.gram + (C * gain) @ C.mT
        r, Q, resolved = yield Request(delta, noise, W.margin, floor)
    else:
        H = other.to(torch.float64).root()
        r, Z, resolved = yield Request(H.mT @ W.gram @ H, noise, W.margin, floor)
        r, Q = _project(W.mT.matrix, H @ Z, r, floor)
    if not resolved:
        Q, s, _ = svd(W.matrix.double() @ other.to(torch.float64).sqrt())
        r = s.square()
    return as_precision(W, Q, clip_inverse(m, r, bounds), None if W.is_wide else v)


def thin_svd(
    W: Weight,  # (…, p, d)
    floor: float,
) -> Generator[Request, Answer, tuple[Tensor, Tensor, Tensor]]:
    """Return W's squared singular values (…, k), its left (…, p, k) and right vectors (…, d, k).

    Vectors of the longer side whose squared singular value is not above the floor may be zero,
    see :class:`Precision`. Use it with ``yield from``.
    """
    X = W.matrix if W.is_wide else W.matrix.mT
    s2, short, resolved = yield Request(W.gram, W.noise, W.margin, floor)
    if resolved:
        s2, long = _project(X, short, s2, floor)
    else:
        short, s, long = svd(X)
        s2 = s.square()
    return (s2, short, long) if W.is_wide else (s2, long, short)


def as_precision(
    W: Weight,
    basis: Tensor,  # (…, n, k)
    values: Tensor,  # (…, k)
    outside: float | None = None,
) -> Precision:
    """Return the precision of a side of W from its eigenvectors and eigenvalues.

    Args:
        W: the weight; it decides the dtype.
        basis: orthonormal columns.
        values: their eigenvalues.
        outside: the eigenvalue of everything outside the basis; None for a complete basis.
    """
    dtype, scale = factor_dtype(W.matrix), None
    if outside is not None:
        scale = torch.full(values.shape[:-1], outside, dtype=dtype, device=values.device)
    return Precision(scale, basis.to(dtype), values.to(dtype))


def _project(
    X: Tensor,  # (…, k, n)
    T: Tensor,  # (…, k, k)
    r: Tensor,  # (…, k)
    floor: float,
) -> tuple[Tensor, Tensor]:
    """Return the squared lengths of the columns of Xᵀ T, and these columns as unit vectors.

    The squared lengths are r but for rounding, and more exact than it, since r comes from a
    matrix of squares. Where r is not above the floor both are zero, since they have no effect.
    """
    return unit_columns(X, T * (r > floor).unsqueeze(-2))
