"""Both precisions from a weight in closed form: the paper's rule, the exact one, the authors'.

A rule is a generator. It yields each symmetric matrix that it wants decomposed and is sent
the answer, so that :func:`solve_all` can run the rules of many layers side by side and
decompose all matrices of one size in one call. Apart from that a rule reads like Alg. 1.

With k = min(p, d), no matrix larger than k x k is ever decomposed or built: ``W Ω Wᵀ`` has at
most k eigenvalues that differ from zero, and every null direction gets exactly v.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.linalg import (
    NonFiniteError,
    check_matrix,
    eigh,
    factor_dtype,
    inner,
    lengthwise,
    svd,
    unit_columns,
    wide,
)
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.core.spectrum import BOUNDS, check_bounds, clip_inverse


def _margin(weight: Tensor) -> float:
    """How far above the rounding noise an eigenvalue must lie, so as to be exact to 1/margin."""
    if weight.dtype == torch.float64:
        return 1e10
    return 1e6 if factor_dtype(weight) == torch.float64 else 1e3


class Request(NamedTuple):
    """A k x k positive semidefinite matrix to decompose."""

    matrix: Tensor  # (…, k, k), float64
    noise: Tensor  # (…), rounding error of its eigenvalues
    margin: float  # eigenvalues below margin x noise are hidden by it
    floor: float  # eigenvalues up to this one end on the bound v, whatever they are exactly


class Answer(NamedTuple):
    """Its eigenvalues and eigenvectors."""

    r: Tensor  # (…, k), ascending, >= 0
    Q: Tensor  # (…, k, k)
    resolved: bool  # False: rounding hides eigenvalues that matter; use an SVD instead


Steps = Generator[Request, Answer, MatrixNormal]
Rule = Callable[[Tensor, MatrixNormal | None, tuple[float, float]], Steps]


def alternating(
    W: Tensor,  # (…, p, d)
    prior: MatrixNormal | None,
    bounds: tuple[float, float],
) -> Steps:
    """One sweep of the paper's Alg. 1, from the old column precision.

    ``Ωr ← InvThreshold(W Ωc Wᵀ, d)``, then ``Ωc ← InvThreshold(Wᵀ Ωr W, p)``. Each step is
    the exact minimiser over its own block, so the objective never rises.
    """
    p, d = W.shape[-2:]
    margin, W = _margin(W), _exact(W)
    G = inner(wide(W))
    col = (prior or MatrixNormal.identity(W)).col
    row = yield from _inv_threshold(W, col, d, bounds, G, margin, short=p <= d)
    col = yield from _inv_threshold(W.mT, row, p, bounds, G, margin, short=p > d)
    return MatrixNormal(row, col)


def official(
    W: Tensor,  # (…, p, d)
    prior: MatrixNormal | None,
    bounds: tuple[float, float],
) -> Steps:
    """One sweep of the authors' published code, which differs from the paper.

    Columns come before rows, and the numerator is the matrix's own dimension instead of the
    other one: ``Ωc ← InvThreshold(Wᵀ Ωr W, d)``, then ``Ωr ← InvThreshold(W Ωc Wᵀ, p)``.
    It does not minimise the paper's objective unless p = d.
    """
    p, d = W.shape[-2:]
    margin, W = _margin(W), _exact(W)
    G = inner(wide(W))
    row = (prior or MatrixNormal.identity(W)).row
    col = yield from _inv_threshold(W.mT, row, d, bounds, G, margin, short=p > d)
    row = yield from _inv_threshold(W, col, p, bounds, G, margin, short=p <= d)
    return MatrixNormal(row, col)


def joint(
    W: Tensor,  # (…, p, d)
    prior: MatrixNormal | None,
    bounds: tuple[float, float],
) -> Steps:
    """The minimum over both precisions at once, from one decomposition; a function of W alone.

    The precisions share W's singular vectors, and each singular value s is a problem of its
    own, ``min s²ab − d·log a − p·log b`` over the box, convex in (log a, log b). In the
    interior only the product ``ab = min(p, d)/s²`` counts for the smaller of p and d; the
    rest of the objective pushes the *shorter* side to v, until the longer one reaches u.
    Departs from the paper, whose sweeps drift towards this point (see :func:`alternating`).
    """
    u, v = bounds
    X = wide(W)
    k, n = X.shape[-2:]
    s2, short, long = yield from _thin_svd(X, floor=k / v**2)
    if k == n:
        a = b = clip_inverse(k, s2, (u**2, v**2)).sqrt()
    else:
        b = clip_inverse(k / v, s2, bounds)
        a = clip_inverse(n, s2 * b, bounds)  # v, until b has reached u
    dtype = factor_dtype(W)
    sides = _precision(short, a, None, dtype), _precision(long, b, v, dtype)
    return MatrixNormal(*sides) if X is W else MatrixNormal(*reversed(sides))


#: Every rule by its public name. To add one, write a function like those above and list it here.
RULES: dict[str, Rule] = {"alternating": alternating, "joint": joint, "official": official}


def _inv_threshold(
    W: Tensor,  # (…, p, d)
    other: Precision,  # (…, d, d)
    m: float,
    bounds: tuple[float, float],
    G: Tensor,  # W Wᵀ if short, Wᵀ W if not
    margin: float,
    short: bool,
) -> Generator[Request, Answer, Precision]:
    """InvThreshold(W Ω Wᵀ, m), by the k x k matrix that has the same nonzero eigenvalues."""
    v = bounds[1]
    floor = m / v
    noise = other.spectrum().amax(-1) * _noise(G)
    if short:
        C = inner(W, other.basis)
        scale = other.outside.double()[..., None, None]
        gain = other.values.double().unsqueeze(-2) - scale
        delta = scale * G + (C * gain) @ C.mT
        r, Q, resolved = yield Request(delta, noise, margin, floor)
    else:
        H = other.to(torch.float64).root()
        r, Z, resolved = yield Request(H.mT @ G @ H, noise, margin, floor)
        r, Q = _project(W.mT, H @ Z, r, floor)
    if not resolved:
        Q, s, _ = svd(W.double() @ other.to(torch.float64).sqrt())
        r = s.square()
    return _precision(Q, clip_inverse(m, r, bounds), None if short else v, factor_dtype(W))


def _thin_svd(
    X: Tensor,  # (…, k, n), k <= n
    floor: float,
) -> Generator[Request, Answer, tuple[Tensor, Tensor, Tensor]]:
    """Squared singular values of X, its left and its right singular vectors.

    Right vectors that belong to singular values up to the floor are zero, see Precision.
    """
    margin, X = _margin(X), _exact(X)
    G = inner(X)
    s2, Q, resolved = yield Request(G, _noise(G), margin, floor)
    if resolved:
        s2, V = _project(X, Q, s2, floor)
        return s2, Q, V
    Q, s, V = svd(X)
    return s.square(), Q, V


def _exact(W: Tensor) -> Tensor:
    """A weight whose factors will be float64, in float64; a larger one as it is."""
    return W.double() if factor_dtype(W) == torch.float64 else W


def _noise(G: Tensor) -> Tensor:
    """How far rounding may move the eigenvalues of a float64 Gram matrix."""
    return 10 * torch.finfo(G.dtype).eps * G.diagonal(dim1=-2, dim2=-1).sum(-1)


def _project(
    X: Tensor,  # (…, k, n)
    T: Tensor,  # (…, k, k)
    r: Tensor,  # (…, k)
    floor: float,
) -> tuple[Tensor, Tensor]:
    """The squared lengths of the columns of Xᵀ T, and these columns as unit vectors.

    The squared lengths are r but for rounding, and more exact than it, since r comes from a
    matrix of squares. Where r is not above the floor both are zero: nobody needs them.
    """
    return unit_columns(X, T * (r > floor).unsqueeze(-2))


def _precision(basis: Tensor, values: Tensor, v: float | None, dtype: torch.dtype) -> Precision:
    """Eigenvalue v outside the basis, or None for a basis that is complete."""
    scale = None
    if v is not None:
        scale = torch.full(values.shape[:-1], v, dtype=dtype, device=values.device)
    return Precision(scale, basis.to(dtype), values.to(dtype))


def solve(
    weight: Tensor,  # (…, p, d)
    rule: str = "joint",
    bounds: tuple[float, float] = BOUNDS,
    prior: MatrixNormal | None = None,
) -> MatrixNormal:
    """The prior whose precisions fit ``weight`` best (Eq. 4, equ:opt, with W held fixed).

    Minimises ``tr(Ωr W Ωc Wᵀ) − d·logdet Ωr − p·logdet Ωc`` subject to
    ``u·I ⪯ Ωr, Ωc ⪯ v·I``.

    Args:
        weight: p outputs x d fan-in, or a batch of such matrices; any floating dtype.
        rule: ``"joint"``, the minimum over both precisions; ``"alternating"``, one sweep of
            the paper's Alg. 1; ``"official"``, one sweep of the authors' code.
        bounds: smallest and largest eigenvalue (u, v) of both precisions.
        prior: the old prior that a sweep starts from; ``None`` means Ωr = Ωc = I. The joint
            rule does not need it.

    Raises:
        NonFiniteError: ``weight`` holds NaN or infinite entries.

    >>> import adareg, torch
    >>> prior = adareg.solve(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    >>> prior.row.eigenvalues()
    tensor([7.0711e-01, 1.0000e+03], dtype=torch.float64)
    """
    check_matrix(weight, "weight")
    if weight.numel() == 0 or not weight.is_floating_point():
        raise ValueError(
            f"weight must be a non-empty floating point matrix (…, p, d); "
            f"got shape {tuple(weight.shape)}, {weight.dtype}"
        )
    if prior is not None and prior.shape != weight.shape:
        raise ValueError(
            f"prior is for weights of shape {tuple(prior.shape)}, got {tuple(weight.shape)}"
        )
    priors = {} if prior is None else {"weight": prior}
    weights = {"weight": lengthwise(weight)}
    return solve_all(weights, priors, check_rule(rule), check_bounds(bounds))["weight"]


def check_rule(rule: str) -> str:
    """Return ``rule`` if there is one of that name, or raise ``ValueError``."""
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule={rule!r}: expected one of {', '.join(map(repr, RULES))}")
    return rule


@torch.no_grad()
def solve_all(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    rule: str,
    bounds: tuple[float, float],
    solver: Callable[[Mapping[str, Request]], dict[str, Answer]] | None = None,
) -> dict[str, MatrixNormal]:
    """:func:`solve` for many weights at once; arguments are taken as valid.

    Decompositions are made by ``solver``, :func:`decompose` unless given.

    Raises:
        NonFiniteError: names the first weight that is not finite.
    """
    running = {name: RULES[rule](W, priors.get(name), bounds) for name, W in weights.items()}
    requests = {name: next(steps) for name, steps in running.items()}
    solved = {}
    while requests:
        answers, requests = (solver or decompose)(requests), {}
        for name, answer in answers.items():
            try:
                requests[name] = running[name].send(answer)
            except StopIteration as done:
                solved[name] = done.value
    return solved


def decompose(requests: Mapping[str, Request]) -> dict[str, Answer]:
    """Answer all requests: one decomposition for each size, and at most two looks at the device."""
    levels = {name: q.noise if q.noise.ndim == 0 else q.noise.max() for name, q in requests.items()}
    noise = _read(levels)
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
        name: _hidden(q, spectra[name][0])
        for name, q in requests.items()
        if q.margin * noise[name] > q.floor - noise[name]
    }
    hidden = _read(doubtful) if doubtful else {}
    return {name: Answer(*spectra[name], not hidden.get(name, False)) for name in requests}


def _eigh_together(matrices: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    if len(matrices) == 1:
        return {name: eigh(matrix) for name, matrix in matrices.items()}
    batches = [_as_batch(matrix) for matrix in matrices.values()]
    r, Q = eigh(torch.cat(batches))
    sizes = [len(batch) for batch in batches]
    return {
        name: (r_one.view(matrix.shape[:-1]), Q_one.view(matrix.shape))
        for (name, matrix), r_one, Q_one in zip(
            matrices.items(), r.split(sizes), Q.split(sizes), strict=True
        )
    }


def _hidden(request: Request, r: Tensor) -> Tensor:
    """Whether an eigenvalue that matters lies too close to the rounding noise."""
    noise = request.noise.unsqueeze(-1)
    return ((r < request.margin * noise) & (r + noise > request.floor)).any()


def _of_one_size(requests: Mapping[str, Request]) -> Iterable[list[str]]:
    groups = defaultdict(list)
    for name, (matrix, *_) in requests.items():
        groups[matrix.shape[-1], matrix.device].append(name)
    return groups.values()


def _as_batch(matrix: Tensor) -> Tensor:
    return matrix.reshape(-1, *matrix.shape[-2:])


def _read(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """All scalars in one transfer."""
    if len(scalars) == 1:
        return {name: scalar.item() for name, scalar in scalars.items()}
    device = next(iter(scalars.values())).device
    together = torch.stack([scalar.to(device) for scalar in scalars.values()])
    return dict(zip(scalars, together.tolist(), strict=True))
