"""The operations that cross processes when each of them holds a part of a matrix (DTensor).

A matrix is spread along one axis, its longer one; a plain tensor is the same in every process.
A product needs communication only if it sums over the spread axis: the products of the parts are
added up. Everything else each process does on its own part.

Only :mod:`adareg.core.linalg` calls these functions, when it meets a spread matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from adareg.core import linalg

#: Where errors of one process go while the others wait for its part of a sum.
_FAILURES: ContextVar[list[Exception] | None] = ContextVar("failures", default=None)


@contextmanager
def collected_failures() -> Iterator[list[Exception]]:
    """Collect errors; a part that cannot be computed counts as NaN meanwhile.

    So a process whose computation fails does not keep the others waiting.
    """
    failures: list[Exception] = []
    token = _FAILURES.set(failures)
    try:
        yield failures
    finally:
        _FAILURES.reset(token)


def is_split(placement: Placement) -> TypeGuard[Shard | _StridedShard]:
    """Return true if processes along this dimension of the mesh hold different parts."""
    return isinstance(placement, Shard | _StridedShard)


def along(placements: Sequence[Placement], axis: int) -> list[Placement]:
    """Return these placements with every shard moved to ``axis``."""
    return [_moved(p, axis) if is_split(p) else Replicate() for p in placements]


def _moved(placement: Placement, axis: int) -> Placement:
    if isinstance(placement, _StridedShard):
        return _StridedShard(axis, split_factor=placement.split_factor)
    return Shard(axis)


def to_longer(X: DTensor) -> list[Placement]:
    """Return X's placements with every shard moved to the longer axis."""
    axis = 1 if X.shape[0] <= X.shape[1] else 0
    return [p if not is_split(p) or p.dim == axis else Shard(axis) for p in X.placements]


def lengthwise(X: DTensor) -> Tensor:
    """:func:`adareg.core.linalg.lengthwise`: parts are exchanged, or gathered if they must be."""
    if X.ndim != 2 or not any(map(is_split, X.placements)):
        return linalg.whole(X)
    placements = [p if is_split(p) else Replicate() for p in to_longer(X)]
    return X.redistribute(placements=placements)


def spread(X: Tensor, like: DTensor, placements: Sequence[Placement]) -> DTensor:
    """Spread X over ``like``'s mesh; a plain one is cut, and nothing is sent."""
    if not isinstance(X, DTensor):
        everywhere = [Replicate()] * like.device_mesh.ndim
        X = DTensor.from_local(X, like.device_mesh, everywhere, run_check=False)
    return X.redistribute(placements=list(placements))


