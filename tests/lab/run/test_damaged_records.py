"""Damaged files, no files and no folder: ``runs``, ``claims`` and ``report`` say the same."""

import json

import pytest
from fabricated_records import fill
from typer.testing import CliRunner

from adareg.cli import app


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
    "claims": "adareg reproduce digits-completion",
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
