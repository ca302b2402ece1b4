"""The evidence rule: priors from the weights *and* from what the data leave open about them.

A layer's weight W (p x d) has a Gaussian posterior around its present value, of precision
``(n/φ)·A⊗G + Ωc⊗Ωr``: n samples, each of curvature ``A⊗G``, with noise φ, and the prior. In
regression φ is the noise variance; in classification it is the dispersion, 1 where labels are
as uncertain as the model says.

A network's curvature is taken from m of its samples. A *row* is the gradient of a direction in
output space with respect to a weight: ``δ aᵀ`` for a linear map with input a and gradient δ at
its output, or any matrix. All functions take leading dimensions: the groups of a convolution, or
many networks at once. Everything is float64. See docs/evidence.md for the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.linalg import eigh, result_dtype
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal

LIKELIHOODS = ("classification", "regression")

#: A side of a weight that is longer than this keeps only the diagonal of its curvature, and the
#: prior has no shape there.
WIDEST = 4096

#: Directions in output space: up to so many outputs are all taken, of more so many at random.
DRAWS = 10

#: How much of the shape a classifier learns: ρ in Σ ∝ (1 − ρ)·I + ρ·E.
SHAPE = 0.9

#: Of the kernel a classifier counts this share, so that it errs on the side of a weak prior.
COUNT = 1 / 3

#: The precision that training starts from, and the range it may take, as shares of the fan-in.
START, SCALES = 0.01, (1e-4, 1e3)

#: The dispersion that a classifier starts from, and its range.
DISPERSION, DISPERSIONS = 0.3, (0.3, 10.0)

#: Noise is at least this share of the targets' variance, and at most all of it.
LEAST_NOISE = 1e-6

#: A leverage above this is taken as this: a sample keeps a say in the noise.
MOST_LEVERAGE = 0.98

#: A network whose squared residuals are more than this share of those of the best constant
#: prediction has learned nothing yet.
LEARNED = 0.99


class Curvature(NamedTuple):
    """Curvature ``A⊗G`` of one sample's negative log-likelihood; diagonals are (…, 1, n)."""

    inputs: Tensor  # A: (…, d, d)
    outputs: Tensor  # G: (…, p, p)


class Posterior(NamedTuple):
    """A Gaussian over a weight: ``Ŵ + Br·(√τ ∘ Z)·Bcᵀ`` with Z standard normal."""

    row: Tensor | None  # Br: (…, p, p), None where only diagonals are kept
    col: Tensor | None  # Bc: (…, d, d)
    open: Tensor  # τ: (…, p, d), the share of the prior's variance that the data leave
    determined: Tensor  # (…): Σ(1 − τ), how many of the p·d weights the data determine


class Layer(NamedTuple):
    """A layer after an update."""

    prior: MatrixNormal
    gamma: Tensor  # (…): how many weights the data determine, as counted over all layers
    log_evidence: Tensor  # (…): its share of the log evidence


class Update(NamedTuple):
    """A network after an update."""

    layers: dict[str, Layer]
    noise: Tensor  # (…)
    leverage: Tensor  # (…): what a sample determines of its own prediction, in the mean
    log_evidence: Tensor  # (…): of the training set; NaN without targets


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
    energy = A.sum((-2, -1)) if _is_diagonal(A) else A.diagonal(dim1=-2, dim2=-1).sum(-1)
    scale = (samples * energy.clamp(min=torch.finfo(A.dtype).tiny)).rsqrt()[..., None, None]
    return Curvature(A * scale, G * scale)


def _is_diagonal(F: Tensor) -> bool:
    return F.shape[-2] != F.shape[-1]


def ignores_common_row(curvature: Curvature) -> bool:
    """Whether adding one vector to all rows of the weight has no effect, as before a softmax."""
    G = curvature.outputs
    return not _is_diagonal(G) and bool(G.sum(-1).norm() <= 1e-8 * G.norm())


# A layer


def start(weight: Tensor) -> MatrixNormal:  # (…, p, d)
    """The prior that training starts from: one precision for all weights of a layer."""
    prior = MatrixNormal.identity(weight).to(result_dtype(weight))
    return _scaled(prior, START * weight.shape[-1] * torch.ones_like(prior.col.outside))


def natural(weight: Tensor, prior: MatrixNormal) -> MatrixNormal:
    """The prior at the scale for which the weight is a typical draw.

    For a layer that normalisation follows: its scale has no effect, so it is nothing that data
    could determine or a penalty should change.
    """
    p, d = weight.shape[-2:]
    prior = prior.to(torch.float64)
    return _scaled(prior, p * d / prior.penalty(weight.double()).clamp(min=1e-300))


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


