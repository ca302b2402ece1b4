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
from torch.nn.functional import conv2d, pad

from adareg.lab.train.networks import BN_EPS, BN_MOMENTUM


class Norm(NamedTuple):
    """Batch normalisation's parameters and running statistics, each (R, C)."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor

    def __call__(self, x: Tensor, training: bool) -> Tensor:  # (R, …, C) -> (R, …, C)
        """Normalise over all axes between; while training, running statistics change in place."""
        rows = x.reshape(len(x), -1, x.shape[-1] * (x.shape[-2] if x.ndim == 5 else 1))
        if not training:
            scale = self.gain * (self.variance + BN_EPS).rsqrt()
            shift = self.shift - self.mean * scale
            return torch.addcmul(_repeat(shift, rows), rows, _repeat(scale, rows)).view(x.shape)
        y, centre, spread = _Normalise.apply(rows, self.gain, self.shift)  # type: ignore[no-untyped-call]
        count = x.numel() // centre.numel()
        with torch.no_grad():
            self.mean.lerp_(centre, BN_MOMENTUM)
            self.variance.lerp_(spread * (count / (count - 1)), BN_MOMENTUM)
        return y.view(x.shape)


class _Normalise(torch.autograd.Function):
    """Batch normalisation with the batch's own statistics, which it returns too.

    Of (R, rows, L), L being a multiple of the C channels: a whole row of pixels at once is what
    processors are fast at. Autograd's version of the formula moves three times as many bytes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = x.numel() // gain.numel()
        centre = _total(x, gain) / count
        centred = x - _repeat(centre, x)
        spread = _total(centred.square(), gain) / count
        inverse = (spread + BN_EPS).rsqrt()
        ctx.save_for_backward(centred, inverse, gain)
        ctx.mark_non_differentiable(centre, spread)
        y = torch.addcmul(_repeat(shift, x), centred, _repeat(gain * inverse, x))
        return y, centre, spread

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        centred, inverse, gain = ctx.saved_tensors
        count, scale = grad.numel() // gain.numel(), gain * inverse
        along, total = _total(grad * centred, gain), _total(grad, gain)
        slope = _repeat(-scale * inverse.square() * along / count, grad)
        inner = torch.addcmul(_repeat(-scale * total / count, grad), centred, slope)
        return torch.addcmul(inner, grad, _repeat(scale, grad)), along * inverse, total


def _repeat(per_channel: Tensor, rows: Tensor) -> Tensor:  # (R, C), (R, rows, L) -> (R, 1, L)
    R, C = per_channel.shape
    return per_channel.unsqueeze(1).expand(R, rows.shape[-1] // C, C).reshape(R, 1, -1)


def _total(rows: Tensor, per_channel: Tensor) -> Tensor:  # (R, rows, L), (R, C) -> (R, C)
    R, C = per_channel.shape
    return rows.sum(1).view(R, -1, C).sum(1)


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
    """Treat each replica on its own, so that its activations stay in a CPU's cache."""
    weights = [block.weight.unbind() for block in blocks]
    biases = [[None] * len(x) if b.bias is None else b.bias.unbind() for b in blocks]
    norms = [[None] * len(x) if b.norm is None else _split(b.norm) for b in blocks]
    outputs = []
    for r, h in enumerate(x.split(1)):
        for weight, bias, norm in zip(weights, biases, norms, strict=True):
            kernel = weight[r].contiguous(memory_format=torch.channels_last)
            image = h[0].permute(0, 3, 1, 2)  # channels last in memory, as torch calls it
            z = conv2d(image, kernel, bias[r]).permute(0, 2, 3, 1).unsqueeze(0)
            normalise = norm[r]
            h = max_pool(z if normalise is None else normalise(z, training)).relu()
        outputs.append(h)
    return torch.cat(outputs).permute(0, 1, 4, 2, 3).flatten(2)


def _split(norm: Norm) -> list[Norm]:
    return [Norm(*each) for each in zip(*(field.split(1) for field in norm), strict=True)]


def max_pool(z: Tensor) -> Tensor:  # (R, B, H, W, C) -> (R, B, H/2, W/2, C)
    """2 x 2 max pooling."""
    pool = _gpu_pool() if z.is_cuda else None
    return (pool or _MaxPool).apply(z)


@cache
def _gpu_pool() -> type[torch.autograd.Function] | None:
    """Two kernels of our own, where the compiler for them comes with torch."""
    if find_spec("triton") is None:
        return None
    from adareg.lab.train.pooling_kernel import MaxPool

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
    """2 x 2 max pooling of (R, B, H, W, C) in few operations: over rows, then over columns.

    Which one was larger is kept as 0 or 1 in the dtype of the activations: a product of floats
    takes a fifth of the time of one with a mask.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        R, B, H, W, C = z.shape
        top, bottom = z.reshape(R, B, H // 2, 2, W // 2, 2, C).unbind(3)
        left, right = torch.maximum(top, bottom).unbind(4)
        ctx.save_for_backward(_larger(bottom, top), _larger(right, left))
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


def _larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.gt(a, b, out=a.new_empty(a.shape))
