"""Both precisions from a weight in closed form: the paper's rule, the exact one, the authors'.

A rule is a generator of :mod:`steps <adareg.core.steps>`: it yields each symmetric matrix that it
wants decomposed and is sent the answer, so that :func:`solve_all` can run the rules of many
layers side by side and decompose all matrices of one size in one call. Apart from ``yield from``
a rule reads like Alg. 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from inspect import isgeneratorfunction
from typing import TypeVar

import torch
from torch import Tensor

from adareg.core.decompose import Answer, Request, decompose
from adareg.core.linalg import check_matrix, factor_dtype, lengthwise
from adareg.core.prior import MatrixNormal
from adareg.core.spectrum import BOUNDS, check_bounds, clip_inverse
from adareg.core.steps import Weight, as_precision, solve_side, thin_svd

Steps = Generator[Request, Answer, MatrixNormal]
Rule = Callable[[Weight, MatrixNormal, tuple[float, float]], Steps]

#: Every rule by its public name.
RULES: dict[str, Rule] = {}

_R = TypeVar("_R", bound=Rule)


def register_rule(name: str) -> Callable[[_R], _R]:
    """Decorator that teaches AdaReg a rule, under a name for ``rule=``.

    A rule is a generator function of a weight (:class:`adareg.core.steps.Weight`), its old prior
    and the bounds (u, v). It returns the new :class:`MatrixNormal`, made of steps such as
    :func:`solve_side`.

    Raises:
        ValueError: another rule has this name.
        TypeError: it is no generator function.

    >>> import adareg, torch
    >>> @adareg.register_rule("rows alone")
    ... def rows_alone(W, prior, bounds):
    ...     row = yield from adareg.solve_side(W, prior.col, W.shape[-1], bounds)
    ...     return adareg.MatrixNormal(row, prior.col)
    >>> adareg.solve(torch.eye(2), rule="rows alone").row.eigenvalues()
    tensor([2., 2.], dtype=torch.float64)
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name={name!r}: expected the name of a rule; @register_rule('my-rule')")

    def register(rule: _R) -> _R:
        if not isgeneratorfunction(rule):
            raise TypeError(f"{rule!r}: expected a generator function, with steps after yield from")
        if _origin(RULES.get(name, rule)) != _origin(rule):  # a cell may be run again
            raise ValueError(f"there is a rule {name!r} already; choose another name")
        RULES[name] = rule
        return rule

    return register


def _origin(rule: Rule) -> tuple[object, object]:
    return getattr(rule, "__module__", None), getattr(rule, "__qualname__", rule)


@register_rule("alternating")
def alternating(W: Weight, prior: MatrixNormal, bounds: tuple[float, float]) -> Steps:
    """One sweep of the paper's Alg. 1, from the old column precision.

    ``Ωr ← InvThreshold(W Ωc Wᵀ, d)``, then ``Ωc ← InvThreshold(Wᵀ Ωr W, p)``. Each step is
    the exact minimiser over its own block, so the objective never rises.
    """
    p, d = W.shape[-2:]
    row = yield from solve_side(W, prior.col, d, bounds)
    col = yield from solve_side(W.mT, row, p, bounds)
    return MatrixNormal(row, col)


@register_rule("joint")
def joint(W: Weight, prior: MatrixNormal, bounds: tuple[float, float]) -> Steps:
    """The minimum over both precisions at once, from one decomposition; a function of W alone.

    The precisions share W's singular vectors, and each singular value s is a problem of its
    own, ``min s²ab − d·log a − p·log b`` over the box, convex in (log a, log b). In the
    interior only the product ``ab = min(p, d)/s²`` counts for the smaller of p and d; the
    rest of the objective pushes the *shorter* side to v, until the longer one reaches u.
    Departs from the paper, whose sweeps drift towards this point (see :func:`alternating`).
    """
    u, v = bounds
    k, n = sorted(W.shape[-2:])
    s2, left, right = yield from thin_svd(W, floor=k / v**2)
    if k == n:
        a = b = clip_inverse(k, s2, (u**2, v**2)).sqrt()
    else:
        b = clip_inverse(k / v, s2, bounds)
        a = clip_inverse(n, s2 * b, bounds)  # v, until b has reached u
    if W.is_wide:
        return MatrixNormal(as_precision(W, left, a), as_precision(W, right, b, outside=v))
    return MatrixNormal(as_precision(W, left, b, outside=v), as_precision(W, right, a))


@register_rule("official")
def official(W: Weight, prior: MatrixNormal, bounds: tuple[float, float]) -> Steps:
    """One sweep of the authors' published code, which differs from the paper.

    Columns come before rows, and the numerator is the matrix's own dimension instead of the
    other one: ``Ωc ← InvThreshold(Wᵀ Ωr W, d)``, then ``Ωr ← InvThreshold(W Ωc Wᵀ, p)``.
    It does not minimise the paper's objective unless p = d.
    """
    p, d = W.shape[-2:]
    col = yield from solve_side(W.mT, prior.row, d, bounds)
    row = yield from solve_side(W, col, p, bounds)
    return MatrixNormal(row, col)


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
    if weight.numel() == 0:
        raise ValueError(f"weight: expected at least one matrix, got shape {tuple(weight.shape)}")
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
    running = {
        name: RULES[rule](Weight.of(W), priors.get(name) or MatrixNormal.identity(W), bounds)
        for name, W in weights.items()
    }
    answers: dict[str, Answer | None] = dict.fromkeys(running)
    solved = {}
    while answers:
        requests = {}
        for name, answer in answers.items():
            try:
                requests[name] = running[name].send(answer)  # type: ignore[arg-type]
            except StopIteration as done:
                solved[name] = _checked(done.value, rule, weights[name])
        answers = dict((solver or decompose)(requests)) if requests else {}
    return solved


def _checked(prior: object, rule: str, W: Tensor) -> MatrixNormal:
    """Return what a rule has returned, in the dtype that factors have."""
    if not isinstance(prior, MatrixNormal) or prior.shape != W.shape:
        found = f"{type(prior).__name__} of shape {tuple(getattr(prior, 'shape', ()))}"
        raise TypeError(
            f"rule {rule!r} returned a {found}; expected a MatrixNormal of shape {tuple(W.shape)}"
        )
    dtype = factor_dtype(W)
    return prior if prior.row.values.dtype == prior.col.values.dtype == dtype else prior.to(dtype)
