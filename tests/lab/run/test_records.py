"""Records appear whole, are found by what is in them, and stay."""

import gzip
import json
import math
import os
import signal
from dataclasses import asdict

import pytest

from adareg.lab import atomic
from adareg.lab.run import reading, records
from adareg.lab.run.records import RecordError, Store, TornLineWarning, plain
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica

CONFIG = Config(data="digits", n=30, batch=8, blocks=2, epochs=1)


OTHER = CONFIG.override({"lr": "0.1"})


def record(method="none", seed=0, config=CONFIG, experiment="digits"):
    parts = {
        "metrics": {"test_accuracy": 0.5, "diverged": False},
        "curves": {},
        "spectra": {"fc.0": {"stable_rank": 2.0, "spectral_norm": 1.0}},
        "arrays": {"correlation": [[1.0, 0.5], [0.5, 1.0]]},
    }
    circumstances = {
        "names": ["0", "1"],
        "data": {},
        "seconds": 1.0,
        "stacked": 1,
        "peak_bytes": None,
        "environment": {},
    }
    replica = Replica(method, seed)
    return records.record(experiment, "smoke", config, replica, parts, circumstances)


def test_what_is_written_is_done_and_read(tmp_path):
    store = Store(tmp_path)
    assert store.done("digits", CONFIG) == {}
    store.write("digits", CONFIG, [record(), record("adareg", 1)])
    assert store.done("digits", CONFIG).keys() == {Replica("none", 0), Replica("adareg", 1)}
    assert store.done("digits", OTHER) == {}
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
    store.write("digits", OTHER, [record(config=OTHER)])
    store.write("copy", CONFIG, [record(experiment="copy")])
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

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Store(tmp_path).write("digits", CONFIG, [record()])
    assert list((tmp_path / "digits").iterdir()) == []


def test_two_runs_may_write_the_same_records_at_once(tmp_path, monkeypatch):
    store, fsync = Store(tmp_path), atomic.os.fsync

    def overtaken(fd):
        monkeypatch.setattr(atomic.os, "fsync", fsync)
        path = store.write("digits", CONFIG, [record()])
        assert [json.loads(line)["method"] for line in path.read_text().splitlines()] == ["none"]

    monkeypatch.setattr(atomic.os, "fsync", overtaken)
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


def settings(**changes):
    return {"config": {**asdict(CONFIG), **changes}}


def without(name):
    return {"config": {key: value for key, value in asdict(CONFIG).items() if key != name}}


METRICS = {"test_accuracy": 0.5, "diverged": False}

