"""Observations: what is seen of targets, given a network's outputs; a class for each likelihood.

Outputs are Gaussian, by the posterior and over networks. Here they become means, deviations,
intervals and draws of new observations, in the units of the targets. Each class also knows which
targets it fits, and what it would say of another one's predictions of samples that are left out: if
that is no more, it need not be learned.
"""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.stats import nbinom, norm, t  # type: ignore[import-untyped]
from torch import Tensor

from adareg.core.evidence import counts, student
from adareg.core.evidence.correlated import CorrelatedNoise
from adareg.core.evidence.counts import Counts
from adareg.core.evidence.learn import Learned, Table
from adareg.core.evidence.student import Student
from adareg.core.evidence.tabular import LEAST_NOISE, TableLikelihood, TargetNoise, left_out
from adareg.sklearn._data import Array
from adareg.sklearn._standardise import Targets

#: Of targets with a density no more than this share may be one value.
_TIED = 0.1

#: A mean count that another likelihood predicts is taken as at least this share of the mean.
_LEAST_SHARE = 0.05

#: Halvings until an interval's end is known.
_HALVINGS = 60


class Observations(ABC):
    """Targets in their units, and a likelihood of them as a network has them.

    Args:
        targets: how they are standardised.
        likelihood: of standardised targets.
    """

    #: As a user calls it.
    name: ClassVar[str]

    #: The state of networks with Gaussian noise is a start for this one.
    near_gaussian: ClassVar[bool] = True

    #: Parameters of each target beyond those of Gaussian noise, in the choice.
    more: ClassVar[int] = 0

    #: Their mean is that of the outputs, whatever the variance of these.
    linear: ClassVar[bool] = True

    def __init__(self, targets: Targets, likelihood: TableLikelihood) -> None:
        self.targets, self.likelihood = targets, likelihood

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Self:
        """Measure training targets, (n, K)."""
        raise NotImplementedError

    @classmethod
    def misfit(cls, Y: Array) -> str | None:
        """Return what targets should be, and are not."""
        return None

    @classmethod
    def worth_a_look(cls, Y: Array) -> bool:
        """Return if nothing about the targets alone speaks against it."""
        return cls.misfit(Y) is None

    def prepared(self, Y: Array) -> Tensor:
        """Return targets as the likelihood takes them."""
        return self.targets.standardise(Y)

    @property
    def units(self) -> float:
        """The log density of a sample is so much less than that of standardised targets."""
        return float(np.log(self.targets.scale).sum())

    def promise(self, left_out: Tensor, table: Table) -> float:
        """Return the log-likelihood, in units of the targets, of another one's predictions.

        Args:
            left_out: predictions of samples that are left out, (n, K), as the likelihood has them.
            table: with targets as the likelihood has them.
        """
        return -np.inf

    # Of new observations

    def mean(self, mean: Array, variance: Array) -> Array:
        """Return their mean, at outputs of this mean and variance."""
        return self.targets.restore(mean)

    def variance(self, mean: Array, variance: Array, noise: Array) -> Array:
        """Return their variance."""
        return (variance + self.noise(noise)) * self.targets.scale**2

    def slope(self, mean: Array) -> Array:
        """Return the derivative of observations by outputs."""
        return np.broadcast_to(self.targets.scale, mean.shape)

    def noise(self, noise: Array) -> Array:  # (K,)
        """Return the variance of each target around its output, standardised."""
        return noise

    def covariance(self, noise: Array) -> Array:  # (K, K)
        """Return the covariance of the targets' noise, in their units."""
        return np.diag(self.noise(noise) * self.targets.scale**2)

    def quantile(self, share: float, mean: Array, variance: Array, noise: Array) -> Array:
        """Return what a share of observations is below of."""
        reach = float(norm.ppf(share)) * np.sqrt(self.variance(mean, variance, noise))
        found: Array = self.mean(mean, variance) + reach
        return found

    def draw(self, outputs: Array, noise: Array, random: Any) -> Array:
        """Return observations of drawn outputs, (draws, n, K)."""
        raise NotImplementedError


