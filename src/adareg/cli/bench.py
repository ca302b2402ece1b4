"""``adareg bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adareg.cli import errors, options


def bench(
    device: options.Device = "",
    seconds: Annotated[float, typer.Option(min=0.01, help="time for each comparison")] = 2.0,
    largest: Annotated[int | None, typer.Option(min=1, help="leave out larger weights")] = None,
    out: Annotated[
        Path | None, typer.Option(help="write JSON and a figure into this folder")
    ] = None,
) -> None:
    """Time updates and training steps side by side with what they replace."""
    from adareg.bench import report

    chosen, console = options.device(device), options.console()
    with errors.in_one_line():
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
        with console.status("") as status:
            record = report.run(chosen, seconds, largest, status.update)
        report.show(record, console)
        if out is not None:
            for path in report.save(record, out):
                console.print(f"wrote {path}")
