"""What is done with records: ``adareg runs``, ``adareg claims`` and ``adareg report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adareg.cli import errors, options


def runs(
    folder: options.Runs = options.RUNS,
    pack: Annotated[bool, typer.Option("--pack", help="compress the files first")] = False,
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="first time the methods of the small-data benchmark again, on this machine, "
            "which should have nothing else to do",
        ),
    ] = False,
    data: options.DataDirectory = None,
) -> None:
    """List the records.

    The exit code is 1 when there are none, or when a file cannot be read: the command names such
    files, and lists the others.
    """
    with errors.records_of(folder) as (store, unreadable):
        from adareg.lab.run import costs, plan, terminal

        if timed:
            device = options.device("")
            cells = costs.measure_again(
                store, "smalldata-*", data, device, plan.environment(device)
            )
            for experiment, config in cells:
                typer.echo(f"timing {experiment} {config.slug}")
        if pack:
            store.pack(unreadable=[])  # they are told when all are listed
        terminal.runs(store, options.console(), unreadable)


def claims(
    folder: options.Runs = options.RUNS,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="CLAIM", help="keys of claims to print in full")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="print every claim in full")] = False,
    to: Annotated[Path | None, typer.Option("--json", help="write all verdicts here too")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with 1 unless every claim is reproduced")
    ] = False,
) -> None:
    """Judge the paper's claims, and the small-data benchmark, from the records.

    The exit code is 0 whatever the verdicts are, unless --strict asks otherwise. It is 1 when
    there are no records, or when a file cannot be read: the command names such files, and judges
    the claims from the others.
    """
    with errors.records_of(folder) as (store, unreadable):
        from adareg.lab.atomic import write_atomically
        from adareg.lab.judge.claims import Records, judge, show, smalldata
        from adareg.lab.run.records import NoRecordsError

        show.check(names or [])
        records = Records.of(store)
        unreadable += records.unreadable
        if not records.benchmarks and not any(store.read(unreadable=[])):
            raise NoRecordsError(folder)
        judgements = judge(records)
        everything = judgements | smalldata.judge(records)
        if names or long:
            chosen = {name: everything[name] for name in names or everything}
            show.in_full(chosen, options.console(), effects=bool(names))
        else:
            show.summary(everything, options.console())
        if to is not None:
            write_atomically(to, show.as_json(everything).encode())
        if strict and not show.all_reproduced(judgements):
            raise typer.Exit(1)


def report(
    folder: options.Runs = options.RUNS,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Draw the records as one self-contained HTML page: verdicts, figures, tables, cost.

    The exit code is 1 when there are no records, or when a file cannot be read: the command names
    such files, and draws the others.
    """
    with errors.records_of(folder) as (_, unreadable):
        from adareg.lab.report import write

        path = write(folder, out, unreadable)
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        options.console().print(f"wrote {path} ({size})", soft_wrap=True)
