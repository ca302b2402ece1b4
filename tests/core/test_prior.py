import numpy as np
import pytest
import scipy.stats
import torch

import adareg
from adareg import MatrixNormal

BOUNDS = (0.2, 5.0)
SHAPES = [(1, 1), (1, 6), (6, 1), (3, 5), (5, 3), (4, 4)]


def _fitted(shape, rule="alternating", rank=None, dtype=torch.float64):
    """A prior fitted to one weight, and another weight to evaluate it at."""
    fit, W = torch.randn(2, *shape, dtype=dtype)
    if rank is not None:
        U, s, Vt = torch.linalg.svd(fit, full_matrices=False)
        fit = U[:, :rank] @ s[:rank].diag() @ Vt[:rank]
    return adareg.solve(fit, rule, BOUNDS), W


def _kron(prior):
    """The dense precision of vec(W), W's columns stacked: Ωc ⊗ Ωr."""
    return np.kron(prior.col.dense(), prior.row.dense())


def _vec(W):
    return W.detach().numpy().flatten(order="F")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_penalty_and_gradient_against_dense_kronecker(shape, rank):
    prior, W = _fitted(shape, rank=rank)
    W.requires_grad_()
    value = prior.penalty(W)
    value.backward()
    K, w = _kron(prior), _vec(W)
    assert value.item() == pytest.approx(w @ K @ w, rel=1e-12)
    np.testing.assert_allclose(_vec(W.grad), 2 * K @ w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(_vec(prior.gradient(W)), 2 * K @ w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", [0.0, 1e-3, 1.0, 1e6])
def test_proximal_against_a_dense_linear_solve(shape, step):
    prior, W = _fitted(shape)
    expected = np.linalg.solve(np.eye(W.numel()) + 2 * step * _kron(prior), _vec(W))
    np.testing.assert_allclose(_vec(prior.proximal(W, step)), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_prob_against_scipy(shape):
    prior, W = _fitted(shape)
    expected = scipy.stats.matrix_normal(
        rowcov=prior.row.covariance().numpy(), colcov=prior.col.covariance().numpy()
    ).logpdf(W.numpy())
    assert prior.log_prob(W).item() == pytest.approx(expected, rel=1e-10)


def test_derivatives_of_every_order():
    prior, W = _fitted((3, 5))
    W.requires_grad_()
    assert torch.autograd.gradcheck(prior.penalty, W)
    assert torch.autograd.gradgradcheck(prior.penalty, W)
    assert torch.autograd.gradcheck(prior.objective, W)


def test_function_transforms():
    prior, _ = _fitted((3, 5))
    W = torch.randn(4, 3, 5, dtype=torch.float64)
    each = torch.stack([prior.penalty(w) for w in W])
    torch.testing.assert_close(torch.func.vmap(prior.penalty)(W), each)
    gradient = torch.func.vmap(torch.func.grad(prior.penalty))(W)
    torch.testing.assert_close(gradient, prior.gradient(W))


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
def test_batched_is_one_by_one(rule):
    weights = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    prior = adareg.solve(weights, rule, BOUNDS)
    assert prior.shape == weights.shape
    W = torch.randn_like(weights)
    for i in np.ndindex(2, 3):
        one = adareg.solve(weights[i], rule, BOUNDS)
        torch.testing.assert_close(prior.penalty(W)[i], one.penalty(W[i]))
        torch.testing.assert_close(prior.objective(W)[i], one.objective(W[i]))
        torch.testing.assert_close(prior.proximal(W, 0.1)[i], one.proximal(W[i], 0.1))


@pytest.mark.parametrize("shape", [(8, 12), (500, 600)])  # float64 and float32 factors
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_weights(shape, dtype):
    fit, W = (0.1 * torch.randn(2, *shape)).to(dtype)
    prior = adareg.solve(fit, "joint", BOUNDS)
    exact = adareg.solve(fit.double(), "joint", BOUNDS)
    assert prior.row.basis.dtype == (torch.float64 if shape == (8, 12) else torch.float32)
    assert prior.penalty(W).dtype == torch.float32
    assert prior.proximal(W, 0.1).dtype == dtype
    torch.testing.assert_close(
        prior.penalty(W).double(), exact.penalty(W.double()), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("scale", [1.0, 1 / 25])
def test_float32_factors_are_backward_stable(scale):
    """The gradient is that of float64, but for what the last bit of the weight can change."""
    W = scale * torch.randn(500, 600)
    fast, exact = adareg.solve(W, "joint"), adareg.solve(W.double(), "joint")
    assert fast.row.basis.dtype == torch.float32
    error = torch.linalg.norm(fast.gradient(W).double() - exact.gradient(W.double()))
    last_bit = torch.finfo(torch.float32).eps * torch.linalg.norm(W.double())
    amplified = 2 * fast.row.eigenvalues()[-1] * fast.col.eigenvalues()[-1] * last_bit
    assert error < 4 * amplified  # three products, each rounded
    shrunk = fast.proximal(W, 1e-4).double(), exact.proximal(W.double(), 1e-4)
    assert torch.linalg.norm(shrunk[0] - shrunk[1]) < 1e-5 * torch.linalg.norm(shrunk[1])


@pytest.mark.parametrize("shape", [(300, 1000), (1000, 300)])
def test_a_shorter_side_that_is_a_multiple_of_the_identity(shape):
    """Large factors: two products take the place of three, and nothing else changes."""
    W = torch.randn(shape) / 40
    prior, exact = adareg.solve(W, "joint"), adareg.solve(W.double(), "joint")
    assert prior.maps.product().short.shape == (1, 1)
    assert adareg.solve(60 * W, "joint").maps.product().short.shape == (300, 300)
    identity = MatrixNormal.identity(W)
    torch.testing.assert_close(identity.gradient(W), 2 * W)
    torch.testing.assert_close(identity.proximal(W, 0.5), W / 2)
    dense = 2 * exact.row.dense() @ W.double() @ exact.col.dense()
    assert (prior.gradient(W) - dense).norm() < 1e-3 * dense.norm()
    shrunk = exact.proximal(W.double(), 1e-4)
    for step in (1e-4, torch.tensor(1e-4)):
        assert (prior.proximal(W, step) - shrunk).norm() < 1e-6 * shrunk.norm()


@pytest.mark.parametrize("scales", [(1, 60), (60, 1), (1, 1), (60, 60)])
def test_a_prior_that_is_overwritten_is_the_other(scales):
    """Whether the shorter side was, or becomes, a multiple of the identity."""
    W = torch.randn(300, 1000) / 40
    prior, other = (adareg.solve(scale * W, "joint") for scale in scales)
    prior.proximal(W, 1e-4)
    prior.copy_(other)
    torch.testing.assert_close(prior.proximal(W, 1e-4), other.proximal(W, 1e-4))
    torch.testing.assert_close(prior.gradient(W), other.gradient(W), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(8, 12), (500, 600)])
def test_autocast_does_not_touch_the_products(shape):
    fit, W = torch.randn(2, *shape)
    prior = adareg.solve(fit)
    outside = prior.penalty(W), prior.gradient(W), prior.proximal(W, 1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = prior.penalty(W), prior.gradient(W), prior.proximal(W, 1e-3)
    for a, b in zip(outside, inside, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(3, 5\)"):
        MatrixNormal.identity(torch.zeros(3, 5)).penalty(torch.zeros(3, 4))
