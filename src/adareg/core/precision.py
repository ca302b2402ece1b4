"""A symmetric positive definite matrix stored as scalar plus low rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adareg.core.linalg import is_sharded, matmul, times, whole


@dataclass(frozen=True, eq=False)
class Precision:
    """``Ω = c·(I − B·Bᵀ) + B·diag(e)·Bᵀ``, with orthonormal columns in ``B``.

    Everything outside the span of ``B`` has eigenvalue c, so products, inverse, square root,
    determinant and eigenvalues cost O(n·k) per column instead of O(n²). The eigenvalues e are
    stored themselves, not as the gain ``g = e − c`` of the equal form ``c·I + B·diag(g)·Bᵀ``:
    with c = 1000 and e = 0.001 the difference would lose e to rounding.

    A column of ``B`` may be zero where its eigenvalue equals c: its direction is then outside.

    Args:
        scale: c, shape (…); None if ``B`` is square, so that nothing is outside.
        basis: B, shape (…, n, k).
        values: e, shape (…, k).

    >>> import adareg, torch
    >>> P = adareg.Precision.identity(3)
    >>> (P @ torch.ones(3, 1)).flatten()
    tensor([1., 1., 1.])
    """

    scale: Tensor | None  # (…)
    basis: Tensor  # (…, n, k)
    values: Tensor  # (…, k)

    @classmethod
    def identity(
        cls,
        n: int,
        batch: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Precision:
        """Return the n x n identity: Ω = I, which makes the penalty plain weight decay."""
        scale = torch.ones(batch, dtype=dtype, device=device)
        return cls(scale, scale.new_zeros(*batch, n, 0), scale.new_ones(*batch, 0))

    @classmethod
    def stack(cls, precisions: Sequence[Precision]) -> Precision:
        """Stack precisions of one shape and rank into a batch."""
        scales = [precision.scale for precision in precisions if precision.scale is not None]
        return cls(
            torch.stack(scales) if scales else None,
            torch.stack([precision.basis for precision in precisions]),
            torch.stack([precision.values for precision in precisions]),
        )

    @property
    def shape(self) -> torch.Size:
        """The shape (…, n, n) of the matrix."""
        return self.basis.shape[:-1] + self.basis.shape[-2:-1]

    @property
    def factors(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """The stored tensors ``(scale, basis, values)``."""
        return self.scale, self.basis, self.values

    @property
    def outside(self) -> Tensor:
        """The eigenvalue c outside the basis; the largest of those inside if nothing is outside."""
        return self.values.amax(-1) if self.scale is None else self.scale

    def apply(self, f: Callable[[Tensor], Tensor]) -> Precision:
        """Return it with ``f`` applied to every factor, to move, cast, index or expand them."""
        return Precision(
            None if self.scale is None else f(self.scale), f(self.basis), f(self.values)
        )

    def to(self, *args: Any, **kwargs: Any) -> Precision:
        """Return it with its factors moved or cast, like ``Tensor.to``."""
        return self.apply(lambda factor: factor.to(*args, **kwargs))

    def map(self, f: Callable[[Tensor], Tensor]) -> Precision:
        """Return ``f(Ω)``: ``f`` of every eigenvalue, in the same basis."""
        scale = None if self.scale is None else f(self.scale)
        return Precision(scale, self.basis, f(self.values))

    def inverse(self) -> Precision:
        """Return ``Ω⁻¹``, in the same form."""
        return self.map(torch.reciprocal)

    def sqrt(self) -> Precision:
        """Return the symmetric square root ``Ω^{1/2}``, in the same form."""
        return self.map(torch.sqrt)

    def root(self) -> Tensor:
        """Return a dense n x n matrix H with ``H·Hᵀ = Ω``, whichever is cheapest to make."""
        if self.scale is None:
            return self.basis * self.values.sqrt().unsqueeze(-2)
        return self.sqrt().dense()

    def eigenvalues(self) -> Tensor:
        """Return all n eigenvalues, ascending, shape (…, n)."""
        n, k = self.basis.shape[-2:]
        rest = self.outside.unsqueeze(-1).expand(*self.values.shape[:-1], n - k)
        return torch.cat([self.values, rest], dim=-1).sort(dim=-1).values

    def eigenvectors(self) -> tuple[Tensor, Tensor]:
        """Return eigenvalues (…, n) and a complete orthonormal basis of eigenvectors (…, n, n).

        The stored basis, where it is complete; else the n x n matrix is decomposed.
        """
        n, k = self.basis.shape[-2:]
        if self.scale is None:
            return self.values, self.basis
        if k == 0:
            eye = torch.eye(n, dtype=self.basis.dtype, device=self.basis.device)
            batch = self.scale.shape
            return self.scale.unsqueeze(-1).expand(*batch, n), eye.expand(*batch, n, n)
        e, Q = torch.linalg.eigh(self.dense().double())
        return e.to(self.basis.dtype), Q.to(self.basis.dtype)

    def logdet(self) -> Tensor:
        """Return ``log det Ω``, shape (…), in float64."""
        n, k = self.basis.shape[-2:]
        return self.values.double().log().sum(-1) + (n - k) * self.outside.double().log()

    def dense(self) -> Tensor:
        """Return the n x n matrix itself; a sharded basis is gathered for it."""
        B = whole(self.basis)
        if self.scale is None:
            return matmul(B * self.values.unsqueeze(-2), B.mT)
        c = self.scale[..., None, None]
        eye = torch.eye(B.shape[-2], dtype=B.dtype, device=B.device)
        return c * eye + matmul(B * (self.values.unsqueeze(-2) - c), B.mT)

    def covariance(self) -> Tensor:
        """Return the dense inverse ``Σ = Ω⁻¹``: computed, never stored."""
        return self.inverse().dense()

    def spectrum(self) -> Tensor:
        """Return the eigenvalue of each coordinate that :meth:`split` returns."""
        if self.scale is None:
            return self.values
        rest = self.scale.unsqueeze(-1).expand(self.basis.shape[:-1])
        return torch.cat([self.values, rest], dim=-1)

    def split(self, X: Tensor) -> Tensor:  # (…, n, j) -> (…, k + n, j), or (…, n, j)
        """Return coordinates in which Ω is diagonal: ``BᵀX`` above the rest, ``X − B·BᵀX``.

        Their squares, weighted with :meth:`spectrum`, add up to ``tr(XᵀΩX)`` with no
        cancellation, however far the eigenvalues lie apart.
        """
        inside = matmul(self.basis.mT, X)
        if self.scale is None:
            return inside
        return torch.cat([inside, X - matmul(self.basis, inside)], dim=-2)

    def merge(self, coordinates: Tensor) -> Tensor:
        """Undo :meth:`split`."""
        if self.scale is None:
            return matmul(self.basis, coordinates)
        n, k = self.basis.shape[-2:]
        inside, rest = coordinates.split([k, n], dim=-2)
        return matmul(self.basis, inside) + rest

    def __matmul__(self, X: Tensor) -> Tensor:  # Ω @ X, computed in the factors' dtype
        if X.ndim == 1:
            return (self @ X.unsqueeze(-1)).squeeze(-1)
        if is_sharded(self.basis) and not is_sharded(X):
            return self.apply(whole) @ X
        B, e, wide = self.basis, self.values, X.to(self.basis.dtype)
        inside = matmul(B.mT, wide)
        if is_sharded(inside):
            product = matmul(B * e.unsqueeze(-2), inside)
        else:
            product = matmul(B, e.unsqueeze(-1) * inside)
        if self.scale is not None:
            product = product + times(wide - matmul(B, inside), self.scale)
        return product.to(X.dtype)

    def __rmatmul__(self, X: Tensor) -> Tensor:  # X @ Ω
        return self @ X if X.ndim == 1 else (self @ X.mT).mT

    def __repr__(self) -> str:
        k = self.basis.shape[-1]
        return f"Precision(shape={tuple(self.shape)}, rank={k}, dtype={self.basis.dtype})"
