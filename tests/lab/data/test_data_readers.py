"""What is read is what was written, and what is not in the format is refused."""

import gzip
import json

import numpy as np
import pytest
import scipy.io
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from adareg.lab import data
from adareg.lab.data import cifar10, mnist, sarcos, scale
from fakes import downloads


def write(path, content):
    path.write_bytes(content)
    return path


# MNIST


def test_idx_is_read_literally(tmp_path):
    path = write(tmp_path / "a.gz", downloads.idx((2, 1, 3), [0, 1, 2, 253, 254, 255]))
    assert mnist.read_idx(path, 3).tolist() == [[[0, 1, 2]], [[253, 254, 255]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (downloads.idx((4,), range(4)), "header 00 00 08 03, found 00 00 08 01"),
        (downloads.idx((1, 1, 1), [1], magic=b"\0\0\x0d\3"), "found 00 00 0d 03"),
        (gzip.compress(b"\0\0\x08\3\0\0", mtime=0), "expected an IDX header"),
        (gzip.compress(b"", mtime=0), "expected an IDX header"),
        (downloads.idx((2, 2, 2), range(7)), "expected 8 bytes for shape .2, 2, 2., found 7"),
        (downloads.idx((2, 2, 2), range(9)), "expected 8 bytes .* found 9"),
        (downloads.idx((0, 2, 2), []), "expected 0 bytes"),
        (downloads.idx((1, 1, 1), [1])[:-3], "not a complete gzip file"),
        (b"plain", "not a complete gzip file"),
        (b"", "expected an IDX header"),
    ],
)
def test_what_is_no_idx_file_is_refused(tmp_path, content, message):
    with pytest.raises(data.DataError, match="a.gz.*" + message):
        mnist.read_idx(write(tmp_path / "a.gz", content), 3)


def test_mnist(monkeypatch, tmp_path):
    contents = downloads.mnist()
    downloads.expect(monkeypatch, "mnist", contents)
    downloads.put(contents, tmp_path)
    made = data.load("mnist", tmp_path)
    assert made.x_train.shape == (5, 1, 2, 3)
    assert made.names == tuple("0123456789")
    raw = gzip.decompress(contents["t10k-images-idx3-ubyte.gz"])[16:]
    pixels = np.frombuffer(raw, "uint8").reshape(3, 1, 2, 3) / 255
    np.testing.assert_allclose(made.x_test, (pixels - 0.1307) / 0.3081, rtol=1e-5)
    labels = gzip.decompress(contents["t10k-labels-idx1-ubyte.gz"])[8:]
    assert made.y_test.tolist() == list(labels)


def test_images_and_labels_must_agree_in_number(monkeypatch, tmp_path):
    contents = downloads.mnist()
    contents["train-labels-idx1-ubyte.gz"] = downloads.idx((4,), [0] * 4)
    downloads.expect(monkeypatch, "mnist", contents)
    downloads.put(contents, tmp_path)
    with pytest.raises(data.DataError, match="has 5 images, but .* has 4 labels"):
        data.load("mnist", tmp_path)


# CIFAR-10


def test_cifar10(monkeypatch, tmp_path):
    contents = downloads.cifar10()
    downloads.expect(monkeypatch, "cifar10", contents)
    downloads.put(contents, tmp_path)
    made = data.load("cifar10", tmp_path)
    assert made.x_train.shape == (10, 3, 32, 32)
    record = contents["data_batch_2.bin"][3073:]  # the fourth image of all
    assert made.y_train[3] == record[0]
    assert made.names[8] == "ship"
    row, column = 5, 7
    for channel, (mean, deviation) in enumerate(
        [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]
    ):
        pixel = record[1 + 1024 * channel + 32 * row + column]
        found = made.x_train[3, channel, row, column].item()
        assert found == pytest.approx((pixel / 255 - mean) / deviation, rel=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "records of 3,073 bytes, found 0"),
        (bytes(3073 * 2 - 1), "records of 3,073 bytes, found 6,145"),
        (bytes([10]) + bytes(3072), "labels 0…9, found 10"),
    ],
)
def test_what_is_no_cifar_batch_is_refused(tmp_path, content, message):
    with pytest.raises(data.DataError, match="b.bin: expected " + message):
        cifar10.read_batch(write(tmp_path / "b.bin", content))


# SARCOS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a MATLAB 5 file"),
        (b"no matrix here" * 20, "is not a MATLAB 5 file"),
        (downloads.mat(a=np.ones((4, 28)))[:-40], "is not a MATLAB 5 file"),
        (downloads.mat(a=np.ones((4, 27))), r"28 columns, found \[\(4, 27\)\]"),
        (downloads.mat(a=np.ones((4, 28)), b=np.ones((4, 28))), "expected one matrix"),
        (downloads.mat(), r"found \[\]"),
        (downloads.mat(a=np.full((4, 28), np.nan)), "finite"),
    ],
)
def test_what_is_no_matrix_of_28_columns_is_refused(tmp_path, content, message):
    with pytest.raises(data.DataError, match="c.mat.*" + message):
        sarcos.read_matrix(write(tmp_path / "c.mat", content))