#: Changes of a record that is whole, and what is said of them.
WRONG = [
    ({"experiment": 3}, "experiment is 3; expected text"),
    ({"scale": None}, "scale is null; expected one of smoke, small, paper"),
    ({"method": ["none"]}, 'method is ["none"]; expected text'),
    ({"seed": [1]}, "seed is [1]; expected an integer"),
    ({"seed": True}, "seed is true; expected an integer"),
    ({"seconds": "long"}, 'seconds is "long"; expected a number'),
    ({"config": "x"}, 'config is "x"; expected an object'),
    *((without(name), f"config.{name} is missing") for name in ("n", "batch", "lr", "decov")),
    (settings(n="thirty"), 'config.n is "thirty"; expected an integer'),
    (settings(data=[1]), "config.data is [1]; expected text"),
    (settings(lr=[1]), "config.lr is [1]; expected a number"),
    (settings(blocks=0), "config.blocks=0: expected a positive integer"),
    (settings(colour="red"), "config.colour is no setting; there are: data, n, batch"),
    (settings(lr=0.1), f"this is a record of digits/{OTHER.slug}-{OTHER.digest}, not of digits/"),
    ({"experiment": "mnist-layers"}, "this is a record of mnist-layers/n30-b8-"),
    ({"scale": "huge"}, 'scale is "huge"; expected one of smoke, small, paper'),
    ({"metrics": "x"}, 'metrics is "x"; expected an object'),
    (
        {"metrics": {**METRICS, "test_accuracy": [1]}},
        "metrics.test_accuracy is [1]; expected a number or null",
    ),
    (
        {"metrics": {**METRICS, "diverged": None}},
        "metrics.diverged is null; expected true or false",
    ),
    ({"metrics": {"test_accuracy": 0.5}}, "metrics.diverged is missing"),
    ({"metrics": {"diverged": False}}, "metrics has neither test_accuracy nor test_explained_"),
    (
        {"metrics": {**METRICS, "test_explained_variances": [0.5, "x"]}},
        'metrics.test_explained_variances is [0.5, "x"]; expected a list of numbers',
    ),
    (
        {"metrics": {**METRICS, "other": {}}},
        "metrics.other is {}; expected a number, true, false, null,",
    ),
    ({"spectra": None}, "spectra is null; expected an object"),
    ({"spectra": {}}, "spectra is {}; expected an object with one layer or more"),
    ({"spectra": {"a": 1}}, "spectra.a is 1; expected an object"),
    ({"spectra": {"a": {"stable_rank": 1}}}, "spectra.a.spectral_norm is missing"),
    (
        {"spectra": {"a": {"stable_rank": 1, "spectral_norm": "c"}}},
        'spectra.a.spectral_norm is "c"; expected a number or null',
    ),
    ({"environment": None}, "environment is null; expected an object"),
    ({"data": {"counts": 5}}, "data.counts is 5; expected an object"),
    ({"peak_bytes": "x"}, 'peak_bytes is "x"; expected a number or null'),
    ({"stacked": "x" * 90}, f'stacked is "{"x" * 39}…; expected an integer'),
    ({"arrays": []}, "arrays is []; expected an object"),
    ({"curves": {"train_loss": 1}}, "curves.train_loss is 1; expected a list"),
    ({"names": {}}, "names is {}; expected a list of text"),
    ({"names": [1]}, "names is [1]; expected a list of text"),
    ({"arrays": {}}, "arrays.correlation is missing"),
    ({"arrays": {"correlation": [1]}}, "arrays.correlation is [1]; expected a matrix of numbers"),
    ({"arrays": {"correlation": [["x"]]}}, 'arrays.correlation is [["x"]]; expected a matrix'),
    ({"arrays": {"correlation": [[1], []]}}, "arrays.correlation is [[1], []]; expected a matrix"),
    (
        {"arrays": {"correlation": [[1.0]], "row_covariance": [[1.0]]}},
        "arrays has one covariance; expected those of rows and columns, or none",
    ),
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


@pytest.fixture
def alarm():
    """An error after five seconds, in place of a test without an end."""

    def fail(number, frame):
        raise AssertionError("still reading")

    signal.signal(signal.SIGALRM, fail)
    signal.alarm(5)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_what_is_not_a_regular_file_is_named_and_passed_over(tmp_path, alarm, make):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    path = tmp_path / "digits" / f"{CONFIG.slug}-{CONFIG.digest}-x.jsonl"
    make(path)
    with pytest.raises(RecordError, match=f"{path} is not a regular file; move it away"):
        store.done("digits", CONFIG)
    unreadable = []
    assert len(list(store.read(unreadable=unreadable))) == 1
    assert len(unreadable) == 1


def test_a_file_that_unpacks_to_too_much_is_named_and_passed_over(tmp_path, monkeypatch):
    store = Store(tmp_path)
    path = store.write("digits", CONFIG, [record()])
    line = path.read_bytes()
    monkeypatch.setattr(reading, "LARGEST_LINE", len(line))
    monkeypatch.setattr(reading, "LARGEST_FILE", 3 * len(line))
    path.with_name(f"{CONFIG.slug}-{CONFIG.digest}-x.jsonl.gz").write_bytes(gzip.compress(4 * line))
    path.with_name(f"{CONFIG.slug}-{CONFIG.digest}-y.jsonl.gz").write_bytes(
        gzip.compress(bytes(2 * len(line)))
    )
    unreadable = []
    assert len(list(store.read(unreadable=unreadable))) == 1
    assert ["no file of records; move it away" in why for why in unreadable] == [True, True]


def test_the_limits_leave_room(tmp_path):
    """A covariance of 1,000 columns is recorded in less than half of the longest line."""
    made = record()
    matrix = [[1.234567e-05] * 1000] * 1000
    made["arrays"] |= {"row_covariance": [[1.0]], "col_covariance": matrix}
    path = Store(tmp_path).write("digits", CONFIG, [made])
    assert path.stat().st_size < reading.LARGEST_LINE / 2
    assert len(list(Store(tmp_path).read())) == 1


def test_a_torn_last_line_is_left_out_and_told(tmp_path):
    store = Store(tmp_path)
    path = store.write("digits", CONFIG, [record(), record(seed=1)])
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.warns(TornLineWarning, match=f"{path}: line 2, the last one, is incomplete"):
        assert store.done("digits", CONFIG).keys() == {Replica("none", 0)}
    path.write_bytes(content[:-1])  # all but the end of the line
    assert len(store.done("digits", CONFIG)) == 2
    first, second = content.splitlines(keepends=True)
    path.write_bytes(first[:-20] + b"\n" + second)
    with pytest.raises(RecordError, match="line 1: cannot be read"):
        store.done("digits", CONFIG)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "NaN", "Infinity"])
def test_a_number_that_is_none_is_named(tmp_path, number):
    path = Store(tmp_path).write("digits", CONFIG, [record()])
    path.write_text(path.read_text().replace("0.5", number, 1))
    with pytest.raises(RecordError, match=f"{path}, line 1: cannot be read"):
        list(Store(tmp_path).read())


def test_records_may_be_packed_between_listing_and_reading(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write("digits", CONFIG, [record()])
    files = Store._files

    def overtaken(self, pattern):
        found = files(self, pattern)
        monkeypatch.setattr(Store, "_files", files)
        store.pack()
        return found

    for read in (lambda: list(store.read()), lambda: store.done("digits", CONFIG)):
        for packed in (tmp_path / "digits").glob("*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
            packed.unlink()
        monkeypatch.setattr(Store, "_files", overtaken)
        assert len(read()) == 1
        assert not list((tmp_path / "digits").glob("*.jsonl"))