def posterior(prior: MatrixNormal, curvature: Curvature, n: float | Tensor) -> Posterior:
    """The posterior of precision ``n·A⊗G + Ωc⊗Ωr``.

    In the bases Br, Bc that make the prior the identity and the curvature diagonal, a weight's
    variance is ``τij = 1/(1 + n·gi·hj)`` of the prior's.
    """
    prior = prior.to(torch.float64)
    g, Br = _whiten(prior.row, curvature.outputs)
    h, Bc = _whiten(prior.col, curvature.inputs)
    n = torch.as_tensor(n, dtype=torch.float64, device=g.device)
    tau = 1 / (1 + _trailing(n, g.ndim + 1) * g.unsqueeze(-1) * h.unsqueeze(-2))
    return Posterior(Br, Bc, tau, (1 - tau).sum((-2, -1)))


def _whiten(precision: Precision, F: Tensor) -> tuple[Tensor, Tensor | None]:
    """``h`` and B with ``BᵀΩB = I`` and ``BᵀFB = diag(h)``; no B where F is a diagonal."""
    if _is_diagonal(F):
        return F.squeeze(-2) / precision.outside.unsqueeze(-1), None
    H = precision.inverse().root()
    h, Z = eigh(H.mT @ F @ H)
    return h, H @ Z


def _trailing(x: Tensor, ndim: int) -> Tensor:
    """The same with axes of length one behind."""
    return x[(..., *[None] * (ndim - x.ndim))]


def second_moments(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
) -> tuple[Tensor | None, Tensor | None]:  # (…, p, p), (…, d, d)
    """``E[W Ωc Wᵀ] = ŴΩcŴᵀ + Br·diag(Σj τij)·Brᵀ`` and ``E[Wᵀ Ωr W]``, where a basis is kept."""
    W, prior = weight.double(), prior.to(torch.float64)
    sides = ((W, posterior.row, prior.col, -1), (W.mT, posterior.col, prior.row, -2))
    row, col = (
        None
        if B is None
        else X @ (other @ X.mT) + (B * posterior.open.sum(axis).unsqueeze(-2)) @ B.mT
        for X, B, other, axis in sides
    )
    return row, col


def log_evidence(weight: Tensor, prior: MatrixNormal, posterior: Posterior) -> Tensor:  # (…)
    """``½logdet(Ωc⊗Ωr) − ½tr(ΩrŴΩcŴᵀ) − ½logdet(n·A⊗G + Ωc⊗Ωr)``."""
    penalty = prior.to(torch.float64).penalty(weight.double())
    return (posterior.open.log().sum((-2, -1)) - penalty) / 2


