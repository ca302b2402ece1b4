"""Float64 products and eigendecompositions that never hold a large float64 copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

#: Entries of a float64 working copy: 4 MiB where a large one would fragment the heap, 32 MiB
#: on a GPU, which wants large products.
_CHUNK = {"cpu": 2**19, "cuda": 2**22}

#: Weights up to this many entries keep their factors in float64, whatever their own dtype: at
#: this size double precision costs nothing, and it makes penalty and objective exact at any
#: scale. Larger ones keep float32 factors, half the memory and a fast product on every GPU.
_DOUBLE_UP_TO = 2**18


#: From this size on the symmetry of a Gram matrix is worth eight products instead of one.
_SYMMETRIC_FROM = 512


#: Up to 32 x 32 CUDA has a batched solver; just above, one matrix after another takes 0.5 ms
#: each, three times a CPU's time (benchmarks/eigh_batches.py).
_SLOW_ON_CUDA = range(33, 65)


class NonFiniteError(ArithmeticError):
    """A weight holds NaN or infinite entries, so no precision can be computed from it."""


def check_matrix(X: object, name: str) -> None:
    """Refuse what is no tensor of matrices (…, p, d) with real floating point entries."""
    if not isinstance(X, Tensor):
        raise TypeError(
            f"{name}: expected a tensor, got {type(X).__name__}; torch.as_tensor makes one of it"
        )
    if X.ndim < 2 or 0 in X.shape[-2:]:
        raise ValueError(
            f"{name}: expected a matrix (…, p, d), not empty; got shape {tuple(X.shape)}"
        )
    if not X.is_floating_point():
        raise ValueError(f"{name}: expected real floating point numbers, got {X.dtype}")


def check_square(X: object, name: str) -> None:
    """Refuse what is no tensor of square matrices (…, n, n), likewise."""
    check_matrix(X, name)
    assert isinstance(X, Tensor)
    if X.shape[-1] != X.shape[-2]:
        raise ValueError(f"{name} must be square, (…, n, n); got {tuple(X.shape)}")


def factor_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of the factors of ``weight``'s prior: float32 or float64."""
    if weight.dtype == torch.float64 or is_small(weight.shape):
        return torch.float64
    return torch.float32


def is_small(shape: torch.Size) -> bool:  # (…, p, d)
    """Return true for weights so small that double precision costs nothing."""
    return shape[-2:].numel() <= _DOUBLE_UP_TO


def result_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of scalars computed from ``weight``: its own, but at least float32."""
    return torch.promote_types(weight.dtype, torch.float32)


def is_sharded(X: Tensor) -> bool:
    """Return true for a DTensor, of which each process holds a part (:mod:`adareg.core.shards`)."""
    return type(X) is not Tensor and type(X) is not nn.Parameter and hasattr(X, "device_mesh")


def whole(X: Tensor) -> Tensor:
    """Return X, gathered on every process if it is sharded."""
    return X.full_tensor() if is_sharded(X) else X  # type: ignore[attr-defined]


def local(X: Tensor) -> Tensor:
    """Return X, or this process's part of it if it is sharded."""
    return X.to_local() if is_sharded(X) else X  # type: ignore[attr-defined]


def lengthwise(X: Tensor) -> Tensor:
    """Return X, a sharded matrix spread along its longer axis, as these functions expect it."""
    return _shards().lengthwise(X) if is_sharded(X) else X


def _shards() -> Any:
    """Import the module when a DTensor is met; it loads torch.distributed.tensor."""
    from adareg.core import shards

    return shards


def transposed(X: Tensor) -> Tensor:
    """Return the transposed matrices; an array of NumPy 1 has no ``mT``."""
    return X.mT if isinstance(X, Tensor) else X.swapaxes(-1, -2)


def wide(W: Tensor) -> Tensor:
    """Return W or its transpose, whichever has no more rows than columns."""
    return W if W.shape[-2] <= W.shape[-1] else transposed(W)


def without_autocast(X: Tensor) -> AbstractContextManager[object]:
    """Keep autocast, which leaves float64 alone, from lowering the precision of X's products."""
    if not isinstance(X, Tensor) or X.dtype == torch.float64:
        return nullcontext()
    kind = X.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A·B`` to the full precision of its dtype, even where the program allows less.

    Eigenvalues of a precision may lie a million apart, which the ten bits of TF32 do not
    survive. Where float32 products are lowered, float64 takes their place; switching the
    setting off and on again would reach other threads, and code that reads it. NumPy's arrays
    are multiplied by NumPy.
    """
    if not isinstance(A, Tensor):
        return A @ B
    if is_sharded(A) or is_sharded(B):
        return _shards().matmul(A, B)
    if _is_full_precision(A):
        return A @ B
    return (A.double() @ B.double()).float()


def add_matmul(C: Tensor, A: Tensor, B: Tensor, factor: float = 1) -> Tensor:
    """Return ``C + factor·A·B``, as exact as :func:`matmul`, in one kernel if possible."""
    if not isinstance(C, Tensor):
        return C + factor * (A @ B)
    if is_sharded(C):
        return _shards().add_matmul(C, A, B)
    if C.ndim == A.ndim == B.ndim <= 3 and _is_full_precision(A):
        fused = torch.addmm if C.ndim == 2 else torch.baddbmm
        return fused(C, A, B, alpha=factor)
    return torch.add(C, matmul(A, B), alpha=factor)


def dot(A: Tensor, B: Tensor) -> Tensor:  # (…, p, d), (…, p, d) -> (…)
    """Return ``tr(AᵀB)``, summed in float64."""
    if is_sharded(A):
        return _shards().dot(A, B)
    return (A * B).sum((-2, -1), dtype=torch.float64)


def times(X: Tensor, factor: Tensor) -> Tensor:  # (…, p, d), (…) -> (…, p, d)
    """Return ``factor·X`` for each matrix of a batch."""
    if is_sharded(X):
        return _shards().times(X, factor)
    return factor[..., None, None] * X


def svd(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin SVD ``U, s, V`` with ``X = U·diag(s)·Vᵀ``, in float64."""
    X = X.double()
    if is_sharded(X):
        return _shards().svd(X)
    U, s, Vt = torch.linalg.svd(X, full_matrices=False)
    return U, s, Vt.mT


