"""The curvature of a network with one hidden layer, summed over samples without forming its rows.

A row of its Jacobian is made of products: of slopes s of the hidden units and inputs a, one of
which is always one, and of the values h of the hidden units. So is the Gram matrix of all rows.
Products of two slopes, and those of two inputs, are symmetric, and appear once in its sums:

    s·s′·a·a′      hidden weights with hidden weights
    s·a·a′, s·a·h  hidden weights with output weights and the linear path
    a·a′, a·h, h·h′  these with themselves

They stand for every output if the curvature at the outputs is the same at all samples.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from adareg.core.evidence.perceptron import Linearised, Perceptron, with_one

#: Entries of the arrays that are formed at once.
_ENTRIES = 2**20


class Sums(NamedTuple):
    """Sums over samples, for c kinds of curvature between outputs and m between one and all."""

    hidden: Tensor  # (p, e, p, e): of hidden weights
    cross: Tensor  # (m, p, e, q): of these with an output's own weights
    own: Tensor  # (c, q, q): of the latter


class Products:
    """Sums over samples of products of slopes, inputs and hidden values.

    Args:
        network: with one hidden layer.
        constant: curvature at the outputs is the same at all samples, and stays outside.
    """

    def __init__(self, network: Perceptron, constant: bool) -> None:
        self._units, self._inputs = network.hidden[0], network.inputs + 1
        self._of_one = 1 if constant else network.outputs
        self._kinds = 1 if constant else math.comb(network.outputs + 1, 2)
        self._constant = constant
        self._sums: list[Tensor] = []

    def add(self, near: Linearised, curvature: Tensor, weight: Tensor) -> None:
        """Add samples.

        Args:
            near: the network there.
            curvature: Λ, (n, K, K); not looked at if it is constant.
            weight: (n,)
        """
        p, e = self._units, self._inputs
        width = math.comb(p + 1, 2) + math.comb(e + 1, 2) + e * p
        width += self._kinds * (p + 1) + self._of_one * p
        size = max(1, _ENTRIES // width)
        for i in range(0, len(weight), size):
            part = slice(i, i + size)
            a, h, s = (
                x[part].mT.contiguous()
                for x in (with_one(near.values[0]), near.values[1], near.slopes[0])
            )
            if self._constant:
                both, one, kinds = pairs(s), s, torch.ones_like(s[:1])
            else:
                both, one, kinds = _curved(s, curvature[part], near.weights[1][:, :-1])
            self._add(a * weight[part], a, h, both, torch.cat([one, kinds]))

    def _add(self, weighted: Tensor, a: Tensor, h: Tensor, both: Tensor, rest: Tensor) -> None:
        kinds = rest[len(rest) - self._kinds :]
        inputs = pairs(weighted, a).mT
        sums = [
            both @ inputs,
            rest @ inputs,
            rest @ outer(weighted, h).mT,
            outer(kinds * weighted[-1], h) @ h.mT,
        ]
        if self._sums:
            sums = [old.add_(new) for old, new in zip(self._sums, sums, strict=True)]
        self._sums = sums

    def sums(self) -> Sums:
        """Return what they say of the network's weights."""
        p, e, m, c = self._units, self._inputs, self._of_one, self._kinds
        both, inputs, values, hidden = self._sums
        pair = _places(e, both.device)
        both = both[:, pair][_places(p, both.device)]  # (p, p, e, e)
        inputs = inputs[:, pair]  # (…, e, e)
        order = torch.arange(-1, e - 1, device=inputs.device)  # the bias first
        values = values.unflatten(1, (e, p))
        cross = torch.cat([values[:-c], inputs[:-c, :, order]], -1)
        ends, middle = inputs[-c:, order][:, :, order], values[-c:, order]
        top = torch.cat([hidden.unflatten(0, (c, p)), middle.mT], -1)
        own = torch.cat([top, torch.cat([middle, ends], -1)], -2)
        return Sums(both.transpose(1, 2), cross.unflatten(0, (m, p)), own)


def _curved(s: Tensor, curvature: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return products of two slopes, slopes, and ones, as seen through the outputs' curvature.

    ``WᵀΛW`` for two hidden units, ``ΛW`` for an output and a hidden unit, and Λ.
    """
    k, o = upper(len(W), s.device)
    kinds = curvature[:, k, o].mT  # (c, n)
    i, j = upper(len(s), s.device)
    through = (W[k][:, i] * W[o][:, j] + W[o][:, i] * W[k][:, j]) * torch.where(k == o, 0.5, 1.0)[
        :, None
    ].to(W)
    both = (through.mT @ kinds).mul_(pairs(s))
    one = (W.mT @ curvature).permute(2, 1, 0) * s  # (K, p, n)
    return both, one.flatten(0, 1), kinds


def pairs(x: Tensor, y: Tensor | None = None) -> Tensor:  # (p, n) -> (p·(p + 1)/2, n)
    """Return products of two rows, each pair once; of the second factors, if there are any."""
    y, p = x if y is None else y, len(x)
    found = x.new_empty(math.comb(p + 1, 2), x.shape[1])
    for row, place in zip(range(p), accumulate(range(p, 0, -1), initial=0), strict=False):
        torch.mul(y[row:], x[row], out=found[place : place + p - row])
    return found


def outer(x: Tensor, y: Tensor) -> Tensor:  # (p, n), (r, n) -> (p·r, n)
    """Return products of each row of the one with each of the other."""
    return (x.unsqueeze(1) * y).flatten(0, 1)


@lru_cache(maxsize=32)
def upper(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows and columns of an upper triangle, the diagonal included."""
    i, j = torch.triu_indices(size, size, device=device)
    return i, j


@lru_cache(maxsize=32)
def _places(size: int, device: torch.device) -> Tensor:  # (size, size)
    """Return where in the upper triangle an entry of a symmetric matrix is."""
    i, j = upper(size, device)
    places = torch.empty(size, size, dtype=torch.long, device=device)
    places[i, j] = places[j, i] = torch.arange(len(i), device=device)
    return places
