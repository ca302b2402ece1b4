"""Yeo and Johnson's power of each skewed column: the one that makes it most nearly normal.

Ages, amounts and counts often work by their logarithm or root. A network is given both, the column
and its power, and the prior's variance of each says which one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.stats import yeojohnson  # type: ignore[import-untyped]

from adareg.sklearn._data import Array

#: Powers lie within these; 1 changes nothing, and x to the power p is -x to the power 2 - p.
_LEAST, _MOST = -3.0, 5.0

#: Powers have so many digits, so that rounding errors of sums do not change them.
_DIGITS = 2

#: A power is left out if less than this share of its variance is other than the column itself, or
#: if the column is likelier by it by fewer nats than these.
_OTHER, _NATS = 0.01, 5.0


@dataclass(frozen=True)
class Powers:
    """Which standardised columns are skewed, their powers, and how these are standardised."""

    columns: Array  # (r,)
    powers: Array  # (r,)
    mean: Array  # (r,)
    scale: Array  # (r,)

    @classmethod
    def of(cls, Z: Array, weight: Array, most: int) -> Powers:
        """Find the powers of standardised columns (n, d), those of the ``most`` skewed ones."""
        share = weight / weight.sum()
        found = [_power(z, share) for z in Z.T]
        powers, gains = (np.array(x) for x in zip(*found, strict=True))
        W = _raise(Z, powers)
        mean = share @ W
        scale = np.sqrt(share @ (W - mean) ** 2)
        other = np.where(gains * weight.sum() > _NATS, _apart(Z, W - mean, share), 0.0)
        order = np.argsort(-other, kind="stable")[:most]
        columns = np.sort(order[other[order] > _OTHER])
        return cls(columns, powers[columns], mean[columns], scale[columns])

    def raised(self, Z: Array) -> Array:  # (n, d) -> (n, r)
        """Return the powers of standardised columns, themselves standardised."""
        return (_raise(Z[:, self.columns], self.powers) - self.mean) / self.scale

    def slopes(self, Z: Array) -> Array:  # (n, d) -> (n, r)
        """Return their derivatives with respect to the columns."""
        Z = Z[:, self.columns]
        sign = np.where(Z < 0, -1.0, 1.0)
        return (1 + np.abs(Z)) ** (sign * (self.powers - 1)) / self.scale


def _raise(Z: Array, powers: Array) -> Array:
    columns = [yeojohnson(z, power) for z, power in zip(Z.T, powers, strict=True)]
    return np.stack(columns, 1) if columns else Z


def _apart(Z: Array, W: Array, share: Array) -> Array:
    """Return the share of each column of W that does not follow from that of Z, linearly."""
    common, of_z, of_w = (share @ x for x in (Z * W, Z**2, W**2))
    return 1 - common**2 / np.maximum(of_z * of_w, 1e-300)


def _power(z: Array, share: Array) -> tuple[float, float]:
    """Return the power of highest likelihood, and what a sample gains by it, in nats."""
    jacobian = share @ (np.sign(z) * np.log1p(np.abs(z)))

    def cost(power: float) -> float:
        w = yeojohnson(z, power)
        variance = share @ (w - share @ w) ** 2
        return float(np.log(variance) / 2 - (power - 1) * jacobian) if variance > 0 else 0.0

    found = minimize_scalar(cost, bounds=(_LEAST, _MOST), method="bounded")
    power = round(float(found.x), _DIGITS)
    return power, cost(1.0) - cost(power)
