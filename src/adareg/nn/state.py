"""What a checkpoint holds of a prior: tensors of the same shapes at any time.

``torch.distributed.checkpoint`` reads into tensors that it is given, so a prior that has never been
updated is stored with the factors that it will have after its first update.
"""

from __future__ import annotations

from torch import Tensor

from adareg.core.jacobian import WIDEST
from adareg.core.linalg import is_sharded
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal


def padded(prior: MatrixNormal) -> MatrixNormal:
    """The same prior with factors of the shapes that the rules give them."""
    if prior.row.basis.shape[-1] or prior.col.basis.shape[-1]:
        return prior
    p, d = prior.shape[-2:]
    if p <= d:
        return MatrixNormal(_complete(prior.row), _with_rank(prior.col, p))
    return MatrixNormal(_with_rank(prior.row, d), _complete(prior.col))


def completed(prior: MatrixNormal) -> MatrixNormal:
    """The same prior with factors of the shapes that the evidence rule gives them."""
    sides = (prior.row, prior.col)
    row, col = (_complete(s) if s.shape[-1] <= WIDEST else s for s in sides)
    return MatrixNormal(row, col)


def collapsed(side: Precision) -> Precision:
    """Undo :func:`completed` where it began with a multiple of the identity."""
    e = side.values
    if side.scale is not None or not bool((e == e[..., :1]).all()):
        return side
    return Precision(e[..., 0], side.basis[..., :0], e[..., :0])


def is_identity(row: Precision, col: Precision) -> bool:
    """Whether every eigenvalue of both is one."""
    factors = (row.scale, row.values, col.scale, col.values)
    return all(factor is None or bool((factor == 1).all()) for factor in factors)


def _complete(side: Precision) -> Precision:
    e, Q = side.eigenvectors()
    return Precision(None, Q.clone(), e.clone())


def _with_rank(side: Precision, k: int) -> Precision:
    c = side.outside
    return Precision(c, _zero_columns(side.basis, k), c.unsqueeze(-1).repeat_interleave(k, -1))


def _zero_columns(basis: Tensor, k: int) -> Tensor:
    if not is_sharded(basis):
        return basis.new_zeros(*basis.shape[:-1], k)
    from adareg.core.shards import assemble  # loads torch.distributed.tensor

    local = basis.to_local()  # type: ignore[attr-defined]
    return assemble(local.new_zeros(len(local), k), basis, 0, (len(basis), k))  # type: ignore[arg-type]
