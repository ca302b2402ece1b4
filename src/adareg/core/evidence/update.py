"""The evidence rule: priors from the weights *and* from what the data leave open about them.

A layer's weight W (p x d) has a Gaussian posterior around its present value, of precision
``n·A⊗G + Ωc⊗Ωr``: n samples, each of curvature ``A⊗G`` at the noise so far, and the prior.

A network's curvature is taken from m of its samples. All functions take leading dimensions: the
groups of a convolution, or many networks at once. Everything is float64. See docs/evidence.md for
the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.constants import DEFAULTS, Constants
from adareg.core.evidence.curvature import Curvature, is_factor
from adareg.core.evidence.likelihood import Likelihood
from adareg.core.evidence.side import Side, decomposed, fitted, whitened
from adareg.core.linalg import NonFiniteError, eigh, result_dtype
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal

#: Units of layers stay within these, so that nothing overflows.
_UNITS = 1e-30, 1e30


class Posterior(NamedTuple):
    """A Gaussian over a weight, ``Ŵ + Br·(√τ ∘ Z)·Bcᵀ`` with Z standard normal.

    Of a side that is longer than its curvature has rows, Br and Bc are known within the directions
    of the curvature; τ is one in all others.
    """

    row: Side
    col: Side
    open: Tensor  # τ: (…, rp, rd), the share of the prior's variance that the data leave, within
    determined: Tensor  # (…): Σ(1 − τ), how many of the p·d weights the data determine


class Layer(NamedTuple):
    """A layer after an update."""

    prior: MatrixNormal
    gamma: Tensor  # (…): how many weights the data determine, as counted over all layers
    log_evidence: Tensor  # (…): its share of the log evidence


class Update(NamedTuple):
    """A network after an update."""

    layers: dict[str, Layer]
    noise: Tensor  # (…), and what the likelihood adds
    leverage: Tensor  # (…): what a sample determines of its own prediction, in the mean
    log_evidence: Tensor  # (…): of the training set; NaN without targets


# A layer


def start(
    weight: Tensor,  # (…, p, d)
    share: float = DEFAULTS.start,
    unit: Tensor | None = None,  # (…)
) -> MatrixNormal:
    """Return the prior that training starts from: one precision, a share of the layer's unit.

    The unit is :func:`unit_of` the layer; without it, its fan-in.
    """
    prior = MatrixNormal.identity(weight).to(result_dtype(weight))
    ones = torch.ones_like(prior.col.outside)
    return _scaled(prior, share * (weight.shape[-1] * ones if unit is None else unit))


def unit_of(curvature: Curvature, signal: Tensor) -> Tensor:  # (…)
    """Return the precision at which a layer alone could make outputs as large as the targets.

    ``E[tr MᵀΛM]`` over the likelihood's :meth:`~Likelihood.signal`, which is in the units of the
    layer's inputs and outputs: so is what is measured by it. It is the fan-in for unit inputs and
    targets at a last layer, and that is taken, too, where the outputs do not depend on the layer.
    """
    energy = _trace(curvature.inputs) * _trace(curvature.outputs)
    unit = energy / _trailing(signal, energy.ndim)
    known = (unit > 0) & unit.isfinite()
    return torch.where(known, unit, curvature.inputs.shape[-1]).clamp(*_UNITS)


def _trace(F: Tensor) -> Tensor:
    return F.square().sum((-2, -1)) if is_factor(F) else F.diagonal(dim1=-2, dim2=-1).sum(-1)


def natural(weight: Tensor, prior: MatrixNormal) -> MatrixNormal:
    """Return the prior at the scale for which the weight is a typical draw.

    For a layer that normalisation follows: its scale has no effect, so it is nothing that data
    could determine or a penalty should change.
    """
    p, d = weight.shape[-2:]
    prior = prior.to(torch.float64)
    return _scaled(prior, p * d / prior.penalty(weight.double()).clamp(min=1e-300))


def scale(prior: MatrixNormal) -> Tensor:  # (…)
    """Return the geometric mean of a prior's p·d precisions."""
    p, d = prior.shape[-2:]
    return (prior.row.logdet() / p + prior.col.logdet() / d).exp()


