"""The curvature of all samples in a network's weights.

It is kept in the form that is cheapest: as rows, one for each sample and direction in output
space, where these are few; as an arrow where outputs have independent noise and there is one
hidden layer; or as a Gram matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from adareg.core.evidence.arrow import Arrow, InArrow, joined
from adareg.core.evidence.perceptron import Linearised, Perceptron
from adareg.core.evidence.shallow import Products
from adareg.core.evidence.tabular import TableLikelihood
from adareg.core.evidence.weights import InRows, InWeights, WeightPosterior

#: Work with so many rows costs as much as that with this many times as many weights.
_ROWS = 2


class Information(ABC):
    """Sums over samples, and the posterior that follows from them under a prior."""

    @abstractmethod
    def add(self, near: Linearised, roots: Tensor, weight: Tensor) -> None:
        """Add samples of some weights (n,), with directions (R, n, K) in output space."""

    @abstractmethod
    def close(self) -> None:
        """Take note that all samples are there."""

    @abstractmethod
    def posterior(self, variances: Tensor, damping: float = 0.0) -> WeightPosterior:
        """Return the posterior of the weights under a prior."""

    @abstractmethod
    def leverage(self, posterior: WeightPosterior) -> Tensor:  # (R,), or (1,) for all together
        """Return how many weights each direction's rows determine."""

    @abstractmethod
    def bend(self, step: Tensor) -> Tensor:
        """Return the squared length of a step, in units of what the samples say."""


def information(
    network: Perceptron, likelihood: TableLikelihood, samples: int, directions: int
) -> Information:
    """Return information without samples, in the form for so many samples and directions."""
    form = _form(network, likelihood, samples, directions)
    if form is OfRows:
        return OfRows(samples, likelihood.by_direction)
    if form is OfLayers:
        return OfLayers(likelihood.by_direction)
    return OfOutputs(network) if form is OfOutputs else OfClasses(network)


def _form(
    network: Perceptron, likelihood: TableLikelihood, samples: int, directions: int
) -> type[Information]:
    shallow = len(network.hidden) == 1
    constant = shallow and likelihood.constant
    p, e = network.shapes[0]
    if _ROWS * samples * directions < (p * e if constant else network.size):
        return OfRows
    if constant:
        return OfOutputs
    return OfClasses if shallow and not likelihood.by_direction else OfLayers


def cost(network: Perceptron, likelihood: TableLikelihood, samples: int, directions: int) -> float:
    """Return about how many multiplications a step takes, in the form that is cheapest.

    A third to a half of the steps refit the prior.
    """
    form = _form(network, likelihood, samples, directions)
    (p, e), size, rows = network.shapes[0], network.size, samples * directions
    if form is OfRows:
        return rows**2 * (1.2 * size + rows / 2)
    sums = samples * (p * e) ** 2 / 4
    if form is OfOutputs:
        return (p * e) ** 2 * (2 / 3 * p * e + 3.5 * (size - p * e)) + sums
    return size**2 * (0.4 * size + rows / 6) + (sums if form is OfClasses else rows * size**2)


class OfRows(Information):
    """Rows of few samples."""

    def __init__(self, samples: int, by_direction: bool) -> None:
        self._samples, self._by_direction = samples, by_direction
        self._parts: list[Tensor] = []
        self._known: tuple[Tensor, Tensor] | None = None

    def add(self, near: Linearised, roots: Tensor, weight: Tensor) -> None:
        """Add samples."""
        self._parts.append(near.rows(roots * weight.sqrt().unsqueeze(1)))

    def close(self) -> None:
        """Take note that all samples are there."""
        self.rows = torch.cat(self._parts, 1).flatten(0, 1)

    def _kernel(self, variances: Tensor) -> Tensor:
        """Return the prior covariance of the rows' outputs."""
        if self._known is None or not torch.equal(self._known[0], variances):
            self._known = variances, (self.rows * variances) @ self.rows.mT
        return self._known[1]

    def posterior(self, variances: Tensor, damping: float = 0.0) -> InRows:
        """Return the posterior of the weights under a prior."""
        return InRows(self.rows, variances, damping, self._kernel(variances))

    def leverage(self, posterior: WeightPosterior) -> Tensor:
        """Return how many weights each direction's rows determine."""
        assert isinstance(posterior, InRows)
        each = posterior.leverage()
        return each.view(-1, self._samples).sum(1) if self._by_direction else each.sum()[None]

    def bend(self, step: Tensor) -> Tensor:
        """Return the squared length of a step, in units of what the samples say."""
        return (self.rows @ step).square().sum()


