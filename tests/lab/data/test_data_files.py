"""Files are found, verified, and named when something is wrong with them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adareg.lab import data
from adareg.lab.data import files
from fakes import downloads

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"


@pytest.fixture
def mnist(monkeypatch):
    contents = downloads.mnist()
    downloads.expect(monkeypatch, "mnist", contents)
    return contents


@pytest.mark.parametrize("folder", ["mnist", ""])
def test_files_are_found_in_both_places(mnist, tmp_path, folder):
    downloads.put(mnist, tmp_path / folder)
    assert data.load("mnist", tmp_path).n_train == 5
    assert data.load("mnist", str(tmp_path)).n_train == 5


@pytest.mark.parametrize(
    "folder", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", ""]
)
def test_cifar_is_found_as_it_is_unpacked(monkeypatch, tmp_path, folder):
    contents = downloads.cifar10()
    downloads.expect(monkeypatch, "cifar10", contents)
    downloads.put(contents, tmp_path / folder)
    assert data.load("cifar10", tmp_path).n_train == 10


def test_the_environment_names_the_directory(mnist, tmp_path, monkeypatch):
    downloads.put(mnist, tmp_path / "there")
    monkeypatch.setenv("ADAREG_DATA", str(tmp_path / "there"))
    assert data.load("mnist").n_train == 5
    with pytest.raises(data.DataNotFoundError):  # the argument comes first
        data.load("mnist", tmp_path / "elsewhere")


def test_the_cache_directory_is_the_last_resort(monkeypatch, tmp_path):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    assert files.data_directory() == tmp_path / "adareg"
    monkeypatch.setenv("ADAREG_DATA", "~/d")
    assert files.data_directory() == Path.home() / "d"


def test_missing_files_are_named_with_the_remedies(mnist, tmp_path):
    mnist.pop(LABELS), mnist.pop(TEST_LABELS)
    downloads.put(mnist, tmp_path / "mnist")
    with pytest.raises(data.DataNotFoundError) as caught:
        data.load("mnist", tmp_path)
    text = str(caught.value)
    assert f"{LABELS}, {TEST_LABELS} not found in {tmp_path} (searched" in text
    assert IMAGES not in text
    assert "ADAREG_DATA or --data" in text
    assert f"adareg data fetch mnist --data {tmp_path}" in text


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c | {IMAGES: c[IMAGES][:-5]}, r"train-images.*\(\d+ bytes instead of \d+\)"),
        (lambda c: c | {IMAGES: b""}, r"train-images.*\(0 bytes instead of"),
        (lambda c: c | {IMAGES: flip(c[IMAGES])}, "train-images"),
        (
            lambda c: c | {TEST_LABELS: c[LABELS]},
            f"{TEST_LABELS} is damaged.*which is the content of {LABELS}",
        ),
    ],
    ids=["truncated", "empty", "one bit", "mixed up"],
)
def test_damaged_files_are_named_with_the_remedy(mnist, tmp_path, damage, message):
    downloads.put(damage(mnist), tmp_path)
    with pytest.raises(data.DataError, match=message) as caught:
        data.load("mnist", tmp_path)
    expected = "is damaged: expected sha256:[0-9a-f]{64}, found sha256:[0-9a-f]{64}.*"
    remedy = f"Delete it and run: adareg data fetch mnist --data {tmp_path}"
    assert caught.match(expected + remedy)


@pytest.mark.parametrize(
    ("kind", "digits"),
    [  # of "hello\n", by sha256sum, sha1sum, md5sum and git hash-object
        ("sha256", "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"),
        ("sha1", "f572d396fae9206628714fb2ce00f72e94f2258f"),
        ("md5", "b1946ac92492d2347c6235b4d2611184"),
        ("git", "ce013625030ba8dba906f756967f9e9ca394464a"),
    ],
)
def test_checksums(tmp_path, kind, digits):
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert files.checksum(path, kind) == f"{kind}:{digits}"


def test_unknown_names_list_those_there_are():
    for call in (data.load, data.fetch, data.check):
        with pytest.raises(ValueError, match="'mnst'.*digits, digits-completion, mnist"):
            call("mnst")


def test_states(mnist, tmp_path):
    assert data.check("digits").summary == "embedded"
    assert data.check("mnist", tmp_path).summary == "missing"
    downloads.put({IMAGES: mnist[IMAGES]}, tmp_path)
    assert data.check("mnist", tmp_path).summary == "incomplete"
    downloads.put(mnist, tmp_path)
    state = data.check("mnist", tmp_path)
    assert (state.summary, state.loadable) == ("here", True)
    assert [f.state for f in state.files] == ["ok"] * 4
    (tmp_path / IMAGES).write_bytes(b"x")
    (tmp_path / LABELS).unlink()
    state = data.check("mnist", tmp_path)
    assert (state.summary, state.loadable) == ("damaged", False)
    assert [f.state for f in state.files] == ["bad", "missing", "ok", "ok"]


def test_sarcos_can_do_with_the_test_file(monkeypatch, tmp_path):
    contents = downloads.sarcos()
    downloads.expect(monkeypatch, "sarcos", contents)
    assert data.check("sarcos", tmp_path).summary == "missing"
    downloads.put({"sarcos_inv_test.mat": contents["sarcos_inv_test.mat"]}, tmp_path)
    assert data.check("sarcos", tmp_path).summary == "here"
    assert list(data.load("sarcos", tmp_path).provenance["files"]) == ["sarcos_inv_test.mat"]
    downloads.put({"sarcos_inv.mat": b"cut"}, tmp_path)  # no silent fallback
    assert data.check("sarcos", tmp_path).summary == "damaged"
    with pytest.raises(data.DataError, match="sarcos_inv.mat is damaged: expected git:"):
        data.load("sarcos", tmp_path)


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pooch", "requests", "scipy", "sklearn", "rich", "typer"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from pathlib import Path
import pytest
sys.path.insert(0, sys.argv[1])
from adareg.lab import data
for call, package in [
    (lambda: data.load("digits"), "sklearn"),
    (lambda: data.load("mnist"), "pooch"),
    (lambda: data.fetch("mnist", sys.argv[2] + "/none"), "pooch"),
]:
    with pytest.raises(ImportError, match=package + r".*pip install '\\.\\[lab\\]'"):
        call()
row = data.DATASETS["mnist"]
import hashlib, dataclasses
new = [
    dataclasses.replace(f, checksum="md5:" + hashlib.md5(p.read_bytes()).hexdigest())
    for f in row.files
    if (p := Path(sys.argv[2]) / f.name)
]
data.DATASETS["mnist"] = dataclasses.replace(row, files=tuple(new))
print(data.load("mnist", sys.argv[2]).n_train)
"""


