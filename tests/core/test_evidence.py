"""The evidence rule against dense linear algebra in NumPy, on models where it is exact."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import adareg
from adareg import MatrixNormal, Precision
from adareg.core.evidence import curvature as rows
from adareg.core.evidence import update as evidence
from adareg.core.evidence.constants import DEFAULTS, Constants
from adareg.core.evidence.curvature import Curvature
from adareg.core.evidence.likelihood import Categorical, Counts, Gaussian


def spd(n, rng):
    X = rng.normal(size=(n, n + 3))
    return X @ X.T / n


def precision(M):
    e, Q = np.linalg.eigh(M)
    return Precision(None, torch.tensor(Q), torch.tensor(e))


class Linear:
    """Y = X Wᵀ + noise, p outputs and d inputs; vec stacks the columns of W."""

    def __init__(self, seed=0, n=9, p=3, d=4, noise=0.3):
        rng = np.random.default_rng(seed)
        self.n, self.p, self.d, self.noise = n, p, d, noise
        self.row, self.col = spd(p, rng), spd(d, rng)
        self.X = rng.normal(size=(n, d))
        self.Y = self.X @ rng.normal(size=(d, p)) + math.sqrt(noise) * rng.normal(size=(n, p))
        self.design = np.kron(self.X, np.eye(p))  # vec(W) -> all outputs
        self.target = self.Y.reshape(-1)

    def prior_precision(self, scale=1.0):
        return scale * np.kron(self.col, self.row)

    def posterior(self, scale=1.0):
        H = self.design.T @ self.design / self.noise
        covariance = np.linalg.inv(H + self.prior_precision(scale))
        mean = covariance @ self.design.T @ self.target / self.noise
        return mean, covariance, np.trace(H @ covariance)

    def log_evidence(self, scale=1.0):
        C = self.design @ np.linalg.inv(self.prior_precision(scale)) @ self.design.T
        C = C + self.noise * np.eye(len(self.target))
        value = -0.5 * self.target @ np.linalg.solve(C, self.target)
        return value - 0.5 * np.linalg.slogdet(2 * math.pi * C)[1]

    def weight(self, scale=1.0):
        return torch.tensor(self.posterior(scale)[0].reshape(self.d, self.p).T.copy())

    def prior(self, scale=1.0):
        return MatrixNormal(precision(self.row), precision(scale * self.col))

    def rows(self):
        """Every output of every sample is a direction, in units of the noise."""
        grads = torch.eye(self.p, dtype=torch.float64)[:, None].expand(self.p, self.n, self.p)
        return torch.tensor(self.X), grads / math.sqrt(self.noise)

    def update(self, scale=1.0):
        a, g = self.rows()
        outputs = torch.tensor(self.X) @ self.weight(scale).mT
        return evidence.update_priors(
            {"w": self.weight(scale)},
            {"w": self.prior(scale)},
            {"w": rows.curvature(a, g)},
            rows.kernel(a, g / math.sqrt(self.p), self.prior(scale)),
            outputs,
            torch.tensor(self.Y),
            torch.tensor(self.noise, dtype=torch.float64),
            Gaussian(),
            self.n,
        )


def kron(curvature):
    return torch.kron(curvature.inputs, curvature.outputs).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_posterior_of_a_linear_model_is_exact(seed):
    model = Linear(seed)
    curvature = rows.curvature(*model.rows())
    assert kron(curvature) == pytest.approx(
        model.design.T @ model.design / model.n / model.noise, abs=1e-12
    )

    W, prior = model.weight(), model.prior()
    found = evidence.posterior(prior, curvature, model.n)
    mean, covariance, gamma = model.posterior()
    assert found.determined.item() == pytest.approx(gamma, abs=1e-10)

    moment = (covariance + np.outer(mean, mean)).reshape(model.d, model.p, model.d, model.p)
    row, col = evidence.second_moments(W, prior, found)
    assert row.dense().numpy() == pytest.approx(
        np.einsum("ipjq,ij->pq", moment, model.col), abs=1e-8
    )
    assert col.dense().numpy() == pytest.approx(
        np.einsum("ipjq,pq->ij", moment, model.row), abs=1e-8
    )


@pytest.mark.parametrize("seed", range(4))
def test_log_evidence_of_a_linear_model_is_exact(seed):
    model = Linear(seed, n=6 + seed)
    assert model.update(0.7).log_evidence.item() == pytest.approx(model.log_evidence(0.7), abs=1e-8)


def test_one_layer_counts_what_the_whole_network_counts():
    """With one output the kernel's count is the posterior's, so nothing is taken off."""
    model = Linear(p=1, n=7)
    assert model.update().layers["w"].gamma.item() == pytest.approx(model.posterior()[2], abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_fixed_point_of_the_scale_is_stationary_for_the_exact_evidence(seed):
    model = Linear(seed, p=1, d=5, n=12)
    scale = 1.0
    for _ in range(500):  # MacKay's equation, with the weight at its optimum each time
        gamma = model.update(scale).layers["w"].gamma.item()
        scale = gamma / model.prior().penalty(model.weight(scale)).item()
    step = 1e-4
    slope = (
        model.log_evidence(scale * math.exp(step)) - model.log_evidence(scale * math.exp(-step))
    ) / (2 * step)
    curve = model.log_evidence(scale * math.e) - 2 * model.log_evidence(scale)
    curve += model.log_evidence(scale / math.e)
    assert abs(slope) < 1e-6
    assert curve < 0  # and it is a maximum


def test_scale_moves_half_the_way_to_its_fixed_point():
    model = Linear(p=1, d=3, n=30)
    layer = model.update().layers["w"]
    shape = MatrixNormal(layer.prior.row, layer.prior.col)
    shape_only = shape.penalty(model.weight()).item() / evidence.scale(shape).item()
    wanted = layer.gamma.item() / shape_only
    old = evidence.scale(model.prior()).item()
    assert evidence.scale(layer.prior).item() == pytest.approx(math.sqrt(old * wanted), rel=1e-9)


def test_noise_is_generalised_cross_validation():
    model = Linear(p=1, n=12)
    mean, _, gamma = model.posterior()
    residual = model.target - model.design @ mean
    left_out = (residual @ residual / model.n) / (1 - gamma / model.n) ** 2
    expected = math.sqrt(model.noise * left_out)  # half the way, in logarithms
    assert model.update().noise.item() == pytest.approx(expected, rel=1e-10)


def test_noise_survives_interpolation():
    """Where the data are fitted exactly, residuals vanish and leverage tends to one."""
    rng = np.random.default_rng(0)
    K = spd(8, rng)
    y = rng.normal(size=8)
    estimates = []
    for noise in (1e-2, 1e-4, 1e-6):
        residual = noise * np.linalg.solve(K + noise * np.eye(8), y)
        lever = evidence.leverage(torch.tensor(K), torch.full((8,), 1 / noise).double())
        found = Gaussian().estimate_noise(
            torch.zeros(8, 1).double(), torch.tensor(residual)[:, None], noise, lever.mean()
        )
        estimates.append(found.item())
    assert min(estimates) > 0.1 * max(estimates)


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    model = Linear(p=1)
    a, g = model.rows()
    lever = evidence.leverage(
        rows.kernel(a, g, model.prior()), torch.ones(model.n, dtype=torch.float64)
    )
    _, covariance, _ = model.posterior()
    hat = model.design @ covariance @ model.design.T / model.noise
    assert lever.numpy() == pytest.approx(np.diag(hat), abs=1e-10)


def test_curvature_keeps_both_marginals():
    rng = np.random.default_rng(1)
    M = rng.normal(size=(2, 6, 3, 4))  # draws, samples, p, d
    full = np.einsum("rmpd,rmqe->dpeq", M, M) / 6  # columns of W one after another
    made = kron(rows.matrix_curvature(torch.tensor(M))).reshape(4, 3, 4, 3)
    assert np.einsum("dpdq->pq", made) == pytest.approx(np.einsum("dpdq->pq", full))
    assert np.einsum("dpep->de", made) == pytest.approx(np.einsum("dpep->de", full))


def test_rows_of_a_linear_map_are_outer_products():
    rng = np.random.default_rng(2)
    a, g = torch.tensor(rng.normal(size=(5, 4))), torch.tensor(rng.normal(size=(2, 5, 3)))
    M = torch.einsum("md,rmp->rmpd", a, g)
    prior = MatrixNormal(precision(spd(3, rng)), precision(spd(4, rng)))
    for one, other in zip(rows.curvature(a, g), rows.matrix_curvature(M), strict=True):
        torch.testing.assert_close(one, other)
    covariance = np.kron(prior.row.covariance().numpy(), prior.col.covariance().numpy())
    flat = M.flatten(2).numpy()
    dense = sum(rows @ covariance @ rows.T for rows in flat)
    assert rows.kernel(a, g, prior).numpy() == pytest.approx(dense)
    assert rows.matrix_kernel(M, prior).numpy() == pytest.approx(dense)


@pytest.mark.parametrize("K", [1, 2, 5, 12])
def test_draws_have_the_curvature_of_the_likelihood(K):
    logits = torch.randn(3, K, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rounds = 1 if DEFAULTS.draws >= K else 2000
    total = torch.zeros(3, K, K, dtype=torch.float64)
    for _ in range(rounds):
        v = Categorical().directions(logits, torch.ones(()), DEFAULTS.draws, generator)
        total += torch.einsum("rmk,rml->mkl", v, v) / rounds
    p = logits.softmax(-1) if K > 1 else logits.sigmoid()
    exact = torch.diag_embed(p) - p[:, :, None] * p[:, None] if K > 1 else (p * (1 - p))[..., None]
    torch.testing.assert_close(total, exact, atol=1e-12 if rounds == 1 else 0.01, rtol=0)


@pytest.mark.parametrize("K", [1, 4, 12])
@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_shared_directions_average_over_outputs(K, likelihood):
    generator = torch.Generator().manual_seed(0)
    rounds = 1 if DEFAULTS.draws >= K else 3000
    total = torch.zeros(K, K, dtype=torch.float64)
    for _ in range(rounds):
        outputs = torch.zeros(2, K, dtype=torch.float64)
        v = likelihood.shared_directions(outputs, torch.ones(()), DEFAULTS.draws, generator)
        assert torch.equal(v[:, 0], v[:, 1])  # the same for all samples
        total += torch.einsum("rk,rl->kl", v[:, 0], v[:, 0]) / rounds
    exact = torch.eye(K, dtype=torch.float64) / K
    if isinstance(likelihood, Categorical) and K > 1:  # a constant in all logits has no effect
        exact = (torch.eye(K, dtype=torch.float64) - 1 / K) / (K - 1)
    torch.testing.assert_close(total, exact, atol=1e-12 if rounds == 1 else 0.01, rtol=0)


def test_effective_directions_of_a_softmax():
    sure = torch.tensor([[0.0, 0, 0, 0], [9.0, 9, -40, -40]], dtype=torch.float64)
    labels, one = torch.tensor([2, 0]), torch.ones(())
    stiffness, directions = Categorical().effective_curvature(sure, one)
    assert directions.tolist() == pytest.approx([3, 1], rel=1e-6)
    assert stiffness.tolist() == pytest.approx([0.25, 0.5], rel=1e-6)
    assert Categorical().residual(sure, labels).tolist() == pytest.approx([0.75, 0.5], rel=1e-6)
    found = Categorical().log_likelihood(sure, labels, one)
    assert found.tolist() == pytest.approx([math.log(0.25), math.log(0.5)], rel=1e-6)


def test_one_logit_is_two_classes():
    logit = torch.randn(6, 1, dtype=torch.float64)
    two = torch.cat([torch.zeros_like(logit), logit], -1)
    labels, one = torch.tensor([0, 1, 1, 0, 1, 0]), torch.ones(())
    likelihood = Categorical()
    for says in (
        lambda o: likelihood.residual(o, labels),
        lambda o: likelihood.expected_residual(o),
        lambda o: likelihood.log_likelihood(o, labels, one),
        lambda o: likelihood.effective_curvature(o, one)[1],
    ):
        torch.testing.assert_close(says(logit), says(two))
    # The direction (1, −1)/√2 of two logits sees half of the variance that their difference has.
    of_difference, along = (likelihood.effective_curvature(o, one)[0] for o in (logit, two))
    torch.testing.assert_close(of_difference, along / 2)


def test_labels_that_the_model_predicts_have_dispersion_one():
    torch.manual_seed(0)
    logits = torch.randn(20_000, 4).double()
    labels = torch.distributions.Categorical(logits=logits).sample()
    one, likelihood = torch.ones((), dtype=torch.float64), Categorical()
    found = likelihood.estimate_noise(logits, labels, one, 0 * one)
    assert found.item() == pytest.approx(1, abs=0.02)
    wrong = torch.randint(4, (20_000,))
    assert likelihood.estimate_noise(3 * logits, wrong, one, 0 * one) > 1.4


def test_what_a_constant_prediction_leaves():
    """NumPy's variance of one-hot labels, or of targets, summed over outputs."""
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(4, size=30), torch.tensor(rng.normal(size=(30, 4)))
    expected = np.eye(4)[labels].var(0).sum()
    assert Categorical().unlearned(torch.tensor(labels)).item() == pytest.approx(expected)
    expected = np.eye(2)[labels % 2].var(0).sum()
    assert Categorical().unlearned(torch.tensor(labels % 2)).item() == pytest.approx(expected)
    targets = torch.tensor(rng.normal(size=(30, 3)) + 5)
    assert Gaussian().unlearned(targets).item() == pytest.approx(targets.numpy().var(0).sum())

    def has_learned(outputs):
        return Gaussian().has_learned(outputs, targets, DEFAULTS.learned)

    assert not has_learned(targets.mean(0).expand(30, 3))
    closer = 0.9 * targets.mean(0) + 0.1 * targets
    assert has_learned(closer)
    assert not has_learned(closer + 1)
    assert Categorical().has_learned(logits, None, DEFAULTS.learned)  # nothing can be told