def _is_full_precision(A: Tensor) -> bool:
    """Return true if torch multiplies matrices of A's dtype on A's device in that dtype."""
    if A.dtype != torch.float32:
        return True
    backend = torch.backends.cuda if A.is_cuda else torch.backends.mkldnn
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if setting is None:  # before torch 2.9
        setting = torch.get_float32_matmul_precision()
    return setting in ("ieee", "none", "highest")


def inner(
    X: Tensor,  # (…, k, n)
    Y: Tensor | None = None,  # (…, n, j)
) -> Tensor:
    """Return ``X·Y`` in float64, or without Y ``X·Xᵀ``; the long axis n is cut into chunks."""
    if is_sharded(X):
        return _shards().inner(X, Y)
    total: Tensor | None = None
    for part in _chunks(X, 4):
        left = X[..., part].double()
        product = _gram(left) if Y is None else left @ Y[..., part, :].double()
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def _gram(X: Tensor) -> Tensor:  # (…, k, n) -> (…, k, k)
    """Return ``X·Xᵀ``, a large one in eight bands of rows, each from the diagonal on."""
    k = X.shape[-2]
    if k < _SYMMETRIC_FROM:
        return X @ X.mT
    G = X.new_empty((*X.shape[:-2], k, k))
    for i in range(8):
        first, last = k * i // 8, k * (i + 1) // 8
        band = X[..., first:last, :] @ X[..., first:, :].mT
        G[..., first:last, first:] = band
        G[..., first:, first:last] = band.mT
    return G


def unit_columns(
    X: Tensor,  # (…, k, n)
    T: Tensor,  # (…, k, j), float64
) -> tuple[Tensor, Tensor]:
    """Return the squared lengths of the columns of ``Xᵀ·T`` (…, n, j), and the columns normalised.

    Computed in float64 in chunks of n, stored in the factors' dtype. A zero column stays zero.
    """
    if is_sharded(X):
        return _shards().unit_columns(X, T)
    return unit_columns_of(X, T, factor_dtype(X))


def unit_columns_of(
    X: Tensor,  # (…, k, n)
    T: Tensor,  # (…, k, j), float64
    dtype: torch.dtype,
    total: Callable[[Tensor], Tensor] = lambda squared: squared,
) -> tuple[Tensor, Tensor]:
    """Return :func:`unit_columns` of a part of X; ``total`` adds up the lengths of all parts."""
    parts = list(_chunks(X))
    if len(parts) == 1:
        exact = T.mT @ X.double()
        length = torch.linalg.vector_norm(exact, dim=-1)
        squared = total(length * length)  # a third of the time of square()
        return squared, (exact * _inverse_root(squared).mT).to(dtype).mT
    columns = X.new_empty((*T.shape[:-2], X.shape[-1], T.shape[-1]), dtype=dtype)
    squared = torch.zeros_like(T[..., 0, :])
    for part in parts:
        exact = X[..., part].double().mT @ T
        squared += torch.linalg.vector_norm(exact, dim=-2).square()
        columns[..., part, :] = exact
    squared = total(squared)
    scale = _inverse_root(squared)
    for part in parts:  # in float64 too: a scale rounded to float32 would be off for all
        columns[..., part, :] = columns[..., part, :].double() * scale
    return squared, columns


def _inverse_root(squared: Tensor) -> Tensor:
    """Return ``1/√x`` as a row, finite for 0."""
    return squared.clamp(min=1e-300).rsqrt().unsqueeze(-2)


def _chunks(X: Tensor, factor: int = 1) -> Iterator[slice]:
    n = X.shape[-1]
    step = max(1, factor * _CHUNK.get(X.device.type, 2**19) * n // max(1, X.numel()))
    return (slice(start, start + step) for start in range(0, n, step))


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (ascending, clamped at zero) and eigenvectors of a semidefinite ``A``.

    On a GPU, sizes for which its library is slower than a CPU go there, and so does a
    decomposition that does not converge where ``A`` lies.
    """
    if A.is_cuda and A.shape[-1] in _SLOW_ON_CUDA:
        r, Q = _eigh_on_cpu(A)
    else:
        try:
            r, Q = torch.linalg.eigh(A)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            r, Q = _eigh_on_cpu(A)
    return r.clamp(min=0), Q


def _eigh_on_cpu(A: Tensor) -> tuple[Tensor, Tensor]:
    r, Q = torch.linalg.eigh(A.cpu())
    return r.to(A.device), Q.to(A.device)
