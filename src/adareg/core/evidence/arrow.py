"""The posterior of a network whose outputs have independent noise, by blocks.

Weights of hidden units matter to all outputs, and an output's own weights to that output alone: the
precision has the shape of an arrow. Own weights are eliminated output by output, and what is left
is a posterior of the hidden weights. Nothing is cubic in the number of outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from adareg.core.evidence.perceptron import Perceptron
from adareg.core.evidence.shallow import Sums
from adareg.core.evidence.weights import WeightPosterior, factorised, normal


class Arrow:
    """The Gram matrix of all rows: λₖ times that of the k-th output's."""

    def __init__(self, network: Perceptron, w: Tensor, sums: Sums, precision: Tensor) -> None:
        self.network, self.sums, self.precision = network, sums, precision
        self.W = network.split(w)[-2][:, :-1]  # (K, p)
        across = (self.W.mT * precision) @ self.W
        self.hidden = (sums.hidden * across[:, None, :, None]).flatten(2).flatten(0, 1)
        scaled = self.W * precision.unsqueeze(1)
        self.cross = (sums.cross * scaled[:, :, None, None]).flatten(1, 2)  # (K, P₁, q)
        self.own = sums.own * precision[:, None, None]  # (K, q, q)

    def bend(self, step: Tensor) -> Tensor:
        """Return ``xᵀGx``."""
        h, o = parted(self.network, step)
        across = torch.einsum("h,khq,kq->", h, self.cross, o)
        return h @ (self.hidden @ h) + 2 * across + torch.einsum("kq,kqr,kr->", o, self.own, o)

    def along(self, covariance: Tensor) -> Tensor:  # (P₁, P₁) -> (K,)
        """Return the trace of each output's part in the Gram matrix of hidden weights with it."""
        products = self.sums.hidden * covariance.view_as(self.sums.hidden)
        Q = products.sum((1, 3))
        return self.precision * torch.einsum("kj,ji,ki->k", self.W, Q, self.W)


class InArrow(WeightPosterior):
    """From a Gram matrix that is an arrow."""

    def __init__(self, gram: Arrow, variances: Tensor, damping: float = 0.0) -> None:
        self.network = gram.network
        self.deviations = (variances / (1 + damping)).sqrt()
        h, o = parted(self.network, self.deviations)
        self.own = factorised(gram.own * o.unsqueeze(1) * o.unsqueeze(2))  # (K, q, q)
        cross = gram.cross * h.unsqueeze(1) * o.unsqueeze(1)
        self.cross = solve_triangular(self.own, cross.mT, upper=False)  # (K, q, P₁)
        flat = self.cross.flatten(0, 1)
        self.hidden = factorised(gram.hidden * h * h.unsqueeze(1) - flat.mT @ flat)  # (P₁, P₁)
        self.logdet = 2 * (_logs(self.own) + _logs(self.hidden))
        self._open: Tensor | None = None
        self._inner: Tensor | None = None
        self._passed: Tensor | None = None

    def forget(self) -> None:
        """Drop what can be computed again."""
        self._open = self._inner = self._passed = None

    def _white(self, X: Tensor) -> tuple[Tensor, Tensor]:  # (m, P) -> (P₁, m), (K, q, m)
        h, o = parted(self.network, X * self.deviations)
        y = solve_triangular(self.own, o.movedim(0, -1), upper=False)
        rest = h.mT - self.cross.flatten(0, 1).mT @ y.flatten(0, 1)
        return solve_triangular(self.hidden, rest, upper=False), y

    def _back(self, h: Tensor, o: Tensor) -> Tensor:  # (P₁, m), (K, q, m) -> (m, P)
        x = solve_triangular(self.hidden.mT, h, upper=True)
        rest = o - (self.cross.flatten(0, 1) @ x).view_as(o)
        y = solve_triangular(self.own.mT, rest, upper=True)
        return self.deviations * joined(self.network, x.mT, y.movedim(-1, 0))

    def solve(self, g: Tensor) -> Tensor:
        """Return the covariance times g."""
        return self._back(*self._white(g.unsqueeze(0))).squeeze(0)

    def open(self) -> Tensor:
        """Return each weight's variance as a share of the prior's."""
        if self._open is None:
            eye = torch.eye(self.own.shape[-1], dtype=self.own.dtype, device=self.own.device)
            inverse = solve_triangular(self.own, eye.expand_as(self.own), upper=False)
            own = (inverse * ((eye + self._passed_on()) @ inverse)).sum(1)
            self._open = joined(self.network, self._covariance().diagonal(), own)
        return self._open

    def leverage(self, gram: Arrow) -> Tensor:  # (K,)
        """Return how many weights each output's rows determine."""
        hidden, own = parted(self.network, 1 - self.open())
        if len(own) == 1:
            return own.sum(1) + hidden.sum()
        h, _ = parted(self.network, self.deviations)
        covariance = self._covariance() * h * h.unsqueeze(1)
        passed = self._passed_on().diagonal(dim1=-2, dim2=-1)
        return own.sum(1) - passed.sum(1) + gram.along(covariance)

    def _covariance(self) -> Tensor:  # (P₁, P₁)
        """Return that of hidden weights, in units of the prior's deviations."""
        if self._inner is None:
            self._inner = torch.cholesky_inverse(self.hidden)
        return self._inner

    def _passed_on(self) -> Tensor:  # (K, q, q)
        """Return the part of own weights' variance that is the hidden weights', whitened."""
        if self._passed is None:
            K, q, size = self.cross.shape
            passed = (self.cross.flatten(0, 1) @ self._covariance()).view(K, q, size)
            self._passed = passed @ self.cross.mT
        return self._passed

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return a draw, less the mean."""
        z = normal(len(self.deviations), generator, self.deviations)
        h, o = parted(self.network, z)
        return self._back(h.unsqueeze(-1), o.unsqueeze(-1)).squeeze(0)

    def variance(self, rows: Tensor) -> Tensor:
        """Return the variance of the outputs that these are the rows of."""
        h, o = self._white(rows)
        return h.square().sum(0) + o.square().sum((0, 1))

    def covariance(self, rows: Tensor) -> Tensor:
        """Return their covariance."""
        white = self._together(rows.flatten(0, -2)).unflatten(1, rows.shape[:-1])
        white = white.movedim(0, -1)
        return white @ white.mT

    def within_samples(self, rows: Tensor) -> Tensor:
        """Return the covariance of each sample's outputs."""
        white = self._together(rows.flatten(0, 1)).unflatten(1, rows.shape[:2])
        return torch.einsum("pkn,pln->nkl", white, white)

    def _together(self, rows: Tensor) -> Tensor:  # (m, P) -> (P, m)
        h, o = self._white(rows)
        return torch.cat([h, o.flatten(0, 1)])


def _logs(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum()


def parted(network: Perceptron, w: Tensor) -> tuple[Tensor, Tensor]:  # (…, P₁), (…, K, q)
    """Return the hidden weights of a vector, and each output's own."""
    hidden, out, path = network.split(w)
    return hidden.flatten(-2), torch.cat([out, path], -1)


def joined(network: Perceptron, hidden: Tensor, own: Tensor) -> Tensor:  # (…, P)
    """Return the vector that has these parts."""
    out, path = own.split([network.hidden[-1] + 1, network.inputs], -1)
    return torch.cat([hidden, out.flatten(-2), path.flatten(-2)], -1)
