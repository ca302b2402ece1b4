"""Downloading the files of a data set from their public homes."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from adareg.lab.data import files
from adareg.lab.data.base import DownloadError, File, Source, require


class ProgressBar(Protocol):
    """A progress bar as pooch wants it."""

    total: int

    def update(self, n: int) -> None:
        """Go on by n bytes."""

    def reset(self) -> None:
        """Go back to zero."""

    def close(self) -> None:
        """The file is complete."""


Progress = Callable[[str], ProgressBar]  # file name -> its bar


def fetch(
    source: Source, directory: str | Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Download the files of a data set that are missing or damaged; return what was written.

    Files go to the first of the source's folders, where they are found before any other. Each
    is downloaded beside its place, verified, and only then moved there, so that an interrupted
    download leaves nothing behind that looks like data.

    Raises:
        DownloadError: no address gave the right file, or it could not be written.
    """
    if not source.files:
        return []
    base = files.data_directory(directory)
    wanted = [file for file in source.files if not _sound(file, source, base)]
    if not wanted:
        return []
    folder = base / source.folders[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            return _fetch_all(source, wanted, Path(scratch), progress)
    except DownloadError as error:
        raise DownloadError(f"{error}. Files from elsewhere can be put into {folder}") from error
    except OSError as error:
        raise DownloadError(f"cannot write to {folder}: {error.strerror or error}") from error


def _sound(file: File, source: Source, directory: Path) -> bool:
    path = files.find(file, source, directory)
    return path is not None and files.problem(path, file) is None


def _fetch_all(
    source: Source, wanted: list[File], scratch: Path, progress: Progress | None
) -> list[Path]:
    if source.archive is not None:
        archive = _download(source.archive, scratch, progress)
        _unpack(archive, wanted, scratch)
    written = []
    for file in wanted:
        if source.archive is None:
            _download(file, scratch, progress)
        written.append((scratch / file.name).replace(scratch.parent / file.name))
    return written


def _download(file: File, folder: Path, progress: Progress | None) -> Path:
    """Get a file from the first of its addresses that gives the right content."""
    path = folder / file.name
    failures = []
    for url in file.urls:
        downloader = _downloader(progress(file.name) if progress else None)
        try:
            with path.open("wb") as stream:
                downloader(url, _Limited(stream, file.size), None)
        except (require("requests").RequestException, _TooLargeError) as error:
            failures.append(f"{url}: {_reason(error)}")
            continue
        bad = files.problem(path, file)
        if bad is None:
            return path
        failures.append(f"{url} sent another file: {bad}")
    raise DownloadError(f"cannot download {file.name}: " + "; ".join(failures))


class _TooLargeError(Exception):
    """A server sends more than the file has."""


class _Limited:
    """A stream that refuses more bytes than were declared."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._size, self._left = stream, size, size
        self.flush = stream.flush

    def write(self, chunk: bytes) -> None:
        """Write a chunk of the file, or raise."""
        self._left -= len(chunk)
        if self._left < 0:
            raise _TooLargeError(f"sent more than the {self._size:,} bytes of the file")
        self._stream.write(chunk)


def _downloader(bar: ProgressBar | None) -> Callable[[str, _Limited, None], None]:
    return require("pooch").HTTPDownloader(
        progressbar=bar or False,
        chunk_size=2**16,
        headers={"Accept-Encoding": "identity"},  # a .gz file as it is, not unpacked on the way
    )


def _reason(error: Exception) -> str:
    """The innermost cause in one line: requests wraps it in a page of others."""
    if getattr(error, "response", None) is not None:
        return str(error).partition(" for url")[0]
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    return " ".join(str(cause).split()) or type(cause).__name__


def _unpack(archive: Path, wanted: list[File], folder: Path) -> None:
    """Copy the wanted members, and nothing else, out of a tar file; verify each."""
    names = {file.name for file in wanted}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                stream = tar.extractfile(member) if Path(member.name).name in names else None
                if stream is not None:
                    with stream, (folder / Path(member.name).name).open("wb") as out:
                        shutil.copyfileobj(stream, out)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{archive.name} cannot be unpacked: {error}") from error
    for file in wanted:
        path = folder / file.name
        if not path.is_file():
            raise DownloadError(f"{archive.name} holds no {file.name}")
        if bad := files.problem(path, file):
            raise DownloadError(f"{archive.name} holds another {file.name}: {bad}")
