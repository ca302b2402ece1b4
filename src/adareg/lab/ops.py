"""Layers of many networks at once: the first axis is the replica, images are (…, height, width, channel).

On a GPU a convolution is one batched matrix product: a row of the output is a banded (Toeplitz)
matrix times ``kernel`` rows of the input. That is two to five times the multiplications of the
convolution itself and still several times faster, because tensor cores do them and nothing but
rows is copied. On a CPU the library's own convolution, one replica after another, is best.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

from adareg.lab.models import BN_EPS, BN_MOMENTUM

#: What stands between a convolution and its pooling: a function of activations, and of whose.
Between = Callable[[Tensor, slice], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(R, B, d), (R, p, d), (R, p) -> (R, B, p)."""
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def conv_pool_relu(x: Tensor, weight: Tensor, bias: Tensor | None, between: Between) -> Tensor:
    """Convolution, ``between``, 2 x 2 max pooling, bias, ReLU.

    Args:
        x: (R, B, H, W, C).
        weight: (R, Co, C, k, k).
        bias: (R, Co), or None.
        between: normalises (r, B, H', W', Co) of the replicas in a slice.

    Returns:
        (R, B, H'/2, W'/2, Co), H' = H − k + 1.
    """
    blocks = _on_gpu if x.is_cuda else _one_by_one
    pooled = blocks(x, weight, between)
    return pooled.relu() if bias is None else (pooled + bias[:, None, None, None]).relu()


def batch_norm(
    x: Tensor, gain: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, training: bool
) -> Tensor:
    """Normalise (R, …, C) over all axes between; running statistics are updated in place.

    Args:
        x: activations.
        gain: (R, C), like shift and the running mean and variance.
        shift: see gain.
        mean: see gain.
        variance: see gain.
        training: with the batch's own statistics instead of the running ones.
    """
    shape = (len(x), *[1] * (x.ndim - 2), x.shape[-1])
    if training:
        dims = tuple(range(1, x.ndim - 1))
        spread, centre = torch.var_mean(x, dims, correction=0)
        count = x.numel() // centre.numel()
        with torch.no_grad():
            mean.lerp_(centre.to(mean.dtype), BN_MOMENTUM)
            variance.lerp_(spread.to(mean.dtype) * (count / (count - 1)), BN_MOMENTUM)
    else:
        centre, spread = mean, variance
    scale = gain * (spread + BN_EPS).rsqrt()
    return x * scale.view(shape) + (shift - centre * scale).view(shape)


def _one_by_one(x: Tensor, weight: Tensor, between: Between) -> Tensor:
    """What a CPU does best: each replica's own convolution, channels last."""
    pooled = []
    for r in range(len(x)):
        image = x[r].permute(0, 3, 1, 2)  # channels last in memory, as torch calls it
        kernel = weight[r].contiguous(memory_format=torch.channels_last)
        z = conv2d(image, kernel).permute(0, 2, 3, 1)
        z = between(z.unsqueeze(0), slice(r, r + 1)).squeeze(0)
        pooled.append(max_pool2d(z.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1))
    return torch.stack(pooled)


def _on_gpu(x: Tensor, weight: Tensor, between: Between) -> Tensor:
    z = toeplitz_conv(x, weight)
    return _MaxPool.apply(between(z, slice(0, len(x))))  # type: ignore[no-any-return,no-untyped-call]


def toeplitz_conv(x: Tensor, weight: Tensor) -> Tensor:
    """(R, B, H, W, C), (R, Co, C, k, k) -> (R, B, H', W', Co), by one batched product."""
    R, B, H, W, C = x.shape
    Co, k = weight.shape[1], weight.shape[-1]
    rows = _Rows.apply(x.reshape(R, B, H, W * C), k)  # type: ignore[no-untyped-call]
    z = torch.bmm(rows, _toeplitz(weight, W))
    return z.view(R, B, H - k + 1, W - k + 1, Co)


def _toeplitz(weight: Tensor, width: int) -> Tensor:
    """(R, Co, C, k, k) -> (R, k·W·C, W'·Co): from k rows of the input to one of the output.

    A kernel row padded to W + 1 and repeated W' times, read in lines of W, moves right by one
    from line to line.
    """
    R, Co, C, k, _ = weight.shape
    out = width - k + 1
    line = pad(weight, (0, width + 1 - k)).unsqueeze(-2).expand(R, Co, C, k, out, width + 1)
    band = line.reshape(R, Co, C, k, -1)[..., : out * width].view(R, Co, C, k, out, width)
    return band.permute(0, 3, 5, 2, 4, 1).reshape(R, k * width * C, out * Co)


class _Rows(torch.autograd.Function):
    """(R, B, H, L) -> (R, B·H', k·L): every k consecutive rows of an image, side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        R, B, H, L = x.shape
        ctx.sizes = (R, B, H, L, k)
        x = x.contiguous()
        view = x.as_strided((R, B, H - k + 1, k * L), (B * H * L, H * L, L, 1))
        return view.reshape(R, B * (H - k + 1), k * L)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        R, B, H, L, k = ctx.sizes
        return _fused(_fold, grad.view(R, B, H - k + 1, k, L)), None


def _fold(grad: Tensor) -> Tensor:  # (R, B, H', k, L) -> (R, B, H, L)
    k = grad.shape[3]
    total = pad(grad[:, :, :, 0], (0, 0, 0, k - 1))
    for i in range(1, k):
        total = total + pad(grad[:, :, :, i], (0, 0, i, k - 1 - i))
    return total


class _MaxPool(torch.autograd.Function):
    """2 x 2 max pooling of (R, B, H, W, C); what was largest is kept as one byte for each output."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        pooled, where = _fused(_pool, z)
        ctx.save_for_backward(where)
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (where,) = ctx.saved_tensors
        return _fused(_unpool, grad, where)


def _windows(z: Tensor) -> list[Tensor]:
    """The four corners of every 2 x 2 window, in the order in which torch's pooling prefers them."""
    return [z[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]


def _pool(z: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c, d = _windows(z)
    upper, lower = torch.maximum(a, b), torch.maximum(c, d)
    first = torch.where(b > a, 1, 0)
    second = torch.where(d > c, 3, 2)
    return torch.maximum(upper, lower), torch.where(lower > upper, second, first).to(torch.uint8)


def _unpool(grad: Tensor, where: Tensor) -> Tensor:
    R, B, H, W, C = grad.shape
    corner = torch.arange(4, device=grad.device, dtype=torch.uint8).view(2, 1, 2, 1)
    chosen = where[:, :, :, None, :, None, :] == corner
    full = grad[:, :, :, None, :, None, :] * chosen
    return full.view(R, B, 2 * H, 2 * W, C)


def _fused(function: Callable[..., Any], *args: Tensor) -> Any:
    """A chain of pointwise operations; on a GPU as one kernel, compiled once for any batch."""
    return _compiled(function)(*args) if args[0].is_cuda else function(*args)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
