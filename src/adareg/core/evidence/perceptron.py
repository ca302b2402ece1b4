"""A small network as a function of one float64 vector, with the rows of its Jacobian.

Hidden layers of smooth units, and a linear path beside them from inputs to outputs, so that what
is linear need not be made of curves. Gradients are written out: there are few layers, and all that
is asked for is one row for each sample and direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

#: Prior variance of the biases at the start: of hidden units, and of the outputs.
_BIASES = 0.5, 1.0

#: Output weights start at this share of a draw from their prior: nearly linear.
_SMALL = 0.1


class Unit(NamedTuple):
    """What a unit makes of its input z, and the derivative at z, where it makes h."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _silu_slope(z: Tensor, h: Tensor) -> Tensor:
    s = z.sigmoid()
    return s + h * (1 - s)


UNITS: dict[str, Unit] = {
    "erf": Unit(torch.erf, lambda z, h: (-z * z).exp() * (2 / math.sqrt(math.pi))),
    "tanh": Unit(torch.tanh, lambda z, h: 1 - h * h),
    "silu": Unit(silu, _silu_slope),
    "relu": Unit(torch.relu, lambda z, h: (z > 0).to(z)),
}


class Family(NamedTuple):
    """Groups of weights, each with a variance of its own, that have something in common."""

    groups: slice
    start: float  # their variance before anything is known
    bias: bool


class Linearised(NamedTuple):
    """A network near some weights, at some samples."""

    network: Perceptron
    weights: list[Tensor]
    values: list[Tensor]  # of the inputs and the hidden layers: (n, d) each
    slopes: list[Tensor]  # of the hidden layers' units: (n, p) each
    outputs: Tensor  # (n, K)

    def rows(self, directions: Tensor) -> Tensor:  # (R, n, K) -> (R, n, P)
        """Return gradients of the outputs along directions with respect to all weights."""
        last = _outer(directions, with_one(self.values[-1]))
        path = _outer(directions, self.values[0])
        return torch.cat([self.hidden_rows(directions), last, path], -1)

    def hidden_rows(self, directions: Tensor) -> Tensor:  # (R, n, K) -> (R, n, …)
        """Return them with respect to the weights of hidden layers alone."""
        pairs = zip(self.deltas(directions), self.values, strict=False)
        return torch.cat([_outer(delta, with_one(a)) for delta, a in pairs], -1)

    def deltas(self, directions: Tensor) -> list[Tensor]:  # (…, n, K) -> (…, n, p) by layer
        """Return gradients of the outputs along directions with respect to units' inputs."""
        found: list[Tensor] = []
        delta = directions
        for layer in reversed(range(len(self.slopes))):
            delta = (delta @ self.weights[layer + 1][:, :-1]) * self.slopes[layer]
            found.insert(0, delta)
        return found

    def pull(self, direction: Tensor) -> Tensor:  # (n, K) -> (P,)
        """Return the sum over samples of one direction's rows."""
        deltas = [*self.deltas(direction), direction]
        parts = [delta.mT @ with_one(a) for delta, a in zip(deltas, self.values, strict=True)]
        parts.append(direction.mT @ self.values[0])
        return torch.cat([part.flatten() for part in parts])


def with_one(a: Tensor) -> Tensor:  # (n, d) -> (n, d + 1)
    """Return values with a column of ones behind, for the bias."""
    return torch.cat([a, a.new_ones(len(a), 1)], 1)


def _outer(delta: Tensor, a: Tensor) -> Tensor:  # (R, n, p), (n, d) -> (R, n, p·d)
    return (delta.unsqueeze(-1) * a.unsqueeze(-2)).flatten(-2)


@dataclass(frozen=True)
class Perceptron:
    """The shape of a network; its weights are a vector ``w``.

    Layer after layer (p, d + 1) with the bias in the last column, then the linear path (K, d).
    """

    inputs: int
    outputs: int
    hidden: tuple[int, ...]
    unit: str = "erf"

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the layers' weights, the linear path's last."""
        sizes = [self.inputs, *self.hidden, self.outputs]
        layers = [(p, d + 1) for d, p in pairwise(sizes)]
        return [*layers, (self.outputs, self.inputs)]

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(p * d for p, d in self.shapes)

    def split(self, w: Tensor) -> list[Tensor]:  # (…, P) -> (…, p, d)
        """Return views of the layers' weights."""
        parts = w.split([p * d for p, d in self.shapes], dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @cached_property
    def _grouping(self) -> tuple[Tensor, list[Family]]:
        """Each weight's group; the first layer and the linear path have one for each input."""
        index, families, count, last = [], [], 0, len(self.shapes) - 1
        for layer, (p, d) in enumerate(self.shapes):
            biased, each = layer < last, layer in (0, last)
            fan = d - biased
            groups = fan if each else 1
            families.append(Family(slice(count, count + groups), 1 / fan, bias=False))
            columns = count + (torch.arange(fan) if each else torch.zeros(fan, dtype=torch.long))
            count += groups
            if biased:
                start = _BIASES[layer == last - 1]
                families.append(Family(slice(count, count + 1), start, bias=True))
                columns = torch.cat([columns, torch.tensor([count])])
                count += 1
            index.append(columns.expand(p, d).flatten())
        return torch.cat(index), families

    @property
    def group(self) -> Tensor:  # (P,)
        """The group of each weight."""
        return self._grouping[0]

    @property
    def families(self) -> list[Family]:
        """What groups there are."""
        return self._grouping[1]

    def start(self, seed: int) -> tuple[Tensor, Tensor]:  # (P,), (groups,)
        """Return weights drawn from the first prior, nearly linear, and that prior's variances."""
        generator = torch.Generator().manual_seed(seed)
        variances = torch.cat(
            [
                torch.full((one.groups.stop - one.groups.start,), one.start, dtype=torch.float64)
                for one in self.families
            ]
        )
        w = torch.randn(self.size, generator=generator, dtype=torch.float64, device="cpu")
        w *= variances[self.group].sqrt()
        *_, out, path = self.split(w)
        out.mul_(_SMALL)[:, -1] = 0
        path.zero_()
        return w, variances

    def linearise(self, w: Tensor, X: Tensor) -> Linearised:  # (P,), (n, d)
        """Return outputs, and what their gradients are made of."""
        weights = self.split(w)
        inner, values = self._through(weights, X)
        slope = UNITS[self.unit].slope
        slopes = [slope(z, h) for z, h in zip(inner, values[1:], strict=True)]
        return Linearised(self, weights, values, slopes, _outputs(weights, values))

    def __call__(self, w: Tensor, X: Tensor) -> Tensor:  # (n, K)
        """Return the outputs."""
        weights = self.split(w)
        return _outputs(weights, self._through(weights, X)[1])

    def _through(self, weights: list[Tensor], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return what units get, and the values of inputs and units."""
        inner, values = [], [X]
        for W in weights[:-2]:
            inner.append(torch.addmm(W[:, -1], values[-1], W[:, :-1].T))
            values.append(UNITS[self.unit].value(inner[-1]))
        return inner, values


def _outputs(weights: list[Tensor], values: list[Tensor]) -> Tensor:  # (n, K)
    *_, out, path = weights
    return torch.addmm(torch.addmm(out[:, -1], values[0], path.T), values[-1], out[:, :-1].T)
