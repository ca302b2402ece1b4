"""Every form of the curvature, and of its posterior, held against dense Jacobians."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adareg.core.evidence.classes import Classes
from adareg.core.evidence.information import (
    Information,
    OfClasses,
    OfLayers,
    OfOutputs,
    OfRows,
    information,
)
from adareg.core.evidence.perceptron import Perceptron
from adareg.core.evidence.spread import Spread
from adareg.core.evidence.tabular import TableLikelihood, TargetNoise

DOUBLE = torch.float64
SAMPLES, OUTPUTS = 23, 3

Case = tuple[TableLikelihood, Callable[[Perceptron], Information], tuple[int, ...]]

CASES: dict[str, Case] = {
    "targets in rows": (TargetNoise(), lambda net: OfRows(SAMPLES, True), (4,)),
    "targets in an arrow": (TargetNoise(), OfOutputs, (4,)),
    "targets in layers": (TargetNoise(), lambda net: OfLayers(True), (4, 2)),
    "classes in rows": (Classes(), lambda net: OfRows(SAMPLES, False), (4,)),
    "classes": (Classes(), OfClasses, (4,)),
    "classes in layers": (Classes(), lambda net: OfLayers(False), (3, 2)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Dense:
    """A table's curvature, by autograd."""

    def __init__(self, case: Case) -> None:
        self.likelihood, make, hidden = case
        self.network = Perceptron(2, OUTPUTS, hidden)
        self.w = normal(self.network.size, seed=1)
        self.X, self.weight = normal(SAMPLES, 2, seed=2), normal(SAMPLES, seed=3).exp()
        self.noise = torch.tensor([0.5, 0.2, 1.5], dtype=DOUBLE)
        self.found = make(self.network)
        for part in (slice(0, 10), slice(10, SAMPLES)):
            near = self.network.linearise(self.w, self.X[part])
            roots = self.likelihood.roots(near.outputs, self.noise)
            self.found.add(near, roots, self.weight[part])
        self.found.close()
        roots = self.likelihood.roots(self.network(self.w, self.X), self.noise)
        jacobian = self.jacobian(self.X)
        rows = torch.einsum("rnk,nkp->rnp", roots, jacobian) * self.weight.sqrt()[:, None]
        self.gram = torch.einsum("rnp,rnq->rpq", rows, rows)

    def jacobian(self, X: Tensor) -> Tensor:  # (n, K, P)
        found: Tensor = torch.func.jacrev(lambda v: self.network(v, X))(self.w)
        return found


@pytest.fixture(params=sorted(CASES), scope="module")
def dense(request: pytest.FixtureRequest) -> Dense:
    return Dense(CASES[request.param])


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_posterior_is_that_of_dense_algebra(dense: Dense, damping: float) -> None:
    variances = normal(dense.network.size, seed=4).exp()
    prior = (1 + damping) / variances
    precision = dense.gram.sum(0) + torch.diag(prior)
    covariance = torch.linalg.inv(precision)
    posterior = dense.found.posterior(variances, damping)
    g = normal(dense.network.size, seed=5)
    assert torch.allclose(posterior.solve(g), covariance @ g)
    assert torch.allclose(posterior.open(), covariance.diagonal() * prior)
    assert torch.allclose(posterior.logdet, torch.logdet(precision) - prior.log().sum())
    rows = dense.jacobian(normal(6, 2, seed=6)).movedim(0, 1)  # (K, n, P)
    expected = torch.einsum("knp,pq,lnq->nkl", rows, covariance, rows)
    assert torch.allclose(posterior.within_samples(rows), expected)
    expected = rows @ covariance @ rows.mT
    assert torch.allclose(posterior.covariance(rows), expected)
    assert torch.allclose(posterior.variance(rows[1]), expected[1].diagonal())


@pytest.mark.parametrize("name", ["targets in an arrow", "classes"])
def test_folded_posteriors_have_the_variances_of_dense_algebra(name: str) -> None:
    dense = Dense(CASES[name])
    variances = normal(dense.network.size, seed=4).exp()
    covariance = torch.linalg.inv(dense.gram.sum(0) + torch.diag(1 / variances))
    root, X = normal(2, OUTPUTS, OUTPUTS, seed=7), normal(300, 2, seed=6)
    metrics = root @ root.mT
    found = Spread(dense.network, dense.w, covariance, metrics)
    rows = dense.jacobian(X)
    within = rows @ covariance @ rows.mT
    expected = torch.einsum("mkl,nkl->nm", metrics, within)
    near = dense.network.linearise(dense.w, X)
    assert torch.allclose(found.variances(near), expected)


def test_leverage_and_bend_are_those_of_dense_algebra(dense: Dense) -> None:
    variances = normal(dense.network.size, seed=4).exp()
    covariance = torch.linalg.inv(dense.gram.sum(0) + torch.diag(1 / variances))
    each = (dense.gram * covariance).sum((1, 2))
    expected = each if dense.likelihood.by_direction else each.sum()[None]
    posterior = dense.found.posterior(variances)
    assert torch.allclose(dense.found.leverage(posterior), expected)
    step = normal(dense.network.size, seed=5)
    assert torch.allclose(dense.found.bend(step), step @ dense.gram.sum(0) @ step)


def test_draws_have_the_posterior_covariance(dense: Dense) -> None:
    variances = normal(dense.network.size, seed=4).exp()
    covariance = torch.linalg.inv(dense.gram.sum(0) + torch.diag(1 / variances))
    posterior, generator = dense.found.posterior(variances), torch.Generator().manual_seed(0)
    drawn = torch.stack([posterior.draw(generator) for _ in range(3000)])
    white = torch.linalg.cholesky(torch.linalg.inv(covariance)).mT @ drawn.mT
    assert torch.allclose(white.cov(), torch.eye(len(white), dtype=DOUBLE), atol=0.12)


@pytest.mark.parametrize(
    ("likelihood", "hidden", "samples", "expected"),
    [
        (TargetNoise(), (4,), 100, OfOutputs),
        (Classes(), (4,), 100, OfClasses),
        (TargetNoise(), (4, 4), 100, OfLayers),
        (TargetNoise(), (4,), 1, OfRows),
    ],
)
def test_the_cheapest_form_is_taken(
    likelihood: TableLikelihood, hidden: tuple[int, ...], samples: int, expected: type[Information]
) -> None:
    found = information(Perceptron(2, 2, hidden), likelihood, samples, 2)
    assert isinstance(found, expected)
