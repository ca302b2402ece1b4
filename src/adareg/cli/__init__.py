"""The command ``adareg``: argument parsing only.

What a command needs is imported when it is called: ``adareg --help`` does not wait for torch.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from adareg._optional import install

try:
    import typer
except ImportError as error:  # pragma: no cover
    raise SystemExit(f"{error}. For the command line, {install('lab')}") from error

import adareg

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from adareg.lab.run.plan import Engine
    from adareg.lab.run.records import Store
    from adareg.lab.run.terminal import Terminal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer(no_args_is_help=True, help="The data sets of the experiments.")
app.add_typer(data_app, name="data")


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


Device = Annotated[str, typer.Option(help="cpu or cuda; by default the GPU if there is one")]


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


def _device(name: str) -> torch.device:
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{name!r}: expected cpu or cuda", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no GPU is available here; use cpu", param_hint="--device")
    return torch.device(name)


@app.command()
def bench(
    device: Device = "",
    seconds: Annotated[float, typer.Option(min=0.01, help="time for each comparison")] = 2.0,
    largest: Annotated[int | None, typer.Option(min=1, help="leave out larger weights")] = None,
    out: Annotated[
        Path | None, typer.Option(help="write JSON and a figure into this folder")
    ] = None,
) -> None:
    """Time updates and training steps side by side with what they replace."""
    from adareg.bench import report

    chosen, console = _device(device), _console()
    with _errors_in_one_line():
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
        with console.status("") as status:
            record = report.run(chosen, seconds, largest, status.update)
        report.show(record, console)
        if out is not None:
            for path in report.save(record, out):
                console.print(f"wrote {path}")


def _known(names: list[str] | None) -> list[str]:
    from adareg.lab.data import DATASETS

    for name in names or []:
        if name not in DATASETS:
            listed = ", ".join(DATASETS)
            raise typer.BadParameter(f"no data set {name!r}; there are: {listed}")
    return names or []


DataDirectory = Annotated[
    Path | None,
    typer.Option("--data", help="data directory; by default $ADAREG_DATA, or the user's cache"),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", callback=_known)]


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="experiments; none lists them")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, small or paper")] = "small",
    device: Device = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="networks of each method")] = None,
    methods: Annotated[
        str | None, typer.Option(help="names separated by commas; by default the experiment's")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change every cell")
    ] = None,
    data: DataDirectory = None,
    out: Annotated[Path, typer.Option(help="folder of the records")] = Path("runs"),
    engine: Annotated[
        str, typer.Option(help="local or ray: cells at once, on a cluster")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="of a Ray cluster: HOST:PORT or auto; by default one is started here"),
    ] = None,
    gpus_per_cell: Annotated[
        float | None, typer.Option(help="with ray on GPUs: the share of one, 0.5 by default")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="tables: suites or tables, or what these begin with: uci")
    ] = None,
    again: Annotated[
        str | None, typer.Option(help="tables: methods to try again though recorded")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="tables: processes at once; one for each core")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="tables: stop after so many, to go on later")
    ] = None,
) -> None:
    """Run experiments of the paper again; what is recorded already is not."""
    from adareg.lab import contest
    from adareg.lab.run import terminal

    console = _console()
    if not names:
        terminal.experiments(console)
        return
    options = {"only": _listed(only), "again": _listed(again), "jobs": jobs, "minutes": minutes}
    network = {"device": device, "seeds": seeds, "set": settings, "address": address}
    if contest.NAME in names:
        _refuse(network | {"gpus-per-cell": gpus_per_cell}, "not with tables")
        _contest(names, scale, _listed(methods), data, out, options)
        return
    _refuse(options, "only with tables")
    with _errors_in_one_line(), terminal.Terminal(console) as reporter:
        try:
            trainer = _engine(engine, device, address, gpus_per_cell)
            _reproduce(names, scale, trainer, seeds, methods, settings, data, out, reporter)
        except KeyboardInterrupt:
            terminal.say(
                console,
                f"stopped; {reporter.done} of {reporter.total} jobs are recorded below {out}, the "
                f"same command goes on from there",
            )
            raise typer.Exit(130) from None
    terminal.say(console, f"all recorded below {out}")


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value not in (None, "", []):
            raise typer.BadParameter(f"{value!r}: {why}", param_hint=f"--{name}")


def _contest(
    names: list[str],
    scale: str,
    methods: list[str],
    directory: Path | None,
    out: Path,
    options: dict[str, Any],
) -> None:
    if len(names) > 1:
        raise typer.BadParameter("tables is run by itself, without other experiments")
    with _errors_in_one_line():
        from adareg.lab.contest.command import Request, reproduce

        request = Request(scale=scale, methods=methods, **options)
        try:
            good = reproduce(request, directory, out, _console())
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from there")
            raise typer.Exit(130) from None
    if not good:
        raise typer.Exit(1)


def _engine(name: str, device: str, address: str | None, gpus_per_cell: float | None) -> Engine:
    from adareg.lab.run.plan import Local
    from adareg.lab.run.ray_engine import Cluster

    if name == "ray":
        return Cluster(address, device, gpus_per_cell)
    if name != "local":
        raise ValueError(f"--engine {name!r}: expected local or ray")
    for option, value in (("--address", address), ("--gpus-per-cell", gpus_per_cell)):
        if value is not None:
            raise ValueError(f"{option} {value}: only with --engine ray")
    return Local(_device(device))


def _reproduce(
    names: list[str],
    scale: str,
    engine: Engine,
    seeds: int | None,
    methods: str | None,
    settings: list[str] | None,
    directory: Path | None,
    out: Path,
    reporter: Terminal,
) -> None:
    from adareg.lab.experiments import SCALES, find_all
    from adareg.lab.run import plan
    from adareg.lab.run.records import Store

    if scale not in SCALES:
        raise ValueError(f"--scale {scale!r}: expected one of {', '.join(SCALES)}")
    pairs = [setting.partition("=") for setting in settings or []]
    for key, equals, _ in pairs:
        if not equals:
            raise ValueError(f"--set {key!r}: expected KEY=VALUE")
    sources, store = plan.Sources(directory), Store(out)
    jobs, finished = plan.plan(
        find_all(names),
        scale,
        sources,
        store,
        seeds,
        _listed(methods) or None,
        {key: value for key, _, value in pairs},
    )
    plan.run(jobs, finished, sources, store, engine, reporter)


@app.command()
def runs(
    out: Annotated[Path, typer.Argument(help="folder of the records")] = Path("runs"),
    pack: Annotated[bool, typer.Option("--pack", help="compress the files first")] = False,
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="time the methods of the small-data benchmark again first, on this "
            "machine, which should have nothing else to do",
        ),
    ] = False,
    data: DataDirectory = None,
) -> None:
    """List what has been recorded.

    The exit code is 1 when there is nothing, or a file cannot be read; such files are named, and
    the others listed.
    """
    with _records(out) as (store, unreadable):
        from adareg.lab.run import costs, plan, terminal

        if timed:
            device = _device("")
            cells = costs.measure_again(
                store, "smalldata-*", data, device, plan.environment(device)
            )
            for experiment, config in cells:
                typer.echo(f"timing {experiment} {config.slug}")
        if pack:
            store.pack(unreadable=[])  # they are told when all are listed
        terminal.runs(store, _console(), unreadable)


@app.command()
def claims(
    out: Annotated[Path, typer.Argument(metavar="RUNS", help="folder of the records")] = Path(
        "runs"
    ),
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
    with _records(out) as (store, unreadable):
        from adareg.lab.atomic import write_atomically
        from adareg.lab.judge.claims import Records, judge, show, smalldata
        from adareg.lab.run.records import NoRecordsError

        show.check(names or [])
        records = Records.of(store)
        unreadable += records.unreadable
        if not records.benchmarks and not any(store.read(unreadable=[])):
            raise NoRecordsError(out)
        judgements, asked = judge(records), smalldata.judge(records)
        everything = judgements | asked
        if names:
            show.in_full({name: everything[name] for name in names}, _console(), effects=True)
        elif long:
            show.in_full(everything, _console())
        else:
            show.summary(everything, _console())
        if to is not None:
            write_atomically(to, show.as_json(everything).encode())
        if strict and not show.all_reproduced(judgements):
            raise typer.Exit(1)


@app.command("report")
def report_command(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="folder of the records")] = Path(
        "runs"
    ),
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Draw the records as one self-contained HTML page: verdicts, figures, tables, cost.

    The exit code is 1 when there are no records, or a file cannot be read; such files are named,
    and the others drawn.
    """
    with _records(runs) as (_, unreadable):
        from adareg.lab.report import write

        path = write(runs, out, unreadable)
        _console().print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


