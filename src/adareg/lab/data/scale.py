"""Standardisation with the statistics of the training data."""

from __future__ import annotations

from torch import Tensor


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parts, less the training mean and over the training deviation of each column.

    A column that is constant in the training data is centred only, so there it becomes zero.

    Args:
        train: (n, columns), in the precision to compute in.
        test: (m, columns).

    Returns:
        Both in float32.
    """
    mean, deviation = train.mean(0), train.std(0, correction=0)
    deviation = deviation.where(train.amax(0) > train.amin(0), 1)
    return ((train - mean) / deviation).float(), ((test - mean) / deviation).float()


def centre(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parts, less the training mean of each column, over one deviation for all columns.

    For columns in one unit, such as pixels: those that hardly vary stay small, where
    :func:`standardise` would blow them up, and constant ones become zero.

    Args:
        train: (n, columns), in the precision to compute in; at least one column varies.
        test: (m, columns).

    Returns:
        Both in float32.
    """
    mean = train.mean(0)
    deviation = (train - mean).square().mean().sqrt()
    return ((train - mean) / deviation).float(), ((test - mean) / deviation).float()