def test_reading_from_a_directory_needs_no_package(tmp_path):
    downloads.put(downloads.mnist(), tmp_path)
    command = [sys.executable, "-c", WITHOUT, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


def dataset(**changes):
    parts = {"x_train": torch.zeros(3, 2), "x_test": torch.zeros(2, 2)}
    labels = {"y_train": torch.tensor([0, 1, 1]), "y_test": torch.tensor([0, 1])}
    given = {"name": "n", "task": "classification", "names": ("a", "b"), "provenance": {}}
    return data.Dataset(**{**parts, **labels, **given, **changes})


def test_a_data_set_knows_its_shape():
    made = dataset()
    assert (made.n_train, made.n_outputs, made.input_shape) == (3, 2, (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": torch.zeros(2, 2)}, "n, train data: .*got 2 and 3"),
        ({"x_test": torch.zeros(2, 3)}, r"test data: .*inputs of \(2,\)"),
        ({"x_test": torch.zeros(2, 2).double()}, "torch.float64"),
        ({"x_test": torch.zeros(0, 2), "y_test": torch.zeros(0).long()}, "got 0 and 0"),
        ({"y_test": torch.tensor([0, 2])}, "labels 0…2, but 2 classes"),
        ({"y_test": torch.tensor([-1, 0])}, "labels -1…0"),
        ({"y_test": torch.zeros(2)}, "int64"),
        ({"task": "regression"}, "float32 .n, 2. targets"),
    ],
)
def test_a_data_set_validates_itself(changes, message):
    with pytest.raises(data.DataError, match=message):
        dataset(**changes)
