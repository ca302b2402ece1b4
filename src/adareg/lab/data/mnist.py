"""MNIST: handwritten digits, 28 x 28, from its four gzip IDX files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from adareg.lab.data.base import DataError, Dataset, File, Source, counts

# Yann LeCun's own page no longer serves the files; these two mirrors hold them unchanged.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MEAN, DEVIATION = 0.1307, 0.3081  # of the 60,000 training images, as everybody uses them

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"


def read(paths: Mapping[str, Path]) -> Dataset:
    """Make the data set from its four files."""
    x_train, y_train = _pair(paths[TRAIN_IMAGES], paths[TRAIN_LABELS])
    x_test, y_test = _pair(paths[TEST_IMAGES], paths[TEST_LABELS])
    return Dataset(
        name="mnist",
        task="classification",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        names=tuple("0123456789"),
        provenance={
            "split": "the published one",
            "counts": counts(x_train, x_test),
            "normalisation": f"(pixel / 255 - {MEAN}) / {DEVIATION}",
        },
    )


def _pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    x, y = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if len(x) != len(y):
        raise DataError(f"{images} has {len(x)} images, but {labels} has {len(y)} labels")
    return x[:, None].float().div_(255).sub_(MEAN).div_(DEVIATION), y.long()


def read_idx(path: Path, ndim: int) -> Tensor:
    """Read a gzip IDX file of unsigned bytes.

    The format: two zero bytes, 8 (unsigned bytes), the number of dimensions, each dimension as
    a big-endian 32-bit integer, then exactly as many bytes as the dimensions say.

    Args:
        path: the file.
        ndim: the number of dimensions it must have: 3 for images, 1 for labels.

    Returns:
        uint8, in the shape the file states.
    """
    content = _unzip(path)
    magic, header = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
    if content[:4] != magic or len(content) < header:
        found = content[:4].hex(" ")
        raise DataError(f"{path}: expected an IDX header {magic.hex(' ')}, found {found}")
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) - header != math.prod(shape) or 0 in shape:
        raise DataError(
            f"{path}: expected {math.prod(shape):,} bytes for shape {shape}, "
            f"found {len(content) - header:,}"
        )
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def _unzip(path: Path) -> bytearray:
    try:
        return bytearray(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error


def _file(name: str, size: int, sha256: str) -> File:
    return File(
        name=name, size=size, checksum=f"sha256:{sha256}", urls=tuple(m + name for m in MIRRORS)
    )


MNIST = Source(
    description="28 x 28 digits, 10 classes",
    task="classification",
    sizes="60,000 + 10,000",
    home="http://yann.lecun.com/exdb/mnist/",
    read=read,
    folders=("mnist", ""),
    files=(
        _file(
            TRAIN_IMAGES,
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _file(
            TRAIN_LABELS,
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        _file(
            TEST_IMAGES,
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _file(
            TEST_LABELS, 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
        ),
    ),
)
