"""The 8 x 8 handwritten digits of scikit-learn: as classes, and as a picture to finish.

The 1,797 images are in the order of collection, a writer's images one after another, and their
labels run through 0…9 over and over. Training data are the first 1,197 images, test data the
last 600: balanced classes, and at most one writer in both. A random split would let a network meet
every writer before the test (accuracy of the nearest neighbour: 98.5 % against 96.5 %).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adareg.lab.data.base import DataError, Dataset, Source, counts, require
from adareg.lab.data.scale import centre

N_TRAIN = 1197
CONTENT = "sha256:87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
HOME = "https://archive.ics.uci.edu/dataset/80 (its test part, as in scikit-learn)"


def read(paths: Mapping[str, Path]) -> Dataset:
    """Which digit is it? Images (1, 8, 8), with mean 0 and deviation 1 over the training data."""
    images, labels = _load()
    x = images.double()[:, None] / 16
    mean, deviation = x[:N_TRAIN].mean(), x[:N_TRAIN].std(correction=0)
    x = ((x - mean) / deviation).float()
    return Dataset(
        name="digits",
        task="classification",
        x_train=x[:N_TRAIN],
        y_train=labels[:N_TRAIN],
        x_test=x[N_TRAIN:],
        y_test=labels[N_TRAIN:],
        names=tuple("0123456789"),
        provenance=_provenance(
            x,
            {
                "formula": "(pixel / 16 - mean) / deviation of all training pixels",
                "mean": mean.item(),
                "deviation": deviation.item(),
            },
        ),
    )


def read_completion(paths: Mapping[str, Path]) -> Dataset:
    """What is the lower half? 32 pixels, each a task, from the 32 pixels of the upper half.

    Each pixel is centred by its training mean, and each half is divided by one deviation, that
    of all its centred training pixels. So pixels that are constant in the training data are
    kept, as zeros, and pixels that are nearly so stay small. The mean of the squared errors
    over all tasks of a model that predicts the training mean is 1 on the training data.
    """
    pixels = _load()[0].double().flatten(1)
    upper, lower = pixels[:, :32], pixels[:, 32:]
    x_train, x_test = centre(upper[:N_TRAIN], upper[N_TRAIN:])
    y_train, y_test = centre(lower[:N_TRAIN], lower[N_TRAIN:])
    return Dataset(
        name="digits-completion",
        task="regression",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        names=tuple(f"row {r}, column {c}" for r in range(5, 9) for c in range(1, 9)),
        provenance=_provenance(
            pixels,
            "each pixel less its training mean, over the deviation of all centred training "
            "pixels of its half",
        ),
    )


def _load() -> tuple[Tensor, Tensor]:
    """Images (1797, 8, 8), whole numbers 0…16 as uint8, and labels, int64."""
    bunch = require("sklearn.datasets").load_digits()
    images, labels = bunch.images.astype("uint8"), bunch.target.astype("uint8")
    found = "sha256:" + hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if found != CONTENT:
        version = require("sklearn").__version__
        raise DataError(
            f"the digits of scikit-learn {version} are not those expected ({CONTENT}, found "
            f"{found}); those of scikit-learn 1.9 are"
        )
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def _provenance(rows: Tensor, normalisation: Any) -> dict[str, Any]:
    return {
        "files": {"pixels and labels as bytes": CONTENT},
        "split": f"the first {N_TRAIN} images for training, the others for the test",
        "counts": counts(rows[:N_TRAIN], rows[N_TRAIN:]),
        "normalisation": normalisation,
    }


DIGITS = Source(
    description="8 x 8 digits, 10 classes",
    task="classification",
    sizes="1,197 + 600",
    home=HOME,
    read=read,
)
COMPLETION = Source(
    description="the lower half of a digit, 32 tasks",
    task="regression",
    sizes="1,197 + 600",
    home=HOME,
    read=read_completion,
)
