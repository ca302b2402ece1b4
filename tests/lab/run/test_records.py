"""Records appear whole, are found by what is in them, and stay."""

import json
import math

import pytest

from adareg.lab.run import records
from adareg.lab.run.records import RecordError, Store, plain
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica

CONFIG = Config(data="digits", n=30, batch=8, blocks=2, epochs=1)


def record(method="none", seed=0, **parts):
    parts = {"metrics": {"test_accuracy": 0.5}, "spectra": {"fc.0": {"stable_rank": 2.0}}, **parts}
    return records.record("digits", "smoke", CONFIG, Replica(method, seed), parts, {"seconds": 1.0})


def test_what_is_written_is_done_and_read(tmp_path):
    store = Store(tmp_path)
    assert store.done("digits", CONFIG) == {}
    store.write("digits", CONFIG, [record(), record("adareg", 1)])
    assert store.done("digits", CONFIG).keys() == {Replica("none", 0), Replica("adareg", 1)}
    assert store.done("digits", CONFIG.override({"lr": "0.1"})) == {}
    assert store.done("sarcos", CONFIG) == {}
    assert [r["method"] for r in store.read()] == ["none", "adareg"]
    frame = store.frame()
    assert list(frame["method"]) == ["none", "adareg"]
    assert list(frame["stable_rank"]) == [2.0, 2.0]
    assert list(frame["n"]) == [30, 30]


def test_a_network_in_two_files_counts_once(tmp_path):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    store.write("digits", CONFIG, [record(), record(seed=1)])
    store.write("digits", CONFIG.override({"lr": "0.1"}), [record()])
    store.write("copy", CONFIG, [record()])
    assert sorted(r["seed"] for r in store.read("digits")) == [0, 0, 1]
    assert len(store.frame()) == 4


def test_another_experiments_records_of_the_cell_are_found(tmp_path):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    assert store.elsewhere("copy", CONFIG).keys() == {Replica("none", 0)}
    assert store.elsewhere("digits", CONFIG) == {}


def test_numbers_are_short_in_lists_and_null_when_not_finite():
    value = {"a": [1 / 3, math.nan, [math.inf]], "b": 1 / 3, "c": math.nan, "d": (1, "x", None)}
    assert plain(value) == {
        "a": [0.3333333, None, [None]],
        "b": 1 / 3,
        "c": None,
        "d": [1, "x", None],
    }
    json.dumps(plain(value), allow_nan=False)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Store(tmp_path).write("digits", CONFIG, [record()])
    assert list((tmp_path / "digits").iterdir()) == []


def test_two_runs_may_write_the_same_records_at_once(tmp_path, monkeypatch):
    store, fsync = Store(tmp_path), records.os.fsync

    def overtaken(fd):
        monkeypatch.setattr(records.os, "fsync", fsync)
        path = store.write("digits", CONFIG, [record()])
        assert [json.loads(line)["method"] for line in path.read_text().splitlines()] == ["none"]

    monkeypatch.setattr(records.os, "fsync", overtaken)
    path = store.write("digits", CONFIG, [record()])
    assert [r["method"] for r in store.read()] == ["none"]
    assert list((tmp_path / "digits").iterdir()) == [path]


def test_what_a_killed_write_left_is_not_read_and_is_replaced(tmp_path):
    store = Store(tmp_path)
    path = store.write("digits", CONFIG, [record()])
    partial = path.with_suffix(".partial")
    partial.write_text(path.read_text()[:20])
    path.unlink()
    assert list(store.read()) == []
    assert store.write("digits", CONFIG, [record()]) == path
    assert not partial.exists()


@pytest.mark.parametrize("text", ["{", '{"format": 99}\n', '{"format": 1}\n', "[1]\n", "\xff", ""])
def test_a_foreign_file_is_named(tmp_path, text):
    (tmp_path / "digits").mkdir()
    path = tmp_path / "digits" / f"{CONFIG.slug}-{CONFIG.digest}-x.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=str(path)):
        Store(tmp_path).done("digits", CONFIG)


