"""The command ``adareg``: argument parsing only, a file for each room.

What a command needs is imported when it is called: ``adareg --help`` does not wait for torch.
"""

from __future__ import annotations

from typing import Annotated

from adareg._optional import install

try:
    import typer
except ImportError as error:  # pragma: no cover
    raise SystemExit(f"{error}. For the command line, {install('lab')}") from error

import adareg
from adareg.cli import bench, data, records, reproduce

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adareg {adareg.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="print it and exit")
]


@app.callback()
def main(version: Version = False) -> None:
    """AdaReg: a learned matrix-normal prior for PyTorch models."""


app.command()(bench.bench)
app.add_typer(reproduce.app, name="reproduce")
app.command()(records.runs)
app.command()(records.claims)
app.command()(records.report)
app.add_typer(data.app, name="data")