# Likelihoods: what the defaults make of the abstract methods, against autograd


class Poisson(adareg.Likelihood):
    """Counts whose rate is the exponential of the output: nothing but what is abstract."""

    name = "counts"

    def check_targets(self, targets, outputs):
        return targets.to(outputs)

    def initial_noise(self, targets, constants):
        return torch.ones((), dtype=torch.float64)

    def log_likelihood(self, outputs, targets, noise):
        return torch.distributions.Poisson(outputs.exp()).log_prob(targets).sum(-1)

    def roots(self, outputs, noise):
        return torch.diag_embed((outputs / 2).exp()).movedim(-2, 0)

    def residual(self, outputs, targets):
        return (targets - outputs.exp()).square().sum(-1)

    def expected_residual(self, outputs):
        return outputs.exp().sum(-1)


class OfEach(adareg.Gaussian):
    """A noise of each target."""

    name = "of each"

    def initial_noise(self, targets, constants):
        return targets.var(-2, correction=0)

    def log_likelihood(self, outputs, targets, noise):
        return torch.distributions.Normal(outputs, noise.sqrt()).log_prob(targets).sum(-1)

    def whiten(self, vectors, noise):
        return vectors / noise.sqrt()

    def estimate_noise(self, outputs, targets, noise, leverage):
        return (targets - outputs).square().mean(-2) / (1 - leverage).square()