def _scaled(prior: MatrixNormal, factor: Tensor) -> MatrixNormal:
    """Return the prior with all its precisions multiplied, in the factor of the columns."""
    factor = factor.to(prior.col.values.dtype)
    c, B, e = prior.col.factors
    col = Precision(None if c is None else c * factor, B, e * factor.unsqueeze(-1))
    return MatrixNormal(prior.row, col)


def posterior(prior: MatrixNormal, curvature: Curvature, n: float | Tensor) -> Posterior:
    """Return the posterior of precision ``n·A⊗G + Ωc⊗Ωr``.

    In the bases that make the prior the identity and the curvature diagonal, a weight's variance
    is ``τij = 1/(1 + n·gi·hj)`` of the prior's; it is all of it where g or h is zero.
    """
    prior = prior.to(torch.float64)
    row, col = whitened(prior.row, curvature.outputs), whitened(prior.col, curvature.inputs)
    g, h = row.values, col.values
    n = torch.as_tensor(n, dtype=torch.float64, device=g.device)
    tau = 1 / (1 + _trailing(n, g.ndim + 1) * g.unsqueeze(-1) * h.unsqueeze(-2))
    return Posterior(row, col, tau, (1 - tau).sum((-2, -1)))


def _trailing(x: Tensor, ndim: int) -> Tensor:
    """Return the same with axes of length one behind."""
    return x[(..., *[None] * (ndim - x.ndim))]


def second_moments(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
    rank: int = DEFAULTS.rank,
) -> tuple[Precision, Precision]:  # (…, p, p), (…, d, d)
    """Return ``E[W Ωc Wᵀ] = ŴΩcŴᵀ + Br·diag(Σj τij)·Brᵀ`` and ``E[Wᵀ Ωr W]``, in their bases."""
    W, prior = weight.double(), prior.to(torch.float64)
    (p, d), tau = W.shape[-2:], posterior.open
    along, across = tau.sum(-1) + (d - tau.shape[-1]), tau.sum(-2) + (p - tau.shape[-2])
    return (
        decomposed(W, prior.col, prior.row, posterior.row, along, d, rank),
        decomposed(W.mT, prior.row, prior.col, posterior.col, across, p, rank),
    )


def log_evidence(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
    share: Tensor | float = 1.0,  # (…)
) -> Tensor:  # (…)
    """``−½tr(ΩrŴΩcŴᵀ)``, less :func:`price` or a share of it."""
    penalty = prior.to(torch.float64).penalty(weight.double())
    return -penalty / 2 - share * price(posterior)


def price(posterior: Posterior) -> Tensor:  # (…)
    """Return what a layer pays for being flexible: ``½logdet(n·A⊗G + Ωc⊗Ωr) − ½logdet(Ωc⊗Ωr)``."""
    return -posterior.open.log().sum((-2, -1)) / 2


def sample(
    weight: Tensor,  # (…, p, d)
    posterior: Posterior,
    count: int,
    generator: torch.Generator,
) -> Tensor:  # (count, …, p, d)
    """Return weights drawn from the posterior."""
    shape = (count, *weight.shape)
    Z = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(weight.device)
    row, col = posterior.row, posterior.col
    within = col.within(row.within(Z).mT).mT
    less = (posterior.open.sqrt() - 1) * within
    Z = Z + row.lifted(col.lifted(less.mT).mT)
    return weight.double() + row.back(col.back(Z.mT).mT)


def refit(
    weight: Tensor,  # (…, p, d)
    prior: MatrixNormal,
    posterior: Posterior,
    gamma: Tensor,  # (…)
    likelihood: Likelihood,
    unit: Tensor,  # (…)
    normalised: bool = False,
    constants: Constants = DEFAULTS,
) -> MatrixNormal:
    """Return the prior that fits the posterior: its shape from second moments, its scale from γ.

    Shapes are ``Σ ∝ (1 − ρ)·I + ρ·E/mean(diag E)``, ρ being the likelihood's shape strength. The
    scale s is MacKay's, for which the penalty ``s·tr(Ω̄rŴΩ̄cŴᵀ)`` equals γ, approached as
    :func:`towards` says, within bounds in the layer's unit. A layer that normalisation follows
    gets the smallest scale.
    """
    W, dtype = weight.double(), result_dtype(weight)
    row, col = second_moments(weight, prior, posterior, constants.rank)
    rho_row, rho_col = (likelihood.shape_strength(gamma, k, constants) for k in W.shape[-2:])
    shape = MatrixNormal(fitted(row, rho_row), fitted(col, rho_col))
    low, high = (unit * bound for bound in constants.scales)
    if normalised:
        return _scaled(shape, low.expand_as(gamma)).to(dtype)
    wanted = (gamma / shape.penalty(W).clamp(min=1e-300)).clamp(low, high)
    return _scaled(shape, towards(scale(prior), wanted, constants.step)).to(dtype)


