"""The evidence rule: a layer's prior from its weight *and* what the data leave open about it.

The posterior of a weight W (p x d) is Gaussian around its present value, with the precision
``n·A⊗G + Ωc⊗Ωr``: n samples, each of curvature ``A⊗G``, and the prior. All functions take
leading dimensions: the groups of a convolution, or many networks at once. All is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.linalg import eigh, factor_dtype
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal

#: A side of a weight that is longer than this keeps only the diagonal of its curvature, and the
#: prior has no shape there.
WIDEST = 4096

#: How much of the shape is learned: Σ ∝ (1 − ρ)·I + ρ·E.
SHAPE = 0.9

#: What all layers together may claim of the numbers that the data hold.
SHARE = 0.1

#: The precision that training starts from, as a share of the fan-in.
START = 0.01


class Curvature(NamedTuple):
    """Curvature ``A⊗G`` of one sample's negative log-likelihood; diagonals are (…, 1, n)."""

    inputs: Tensor  # A: (…, d, d)
    outputs: Tensor  # G: (…, p, p)


class Posterior(NamedTuple):
    """What the data say about a weight."""

    row: Tensor | None  # E[W Ωc Wᵀ]: (…, p, p), None where only diagonals are kept
    col: Tensor | None  # E[Wᵀ Ωr W]: (…, d, d)
    gamma: Tensor  # (…): how many of the p·d weights the data determine
    log_evidence: Tensor  # (…): this layer's share of the log evidence, without the likelihood


class Update(NamedTuple):
    """A layer after an update."""

    prior: MatrixNormal
    gamma: Tensor  # (…)
    log_evidence: Tensor  # (…)


def curvature(
    inputs: Tensor,  # (…, m, d)
    grads: Tensor,  # (…, draws, m, p)
) -> Curvature:
    """The curvature of a linear map from its inputs and the gradients at its outputs.

    The weight's gradient is ``M = δ aᵀ``; the sum over draws stands for the expectation over
    labels, the mean over m samples for the data. ``A⊗G = E[MᵀM]⊗E[MMᵀ]/E‖M‖²`` keeps both
    marginals: a sample whose prediction is certain counts for nothing on either side.
    """
    a, g = inputs.double(), grads.double()
    norm_a, norm_g = a.norm(dim=-1), g.square().sum(-1).sum(-2).sqrt()
    A = _second_moment(a * norm_g.unsqueeze(-1))
    G = _second_moment((g * norm_a[..., None, :, None]).flatten(-3, -2))
    return _normalised(A, G, a.shape[-2])


def matrix_curvature(rows: Tensor, samples: int) -> Curvature:  # (…, N, p, d)
    """The same from the weight's gradients themselves, a matrix for each sample and draw."""
    M = rows.double()
    A = _second_moment(M.flatten(-3, -2))
    G = _second_moment(M.mT.flatten(-3, -2))
    return _normalised(A, G, samples)


def _second_moment(X: Tensor) -> Tensor:  # (…, N, n) -> (…, n, n) or (…, 1, n)
    return X.square().sum(-2, keepdim=True) if X.shape[-1] > WIDEST else X.mT @ X


def _normalised(A: Tensor, G: Tensor, samples: int) -> Curvature:
    energy = _trace(A).clamp(min=torch.finfo(A.dtype).tiny)
    scale = (samples * energy).rsqrt()[..., None, None]
    return Curvature(A * scale, G * scale)


def _trace(F: Tensor) -> Tensor:
    return F.sum((-2, -1)) if _is_diagonal(F) else F.diagonal(dim1=-2, dim2=-1).sum(-1)


def _is_diagonal(F: Tensor) -> bool:
    return F.shape[-2] != F.shape[-1]


def start(weight: Tensor) -> MatrixNormal:  # (…, p, d)
    """The prior that training starts from: one precision for all weights of a layer."""
    prior = MatrixNormal.identity(weight)
    return _scaled(prior, START * weight.shape[-1] * torch.ones_like(prior.col.outside))


def scale(prior: MatrixNormal) -> Tensor:  # (…)
    """The geometric mean of a prior's p·d precisions."""
    p, d = prior.shape[-2:]
    return (prior.row.logdet() / p + prior.col.logdet() / d).exp()


def _scaled(prior: MatrixNormal, factor: Tensor) -> MatrixNormal:
    """The prior with all its precisions multiplied, in the factor of the columns."""
    factor = factor.to(prior.col.values.dtype)
    c, B, e = prior.col.factors
    col = Precision(None if c is None else c * factor, B, e * factor.unsqueeze(-1))
    return MatrixNormal(prior.row, col)