def problem(likelihood, K, m=4):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(m, K, generator=generator, dtype=torch.float64)
    targets = torch.randint(2, (m, max(K, 2)), generator=generator)
    of_classes = isinstance(likelihood, Categorical)
    return outputs, targets[:, 0] if of_classes else targets[:, :K].double(), generator


@pytest.mark.parametrize("K", [1, 3, 12])
@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), Gaussian(), Poisson(), Counts(), OfEach()],
    ids=lambda one: type(one).__name__,
)
def test_roots_have_the_curvature_of_the_log_likelihood(likelihood, K):
    outputs, targets, generator = problem(likelihood, K)
    noise = torch.tensor(1.7, dtype=torch.float64)
    if isinstance(likelihood, OfEach):
        noise = torch.linspace(0.5, 2, K, dtype=torch.float64)

    def minus(o, y):
        return -likelihood.log_likelihood(o[None], y[None], noise)[0]

    exact = torch.stack(
        [torch.func.hessian(minus)(o, y) for o, y in zip(outputs, targets, strict=True)]
    )
    roots = likelihood.roots(outputs, noise)
    torch.testing.assert_close(torch.einsum("rmk,rml->mkl", roots, roots), exact)
    stiffness, count = likelihood.effective_curvature(outputs, noise)
    if not isinstance(likelihood, Gaussian):  # it is in units of its noise
        trace = exact.diagonal(dim1=-2, dim2=-1).sum(-1)
        torch.testing.assert_close(stiffness * count, trace)
        torch.testing.assert_close(count, (trace**2 / exact.square().sum((-2, -1))))
    rounds, total = (1 if K <= 10 else 3000), torch.zeros_like(exact)
    for _ in range(rounds):
        v = likelihood.directions(outputs, noise, 10, generator)
        assert len(v) <= 10 or K == 1
        total += torch.einsum("rmk,rml->mkl", v, v) / rounds
    tolerance = 1e-12 if rounds == 1 else 0.05 * exact.abs().max().item()
    torch.testing.assert_close(total, exact, rtol=0, atol=tolerance)


