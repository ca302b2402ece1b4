"""Likelihoods of numbers on tables, held against SciPy, dense algebra and quadrature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch import Tensor

from adareg.core.evidence import counts, student
from adareg.core.evidence.correlated import CorrelatedNoise
from adareg.core.evidence.counts import Counts
from adareg.core.evidence.learn import Judged, Problem, State, Table, covariances
from adareg.core.evidence.perceptron import Perceptron
from adareg.core.evidence.student import Student
from adareg.core.evidence.tabular import Fitted, TableLikelihood, TargetNoise, covariance_of

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def numbers(n: int, K: int, seed: int = 0) -> Tensor:
    found: Tensor = torch.poisson(
        3 * normal(n, K, seed=seed).exp(), torch.Generator().manual_seed(1)
    )
    return found


def at_mode(
    likelihood: TableLikelihood, X: Tensor, Y: Tensor, noise: Tensor, weight: Tensor | None = None
) -> tuple[Problem, State, Judged]:
    """Return a linear model at its mode: hidden units are switched off."""
    network = Perceptron(X.shape[1], Y.shape[1], (2,))
    w, variances = network.start(0)
    first, out, _ = network.split(network.group)
    for group in (*first.unique(), out[0, 0]):
        variances[group] = 1e-20
    variances[out[0, -1]] = 0.7
    w.zero_()
    weight = torch.ones(len(X), dtype=DOUBLE) if weight is None else weight
    problem, state = Problem(network, likelihood, Table(X, Y, weight)), State(w, variances, noise)
    for _ in range(60):
        state, *_ = problem.move(state, problem.judge(state), 0.0)
    return problem, state, problem.judge(state)


# Each, against SciPy


def test_students_density_is_scipys() -> None:
    r, noise = normal(20, 2), torch.stack([vector(0.5, 2.0), vector(2.5, 30.0)])
    expected = stats.t.logpdf(r, noise[1], scale=noise[0].sqrt())
    assert np.allclose(student.log_density(r, noise), expected)


def test_students_noise_is_the_likeliest() -> None:
    r = torch.from_numpy(stats.t.rvs(4, scale=0.3, size=(400, 1), random_state=0))
    noise, worth = student.likeliest(r, torch.ones(400, dtype=DOUBLE), vector(1e-9))
    degrees, _, scale = stats.t.fit(r.numpy(), floc=0)
    best = stats.t.logpdf(r.numpy(), degrees, scale=scale).sum()
    assert best - 0.3 < float(worth) <= best + 1e-3
    assert float(noise[0].sqrt()) == pytest.approx(scale, rel=0.05)
    rounded, _ = student.likeliest(0 * r, torch.ones(400, dtype=DOUBLE), vector(0.01))
    assert float(rounded[0]) == pytest.approx(0.01)


def test_probabilities_of_counts_are_scipys() -> None:
    log_mean, y, dispersion = normal(30, 2), numbers(30, 2), vector(0.3, 2.0)
    r = (1 / dispersion).numpy()
    expected = stats.nbinom.logpmf(y, r, r / (r + log_mean.exp().numpy()))
    assert np.allclose(counts.log_probability(log_mean, y, dispersion), expected)
    poisson = stats.poisson.logpmf(y, log_mean.exp())
    assert np.allclose(counts.log_probability(log_mean, y, vector(1e-7, 1e-7)), poisson, atol=1e-4)


def test_the_dispersion_of_counts_is_the_likeliest_and_averaged_over_outputs() -> None:
    random = np.random.default_rng(0)
    f = random.normal(size=(3000, 1))
    mean = np.exp(1 + f + 0.5 * random.normal(size=f.shape))
    y = torch.from_numpy(random.poisson(mean * random.gamma(2, 0.5, size=f.shape)).astype(float))
    z, log_w = counts.nodes(y)
    weight = torch.ones(len(y), dtype=DOUBLE)
    known = torch.from_numpy(1 + f) + 0.5 * z[:, None, None]
    averaged, _ = counts.likeliest(known, y, weight, log_w)
    alone, _ = counts.likeliest(known.mean(0, keepdim=True), y, weight, torch.zeros(1).double())
    assert float(averaged) == pytest.approx(0.5, rel=0.15)
    assert float(alone) > 0.7  # what is open about the outputs is taken for noise


def test_nodes_integrate_polynomials() -> None:
    z, log_w = counts.nodes(torch.zeros(1, dtype=DOUBLE))
    moments = [float(log_w.exp() @ z**k) for k in (0, 1, 2, 4, 6)]
    assert moments == pytest.approx([1, 0, 1, 3, 15], abs=1e-9)


def test_the_mean_of_counts_is_smooth_and_linear_beyond_the_common_ones() -> None:
    y = numbers(200, 1)
    link = Counts.of(y, torch.ones(200, dtype=DOUBLE)).link
    assert float(link.mean(torch.zeros(1).double())) == pytest.approx(float(y.mean()))
    o = torch.linspace(-3, 8, 50, dtype=DOUBLE).unsqueeze(1)
    mean, slope = torch.func.jvp(link.log_mean, (o,), (torch.ones_like(o),))
    assert torch.allclose(mean, link.mean(o).log())
    assert torch.allclose(slope, link.slope(o))
    beyond = link.mean(link.top + vector(0.0, 1.0, 2.0)[:, None]).squeeze(1)
    assert torch.allclose(beyond.diff(), beyond[0])
    twice = Counts.of(torch.cat([y, y[:50]]), torch.ones(250, dtype=DOUBLE)).link
    weighted = Counts.of(y, 1.0 + (torch.arange(200) < 50).to(DOUBLE)).link
    assert all(torch.allclose(a, b) for a, b in zip(twice, weighted, strict=True))


# Curvature


def test_roots_have_the_expected_curvature() -> None:
    """Of the squared gradient, by the sum or the integral over targets."""
    outputs = normal(3, 1)
    of_counts, dispersion = Counts.of(numbers(50, 1), torch.ones(50, dtype=DOUBLE)), vector(0.4)
    y = torch.arange(2000, dtype=DOUBLE).unsqueeze(1)

    def squared(likelihood: TableLikelihood, o: Tensor, targets: Tensor, noise: Tensor) -> Any:
        o = o.expand_as(targets).clone().requires_grad_()
        log_p = likelihood.log_likelihood(o, targets, noise)
        (slope,) = torch.autograd.grad(log_p.sum(), o)
        return (log_p.exp() * slope.square().squeeze(1)).detach()

    for o in outputs:
        expected = squared(of_counts, o, y, dispersion).sum()
        found = of_counts.roots(o[None], dispersion).square().sum()
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
    noise, t = torch.stack([vector(0.3), vector(5.0)]), Student(vector(1e-9))
    r = torch.linspace(-200, 200, 400_001, dtype=DOUBLE).unsqueeze(1)
    expected = squared(t, vector(0.0), r, noise).sum() * 1e-3
    assert float(t.roots(outputs[:1], noise).square().sum()) == pytest.approx(
        float(expected), rel=1e-5
    )


# A linear model


def test_evidence_with_correlated_noise_is_the_marginal_likelihood() -> None:
    X, Y = normal(30, 2, seed=1), 0.5 * normal(30, 2, seed=2)
    noise = torch.tensor([[0.5, 0.3], [0.3, 0.4]], dtype=DOUBLE)
    _, state, now = at_mode(CorrelatedNoise(), X, Y, noise)
    path = state.variances[-2:]
    kernel = (X * path) @ X.T + 0.7
    eye = torch.eye(30, dtype=DOUBLE)
    dense = torch.kron(torch.eye(2, dtype=DOUBLE), kernel) + torch.kron(noise, eye)
    expected = stats.multivariate_normal.logpdf(Y.T.flatten().numpy(), cov=dense.numpy())
    assert now.log_evidence == pytest.approx(float(expected), rel=1e-8)
    values, Q = torch.linalg.eigh(noise)
    for k in range(2):  # directions in which noise is independent
        hat = torch.linalg.solve(kernel + values[k] * eye, kernel)
        assert float(now.leverage[k] * 30) == pytest.approx(float(hat.trace()), rel=1e-6)
    told = CorrelatedNoise().cross_validate(
        Fitted(now.outputs, Y, torch.ones(30).double(), noise, now.leverage, unused)
    )
    r = ((Y - now.outputs) @ Q / (1 - now.leverage)) @ Q.T
    assert torch.allclose(told.noise.diagonal(), (r.T @ r).diagonal() / 30)
    assert float(told.noise[0, 1]) == pytest.approx(float((r.T @ r)[0, 1]) / 33)
    worth = stats.multivariate_normal.logpdf(r.numpy(), cov=told.noise.numpy()).sum()
    assert told.log_likelihood == pytest.approx(float(worth))


def unused(index: Tensor) -> Tensor:
    raise AssertionError("leverages are enough")


def test_noise_of_a_diagonal_covariance_is_that_of_each_target() -> None:
    X, Y, variances = normal(20, 2, seed=1), normal(20, 2, seed=2), vector(0.2, 0.6)
    each = at_mode(TargetNoise(), X, Y, variances)[2]
    full = at_mode(CorrelatedNoise(), X, Y, torch.diag(variances))[2]
    assert full.log_evidence == pytest.approx(each.log_evidence)
    assert torch.allclose(full.outputs, each.outputs)
    fitted = Fitted(each.outputs, Y, torch.ones(20).double(), variances, each.leverage, unused)
    remaining = TargetNoise().remaining_noise(fitted)
    assert torch.allclose(
        remaining, CorrelatedNoise().remaining_noise(fitted._replace(noise=torch.diag(variances)))
    )


def test_covariances_are_approached_between_positive_definite_ones() -> None:
    roots = normal(2, 3, 3)
    old, new = roots @ roots.mT
    half = CorrelatedNoise().approach(old, new, 0.5)
    # The geometric mean G of two covariances is the one with G·old⁻¹·G = new.
    assert torch.allclose(half @ torch.linalg.inv(old) @ half, new)
    assert torch.allclose(CorrelatedNoise().approach(old, new, 1.0), new)


def test_residuals_beyond_the_targets_variance_keep_a_covariance() -> None:
    r = 3 * normal(10, 3)
    found = covariance_of(r, torch.ones(10, dtype=DOUBLE))
    assert torch.allclose(found.diagonal(), torch.ones(3, dtype=DOUBLE))
    assert float(torch.linalg.eigvalsh(found).min()) > 0


@pytest.mark.parametrize("kind", ["student", "counts"])
def test_evidence_of_a_constant_is_that_of_quadrature(kind: str) -> None:
    """One weight, the bias: what Laplace leaves out is little. γ comes from the same curvature."""
    n = 60
    X = torch.zeros(n, 1, dtype=DOUBLE)
    if kind == "student":
        Y, noise = normal(n, 1, seed=4) + 0.3, torch.stack([vector(0.6), vector(5.0)])
        likelihood: TableLikelihood = Student(vector(1e-9))
        around = stats.t(5, scale=math.sqrt(0.6)).logpdf
    else:
        Y, noise = numbers(n, 1, seed=4), vector(0.4)
        likelihood = made = Counts.of(Y, torch.ones(n, dtype=DOUBLE))
    _, _, now = at_mode(likelihood, X, Y, noise)

    def log_joint(b: float) -> float:
        if kind == "student":
            each = around(Y.numpy() - b)
        else:
            mean = float(made.link.mean(vector(b)))
            each = stats.nbinom.logpmf(Y.numpy(), 2.5, 2.5 / (2.5 + mean))
        return float(each.sum() + stats.norm.logpdf(b, scale=math.sqrt(0.7)))

    mode = float(now.outputs[0])
    area, _ = quad(lambda b: math.exp(log_joint(b) - log_joint(mode)), mode - 1.5, mode + 1.5)
    assert now.log_evidence == pytest.approx(log_joint(mode) + math.log(area), abs=0.15)
    step = 1e-3
    bend = -(log_joint(mode + step) - 2 * log_joint(mode) + log_joint(mode - step)) / step**2
    gamma = 1 - 1 / 0.7 / bend
    assert float(now.leverage * n) == pytest.approx(gamma, rel=0.01)


@pytest.mark.parametrize("kind", ["student", "counts"])
def test_outputs_left_out_are_those_of_learning_again(kind: str) -> None:
    X, n = normal(30, 2, seed=3), 30
    if kind == "student":
        Y = X[:, :1] + normal(n, 1, seed=4)
        Y[0] += 8
        noise, least = torch.stack([vector(0.8), vector(4.0)]), vector(1e-9)
        likelihood: TableLikelihood = Student(least)
    else:
        Y, noise = (
            torch.poisson((1 + X[:, :1]).exp(), torch.Generator().manual_seed(0)),
            vector(0.3),
        )
        likelihood = made = Counts.of(Y, torch.ones(n, dtype=DOUBLE))
    problem, state, now = at_mode(likelihood, X, Y, noise)
    fitted = problem.fitted(state, now)
    for i in range(3):
        rest = torch.arange(n) != i
        again, there, _ = at_mode(likelihood, X[rest], Y[rest], noise)
        mean, wider = covariances(
            again.network, there.w, again.judge(there).posterior, X[i : i + 1]
        )
        if kind == "student":  # by the mean leverage: here, by its own
            own = (
                fitted.covariance(torch.tensor([i]))[0, 0]
                * likelihood.roots(now.outputs, noise)[0, 0] ** 2
            )
            r = student.enlarged(fitted, 1 / (1 - own) - 1)[i]
            change = float(mean[0, 0] - now.outputs[i, 0])
            assert float(Y[i] - r - now.outputs[i]) == pytest.approx(change, rel=0.35, abs=0.02)
        else:
            moved, variance = made.left_out(fitted, torch.tensor([i]))
            change = float(mean[0, 0] - now.outputs[i, 0])
            assert float(moved - now.outputs[i]) == pytest.approx(change, rel=0.35, abs=0.02)
            assert float(variance) == pytest.approx(float(wider), rel=0.15)
