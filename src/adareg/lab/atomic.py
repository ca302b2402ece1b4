"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, content: bytes) -> None:
    """Write a neighbour and rename it: until then, and on any error, what was there stays.

    What is no file, as a pipe or ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: it could not be written; the error names ``path``.
    """
    place = Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
    try:
        if place.exists() and not place.is_file():
            place.write_bytes(content)
        else:
            _replace(place, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(f".{uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
