"""One side of a weight: its basis in a posterior, and what the posterior expects there.

A curvature from N rows has rank N at most, and a prior is scalar plus low rank. So is everything
that follows from the two, and only matrices of that rank are decomposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adareg.core.evidence.curvature import deviated, is_factor, rank_of
from adareg.core.linalg import eigh
from adareg.core.precision import Precision

#: Curvatures below this share of the largest are rounding.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Full:
    """A side with all directions: B with ``BᵀΩB = I`` and ``BᵀFB = diag(h)``."""

    basis: Tensor  # B: (…, n, n)
    values: Tensor  # h: (…, n)

    def within(self, Z: Tensor) -> Tensor:
        """Return the coordinates along the directions that the data determine."""
        return Z

    def lifted(self, X: Tensor) -> Tensor:
        """Return what has these coordinates."""
        return X

    def back(self, Z: Tensor) -> Tensor:
        """Return what has the identity as its prior, as it is in the weight."""
        return self.basis @ Z


@dataclass(frozen=True)
class Thin:
    """A side with r < n directions in which there is curvature, after ``Ω^−½``.

    ``Ω^−½·F·Ω^−½ = V·diag(h)·Vᵀ``.
    """

    root: Precision  # Ω^−½: (…, n, n)
    vectors: Tensor  # V: (…, n, r)
    values: Tensor  # h: (…, r)

    def within(self, Z: Tensor) -> Tensor:
        """Return the coordinates along the directions that the data determine."""
        return self.vectors.mT @ Z

    def lifted(self, X: Tensor) -> Tensor:
        """Return what has these coordinates."""
        return self.vectors @ X

    def back(self, Z: Tensor) -> Tensor:
        """Return what has the identity as its prior, as it is in the weight."""
        return self.root @ Z


Side = Full | Thin


def whitened(precision: Precision, F: Tensor) -> Side:
    """Return the basis that makes a prior the identity and a curvature diagonal.

    Args:
        precision: Ω, in float64.
        F: a side of a curvature, itself or a factor of it.
    """
    if is_factor(F) and precision.scale is not None:
        return _thin(precision, F)
    H = precision.inverse().root()
    F = F.mT @ F if is_factor(F) else F
    h, Z = eigh(H.mT @ F @ H)
    return Full(H @ Z, h)


def _thin(precision: Precision, X: Tensor) -> Thin:
    X = deviated(X, precision)
    h, U = eigh(X @ X.mT)
    kept = h > _ROUNDING * h.amax(-1, keepdim=True)
    scale = torch.where(kept, h, 1.0).rsqrt() * kept
    vectors = (X.mT @ U) * scale.unsqueeze(-2)
    return Thin(precision.inverse().sqrt(), vectors, torch.where(kept, h, 0.0))


def decomposed(
    X: Tensor,  # (…, n, q)
    other: Precision,  # (…, q, q)
    precision: Precision,  # (…, n, n)
    side: Side,
    within: Tensor,  # (…, r)
    outside: float,
    rank: int,
) -> Precision:
    """Return ``X·Ω·Xᵀ + B·diag(t)·Bᵀ`` in its eigenbasis, for Ω of the other side.

    Args:
        X: the weight, n rows.
        other: Ω.
        precision: the prior of this side, in float64.
        side: B, all of it or its directions within.
        within: t along these.
        outside: t of all others.
        rank: of a longer side no more directions are kept; the others have their mean in common.
    """
    n = X.shape[-2]
    if isinstance(side, Full):
        B = side.basis
        return _full(X @ (other @ X.mT) + (B * within.unsqueeze(-2)) @ B.mT)
    c, B, e = precision.factors
    assert c is not None, "else the side is full"
    c = c.unsqueeze(-1)
    U = torch.cat([(other.sqrt() @ X.mT).mT, B, side.root @ side.vectors], -1)
    ones = torch.ones_like(U[..., 0, : X.shape[-1]])
    w = torch.cat([ones, outside * (1 / e - 1 / c), within - outside], -1)
    return _eigenbasis(outside / c.squeeze(-1), U, w, rank_of(n, rank))


def _full(E: Tensor) -> Precision:
    e, Q = eigh(E)
    return Precision(None, Q, e)


def _eigenbasis(s: Tensor, U: Tensor, w: Tensor, rank: int) -> Precision:
    """Return ``s·I + U·diag(w)·Uᵀ`` in its eigenbasis, up to a rank."""
    n, q = U.shape[-2:]
    if q >= n and n == rank:
        identity = torch.eye(n, dtype=U.dtype, device=U.device)
        return _full(s[..., None, None] * identity + (U * w.unsqueeze(-2)) @ U.mT)
    total = n * s + (w * U.square().sum(-2)).sum(-1)
    Q = torch.linalg.qr(U if q <= rank else _sketched(U * w.abs().sqrt().unsqueeze(-2), rank)).Q
    inside = Q.mT @ U
    k = Q.shape[-1]
    identity = torch.eye(k, dtype=U.dtype, device=U.device)
    e, Z = eigh((inside * w.unsqueeze(-2)) @ inside.mT + s[..., None, None] * identity)
    if q > rank:
        s = (total - e.sum(-1)) / (n - k)
    return _pruned(s, Q @ Z, e)


def _sketched(U: Tensor, rank: int) -> Tensor:  # (…, n, q) -> (…, n, rank)
    """Return random combinations of columns, whose span has most of ``U·Uᵀ``."""
    generator = torch.Generator("cpu").manual_seed(U.shape[-1])
    shape = (U.shape[-1], rank)
    return U @ torch.randn(shape, generator=generator, dtype=U.dtype, device="cpu").to(U.device)


def _pruned(s: Tensor, Q: Tensor, e: Tensor) -> Precision:
    """Leave out directions that are like all outside."""
    differs = (e - s.unsqueeze(-1)).abs() > 1e-12 * torch.maximum(e, s.unsqueeze(-1))
    kept = differs.reshape(-1, e.shape[-1]).any(0)
    return Precision(s, Q[..., kept].contiguous(), e[..., kept].contiguous())


def fitted(E: Precision, rho: Tensor) -> Precision:  # (…, n, n), (…)
    """Return the precision of geometric mean one for ``Σ ∝ (1 − ρ)·I + ρ·E/mean(diag E)``."""
    n, k = E.basis.shape[-2:]
    rho, e = rho.unsqueeze(-1), E.values
    if E.scale is None:
        spread = 1 - rho + rho * e / e.mean(-1, keepdim=True)
        return Precision(None, E.basis, spread.log().mean(-1, keepdim=True).exp() / spread)
    s = E.scale.unsqueeze(-1)
    mean = (e.sum(-1, keepdim=True) + (n - k) * s) / n
    spread, rest = 1 - rho + rho * e / mean, 1 - rho + rho * s / mean
    middle = ((spread.log().sum(-1, keepdim=True) + (n - k) * rest.log()) / n).exp()
    return Precision((middle / rest).squeeze(-1), E.basis, middle / spread)