@data_app.command("list")
def data_list(data: DataDirectory = None) -> None:
    """List the data sets, and say which are here."""
    from adareg.lab.data import show

    with _errors_in_one_line():
        show.table(data, _console())


@data_app.command("fetch")
def data_fetch(names: Names = None, data: DataDirectory = None) -> None:
    """Download data sets from their public homes: those named, or all that are not here."""
    from adareg.lab.data import show

    if not show.fetch(names or [], data, _console(), _console(stderr=True)):
        raise typer.Exit(1)


@data_app.command("check")
def data_check(names: Names = None, data: DataDirectory = None) -> None:
    """Verify the checksum of every file; exit with 1 if one is wrong, or a named one missing."""
    from adareg.lab.data import show

    with _errors_in_one_line():
        if not show.check(names or [], data, _console()):
            raise typer.Exit(1)


@contextmanager
def _records(folder: Path) -> Iterator[tuple[Store, list[str]]]:
    """The records of a folder, and a list for why files of it cannot be read.

    At the end what is in the list is told, and makes the exit code 1.
    """
    from adareg.lab.run.records import NoRecordsError, Store

    unreadable: list[str] = []
    try:
        with _errors_in_one_line():
            if not folder.is_dir():
                raise NoRecordsError(folder)
            yield Store(folder), unreadable
    finally:
        for problem in unreadable:
            typer.echo(f"error: {problem}", err=True)
    if unreadable:
        raise typer.Exit(1)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        with _torn_lines_told():
            yield
    except (OSError, ImportError, MemoryError, ValueError) as error:
        typer.echo(f"error: {error}{_remedy(error)}", err=True)
        raise typer.Exit(1) from error


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


if __name__ == "__main__":
    app()
