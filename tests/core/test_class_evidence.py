"""Likelihoods of classes against autograd, quadrature, and learning again without a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from adareg.core.evidence.classes import (
    Classes,
    ClassLikelihood,
    Labels,
    mix,
    sharpen,
    sharpness,
)
from adareg.core.evidence.constants import DEFAULTS
from adareg.core.evidence.learn import Learned, Problem, State, Table, covariances
from adareg.core.evidence.likelihood import Bernoulli, Likelihood, as_likelihood
from adareg.core.evidence.perceptron import Perceptron

DOUBLE = torch.float64
ONE = torch.ones((), dtype=DOUBLE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def cases() -> list[tuple[ClassLikelihood, Tensor, Tensor]]:
    """Likelihoods with outputs and targets: three classes, two, and two labels."""
    return [
        (Classes(), 2 * normal(8, 3), torch.arange(8) % 3),
        (Classes(), 2 * normal(8, 1), torch.arange(8) % 2),
        (Labels(), 2 * normal(8, 2), (normal(8, 2, seed=1) > 0).to(DOUBLE)),
    ]


@pytest.mark.parametrize(("likelihood", "outputs", "targets"), cases())
def test_log_likelihood_is_the_loss(
    likelihood: ClassLikelihood, outputs: Tensor, targets: Tensor
) -> None:
    if isinstance(likelihood, Labels):
        loss = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)
    elif outputs.shape[1] == 1:
        loss = binary_cross_entropy_with_logits(outputs[:, 0], targets.to(DOUBLE), reduction="none")
    else:
        loss = cross_entropy(outputs, targets, reduction="none")
    assert torch.allclose(likelihood.log_likelihood(outputs, targets, ONE), -loss)


@pytest.mark.parametrize(("likelihood", "outputs", "targets"), cases())
def test_curvature_and_error_are_derivatives_of_the_log_likelihood(
    likelihood: ClassLikelihood, outputs: Tensor, targets: Tensor
) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return -likelihood.log_likelihood(o.unsqueeze(0), y.unsqueeze(0), ONE).sum()

    curvature = likelihood.curvature(outputs)
    roots = likelihood.roots(outputs, ONE)
    for i, (o, y) in enumerate(zip(outputs, targets, strict=True)):
        expected = torch.func.hessian(loss)(o, y)
        assert torch.allclose(curvature[i], expected, atol=1e-12)
        assert torch.allclose(roots[:, i].mT @ roots[:, i], expected, atol=1e-12)
        assert torch.allclose(
            likelihood.error(outputs, targets)[i], torch.func.grad(loss)(o, y), atol=1e-12
        )


@pytest.mark.parametrize("likelihood", [Classes(draws=2), Labels(draws=2)])
def test_random_roots_have_the_curvature_in_the_mean(likelihood: ClassLikelihood) -> None:
    outputs = normal(1, 4).expand(20000, 4)
    roots = likelihood.roots(outputs, ONE)
    assert roots.shape == (2, 20000, 4)
    found = torch.einsum("rnk,rnl->kl", roots, roots) / 20000
    assert torch.allclose(found, likelihood.curvature(outputs[:1])[0], atol=0.02)


@pytest.mark.parametrize("mean", [-3.0, 0.4, 2.0])
@pytest.mark.parametrize("variance", [0.01, 1.0, 9.0])
def test_averages_are_those_of_quadrature(mean: float, variance: float) -> None:
    def density(f: float) -> float:
        return math.exp(-((f - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    reach = 12 * math.sqrt(variance)
    expected, _ = quad(
        lambda f: density(f) / (1 + math.exp(-f)), mean - reach, mean + reach, points=[mean]
    )
    logits, spread = (torch.full((1, 1), x, dtype=DOUBLE) for x in (mean, variance))
    for log_p in (Classes().average(logits, spread), Labels().average(logits, spread)[:, 0]):
        assert float(log_p[0, 1].exp()) == pytest.approx(expected, abs=0.02)
        assert float(log_p.exp().sum()) == pytest.approx(1)


def trace(likelihood: ClassLikelihood, covariance: Tensor) -> Tensor:
    """Return the variances that a likelihood asks for, of a covariance of logits."""
    return torch.einsum("nkl,mkl->nm", covariance, likelihood.metrics(covariance.shape[-1]))


def test_average_of_several_classes_lies_between_the_mean_and_draws_of_logits() -> None:
    logits, draws = normal(1, 3), normal(200000, 3, seed=2)
    drawn = (logits + draws * math.sqrt(2.0)).softmax(-1).mean(0)
    variance = trace(Classes(), 2.0 * torch.eye(3, dtype=DOUBLE).unsqueeze(0))
    found = Classes().average(logits, variance).exp()[0]
    for k in range(3):
        low, high = sorted([float(drawn[k]), float(logits.softmax(-1)[0, k])])
        assert low < float(found[k]) < high


def test_average_ignores_what_logits_have_in_common() -> None:
    logits, root = normal(1, 3), normal(3, 3, seed=1)
    covariance = (root @ root.mT).unsqueeze(0)
    likelihood = Classes()
    variance, wider = trace(likelihood, covariance), trace(likelihood, covariance + 5)
    assert torch.allclose(
        likelihood.average(logits, variance), likelihood.average(logits + 3, wider)
    )


def test_variances_of_classes_are_those_of_contrasts_and_of_labels_their_own() -> None:
    root = normal(3, 3, seed=1)
    covariance = (root @ root.mT).unsqueeze(0)
    contrasts = torch.linalg.qr(torch.cat([torch.ones(3, 1, dtype=DOUBLE), root[:, :2]], 1)).Q
    expected = (contrasts[:, 1:].mT @ covariance[0] @ contrasts[:, 1:]).diagonal().mean()
    assert torch.allclose(trace(Classes(), covariance), expected)
    assert torch.allclose(trace(Classes(), covariance[:, :1, :1]), covariance[:, :1, 0])
    assert torch.allclose(trace(Labels(), covariance)[0], covariance[0].diagonal())


def linear(likelihood: ClassLikelihood, X: Tensor, Y: Tensor, K: int) -> Learned:
    """Return a linear model of classes at its mode, under a fixed prior."""
    network = Perceptron(X.shape[1], K, (1,))
    w, variances = network.start(0)
    hidden = network.group < int(network.split(network.group)[-1].min()) - 1
    variances[network.group[hidden].unique()] = 1e-14
    w[hidden] = 0
    problem = Problem(network, likelihood, Table(X, Y, torch.ones(len(X), dtype=DOUBLE)))
    state, damping = State(w, variances, ONE), 1.0
    for _ in range(60):
        state, damping, _ = problem.move(state, problem.judge(state), damping)
    now = problem.judge(state)
    assert float(now.gradient.abs().max()) < 1e-5
    known = (now.posterior, now.leverage, ONE, ONE, now.log_evidence)
    return Learned(network, state, *known, 0.0, (), 0, True)


@pytest.mark.parametrize(("likelihood", "K"), [(Classes(), 1), (Classes(), 3), (Labels(), 2)])
def test_logits_left_out_are_those_of_learning_again(likelihood: ClassLikelihood, K: int) -> None:
    X = normal(24, 2, seed=3)
    Y = torch.arange(24) % max(K, 2)
    if isinstance(likelihood, Labels):
        Y = (normal(24, 2, seed=4) > 0).to(DOUBLE)
    one = linear(likelihood, X, Y, K)
    outputs, covariance = covariances(one.network, one.state.w, one.posterior, X)
    found = likelihood.leave_out(outputs, Y, covariance)
    worst = 0.0
    for i in range(3):
        rest = torch.arange(24) != i
        again = linear(likelihood, X[rest], Y[rest], K)
        mean, wider = covariances(again.network, again.state.w, again.posterior, X[i : i + 1])
        change = outputs[i] - mean[0]
        worst = max(worst, float((found.mean[i] - mean[0]).abs().max() / change.abs().max()))
        assert torch.allclose(found.covariance[i], wider[0], rtol=0.3, atol=0.05)
    assert worst < 0.25  # the rest is what one step does not see of a logistic's bend


@pytest.mark.parametrize("n", [5, 30])  # in the space of rows, and of weights
def test_covariance_of_a_sample_is_that_of_dense_algebra(n: int) -> None:
    network, likelihood = Perceptron(2, 3, (3,)), Classes()
    w, variances = network.start(0)
    w = normal(network.size, seed=1)
    X, Y = normal(n, 2, seed=2), torch.arange(n) % 3
    table = Table(X, Y, torch.ones(n, dtype=DOUBLE))
    now = Problem(network, likelihood, table).judge(State(w, variances, ONE))
    jacobian = torch.func.jacrev(lambda v: network(v, X))(w)  # (n, K, P)
    curvature = likelihood.curvature(network(w, X))
    precision = torch.einsum("nkp,nkl,nlq->pq", jacobian, curvature, jacobian)
    dense = torch.linalg.inv(precision + torch.diag(1 / variances[network.group]))
    expected = torch.einsum("nkp,pq,nlq->nkl", jacobian, dense, jacobian)
    assert torch.allclose(covariances(network, w, now.posterior, X)[1], expected, atol=1e-9)


def test_mixtures_and_sharper_probabilities_are_probabilities() -> None:
    p, q = normal(5, 3).softmax(-1), normal(5, 3, seed=1).softmax(-1)
    assert torch.allclose(mix([p.log(), q.log()]).exp(), (p + q) / 2)
    expected = p**2 / (p**2).sum(-1, keepdim=True)
    assert torch.allclose(sharpen(p.log(), 2.0).exp(), expected)


def test_wrong_labels_make_probabilities_duller() -> None:
    X = normal(60, 2, seed=5)
    clean = (X[:, 0] > 0).long()
    noisy = torch.where(torch.arange(60) % 4 == 0, 1 - clean, clean)
    likelihood, found = Classes(), []
    for Y in (clean, noisy):
        one = linear(likelihood, X, Y, 1)
        found.append(sharpness([one], likelihood, Table(X, Y, torch.ones(60, dtype=DOUBLE))))
    assert found[0] > 1 > 0.5 * found[1]
    assert found[0] > found[1]


def test_bernoulli_is_a_likelihood_for_loops() -> None:
    likelihood = as_likelihood("multilabel")
    assert isinstance(likelihood, Bernoulli)
    outputs, targets = normal(6, 2), (normal(6, 2, seed=1) > 0).to(DOUBLE)
    p = outputs.sigmoid()
    drawn = np.random.default_rng(0).random((20000, 6, 2)) < p.numpy()
    squares = ((drawn - p.numpy()) ** 2).sum(-1).mean(0)
    assert np.allclose(likelihood.expected_residual(outputs), squares, atol=0.02)
    assert torch.allclose(likelihood.residual(outputs, targets), (p - targets).square().sum(-1))
    loss = binary_cross_entropy_with_logits(outputs, targets)
    nats = -likelihood.log_likelihood(outputs, targets, ONE).mean()
    assert torch.allclose(loss, nats * likelihood.loss_per_nat(ONE, 2))
    assert float(likelihood.initial_noise(targets, DEFAULTS)) == 1
    for wrong in (targets[:, :1], targets + 0.5):
        with pytest.raises(ValueError, match="0 or 1"):
            likelihood.check_targets(wrong, outputs)


def test_likelihoods_of_classes_have_names_of_their_own() -> None:
    names = [one.name for one in (Classes(), Labels(), Bernoulli())]
    assert len(set(names)) == len(names)
    assert all(isinstance(one, Likelihood) for one in (Classes(), Labels()))
