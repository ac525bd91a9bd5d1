"""``advisor runs``: list, show, recover and remove recorded runs; add what real runs took."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.cli import runs_actual, runs_import
from advisor.quantities import seconds_text

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, recover and remove recorded runs.",
)
app.command("actual")(runs_actual.command)
runs_import.register(app)

Name = Annotated[str, typer.Argument(metavar="RUN", help="Name, part of a name, or folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]


@app.command("list")
def list_runs(as_json: AsJson = False) -> None:
    """List the recorded runs, oldest first."""
    from advisor.collectors import RecordingError, store

    rows: list[dict[str, Any]] = []
    for path in store.list_runs():
        try:
            seen = store.read_recording(path)
        except RecordingError as error:
            rows.append({"run": path.name, "status": f"unreadable: {error}"})
            continue
        step = seen.step_time
        rows.append(
            {
                "run": seen.run_id,
                "status": seen.status,
                "started_at": seen.started_at,
                "duration_s": seen.duration_s,
                "step_s": step.corrected_s if step else None,
                "command": " ".join(seen.command),
            }
        )
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "runs": rows}, indent=2))
        return
    for line in table(rows, _columns()):
        typer.echo(line)
    if not rows:
        typer.echo(f"no run in {store.run_root()}", err=True)


def _columns() -> int:
    """Return the terminal's width; a file's lines may have any length."""
    return shutil.get_terminal_size((10_000, 24)).columns


def table(rows: list[dict[str, Any]], columns: int) -> list[str]:
    """Return a line a run: name, status, step time, command; cut where the terminal ends."""
    width = max((len(row["run"]) for row in rows), default=0)
    lines = []
    for row in rows:
        step_s = row.get("step_s")
        step_text = f"{seconds_text(step_s)}/step" if step_s else ""
        words = row.get("command", "").split(" ")
        command = " ".join(Path(word).name if "/" in word else word for word in words)
        line = f"{row['run']:{width}}  {row['status']:11}  {step_text:13}  {command}".rstrip()
        # A command may have bytes in it that are no text.
        line = line.encode(errors="backslashreplace").decode()
        lines.append(line if len(line) <= columns else line[: columns - 1] + "…")
    return lines


@app.command()
def show(run: Name, as_json: AsJson = False) -> None:
    """Say what was learned from a run.

    Exit code 3 means that it is not known well enough to answer from.
    """
    from advisor.collectors import certainty, store, summary
    from advisor.errors import NotKnownError

    seen = store.read_recording(store.find_run(run))
    if as_json:
        typer.echo(json.dumps(summary.record(seen), indent=2))
    else:
        typer.echo(summary.text(seen, _columns()), nl=False)
    if missing := certainty.shortfall(seen):
        raise NotKnownError(missing[0], hint=missing[1])


@app.command()
def recover(run: Name) -> None:
    """Close a run whose profiler was killed, so that it can be used."""
    from advisor.collectors import store, summary

    typer.echo(summary.text(store.recover(store.find_run(run)), _columns()), nl=False)


@app.command()
def rm(run: Name) -> None:
    """Delete a run."""
    from advisor.collectors import store

    path = store.find_run(run)
    store.remove(path)
    typer.echo(f"deleted {path}", err=True)
