"""2 x 2 max pooling on a GPU, forward and backward, in one kernel each."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _forward(z, pooled, corner, total, C: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    # An output row of ROW numbers is made of two input rows of 2·ROW.
    row, at = i // ROW, i % ROW
    first = z + row * 4 * ROW + (at // C) * 2 * C + at % C
    a = tl.load(first, inside)
    b = tl.load(first + C, inside)
    c = tl.load(first + 2 * ROW, inside)
    d = tl.load(first + 2 * ROW + C, inside)
    best, where = a, tl.zeros_like(at)
    best, where = tl.where(b > best, b, best), tl.where(b > best, 1, where)
    best, where = tl.where(c > best, c, best), tl.where(c > best, 2, where)
    best, where = tl.where(d > best, d, best), tl.where(d > best, 3, where)
    tl.store(pooled + i, best, inside)
    tl.store(corner + i, where.to(tl.uint8), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(grad, corner, out, total, C: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    row, at = i // ROW, i % ROW
    first = out + row * 4 * ROW + (at // C) * 2 * C + at % C
    g = tl.load(grad + i, inside)
    where = tl.load(corner + i, inside)
    tl.store(first, tl.where(where == 0, g, 0.0), inside)
    tl.store(first + C, tl.where(where == 1, g, 0.0), inside)
    tl.store(first + 2 * ROW, tl.where(where == 2, g, 0.0), inside)
    tl.store(first + 2 * ROW + C, tl.where(where == 3, g, 0.0), inside)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], small: Tensor) -> None:
    W, C = small.shape[-2:]
    grid = (triton.cdiv(small.numel(), _BLOCK),)
    kernel[grid](*tensors, small.numel(), C=C, ROW=W * C, BLOCK=_BLOCK)


class MaxPool(torch.autograd.Function):
    """(…, H, W, C) -> (…, H/2, W/2, C); which corner was largest is kept in one byte each."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        """The largest of each window."""
        *outer, H, W, C = z.shape
        pooled = z.new_empty(*outer, H // 2, W // 2, C)
        corner = torch.empty_like(pooled, dtype=torch.uint8)
        _launch(_forward, (z.contiguous(), pooled, corner), pooled)
        ctx.save_for_backward(corner)
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Each gradient to the corner that was largest."""
        (corner,) = ctx.saved_tensors
        *outer, H, W, C = grad.shape
        full = grad.new_empty(*outer, 2 * H, 2 * W, C)
        _launch(_backward, (grad.contiguous(), corner, full), grad)
        return full