class GaussianObservations(Observations):
    """With Gaussian noise, of each target its own."""

    name = "gaussian"

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Self:
        """Measure training targets."""
        return cls(Targets.of(Y, weight), TargetNoise())

    def promise(self, left_out: Tensor, table: Table) -> float:
        """Return that of the likeliest variances."""
        variances = table.weight @ (table.Y - left_out).square() / table.size
        worth = table.size * (2 * np.pi * np.e * variances.clamp(min=LEAST_NOISE)).log().sum() / 2
        return float(-worth) - table.size * self.units

    def noise(self, noise: Array) -> Array:
        """Return the diagonal of a covariance."""
        return np.diagonal(noise)

    def covariance(self, noise: Array) -> Array:
        """Return all of it."""
        found: Array = noise * np.outer(self.targets.scale, self.targets.scale)
        return found

    def draw(self, outputs: Array, noise: Array, random: Any) -> Array:
        """Return observations whose noise is correlated."""
        root = np.linalg.cholesky(noise)
        return self.targets.restore(outputs + random.standard_normal(outputs.shape) @ root.T)


class CorrelatedObservations(GaussianObservations):
    """With Gaussian noise of a full covariance, which networks are learned under.

    Not chosen by itself: on development data all targets together were likelier, each was not.
    """

    name = "correlated"

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Self:
        """Measure training targets."""
        return cls(Targets.of(Y, weight), CorrelatedNoise())

    @classmethod
    def misfit(cls, Y: Array) -> str | None:
        """Return that one target is too few."""
        return "several targets" if Y.shape[1] == 1 else None

    @classmethod
    def worth_a_look(cls, Y: Array) -> bool:
        """Return False."""
        return False


class StudentObservations(Observations):
    """With Student's t as noise, of each target its own: for outliers."""

    name = "student"
    more = 1

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Self:
        """Measure training targets; a scale is at least that of their rounding."""
        targets = Targets.of(Y, weight)
        least = np.maximum((_rounding(Y) / targets.scale) ** 2 / 12, LEAST_NOISE)
        return cls(targets, Student(torch.from_numpy(least)))

    @classmethod
    def worth_a_look(cls, Y: Array) -> bool:
        """Return if hardly any targets are tied: else densities can be as high as you like."""
        return all(np.unique(y, return_counts=True)[1].max() <= _TIED * len(y) for y in Y.T)

    def promise(self, left_out: Tensor, table: Table) -> float:
        """Return that of the likeliest scales and degrees of freedom."""
        assert isinstance(self.likelihood, Student)
        r = table.Y - left_out
        _, worth = student.likeliest(r, table.weight, self.likelihood.least.to(r))
        return float(worth.sum()) - table.size * self.units

    def noise(self, noise: Array) -> Array:
        """Return ``s²·ν/(ν − 2)``."""
        square, degrees = noise
        found: Array = square * degrees / (degrees - 2)
        return found

    def quantile(self, share: float, mean: Array, variance: Array, noise: Array) -> Array:
        """Return that of Student's t, averaged over outputs."""
        centres, weights = _nodes(mean, variance)
        scale, degrees = np.sqrt(noise[0]), noise[1]
        most = 100 * np.sqrt(variance + self.noise(noise))

        def below(x: Array) -> Array:
            return np.einsum("q,qnk->nk", weights, t.cdf((x - centres) / scale, degrees))

        return self.targets.restore(_solve(below, share, mean - most, mean + most))

    def draw(self, outputs: Array, noise: Array, random: Any) -> Array:
        """Return observations with Student's noise."""
        r = np.sqrt(noise[0]) * random.standard_t(noise[1], outputs.shape)
        return self.targets.restore(outputs + r)


