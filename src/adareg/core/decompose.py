"""Decompositions on request: the matrices that many rules want decomposed, in few calls.

A rule is a generator. It yields a :class:`Request` for each symmetric matrix, and is sent the
:class:`Answer`. So the rules of many layers run side by side, and all matrices of one size are
decomposed together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.linalg import NonFiniteError, eigh


class Request(NamedTuple):
    """A k x k positive semidefinite matrix to decompose."""

    matrix: Tensor  # (…, k, k), float64
    noise: Tensor  # (…), rounding error of its eigenvalues
    margin: float  # eigenvalues below margin x noise are hidden by it
    floor: float  # eigenvalues up to this one end on the bound v, whatever they are exactly


class Answer(NamedTuple):
    """The eigenvalues and eigenvectors of the matrix requested."""

    r: Tensor  # (…, k), ascending, >= 0
    Q: Tensor  # (…, k, k)
    resolved: bool  # False: rounding hides eigenvalues that matter; use an SVD instead


def decompose(requests: Mapping[str, Request]) -> dict[str, Answer]:
    """Answer all requests: one decomposition for each size, and at most two waits for a GPU.

    Raises:
        NonFiniteError: names the first matrix whose weight is not finite.
    """
    noise = _read(
        {name: q.noise.max() if q.noise.ndim else q.noise for name, q in requests.items()}
    )
    for name, level in noise.items():
        if not math.isfinite(level):
            raise NonFiniteError(
                f"{name}: the weight has NaN or infinite entries, or its square overflows; "
                f"its precisions cannot be updated"
            )
    spectra: dict[str, tuple[Tensor, Tensor]] = {}
    for names in _of_one_size(requests):
        spectra.update(_eigh_together({name: requests[name].matrix for name in names}))
    # Only eigenvalues above the floor and below margin x noise are in doubt: mostly none can be.
    doubtful = {
        name: _hides_some(q, spectra[name][0])
        for name, q in requests.items()
        if q.margin * noise[name] > q.floor - noise[name]
    }
    hidden = _read(doubtful) if doubtful else {}
    return {name: Answer(*spectra[name], not hidden.get(name, False)) for name in requests}


def _of_one_size(requests: Mapping[str, Request]) -> Iterable[list[str]]:
    groups = defaultdict(list)
    for name, (matrix, *_) in requests.items():
        groups[matrix.shape[-1], matrix.device].append(name)
    return groups.values()


def _eigh_together(matrices: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    if len(matrices) == 1:
        return {name: eigh(matrix) for name, matrix in matrices.items()}
    batches = [matrix.reshape(-1, *matrix.shape[-2:]) for matrix in matrices.values()]
    r, Q = eigh(torch.cat(batches))
    sizes = [len(batch) for batch in batches]
    return {
        name: (r_one.view(matrix.shape[:-1]), Q_one.view(matrix.shape))
        for (name, matrix), r_one, Q_one in zip(
            matrices.items(), r.split(sizes), Q.split(sizes), strict=True
        )
    }


def _hides_some(request: Request, r: Tensor) -> Tensor:
    """Return true if an eigenvalue that matters lies too close to the rounding noise."""
    noise = request.noise.unsqueeze(-1)
    return ((r < request.margin * noise) & (r + noise > request.floor)).any()


def _read(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Return all scalars, in one transfer."""
    if len(scalars) == 1:
        return {name: scalar.item() for name, scalar in scalars.items()}
    device = next(iter(scalars.values())).device
    together = torch.stack([scalar.to(device) for scalar in scalars.values()])
    return dict(zip(scalars, together.tolist(), strict=True))
