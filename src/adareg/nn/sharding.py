"""Weights that are DTensors (FSDP2, tensor parallelism): how each is read as a matrix, and back.

The maths wants a matrix spread along its longer axis (see :mod:`adareg.core.shards`). A weight
sharded so is used as it lies. One sharded along the shorter axis is exchanged between processes
(all-to-all), so that none of them ever holds the whole. What has to be gathered is a batch of
matrices, and a weight whose reshaping DTensor cannot do on shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from adareg.core.linalg import whole
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.core.shards import along, is_split, spread, to_longer

ToMatrix = Callable[[Tensor], Tensor]


def blank(weight: DTensor) -> Tensor:
    """A tensor of the weight's whole shape that takes no memory."""
    return weight.to_local().new_empty(1).expand(weight.shape)


def problem(weight: DTensor) -> str | None:
    """Why a weight sharded like this cannot have a prior, or None."""
    mesh = weight.device_mesh
    for dim, placement in enumerate(weight.placements):
        if not (is_split(placement) or isinstance(placement, Replicate)):
            return f"the weight is placed as {placement}; accepted are Shard and Replicate"
        if isinstance(placement, _StridedShard) and weight.shape[placement.dim] % mesh.size():
            return (
                f"axis {placement.dim} of {tuple(weight.shape)} is cut along two dimensions of "
                f"the mesh, the {dim}. of them as {placement}, which torch cannot undo unless "
                f"{mesh.size()} divides {weight.shape[placement.dim]}; pad it, or shard it "
                f"along one dimension"
            )
    return None


def to_matrix(weight: DTensor, reshape: ToMatrix) -> Tensor:
    """The weight as (…, out, fan_in), spread along the longer axis; plain if it was gathered."""
    waiting = weight.requires_grad and torch.is_grad_enabled() and torch.cuda.is_available()
    moved = _on_mesh(weight)
    own = _reshaped(moved, reshape)
    if own is None:
        everywhere = [Replicate()] * weight.device_mesh.ndim
        matrix = reshape(moved.redistribute(placements=everywhere).to_local())
    else:
        matrix = own.redistribute(placements=to_longer(own))
    if waiting:
        matrix.register_hook(lambda grad: _await_reduction(weight))
    return matrix


def from_matrix(matrix: Tensor, weight: DTensor, reshape: ToMatrix, back: ToMatrix) -> Tensor:
    """The inverse of :func:`to_matrix`: in the shape of the weight, sharded and placed like it."""
    own = _reshaped(weight.detach(), reshape)
    if own is not None:
        assert isinstance(matrix, DTensor)
        matrix = matrix.redistribute(placements=own.placements)
    return spread(back(matrix), weight, weight.placements).to(weight.device)


def fit(prior: MatrixNormal, weight: DTensor, reshape: ToMatrix) -> MatrixNormal:
    """The prior where the matrix is, the basis of the longer side spread like it."""
    own = _reshaped(weight.detach(), reshape)
    if own is None:
        return prior.apply(whole).to(weight.device_mesh.device_type)
    prior = prior.to(weight.device_mesh.device_type)
    rows = along(to_longer(own), 0)
    if own.shape[0] <= own.shape[1]:
        return MatrixNormal(prior.row, _spread_basis(prior.col, own, rows))
    return MatrixNormal(_spread_basis(prior.row, own, rows), prior.col)


def _spread_basis(side: Precision, own: DTensor, rows: Sequence[Placement]) -> Precision:
    return Precision(side.scale, spread(side.basis, own, rows), side.values)


def _on_mesh(weight: DTensor) -> DTensor:
    """The weight on the devices of its mesh: FSDP's CPU offload keeps it elsewhere."""
    mesh = weight.device_mesh
    if weight.device.type == mesh.device_type:
        return weight
    return DTensor.from_local(
        weight.to_local(),  # from_local moves it
        mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def _reshaped(weight: Tensor, reshape: ToMatrix) -> DTensor | None:
    """The weight as one matrix, its shards where they lie; None if that cannot be."""
    assert isinstance(weight, DTensor)
    if not any(is_split(placement) for placement in weight.placements):
        return None
    try:
        matrix = reshape(weight)
    except RuntimeError:  # DTensor refuses some views of shards, in every process alike
        return None
    return matrix if isinstance(matrix, DTensor) and matrix.ndim == 2 else None


def _await_reduction(weight: Tensor) -> None:
    """FSDP may be adding to the gradient on another stream; autograd must not do so meanwhile."""
    if weight.grad is not None:
        torch.cuda.synchronize()
