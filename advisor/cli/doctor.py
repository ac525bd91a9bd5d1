"""``advisor doctor``: say what can be recorded here, and measure this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from advisor import ask
from advisor.ask import Printed, option
from advisor.cli.options import print_json
from advisor.cli.terminal import aligned, waiting
from advisor.collectors import watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Printed):
    """Check what can be recorded here, and show which settings apply.

    The machine is measured once, which takes about four seconds.
    """

    # fmt: off
    again: bool = option("Measure this machine again, even if it was measured before.",
        default=False)
    device_sheet: bool = option("Measure what the processor and GPUs sustain (about 30 seconds "
        "each); recorded runs and `advisor predict --on here` then use it in place of the tables.",
        default=False)
    # fmt: on

    def __call__(self) -> None:
        from advisor.cli.commands import all_in_force
        from advisor.cli.program import VERBS, load_verb
        from advisor.jobs import call_s_on

        with waiting("measuring this machine", is_quiet=self.as_json):
            measured = watch.measure_and_remember() if self.again else watch.cached_or_measured()
            known = watch.measure_sheets() if self.device_sheet else watch.cached_sheets()
        described = watch.describe_host(benchmark=measured, sheets=known)
        abilities = watch.host_abilities()
        of_verbs, variables = all_in_force(os.environ, load_verb, VERBS)
        found = [*ask.settings(Path.cwd(), os.environ), *of_verbs]
        unknown = ask.unknown_variables(os.environ, variables)
        if self.as_json:
            record = {
                "schema_version": 1,
                "host": asdict(described),
                "abilities": abilities,
                "settings": [asdict(one) for one in found],
                "unknown_variables": unknown,
            }
            print_json(record)
            return
        for line in watch.host_lines(described):
            typer.echo(line)
        for sheet in known:
            for line in watch.sheet_lines(sheet):
                typer.echo(line)
        if described.benchmark is not None:
            took_us = 1e6 * call_s_on(described.benchmark.scalar_score)
            typer.echo(f"a script's call of PyTorch on a GPU here: {took_us:.0f} us (--call)")
        for ability in abilities:
            mark = "yes" if ability["is_there"] else "no "
            typer.echo(f"{mark}  {ability['what']}: {ability['remark']}")
        typer.echo("\n".join(["", *_table(found), *_unknown(unknown)]))


def _table(found: Sequence[ask.Setting]) -> list[str]:
    """Return a line a setting: its name, its value, where it stands and what it beats."""
    rows = [("setting", "value", "from")]
    for one in found:
        beaten = f" (before {'; '.join(one.beaten)})" if one.beaten else ""
        rows.append((one.name, one.value, one.place + beaten))
    return aligned(rows)


def _unknown(variables: Mapping[str, str]) -> list[str]:
    return [
        f"note: {name} is not a setting" + (f"; did you mean {close}?" if close else "")
        for name, close in variables.items()
    ]
