"""Slow, literal versions of the maths in NumPy. They share no code with what they check.

A precision is held as ``(Q, e)``, eigenvectors and eigenvalues, all n of them.
"""

import numpy as np


def identity(n):
    return np.eye(n), np.ones(n)


def dense(precision):
    Q, e = precision
    return (Q * e) @ Q.T


def inv_threshold(root, m, u, v):
    """InvThreshold(R Rᵀ, m) of Alg. 1 from a root R: the SVD of R avoids squaring its error."""
    Q, s, _ = np.linalg.svd(root, full_matrices=True)
    r = np.zeros(len(Q))
    r[: len(s)] = s**2
    with np.errstate(divide="ignore"):
        return Q, np.clip(m / r, u, v)


def root(W, other):
    """A root of W Ω Wᵀ."""
    Q, e = other
    return (W @ Q) * np.sqrt(e)


def alternating(W, u, v, sweeps=1, col=None):
    """Lines 3 and 4 of Alg. 1, repeated."""
    p, d = W.shape
    col = identity(d) if col is None else col
    for _ in range(sweeps):
        row = inv_threshold(root(W, col), d, u, v)
        col = inv_threshold(root(W.T, row), p, u, v)
    return row, col


def official(W, u, v, sweeps=1):
    """The authors' order and numerators."""
    p, d = W.shape
    row = identity(p)
    for _ in range(sweeps):
        col = inv_threshold(root(W.T, row), d, u, v)
        row = inv_threshold(root(W, col), p, u, v)
    return row, col


def penalty(W, row, col):
    (Qr, er), (Qc, ec) = row, col
    return np.sum((np.sqrt(er)[:, None] * (Qr.T @ W @ Qc) * np.sqrt(ec)) ** 2)


def objective(W, row, col):
    p, d = W.shape
    return penalty(W, row, col) - d * np.log(row[1]).sum() - p * np.log(col[1]).sum()


def terms(W, row, col):
    """The size of what is added and subtracted in the objective."""
    p, d = W.shape
    logs = d * np.abs(np.log(row[1])).sum() + p * np.abs(np.log(col[1])).sum()
    return penalty(W, row, col) + logs


def joint_value(W, u, v):
    """The joint minimum, found without the closed form: bisection along each singular value.

    For fixed b the best a is clip(d/(s²b), u, v); what is left is convex in log b.
    """
    p, d = W.shape
    s2 = np.linalg.svd(W, compute_uv=False) ** 2
    low = np.full(len(s2), np.log(u))
    high = np.full(len(s2), np.log(v))

    def best_a(log_b):
        with np.errstate(divide="ignore"):
            return np.clip(d / (s2 * np.exp(log_b)), u, v)

    for _ in range(200):
        middle = (low + high) / 2
        slope = s2 * best_a(middle) * np.exp(middle) - p  # by the envelope theorem
        low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
    value = 0.0
    for log_b in (low, high):  # the end that bisection walked to, bounds included
        a, b = best_a(log_b), np.exp(log_b)
        each = s2 * a * b - d * np.log(a) - p * np.log(b)
        value = each if log_b is low else np.minimum(value, each)
    null = (d * (p - len(s2)) + p * (d - len(s2))) * np.log(v)
    return value.sum() - null
