"""Finding the files of a data set, and making sure that they are what they should be."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adareg.lab.data.base import DataError, DataNotFoundError, File, Source, require


def data_directory(directory: str | Path | None = None) -> Path:
    """The directory given, or ``$ADAREG_DATA``, or the user's cache directory."""
    chosen = directory or os.environ.get("ADAREG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    try:
        return Path(require("pooch").os_cache("adareg"))
    except ImportError as error:
        raise ImportError(f"{error}, or name a data directory in ADAREG_DATA or --data") from error


def find(file: File, source: Source, directory: Path) -> Path | None:
    """The first of ``directory/<folder>/<name>`` that is there, over the source's folders."""
    candidates = (directory / folder / file.name for folder in source.folders)
    return next((path for path in candidates if path.is_file()), None)


def checksum(path: Path, kind: str) -> str:
    """The checksum of a file's content as "kind:digits".

    Args:
        path: the file.
        kind: an algorithm of :mod:`hashlib`, or "git", the id of the content as a git blob:
            SHA-1 over "blob", its size, a zero byte, and the content.
    """
    start = b"blob %d\0" % path.stat().st_size if kind == "git" else b""
    algorithm = "sha1" if kind == "git" else kind
    with path.open("rb") as stream:
        found = hashlib.file_digest(
            stream, lambda: hashlib.new(algorithm, start, usedforsecurity=False)
        )
    return f"{kind}:{found.hexdigest()}"


def problem(path: Path, file: File, others: Iterable[File] = ()) -> str | None:
    """Say how a file's content differs from the expected one; None if it does not.

    Args:
        path: where the file is.
        file: what it should be.
        others: files that it may have been mixed up with.
    """
    found = checksum(path, file.checksum.partition(":")[0])
    if found == file.checksum:
        return None
    text = f"expected {file.checksum}, found {found}"
    size = path.stat().st_size
    if size != file.size:
        text += f" ({size:,} bytes instead of {file.size:,})"
    mixed = next((other.name for other in others if other.checksum == found), None)
    return f"{text}, which is the content of {mixed}" if mixed else text


def locate(name: str, source: Source, directory: str | Path | None) -> dict[str, Path]:
    """The verified files of a data set as {file name: path}; its fallback if it has none.

    Raises:
        DataNotFoundError: a file is missing.
        DataError: a file's checksum is not the expected one.
    """
    if not source.files:
        return {}
    base = data_directory(directory)
    found = {file: find(file, source, base) for file in source.files}
    if not any(found.values()):
        fallback = {file: find(file, source, base) for file in source.fallback}
        found = fallback if fallback and all(fallback.values()) else found
    missing = [file.name for file, path in found.items() if path is None]
    if missing:
        raise DataNotFoundError(_not_found(name, source, base, missing))
    paths = {file: path for file, path in found.items() if path is not None}
    for file, path in paths.items():
        if bad := problem(path, file, source.files):
            raise DataError(
                f"{path} is damaged: {bad}. Delete it and run: {fetch_command(name, base)}"
            )
    return {file.name: path for file, path in paths.items()}


def fetch_command(name: str, directory: Path) -> str:
    """Return the command that downloads a data set."""
    return f"adareg data fetch {name} --data {shlex.quote(str(directory))}"


def _not_found(name: str, source: Source, directory: Path, missing: list[str]) -> str:
    places = " and ".join(str(directory / folder) for folder in source.folders)
    return (
        f"{name}: {', '.join(missing)} not found in {directory} (searched {places}). Name the "
        f"directory that has it in ADAREG_DATA or --data, or run: {fetch_command(name, directory)}"
    )


@dataclass(frozen=True)
class FileState:
    """The state of a file; ``detail`` is its place, or what is wrong."""

    name: str
    state: Literal["ok", "missing", "bad"]
    detail: str


@dataclass(frozen=True)
class State:
    """The state of a data set."""

    summary: str  # embedded, here, missing, incomplete or damaged
    files: tuple[FileState, ...]

    @property
    def loadable(self) -> bool:
        """``load`` would find all it needs."""
        return self.summary in ("embedded", "here")


def check(source: Source, directory: str | Path | None = None) -> State:
    """Verify every file of a data set."""
    if not source.files:
        return State("embedded", ())
    base = data_directory(directory)
    files = [_state(file, source, base) for file in source.files]
    fallback = [_state(file, source, base) for file in source.fallback]
    return State(_summary(files, fallback), (*files, *fallback))


def _state(file: File, source: Source, directory: Path) -> FileState:
    path = find(file, source, directory)
    if path is None:
        return FileState(file.name, "missing", f"not in {directory}")
    bad = problem(path, file, source.files)
    return (
        FileState(file.name, "bad", f"{path}: {bad}")
        if bad
        else FileState(file.name, "ok", str(path))
    )


def _summary(files: list[FileState], fallback: list[FileState]) -> str:
    states = {file.state for file in files}
    if states == {"missing"} and fallback:
        states = {file.state for file in fallback}
    if "bad" in states:
        return "damaged"
    if len(states) > 1:
        return "incomplete"
    return "here" if states == {"ok"} else "missing"