def posterior(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    curvature: Curvature,
    n: float,
) -> Posterior:
    """Moments, degrees of freedom and evidence under the precision ``n·A⊗G + Ωc⊗Ωr``.

    In the bases Br, Bc that make the prior the identity and the curvature diagonal, a weight's
    posterior variance is ``τij = 1/(1 + n·gi·hj)`` of the prior's. Then ``γ = Σ(1 − τij)`` and
    ``E[W Ωc Wᵀ] = ŴΩcŴᵀ + Br·diag(Σj τij)·Brᵀ``.
    """
    W, prior = weight.double(), prior.to(torch.float64)
    g, Br = _whiten(prior.row, curvature.outputs)
    h, Bc = _whiten(prior.col, curvature.inputs)
    open_ = 1 / (1 + n * g.unsqueeze(-1) * h.unsqueeze(-2))
    half = _rooted(W, prior.col), _rooted(W.mT, prior.row)
    row = None if Br is None else half[0] @ half[0].mT + (Br * open_.sum(-1).unsqueeze(-2)) @ Br.mT
    col = None if Bc is None else half[1] @ half[1].mT + (Bc * open_.sum(-2).unsqueeze(-2)) @ Bc.mT
    evidence = (open_.log().sum((-2, -1)) - prior.penalty(W)) / 2
    return Posterior(row, col, (1 - open_).sum((-2, -1)), evidence)


def _whiten(precision: Precision, F: Tensor) -> tuple[Tensor, Tensor | None]:
    """``h`` and B with ``BᵀΩB = I`` and ``BᵀFB = diag(h)``; no B where F is a diagonal."""
    if _is_diagonal(F):
        return F.squeeze(-2).clamp(min=0) / precision.outside.unsqueeze(-1), None
    H = precision.inverse().root()
    h, Z = eigh(H.mT @ F @ H)
    return h, H @ Z


def _rooted(W: Tensor, precision: Precision) -> Tensor:
    """``W·H`` with ``H·Hᵀ = Ω``."""
    if precision.basis.shape[-1] == 0:
        return W * precision.outside.sqrt()[..., None, None]
    return W @ precision.root()


def refit(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
    gamma: Tensor,  # (…)
) -> MatrixNormal:
    """The prior that fits the posterior: its shape from E, its scale from γ.

    Shapes are ``Σ ∝ (1 − ρ)·I + ρ·E/mean(diag E)``. The scale is MacKay's: the penalty
    ``s·tr(Ω̄rŴΩ̄cŴᵀ)`` of the new prior equals γ; it moves half the way, in logarithms.
    """
    W, dtype = weight.double(), prior.row.basis.dtype
    shape = MatrixNormal(_shape(posterior.row, prior.row), _shape(posterior.col, prior.col))
    wanted = gamma / shape.penalty(W).clamp(min=1e-12)
    return _scaled(shape, (scale(prior) * wanted).sqrt()).to(dtype)


def _shape(E: Tensor | None, old: Precision) -> Precision:
    """A precision of geometric mean one."""
    if E is None:
        return old.map(torch.ones_like)
    e, Q = eigh(E)
    spread = 1 - SHAPE + SHAPE * e / e.mean(-1, keepdim=True)
    return Precision(None, Q, (spread.log().mean(-1, keepdim=True)).exp() / spread)


def _per_network(x: Tensor, replicas: int) -> Tensor:
    return x.reshape(*x.shape[:replicas], -1).sum(-1)


@torch.no_grad()
def update(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    curvatures: Mapping[str, Curvature],
    n: int,
    numbers: float,
    replicas: int = 0,
) -> dict[str, Update]:
    """The evidence rule for all layers of a network.

    Args:
        weights: (…, p, d) by layer.
        priors: the old priors.
        curvatures: of one sample, by layer.
        n: size of the training set.
        numbers: how many numbers its targets hold: n·(K − 1) for K classes, n·K for K tasks.
        replicas: how many leading dimensions count networks; the others belong to a layer.
    """
    layers = {name: posterior(W, priors[name], curvatures[name], n) for name, W in weights.items()}
    total = sum(_per_network(one.gamma, replicas) for one in layers.values())
    share = torch.clamp(SHARE * numbers / total, max=1)
    updates = {}
    for name, W in weights.items():
        one = layers[name]
        gamma = one.gamma * share.reshape(share.shape + (1,) * (one.gamma.ndim - share.ndim))
        prior = refit(W, priors[name], one, gamma)
        updates[name] = Update(prior, gamma, one.log_evidence)
    return updates