def test_counts_are_poissons_and_know_if_they_vary_more():
    """Against torch's Poisson at φ = 1; at φ = 3 probabilities sum to one, the mean is μ."""
    likelihood, one = Counts(), torch.ones((), dtype=torch.float64)
    o, y = torch.tensor([[0.3], [2.0]]).double(), torch.tensor([[0.0], [9.0]]).double()
    poisson = torch.distributions.Poisson(o.exp()).log_prob(y).sum(-1)
    torch.testing.assert_close(likelihood.log_likelihood(o, y, one), poisson)
    loss = torch.nn.PoissonNLLLoss(full=False)
    slopes = [
        torch.autograd.grad(f(x), x)[0]
        for f, x in (
            (lambda x: loss(x, y), o.clone().requires_grad_()),
            (
                lambda x: -likelihood.log_likelihood(x, y, 3 * one).mean(),
                o.clone().requires_grad_(),
            ),
        )
    ]
    torch.testing.assert_close(slopes[0], slopes[1] * likelihood.loss_per_nat(3 * one, 1))
    every = torch.arange(400, dtype=torch.float64).unsqueeze(1)
    p = likelihood.log_likelihood(torch.full_like(every, math.log(30)), every, 3 * one).exp()
    assert float(p.sum()) == pytest.approx(1, abs=0.02)
    assert float(p @ every[:, 0] / p.sum()) == pytest.approx(30, rel=0.01)
    rng = np.random.default_rng(0)
    drawn = torch.tensor(rng.negative_binomial(5, 0.25, size=(20_000, 1))).double()  # φ = 4
    level = torch.full_like(drawn, math.log(15))
    assert float(likelihood.estimate_noise(level, drawn, one, 0 * one)) == pytest.approx(
        4, rel=0.05
    )
    with pytest.raises(ValueError, match="expected counts"):
        likelihood.check_targets(y - 0.5, o)