@pytest.mark.parametrize("n", [44484, 4449, 800, 400, 40])
def test_blocks_are_apart(n):
    train, test = (mask.nonzero().flatten().numpy() for mask in sarcos.block_split(n))
    runs = np.split(test, np.flatnonzero(np.diff(test) > 1) + 1)
    assert len(runs) == 4  # blocks 5, 10, 15 and 20 of 20
    assert all(abs(len(run) - n / 20) < 1 for run in runs)
    assert test[-1] == n - 1
    gap = min(np.abs(train[:, None] - [run[0], run[-1]]).min() for run in runs)
    assert gap == n // 400 + 1
    assert len(train) == n - len(test) - 7 * (n // 400)


def test_sarcos_is_standardised_by_its_training_rows(monkeypatch, tmp_path):
    contents = downloads.sarcos()
    downloads.expect(monkeypatch, "sarcos", contents)
    downloads.put(contents, tmp_path)
    made = data.load("sarcos", tmp_path)
    path = write(tmp_path / "again.mat", contents["sarcos_inv.mat"])
    rows = scipy.io.loadmat(path)["sarcos_inv"]
    train, test = rows[sarcos.block_split(800)[0].numpy()], rows[760:]
    expected = (test - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(made.x_test[-40:], expected[:, :21], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.y_test[-40:], expected[:, 21:], rtol=1e-4, atol=1e-5)
    assert made.names == tuple(f"joint {i}" for i in range(1, 8))
    assert made.provenance["shared_rows"] == 0
    assert "sarcos_inv.mat: 20 blocks" in made.provenance["split"]
    assert made.provenance["counts"] == {"train": 626, "test": 160}
    assert made.provenance["files"]["sarcos_inv.mat"].startswith("git:")


def test_the_papers_split_leaks_and_says_so(monkeypatch, tmp_path):
    contents = downloads.sarcos()
    downloads.expect(monkeypatch, "sarcos-paper", contents)
    downloads.put(contents, tmp_path)
    with pytest.warns(data.LeakWarning, match="80 of the 80 test rows") as caught:
        made = data.load("sarcos-paper", tmp_path)
    assert caught[0].filename == __file__
    assert (made.n_train, len(made.x_test)) == (800, 80)
    assert made.provenance["shared_rows"] == 80


def test_repeated_rows_are_counted_in_the_block_split_too(monkeypatch, tmp_path):
    rows = np.random.default_rng(0).normal(size=(800, 28))
    rows[-3:] = rows[0]  # the last block is for the test
    contents = {"sarcos_inv.mat": downloads.mat(sarcos_inv=rows)}
    downloads.expect(monkeypatch, "sarcos", contents)
    downloads.put(contents, tmp_path)
    with pytest.warns(data.LeakWarning, match="3 of the 160"):
        assert data.load("sarcos", tmp_path).provenance["shared_rows"] == 3


def test_constant_columns_are_centred_only():
    train = torch.tensor([[0.1, 1.0], [0.1, 3.0], [0.1, 2.0]], dtype=torch.float64)
    test = torch.tensor([[0.6, 2.0]], dtype=torch.float64)
    made = scale.standardise(train, test)
    torch.testing.assert_close(made[0][:, 0], torch.zeros(3))
    torch.testing.assert_close(made[1], torch.tensor([[0.5, 0.0]]))
    assert made[0][1, 1].item() == pytest.approx((3 / 2) ** 0.5)


# Digits


def test_digits():
    made = data.load("digits")
    images, labels = load_digits(return_X_y=True)
    assert made.y_train.tolist() + made.y_test.tolist() == labels.tolist()
    for y in (made.y_train, made.y_test):
        assert y.bincount().float().std() < 0.03 * len(y)
    pixels = images / 16
    expected = (pixels[1300] - pixels[:1197].mean()) / pixels[:1197].std()
    np.testing.assert_allclose(made.x_test[103].flatten(), expected, rtol=1e-4, atol=1e-6)
    assert made.provenance["normalisation"]["mean"] == pytest.approx(pixels[:1197].mean())


def test_completion_is_the_lower_half_from_the_upper():
    made = data.load("digits-completion")
    images = load_digits().images
    assert made.names[0] == "row 5, column 1"
    assert made.names[31] == "row 8, column 8"
    lower = images[:, 4:].reshape(-1, 32)
    centred = lower - lower[:1197].mean(0)
    np.testing.assert_allclose(
        made.y_test, centred[1197:] / np.sqrt((centred[:1197] ** 2).mean()), atol=1e-5
    )
    upper = images[:, :4].reshape(-1, 32)
    assert np.corrcoef(made.x_train[:, 3], upper[:1197, 3])[0, 1] == pytest.approx(1)
    assert made.y_train.square().mean().item() == pytest.approx(1, rel=1e-5)


def test_constant_pixels_are_kept_and_finite():
    made = data.load("digits-completion")
    constant = made.y_train.std(0) == 0
    assert constant.sum() == 2
    assert (made.y_train[:, constant] == 0).all()
    for part in (made.x_train, made.y_train, made.x_test, made.y_test):
        assert part.isfinite().all()
        assert part.abs().max() < 6


def test_other_digits_are_refused(monkeypatch):
    changed = load_digits()
    changed.target[3] = 4
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: changed)
    with pytest.raises(data.DataError, match="digits of scikit-learn .* are not those expected"):
        data.load("digits")


def test_loading_is_repeatable_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    first, second = data.load("digits"), data.load("digits")
    assert torch.equal(first.x_train, second.x_train)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["digits", "digits-completion"])
