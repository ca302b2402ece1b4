"""The evidence rule against dense linear algebra in NumPy, on models where it is exact."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from adareg import MatrixNormal, Precision
from adareg.core import evidence, jacobian, observation
from adareg.core.jacobian import Curvature
from adareg.core.observation import Outputs


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
        """Every output of every sample is a direction."""
        grads = torch.eye(self.p, dtype=torch.float64)[:, None].expand(self.p, self.n, self.p)
        return torch.tensor(self.X), grads

    def update(self, scale=1.0):
        a, g = self.rows()
        outputs = torch.tensor(self.X) @ self.weight(scale).mT
        return evidence.update(
            {"w": self.weight(scale)},
            {"w": self.prior(scale)},
            {"w": jacobian.curvature(a, g)},
            jacobian.kernel(a, g / math.sqrt(self.p), self.prior(scale)),
            observation.regress(outputs, torch.tensor(self.Y)),
            self.n,
            torch.tensor(self.noise, dtype=torch.float64),
            "regression",
        )


def kron(curvature):
    return torch.kron(curvature.inputs, curvature.outputs).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_posterior_of_a_linear_model_is_exact(seed):
    model = Linear(seed)
    curvature = jacobian.curvature(*model.rows())
    assert kron(curvature) == pytest.approx(model.design.T @ model.design / model.n, abs=1e-12)

    W, prior = model.weight(), model.prior()
    found = evidence.posterior(prior, curvature, model.n / model.noise)
    mean, covariance, gamma = model.posterior()
    assert found.determined.item() == pytest.approx(gamma, abs=1e-10)

    moment = (covariance + np.outer(mean, mean)).reshape(model.d, model.p, model.d, model.p)
    row, col = evidence.second_moments(W, prior, found)
    assert row.numpy() == pytest.approx(np.einsum("ipjq,ij->pq", moment, model.col), abs=1e-8)
    assert col.numpy() == pytest.approx(np.einsum("ipjq,pq->ij", moment, model.row), abs=1e-8)


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
        outputs = observation.regress(torch.zeros(8, 1), torch.tensor(residual)[:, None])
        lever = evidence.leverage(torch.tensor(K), torch.full((8,), 1 / noise).double())
        fit = outputs.actual.mean() / (1 - lever.mean()).square()
        estimates.append(fit.item())
    assert min(estimates) > 0.1 * max(estimates)


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    model = Linear(p=1)
    a, g = model.rows()
    lever = evidence.leverage(
        jacobian.kernel(a, g, model.prior()),
        torch.full((model.n,), 1 / model.noise, dtype=torch.float64),
    )
    _, covariance, _ = model.posterior()
    hat = model.design @ covariance @ model.design.T / model.noise
    assert lever.numpy() == pytest.approx(np.diag(hat), abs=1e-10)


def test_curvature_keeps_both_marginals():
    rng = np.random.default_rng(1)
    M = rng.normal(size=(2, 6, 3, 4))  # draws, samples, p, d
    full = np.einsum("rmpd,rmqe->dpeq", M, M) / 6  # columns of W one after another
    made = kron(jacobian.matrix_curvature(torch.tensor(M))).reshape(4, 3, 4, 3)
    assert np.einsum("dpdq->pq", made) == pytest.approx(np.einsum("dpdq->pq", full))
    assert np.einsum("dpep->de", made) == pytest.approx(np.einsum("dpep->de", full))


def test_rows_of_a_linear_map_are_outer_products():
    rng = np.random.default_rng(2)
    a, g = torch.tensor(rng.normal(size=(5, 4))), torch.tensor(rng.normal(size=(2, 5, 3)))
    M = torch.einsum("md,rmp->rmpd", a, g)
    prior = MatrixNormal(precision(spd(3, rng)), precision(spd(4, rng)))
    for one, other in zip(jacobian.curvature(a, g), jacobian.matrix_curvature(M), strict=True):
        torch.testing.assert_close(one, other)
    covariance = np.kron(prior.row.covariance().numpy(), prior.col.covariance().numpy())
    flat = M.flatten(2).numpy()
    dense = sum(rows @ covariance @ rows.T for rows in flat)
    assert jacobian.kernel(a, g, prior).numpy() == pytest.approx(dense)
    assert jacobian.matrix_kernel(M, prior).numpy() == pytest.approx(dense)


@pytest.mark.parametrize("K", [1, 2, 5, 12])
def test_draws_have_the_curvature_of_the_likelihood(K):
    logits = torch.randn(3, K, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rounds = 1 if K <= jacobian.DRAWS else 2000
    total = torch.zeros(3, K, K, dtype=torch.float64)
    for _ in range(rounds):
        v, _ = jacobian.directions(logits, "classification", generator)
        total += torch.einsum("rmk,rml->mkl", v, v) / rounds
    p = logits.softmax(-1) if K > 1 else logits.sigmoid()
    exact = torch.diag_embed(p) - p[:, :, None] * p[:, None] if K > 1 else (p * (1 - p))[..., None]
    torch.testing.assert_close(total, exact, atol=1e-12 if rounds == 1 else 0.01, rtol=0)


@pytest.mark.parametrize("K", [1, 4, 12])
@pytest.mark.parametrize("likelihood", observation.LIKELIHOODS)
def test_shared_directions_average_over_outputs(K, likelihood):
    generator = torch.Generator().manual_seed(0)
    rounds = 1 if K <= jacobian.DRAWS else 3000
    total = torch.zeros(K, K, dtype=torch.float64)
    for _ in range(rounds):
        _, v = jacobian.directions(torch.zeros(2, K), likelihood, generator)
        assert torch.equal(v[:, 0], v[:, 1])  # the same for all samples
        total += torch.einsum("rk,rl->kl", v[:, 0], v[:, 0]) / rounds
    exact = torch.eye(K, dtype=torch.float64) / K
    if likelihood == "classification" and K > 1:  # a constant in all logits has no effect
        exact = (torch.eye(K, dtype=torch.float64) - 1 / K) / (K - 1)
    torch.testing.assert_close(total, exact, atol=1e-12 if rounds == 1 else 0.01, rtol=0)


def test_effective_directions_of_a_softmax():
    sure = torch.tensor([[0.0, 0, 0, 0], [9.0, 9, -40, -40]], dtype=torch.float64)
    found = observation.classify(sure, torch.tensor([2, 0]))
    assert found.directions.tolist() == pytest.approx([3, 1], rel=1e-6)
    assert found.stiffness.tolist() == pytest.approx([0.25, 0.5], rel=1e-6)
    assert found.actual.tolist() == pytest.approx([0.75, 0.5], rel=1e-6)
    assert found.log_likelihood.tolist() == pytest.approx([math.log(0.25), math.log(0.5)], rel=1e-6)


def test_one_logit_is_two_classes():
    logit = torch.randn(6, 1, dtype=torch.float64)
    two = torch.cat([torch.zeros_like(logit), logit], -1)
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    for one, other in zip(
        observation.classify(logit, labels), observation.classify(two, labels), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_labels_that_the_model_predicts_have_dispersion_one():
    torch.manual_seed(0)
    logits = torch.randn(20_000, 4)
    labels = torch.distributions.Categorical(logits=logits).sample()
    found = observation.classify(logits, labels)
    one = torch.ones((), dtype=torch.float64)
    assert observation.estimate_noise(one, found, 0 * one).item() == pytest.approx(1, abs=0.02)
    wrong = observation.classify(3 * logits, torch.randint(4, (20_000,)))
    assert observation.estimate_noise(one, wrong, 0 * one) > 1.4


def test_what_a_constant_prediction_leaves():
    """NumPy's variance of one-hot labels, or of targets, summed over outputs."""
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(4, size=30), torch.tensor(rng.normal(size=(30, 4)))
    expected = np.eye(4)[labels].var(0).sum()
    found = observation.classify(logits, torch.tensor(labels))
    assert found.unlearned.item() == pytest.approx(expected)
    two = observation.classify(logits[:, :1], torch.tensor(labels % 2))
    assert two.unlearned.item() == pytest.approx(np.eye(2)[labels % 2].var(0).sum())
    targets = rng.normal(size=(30, 3)) + 5
    found = observation.regress(torch.tensor(targets.mean(0)).expand(30, 3), torch.tensor(targets))
    assert found.unlearned.item() == pytest.approx(targets.var(0).sum())
    assert not observation.has_learned(found)
    closer = torch.tensor(0.9 * targets.mean(0) + 0.1 * targets)
    assert observation.has_learned(observation.regress(closer, torch.tensor(targets)))
    assert not observation.has_learned(observation.regress(closer + 1, torch.tensor(targets)))
    assert observation.has_learned(observation.classify(logits, None))  # nothing can be told


