"""``advisor doctor``: say what can be recorded here, and measure this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def command(
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew, even if there are figures.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Say what can be recorded here, and measure this machine (about four seconds, once)."""
    from advisor.collectors import benchmark, doctor, host

    measured = benchmark.measure_and_remember() if again else benchmark.cached_or_measured()
    described = host.describe(benchmark=measured)
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
    for ability in abilities:
        mark = "yes" if ability.is_there else "no "
        typer.echo(f"{mark}  {ability.what}: {ability.remark}")
