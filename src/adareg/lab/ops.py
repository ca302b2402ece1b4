"""Layers of many networks at once: the first axis is the replica, an image's last its channel.

On a GPU a convolution is one batched matrix product: a row of the output is a banded (Toeplitz)
matrix times ``kernel`` rows of the input. That is two to five times the multiplications of the
convolution itself and still several times faster, because tensor cores do them and nothing but
rows is copied. On a CPU the library's own convolution, one replica after another, is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, pad

from adareg.lab.models import BN_EPS, BN_MOMENTUM


class Norm(NamedTuple):
    """Batch normalisation's parameters and running statistics, each (R, C)."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor

    def __call__(self, x: Tensor, training: bool) -> Tensor:  # (R, …, C) -> (R, …, C)
        """Normalise over all axes between; while training, running statistics change in place."""
        if not training:
            shape = (len(x), *[1] * (x.ndim - 2), x.shape[-1])
            scale = self.gain * (self.variance + BN_EPS).rsqrt()
            return torch.addcmul((self.shift - self.mean * scale).view(shape), x, scale.view(shape))
        y, centre, spread = _Normalise.apply(x, self.gain, self.shift)  # type: ignore[no-untyped-call]
        count = x.numel() // centre.numel()
        with torch.no_grad():
            self.mean.lerp_(centre.view_as(self.mean), BN_MOMENTUM)
            unbiased = spread.view_as(self.mean) * (count / (count - 1))
            self.variance.lerp_(unbiased, BN_MOMENTUM)
        return y


class _Normalise(torch.autograd.Function):
    """Batch normalisation of (R, …, C) with its own statistics, which it returns too.

    Autograd's version of the same formula reads and writes the activations three times as often.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dims, shape = tuple(range(1, x.ndim - 1)), (len(x), *[1] * (x.ndim - 2), x.shape[-1])
        spread, centre = torch.var_mean(x, dims, correction=0, keepdim=True)
        inverse, centred = (spread + BN_EPS).rsqrt(), x - centre
        ctx.save_for_backward(centred, inverse, gain)
        ctx.mark_non_differentiable(centre, spread)
        return torch.addcmul(shift.view(shape), centred, gain.view(shape) * inverse), centre, spread

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        centred, inverse, gain = ctx.saved_tensors
        dims, count = tuple(range(1, grad.ndim - 1)), grad.numel() // gain.numel()
        along = (grad * centred).sum(dims, keepdim=True)
        total = grad.sum(dims, keepdim=True)
        scale = gain.view(inverse.shape) * inverse
        slope = -scale * inverse.square() * along / count
        inner = torch.addcmul(-scale * total / count, centred, slope)
        gains = (along * inverse).view(gain.shape)
        return torch.addcmul(inner, grad, scale), gains, total.view(gain.shape)


class Block(NamedTuple):
    """A convolution, perhaps batch normalisation, 2 x 2 max pooling, ReLU."""

    weight: Tensor  # (R, Co, C, k, k)
    bias: Tensor | None  # (R, Co)
    norm: Norm | None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(R, B, d), (R, p, d), (R, p) -> (R, B, p)."""
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def features(x: Tensor, blocks: Sequence[Block], training: bool) -> Tensor:
    """Images (R, B, H, W, C) through all blocks, flattened as torch does, (R, B, features)."""
    if not x.is_cuda:
        return _one_by_one(x, blocks, training)
    for block in blocks:
        z = toeplitz_conv(x, block.weight)
        z = z if block.norm is None else block.norm(z, training)
        x = max_pool(z)
        x = x if block.bias is None else x + block.bias[:, None, None, None]
        x = x.relu()
    return x.permute(0, 1, 4, 2, 3).flatten(2)


def _one_by_one(x: Tensor, blocks: Sequence[Block], training: bool) -> Tensor:
    """What a CPU does best: each replica on its own, so that its activations stay in the cache."""
    weights = [block.weight.unbind() for block in blocks]
    biases = [[None] * len(x) if b.bias is None else b.bias.unbind() for b in blocks]
    norms = [[None] * len(x) if b.norm is None else _unbind(b.norm) for b in blocks]
    outputs = []
    for r, image in enumerate(x.unbind()):
        h = image.permute(0, 3, 1, 2)  # channels last in memory, as torch calls it
        for weight, bias, norm in zip(weights, biases, norms, strict=True):
            kernel = weight[r].contiguous(memory_format=torch.channels_last)
            h, normalise = conv2d(h, kernel, bias[r]), norm[r]
            h = h if normalise is None else _normed(h, normalise, training)
            h = max_pool(h.permute(0, 2, 3, 1).unsqueeze(0)).squeeze(0).permute(0, 3, 1, 2).relu()
        outputs.append(h.flatten(1))
    return torch.stack(outputs)


def _unbind(norm: Norm) -> list[Norm]:
    return [Norm(*each) for each in zip(*(field.unbind() for field in norm), strict=True)]


def _normed(h: Tensor, norm: Norm, training: bool) -> Tensor:
    return batch_norm(
        h, norm.mean, norm.variance, norm.gain, norm.shift, training, BN_MOMENTUM, BN_EPS
    )


def max_pool(z: Tensor) -> Tensor:  # (R, B, H, W, C) -> (R, B, H/2, W/2, C)
    """2 x 2 max pooling."""
    pool = _gpu_pool() if z.is_cuda else None
    return (pool or _MaxPool).apply(z)


@cache
def _gpu_pool() -> type[torch.autograd.Function] | None:
    """Two kernels of our own, where the compiler for them comes with torch."""
    if find_spec("triton") is None:
        return None
    from adareg.lab.kernels import MaxPool

    return MaxPool


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
        rows, total = grad.view(R, B, H - k + 1, k, L), grad.new_zeros(R, B, H, L)
        for i in range(k):
            total[:, :, i : i + H - k + 1] += rows[:, :, :, i]
        return total, None


class _MaxPool(torch.autograd.Function):
    """2 x 2 max pooling of (R, B, H, W, C) in few operations: over rows, then over columns."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        R, B, H, W, C = z.shape
        top, bottom = z.reshape(R, B, H // 2, 2, W // 2, 2, C).unbind(3)
        left, right = torch.maximum(top, bottom).unbind(4)
        ctx.save_for_backward(bottom > top, right > left)
        return torch.maximum(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        low, right = ctx.saved_tensors
        R, B, H, W, C = grad.shape
        wide = grad.new_empty(R, B, H, W, 2, C)
        torch.mul(grad, right, out=wide.select(4, 1))
        torch.sub(grad, wide.select(4, 1), out=wide.select(4, 0))
        full = grad.new_empty(R, B, H, 2, W, 2, C)
        torch.mul(wide, low, out=full.select(3, 1))
        torch.sub(wide, full.select(3, 1), out=full.select(3, 0))
        return full.view(R, B, 2 * H, 2 * W, C)
