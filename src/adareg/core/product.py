"""The linear maps of a prior: its product with a weight, ``Ωr W Ωc``, and its proximal step.

Which form is cheapest depends on the prior: a class each, with one interface. :class:`Maps` makes
those of a prior and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from adareg.core.linalg import (
    add_matmul,
    is_sharded,
    is_small,
    matmul,
    result_dtype,
    transposed,
    wide,
    without_autocast,
)
from adareg.core.precision import Precision

#: On a GPU, where each kernel costs more than its arithmetic, priors of up to this many entries
#: ``(p·d)²`` are applied as one matrix on vec(W) instead of by three products.
_WRITTEN_OUT_UP_TO = 2**20


class LinearMap:
    """A linear map of a weight (…, p, d) in the dtype of its factors.

    With the factors as NumPy arrays (``map.apply(Tensor.numpy)``) it is one of arrays.
    """

    def __call__(self, W: Tensor) -> Tensor:
        """Apply it, at full precision under autocast, too."""
        with without_autocast(W):
            return self._of(W)

    def add(self, total: Tensor, W: Tensor, factor: float) -> Tensor:
        """Return ``total + factor·map(W)``, in the dtype of ``total``."""
        return total.add(self(W).to(result_dtype(total)), alpha=factor).to(total.dtype)

    @property
    def factors(self) -> tuple[Tensor | None, ...]:
        """All that it is made of, as its class takes it."""
        return tuple(vars(self).values())

    def apply(self, f: Callable[[Tensor], Any]) -> Self:
        """Return the map with ``f`` of every factor."""
        return type(self)(*(None if factor is None else f(factor) for factor in self.factors))

    def overwrite(self, other: LinearMap) -> None:
        """Copy the factors of another map of this class and shape, as a CUDA graph needs it."""
        for mine, its in zip(self.factors, other.factors, strict=True):
            if mine is not None and its is not None:
                mine.copy_(its)

    def _of(self, W: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(eq=False)
class WrittenOut(LinearMap):
    """``vec(W) -> A·vec(W)``: for tiny weights on a GPU."""

    matrix: Tensor  # A: (…, p·d, p·d), on the rows of W one after another

    def _of(self, W: Tensor) -> Tensor:
        return (self.matrix @ W.flatten(-2).unsqueeze(-1)).view(W.shape)


@dataclass(eq=False)
class TwoSided(LinearMap):
    """``W -> Ωr·W·Ωc``, both dense: for small weights whose longer side is all in its basis."""

    row: Tensor  # (…, p, p)
    col: Tensor  # (…, d, d)

    def _of(self, W: Tensor) -> Tensor:
        return matmul(matmul(self.row, W), self.col)

    def add(self, total: Tensor, W: Tensor, factor: float) -> Tensor:
        """Return ``total + factor·map(W)``, in one kernel less where dtypes agree."""
        if total.dtype != self.row.dtype:
            return super().add(total, W, factor)
        with without_autocast(W):
            return add_matmul(total, matmul(self.row, W), self.col, factor)


@dataclass(eq=False)
class LowRank(LinearMap):
    """``X -> S·(X + X·B·diag(g)·Bᵀ)``, X being W with its shorter side first.

    It is ``Ωr W Ωc`` in three products of k·p·d multiplications; in two where S is a multiple of
    the identity.
    """

    short: Tensor  # S: (…, k, k), or (…, 1, 1)
    basis: Tensor  # B: (…, n, k)
    scaled: Tensor  # B·diag(g); B itself where it is so large that it is not doubled
    gain: Tensor | None  # g: (…, 1, k), for a B that is not scaled

    def _of(self, W: Tensor) -> Tensor:
        X = wide(W)
        inside = matmul(X, self.scaled)
        if self.gain is not None:
            inside = inside * self.gain
        return _as(W, _times(self.short, add_matmul(X, inside, transposed(self.basis))))


@dataclass(eq=False)
class Shrinkage(LinearMap):
    """``X -> S·X + Q·(C ∘ QᵀXB)·Bᵀ``, X being W with its shorter side first.

    The proximal step: S shrinks what is outside the basis B, C is how much less it shrinks within.
    """

    outside: Tensor  # S: (…, k, k), or (…, 1, 1)
    change: Tensor  # C: (…, k, r)
    basis: Tensor  # B: (…, n, r)
    vectors: Tensor | None  # Q: (…, k, k); None if S is a multiple of the identity

    def _of(self, W: Tensor) -> Tensor:
        X, Q = wide(W), self.vectors
        inside = matmul(X, self.basis)
        if Q is None:
            inside = self.change * inside
        else:
            inside = matmul(Q, self.change * matmul(transposed(Q), inside))
        return _as(W, add_matmul(_times(self.outside, X), inside, transposed(self.basis)))


def _as(W: Tensor, X: Tensor) -> Tensor:
    """Turn X back to W's orientation."""
    return X if W.shape[-2] <= W.shape[-1] else transposed(X)


def _times(S: Tensor, X: Tensor) -> Tensor:
    """Return ``S·X`` for S of k x k, or a multiple of the identity as 1 x 1."""
    return S * X if S.shape[-1] == 1 else matmul(S, X)


