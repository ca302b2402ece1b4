import subprocess
import sys

import torch

import adareg
from adareg.core.linalg import eigh, inner, matmul, unit_columns


def test_products_do_not_follow_a_lowered_matmul_precision(tf32):
    A, B = torch.randn(300, 400), torch.randn(400, 200)
    exact = A.double() @ B.double()
    assert torch.linalg.norm(matmul(A, B) - exact) < 1e-6 * torch.linalg.norm(exact)
    fit, W = torch.randn(2, 500, 600)
    prior, double = adareg.solve(fit), adareg.solve(fit.double())
    torch.testing.assert_close(
        prior.penalty(W).double(), double.penalty(W.double()), rtol=1e-5, atol=0
    )
    assert torch.get_float32_matmul_precision() == "high"  # and leave it as it is


def test_either_way_of_setting_the_precision_can_be_read():
    """torch 2.9 brought a second way, after which reading the first raises."""
    program = (
        "import torch; from adareg.core.linalg import _is_full_precision as full;"
        "A = torch.ones(2, 2); states = [full(A)];"
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'; states.append(full(A));"
        "torch.backends.mkldnn.matmul.fp32_precision = 'ieee'; states.append(full(A));"
        "print(states, full(A.double()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[True, False, True] True", done.stderr


def test_inner_and_unit_columns_against_plain_products():
    X, T = torch.randn(3, 5, 70), torch.randn(3, 5, 4, dtype=torch.float64)
    T[..., 2] = 0
    torch.testing.assert_close(inner(X), X.double() @ X.double().mT)
    squared, columns = unit_columns(X, T)
    plain = X.double().mT @ T
    torch.testing.assert_close(squared, plain.square().sum(-2))
    torch.testing.assert_close(columns * squared.sqrt().unsqueeze(-2), plain)
    assert (columns[..., 2] == 0).all()


def test_eigenvalues_are_not_negative():
    X = torch.randn(30, 3, dtype=torch.float64)
    r, Q = eigh(X @ X.mT)
    assert r.min() >= 0
    torch.testing.assert_close((Q * r) @ Q.mT, X @ X.mT)