def test_a_noise_of_each_target_is_as_scaling_the_targets():
    """With two targets of very different noise: the prior's and the noise's update agree."""
    model, scale = Linear(p=2, n=12), torch.tensor([1.0, 10.0], dtype=torch.float64)
    plain = model.update()
    X, W, Y = torch.tensor(model.X), model.weight(), torch.tensor(model.Y)
    likelihood, noise = OfEach(), model.noise * scale**2
    outputs = (X @ W.mT) * scale
    prior = MatrixNormal(precision(model.row / np.outer(scale, scale)), precision(model.col))
    draw = torch.Generator().manual_seed(0)
    own = likelihood.directions(outputs, noise, 10, draw)
    shared = likelihood.shared_directions(outputs, noise, 10, draw)
    done = evidence.update_priors(
        {"w": scale[:, None] * W},
        {"w": prior},
        {"w": rows.curvature(X, own)},
        rows.kernel(X, shared, prior),
        outputs,
        Y * scale,
        noise,
        likelihood,
        model.n,
    )
    torch.testing.assert_close(done.leverage, plain.leverage)
    torch.testing.assert_close(done.layers["w"].gamma, plain.layers["w"].gamma)
    assert done.noise.shape == (2,)
    jacobian = -model.n * scale.log().sum()  # of the density of the scaled targets
    torch.testing.assert_close(done.log_evidence, plain.log_evidence + jacobian)


def test_layers_that_can_do_the_same_are_counted_once():
    """Two copies of one linear map: each layer claims what only both together have."""
    model = Linear(p=1, n=20, noise=1e-3)
    a, g = model.rows()
    curvature, prior = rows.curvature(a, g), model.prior()
    W = model.weight() / 2
    outputs = torch.tensor(model.X) @ (2 * W).mT
    noise = torch.tensor(model.noise, dtype=torch.float64)
    done = evidence.update_priors(
        {"a": W, "b": W},
        {"a": prior, "b": prior},
        {"a": curvature, "b": curvature},
        2 * rows.kernel(a, g, prior),
        outputs,
        torch.tensor(model.Y),
        noise,
        Gaussian(),
        model.n,
    )
    H = model.design.T @ model.design / model.noise
    exact = np.trace(H @ np.linalg.inv(H + model.prior_precision(0.5)))
    assert sum(layer.gamma.item() for layer in done.layers.values()) == pytest.approx(exact)


