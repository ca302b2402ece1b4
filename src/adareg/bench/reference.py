"""The paper's update written literally: two dense singular value decompositions."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_update(
    W: Tensor,  # (p, d)
    bounds: tuple[float, float],
    col: Tensor | None = None,  # (d, d)
) -> tuple[Tensor, Tensor]:
    """Lines 3 and 4 of Alg. 1, with matrices p x p and d x d."""
    p, d = W.shape
    col = torch.eye(d, dtype=W.dtype, device=W.device) if col is None else col
    row = _inv_threshold(W @ col @ W.T, d, bounds)
    return row, _inv_threshold(W.T @ row @ W, p, bounds)


def _inv_threshold(delta: Tensor, m: int, bounds: tuple[float, float]) -> Tensor:
    Q, r, _ = torch.linalg.svd(delta)
    return (Q * (m / r).clamp(*bounds)) @ Q.T