def towards(old: Tensor, new: Tensor, step: float) -> Tensor:
    """Return what is ``step`` of the way from old to new, in logarithms.

    Scale, noise and curvature depend on each other and might chase each other; and early in
    training, when little has been learned, none of them is what it will be.
    """
    return old ** (1 - step) * new**step


# A network


def leverage(
    kernel: Tensor,  # (…, m, m)
    stiffness: Tensor,  # (…, m)
) -> Tensor:  # (…, m)
    """Return how far each sample determines its own prediction: the diagonal of ``B(B + I)⁻¹``.

    ``B = S^½·K·S^½``; K is the prior covariance of the outputs, over all layers together, so
    that what layers can do alike is counted once.
    """
    B = _stiffened(kernel, stiffness)
    factor, failed = torch.linalg.cholesky_ex(B + _eye(B))
    if bool(failed.any()):
        e, Q = _spectrum(B)
        return (Q.square() * (e / (e + 1)).unsqueeze(-2)).sum(-1).clamp(0, 1)
    inverse = torch.cholesky_inverse(factor)
    return (1 - inverse.diagonal(dim1=-2, dim2=-1)).clamp(0, 1)


def network_price(
    kernel: Tensor,  # (…, m, m)
    stiffness: Tensor,  # (…, m)
    directions: Tensor,  # (…, m)
    n: int,
) -> Tensor:  # (…)
    """Return what a network pays for being flexible: ``½r·logdet(B + I)``.

    B is that of :func:`leverage`. With one output that is the determinant of all layers' weights
    together, correlations and all. Each of the m samples stands for n/m.
    """
    B = _stiffened(kernel, stiffness * (n / kernel.shape[-1]))
    factor, failed = torch.linalg.cholesky_ex(B + _eye(B))
    logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if bool(failed.any()):
        logdet = _spectrum(B)[0].log1p().sum(-1)
    return directions.mean(-1) * logdet / 2


def _stiffened(kernel: Tensor, stiffness: Tensor) -> Tensor:
    """``B = S^½·K·S^½``."""
    root = stiffness.sqrt()
    return root.unsqueeze(-1) * kernel * root.unsqueeze(-2)


def _eye(B: Tensor) -> Tensor:
    return torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)