@pytest.mark.parametrize("columns", [[(0, 4)], [(0, 3), (3, 5)], [(0, 3), (1, 4), (2, 5)]])
def test_log_evidence_of_layers_that_add_up_is_exact(columns):
    """A linear map in parts that may share inputs; the prior is the same for all outputs."""
    rng = np.random.default_rng(3)
    n, p, noise = 11, 2, 0.2
    X, Y = rng.normal(size=(n, 5)), rng.normal(size=(n, p))
    parts = [X[:, slice(*c)] for c in columns]
    priors = [
        MatrixNormal(precision(np.eye(p)), precision(spd(part.shape[1], rng))) for part in parts
    ]
    covariances = [
        part @ np.linalg.inv(prior.col.dense().numpy()) @ part.T
        for part, prior in zip(parts, priors, strict=True)
    ]
    C = sum(covariances) + noise * np.eye(n)
    exact = sum(stats.multivariate_normal(np.zeros(n), C).logpdf(y) for y in Y.T)

    dual = np.linalg.solve(C, Y)  # the posterior mean of part i is Yᵀ C⁻¹ Xi Σi
    weights = [
        torch.tensor(dual.T @ part @ np.linalg.inv(prior.col.dense().numpy()))
        for part, prior in zip(parts, priors, strict=True)
    ]
    outputs = sum(torch.tensor(x) @ W.mT for x, W in zip(parts, weights, strict=True))
    g = torch.eye(p, dtype=torch.float64)[:, None].expand(p, n, p) / math.sqrt(noise)
    done = evidence.update_priors(
        dict(enumerate(weights)),
        dict(enumerate(priors)),
        {i: rows.curvature(torch.tensor(x), g) for i, x in enumerate(parts)},
        sum(
            rows.kernel(torch.tensor(x), g / math.sqrt(p), prior)
            for x, prior in zip(parts, priors, strict=True)
        ),
        outputs,
        torch.tensor(Y),
        torch.tensor(noise, dtype=torch.float64),
        Gaussian(),
        n,
    )
    assert done.log_evidence.item() == pytest.approx(exact, abs=1e-8)


def test_many_networks_at_once():
    models = [Linear(seed, p=2) for seed in range(3)]
    stacked = {
        "w": torch.stack([m.weight() for m in models]),
        "prior": MatrixNormal(
            Precision.stack([m.prior().row for m in models]),
            Precision.stack([m.prior().col for m in models]),
        ),
        "a": torch.stack([m.rows()[0] for m in models]),
        "g": torch.stack([m.rows()[1] for m in models]),
    }
    together = evidence.update_priors(
        {"w": stacked["w"]},
        {"w": stacked["prior"]},
        {"w": rows.curvature(stacked["a"], stacked["g"])},
        rows.kernel(stacked["a"], stacked["g"] / math.sqrt(2), stacked["prior"]),
        stacked["a"] @ stacked["w"].mT,
        torch.stack([torch.tensor(m.Y) for m in models]),
        torch.tensor([m.noise for m in models], dtype=torch.float64),
        Gaussian(),
        models[0].n,
    )
    for i, model in enumerate(models):
        alone = model.update()
        torch.testing.assert_close(together.noise[i], alone.noise)
        torch.testing.assert_close(together.log_evidence[i], alone.log_evidence)
        one, other = together.layers["w"], alone.layers["w"]
        torch.testing.assert_close(one.gamma[i], other.gamma)
        torch.testing.assert_close(one.prior.col.dense()[i], other.prior.col.dense())


def wide_problem(seed, p=3, d=40, m=5, draws=2, batch=()):
    """A layer with more inputs than there are samples; the prior is scalar plus low rank."""
    rng = np.random.default_rng(seed)
    a, g = torch.tensor(rng.normal(size=(*batch, m, d))), rng.normal(size=(*batch, draws, m, p))
    Q = torch.linalg.qr(torch.tensor(rng.normal(size=(*batch, d, 4)))).Q
    e = torch.tensor(rng.uniform(0.5, 9, size=(*batch, 4)))
    col = Precision(torch.full(batch, 2.0, dtype=torch.float64), Q, e)
    row = Precision.identity(p, batch, torch.float64).map(lambda one: 3 * one)
    return torch.tensor(rng.normal(size=(*batch, p, d))), MatrixNormal(row, col), a, torch.tensor(g)


def written_out(prior, curvature):
    """The same with every side in full."""
    sides = (
        Precision(None, Q.contiguous(), e)
        for e, Q in (torch.linalg.eigh(one.dense()) for one in (prior.row, prior.col))
    )
    return MatrixNormal(*sides), Curvature(
        *(F if F.shape[-2] == F.shape[-1] else F.mT @ F for F in curvature)
    )


