"""``advisor runs actual``: say what a real run took, so that later estimates are narrower."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.quantity_types import HOURS, SECONDS_WITH_UNIT, USD, quantity

if TYPE_CHECKING:
    from advisor.train.feedback import Comparison


def command(
    run: Annotated[
        str,
        typer.Argument(
            help="The recorded run of the same job: its name, part of it, or its folder."
        ),
    ],
    instance_type: Annotated[
        str | None,
        typer.Argument(
            help="Instance type it ran on, e.g. g5.xlarge (default: found from time and cost)."
        ),
    ] = None,
    time: Annotated[
        float | None,
        quantity(HOURS, "--time", help="What the whole job took: 3h12m, 45m or 2d."),
    ] = None,
    cost: Annotated[
        float | None, quantity(USD, "--cost", help="What was billed for it, in USD.")
    ] = None,
    step_time: Annotated[
        float | None,
        quantity(
            SECONDS_WITH_UNIT,
            "--step-time",
            help="Mean time of an optimizer step, in place of --time: 310ms.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Machines that it ran on.")] = 1,
    provider: Annotated[
        str | None, typer.Option(help="Provider, where two of them use the same name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Record what a real run took, beside the prediction; `advisor train` learns from it."""
    from advisor.train.feedback import note_run

    found = note_run(
        run,
        instance_type,
        count=count,
        provider=provider,
        time_h=time,
        step_s=step_time,
        cost_usd=cost,
    )
    typer.echo(json.dumps(found.to_record(), indent=2) if as_json else _text(found))
    _warn_of_drift()


def _warn_of_drift() -> None:
    """Say on stderr where the latest runs left their intervals too often, and what to do."""
    from advisor.cli.runs_compare import warning
    from advisor.collectors import store
    from advisor.train.drift import drift, read

    for line in warning(drift(read(*store.local_folders()))):
        typer.echo(line, err=True)


def _text(found: Comparison) -> str:
    from advisor.quantities import (
        digits,
        hours_interval,
        hours_text,
        usd_interval,
        usd_text,
    )

    time, time_range = hours_interval(found.predicted_h)
    error = found.error_fraction
    lines = [
        f"{found.count} x {found.instance_type} ({found.provider})",
        f"time   predicted {time} ({time_range}), took {hours_text(found.time_h)}: "
        f"{abs(error):.0%} {'over' if error > 0 else 'under'}, "
        f"{'inside' if found.is_inside else 'outside'} the interval",
    ]
    if found.cost_usd is not None:
        cost, cost_range = usd_interval(found.predicted_usd)
        off = found.predicted_usd.value / found.cost_usd - 1.0
        lines.append(
            f"cost   predicted {cost} ({cost_range}), billed {usd_text(found.cost_usd)}: "
            f"{abs(off):.0%} {'over' if off > 0 else 'under'}"
        )
    lines.append(
        f"noted: a step takes {digits(1000 * found.step_s)} ms there; the next estimates of this "
        "job start from it, and `advisor train` learns from it"
    )
    return "\n".join(lines)