def _spectrum(B: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and vectors; for a B so large that I is lost beside it.

    From inputs that were not scaled for example. Eigenvalues within rounding of zero are zero.
    """
    e, Q = eigh(B)
    rounding = e.shape[-1] * torch.finfo(e.dtype).eps * e.amax(-1, keepdim=True)
    return torch.where(e > rounding, e, 0.0), Q


@torch.no_grad()
def update_priors(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    curvatures: Mapping[str, Curvature],
    kernel: Tensor,  # (…, m, m)
    outputs: Tensor,  # (…, m, K)
    targets: Tensor | None,
    noise: Tensor,  # (…), and what the likelihood adds
    likelihood: Likelihood,
    n: int,
    normalised: Collection[str] = (),
    constants: Constants = DEFAULTS,
) -> Update:
    """Return new priors for all layers of a network, or of many, and the new noise.

    Args:
        weights: (…, p, d) by layer. Leading dimensions beyond those of ``kernel`` belong to the
            layer.
        priors: the old priors.
        curvatures: of one sample at the old noise, by layer.
        kernel: prior covariance of the outputs at m samples, along the likelihood's shared
            directions, summed over layers, of normalised ones at their :func:`natural` scale.
        outputs: of the network at these samples.
        targets: as the likelihood has checked them; None if they are not known.
        noise: the old noise.
        likelihood: what the outputs say of the targets.
        n: size of the training set.
        normalised: layers whose scale does not matter, since normalisation follows.
        constants: what is not learned.
    """
    outputs, axes = outputs.double(), kernel.ndim - 2
    priors = {**priors, **{name: natural(weights[name], priors[name]) for name in normalised}}
    stiffness, directions = likelihood.effective_curvature(outputs, noise)
    found = {name: posterior(priors[name], curvatures[name], n) for name in weights}
    counted = _total((one.determined for one in found.values()), axes)
    total = determined(likelihood.count(constants) * kernel, stiffness, directions, n)
    share = (total / counted).clamp(max=1)  # of what the layers count for themselves
    # Both prices are too high where they are not exact: a layer's, since layers can do alike, the
    # network's, since it takes all outputs to be alike.
    paid = network_price(kernel, stiffness, directions, n)
    paid = (paid / _total(map(price, found.values()), axes)).clamp(max=1)
    signal, layers = likelihood.signal(outputs, targets, noise), {}
    for name, W in weights.items():
        old, now, unit = priors[name], found[name], unit_of(curvatures[name], signal)
        gamma = now.determined * _trailing(share, now.determined.ndim)
        prior = refit(W, old, now, gamma, likelihood, unit, name in normalised, constants)
        of_evidence = log_evidence(W, old, now, _trailing(paid, gamma.ndim))
        layers[name] = Layer(prior, gamma, of_evidence)
    softened = stiffness / likelihood.dispersion(noise).unsqueeze(-1)
    mean = determined(kernel, softened, directions, n) / (n * directions.mean(-1))
    evidence = sum(_per_network(layer.log_evidence, axes) for layer in layers.values())
    return Update(
        layers,
        update_noise(likelihood, outputs, targets, noise, mean, constants),
        mean,
        evidence + n * _mean_log_likelihood(likelihood, outputs, targets, noise),
    )


def update_noise(
    likelihood: Likelihood,
    outputs: Tensor,  # (…, m, K)
    targets: Tensor | None,
    noise: Tensor,
    leverage: Tensor,  # (…)
    constants: Constants,
) -> Tensor:
    """Return the noise that residuals show, approached as a scale is; the old one without targets.

    Raises:
        NonFiniteError: it is not finite.
    """
    if targets is None:
        return noise
    leverage = leverage.clamp(max=constants.most_leverage)
    estimate = likelihood.estimate_noise(outputs, targets, noise, leverage)
    if not estimate.isfinite().all():
        raise NonFiniteError("the noise that was found is not finite")
    low, high = likelihood.noise_range(targets, constants)
    return likelihood.approach(noise, estimate, constants.step).clamp(low, high)  # type: ignore[arg-type]


def _mean_log_likelihood(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor | None, noise: Tensor
) -> Tensor:  # (…)
    """Return that of a sample; NaN without targets."""
    if targets is None:
        return outputs.new_full(outputs.shape[:-2], math.nan)
    return likelihood.log_likelihood(outputs, targets, noise).mean(-1)


def determined(
    kernel: Tensor,  # (…, m, m)
    stiffness: Tensor,  # (…, m)
    directions: Tensor,  # (…, m)
    n: int,
) -> Tensor:  # (…)
    """Return what n samples determine of the network, ``Σ r·h``, from m of them.

    Where m is less than n, it is taken to grow with a power of their number: the one by which
    it grows from one half of the m samples to all of them.
    """
    m = kernel.shape[-1]
    total = (directions * leverage(kernel, stiffness)).sum(-1)
    if m >= n or m < 2:
        return total
    halves = [slice(start, m - m % 2, 2) for start in (0, 1)]
    one, other = (
        (directions[..., i] * leverage(kernel[..., i, i], stiffness[..., i])).sum(-1)
        for i in halves
    )
    power = (2 * total / (one + other).clamp(min=1e-300)).log2().clamp(0, 1)
    return total * (n / m) ** power


def _total(of_layers: Iterable[Tensor], replicas: int) -> Tensor:
    each = [_per_network(one, replicas) for one in of_layers]
    return torch.stack(each).sum(0).clamp(min=1e-300)


def _per_network(x: Tensor, replicas: int) -> Tensor:
    return x.reshape(*x.shape[:replicas], -1).sum(-1)
