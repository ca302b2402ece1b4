"""Calibration: the distance of predicted probabilities from what happens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Bins of confidence, of equal width.
BINS = 15

#: Nominal coverages of the central intervals that are counted.
LEVELS = tuple(i / 10 for i in range(1, 10))


def classification(logits: Tensor, labels: Tensor) -> Tensor:  # (…, N, K), (…, N) -> (…)
    """Expected calibration error: mean distance of accuracy and confidence, over 15 bins.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
    """
    confidence, predicted = logits.double().softmax(-1).max(-1)
    gap = (predicted == labels).double() - confidence
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    total = gap.new_zeros(*gap.shape[:-1], BINS).scatter_add_(-1, bins, gap)
    return total.abs().sum(-1) / gap.shape[-1]


def regression(errors: Tensor, variance: Tensor) -> Tensor:  # (…, N, K), (…) -> (…)
    """Mean distance of nominal and actual coverage of nine central intervals.

    Kuleshov et al., "Accurate Uncertainties for Deep Learning Using Calibrated Regression", 2018.
    """
    z = errors.double().abs() / variance.double().sqrt()[..., None, None]
    inside = torch.erf(z / math.sqrt(2)).flatten(-2)  # the smallest interval with the target in it
    gaps = [(inside <= level).double().mean(-1) - level for level in LEVELS]
    return torch.stack(gaps).abs().mean(0)


def gaussian_loss(errors: Tensor, variance: Tensor) -> Tensor:  # (…, N, K), (…) -> (…)
    """Negative log-likelihood of one task of one sample, in the mean."""
    noise = variance.double()
    squares = errors.double().square().mean((-2, -1))
    return 0.5 * (torch.log(2 * math.pi * noise) + squares / noise)
