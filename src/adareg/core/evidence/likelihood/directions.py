"""Directions: vectors in the space of the outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sums_to_zero(gradient: Tensor, tolerance: float = 1e-3) -> bool:  # (m, K)
    """Return if each sample's gradient sums to zero over outputs, within a share of its size."""
    if gradient.ndim < 2 or gradient.shape[-1] == 1:
        return False
    g = gradient.detach().double()
    g = g[g.isfinite().all(-1) & (g != 0).any(-1)]
    sums, sizes = g.sum(-1).abs(), g.abs().sum(-1)
    rounding = 4 * torch.finfo(gradient.dtype).eps * gradient.shape[-1] ** 0.5
    return len(g) > 0 and bool((sums <= max(rounding, tolerance) * sizes).all())


def orthonormal(
    K: int, draws: int, generator: torch.Generator, centred: bool = False
) -> Tensor:  # (≤ draws, K)
    """Return vectors whose outer products sum to the mean over K outputs, or draws of them."""
    vectors = torch.eye(K, dtype=torch.float64, device="cpu")
    if centred:
        vectors = vectors - 1 / K
    rank = K - 1 if centred else K
    if len(vectors) > draws:
        random = torch.randn(K, draws, generator=generator, dtype=torch.float64, device="cpu")
        vectors = torch.linalg.qr(vectors @ random).Q.mT
        rank = draws
    return vectors / math.sqrt(rank)


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return −1 or 1, as likely; on the CPU."""
    return torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1


def identity(outputs: Tensor) -> Tensor:  # (K, K)
    """Return the directions of single outputs."""
    return torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)


def at_each(vectors: Tensor, outputs: Tensor) -> Tensor:  # (draws, K) -> (draws, …, m, K)
    """Return vectors as those of every sample."""
    shape = (len(vectors), *(1 for _ in outputs.shape[:-1]), vectors.shape[-1])
    return vectors.to(outputs).view(shape).expand(len(vectors), *outputs.shape)
