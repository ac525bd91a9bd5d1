"""``advisor doctor``: say what can be recorded here, and measure this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def command(
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Measure this machine again, even if it was measured before."
        ),
    ] = False,
    device_sheet: Annotated[
        bool,
        typer.Option(
            "--device-sheet",
            help="Measure what the processor and GPUs sustain (about 30 seconds each); recorded "
            "runs and `advisor predict --on here` then use it in place of the tables.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Say what can be recorded here, and measure this machine (about four seconds, once)."""
    from advisor.collectors import benchmark, doctor, host
    from advisor.collectors import device_sheet as sheets

    measured = benchmark.measure_and_remember() if again else benchmark.cached_or_measured()
    known = sheets.measure_and_remember() if device_sheet else sheets.cached()
    described = host.describe(benchmark=measured, sheets=known)
    abilities = doctor.abilities()
    if as_json:
        record = {
            "schema_version": 1,
            "host": asdict(described),
            "abilities": [asdict(ability) for ability in abilities],
        }
        typer.echo(json.dumps(record, indent=2))
        return
    for line in doctor.host_lines(described):
        typer.echo(line)
    for sheet in known:
        for line in sheets.sheet_lines(sheet):
            typer.echo(line)
    for ability in abilities:
        mark = "yes" if ability.is_there else "no "
        typer.echo(f"{mark}  {ability.what}: {ability.remark}")
