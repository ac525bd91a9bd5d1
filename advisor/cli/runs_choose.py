"""``advisor runs choose``: which configuration to try next, from runs of this and other jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.waiting import waiting
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.learned.job_runs import NextTries, NextTry


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job, as its runs call it.")],
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Files or folders of runs (default: the packaged ones and your own)."
        ),
    ] = None,
    fmt: Annotated[
        str,
        typer.Option(
            "--format", help="Format of the runs: auto, or one of those of `advisor runs import`."
        ),
    ] = "auto",
    top: Annotated[int, typer.Option(min=1, help="Maximum number of configurations to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Choose the next configuration to try for a job.

    It learns from the job's own runs and from those of other jobs.

    After a run that failed or timed out, machines that cost more than twice as much per hour come
    first.
    """
    from advisor.learned.job_runs import choose
    from advisor.train.labelled import read_runs

    with waiting("reading the runs", is_quiet=as_json):
        records = read_runs(runs, fmt)
    known = sorted({record.job.job_id for record in records})
    if job not in known:
        raise UsageError(
            f"no run of a job named {job!r}",
            hint=f"one of: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}",
        )
    with waiting("learning from them", is_quiet=as_json):
        found = choose(records, job)
    typer.echo(json.dumps(found.to_record(), indent=2) if as_json else _text(found, top))


def _text(found: NextTries, top: int) -> str:
    from advisor.collectors.printable import printable

    lines = [f"{printable(found.job)}: learned from {found.others} other jobs"]
    if found.failed:
        shown = ", ".join(printable(name) for name in found.failed[:3])
        more = "" if len(found.failed) <= 3 else f" and {len(found.failed) - 3} more"
        lines.append(f"failed on {shown}{more}")
        if any(one.is_too_small for one in found.tries):
            lines.append("machines that cost more than twice as much an hour come first")
    lines.append("ranked by its own run" if found.looks_at_job else "ranked as for every job")
    width = max(len(printable(one.configuration)) for one in found.tries[:top])
    lines.append(f"    {'configuration':{width}}  {'USD/h':>8}  {'cost over best':>14}  note")
    lines += [_line(rank, one, width) for rank, one in enumerate(found.tries[:top], 1)]
    return "\n".join(lines)


def _line(rank: int, one: NextTry, width: int) -> str:
    from advisor.collectors.printable import printable

    price = "?" if one.price_usd_per_h is None else f"{one.price_usd_per_h:,.3f}"
    ratio = "?" if one.expected_ratio is None else f"{one.expected_ratio:.2f}"
    note = f"cost {one.cost_usd:,.4g} USD here" if one.cost_usd is not None else ""
    note = note or ("perhaps too small" if one.is_too_small else "")
    name = printable(one.configuration)
    return f"{rank:2}  {name:{width}}  {price:>8}  {ratio:>14}  {note}".rstrip()