def assemble(local: Tensor, like: DTensor, axis: int, shape: tuple[int, ...]) -> DTensor:
    """Return the matrix whose part in each process is ``local``, on ``like``'s mesh."""
    return DTensor.from_local(
        local,
        like.device_mesh,
        along(like.placements, axis),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def inner(X: DTensor, Y: Tensor | None) -> Tensor:
    """:func:`adareg.core.linalg.inner`, X being spread along its columns."""
    local = X.to_local()
    shape = (X.shape[-2], X.shape[-2] if Y is None else Y.shape[-1])

    def compute() -> Tensor:
        if local.shape[-1] == 0:
            return local.new_zeros(shape, dtype=torch.float64)
        return linalg.inner(local, None if Y is None else _part(Y, X, 0))

    return _sum(compute, X, shape, torch.float64)


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A·B``, at least one of them spread."""
    if _axis(A) == 1 or _axis(B) == 0:
        like = A if isinstance(A, DTensor) else B
        assert isinstance(like, DTensor)
        shape = (A.shape[-2], B.shape[-1])
        return _sum(
            lambda: linalg.matmul(_part(A, like, 1), _part(B, like, 0)), like, shape, A.dtype
        )
    if isinstance(A, DTensor):
        return assemble(linalg.matmul(A.to_local(), B), A, 0, (A.shape[-2], B.shape[-1]))
    assert isinstance(B, DTensor)
    return assemble(linalg.matmul(A, B.to_local()), B, 1, (A.shape[-2], B.shape[-1]))


def add_matmul(C: DTensor, A: Tensor, B: DTensor) -> DTensor:
    """Return ``C + A·B``, C and B being spread along their columns."""
    local = linalg.add_matmul(C.to_local(), A, B.to_local())
    return assemble(local, C, 1, tuple(C.shape))


def dot(A: DTensor, B: DTensor) -> Tensor:
    """Return ``tr(AᵀB)``, both spread alike."""
    return _sum(lambda: linalg.dot(A.to_local(), B.to_local()), A, (), torch.float64)


def times(X: DTensor, factor: Tensor) -> DTensor:
    """Return ``factor·X`` for a plain scalar."""
    return assemble(X.to_local() * factor, X, _axis(X) or 0, tuple(X.shape))


def unit_columns(X: DTensor, T: Tensor) -> tuple[Tensor, DTensor]:
    """:func:`adareg.core.linalg.unit_columns`, X being spread along its columns."""
    squared = T.new_full(T.shape[-1:], torch.nan)
    summed = False

    def total(mine: Tensor) -> Tensor:
        nonlocal squared, summed
        summed, squared = True, _all_reduce(mine, X)
        return squared

    shape = X.to_local().shape[-1], T.shape[-1]
    dtype = linalg.factor_dtype(X)
    try:
        _, columns = linalg.unit_columns_of(X.to_local(), T, dtype, total)
    except Exception as error:
        _keep(error)
        if not summed:
            total(squared)
        columns = T.new_full(shape, torch.nan, dtype=dtype)
    return squared, assemble(columns, X, 0, (X.shape[-1], T.shape[-1]))


def svd(X: DTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin SVD ``U, s, V`` of a float64 matrix whose longer axis is spread.

    Each process decomposes its own part into Q·R; the small factors R, one below the other, have
    the same singular values and right vectors as the whole.
    """
    if _axis(X) == 0:
        V, s, U = svd(cast(DTensor, X.mT))
        return U, s, V
    local, k = X.to_local(), X.shape[-2]
    parts, mine = _count(X), _index(X)

    def compute() -> Tensor:
        R = torch.linalg.qr(local.mT, mode="r").R
        stacked = local.new_zeros(parts, k, k)
        stacked[mine, : R.shape[0]] = R
        return stacked

    stacked = _sum(compute, X, (parts, k, k), local.dtype)
    W, s, Ut = torch.linalg.svd(stacked.flatten(0, 1), full_matrices=False)
    Q = torch.linalg.qr(local.mT).Q
    V = Q @ W.unflatten(0, (parts, k))[mine, : Q.shape[1]]
    return Ut.mT, s, assemble(V, X, 0, (X.shape[-1], k))


def _axis(X: Tensor) -> int | None:
    """Return the axis along which X is spread; None for a plain tensor."""
    if not isinstance(X, DTensor):
        return None
    return next(p.dim for p in X.placements if isinstance(p, Shard | _StridedShard))


def _part(X: Tensor, like: DTensor, axis: int) -> Tensor:
    """Return this process's part of X, cut along ``axis`` where ``like`` is cut."""
    return spread(X, like, along(like.placements, axis)).to_local()


def _sum(
    compute: Callable[[], Tensor], X: DTensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Add up what each process computes from its own part of X."""
    try:
        part = compute()
    except Exception as error:
        _keep(error)
        part = torch.full(shape, torch.nan, dtype=dtype, device=X.to_local().device)
    return _all_reduce(part, X)


def _keep(error: Exception) -> None:
    failures = _FAILURES.get()
    if failures is None:
        raise error
    failures.append(error)


def _all_reduce(part: Tensor, X: DTensor) -> Tensor:
    part = part.contiguous()
    for dim in _split_dims(X):
        dist.all_reduce(part, group=X.device_mesh.get_group(dim))
    return part


def _split_dims(X: DTensor) -> list[int]:
    return [dim for dim, placement in enumerate(X.placements) if is_split(placement)]


def _count(X: DTensor) -> int:
    return torch.Size([X.device_mesh.size(dim) for dim in _split_dims(X)]).numel()


def _index(X: DTensor) -> int:
    """Return the index of this process's part."""
    index = 0
    for dim in _split_dims(X):
        index = index * X.device_mesh.size(dim) + X.device_mesh.get_local_rank(dim)
    return index
