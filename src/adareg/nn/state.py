"""Priors in checkpoints: tensors of the same shapes at any time.

``torch.distributed.checkpoint`` reads into tensors that it is given, so a prior that has never been
updated is stored with the factors that it will have after its first update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adareg.core.linalg import factor_dtype, is_sharded, matmul, result_dtype
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.nn.select import Layer

#: The limits of eigenvalues: the product of two is neither 0 nor infinite in float32.
_EIGENVALUES = torch.finfo(torch.float32).tiny ** 0.5, torch.finfo(torch.float32).max ** 0.5

#: By how much products of two columns of a basis may differ from 0 or 1. Where a float32 weight's
#: singular values are close to rounding its vectors may be off by 1e-3, see ``Weight.margin``.
_ORTHONORMAL = 0.01


class Form(NamedTuple):
    """The factors that a regularizer's priors have once they have been updated."""

    fixed: Callable[[MatrixNormal], MatrixNormal]  # the same prior with such factors
    read: Callable[[Precision], Precision]  # undoes it for one side
    dtype: Callable[[Tensor], torch.dtype]  # of factors, for a weight


def dump(priors: Mapping[str, MatrixNormal], form: Form) -> dict[str, Any]:
    """Return priors as lists of tensors, by layer and side."""
    sides = {name: form.fixed(prior) for name, prior in priors.items()}
    return {
        name: {"row": list(prior.row.factors), "col": list(prior.col.factors)}
        for name, prior in sides.items()
    }


def stored(state: Mapping[str, Any]) -> dict[str, tuple[Precision, Precision]]:
    """Undo :func:`dump`, for layers that are yet to be compared with the model's."""
    return {
        name: (Precision(*factors["row"]), Precision(*factors["col"]))
        for name, factors in state.items()
    }


def load(
    stored: Mapping[str, tuple[Precision, Precision]],
    layers: Mapping[str, Layer],
    form: Form,
) -> dict[str, MatrixNormal]:
    """Return the priors of a model's layers, in copies, with the shapes that training gives them.

    Args:
        stored: rows and columns, by layer.
        layers: the model's.
        form: as in :func:`dump`.

    Raises:
        ValueError: they do not fit the model.
    """
    if stored.keys() != layers.keys():
        raise ValueError(
            f"the state is for layers {sorted(stored)}, this regularizer has {sorted(layers)}"
        )
    priors = {}
    for name, layer in layers.items():
        row, col = map(form.read, stored[name])
        W = layer.blank
        if not (_fits(row, W.shape[:-1]) and _fits(col, W.mT.shape[:-1])):
            raise ValueError(f"{name}: the state's factors do not fit {tuple(W.shape)}")
        if not all(_is_orthonormal(side) for side in (row, col)):
            raise ValueError(f"{name}: the state's factors are damaged: a basis is not orthonormal")
        if _is_identity(row, col):
            priors[name] = MatrixNormal.identity(W)
        else:
            priors[name] = MatrixNormal(row, col).to(form.dtype(W), copy=True)
    return priors


def _fits(precision: Precision, shape: torch.Size) -> bool:
    """Return true if the shapes are those of a side (…, n), and all eigenvalues within limits."""
    scale, basis, values = precision.factors
    low, high = _EIGENVALUES
    tensors = [basis, values] if scale is None else [basis, values, scale]
    return (
        all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors)
        and all(bool(tensor.isfinite().all()) for tensor in tensors)
        and basis.shape[:-1] == shape
        and values.shape == basis.shape[:-2] + basis.shape[-1:]
        and (scale.shape == shape[:-1] if scale is not None else basis.shape[-1] == shape[-1])
        and all(bool(((tensor > low) & (tensor < high)).all()) for tensor in tensors[1:])
    )


def _is_orthonormal(side: Precision) -> bool:
    """Return true if the columns of the basis are, but for those that have no effect."""
    gram = matmul(side.basis.mT, side.basis)
    used = torch.ones_like(side.values)
    if side.scale is not None:
        used = (side.values != side.scale.unsqueeze(-1)).to(gram.dtype)
    error = (gram - torch.diag_embed(used)) * used.unsqueeze(-1) * used.unsqueeze(-2)
    return bool((error.abs() < _ORTHONORMAL).all())


def _padded(prior: MatrixNormal) -> MatrixNormal:
    """Return the same prior with factors of the shapes that the rules of weights give them."""
    (p, d), row, col = prior.shape[-2:], prior.row, prior.col
    if not row.basis.shape[-1]:
        row = _complete(row) if p <= d else _with_rank(row, d)
    if not col.basis.shape[-1]:
        col = _with_rank(col, p) if p <= d else _complete(col)
    return MatrixNormal(row, col)


def any_rank(most: Callable[[int], int]) -> Form:
    """Return the form of priors whose sides of length n have a rank of ``most(n)`` at most."""

    def filled(side: Precision) -> Precision:
        return _filled(side, most(side.shape[-1]))

    return Form(
        lambda prior: MatrixNormal(filled(prior.row), filled(prior.col)),
        _without_gaps,
        result_dtype,
    )


def _filled(side: Precision, rank: int) -> Precision:
    """Return the same with a scale, and zero columns up to a rank."""
    c, missing = side.outside, max(0, rank - side.basis.shape[-1])
    if not missing:
        return Precision(c.clone(), side.basis.clone(), side.values.clone())
    basis = torch.cat([side.basis, _zero_columns(side.basis, missing)], -1)
    values = torch.cat([side.values, c.unsqueeze(-1).repeat_interleave(missing, -1)], -1)
    return Precision(c.clone(), basis, values)


def _without_gaps(side: Precision) -> Precision:
    """Undo :func:`_filled`."""
    if not isinstance(side.basis, Tensor) or side.basis.ndim < 2:
        return side  # it does not fit
    n, k = side.basis.shape[-2:]
    kept = (side.basis != 0).reshape(-1, n, k).any(1).any(0)
    if bool(kept.all()):
        return Precision(None, side.basis, side.values) if k == n else side
    return Precision(
        side.scale, side.basis[..., kept].contiguous(), side.values[..., kept].contiguous()
    )


#: Priors whose sides have the rank of the weight.
LOW_RANK = Form(_padded, lambda side: side, factor_dtype)


def _is_identity(row: Precision, col: Precision) -> bool:
    """Return if every eigenvalue of both is one."""
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