#: Changes of a record that is whole, and what is said of them.
WRONG = [
    ({"experiment": 3}, "experiment is 3; expected text"),
    ({"scale": None}, "scale is null; expected text"),
    ({"method": ["none"]}, 'method is ["none"]; expected text'),
    ({"seed": [1]}, "seed is [1]; expected an integer"),
    ({"seed": True}, "seed is true; expected an integer"),
    ({"seconds": "long"}, 'seconds is "long"; expected a number'),
    ({"config": "x"}, 'config is "x"; expected an object'),
    ({"config": {"n": 3}}, "config.batch is missing; expected an integer"),
    ({"config": {"n": "thirty", "batch": 8}}, 'config.n is "thirty"; expected an integer'),
    ({"config": {"data": [1]}}, "config.data is [1]; expected text"),
    ({"config": {"lr": [1]}}, "config.lr is [1]; expected a number, true, false, null or text"),
    ({"metrics": "x"}, 'metrics is "x"; expected an object'),
    (
        {"metrics": {"test_accuracy": [1]}},
        "metrics.test_accuracy is [1]; expected a number or null",
    ),
    ({"metrics": {"diverged": None}}, "metrics.diverged is null; expected true or false"),
    ({"metrics": {"other": {}}}, "metrics.other is {}; expected a number, true, false, null,"),
    ({"spectra": None}, "spectra is null; expected an object"),
    ({"spectra": {}}, "spectra is {}; expected an object with one layer or more"),
    ({"spectra": {"a": 1}}, "spectra.a is 1; expected an object"),
    ({"spectra": {"a": {"b": "c"}}}, 'spectra.a.b is "c"; expected a number or null'),
    ({"environment": None}, "environment is null; expected an object"),
    ({"data": {"counts": 5}}, "data.counts is 5; expected an object"),
    ({"peak_bytes": "x"}, 'peak_bytes is "x"; expected a number or null'),
    ({"stacked": "x" * 90}, f'stacked is "{"x" * 39}…; expected a number or null'),
    ({"arrays": []}, "arrays is []; expected an object"),
    ({"curves": {"train_loss": 1}}, "curves.train_loss is 1; expected a list"),
    ({"names": {}}, "names is {}; expected a list"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_value_of_a_wrong_kind_is_named(tmp_path, change, message):
    path = Store(tmp_path).write("digits", CONFIG, [record(), record(seed=1)])
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text(f"{json.dumps(first)}\n{json.dumps({**second, **change})}\n")
    with pytest.raises(RecordError) as error:
        list(Store(tmp_path).read())
    assert str(error.value).startswith(f"{path}, line 2: {message}")
    assert str(error.value).endswith("; move it away to go on")


def test_a_foreign_file_may_be_passed_over(tmp_path):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    (tmp_path / "digits" / "a.jsonl").write_text("{")
    unreadable = []
    assert len(list(store.read(unreadable=unreadable))) == 1
    assert [str(tmp_path / "digits" / "a.jsonl") in why for why in unreadable] == [True]
    with pytest.raises(RecordError):
        list(store.read())


def test_packed_records_are_the_same(tmp_path):
    store = Store(tmp_path)
    path = store.write("digits", CONFIG, [record()])
    before, done = list(store.read()), store.done("digits", CONFIG)
    assert store.pack() == 1
    assert not path.exists()
    (packed,) = (tmp_path / "digits").iterdir()
    assert packed.suffix == ".gz"
    assert list(store.read()) == before
    assert store.done("digits", CONFIG) == done
    assert store.elsewhere("mnist-rules", CONFIG) == done
    assert store.pack() == 0


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:40] + b[41:], lambda b: b"{"])
def test_a_damaged_packed_file_is_named(tmp_path, damage):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    store.pack()
    (packed,) = (tmp_path / "digits").iterdir()
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(RecordError, match=str(packed)):
        store.done("digits", CONFIG)


def test_what_is_not_ours_is_not_packed(tmp_path):
    (tmp_path / "digits").mkdir()
    path = tmp_path / "digits" / "a.jsonl"
    path.write_text("{}")
    with pytest.raises(RecordError, match=str(path)):
        Store(tmp_path).pack()
    Store(tmp_path).write("digits", CONFIG, [record()])
    assert Store(tmp_path).pack(unreadable=[]) == 1
    assert path.read_text() == "{}"
