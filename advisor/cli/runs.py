"""``advisor runs``: list, show, recover and remove recorded runs; add what real runs took."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli import runs_actual, runs_choose, runs_compare, runs_import
from advisor.cli.plot_option import Plot, PlotCommand, check_drawable, show_plot
from advisor.collectors.printable import printable, shown
from advisor.errors import UsageError
from advisor.quantities import seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advisor.collectors.run_list import RunLine

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, recover and remove recorded runs.",
)
app.command("actual")(runs_actual.command)
app.command("compare", cls=PlotCommand)(runs_compare.command)
app.command("import", help=runs_import.HELP)(runs_import.command)
app.command("choose")(runs_choose.command)

Name = Annotated[str, typer.Argument(metavar="RUN", help="Name, part of a name, or folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]


@app.command("list")
def list_runs(as_json: AsJson = False) -> None:
    """List the recorded runs, oldest first."""
    from dataclasses import asdict

    from advisor.collectors import store
    from advisor.collectors.run_list import run_lines

    lines = run_lines(store.list_runs())
    if as_json:
        rows = [{**asdict(line), "command": " ".join(line.command)} for line in lines]
        typer.echo(json.dumps({"schema_version": 1, "runs": rows}, indent=2))
        return
    if lines:
        typer.echo("\n".join(table(lines, _columns())))
    else:
        typer.echo(f"no run in {shown(str(store.run_root()))}", err=True)


def _columns() -> int:
    """Return the terminal's width; a file's lines may have any length."""
    return shutil.get_terminal_size((10_000, 24)).columns


def table(runs: Sequence[RunLine], columns: int) -> list[str]:
    """Return a line a run: name, status, step time, command; cut where the terminal ends."""
    width = max((len(one.run) for one in runs), default=0)
    lines = []
    for one in runs:
        step = f"{seconds_text(one.step_s)}/step" if one.step_s else ""
        command = printable(" ".join(_short(word) for word in one.command))
        line = f"{one.run:{width}}  {one.status:11}  {step:13}  {command}".rstrip()
        lines.append(line if len(line) <= columns else line[: columns - 1] + "…")
    return lines


def _short(word: str) -> str:
    """Return a file's name without its folder; an address as it is."""
    is_path = "/" in word and "://" not in word and " " not in word
    return os.path.basename(word.rstrip("/")) or word if is_path else word


@app.command(cls=PlotCommand)
def show(run: Name, plot: Plot = None, as_json: AsJson = False) -> None:
    """Show what a run recorded.

    Exit code 3 means that it is not known well enough to answer from.
    """
    from advisor.collectors import certainty, store, summary
    from advisor.errors import NotKnownError

    seen = store.read_recording(store.find_run(run))
    if as_json:
        typer.echo(json.dumps(summary.record(seen), indent=2))
    else:
        typer.echo(summary.text(seen, _columns()), nl=False)
    if plot is not None:
        from advisor.shown.run_series import run_charts

        charts = run_charts(seen)
        check_drawable(
            charts, plot, hint="nothing was read or stepped in this run; record another"
        )
        show_plot(charts, plot)
    if missing := certainty.shortfall(seen):
        raise NotKnownError(missing[0], hint=missing[1])


@app.command()
def recover(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name, part of a name, or folder.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Close every such run, and delete those that hold nothing."),
    ] = False,
) -> None:
    """Close a run whose profiler was killed, so that it can be used."""
    from advisor.collectors import store

    if (run is None) != every:
        raise UsageError("recover takes a run, or --all", hint="`advisor runs list` shows them")
    if run is not None:
        from advisor.collectors import summary

        typer.echo(summary.text(store.recover(store.find_run(run)), _columns()), nl=False)
        return
    from advisor.collectors.upkeep import recover_all

    found = recover_all()
    for one in found:
        typer.echo(f"{one.run}: {one.what}, {one.why}")
    if not found:
        typer.echo("every run has ended", err=True)


@app.command()
def rm(run: Name) -> None:
    """Delete a run."""
    from advisor.collectors import store

    path = store.find_run(run)
    store.remove(path)
    typer.echo(f"deleted {printable(str(path))}", err=True)
