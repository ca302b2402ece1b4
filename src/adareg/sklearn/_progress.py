"""A progress bar for ``verbose``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from adareg._optional import load


@contextmanager
def progress_bar(shown: bool, total: int, value: str = "loss") -> Iterator[Callable[[float], None]]:
    """A function to call with the loss after each of at most ``total`` iterations.

    Or with another value, which is named.
    """
    if not shown:
        yield lambda loss: None
        return
    rich = load("rich.progress", extra="sklearn")
    columns = (
        rich.TextColumn("iteration"),
        rich.MofNCompleteColumn(),
        rich.BarColumn(),
        rich.TextColumn(value + " {task.fields[loss]:.8f}"),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns) as bar:
        task = bar.add_task("", total=total, loss=float("nan"))
        yield lambda loss: bar.update(task, advance=1, loss=loss)
