"""Options that several commands have, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from rich.console import Console

Device = Annotated[str, typer.Option(help="cpu or cuda; by default the GPU if there is one")]
DataDirectory = Annotated[
    Path | None,
    typer.Option("--data", help="data directory; by default $ADAREG_DATA, or the user's cache"),
]
Out = Annotated[Path, typer.Option(help="folder of the records")]
Runs = Annotated[Path, typer.Argument(metavar="RUNS", help="folder of the records")]
RUNS = Path("runs")


def console(stderr: bool = False) -> Console:
    """Return a console of the width of the terminal."""
    from rich.console import Console

    return Console(stderr=stderr)


def device(name: str) -> torch.device:
    """Return the device of a name, or the GPU if there is one; ``BadParameter`` for others."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{name!r}: expected cpu or cuda", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no GPU is available here; use cpu", param_hint="--device")
    return torch.device(name)


def listed(names: str | None) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in names.split(",")] if names else []