def sample(
    weight: Tensor,  # (…, p, d)
    posterior: Posterior,
    prior: MatrixNormal,
    count: int,
    generator: torch.Generator,
) -> Tensor:  # (count, …, p, d)
    """Weights drawn from the posterior."""
    shape = (count, *weight.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    drawn = posterior.open.sqrt() * noise.to(weight.device)
    prior = prior.to(torch.float64)
    drawn = _back(posterior.row, prior.row, drawn)
    return weight.double() + _back(posterior.col, prior.col, drawn.mT).mT


def _back(basis: Tensor | None, precision: Precision, X: Tensor) -> Tensor:
    return X * precision.outside[..., None, None].rsqrt() if basis is None else basis @ X


def refit(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
    gamma: Tensor,  # (…)
    likelihood: str,
    normalised: bool = False,
) -> MatrixNormal:
    """The prior that fits the posterior: its shape from second moments, its scale from γ.

    Shapes are ``Σ ∝ (1 − ρ)·I + ρ·E/mean(diag E)``, ρ from :func:`shape_strength`. The scale s
    is MacKay's, for which the penalty ``s·tr(Ω̄rŴΩ̄cŴᵀ)`` equals γ, approached as
    :func:`towards` says. A layer that normalisation follows gets the smallest scale.
    """
    W, dtype = weight.double(), result_dtype(weight)
    row, col = second_moments(weight, prior, posterior)
    shape = MatrixNormal(
        _shape(row, prior.row, shape_strength(gamma, W.shape[-2], likelihood)),
        _shape(col, prior.col, shape_strength(gamma, W.shape[-1], likelihood)),
    )
    low, high = (W.shape[-1] * bound for bound in SCALES)
    if normalised:
        return _scaled(shape, torch.full_like(gamma, low)).to(dtype)
    wanted = (gamma / shape.penalty(W).clamp(min=1e-300)).clamp(low, high)
    return _scaled(shape, towards(scale(prior), wanted)).to(dtype)


def towards(old: Tensor, new: Tensor) -> Tensor:
    """Half the way, in logarithms.

    Scale, noise and curvature depend on each other and might chase each other; and early in
    training, when little has been learned, none of them is what it will be.
    """
    return (old * new).sqrt()


def shape_strength(gamma: Tensor, size: int, likelihood: str) -> Tensor:  # (…)
    """ρ: how much of a shape of this size is learned.

    In regression an inverse Wishart prior's share, ``γ/(γ + size·(size + 1))``: a covariance is
    learned as far as there are determined weights to learn it from.
    """
    if likelihood == "classification":
        return torch.full_like(gamma, SHAPE)
    return gamma / (gamma + size * (size + 1))


def _shape(E: Tensor | None, old: Precision, rho: Tensor) -> Precision:
    """A precision of geometric mean one."""
    if E is None:
        return old.to(torch.float64).map(torch.ones_like)
    e, Q = eigh(E)
    rho = rho.unsqueeze(-1)
    spread = 1 - rho + rho * e / e.mean(-1, keepdim=True)
    return Precision(None, Q, spread.log().mean(-1, keepdim=True).exp() / spread)


# A network


class Outputs(NamedTuple):
    """What the likelihood says at m samples, each value (…, m)."""

    stiffness: Tensor  # curvature in each of a sample's effective directions
    directions: Tensor  # how many there are
    expected: Tensor  # the squared residual that the model expects, at noise one
    actual: Tensor | None  # the squared residual there is
    log_likelihood: Tensor | None  # at noise one, without constants
    constants: int  # how many times −½·log(2πφ) is missing in it
    unlearned: Tensor | None  # (…): the mean squared residual of the best constant prediction


def classify(logits: Tensor, labels: Tensor | None) -> Outputs:  # (…, m, K), (…, m)
    """Of a softmax, or for K = 1 a logistic function.

    The curvature ``Λ = diag(p) − ppᵀ`` has K − 1 directions for an open question, one if two
    classes are in doubt: the participation ratio ``tr(Λ)²/tr(Λ²)``. A label's squared distance
    from p has the expectation tr(Λ).
    """
    o = logits.double()
    log_p = (
        torch.nn.functional.logsigmoid(torch.cat([o, -o], -1))
        if o.shape[-1] == 1
        else (o.log_softmax(-1))
    )
    p = log_p.exp()
    second = p.square().sum(-1)
    trace = (1 - second).clamp(min=1e-12)
    squares = (second - 2 * p.pow(3).sum(-1) + second.square()).clamp(min=1e-24)
    count = (trace.square() / squares).clamp(1, max(1, p.shape[-1] - 1))
    if labels is None:
        return Outputs(trace / count, count, trace, None, None, 0, None)
    of_label = (1 - labels if o.shape[-1] == 1 else labels).long().unsqueeze(-1)
    p_label = p.gather(-1, of_label).squeeze(-1)
    residual = (second - 2 * p_label + 1).clamp(min=0)
    log_likelihood = log_p.gather(-1, of_label).squeeze(-1)
    each = torch.nn.functional.one_hot(of_label.squeeze(-1), p.shape[-1]).double()
    unlearned = 1 - each.mean(-2).square().sum(-1)
    return Outputs(trace / count, count, trace, residual, log_likelihood, 0, unlearned)


def regress(outputs: Tensor, targets: Tensor) -> Outputs:  # (…, m, K), (…, m, K)
    """Of independent Gaussian noise."""
    residual = (outputs.double() - targets.double()).square().sum(-1)
    ones = torch.ones_like(residual)
    K = outputs.shape[-1]
    unlearned = targets.double().var(-2, correction=0).sum(-1)
    return Outputs(ones, K * ones, K * ones, residual, -residual / 2, K, unlearned)


def has_learned(outputs: Outputs) -> Tensor:  # (…)
    """Whether the network knows more of its samples than one prediction for all would say.

    True where that says everything, and where there are no targets to tell.
    """
    if outputs.actual is None or outputs.unlearned is None:
        return torch.ones(outputs.stiffness.shape[:-1], dtype=torch.bool)
    unlearned = outputs.unlearned
    return (outputs.actual.mean(-1) < LEARNED * unlearned) | (unlearned <= 0)


def leverage(
    kernel: Tensor,  # (…, m, m)
    stiffness: Tensor,  # (…, m)
) -> Tensor:  # (…, m)
    """How far each sample determines its own prediction: the diagonal of ``B(B + I)⁻¹``.

    ``B = S^½·K·S^½``; K is the prior covariance of the outputs, over all layers together, so
    that what layers can do alike is counted once. Where B is so large that I is lost beside it,
    from inputs that were not scaled for example, eigenvalues within rounding of zero are zero.
    """
    root = stiffness.sqrt()
    B = root.unsqueeze(-1) * kernel * root.unsqueeze(-2)
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    factor, failed = torch.linalg.cholesky_ex(B + eye)
    if bool(failed.any()):
        e, Q = eigh(B)
        rounding = e.shape[-1] * torch.finfo(e.dtype).eps * e.amax(-1, keepdim=True)
        e = torch.where(e > rounding, e, 0.0)
        return (Q.square() * (e / (e + 1)).unsqueeze(-2)).sum(-1).clamp(0, 1)
    inverse = torch.cholesky_inverse(factor)
    return (1 - inverse.diagonal(dim1=-2, dim2=-1)).clamp(0, 1)


@torch.no_grad()
def update(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    curvatures: Mapping[str, Curvature],
    kernel: Tensor,  # (…, m, m)
    outputs: Outputs,
    n: int,
    noise: Tensor,  # (…)
    likelihood: str,
    normalised: Collection[str] = (),
) -> Update:
    """The evidence rule for all layers of a network, or of many.

    Args:
        weights: (…, p, d) by layer. Leading dimensions beyond those of ``noise`` belong to the
            layer.
        priors: the old priors.
        curvatures: of one sample at noise one, by layer.
        kernel: prior covariance of the outputs at m samples, summed over layers, of normalised
            ones at their :func:`natural` scale.
        outputs: what the likelihood says there.
        n: size of the training set.
        noise: the old noise variance or dispersion. The variance belongs to the likelihood; a
            dispersion scales the penalty alone, and the posterior takes labels at their word.
        likelihood: "classification" or "regression".
        normalised: layers whose scale does not matter, since normalisation follows.
    """
    priors = {**priors, **{name: natural(weights[name], priors[name]) for name in normalised}}
    own = noise if likelihood == "regression" else torch.ones_like(noise)
    found = {name: posterior(priors[name], curvatures[name], n / own) for name in weights}
    counted = _total(found, noise.ndim)
    count = COUNT if likelihood == "classification" else 1.0
    total = determined(count * kernel, outputs, own, n)
    share = (total / counted).clamp(max=1)  # of what the layers count for themselves
    layers = {}
    for name, W in weights.items():
        gamma = found[name].determined * _trailing(share, found[name].determined.ndim)
        prior = refit(W, priors[name], found[name], gamma, likelihood, name in normalised)
        layers[name] = Layer(prior, gamma, log_evidence(W, priors[name], found[name]))
    mean = determined(kernel, outputs, noise, n) / (n * outputs.directions.mean(-1))
    evidence = sum(_per_network(layer.log_evidence, noise.ndim) for layer in layers.values())
    return Update(
        layers,
        towards(noise, estimate_noise(noise, outputs, mean)),
        mean,
        evidence + n * log_likelihood(outputs, own),
    )


def determined(kernel: Tensor, outputs: Outputs, noise: Tensor, n: int) -> Tensor:  # (…)
    """What n samples determine of the network, ``Σ r·h``, from m of them.

    Where m is less than n, it is taken to grow with a power of their number: the one by which
    it grows from one half of the m samples to all of them.
    """
    m = kernel.shape[-1]
    stiffness = outputs.stiffness / noise.unsqueeze(-1)
    total = (outputs.directions * leverage(kernel, stiffness)).sum(-1)
    if m >= n or m < 2:
        return total
    halves = [slice(start, m - m % 2, 2) for start in (0, 1)]
    one, other = (
        (outputs.directions[..., i] * leverage(kernel[..., i, i], stiffness[..., i])).sum(-1)
        for i in halves
    )
    power = (2 * total / (one + other).clamp(min=1e-300)).log2().clamp(0, 1)
    return total * (n / m) ** power


def _total(posteriors: Mapping[str, Posterior], replicas: int) -> Tensor:
    each = [_per_network(one.determined, replicas) for one in posteriors.values()]
    return torch.stack(each).sum(0).clamp(min=1e-300)


def log_likelihood(outputs: Outputs, noise: Tensor) -> Tensor:  # (…)
    """Of a sample, in the mean; NaN without targets."""
    if outputs.log_likelihood is None:
        return torch.full_like(noise, math.nan)
    constant = outputs.constants * (2 * math.pi * noise).log() / 2
    return outputs.log_likelihood.mean(-1) / noise - constant


def estimate_noise(noise: Tensor, outputs: Outputs, leverage: Tensor) -> Tensor:
    """Generalised cross-validation: residuals as they would be at samples left out.

    The actual squared residual over the expected one, divided by ``(1 − γ/N)²``; with it the
    noise does not vanish when a network fits its training data exactly. As it was, without
    targets.
    """
    if outputs.actual is None:
        return noise
    fit = outputs.actual.sum(-1) / outputs.expected.sum(-1)
    return fit / (1 - leverage.clamp(max=MOST_LEVERAGE)).square()


def _per_network(x: Tensor, replicas: int) -> Tensor:
    return x.reshape(*x.shape[:replicas], -1).sum(-1)
