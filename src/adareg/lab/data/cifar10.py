"""CIFAR-10: photographs, 3 x 32 x 32, in the official binary layout.

The pickled layout executes code when it is loaded, so it is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from adareg.lab.data.base import DataError, Dataset, File, Source, counts

RECORD = 1 + 3 * 32 * 32  # a label, then the planes red, green and blue
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
# Of each channel over the pixels of the 50,000 training images.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)

TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = ("test_batch.bin",)


def read(paths: Mapping[str, Path]) -> Dataset:
    """Make the data set from its six files; the order of the images is that of the files."""
    x_train, y_train = _part([paths[name] for name in TRAIN])
    x_test, y_test = _part([paths[name] for name in TEST])
    return Dataset(
        name="cifar10",
        task="classification",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        names=CLASSES,
        provenance={
            "split": "the published one",
            "counts": counts(x_train, x_test),
            "normalisation": {
                "formula": "(pixel / 255 - mean) / deviation, by channel",
                "mean": list(MEAN),
                "deviation": list(DEVIATION),
            },
        },
    )


def _part(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    records = torch.cat([read_batch(path) for path in paths])
    mean, deviation = (torch.tensor(c).reshape(3, 1, 1) for c in (MEAN, DEVIATION))
    x = records[:, 1:].reshape(-1, 3, 32, 32).float().div_(255)
    return x.sub_(mean).div_(deviation), records[:, 0].long()


def read_batch(path: Path) -> Tensor:
    """Read the records of one file: uint8, (n, 1 + 3072)."""
    content = bytearray(path.read_bytes())
    if len(content) == 0 or len(content) % RECORD:
        raise DataError(f"{path}: expected records of {RECORD:,} bytes, found {len(content):,}")
    records = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, RECORD)
    largest = int(records[:, 0].max())
    if largest >= len(CLASSES):
        raise DataError(f"{path}: expected labels 0…{len(CLASSES) - 1}, found {largest}")
    return records


def _file(name: str, sha1: str) -> File:
    return File(name=name, size=10_000 * RECORD, checksum=f"sha1:{sha1}")


CIFAR10 = Source(
    description="32 x 32 photographs, 10 classes",
    task="classification",
    sizes="50,000 + 10,000",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=read,
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", ""),
    files=(
        _file("data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        _file("data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        _file("data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        _file("data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        _file("data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628"),
        _file("test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c"),
    ),
    archive=File(
        name="cifar-10-binary.tar.gz",
        size=170_052_171,
        checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
        urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    ),
)
