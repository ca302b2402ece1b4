"""From arrays and sparse matrices to batches of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array, check_consistent_length  # type: ignore[import-untyped]
from torch import Tensor

Array = NDArray[Any]

#: Rows that are predicted at once, so that hidden values of a large table need not fit in memory.
CHUNK = 4096


def in_numpy(device: torch.device) -> bool:
    """Whether training happens in NumPy: on a CPU, where it is faster than in torch."""
    return device.type == "cpu"


def as_tensor(array: Array, device: torch.device) -> Tensor:
    """The same memory where torch can have it: contiguous, and writeable lest it warn."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def chunks(X: Any, like: Tensor) -> Iterator[Tensor]:
    """The rows of an array or a sparse matrix, some at a time, where ``like`` is."""
    for start in range(0, X.shape[0], CHUNK):
        part = X[start : start + CHUNK]
        part = part.toarray() if scipy.sparse.issparse(part) else part
        yield as_tensor(part, like.device).to(like.dtype)


@dataclass(frozen=True)
class Samples:
    """A training set: arrays for a CPU, tensors for any other device.

    A sparse ``X`` stays sparse; other devices get it as dense batches.
    """

    X: Any  # (n, features): an array, a tensor, or a csr matrix
    Y: Any  # (n, outputs): numbers, or 0 and 1 as uint8
    weight: Any  # (n,), or None
    device: torch.device

    @classmethod
    def of(cls, X: Any, Y: Any, weight: Any, device: torch.device) -> Samples:
        """Take what scikit-learn's validation returns."""
        weight = None if weight is None else weight.astype(X.dtype, copy=False)
        X = X.tocsr() if scipy.sparse.issparse(X) else X
        if not in_numpy(device):
            X = X if scipy.sparse.issparse(X) else as_tensor(X, device)
            weight = None if weight is None else as_tensor(weight, device)
            Y = as_tensor(Y, device)
        return cls(X, Y, weight, device)

    def __len__(self) -> int:
        return len(self.Y)

    def batches(self, order: NDArray[np.intp], size: int) -> Iterator[tuple[Any, Any, Any]]:
        """Inputs, targets and weights of the samples in this order; the last batch may be short.

        A batch whose weights add up to zero says nothing and is left out.
        """
        numpy = in_numpy(self.device)
        index: Any = order if numpy else torch.from_numpy(order).to(self.device)
        for start in range(0, len(order), size):
            part = index[start : start + size]
            weight = None if self.weight is None else self.weight[part]
            if weight is not None and not weight.sum():
                continue
            if numpy or isinstance(self.X, Tensor):
                x = self.X[part]
            else:
                x = as_tensor(self.X[order[start : start + size]].toarray(), self.device)
            yield x, self.Y[part], weight


def check_sample_weight(sample_weight: Any, X: Any) -> Array | None:
    """One finite number for each sample, or None."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(X.shape[0], sample_weight, dtype=X.dtype)
    weight: Array = check_array(
        sample_weight, ensure_2d=False, dtype=[np.float64, np.float32], input_name="sample_weight"
    )
    if weight.ndim != 1:
        raise ValueError(f"sample_weight has shape {weight.shape}: expected one for each sample")
    check_consistent_length(X, weight)
    if not weight.any():
        raise ValueError("sample_weight is zero everywhere: there is nothing to learn from")
    return weight
