"""A symmetric positive definite matrix stored as scalar plus low rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Precision:
    """``Ω = c·(I − B·Bᵀ) + B·diag(e)·Bᵀ``, with orthonormal columns in ``B``.

    Everything outside the span of ``B`` has eigenvalue c, so products, inverse, square root,
    determinant and eigenvalues cost O(n·k) per column instead of O(n²). The eigenvalues e are
    stored themselves, not as the gain ``g = e − c`` of the equal form ``c·I + B·diag(g)·Bᵀ``:
    with c = 1000 and e = 0.001 the difference would lose e to rounding.

    A column of ``B`` may be zero where its eigenvalue equals c: then it says nothing.

    Args:
        scale: c, shape (…).
        basis: B, shape (…, n, k).
        values: e, shape (…, k).

    >>> import adareg, torch
    >>> P = adareg.Precision.identity(3)
    >>> (P @ torch.ones(3, 1)).flatten()
    tensor([1., 1., 1.])
    """

    scale: Tensor  # (…)
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
        """The n x n identity: Ω = I, which makes the penalty plain weight decay."""
        scale = torch.ones(batch, dtype=dtype, device=device)
        return cls(scale, scale.new_zeros(*batch, n, 0), scale.new_ones(*batch, 0))

    @property
    def shape(self) -> torch.Size:
        """The shape (…, n, n) of the matrix."""
        return self.basis.shape[:-1] + self.basis.shape[-2:-1]

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """``(scale, basis, values)``: all that is stored."""
        return self.scale, self.basis, self.values

    def to(self, *args: Any, **kwargs: Any) -> Precision:
        """The same matrix with its factors moved or cast, like ``Tensor.to``."""
        return Precision(*(t.to(*args, **kwargs) for t in self.factors))

    def map(self, f: Callable[[Tensor], Tensor]) -> Precision:
        """Apply ``f`` to every eigenvalue: ``f(Ω)``, in the same basis."""
        return Precision(f(self.scale), self.basis, f(self.values))

    def inverse(self) -> Precision:
        """``Ω⁻¹``, in the same form."""
        return self.map(torch.reciprocal)

    def sqrt(self) -> Precision:
        """The symmetric square root ``Ω^{1/2}``, in the same form."""
        return self.map(torch.sqrt)

    def eigenvalues(self) -> Tensor:
        """All n eigenvalues, ascending, shape (…, n)."""
        n, k = self.basis.shape[-2:]
        rest = self.scale.unsqueeze(-1).expand(*self.scale.shape, n - k)
        return torch.cat([self.values, rest], dim=-1).sort(dim=-1).values

    def logdet(self) -> Tensor:
        """``log det Ω``, shape (…), in float64."""
        n, k = self.basis.shape[-2:]
        return self.values.double().log().sum(-1) + (n - k) * self.scale.double().log()

    def dense(self) -> Tensor:
        """The n x n matrix itself."""
        n, B, c = self.basis.shape[-2], self.basis, self.scale[..., None]
        eye = torch.eye(n, dtype=B.dtype, device=B.device)
        return c.unsqueeze(-1) * eye + (B * (self.values - c).unsqueeze(-2)) @ B.mT

    def covariance(self) -> Tensor:
        """The dense inverse ``Σ = Ω⁻¹``: computed, never stored."""
        return self.inverse().dense()

    def spectrum(self) -> Tensor:
        """Eigenvalue of each coordinate that :meth:`split` returns, shape (…, k + n)."""
        rest = self.scale.unsqueeze(-1).expand(self.basis.shape[:-1])
        return torch.cat([self.values, rest], dim=-1)

    def split(self, X: Tensor) -> Tensor:  # (…, n, j) -> (…, k + n, j)
        """Coordinates in which Ω is diagonal: ``BᵀX`` above the remainder ``X − B·BᵀX``.

        Their squares, weighted with :meth:`spectrum`, add up to ``tr(XᵀΩX)`` with no
        cancellation, however far the eigenvalues lie apart.
        """
        inside = self.basis.mT @ X
        return torch.cat([inside, X - self.basis @ inside], dim=-2)

    def merge(self, coordinates: Tensor) -> Tensor:  # (…, k + n, j) -> (…, n, j)
        """The inverse of :meth:`split`."""
        n, k = self.basis.shape[-2:]
        inside, rest = coordinates.split([k, n], dim=-2)
        return self.basis @ inside + rest

    def __matmul__(self, X: Tensor) -> Tensor:  # Ω @ X
        return self.merge(self.spectrum().unsqueeze(-1) * self.split(X))

    def __rmatmul__(self, X: Tensor) -> Tensor:  # X @ Ω
        return (self @ X.mT).mT

    def __repr__(self) -> str:
        n, k = self.basis.shape[-2:]
        return f"Precision(shape={tuple(self.shape)}, rank={min(n, k)}, dtype={self.basis.dtype})"
