"""``adareg data``: list, fetch, check."""

from __future__ import annotations

from typing import Annotated

import typer

from adareg.cli import errors, options

app = typer.Typer(no_args_is_help=True, help="The data sets of the experiments.")


def _known(names: list[str] | None) -> list[str]:
    from adareg.lab.data import DATASETS

    for name in names or []:
        if name not in DATASETS:
            listed = ", ".join(DATASETS)
            raise typer.BadParameter(f"no data set {name!r}; there are: {listed}")
    return names or []


Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", callback=_known)]


@app.command("list")
def list_all(data: options.DataDirectory = None) -> None:
    """List the data sets, and say which are here."""
    from adareg.lab.data import show

    with errors.in_one_line():
        show.table(data, options.console())


@app.command()
def fetch(names: Names = None, data: options.DataDirectory = None) -> None:
    """Download data sets from their public homes: those named, or all that are not here."""
    from adareg.lab.data import show

    if not show.fetch(names or [], data, options.console(), options.console(stderr=True)):
        raise typer.Exit(1)


@app.command()
def check(names: Names = None, data: options.DataDirectory = None) -> None:
    """Verify the checksum of every file; exit with 1 if one is wrong, or a named one missing."""
    from adareg.lab.data import show

    with errors.in_one_line():
        if not show.check(names or [], data, options.console()):
            raise typer.Exit(1)
