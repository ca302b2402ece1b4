"""The command ``adareg``: argument parsing only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch

try:
    import typer
    from rich.console import Console
except ImportError as error:  # pragma: no cover
    raise SystemExit(f"{error}. The command line needs: pip install 'adareg[lab]'") from error

from adareg.bench import report
from adareg.lab import data as datasets
from adareg.lab.data import show

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer(no_args_is_help=True, help="The data sets of the experiments.")
app.add_typer(data_app, name="data")


@app.callback()
def main() -> None:
    """AdaReg: a learned matrix-normal prior for PyTorch models."""


@app.command()
def bench(
    device: Annotated[
        str, typer.Option(help="cpu or cuda; by default the GPU if there is one")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.01, help="time for each comparison")] = 2.0,
    largest: Annotated[int | None, typer.Option(min=1, help="leave out larger weights")] = None,
    out: Annotated[
        Path | None, typer.Option(help="write JSON and a figure into this folder")
    ] = None,
) -> None:
    """Time updates and training steps side by side with what they replace."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{name!r}: expected cpu or cuda", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no GPU is available here; use cpu", param_hint="--device")
    console = Console()
    with console.status("") as status:
        record = report.run(torch.device(name), seconds, largest, status.update)
    report.show(record, console)
    if out is not None:
        for path in report.save(record, out):
            console.print(f"wrote {path}")


def _known(names: list[str] | None) -> list[str]:
    for name in names or []:
        if name not in datasets.DATASETS:
            listed = ", ".join(datasets.DATASETS)
            raise typer.BadParameter(f"no data set {name!r}; there are: {listed}")
    return names or []


DataDirectory = Annotated[
    Path | None,
    typer.Option("--data", help="data directory; by default $ADAREG_DATA, or the user's cache"),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", callback=_known)]


@data_app.command("list")
def data_list(data: DataDirectory = None) -> None:
    """List the data sets, and say which are here."""
    with _errors_in_one_line():
        show.table(data, Console())


@data_app.command("fetch")
def data_fetch(names: Names = None, data: DataDirectory = None) -> None:
    """Download data sets from their public homes: those named, or all that are not here."""
    if not show.fetch(names or [], data, Console(), Console(stderr=True)):
        raise typer.Exit(1)


@data_app.command("check")
def data_check(names: Names = None, data: DataDirectory = None) -> None:
    """Verify the checksum of every file; exit with 1 if one is wrong, or a named one missing."""
    with _errors_in_one_line():
        if not show.check(names or [], data, Console()):
            raise typer.Exit(1)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
