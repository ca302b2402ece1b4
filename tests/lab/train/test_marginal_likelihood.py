"""The peer's marginal likelihood is the exact one where that is known."""

import math

import pytest
import torch
from scipy.stats import multivariate_normal

from adareg.lab.train import marginal_likelihood
from adareg.lab.train.marginal_likelihood import MarginalLikelihood, curvatures
from adareg.lab.train.networks import Architecture, Network

N, D = 12, 3


@pytest.fixture
def linear():
    """Bayesian linear regression at its maximum a posteriori, all precisions and the noise 1.

    Inputs are centred: then the intercept and the weights are independent in the posterior, and
    the Laplace approximation with a block for each parameter tensor is exact.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=draw, dtype=torch.float64)
    x -= x.mean(0)
    y = torch.randn(N, 1, generator=draw, dtype=torch.float64)
    network = Network(Architecture((D,), (), (), 1), 0).double()
    wide = torch.cat([x, torch.ones(N, 1, dtype=torch.float64)], 1)
    best = torch.linalg.solve(wide.mT @ wide + torch.eye(D + 1, dtype=torch.float64), wide.mT @ y)
    with torch.no_grad():
        network.fc[0].weight.copy_(best[:D].mT)
        network.fc[0].bias.copy_(best[D])
    return network, x, y


def test_it_is_the_density_of_the_targets(linear, monkeypatch):
    monkeypatch.setattr(marginal_likelihood, "STEPS", 1)
    network, x, y = linear
    found = MarginalLikelihood(network, N, "regression").update(x, y)
    covariance = x @ x.mT + 1 + torch.eye(N, dtype=torch.float64)
    expected = -multivariate_normal.logpdf(y.flatten().numpy(), cov=covariance.numpy())
    assert found == pytest.approx(expected, rel=1e-12)


def test_ten_steps_raise_it(linear, monkeypatch):
    network, x, y = linear
    learner = MarginalLikelihood(network, N, "regression")
    first, second = (learner.update(x, y) for _ in range(2))
    assert second < first
    assert learner.noise != 1


def test_the_penalty_has_its_stationary_point_at_the_posterior_mode(linear):
    network, x, y = linear
    learner = MarginalLikelihood(network, N, "regression")
    torch.nn.functional.mse_loss(network(x), y).backward()
    learner.add_gradients()
    for parameter in network.parameters():
        torch.testing.assert_close(parameter.grad, torch.zeros_like(parameter), atol=1e-12, rtol=0)


def test_curvature_of_a_softmax_layer_is_its_gauss_newton_matrix():
    """For one sample the Kronecker product is exact: compare eigenvalues with the dense matrix."""
    network = Network(Architecture((D,), (), (), 4), 0).double()
    x, y = torch.randn(1, D, dtype=torch.float64), torch.tensor([2])
    found, loss = curvatures(network, x, y, "classification")
    p = network(x).softmax(-1)[0].detach()
    H = torch.diag(p) - p[:, None] * p
    dense = torch.kron(H, x.mT @ x)
    for name, expected in (("fc.0.weight", dense), ("fc.0.bias", H)):
        values = found[name].flatten().sort().values
        torch.testing.assert_close(values, torch.linalg.eigvalsh(expected), atol=1e-12, rtol=1e-9)
    assert loss.item() == pytest.approx(-math.log(p[2]), rel=1e-12)


def test_a_convolution_sums_over_positions():
    """One image, one kernel: the bias sees every position, and A is the sum over patches."""
    network = Network(Architecture((1, 6, 6), (1,), (), 2, kernel=3), 0).double()
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    found, _ = curvatures(network, x, torch.tensor([0]), "classification")
    patches = torch.nn.functional.unfold(x, 3)[0]
    A = torch.linalg.eigvalsh(patches @ patches.mT).clamp_min(0)
    G = found["conv.0.bias"] / 16
    torch.testing.assert_close(found["conv.0.weight"], G[:, None] * A, atol=1e-10, rtol=1e-9)
    assert G.item() > 0


def test_weights_that_are_not_finite_change_nothing():
    network = Network(Architecture((D,), (), (), 2), 0)
    learner = MarginalLikelihood(network, N, "classification")
    before = learner.decay
    with torch.no_grad():
        network.fc[0].weight[0, 0] = torch.nan
    assert learner.update(torch.randn(4, D), torch.tensor([0, 1, 0, 1])) == math.inf
    assert torch.equal(learner.decay, before)


def test_updates_leave_mode_and_gradients_alone():
    network = Network(Architecture((D,), (), (8,), 2), 0, dropout=0.5).train()
    MarginalLikelihood(network, N, "classification").update(
        torch.randn(4, D), torch.tensor([0, 1, 0, 1])
    )
    assert network.training
    assert network.drop[1].step == 0
    assert all(parameter.grad is None for parameter in network.parameters())
