"""The contest's tables: what is read is what was written, in the layouts of their public homes."""

import numpy as np
import pytest

from adareg.lab import data
from adareg.lab.data import arff, uci
from fakes import downloads

ARFF = """\
% a comment
@relation 'a table'
@attribute 'the size' real
@attribute kind {'a b', c, d}
@attribute last {no, yes}

@data
1.5,'a b',yes
?,c,no
-2e1,?,yes
0,d,no
"""
TARGETS = """\
@relation t
@attribute a numeric
@attribute b numeric
@attribute c numeric
@data
1,2,3
4,5,6
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.arff"


def read(path, text, rows, targets):
    path.write_text(text)
    return arff.read({"x.arff": path}, "x", rows, targets)


def test_classes_and_nominal_inputs(path):
    table = read(path, ARFF, 4, 0)
    assert table.task == "classification"
    assert table.names == ("no", "yes")
    assert table.y.tolist() == [1, 0, 1, 0]
    assert list(table.x.columns) == ["the size", "kind"]
    np.testing.assert_array_equal(table.x["the size"], [1.5, np.nan, -20, 0])
    assert list(table.x["kind"].cat.categories) == ["a b", "c", "d"]
    assert table.x["kind"].cat.codes.tolist() == [0, 1, -1, 2]


def test_the_last_columns_are_the_targets(path):
    table = read(path, TARGETS, 2, 2)
    assert table.x.to_numpy().tolist() == [[1], [4]]
    assert table.y.tolist() == [[2, 3], [5, 6]]
    assert table.names == ("b", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TARGETS + "7,8,9\n", "expected 2 rows, found 3"),
        (TARGETS.replace("5", "?"), "targets that are finite"),
        (TARGETS.replace("5", "five"), "x.arff is not an ARFF file"),
        (ARFF.replace("c,no", "e,no"), "x.arff is not an ARFF file"),
        ("1,2,3\n", "x.arff"),
    ],
)
def test_what_is_no_such_table_is_refused(path, text, message):
    with pytest.raises(data.DataError, match=message):
        read(path, text, 2, 2)


def test_a_public_table_is_loaded_as_it_was_published(monkeypatch, tmp_path):
    numbers = np.random.default_rng(0).normal(size=(308, 7))
    content = "\n".join(" ".join(map(repr, row)) for row in numbers.tolist()).encode()
    downloads.expect(monkeypatch, "uci-yacht", {"data.txt": content})
    downloads.put({"data.txt": content}, tmp_path / "uci/yacht")
    table = data.load_table("uci-yacht", tmp_path)
    np.testing.assert_array_equal(table.x, numbers[:, :6])
    np.testing.assert_array_equal(table.y, numbers[:, 6])
    assert table.name == "uci-yacht"
    assert table.provenance["files"].keys() == {"data.txt"}
    assert len(table.splits) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 2\n3 4\n", "expected 3 rows"), ("1\n2\n3\n", "more than 1"), ("a b\n", "not a table")],
)
def test_numbers_of_another_shape_are_refused(tmp_path, text, message):
    (tmp_path / "data.txt").write_text(text)
    with pytest.raises(data.DataError, match=message):
        uci.read({"data.txt": tmp_path / "data.txt"}, "x", rows=3, inputs=1)


def test_splits_are_drawn_as_the_published_code_does():
    """Literally: ``numpy.random.seed(1)``, then one choice of all rows after the other."""
    n = 53
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    orders = [np.random.choice(range(n), n, replace=False) for _ in range(20)]  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    for (train, test), order in zip(uci.draw_splits(n), orders, strict=True):
        assert train.tolist() == order[:48].tolist()
        assert test.tolist() == order[48:].tolist()


def test_a_table_and_a_data_set_are_not_mixed_up():
    with pytest.raises(ValueError, match="'embedded-iris' is a table .* use load_table"):
        data.load("embedded-iris")
    with pytest.raises(ValueError, match="'digits' is not a table .* use load"):
        data.load_table("digits")


@pytest.mark.parametrize("name", [n for n in data.DATASETS if n.startswith("embedded-")])
def test_embedded_tables_need_no_files(name):
    table = data.load_table(name)
    assert not table.x.isna().any(axis=None)
    assert f"{len(table.x):,}" == data.DATASETS[name].sizes
    if table.task == "classification":
        assert set(table.y) == set(range(len(table.names)))


PUBLISHED = [n for n in data.DATASETS if n.startswith(("uci-", "mulan-", "arff-"))]


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_tables(real, name):
    table = data.load_table(name, real)
    assert f"{len(table.x):,}" == data.DATASETS[name].sizes
    if table.task == "classification":
        assert np.bincount(table.y).min() >= 2
    for number, (train, test) in enumerate(table.splits):
        folder = real / data.DATASETS[name].folders[0]
        for part, rows in (("train", train), ("test", test)):
            published = np.loadtxt(folder / f"index_{part}_{number}.txt")
            np.testing.assert_array_equal(rows, published)