class OfOutputs(Information):
    """One hidden layer, outputs with independent noise that is the same for all samples."""

    def __init__(self, network: Perceptron) -> None:
        self._network, self._products = network, Products(network, constant=True)

    def add(self, near: Linearised, roots: Tensor, weight: Tensor) -> None:
        """Add samples."""
        self._products.add(near, roots, weight)
        self._precision = roots[:, 0].diagonal().square()
        self._layers = near.weights

    def close(self) -> None:
        """Take note that all samples are there."""
        w = torch.cat([W.flatten() for W in self._layers])
        self.gram = Arrow(self._network, w, self._products.sums(), self._precision)

    def posterior(self, variances: Tensor, damping: float = 0.0) -> InArrow:
        """Return the posterior of the weights under a prior."""
        return InArrow(self.gram, variances, damping)

    def leverage(self, posterior: WeightPosterior) -> Tensor:
        """Return how many weights each output's rows determine."""
        assert isinstance(posterior, InArrow)
        return posterior.leverage(self.gram)

    def bend(self, step: Tensor) -> Tensor:
        """Return the squared length of a step, in units of what the samples say."""
        return self.gram.bend(step)


class _OfGram(Information):
    """A Gram matrix of all rows, P x P."""

    gram: Tensor

    def posterior(self, variances: Tensor, damping: float = 0.0) -> InWeights:
        """Return the posterior of the weights under a prior."""
        return InWeights(self.gram, variances, damping)

    def leverage(self, posterior: WeightPosterior) -> Tensor:
        """Return how many weights the rows determine."""
        return (1 - posterior.open()).sum()[None]

    def bend(self, step: Tensor) -> Tensor:
        """Return the squared length of a step, in units of what the samples say."""
        return step @ (self.gram @ step)


class OfClasses(_OfGram):
    """One hidden layer, and a curvature of its own at each sample."""

    def __init__(self, network: Perceptron) -> None:
        self._network, self._products = network, Products(network, constant=False)

    def add(self, near: Linearised, roots: Tensor, weight: Tensor) -> None:
        """Add samples."""
        self._products.add(near, torch.einsum("rnk,rnl->nkl", roots, roots), weight)

    def close(self) -> None:
        """Put the Gram matrix together."""
        sums, K = self._products.sums(), self._network.outputs
        hidden, cross = sums.hidden.flatten(2).flatten(0, 1), sums.cross.flatten(1, 2)
        k, o = torch.triu_indices(K, K, device=hidden.device)
        own = hidden.new_empty(K, K, *sums.own.shape[1:])
        own[k, o] = own[o, k] = sums.own
        self.gram = _together(self._network, hidden, cross, own)


def _together(network: Perceptron, hidden: Tensor, cross: Tensor, own: Tensor) -> Tensor:
    """Return a matrix (P, P) from its blocks (P₁, P₁), (K, P₁, q) and (K, K, q, q)."""
    top = joined(network, hidden, cross.movedim(0, 1))  # (P₁, P)
    aside = joined(network, cross.mT, own.movedim(1, 2))  # (K, q, P)
    return joined(network, top.mT, aside.movedim(-1, 0))


class OfLayers(_OfGram):
    """Any network."""

    def __init__(self, by_direction: bool) -> None:
        self._by_direction = by_direction
        self._blocks: list[Tensor] = []

    def add(self, near: Linearised, roots: Tensor, weight: Tensor) -> None:
        """Add samples."""
        M = near.rows(roots * weight.sqrt().unsqueeze(1))
        M = M if self._by_direction else M.flatten(0, 1).unsqueeze(0)
        blocks = [rows.mT @ rows for rows in M]
        if self._blocks:
            blocks = [old.add_(new) for old, new in zip(self._blocks, blocks, strict=True)]
        self._blocks = blocks

    def close(self) -> None:
        """Sum over directions."""
        self.gram = torch.stack(self._blocks).sum(0)

    def leverage(self, posterior: WeightPosterior) -> Tensor:
        """Return how many weights each direction's rows determine."""
        if len(self._blocks) == 1:
            return super().leverage(posterior)
        assert isinstance(posterior, InWeights)
        r = posterior.deviations
        covariance = posterior.inverse() * r * r.unsqueeze(1)
        return torch.stack([(block * covariance).sum() for block in self._blocks])
