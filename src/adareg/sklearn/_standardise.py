"""From tables in any units to standardised tensors, and back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse  # type: ignore[import-untyped]
import torch
from torch import Tensor

from adareg.sklearn._data import Array
from adareg.sklearn._power import Powers

#: A column that varies by less than this share of its size is taken as constant: it is rounding.
_ROUNDING = 1e-12

#: Inputs further outside of the training range than this many times its width are taken as there.
_OUTSIDE = 2.0


def _moments(values: Array, weight: Array) -> tuple[Array, Array]:
    """Return weighted means, and deviations; one where a column is constant, or what is rounding.

    Squares are those of values over a power of two, so that none overflows or vanishes.
    """
    share = weight / weight.sum()
    _, exponent = np.frexp(np.abs(values).max(0, initial=0))
    scaled = np.ldexp(values, -exponent)
    mean = np.where((scaled == scaled[0]).all(0), scaled[0], share @ scaled)
    deviation = np.sqrt(share @ (scaled - mean) ** 2)
    constant = deviation <= _ROUNDING * np.abs(scaled).max(0, initial=0)
    mean, deviation = np.ldexp(mean, exponent), np.ldexp(deviation, exponent)
    return mean, np.where(constant, np.maximum(1.0, deviation), deviation)


def dense(X: Any) -> Array:
    """Return a matrix as an array, also if it is sparse."""
    return X.toarray() if scipy.sparse.issparse(X) else np.asarray(X)


@dataclass(frozen=True)
class Targets:
    """Means and deviations of targets."""

    mean: Array  # (K,)
    scale: Array  # (K,)

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Targets:
        """Measure training targets."""
        return cls(*_moments(Y, weight))

    def standardise(self, Y: Array) -> Tensor:
        """Return targets of mean zero and deviation one."""
        return torch.from_numpy((Y - self.mean) / self.scale)

    def restore(self, Y: Array) -> Array:
        """Return them in their own units again."""
        return Y * self.scale + self.mean


@dataclass(frozen=True)
class Inputs:
    """Means, deviations and ranges of inputs; powers of skewed ones, or directions kept of many."""

    mean: Array  # (d,)
    scale: Array  # (d,)
    low: Array  # (d + r,): of the training range, standardised, powers behind
    high: Array  # (d + r,)
    powers: Powers | None = None
    directions: Array | None = None  # (d, r)

    @classmethod
    def of(cls, X: Any, weight: Array, most: int) -> Inputs:
        """Measure training inputs; of more than ``most`` columns keep so many directions."""
        X = dense(X)
        mean, scale = _moments(X, weight)
        Z = (X - mean) / scale
        if X.shape[1] > most:
            root = np.sqrt(weight)[:, None]
            directions = np.linalg.svd(root * Z, full_matrices=False)[2][:most].T
            return cls(mean, scale, Z.min(0), Z.max(0), directions=directions)
        powers = Powers.of(Z, weight, most - X.shape[1])
        W = np.concatenate([Z, powers.raised(Z)], 1)
        return cls(mean, scale, W.min(0), W.max(0), powers)

    @property
    def columns(self) -> int:
        """How many inputs a network has."""
        return len(self.low) if self.directions is None else self.directions.shape[1]

    def standardise(self, X: Any) -> Tensor:
        """Return inputs of mean zero and deviation one, none of them far out."""
        d = len(self.mean)
        Z = (dense(X) - self.mean) / self.scale
        inside = self._inside(Z, slice(0, d))
        moved = np.flatnonzero((inside != Z).any(0))
        if len(moved):
            warnings.warn(
                f"X: {len(moved)} of {d} columns, number {moved[0]} for example, leave their "
                f"training range by more than {_OUTSIDE:g} times its width; such values are "
                "moved to that limit, since nothing is known beyond",
                stacklevel=3,
            )
        if self.directions is not None:
            return torch.from_numpy(inside @ self.directions)
        if self.powers is None:
            return torch.from_numpy(inside)
        raised = self._inside(self.powers.raised(inside), slice(d, None))
        return torch.from_numpy(np.concatenate([inside, raised], 1))

    def _inside(self, Z: Array, part: slice) -> Array:
        low, high = self.low[part], self.high[part]
        reach = _OUTSIDE * (high - low) + 1e-9
        return np.clip(Z, low - reach, high + reach)

    def spread(self, of_inputs: Array, inputs: Array) -> Array:
        """Return gradients with respect to a network's inputs as such to columns, (…, n, d).

        Args:
            of_inputs: (…, n, inputs).
            inputs: where they were taken, (n, inputs), standardised.
        """
        if self.directions is not None:
            return of_inputs @ self.directions.T
        if self.powers is None:
            return of_inputs
        d = len(self.mean)
        found = of_inputs[..., :d].copy()
        found[..., self.powers.columns] += of_inputs[..., d:] * self.powers.slopes(inputs[:, :d])
        return found
