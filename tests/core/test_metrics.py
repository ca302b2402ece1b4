import numpy as np
import pytest
import torch

import adareg


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (6, 9), (9, 6), (200, 300)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_norms_against_numpy(shape, scale):
    W = scale * torch.randn(shape, dtype=torch.float64)
    s = np.linalg.svd(W.numpy(), compute_uv=False)
    assert adareg.spectral_norm(W).item() == pytest.approx(s[0], rel=1e-12)
    assert adareg.stable_rank(W).item() == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-12)


def test_batched_and_half_precision():
    W = torch.randn(3, 4, 5, dtype=torch.bfloat16)
    one_by_one = torch.stack([adareg.stable_rank(w) for w in W])
    assert one_by_one.dtype == torch.float32
    torch.testing.assert_close(adareg.stable_rank(W), one_by_one)
    torch.testing.assert_close(adareg.spectral_norm(W)[1], adareg.spectral_norm(W[1]))


def test_zero_matrix_has_stable_rank_zero():
    assert adareg.stable_rank(torch.zeros(3, 4)).item() == 0
    assert adareg.spectral_norm(torch.zeros(3, 4)).item() == 0


def test_correlation_is_numpys():
    W = torch.randn(4, 30, dtype=torch.float64)
    np.testing.assert_allclose(adareg.correlation(W), np.corrcoef(W.numpy()), atol=1e-14)


def test_covariance_correlation():
    L = torch.randn(4, 4, dtype=torch.float64)
    C = L @ L.mT + torch.eye(4)
    D = np.diag(1 / np.sqrt(np.diag(C.numpy())))
    np.testing.assert_allclose(adareg.covariance_correlation(C), D @ C.numpy() @ D, atol=1e-14)


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        (adareg.stable_rank, "weight"),
        (adareg.spectral_norm, "weight"),
        (adareg.correlation, "weight"),
        (adareg.covariance_correlation, "covariance"),
        (adareg.solve, "weight"),
    ],
)
def test_what_is_no_matrix_is_refused(measure, name):
    with pytest.raises(
        ValueError, match=rf"{name}: expected a matrix \(…, p, d\), not empty; got shape \(3,\)"
    ):
        measure(torch.ones(3))
    for shape in ((3, 0), (0, 3), (2, 0, 0)):
        with pytest.raises(ValueError, match=rf"{name}: expected a matrix .* not empty; got"):
            measure(torch.ones(shape))
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(ValueError, match=f"{name}: expected real floating point .*{dtype}"):
            measure(torch.ones(3, 3, dtype=dtype))
    with pytest.raises(TypeError, match=f"{name}: expected a tensor, got ndarray; torch.as_tensor"):
        measure(np.ones((3, 3)))


def test_a_covariance_is_square():
    with pytest.raises(ValueError, match=r"covariance must be square, .* got \(2, 3\)"):
        adareg.covariance_correlation(torch.ones(2, 3))


def test_a_weight_that_is_not_finite_has_no_norms():
    W = torch.ones(2, 3, 4)
    W[1, 0, 0] = float("nan")
    assert adareg.spectral_norm(W).isnan().tolist() == [False, True]
    assert adareg.stable_rank(W).isnan().tolist() == [False, True]
