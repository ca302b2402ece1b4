"""The command ``adareg``: argument parsing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch

try:
    import typer
    from rich.console import Console
except ImportError as error:  # pragma: no cover
    raise SystemExit(f"{error}. The command line needs: pip install 'adareg[lab]'") from error

from adareg.bench import report

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
