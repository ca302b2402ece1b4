"""Small files in the layouts of the real ones, and a table of data sets that expects them."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import scipy.io

from adareg.lab import data


def idx(shape, content, magic=None):
    header = bytes([0, 0, 8, len(shape)]) if magic is None else magic
    return gzip.compress(header + struct.pack(f">{len(shape)}I", *shape) + bytes(content), mtime=0)


def mnist(seed=0, n_train=5, n_test=3):
    rng = np.random.default_rng(seed)
    made = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        pixels, labels = rng.integers(0, 256, n * 6), rng.integers(0, 10, n)
        made[f"{part}-images-idx3-ubyte.gz"] = idx((n, 2, 3), pixels.tolist())
        made[f"{part}-labels-idx1-ubyte.gz"] = idx((n,), labels.tolist())
    return made


def cifar10(seed=0):
    rng = np.random.default_rng(seed)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    made = {}
    for name in names:
        records = rng.integers(0, 256, (2, 3073), dtype="uint8")
        records[:, 0] %= 10
        made[name] = records.tobytes()
    return made


def mat(**matrices):
    stream = io.BytesIO()
    scipy.io.savemat(stream, matrices)
    return stream.getvalue()


def sarcos(n=800, seed=0):
    """The test file is every 10th row of the train file, as in the real ones."""
    rows = np.random.default_rng(seed).normal(3, 5, (n, 28))
    return {
        "sarcos_inv.mat": mat(sarcos_inv=rows),
        "sarcos_inv_test.mat": mat(sarcos_inv_test=rows[::10]),
    }


def tar_gz(contents):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def put(contents, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def expect(monkeypatch, name, contents, urls=lambda file: (), archive=None):
    """Let the row of a data set expect these contents instead of the real ones."""
    source = data.DATASETS[name]

    def changed(file):
        content = contents.get(file.name, b"")
        kind = file.checksum.partition(":")[0]
        blob = b"blob %d\0" % len(content) if kind == "git" else b""
        digest = hashlib.new("sha1" if kind == "git" else kind, blob + content).hexdigest()
        return dataclasses.replace(
            file, checksum=f"{kind}:{digest}", size=len(content), urls=urls(file.name)
        )

    row = dataclasses.replace(
        source,
        files=tuple(map(changed, source.files)),
        fallback=tuple(map(changed, source.fallback)),
        archive=archive,
    )
    monkeypatch.setitem(data.DATASETS, name, row)
    return row