@pytest.mark.parametrize("p", [3, 30])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_wide_side_is_as_if_it_were_written_out(p, batch):
    """Curvature of rank 5 to 10 in 30 and 40 dimensions, over updates that build on each other."""
    W, prior, a, g = wide_problem(0, p, batch=batch)
    curvature = rows.curvature(a, g)
    assert curvature.inputs.shape[-2:] == (5, 40)
    dense_prior, dense_curvature = written_out(prior, curvature)
    for _ in range(3):
        thin = evidence.posterior(prior, curvature, 10)
        dense = evidence.posterior(dense_prior, dense_curvature, 10)
        assert thin.open.numel() < dense.open.numel() or p == 30
        torch.testing.assert_close(thin.determined, dense.determined)
        torch.testing.assert_close(evidence.price(thin), evidence.price(dense))
        made = zip(
            evidence.second_moments(W, prior, thin),
            evidence.second_moments(W, dense_prior, dense),
            strict=True,
        )
        for one, other in made:
            torch.testing.assert_close(one.dense(), other.dense())
        unit = evidence.unit_of(curvature, torch.ones(()))
        prior = evidence.refit(W, prior, thin, thin.determined, Categorical(), unit)
        dense_prior = evidence.refit(W, dense_prior, dense, dense.determined, Categorical(), unit)
        torch.testing.assert_close(prior.row.dense(), dense_prior.row.dense())
        torch.testing.assert_close(prior.col.dense(), dense_prior.col.dense())
        torch.testing.assert_close(prior.col.logdet(), dense_prior.col.logdet())
    assert prior.col.basis.shape[-1] < 40 or p == 30


def test_draws_on_a_wide_side_have_the_posteriors_covariance():
    W, prior, a, g = wide_problem(1, p=2, d=9, m=3)
    found = evidence.posterior(prior, rows.curvature(a, g), 10)
    drawn = evidence.sample(W, found, 50_000, torch.Generator().manual_seed(0)) - W
    dense_prior, curvature = written_out(prior, rows.curvature(a, g))
    precise = 10 * kron(curvature) + np.kron(
        dense_prior.col.dense().numpy(), dense_prior.row.dense().numpy()
    )
    covariance = np.linalg.inv(precise)
    flat = drawn.mT.flatten(1).numpy()
    assert np.cov(flat.T) == pytest.approx(covariance, abs=0.03 * covariance.max())


def test_a_rank_that_is_too_large_is_cut():
    """Twelve directions kept of fifty: trace and geometric mean are those of all."""
    W, prior, a, g = wide_problem(2, p=3, d=50, m=20)
    found = evidence.posterior(prior, rows.curvature(a, g), 10)
    whole = evidence.second_moments(W, prior, found)[1]
    cut = evidence.second_moments(W, prior, found, rank=12)[1]
    assert cut.basis.shape == (50, 12)
    assert cut.dense().trace().item() == pytest.approx(whole.dense().trace().item())
    assert torch.linalg.norm(cut.dense() - whole.dense()) < 0.4 * torch.linalg.norm(
        whole.dense() - whole.dense().trace() / 50 * torch.eye(50)
    )
    few = rows.curvature(a, g, rank=12)
    assert few.inputs.shape == (12, 50)
    A, exact = few.inputs.mT @ few.inputs, written_out(prior, rows.curvature(a, g))[1].inputs
    assert A.trace().item() == pytest.approx(exact.trace().item(), rel=0.3)


def test_an_update_of_a_very_wide_layer_decomposes_nothing_large(monkeypatch):
    """20 samples of 6,000 inputs."""
    sizes, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda M: sizes.append(M.shape[-1]) or eigh(M))
    W, prior, a, g = wide_problem(3, p=2, d=6000, m=20)
    for _ in range(3):
        curvature = rows.curvature(a, g)
        found = evidence.posterior(prior, curvature, 20)
        unit = evidence.unit_of(curvature, torch.ones(()))
        prior = evidence.refit(W, prior, found, found.determined, Categorical(), unit)
    assert 2 < max(sizes) <= 2 + 20 + 26