class CountObservations(Observations):
    """Counts, by a negative binomial."""

    name = "counts"
    near_gaussian = False
    linear = False

    @classmethod
    def of(cls, Y: Array, weight: Array) -> Self:
        """Measure training targets, which stay as they are."""
        none = Targets(np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
        return cls(none, Counts.of(torch.from_numpy(Y), torch.from_numpy(weight)))

    @classmethod
    def misfit(cls, Y: Array) -> str | None:
        """Return that they are no counts."""
        fits = (Y >= 0).all() and np.array_equal(Y, np.round(Y))
        return None if fits else "integers of zero and more"

    @classmethod
    def worth_a_look(cls, Y: Array) -> bool:
        """Return if some are none or one: other integers are as likely rounded measurements."""
        return cls.misfit(Y) is None and bool((Y <= 1).any(0).all())

    @property
    def _link(self) -> counts.Link:
        assert isinstance(self.likelihood, Counts)
        return self.likelihood.link

    def promise(self, left_out: Tensor, table: Table) -> float:
        """Return that of the likeliest dispersions, at predictions or at the mean."""
        base, alone = self._link.base.exp(), torch.zeros(1).to(table.weight)
        means = torch.maximum(left_out, _LEAST_SHARE * base), base.expand_as(left_out)
        each = [counts.likeliest(m.log()[None], table.Y, table.weight, alone)[1] for m in means]
        return float(torch.stack(each).amax(0).sum())

    def _means(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return μ at nodes of the outputs, and the nodes' weights."""
        centres, weights = _nodes(mean, variance)
        return self._link.mean(torch.from_numpy(centres)).numpy(), weights

    def mean(self, mean: Array, variance: Array) -> Array:
        """Return μ, averaged over outputs."""
        means, weights = self._means(mean, variance)
        return np.einsum("q,qnk->nk", weights, means)

    def variance(self, mean: Array, variance: Array, noise: Array) -> Array:
        """Return ``E[μ + αμ²] + Var[μ]``."""
        means, weights = self._means(mean, variance)
        second = np.einsum("q,qnk->nk", weights, means + (1 + noise) * means**2)
        return second - self.mean(mean, variance) ** 2

    def slope(self, mean: Array) -> Array:
        """Return dμ."""
        o = torch.from_numpy(mean)
        found: Array = (self._link.mean(o) * self._link.slope(o)).numpy()
        return found

    def quantile(self, share: float, mean: Array, variance: Array, noise: Array) -> Array:
        """Return the smallest count that at least a share of observations do not exceed."""
        means, weights = self._means(mean, variance)
        r = 1 / noise
        of_none = r / (r + means)
        most = means.max(0) + 100 * np.sqrt(self.variance(mean, variance, noise)) + 100

        def below(x: Array) -> Array:
            return np.einsum("q,qnk->nk", weights, nbinom.cdf(np.floor(x), r, of_none))

        return np.floor(_solve(below, share, np.full_like(most, -1.0), most) + 1e-6)

    def draw(self, outputs: Array, noise: Array, random: Any) -> Array:
        """Return counts."""
        means = self._link.mean(torch.from_numpy(outputs)).numpy()
        found: Array = random.poisson(means * random.gamma(1 / noise, noise, means.shape))
        return found.astype(np.float64)


#: By the name that a user may give; the first one is learned first.
OBSERVATIONS: dict[str, type[Observations]] = {
    one.name: one
    for one in (
        GaussianObservations,
        CorrelatedObservations,
        StudentObservations,
        CountObservations,
    )
}


def promising(
    first: Learned, table: Table, Y: Array, weight: Array, least: float
) -> list[Observations]:
    """Return those that say more than Gaussian noise of its predictions of samples left out.

    Args:
        first: a network that was learned with Gaussian noise.
        table: what it was learned from.
        Y: the targets, in their units.
        weight: of each sample.
        least: so many nats more.
    """
    kinds = [kind for kind in OBSERVATIONS.values() if kind.worth_a_look(Y)]
    known = GaussianObservations.of(Y, weight)
    predicted = left_out(first.network(first.state.w, table.X), table.Y, first.leverage).cpu()
    restored = torch.from_numpy(known.targets.restore(predicted.numpy()))
    found: list[Observations] = []
    of_first = -np.inf, -np.inf  # as it predicts, and as it was scored
    for one in (kind.of(Y, weight) for kind in kinds):
        cpu = Table(table.X, one.prepared(Y), torch.from_numpy(weight))
        worth = one.promise(predicted if one.near_gaussian else restored, cpu)
        worth -= one.more * Y.shape[1] * np.log(table.size) / 2
        if isinstance(one, GaussianObservations):
            of_first = worth, min(worth, first.score - table.size * one.units)
        elif worth > of_first[not one.near_gaussian] + least:
            found.append(one)
    return found


def _rounding(Y: Array) -> Array:  # (K,)
    """Return the smallest difference between values of each target."""
    gaps = [np.diff(np.unique(y)) for y in Y.T]
    return np.array([gap.min() if len(gap) else 0.0 for gap in gaps])


def _nodes(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return points of Gaussians, (nodes, n, K), and their weights."""
    z, log_w = counts.nodes(torch.zeros((), dtype=torch.float64))
    return mean + z.numpy()[:, None, None] * np.sqrt(variance), np.exp(log_w.numpy())


def _solve(below: Any, share: float, low: Array, high: Array) -> Array:
    """Return where a distribution reaches a share, by halving."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        under = below(middle) < share
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return high
