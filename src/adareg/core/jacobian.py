"""Rows: gradients of directions in output space with respect to a weight, and what they tell.

A row is ``δ aᵀ`` for a linear map with input a and gradient δ at its output, or any matrix. From
those of m samples come the curvature of the log-likelihood, which a posterior needs, and the
kernel: the covariance of the outputs that a prior implies. All functions take leading dimensions:
the groups of a convolution, or many networks at once. Everything is float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal

#: A side of a weight that is longer than this keeps only the diagonal of its curvature, and the
#: prior has no shape there.
WIDEST = 4096

#: Directions in output space: up to so many outputs are all taken, of more so many at random.
DRAWS = 10


class Curvature(NamedTuple):
    """Curvature ``A⊗G`` of one sample's negative log-likelihood; diagonals are (…, 1, n)."""

    inputs: Tensor  # A: (…, d, d)
    outputs: Tensor  # G: (…, p, p)


# Rows, and what is read off them


def directions(
    outputs: Tensor,  # (…, m, K)
    likelihood: str,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:  # (draws, …, m, K) twice
    """Directions in output space to differentiate along: each sample's own, and shared ones.

    The second moment of a sample's own directions is the curvature of the log-likelihood: for
    classes, gradients at labels that the model itself predicts; for targets, at noise one,
    unit vectors. Kernels of the shared ones add up to the mean over outputs. Up to ``DRAWS``
    outputs all are taken and nothing is random.
    """
    o = outputs.double()
    if likelihood == "classification":
        return _label_gradients(o, generator), _shared(o, generator, centred=o.shape[-1] > 1)
    return _signs(o, generator), _shared(o, generator, centred=False)


def _shared(outputs: Tensor, generator: torch.Generator, centred: bool) -> Tensor:
    K = outputs.shape[-1]
    vectors = torch.eye(K, dtype=torch.float64, device="cpu")
    if centred:  # adding a constant to all logits says nothing
        vectors = vectors - 1 / K
    rank = K - 1 if centred else K
    if K > DRAWS:
        random = torch.randn(K, DRAWS, generator=generator, dtype=torch.float64, device="cpu")
        vectors = torch.linalg.qr(vectors @ random).Q.mT
        rank = DRAWS
    vectors = (vectors / math.sqrt(rank)).to(outputs.device)
    return _each(vectors, outputs).expand(len(vectors), *outputs.shape)


def _each(vectors: Tensor, outputs: Tensor) -> Tensor:  # (draws, K) -> (draws, 1…, 1, K)
    return vectors.view(len(vectors), *(1 for _ in outputs.shape[:-1]), vectors.shape[-1])


def _label_gradients(logits: Tensor, generator: torch.Generator) -> Tensor:
    K = logits.shape[-1]
    if K == 1:
        p = logits.sigmoid()
        return (p * (1 - p)).sqrt().unsqueeze(0)
    p = logits.softmax(-1)
    eye = torch.eye(K, dtype=p.dtype, device=p.device)
    if K <= DRAWS:  # every label, weighted with its probability
        return p.movedim(-1, 0).sqrt().unsqueeze(-1) * (_each(eye, p) - p)
    flat = p.reshape(-1, K).to(generator.device)
    labels = torch.multinomial(flat, DRAWS, replacement=True, generator=generator)
    drawn = eye[labels.mT.to(p.device)].view(DRAWS, *p.shape)
    return (drawn - p) / math.sqrt(DRAWS)


def _signs(outputs: Tensor, generator: torch.Generator) -> Tensor:
    K = outputs.shape[-1]
    if K <= DRAWS:
        eye = torch.eye(K, dtype=outputs.dtype, device=outputs.device)
        return _each(eye, outputs).expand(K, *outputs.shape)
    shape = (DRAWS, *outputs.shape)
    signs = torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1
    return signs.to(outputs) / math.sqrt(DRAWS)


def curvature(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
) -> Curvature:
    """The curvature of a linear map, from rows ``M = δ aᵀ``.

    ``A⊗G = E[MᵀM]⊗E[MMᵀ]/E‖M‖²``, the sum over draws and the mean over samples, keeps both
    marginals: a sample whose prediction is certain counts for nothing on either side.
    """
    a, g = inputs.double(), grads.double()
    norm_a, norm_g = a.norm(dim=-1), g.square().sum(-1).sum(-2).sqrt()
    A = _second_moment(a * norm_g.unsqueeze(-1))
    G = _second_moment((g * norm_a[..., None, :, None]).flatten(-3, -2))
    return _normalised(A, G, a.shape[-2])


def matrix_curvature(rows: Tensor) -> Curvature:  # (…, draws, m, p, d)
    """The same from rows that are matrices."""
    M = rows.double().flatten(-4, -3)
    A, G = _second_moment(M.flatten(-3, -2)), _second_moment(M.mT.flatten(-3, -2))
    return _normalised(A, G, rows.shape[-3])


def kernel(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
    prior: MatrixNormal,
) -> Tensor:  # (…, m, m)
    """Prior covariance of the outputs along the draws, which are summed: ``Σ JΣJᵀ``."""
    a, g = inputs.double(), grads.double()
    prior = prior.to(torch.float64)
    along = _times(a, _deviations(prior.col))
    across = _times(g, _deviations(prior.row).unsqueeze(-3))
    across = across.movedim(-3, -2).flatten(-2)  # (…, m, draws·p): one product sums over draws
    return (along @ along.mT) * (across @ across.mT)


def matrix_kernel(rows: Tensor, prior: MatrixNormal) -> Tensor:  # (…, draws, m, p, d) -> (…, m, m)
    """The same from rows that are matrices."""
    M, prior = rows.double(), prior.to(torch.float64)
    col = _deviations(prior.col)[..., None, None, :, :]
    row = _deviations(prior.row)[..., None, None, :, :]
    white = _times(_times(M, col).mT, row).mT.flatten(-2)
    return (white @ white.mT).sum(-3)


def _deviations(precision: Precision) -> Tensor:
    """H with ``H·Hᵀ = Ω⁻¹``, (…, n, n); of a multiple of the identity, (…, 1, 1)."""
    if precision.scale is None or precision.basis.shape[-1]:
        return precision.inverse().root()
    return precision.scale.reciprocal().sqrt()[..., None, None]


def _times(X: Tensor, H: Tensor) -> Tensor:
    return X * H if H.shape[-1] == 1 else X @ H


def _second_moment(X: Tensor) -> Tensor:  # (…, N, n) -> (…, n, n) or (…, 1, n)
    return X.square().sum(-2, keepdim=True) if X.shape[-1] > WIDEST else X.mT @ X


def _normalised(A: Tensor, G: Tensor, samples: int) -> Curvature:
    energy = A.sum((-2, -1)) if is_diagonal(A) else A.diagonal(dim1=-2, dim2=-1).sum(-1)
    scale = (samples * energy.clamp(min=torch.finfo(A.dtype).tiny)).rsqrt()[..., None, None]
    return Curvature(A * scale, G * scale)


def is_diagonal(F: Tensor) -> bool:
    """Whether a side of a curvature is kept as its diagonal, (…, 1, n)."""
    return F.shape[-2] != F.shape[-1]


def ignores_common_row(curvature: Curvature) -> bool:
    """Whether adding one vector to all rows of the weight has no effect, as before a softmax."""
    G = curvature.outputs
    return not is_diagonal(G) and bool(G.sum(-1).norm() <= 1e-8 * G.norm())
