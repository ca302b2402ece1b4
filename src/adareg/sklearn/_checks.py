"""What scikit-learn's validation lets through, or does not explain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse  # type: ignore[import-untyped]
import torch

from adareg.sklearn._data import Array

#: Larger numbers overflow when they are subtracted.
_LARGEST = 1e300

#: More samples than there can be.
_MOST_SAMPLES = 1e15


@contextmanager
def numbers_wanted() -> Iterator[None]:
    """Tell what to do about words, where a number is expected."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(x in str(error) for x in ("could not convert", "float() argument")):
            raise
        raise type(error)(
            f"{error}. Expected numbers: encode words and categories, for example with "
            "sklearn.preprocessing.OneHotEncoder"
        ) from error


def refuse_masked(values: Any, name: str) -> None:
    """Refuse an array whose masked entries would be read as if they were not."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} has {int(np.ma.getmaskarray(values).sum())} masked entries, which would be "
            "used as they are: fill them, or leave these samples out"
        )


def refuse_times(values: Any, name: str) -> None:
    """Refuse times, whose numbers are in whatever units they happen to be stored."""
    dtypes = getattr(values, "dtypes", None)  # of a data frame
    if dtypes is None or not np.iterable(dtypes):
        dtypes = [getattr(values, "dtype", None)]
    times = [str(dtype) for dtype in dtypes if getattr(dtype, "kind", "") in ("M", "m")]
    if times:
        raise TypeError(
            f"{name} has times ({times[0]}), whose numbers would depend on the unit in which they "
            "are stored: convert them, to days since some date for example"
        )


def refuse_sparse_targets(y: Any) -> None:
    """Refuse targets in a sparse matrix."""
    if scipy.sparse.issparse(y):
        raise TypeError(f"y is sparse, of shape {y.shape}: expected an array; give y.toarray()")


def refuse_odd_labels(y: Any) -> None:
    """Refuse labels of bytes, and labels of which some are missing or only some are text."""
    values = np.asarray([] if y is None else y)
    if values.dtype.kind == "S":
        raise TypeError(f"y has labels of bytes ({values.dtype}): make them text, y.astype(str)")
    labels = list(values.flat) if values.dtype == object else []
    missing = [label for label in labels if _is_missing(label)]
    if missing:
        raise ValueError(
            f"y has {len(missing)} missing labels, {missing[0]!r}: leave these samples out, or "
            "give them a class of their own"
        )
    if len({isinstance(label, str) for label in labels}) > 1:
        (other, *_) = (label for label in labels if not isinstance(label, str))
        raise ValueError(
            f"y has text and other labels, {other!r} for example: make all of them text"
        )


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value is np.nan


def refuse_huge(X: Any) -> None:
    """Refuse inputs of which not even differences can be represented."""
    largest = float(abs(X).max())
    if largest > _LARGEST:
        raise ValueError(
            f"X has values up to {largest:g}: expected at most {_LARGEST:g}; use other units"
        )


def check_counts(weight: Array) -> Array:
    """Return weights, if they may be numbers of samples."""
    if (weight < 0).any():
        raise ValueError(
            f"sample_weight has negative values, {weight.min()} for example: expected how many "
            "samples each stands for"
        )
    if not (total := float(weight.sum())) < _MOST_SAMPLES:
        raise ValueError(
            f"sample_weight sums to {total:g}: expected how many samples each stands for; divide "
            "by a common factor"
        )
    return weight


def as_sizes(sizes: Any) -> tuple[int, ...]:
    """Return the units of hidden layers."""
    values: list[Any] = list(sizes) if np.iterable(sizes) else [sizes]
    if not values or not all(isinstance(x, Integral) and int(x) >= 1 for x in values):
        raise ValueError(
            f"hidden_layer_sizes={sizes!r}: expected at least one layer of at least one unit, "
            "whole numbers, or None to let the data choose"
        )
    return tuple(map(int, values))


def checked_device(device: Any) -> torch.device:
    """Return the device of this name, if tensors in float64 can be there."""
    try:
        found = torch.device("cpu" if device is None else device)
        torch.zeros(1, dtype=torch.float64, device=found).sum().item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise ValueError(
            f"device={device!r}: expected a torch device that is there and has float64, such as "
            f"'cpu' or 'cuda', or None for the CPU ({str(error).splitlines()[0]})"
        ) from error
    return found
