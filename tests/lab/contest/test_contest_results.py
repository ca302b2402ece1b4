"""What is written is read again; a damaged file is named."""

import gzip
import json

import pytest

from adareg.lab.contest.results import ResultError, Results
from adareg.lab.contest.trial import Trial


def record(split=0, method="ridge-cv", table="embedded-linnerud", score=0.5):
    return {
        "format": 1,
        "suite": "multi-target",
        "table": table,
        "split": split,
        "method": method,
        "settings": "Ridge()",
        "rows": 16,
        "inputs": 3,
        "outputs": 3,
        "seconds": {"fit": 1.0, "noise": 0.0, "predict": 0.1},
        "scores": {"arrmse": score, "rrmse": [score, score]},
        "warnings": {},
        "environment": {},
    }


def test_records_of_a_table_are_one_file_in_order(tmp_path):
    results = Results(tmp_path / "tables")
    for split in (2, 0, 1):
        path = results.add(record(split, score=1 / 3))
    assert path == tmp_path / "tables/multi-target/embedded-linnerud.jsonl"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert [json.loads(line)["split"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert next(results.read())["scores"]["rrmse"] == [0.3333333] * 2
    assert Trial("multi-target", "embedded-linnerud", 1, "ridge-cv") in results.done()
    frame = results.frame()
    assert frame["fit_seconds"].tolist() == [1.0] * 3
    assert "rrmse" not in frame


def test_a_trial_is_recorded_once(tmp_path):
    results = Results(tmp_path)
    results.add(record(score=0.5))
    results.add(record(score=0.7))
    assert [r["scores"]["arrmse"] for r in results.read()] == [0.7]


def test_packed_files_are_read_and_added_to(tmp_path):
    results = Results(tmp_path)
    results.add(record(0))
    results.pack()
    assert [p.name for p in tmp_path.glob("*/*")] == ["embedded-linnerud.jsonl.gz"]
    results.add(record(1))
    assert [r["split"] for r in results.read()] == [0, 1]
    assert [p.name for p in tmp_path.glob("*/*")] == ["embedded-linnerud.jsonl"]


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]\n", b"{}\n", json.dumps({**record(), "format": 2}).encode(), b"\xff\xfe"],
    ids=["cut", "list", "empty", "newer", "bytes"],
)
def test_a_foreign_file_is_named(tmp_path, content):
    (tmp_path / "multi-target").mkdir()
    path = tmp_path / "multi-target/embedded-linnerud.jsonl"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"embedded-linnerud\.jsonl"):
        list(Results(tmp_path).read())
    with pytest.raises(ResultError):
        Results(tmp_path).add(record())
    assert path.read_bytes() == content


def test_a_cut_archive_is_named(tmp_path):
    (tmp_path / "multi-target").mkdir()
    path = tmp_path / "multi-target/x.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record()).encode())[:-9])
    with pytest.raises(ResultError, match="cannot be read"):
        list(Results(tmp_path).read())


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, monkeypatch):
    results = Results(tmp_path)
    path = results.add(record(0))
    before = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        results.add(record(1))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
