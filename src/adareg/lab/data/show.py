"""The output of ``adareg data``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adareg.lab import data


def table(directory: Path | None, console: Console) -> None:
    """Every data set there is, and whether its files are here and sound."""
    shown = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "task", "train + test", "status"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("what")
    for name, source in data.DATASETS.items():
        status = data.check(name, directory).summary
        shown.add_row(name, source.task, source.sizes, status, source.description)
    console.print(shown)


def check(names: Sequence[str], directory: Path | None, console: Console) -> bool:
    """Print the state of each file; whether nothing is wrong.

    Damaged files are wrong always; missing ones if their data set is named.
    """
    good = True
    for name in names or data.DATASETS:
        state = data.check(name, directory)
        good &= state.loadable or (not names and state.summary != "damaged")
        _say(console, f"{name}: {state.summary}")
        for file in state.files:
            _say(console, f"  {file.state:8}{file.name}  {file.detail}")
    return good


def fetch(names: Sequence[str], directory: Path | None, console: Console, errors: Console) -> bool:
    """Download data sets, all that can be if none is named; whether each succeeded."""
    good = True
    for name in names or [n for n, source in data.DATASETS.items() if source.files]:
        try:
            progress = Progress(console=errors, transient=True, disable=not errors.is_terminal)
            with progress if errors.is_terminal else nullcontext():
                written = data.fetch(name, directory, partial(Bar, progress))
        except (OSError, ImportError) as error:
            _say(errors, f"error: {name}: {error}")
            good = False
            continue
        _say(console, f"{name}: " + _outcome(name, written))
    return good


def _outcome(name: str, written: Sequence[Path]) -> str:
    if written:
        return f"wrote {len(written)} files to {written[0].parent}"
    return "already here" if data.source_of(name).files else "comes with scikit-learn"


def _say(console: Console, text: str) -> None:
    """One line as it is: no markup, no wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bar:
    """A row of a rich progress display in the form that pooch asks for."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    @property
    def total(self) -> int:
        """Bytes to come; zero if not known."""
        return int(self._progress.tasks[self._task].total or 0)

    @total.setter
    def total(self, total: int) -> None:
        self._progress.update(self._task, total=total or None)

    def update(self, n: int) -> None:
        """Go on by n bytes."""
        self._progress.advance(self._task, n)

    def reset(self) -> None:
        """Go back to zero."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """The file is complete."""
        self._progress.stop_task(self._task)