def test_provenance_is_plain_and_complete(name):
    record = data.load(name).provenance
    assert json.loads(json.dumps(record)) == record
    assert set(record) == {"source", "files", "split", "counts", "normalisation"}
    assert record["counts"] == {"train": 1197, "test": 600}


# Tables


@pytest.mark.parametrize(
    ("name", "loader", "n_train"),
    [("wine", load_wine, 108), ("breast-cancer", load_breast_cancer, 369)],
)
def test_tables_of_classes(name, loader, n_train):
    made, bunch = data.load(name), loader()
    assert (made.n_train, len(made.x_test)) == (n_train, len(bunch.data) - n_train)
    assert made.names == tuple(bunch.target_names)
    counts = made.y_train.bincount() + made.y_test.bincount()
    assert counts.tolist() == np.bincount(bunch.target).tolist()
    share = made.y_train.bincount() / n_train
    np.testing.assert_allclose(share, np.bincount(bunch.target) / len(bunch.data), atol=0.06)
    both = torch.cat([made.x_train, made.x_test])
    assert made.x_train.mean(0).abs().max() < 1e-5
    np.testing.assert_allclose(made.x_train.std(0, correction=0), 1, rtol=1e-5)
    for column in range(both.shape[1]):  # the same rows in another order and unit
        ours, theirs = both[:, column].sort().values, np.sort(bunch.data[:, column])
        assert np.corrcoef(ours, theirs)[0, 1] > 1 - 1e-6


def test_diabetes_is_one_standardised_task():
    made, bunch = data.load("diabetes"), load_diabetes(scaled=False)
    assert made.y_train.shape == (292, 1)
    assert made.y_train.square().mean().item() == pytest.approx(1, rel=1e-5)
    both = torch.cat([made.y_train, made.y_test]).flatten().sort().values
    assert np.corrcoef(both, np.sort(bunch.target))[0, 1] > 1 - 1e-6


def test_other_tables_are_refused(monkeypatch):
    changed = load_wine()
    changed.data[3, 2] += 1
    monkeypatch.setattr("sklearn.datasets.load_wine", lambda: changed)
    with pytest.raises(data.DataError, match="wine of scikit-learn .* is not as expected"):
        data.load("wine")


# The real files


@pytest.mark.parametrize(
    ("name", "shape", "n_train", "n_test", "counts"),
    [
        ("mnist", (1, 28, 28), 60000, 10000, [5923, 6742]),
        ("cifar10", (3, 32, 32), 50000, 10000, [5000, 5000]),
    ],
)
def test_real_images(real, name, shape, n_train, n_test, counts):
    if not data.check(name, real).loadable:
        pytest.skip(f"no {name} in {real}")
    made = data.load(name, real)
    assert made.input_shape == shape
    assert (made.n_train, len(made.x_test)) == (n_train, n_test)
    assert made.y_train.bincount()[:2].tolist() == counts
    assert made.x_train.mean((0, 2, 3)).abs().max() < 1e-3
    assert (made.x_train.std((0, 2, 3)) - 1).abs().max() < 1e-3


def test_real_sarcos(real):
    if not data.check("sarcos", real).loadable:
        pytest.skip(f"no sarcos in {real}")
    made = data.load("sarcos", real)
    assert made.input_shape == (21,)
    assert made.n_outputs == 7
    assert made.provenance["shared_rows"] == 0
    expected = {"sarcos_inv.mat": (34811, 8896), "sarcos_inv_test.mat": (3483, 889)}
    (used,) = made.provenance["files"]
    assert (made.n_train, len(made.x_test)) == expected[used]
