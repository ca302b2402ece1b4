import cvxpy as cp
import numpy as np
import pytest
import torch

import adareg


def test_two_by_two_by_hand():
    # Δ = [[2, 1], [1, 2]] has eigenvalues 3 and 1 along (1, 1)/√2 and (1, −1)/√2.
    delta = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    answer = adareg.inv_threshold(delta, 6.0, bounds=(0.1, 4.0))  # 6/3 = 2; 6/1 is cut to 4
    torch.testing.assert_close(answer, torch.tensor([[3.0, -1.0], [-1.0, 3.0]]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_null_directions_get_v_and_not_u(seed, dtype):
    # The paper's softmax layer: WᵀW is 50 x 50 of rank 10, so rounding makes 40 eigenvalues ±0.
    W = 0.1 * torch.randn(10, 50, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    eigenvalues = torch.linalg.eigvalsh(adareg.inv_threshold((W.mT @ W).double(), 10, (0.01, 100)))
    assert (eigenvalues > 99).sum() == 40


@pytest.mark.parametrize("bounds", [(0.01, 100.0), (0.3, 2.0)])  # uv = 1, uv ≠ 1
@pytest.mark.parametrize("seed", range(4))
def test_against_cvxpy(seed, bounds):
    rng = np.random.default_rng(seed)
    n, m = 4, 3.0
    X = rng.normal(size=(n, 3))
    delta = X @ X.T
    omega = cp.Variable((n, n), PSD=True)
    u, v = bounds
    problem = cp.Problem(
        cp.Minimize(cp.trace(omega @ delta) - m * cp.log_det(omega)),
        [omega >> u * np.eye(n), omega << v * np.eye(n)],
    )
    problem.solve(solver=cp.CLARABEL)
    ours = adareg.inv_threshold(torch.from_numpy(delta), m, bounds).numpy()
    value = np.trace(ours @ delta) - m * np.linalg.slogdet(ours)[1]
    assert value == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(ours, omega.value, atol=1e-3 * v)


def test_batches_and_asymmetry_are_handled():
    X, Y = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    delta = X @ X.mT
    each = torch.stack([adareg.inv_threshold(x, 2.0) for x in delta])
    torch.testing.assert_close(adareg.inv_threshold(delta + Y - Y.mT, 2.0), each)


@pytest.mark.parametrize(
    "bounds",
    [
        (0.0, 1.0),
        (-1.0, 1.0),
        (2.0, 1.0),
        (1.0, float("inf")),
        (float("nan"), 1.0),
        (1.0,),
        3,
        "ab",
    ],
)
def test_wrong_bounds_are_named(bounds):
    with pytest.raises(ValueError, match=r"bounds=.*0 < u <= v"):
        adareg.inv_threshold(torch.eye(2), 1.0, bounds)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"square.*\(2, 3\)"):
        adareg.inv_threshold(torch.zeros(2, 3), 1.0)
    with pytest.raises(ValueError, match="m=-1"):
        adareg.inv_threshold(torch.eye(2), -1)
    with pytest.raises(ValueError, match="m=None: expected a positive number"):
        adareg.inv_threshold(torch.eye(2), None)
    for delta in (None, [[1.0]]):
        with pytest.raises(TypeError, match=r"delta: expected a tensor, got (NoneType|list)"):
            adareg.inv_threshold(delta, 1.0)
    with pytest.raises(ValueError, match="torch.int64"):
        adareg.inv_threshold(torch.eye(2, dtype=torch.int64), 1)
    with pytest.raises(adareg.NonFiniteError, match="delta has NaN"):
        adareg.inv_threshold(torch.full((2, 2), float("nan")), 1)
