"""``adareg reproduce``: experiments on networks, and the contest on tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from adareg.cli import errors, options

if TYPE_CHECKING:
    from adareg.lab.run.plan import Engine
    from adareg.lab.run.terminal import Terminal

TABLES = "tables"  # as ``contest.NAME``, which takes long to import


class _Names(TyperGroup):
    """A group whose first word may be the name of an experiment, or an option of one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the contest's command if it is named, else that of experiments, without name."""
        if args[0] == TABLES:
            return super().resolve_command(ctx, args)
        return "", self.commands["experiments"], args


#: Options before a name belong to the command that is chosen, ``--help`` among them.
_FOR_ALL = {"ignore_unknown_options": True, "allow_interspersed_args": False}
app = typer.Typer(
    cls=_Names,
    invoke_without_command=True,
    add_help_option=False,
    context_settings=_FOR_ALL,
    help="Run experiments of the paper again, or the contest on tables; alone it lists them.",
)

Scale = Annotated[str, typer.Option(help="smoke, small or paper")]
Methods = Annotated[
    str | None, typer.Option(help="names separated by commas; by default the experiment's")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change every cell")
]


@app.callback()
def start(ctx: typer.Context) -> None:
    """List what there is, if nothing is named."""
    if ctx.invoked_subcommand is None:
        from adareg.lab.run import terminal

        terminal.experiments(options.console())


@app.command()
def experiments(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="adareg reproduce alone lists them")
    ],
    scale: Scale = "small",
    device: options.Device = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="networks of each method")] = None,
    methods: Methods = None,
    settings: Settings = None,
    data: options.DataDirectory = None,
    out: options.Out = options.RUNS,
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
) -> None:
    """Run experiments of the paper again; what is recorded already is skipped.

    The contest on tables has options of its own: adareg reproduce tables --help.
    """
    from adareg.lab.run import terminal

    if TABLES in names:
        raise typer.BadParameter("tables runs by itself: adareg reproduce tables [OPTIONS]")
    console = options.console()
    with errors.in_one_line(), terminal.Terminal(console) as reporter:
        try:
            trainer = _engine(engine, device, address, gpus_per_cell)
            choice = {"seeds": seeds, "methods": options.listed(methods) or None}
            _run(names, scale, trainer, choice, settings or [], data, out, reporter)
        except KeyboardInterrupt:
            recorded = f"{reporter.done} of {reporter.total} jobs are recorded below {out}"
            terminal.say(console, f"stopped; {recorded}; run the same command to go on")
            raise typer.Exit(130) from None
    terminal.say(console, f"all recorded below {out}")


@app.command()
def tables(
    scale: Scale = "small",
    only: Annotated[
        str | None, typer.Option(help="suites or tables, or what these begin with: uci")
    ] = None,
    methods: Methods = None,
    again: Annotated[
        str | None, typer.Option(help="methods to try again although they are recorded")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="processes at once; by default one for each core")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop in time; the same command goes on")
    ] = None,
    data: options.DataDirectory = None,
    out: options.Out = options.RUNS,
) -> None:
    """Compare estimators on tables; what is recorded already is skipped."""
    with errors.in_one_line():
        from adareg.lab.contest.command import Request, reproduce

        request = Request(
            scale=scale,
            only=options.listed(only),
            methods=options.listed(methods),
            again=options.listed(again),
            jobs=jobs,
            minutes=minutes,
        )
        try:
            good = reproduce(request, data, out, options.console())
        except KeyboardInterrupt:
            typer.echo("stopped; run the same command to go on")
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
    return Local(options.device(device))


def _run(
    names: list[str],
    scale: str,
    engine: Engine,
    choice: dict[str, Any],
    settings: list[str],
    directory: Path | None,
    out: Path,
    reporter: Terminal,
) -> None:
    from adareg.lab.experiments import SCALES, find_all
    from adareg.lab.run import plan
    from adareg.lab.run.records import Store

    if scale not in SCALES:
        raise ValueError(f"--scale {scale!r}: expected one of {', '.join(SCALES)}")
    pairs = [setting.partition("=") for setting in settings]
    for key, equals, _ in pairs:
        if not equals:
            raise ValueError(f"--set {key!r}: expected KEY=VALUE")
    changed = {key: value for key, _, value in pairs}
    sources, store = plan.Sources(directory), Store(out)
    found = find_all(names)
    jobs, finished = plan.plan(
        found, scale, sources, store, choice["seeds"], choice["methods"], changed
    )
    plan.run(jobs, finished, sources, store, engine, reporter)
