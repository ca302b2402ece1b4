"""Reading one file of records: every line is checked, and nothing is read without end."""

from __future__ import annotations

import gzip
import json
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from adareg.lab.run.schema import Record, cell_of, problem
from adareg.lab.train.config import complete

FORMAT = 1

#: Bytes of a line, and of a file when it is unpacked, at most: a hundred times what was ever seen.
LARGEST_LINE, LARGEST_FILE = 2**26, 2**30

#: Digits of an integer, at most: those of 64 bits.
_DIGITS = 18


class RecordError(ValueError):
    """A file among the records is not one of ours."""


class TornLineWarning(UserWarning):
    """The last line of a file of records is incomplete, and was left out."""


def read(path: Path) -> tuple[list[Record], str | None]:
    """Return the records of a file, and why its last line was left out, if it was.

    A file that was packed since it was listed is read from its new place.

    Raises:
        RecordError: it is not a file of records; the text names it, and the line.
    """
    try:
        try:
            return _read(path, path)
        except FileNotFoundError:
            return _read(path.with_name(f"{path.name}.gz"), path)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path} cannot be read ({error}); move it away to go on") from error


def _read(place: Path, path: Path) -> tuple[list[Record], str | None]:
    if not stat.S_ISREG(place.stat().st_mode):
        raise RecordError(f"{path} is not a regular file; move it away to go on")
    opener: Any = gzip.open if place.suffix == ".gz" else open
    with opener(place, "rb") as file:
        return _records(file, path)


def _records(file: IO[bytes], path: Path) -> tuple[list[Record], str | None]:
    records: list[Record] = []
    for number, line in enumerate(_lines(file, path), 1):
        try:
            record = json.loads(line, parse_int=_integer, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            if records and not line.endswith(b"\n"):
                return records, f"{path}: line {number}, the last one, is incomplete and left out"
            raise RecordError(
                f"{path}, line {number}: cannot be read ({error}); move it away to go on"
            ) from error
        records.append(_checked(record, path, number))
    if not records:
        raise RecordError(f"{path} is empty; move it away to go on")
    return records, None


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    total = 0
    while line := file.readline(LARGEST_LINE + 1):
        total += len(line)
        if len(line) > LARGEST_LINE or total > LARGEST_FILE:
            raise RecordError(
                f"{path} has a line of more than {LARGEST_LINE:,} bytes, or more than "
                f"{LARGEST_FILE:,} in all: no file of records; move it away to go on"
            )
        yield line


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits; expected {_DIGITS} at most")
    return int(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _checked(record: Any, path: Path, number: int) -> Record:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(f"{path} is not a file of records of format {FORMAT}; move it away")
    if isinstance(record.get("config"), dict):
        record["config"] = complete(record["config"])
    if wrong := problem(record) or _elsewhere(record, path):
        raise RecordError(f"{path}, line {number}: {wrong}; move it away to go on")
    return cast(Record, record)


def _elsewhere(record: dict[str, Any], path: Path) -> str | None:
    """Return whose record it is, if another file should have it."""
    own = f"{record['experiment']}/{cell_of(record['config'])}"
    here = f"{path.parent.name}/{path.name.rpartition('-')[0]}"
    return None if own == here else f"this is a record of {own}, not of {here}"
