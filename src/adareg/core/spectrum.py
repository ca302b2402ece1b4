"""Bounds on a spectrum, and the paper's InvThreshold."""

from __future__ import annotations

import math
from numbers import Real

from torch import Tensor

from adareg.core.linalg import NonFiniteError, check_square, eigh

#: Smallest and largest eigenvalue a precision may have: u and v of the published code.
BOUNDS = (1e-3, 1e3)


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return ``bounds`` as two floats ``0 < u <= v < inf``, or raise ``ValueError``."""
    try:
        u, v = bounds
        valid = isinstance(u, Real) and isinstance(v, Real) and 0 < u <= v < math.inf
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            f"bounds={bounds!r}: expected two numbers (u, v) with 0 < u <= v < inf, "
            f"for example bounds={BOUNDS}"
        )
    return float(u), float(v)


def clip_inverse(
    m: float,
    r: Tensor,  # (…, k), >= 0
    bounds: tuple[float, float],
) -> Tensor:
    """Return ``clip(m/r, u, v)``, which minimises ``r·x − m·log x`` over [u, v]; v for r = 0."""
    return (m / r).clamp(*bounds)


def inv_threshold(
    delta: Tensor,  # (…, n, n)
    m: float,
    bounds: tuple[float, float] = BOUNDS,
) -> Tensor:
    """Minimise ``tr(ΩΔ) − m·logdet Ω`` subject to ``u·I ⪯ Ω ⪯ v·I`` in closed form.

    The procedure InvThreshold of Alg. 1: with ``Δ = Q·diag(r)·Qᵀ`` the answer is
    ``Q·diag(clip(m/r, u, v))·Qᵀ``. Two departures from the paper: ``u·v = 1`` is not needed,
    and r is clamped at zero first, because rounding makes null eigenvalues slightly
    negative, which would send them to u instead of v.

    Args:
        delta: symmetric positive semidefinite matrix, or a batch of them; only its
            symmetric part is read.
        m: numerator, > 0; in Alg. 1 the size of the *other* side of the weight.
        bounds: smallest and largest eigenvalue of the answer.

    Returns:
        The dense precision, of ``delta``'s shape and dtype (decomposed in float64).

    Raises:
        NonFiniteError: ``delta`` holds NaN or infinite entries.

    >>> import adareg, torch
    >>> adareg.inv_threshold(torch.diag(torch.tensor([4.0, 0.0])), m=2.0)
    tensor([[5.0000e-01, 0.0000e+00],
            [0.0000e+00, 1.0000e+03]])
    """
    check_square(delta, "delta")
    if not delta.isfinite().all():
        raise NonFiniteError("delta has NaN or infinite entries")
    if not isinstance(m, Real) or not 0 < m < math.inf:
        raise ValueError(f"m={m!r}: expected a positive number")
    bounds = check_bounds(bounds)
    wide = delta.double()
    r, Q = eigh((wide + wide.mT) / 2)
    return ((Q * clip_inverse(m, r, bounds).unsqueeze(-2)) @ Q.mT).to(delta.dtype)
