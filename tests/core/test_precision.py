import numpy as np
import pytest
import torch

from adareg import Precision


def _precision(n=7, k=3, batch=(), complete=False):
    basis = torch.linalg.qr(torch.randn(*batch, n, n, dtype=torch.float64)).Q[..., :k]
    values = torch.rand(*batch, k, dtype=torch.float64) + 0.1
    scale = None if complete else torch.full(batch, 2.5, dtype=torch.float64)
    return Precision(scale, basis, values)


def _dense(P):
    """Entry by entry from the definition, one batch item."""
    B, e = P.basis.numpy(), P.values.numpy()
    c = 0 if P.scale is None else P.scale.numpy()
    return c * (np.eye(len(B)) - B @ B.T) + B @ np.diag(e) @ B.T


@pytest.mark.parametrize(
    ("k", "complete"), [(0, False), (1, False), (3, False), (7, False), (7, True)]
)
def test_against_dense(k, complete):
    P = _precision(k=k, complete=complete)
    D = _dense(P)
    X = np.random.default_rng(0).normal(size=(7, 4))
    np.testing.assert_allclose(P.dense(), D, atol=1e-13)
    np.testing.assert_allclose(P @ torch.from_numpy(X), D @ X, atol=1e-13)
    np.testing.assert_allclose(torch.from_numpy(X.T) @ P, X.T @ D, atol=1e-13)
    np.testing.assert_allclose(P.covariance(), np.linalg.inv(D), atol=1e-12)
    np.testing.assert_allclose(P.inverse().dense(), np.linalg.inv(D), atol=1e-12)
    H = P.root().numpy()
    np.testing.assert_allclose(H @ H.T, D, atol=1e-12)
    root = P.sqrt().dense().numpy()
    np.testing.assert_allclose(root @ root, D, atol=1e-12)
    np.testing.assert_allclose(P.eigenvalues(), np.linalg.eigvalsh(D), atol=1e-12)
    np.testing.assert_allclose(P.logdet(), np.linalg.slogdet(D)[1], atol=1e-12)
    assert P.shape == (7, 7)


def test_batched_is_one_by_one():
    P = _precision(batch=(2, 3))
    X = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    assert P.shape == (2, 3, 7, 7)
    for i in np.ndindex(2, 3):
        one = P.apply(lambda factor, i=i: factor[i])
        torch.testing.assert_close((P @ X)[i], one @ X[i])
        torch.testing.assert_close(P.dense()[i], one.dense())
        torch.testing.assert_close(P.logdet()[i], one.logdet())
        torch.testing.assert_close(P.eigenvalues()[i], one.eigenvalues())


@pytest.mark.parametrize(("k", "complete"), [(0, False), (3, False), (7, True)])
def test_split_and_merge_are_inverse_and_norms_add_up(k, complete):
    P = _precision(k=k, complete=complete)
    X = torch.randn(7, 5, dtype=torch.float64)
    coordinates = P.split(X)
    torch.testing.assert_close(P.merge(coordinates), X)
    quadratic = (P.spectrum().unsqueeze(-1) * coordinates.square()).sum()
    torch.testing.assert_close(quadratic, torch.trace(X.mT @ P.dense() @ X))


def test_small_eigenvalue_survives_float32_beside_a_large_one():
    basis = torch.linalg.qr(torch.randn(5, 1)).Q
    P = Precision(torch.tensor(1e3), basis, torch.tensor([1e-3]))
    assert P.eigenvalues()[0] == torch.tensor(1e-3)
    assert P.inverse().eigenvalues()[-1].item() == pytest.approx(1e3, rel=1e-6)


def test_products_keep_the_dtype_of_what_they_multiply():
    P = _precision()
    X, x = torch.randn(7, 4), torch.randn(7)
    assert (P @ X).dtype == torch.float32
    torch.testing.assert_close(P @ X, (P.dense() @ X.double()).float())
    torch.testing.assert_close(X.mT @ P, (X.mT.double() @ P.dense()).float())
    torch.testing.assert_close(P @ x, (P.dense() @ x.double()).float())
    torch.testing.assert_close(x @ P, (x.double() @ P.dense()).float())


def test_moves_and_speaks():
    P = _precision().to(torch.float32)
    assert all(x.dtype == torch.float32 for x in P.factors)
    assert repr(P) == "Precision(shape=(7, 7), rank=3, dtype=torch.float32)"
