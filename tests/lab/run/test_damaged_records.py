"""Damaged files, no files and no folder: ``runs``, ``claims`` and ``report`` say the same."""

import errno
import json
import os

import pytest
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab import atomic
from fakes.records import fill


def run(command, folder):
    page = ["--out", str(folder.parent / "page.html")] if command == "report" else []
    return CliRunner().invoke(app, [command, str(folder), *page], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path):
    """Two experiments, whole."""
    fill(tmp_path / "runs", "digits", "digits-completion", methods=("none", "adareg"), seeds=1)
    return tmp_path / "runs"


def spoil(path, **change):
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **change}), *others]) + "\n")


DONE = {
    "runs": "digits-completion  smoke",
    "claims": "claims without records; --long says what to run",
    "report": "wrote",
}


@pytest.mark.parametrize("command", DONE)
def test_damaged_files_are_named_and_the_rest_is_used(folder, command):
    assert run(command, folder).exit_code == 0
    first, second, *_ = sorted(folder.glob("digits/*.jsonl"))
    spoil(first, seconds="long")
    second.write_bytes(b"")
    result = run(command, folder)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f'error: {first}, line 1: seconds is "long"; expected a number; move it away to go on',
        f"error: {second} is empty; move it away to go on",
    ]
    assert DONE[command] in result.stdout


@pytest.mark.parametrize("command", DONE)
def test_damaged_files_alone_are_no_records(folder, command):
    paths = sorted(folder.rglob("*.jsonl"))
    for path in paths:
        spoil(path, peak_bytes="x")
    result = run(command, folder)
    assert result.exit_code == 1
    assert f"error: no records below {folder}; make some with: adareg" in result.stderr
    assert all(str(path) in result.stderr for path in paths)


@pytest.mark.parametrize("command", DONE)
def test_no_records_and_no_folder_are_told_alike(tmp_path, command):
    remedy = "make some with: adareg reproduce digits --out"
    empty, missing = run(command, tmp_path), run(command, tmp_path / "nope")
    assert empty.exit_code == missing.exit_code == 1
    assert empty.stderr == f"error: no records below {tmp_path}; {remedy} {tmp_path}\n"
    nope = tmp_path / "nope"
    assert missing.stderr == f"error: {nope} is not a folder; {remedy} {nope}\n"


def test_packing_goes_round_a_damaged_file(folder):
    path = next(folder.rglob("*.jsonl"))
    path.write_text("{")
    result = CliRunner().invoke(app, ["runs", str(folder), "--pack"])
    assert result.exit_code == 1
    assert result.stderr.count(str(path)) == 1
    assert list(folder.rglob("*.jsonl")) == [path]


@pytest.mark.parametrize("command", DONE)
def test_a_torn_last_line_is_told_once_and_all_others_are_used(folder, command):
    path = min(path for path in folder.glob("digits/*.jsonl") if len(path.read_bytes().split()) > 1)
    path.write_bytes(path.read_bytes()[:-20])
    result = run(command, folder)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {path}: line 2, the last one, is incomplete and ")
    assert result.stderr.count("\n") == 1
    assert DONE[command] in result.stdout


def test_reproducing_goes_on_where_a_line_was_torn(tmp_path):
    command = ["reproduce", "digits", "--scale", "smoke", "--methods", "none", "--seeds", "2"]
    command += ["--out", str(tmp_path), "--set", "epochs=1"]
    assert CliRunner().invoke(app, command).exit_code == 0
    path = next(tmp_path.rglob("*.jsonl"))
    path.write_bytes(path.read_bytes()[:-20])
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert f"warning: {path}: line 2" in result.stderr
    assert "1 networks to train, 3 recorded already" in result.stdout


def no_room(fd):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("command", "option"), [("report", "--out"), ("claims", "--json")])
def test_what_was_written_before_survives_a_full_disk(folder, monkeypatch, command, option):
    out = folder.parent / "results"
    out.write_text("before")
    monkeypatch.setattr(atomic.os, "fsync", no_room)
    result = CliRunner().invoke(app, [command, str(folder), option, str(out)])
    assert result.exit_code == 1
    assert f"error: [Errno 28] No space left on device: '{out}'" in result.stderr
    assert out.read_text() == "before"
    assert set(folder.parent.iterdir()) == {out, folder}


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    link.symlink_to(target)
    atomic.write_atomically(link, b"page")
    assert link.is_symlink()
    assert target.read_bytes() == b"page"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_atomically(pipe, b"page")
    assert os.read(reader, 10) == b"page"
    os.close(reader)
    assert pipe.is_fifo()