def test_draws_from_the_posterior_have_its_covariance():
    model = Linear(p=2, d=2)
    W, prior = model.weight(), model.prior()
    found = evidence.posterior(prior, rows.curvature(*model.rows()), model.n)
    drawn = evidence.sample(W, found, 50_000, torch.Generator().manual_seed(0))
    flat = drawn.mT.flatten(1).numpy()
    mean, covariance, _ = model.posterior()
    assert flat.mean(0) == pytest.approx(mean, abs=0.01)
    assert np.cov(flat.T) == pytest.approx(covariance, abs=0.03 * covariance.max())


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_nothing_known_is_no_accident(likelihood):
    """Zero curvature, zero weights: finite priors, and no weight is determined."""
    W = torch.zeros(3, 4)
    zero = Curvature(torch.zeros(4, 4).double(), torch.zeros(3, 3).double())
    outputs, targets, _ = problem(likelihood, 3, m=5)
    done = evidence.update_priors(
        {"w": W},
        {"w": evidence.start(W)},
        {"w": zero},
        torch.zeros(5, 5).double(),
        outputs,
        targets,
        torch.ones((), dtype=torch.float64),
        likelihood,
        5,
    )
    layer = done.layers["w"]
    assert layer.gamma.item() == 0
    assert layer.prior.row.dense().isfinite().all()
    assert layer.prior.col.dense().isfinite().all()
    assert evidence.scale(layer.prior) > 0


@pytest.mark.parametrize(
    ("name", "value"), [("step", 1.0), ("shape", 0.0), ("count", 1e-3), ("scales", (1e-9, 1e-8))]
)
def test_constants_are_passed_on(name, value):
    """Each changes the update of a classifier, and none of them a module."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(3, 4, generator=generator)
    a = torch.randn(9, 4, generator=generator).double()
    outputs, labels = a @ W.double().mT, torch.arange(9) % 3
    noise = torch.ones((), dtype=torch.float64)
    own = Categorical().directions(outputs, noise, 10, generator)
    shared = Categorical().shared_directions(outputs, noise, 10, generator)
    prior = evidence.start(W)

    def scale_and_shape(constants):
        done = evidence.update_priors(
            {"w": W},
            {"w": prior},
            {"w": rows.curvature(a, own)},
            rows.kernel(a, shared, prior),
            outputs,
            labels,
            noise,
            Categorical(),
            9,
            constants=constants,
        )
        return done.layers["w"].prior.col.dense()

    usual = scale_and_shape(Constants())
    assert torch.equal(usual, scale_and_shape(DEFAULTS))
    assert not torch.allclose(usual, scale_and_shape(Constants(**{name: value})))


def test_scale_of_a_normalised_layer_has_no_say():
    model = Linear()
    natural = evidence.natural(model.weight(), model.prior())
    assert natural.penalty(model.weight()).item() == pytest.approx(12)
    bigger = evidence.natural(10 * model.weight(), model.prior())
    assert evidence.scale(bigger).item() == pytest.approx(evidence.scale(natural).item() / 100)


@pytest.mark.parametrize("width", [3, 400])
def test_growth_with_the_number_of_samples(width):
    """Few features are determined by any number of samples; many by the more the more there are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, width))
    K = torch.tensor(X @ X.T / width)

    def count(m, n):
        ones = torch.ones(m, dtype=torch.float64)
        return evidence.determined(K[:m, :m], ones / 0.1, ones, n).item()

    assert count(100, 400) == pytest.approx(count(400, 400), rel=0.25)


@pytest.mark.parametrize("size", [1.0, 1e20])
def test_leverage_of_a_kernel_of_any_size(size):
    """Four features of nine samples: as the prior fades, a projection on them."""
    X = np.random.default_rng(0).normal(size=(9, 4))
    kernel = torch.tensor(size * X @ X.T)
    lever = evidence.leverage(kernel, torch.ones(9, dtype=torch.float64))
    hat = X @ np.linalg.solve(X.T @ X + np.eye(4) / size, X.T)
    assert lever.numpy() == pytest.approx(np.diag(hat), abs=1e-8)


def test_a_kernel_needs_no_matrix_of_a_wide_side(monkeypatch):
    """A prior that is a multiple of the identity is not written out."""
    a, g = torch.randn(3, 6).double(), torch.randn(2, 3, 4).double()
    M = torch.einsum("md,rmp->rmpd", a, g)
    prior = evidence.start(torch.zeros(4, 6, dtype=torch.float64))
    dense = sum(r @ r.mT for r in M.flatten(2).double()) / evidence.scale(prior)
    monkeypatch.setattr(Precision, "dense", None)
    torch.testing.assert_close(rows.kernel(a, g, prior), dense)
    torch.testing.assert_close(rows.matrix_kernel(M, prior), dense)
