"""What goes wrong, in one line on stderr, with exit code 1."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from adareg.lab.run.records import Store


@contextmanager
def in_one_line() -> Iterator[None]:
    """Print an expected error instead of a traceback, and exit with 1."""
    try:
        with _torn_lines_told():
            yield
    except (OSError, ImportError, MemoryError, ValueError) as error:
        typer.echo(f"error: {error}{_remedy(error)}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def records_of(folder: Path) -> Iterator[tuple[Store, list[str]]]:
    """The records of a folder, and a list for why files of it cannot be read.

    At the end it prints what is in the list, and exits with 1 if there is anything.
    """
    from adareg.lab.run.records import NoRecordsError, Store

    unreadable: list[str] = []
    try:
        with in_one_line():
            if not folder.is_dir():
                raise NoRecordsError(folder)
            yield Store(folder), unreadable
    finally:
        for problem in unreadable:
            typer.echo(f"error: {problem}", err=True)
    if unreadable:
        raise typer.Exit(1)


@contextmanager
def _torn_lines_told() -> Iterator[None]:
    """Say once of each file that its last line was left out; other warnings go their way."""
    from adareg.lab.run.records import TornLineWarning

    told: set[str] = set()

    def tell(message: Warning | str, category: type[Warning], *others: Any, **more: Any) -> None:
        if not issubclass(category, TornLineWarning):
            show_other(message, category, *others, **more)
        elif str(message) not in told:
            told.add(str(message))
            typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TornLineWarning)
        show_other, warnings.showwarning = warnings.showwarning, tell
        yield


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Make room there, or name another place, and run the same command again"
    return ""
