"""Every form of a prior's linear maps, against dense matrices."""

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import adareg
from adareg import MatrixNormal, Precision
from adareg.core import product
from adareg.core.product import LowRank, Shrinkage, TwoSided, WrittenOut

BOUNDS = (0.2, 5.0)


def side(n):
    """A precision with all its eigenvectors."""
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    return Precision(None, Q, 0.5 + torch.rand(n, dtype=torch.float64))


def complete(shape):
    return MatrixNormal(*map(side, shape))


def solved(shape):
    return adareg.solve(torch.randn(shape, dtype=torch.float64), "joint", BOUNDS)


def large(shape):
    """Float32 factors, of which no product is kept."""
    return adareg.solve(torch.randn(200 * shape[0], 100 * shape[1]) / 30, "joint", BOUNDS)


def uniform(shape):
    prior = large(shape)
    short = int(prior.shape[0] > prior.shape[1])
    sides = [prior.row, prior.col]
    sides[short] = Precision.identity(prior.shape[short])
    return MatrixNormal(*sides)


FORMS = {complete: TwoSided, solved: LowRank, large: LowRank, uniform: LowRank}
#: Priors, and the form of their products: as on a CPU, and written out as on a GPU.
CASES = [*FORMS.items(), (complete, WrittenOut), (solved, WrittenOut)]
SHAPES = [(3, 9), (9, 3)]


def dense(prior, W):
    """``Ωr W Ωc`` in NumPy, float64."""
    row, col = (side.dense().double().numpy() for side in (prior.row, prior.col))
    return row @ W @ col


def assert_close(found, expected, rtol):
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) < rtol * np.linalg.norm(expected)


@pytest.fixture
def form(request, monkeypatch):
    if request.param is WrittenOut:
        monkeypatch.setattr(product.Maps, "_is_tiny", True)
    return request.param


def each(cases):
    names = [f"{make.__name__}-{form.__name__}" for make, form in cases]
    return pytest.mark.parametrize(("make", "form"), cases, ids=names, indirect=["form"])


@each(CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(make, shape, form):
    prior = make(shape)
    W = torch.randn(prior.shape).to(prior.row.basis.dtype)
    exact, rtol = dense(prior, W.double().numpy()), 100 * torch.finfo(W.dtype).eps
    ours = prior.maps.product()
    assert type(ours) is (form)
    if make is uniform:
        assert ours.short.shape == (1, 1)
    assert_close(ours(W).double().numpy(), exact, rtol)
    total = torch.randn_like(W)
    added = total.double().numpy() + 0.3 * exact
    assert_close(ours.add(total, W, 0.3).double().numpy(), added, rtol)
    half = ours.add(total.bfloat16(), W, 0.3)
    assert half.dtype == torch.bfloat16
    assert_close(half.double().numpy(), added, 0.01)


@each(CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_proximal_steps(make, shape, form):
    """They solve ``X + 2·step·Ωr X Ωc = W``."""
    prior = make(shape)
    W = torch.randn(prior.shape).to(prior.row.basis.dtype)
    rtol = 1e3 * torch.finfo(W.dtype).eps
    for step in (0.7, torch.tensor(0.7, dtype=torch.float64)):
        ours = prior.maps.shrinkage(step)
        assert type(ours) is (WrittenOut if form is WrittenOut else Shrinkage)
        X = ours(W).double().numpy()
        assert_close(X + 1.4 * dense(prior, X), W.double().numpy(), rtol)


@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_are_taken_like_tensors(make, shape):
    prior = make(shape)
    W = torch.randn(prior.shape).to(prior.row.basis.dtype)
    rtol = 100 * torch.finfo(W.dtype).eps
    for ours in (prior.maps.product(), prior.maps.shrinkage(0.7)):
        theirs = ours.apply(Tensor.numpy)
        assert type(theirs) is type(ours)
        found = theirs(W.numpy())
        assert type(found) is np.ndarray
        assert_close(found, ours(W).numpy(), rtol)


@each([case for case in CASES if uniform not in case])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_captured_graph_reads_what_an_update_writes(make, shape, form):
    prior, other = make(shape), make(shape)
    captured = prior.maps.product(), prior.maps.shrinkage(0.7)
    prior.copy_(other)
    W = torch.randn(prior.shape).to(prior.row.basis.dtype)
    for old, new in zip(captured, (other.maps.product(), other.maps.shrinkage(0.7)), strict=True):
        torch.testing.assert_close(old(W), new(W))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_captured_while_the_shorter_side_was_uniform(shape, monkeypatch):
    """Within a capture maps are made of the factors themselves, which updates write into."""
    monkeypatch.setattr(product.Maps, "_is_captured_uniform", True)
    prior, other = uniform(shape), large(shape)
    for ours in (prior.maps.product(), prior.maps.shrinkage(0.7)):
        W = torch.randn(prior.shape)
        k = min(prior.shape)
        assert ours.factors[0].shape == (k, k)
        expected = dense(prior, W.double().numpy())
        if isinstance(ours, LowRank):
            assert_close(ours(W).double().numpy(), expected, 1e-4)
    assert prior.maps.product() is not prior.maps.product()
    assert other.maps.product() is not other.maps.product()


def plain(prior):
    row, col = prior.row.dense(), prior.col.dense()
    return lambda W: (W * (row @ W @ col)).sum()


DERIVATIVES = {
    "hessian": hessian,
    "jacfwd": jacfwd,
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
    "jvp of grad": lambda f: lambda W: jvp(grad(f), (W,), (W.sin(),)),
    "jvp of jvp": lambda f: lambda W: jvp(lambda X: jvp(f, (X,), (W.sin(),))[1], (W,), (W.cos(),)),
    "third": lambda f: jacfwd(hessian(lambda W: f(W) ** 2)),
    "vmap of jvp": lambda f: (
        lambda W: vmap(lambda V: jvp(f, (W,), (V,))[1])(torch.stack([W.sin(), W.cos()]))
    ),
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES.keys())
@each([case for case in CASES if large not in case and uniform not in case])
def test_forward_mode(make, derivative, form):
    """In a transform from the first use on, and again in the next one."""
    prior, W = make((3, 5)), torch.randn(3, 5, dtype=torch.float64)
    expected = derivative(plain(prior))(W)
    for _ in range(2):
        torch.testing.assert_close(derivative(prior.penalty)(W), expected)


def test_forward_mode_without_transforms():
    prior, W = solved((3, 5)), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        prior.penalty, W, check_forward_ad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(prior.penalty, W, check_fwd_over_rev=True)


def test_a_compiled_hessian():
    prior, W = solved((3, 5)), torch.randn(3, 5, dtype=torch.float64)
    prior.penalty(W)
    compiled = torch.compile(hessian(prior.penalty), backend="aot_eager")(W)
    torch.testing.assert_close(compiled, hessian(plain(prior))(W))


def test_a_compiled_gradient_needs_no_more_products():
    """The backward pass scales the forward's product, whose last step it may make again."""
    products = []

    def count(graph, inputs):
        products.append(sum("mm" in str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    prior, W = solved((3, 5)), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    prior.penalty(W)
    compiled = torch.compile(prior.penalty, backend=aot_autograd(fw_compiler=count), fullgraph=True)
    compiled(W).backward()
    torch.testing.assert_close(W.grad, prior.gradient(W.detach()))
    forward, backward = products
    assert backward < forward
