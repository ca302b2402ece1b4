"""Data sets of the right shapes, for tests of the lab."""

import torch

from adareg.lab.data import Dataset
from adareg.lab.train.networks import ARCHITECTURES


def fake(name, n_train=40, n_test=24):
    """A data set of the right shape; images of one class share a pattern."""
    architecture = ARCHITECTURES[name]
    draw = torch.Generator().manual_seed(0)
    n = n_train + n_test
    if name.startswith(("sarcos", "digits-c", "diabetes")):
        x = torch.randn(n, *architecture.inputs, generator=draw)
        y = torch.tanh(x @ torch.randn(x.shape[1], architecture.outputs, generator=draw))
    else:
        y = torch.arange(n) % architecture.outputs
        patterns = torch.randn(architecture.outputs, *architecture.inputs, generator=draw)
        x = patterns[y] + torch.randn(n, *architecture.inputs, generator=draw)
    return Dataset(
        name=name,
        task="regression" if y.is_floating_point() else "classification",
        x_train=x[:n_train],
        y_train=y[:n_train],
        x_test=x[n_train:],
        y_test=y[n_train:],
        names=tuple(map(str, range(architecture.outputs))),
        provenance={"source": "fabricated"},
    )