def test_layers_that_can_do_the_same_are_counted_once():
    """Two copies of one linear map: each layer claims what only both together have."""
    model = Linear(p=1, n=20, noise=1e-3)
    a, g = model.rows()
    curvature, prior = jacobian.curvature(a, g), model.prior()
    W = model.weight() / 2
    facts = observation.regress(torch.tensor(model.X) @ (2 * W).mT, torch.tensor(model.Y))
    noise = torch.tensor(model.noise, dtype=torch.float64)
    done = evidence.update(
        {"a": W, "b": W},
        {"a": prior, "b": prior},
        {"a": curvature, "b": curvature},
        2 * jacobian.kernel(a, g, prior),
        facts,
        model.n,
        noise,
        "regression",
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
    g = torch.eye(p, dtype=torch.float64)[:, None].expand(p, n, p)
    done = evidence.update(
        dict(enumerate(weights)),
        dict(enumerate(priors)),
        {i: jacobian.curvature(torch.tensor(x), g) for i, x in enumerate(parts)},
        sum(
            jacobian.kernel(torch.tensor(x), g / math.sqrt(p), prior)
            for x, prior in zip(parts, priors, strict=True)
        ),
        observation.regress(outputs, torch.tensor(Y)),
        n,
        torch.tensor(noise, dtype=torch.float64),
        "regression",
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
    together = evidence.update(
        {"w": stacked["w"]},
        {"w": stacked["prior"]},
        {"w": jacobian.curvature(stacked["a"], stacked["g"])},
        jacobian.kernel(stacked["a"], stacked["g"] / math.sqrt(2), stacked["prior"]),
        observation.regress(
            stacked["a"] @ stacked["w"].mT, torch.stack([torch.tensor(m.Y) for m in models])
        ),
        models[0].n,
        torch.full((3,), models[0].noise).double(),
        "regression",
    )
    for i, model in enumerate(models):
        alone = model.update()
        torch.testing.assert_close(together.noise[i], alone.noise)
        torch.testing.assert_close(together.log_evidence[i], alone.log_evidence)
        one, other = together.layers["w"], alone.layers["w"]
        torch.testing.assert_close(one.gamma[i], other.gamma)
        torch.testing.assert_close(one.prior.col.dense()[i], other.prior.col.dense())


def test_a_wide_side_keeps_its_diagonal(monkeypatch):
    """With inputs that are uncorrelated and a scalar prior the diagonal is all there is."""
    a = torch.diag(torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64))
    g = torch.ones(1, 4, 2, dtype=torch.float64)
    W = torch.randn(2, 4, dtype=torch.float64)
    prior = evidence.start(W)
    dense = evidence.posterior(prior, jacobian.curvature(a, g), 10)
    monkeypatch.setattr(jacobian, "WIDEST", 3)
    curvature = jacobian.curvature(a, g)
    assert curvature.inputs.shape == (1, 4)
    thin = evidence.posterior(prior, curvature, 10)
    torch.testing.assert_close(thin.determined, dense.determined)
    torch.testing.assert_close(
        evidence.log_evidence(W, prior, thin), evidence.log_evidence(W, prior, dense)
    )
    new = evidence.refit(W, prior, thin, thin.determined, "classification")
    assert new.col.basis.shape == (4, 0)
    assert new.row.basis.shape == (2, 2)
    generator = torch.Generator().manual_seed(0)
    drawn = evidence.sample(W, thin, prior, 20_000, generator) - W
    variance = 1 / (evidence.scale(prior) + 10 * 2 * a.diagonal().square() / 4 / 2)
    assert drawn.square().mean((0, 1)).tolist() == pytest.approx(
        ((1 / evidence.scale(prior) + variance * 0) * thin.open.mean(0)).tolist(), rel=0.05
    )


def test_draws_from_the_posterior_have_its_covariance():
    model = Linear(p=2, d=2)
    W, prior = model.weight(), model.prior()
    found = evidence.posterior(prior, jacobian.curvature(*model.rows()), model.n / model.noise)
    drawn = evidence.sample(W, found, prior, 50_000, torch.Generator().manual_seed(0))
    flat = drawn.mT.flatten(1).numpy()
    mean, covariance, _ = model.posterior()
    assert flat.mean(0) == pytest.approx(mean, abs=0.01)
    assert np.cov(flat.T) == pytest.approx(covariance, abs=0.03 * covariance.max())


@pytest.mark.parametrize("likelihood", observation.LIKELIHOODS)
def test_nothing_known_is_no_accident(likelihood):
    """Zero curvature, zero weights: finite priors, and no weight is determined."""
    W = torch.zeros(3, 4)
    zero = Curvature(torch.zeros(4, 4).double(), torch.zeros(3, 3).double())
    nothing = torch.zeros(5).double()
    facts = Outputs(nothing, nothing + 1, nothing + 1, nothing, nothing, 0, None)
    one = torch.ones((), dtype=torch.float64)
    done = evidence.update(
        {"w": W},
        {"w": evidence.start(W)},
        {"w": zero},
        torch.zeros(5, 5).double(),
        facts,
        5,
        one,
        likelihood,
    )
    layer = done.layers["w"]
    assert layer.gamma.item() == 0
    assert layer.prior.row.dense().isfinite().all()
    assert layer.prior.col.dense().isfinite().all()
    assert evidence.scale(layer.prior) > 0


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
        facts = observation.regress(torch.zeros(m, 1), torch.zeros(m, 1))
        return evidence.determined(K[:m, :m], facts, torch.tensor(0.1).double(), n).item()

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
    rows = torch.einsum("md,rmp->rmpd", a, g)
    prior = evidence.start(torch.zeros(4, 6, dtype=torch.float64))
    dense = sum(r @ r.mT for r in rows.flatten(2).double()) / evidence.scale(prior)
    monkeypatch.setattr(Precision, "dense", None)
    torch.testing.assert_close(jacobian.kernel(a, g, prior), dense)
    torch.testing.assert_close(jacobian.matrix_kernel(rows, prior), dense)