class Maps:
    """The linear maps of a prior, each made when it is first asked for and kept."""

    def __init__(self, row: Precision, col: Precision) -> None:
        self._row, self._col = row, col
        rows_are_short = row.basis.shape[-2] <= col.basis.shape[-2]
        self._short, self._long = (row, col) if rows_are_short else (col, row)
        self._forget()

    def _forget(self) -> None:
        self._product: LinearMap | None = None
        self._shrinkage: LinearMap | None = None
        self._step: float | None = None
        self._uniform: bool | None = None

    def product(self) -> LinearMap:
        """Return ``W -> Ωr W Ωc``."""
        if self._is_captured_uniform:
            return self._make_product(uniform=False)
        if self._product is not None:
            return self._product
        made = self._lasting(lambda: self._make_product(self._is_uniform))
        if not is_transforming():
            self._product = made
        return made

    def shrinkage(self, step: float | Tensor) -> LinearMap:
        """Return the proximal step of this size; kept until another size is asked for."""
        if self._is_captured_uniform:
            return self._make_shrinkage(step, uniform=False)
        if isinstance(step, Tensor):
            return self._make_shrinkage(step, self._is_uniform)
        if self._shrinkage is not None and self._step == step:
            return self._shrinkage
        made = self._lasting(lambda: self._make_shrinkage(step, self._is_uniform))
        if not is_transforming():
            self._shrinkage, self._step = made, step
        return made

    def overwrite(self, other: Maps) -> None:
        """Take over the maps of a prior whose factors have been copied into this one's.

        A captured CUDA graph goes on reading the same tensors. It reads none of those that were
        made for a multiple of the identity: these are made anew.
        """
        if self._is_uniform:
            self._forget()
            self.product()
            return
        self.product().overwrite(self._lasting(lambda: other._make_product(uniform=False)))
        if (old := self._shrinkage) is not None and (step := self._step) is not None:
            old.overwrite(self._lasting(lambda: other._make_shrinkage(step, uniform=False)))

    def _lasting(self, make: Callable[[], LinearMap]) -> LinearMap:
        """Make a map whose factors any later step can use, whatever surrounds this one."""
        with torch.inference_mode(False), torch.no_grad(), without_autocast(self._long.basis):
            return make()

    def _make_product(self, uniform: bool) -> LinearMap:
        """A uniform one takes the shorter side as the multiple of the identity that it is."""
        row, col, long = self._row, self._col, self._long
        if self._is_tiny:
            return WrittenOut(_kron(row.dense(), col.dense()))
        if self._is_small and long.scale is None:
            return TwoSided(row.dense(), col.dense())
        c, B = long.outside[..., None, None], long.basis
        gain = (long.values.unsqueeze(-2) - c) / c
        S = c * (self._short.outside[..., None, None] if uniform else self._short.dense())
        return LowRank(S, B, B * gain, None) if self._is_small else LowRank(S, B, B, gain)

    def _make_shrinkage(self, step: float | Tensor, uniform: bool) -> LinearMap:
        """With ``f(x) = 1/(1 + 2·step·x)``: ``f(a·c)``, and ``f(a·b) − f(a·c)`` in the basis.

        a are the eigenvalues of the shorter side, b and c those of the longer in and outside its
        basis.
        """
        if self._is_tiny:
            return self._make_written_out_shrinkage(step)
        b, c = self._long.values.unsqueeze(-2), self._long.outside[..., None, None]
        short = self._short
        a, Q = (short.outside.unsqueeze(-1), None) if uniform else short.eigenvectors()
        a = a.unsqueeze(-1)
        outside = 1 / (1 + 2 * step * a * c)
        change = 1 / (1 + 2 * step * a * b) - outside
        S = outside if Q is None else matmul(Q * outside.mT, Q.mT)
        return Shrinkage(S, change, self._long.basis, Q)

    def _make_written_out_shrinkage(self, step: float | Tensor) -> LinearMap:
        (a, Qr), (b, Qc) = self._row.eigenvectors(), self._col.eigenvectors()
        Q = _kron(Qr, Qc)
        shrink = 1 / (1 + 2 * step * (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2))
        return WrittenOut(matmul(Q * shrink.unsqueeze(-2), Q.mT))

    @property
    def _is_small(self) -> bool:
        """Memory does not matter, and the number of products does."""
        B = self._long.basis
        shape = torch.Size((self._row.basis.shape[-2], self._col.basis.shape[-2]))
        return not is_sharded(B) and (B.dtype == torch.float64 or is_small(shape))

    @property
    def _is_tiny(self) -> bool:
        """Written out on a GPU it takes no more than ``_WRITTEN_OUT_UP_TO`` entries in all."""
        B = self._row.basis
        pd = B.shape[-2] * self._col.basis.shape[-2]
        return (
            B.is_cuda
            and not is_sharded(self._long.basis)
            and B.shape[:-2].numel() * pd**2 <= _WRITTEN_OUT_UP_TO
        )

    @property
    def _is_uniform(self) -> bool:
        """The shorter side is known to be a multiple of the identity.

        With p far from d it is, after a few updates: all of it lies on the bound v. Looking
        waits for a GPU, so it is done once for each prior; it would not pay for small ones.
        """
        if self._uniform is None:
            worth = not self._is_small and not is_sharded(self._long.basis)
            values, outside = self._short.values, self._short.outside.unsqueeze(-1)
            self._uniform = worth and bool((values == outside).all())
        return self._uniform

    @property
    def _is_captured_uniform(self) -> bool:
        """A CUDA graph is being captured that must also serve when this has changed."""
        return (
            self._row.basis.is_cuda
            and self._is_uniform
            and not torch.compiler.is_compiling()
            and torch.cuda.is_current_stream_capturing()
        )


def is_transforming() -> bool:
    """Return true within torch.func's transforms: tensors made in one do not outlast it."""
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def _kron(A: Tensor, B: Tensor) -> Tensor:  # (…, p, p), (…, d, d) -> (…, p·d, p·d)
    """Return ``A ⊗ B``, which acts on the rows of W one after another."""
    return (A[..., :, None, :, None] * B[..., None, :, None, :]).flatten(-2).flatten(-3, -2)
