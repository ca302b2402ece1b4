"""Small networks learned from tables, held against dense algebra and autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from adareg.core.evidence import predict
from adareg.core.evidence.learn import Learned, Problem, State, Table, learn
from adareg.core.evidence.perceptron import UNITS, Perceptron
from adareg.core.evidence.tabular import Fitted, TargetNoise
from adareg.core.evidence.weights import InRows, InWeights, WeightPosterior

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("unit", sorted(UNITS))
@pytest.mark.parametrize("hidden", [(4,), (3, 5)])
def test_rows_are_the_jacobian(unit: str, hidden: tuple[int, ...]) -> None:
    network = Perceptron(3, 2, hidden, unit)
    w, X = normal(network.size, seed=1), normal(6, 3, seed=2)
    directions = normal(4, 6, 2, seed=3)
    jacobian = torch.func.jacrev(lambda v: network(v, X))(w)  # (n, K, P)
    expected = torch.einsum("rnk,nkp->rnp", directions, jacobian)
    assert torch.allclose(network.linearise(w, X).rows(directions), expected)


def test_every_input_column_has_a_group_of_its_own_in_the_first_layer_and_the_linear_path() -> None:
    network = Perceptron(3, 2, (4,))
    first, out, path = network.split(network.group)
    assert [len(first[:, j].unique()) for j in range(4)] == [1, 1, 1, 1]
    assert len(first.unique()) == 4
    assert len(out[:, :-1].unique()) == 1
    assert len(path.unique()) == 3
    assert len(network.group.unique()) == len(network.start(0)[1])


def both(rows: Tensor, variances: Tensor, damping: float = 0.0) -> list[WeightPosterior]:
    return [
        InRows(rows, variances, damping),
        InWeights(rows.mT @ rows, variances, damping),
    ]


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("shape", [(3, 7), (9, 4)])
def test_posterior_is_that_of_dense_algebra(shape: tuple[int, int], damping: float) -> None:
    M, variances = normal(*shape), normal(shape[1], seed=1).exp()
    precision = M.mT @ M + torch.diag((1 + damping) / variances)
    covariance = torch.linalg.inv(precision)
    g, further = normal(shape[1], seed=2), normal(5, shape[1], seed=3)
    logdet = torch.logdet(precision) - ((1 + damping) / variances).log().sum()
    for posterior in both(M, variances, damping):
        assert torch.allclose(posterior.solve(g), covariance @ g)
        assert torch.allclose(posterior.logdet, logdet)
        share = covariance.diagonal() * (1 + damping) / variances
        assert torch.allclose(posterior.open(), share)
        dense = further @ covariance @ further.mT
        assert torch.allclose(posterior.variance(further), dense.diagonal())
        assert torch.allclose(posterior.covariance(further), dense)


def test_draws_have_the_posterior_covariance() -> None:
    M, variances = normal(3, 4), normal(4, seed=1).exp()
    covariance = torch.linalg.inv(M.mT @ M + torch.diag(1 / variances))
    for posterior in both(M, variances):
        generator = torch.Generator().manual_seed(0)
        drawn = torch.stack([posterior.draw(generator) for _ in range(4000)])
        assert torch.allclose(drawn.T.cov(), covariance, atol=0.15 * float(covariance.max()))


def linear_problem(n: int) -> tuple[Problem, State]:
    """A network whose hidden units are switched off: Bayesian linear regression."""
    network, likelihood = Perceptron(3, 2, (4,)), TargetNoise()
    w, variances = network.start(0)
    first, out, _ = network.split(w)
    first.zero_()
    out.zero_()
    variances[network.split(network.group)[0].unique()] = 1e-20
    variances[network.split(network.group)[1][0, 0]] = 1e-20
    X, Y = normal(n, 3, seed=1), normal(n, 2, seed=2)
    weight = normal(n, seed=3).exp()
    noise = torch.tensor([0.5, 0.2], dtype=DOUBLE)
    return Problem(network, likelihood, Table(X, Y, weight)), State(w, variances, noise)


@pytest.mark.parametrize("n", [6, 40])  # in the space of rows, and of weights
def test_evidence_of_a_linear_model_is_its_marginal_likelihood(n: int) -> None:
    problem, state = linear_problem(n)
    X, Y, weight = problem.table.X, problem.table.Y, problem.table.weight
    for _ in range(30):
        state, *_ = problem.move(state, problem.judge(state), 0.0)
    bias, path = state.variances[-4], state.variances[-3:]
    expected = 0.0
    for k in range(2):
        # A sample of weight ω is ω samples: noise σ²/ω, less what repeating it does to constants.
        kernel = (X * path) @ X.T + bias + torch.diag(state.noise[k] / weight)
        expected += multivariate_normal.logpdf(Y[:, k].numpy(), cov=kernel.numpy())
        expected -= ((weight - 1) * (2 * math.pi * state.noise[k]).log() + weight.log()).sum() / 2
    assert problem.judge(state).log_evidence == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("n", [6, 40])
def test_leverage_is_the_trace_of_the_hat_matrix(n: int) -> None:
    problem, state = linear_problem(n)
    X, weight = problem.table.X, problem.table.weight
    A = torch.cat([X, torch.ones(n, 1, dtype=DOUBLE)], 1)
    prior = torch.cat([state.variances[-3:], state.variances[-4:-3]])
    now = problem.judge(state)
    for k in range(2):
        information = (A * weight.unsqueeze(1)).mT @ A / state.noise[k]
        gamma = torch.trace(torch.linalg.solve(information + torch.diag(1 / prior), information))
        assert float(now.leverage[k] * weight.sum()) == pytest.approx(float(gamma), rel=1e-6)


def unused(index: Tensor) -> Tensor:
    raise AssertionError("Gaussian noise needs leverages alone")


def test_noise_and_score_of_samples_left_out() -> None:
    likelihood = TargetNoise()
    outputs, targets = normal(20, 2) / 4, normal(20, 2, seed=1) / 4
    weight, leverage = torch.ones(20, dtype=DOUBLE), torch.tensor([0.5, 0.2], dtype=DOUBLE)
    fitted = Fitted(outputs, targets, weight, leverage, leverage, unused)
    told = likelihood.cross_validate(fitted)
    rss = (outputs - targets).square().sum(0)
    assert torch.allclose(told.noise, rss / 20 / (1 - leverage) ** 2)
    left_out = (outputs - targets) / (1 - leverage)
    normals = torch.distributions.Normal(0.0, told.noise.sqrt())
    assert told.log_likelihood == pytest.approx(float(normals.log_prob(left_out).sum()))
    remaining = likelihood.remaining_noise(fitted)
    assert torch.allclose(remaining.diagonal(), rss / (20 - 20 * leverage))


def wave(n: int = 60) -> Table:
    X = normal(n, 2)
    Y = torch.sin(2 * X[:, :1]) + 0.1 * normal(n, 1, seed=5)
    return Table(X, (Y - Y.mean()) / Y.std(correction=0), torch.ones(n, dtype=DOUBLE))


def learned(table: Table, **settings: Any) -> Learned:
    network, likelihood = Perceptron(2, 1, (8,)), TargetNoise()
    state = State(*network.start(1), likelihood.first_noise(table.Y))
    return learn(network, likelihood, table, state, **settings)


def test_a_wave_is_learned_with_its_noise_and_the_column_it_depends_on() -> None:
    table = wave()
    found = learned(table)
    assert found.converged
    rest = (found.network(found.state.w, table.X) - table.Y).std()
    assert 0.05 < float(rest) < 0.4
    first = found.network.split(found.state.variances[found.network.group])[0][0]
    assert first[0] > 5 * first[1]


def test_the_state_of_the_highest_score_is_kept() -> None:
    found = learned(wave())
    scores = [(evidence + left_out) / 2 for evidence, left_out in found.course]
    assert found.score == pytest.approx(max(scores))
    assert found.steps >= len(scores) > 1


def test_too_few_steps_are_told() -> None:
    assert not learned(wave(), max_steps=3).converged


def test_several_networks_are_mixed_by_their_precision() -> None:
    table = wave(30)
    networks = [learned(table, max_steps=4), learned(table, max_steps=8)]
    X = normal(7, 2, seed=9)
    each = [predict.outputs([one], X) for one in networks]
    total = [
        one.variance + network.noise_variance for one, network in zip(each, networks, strict=True)
    ]
    share = total[1] / (total[0] + total[1])
    first, second = each
    found = predict.outputs(networks, X)
    assert torch.allclose(found.mean, share * first.mean + (1 - share) * second.mean)
    squares = [one.variance + one.mean.square() for one in each]
    expected = share * squares[0] + (1 - share) * squares[1] - found.mean.square()
    assert torch.allclose(found.variance, expected)
    assert torch.allclose(predict.mean(networks, X), found.mean)
    mean, covariance = predict.covariance(networks, X)
    assert torch.allclose(mean, found.mean)
    assert torch.allclose(covariance.diagonal(dim1=-2, dim2=-1).T, found.variance)
    assert torch.linalg.eigvalsh(covariance).min() > -1e-9
    drawn = predict.draw(networks, X, 4000, torch.Generator().manual_seed(0))[..., 0]
    assert torch.allclose(drawn.mean(0), found.mean[:, 0], atol=0.05)
    assert torch.allclose(drawn.T.cov(), covariance[0], atol=0.05)


def test_draws_of_outputs_have_their_mean_and_variance() -> None:
    networks, X = [learned(wave(30), max_steps=6)], normal(3, 2, seed=9)
    drawn = predict.draw(networks, X, 2000, torch.Generator().manual_seed(0))
    found = predict.outputs(networks, X)
    assert drawn.shape == (2000, 3, 1)
    assert torch.allclose(drawn.mean(0), found.mean, atol=0.1)
    assert torch.allclose(drawn.var(0), found.variance, rtol=0.2)
