"""``advisor simulate spot``: replay a job on spot nodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.cli.plot_option import Plot
from advisor.cli.quantity_types import HOURS, SECONDS, USD, quantity
from advisor.cli.simulate_options import HOUR_S, AsJson, Deadline, show
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.planners.spot.bands import BAND_FRACTIONS, hazard_of_band
from advisor.quantities import parse_seconds


def command(
    hours: Annotated[
        float, quantity(HOURS, "--hours", help="Useful computing time on all nodes.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(help="Recorded availability of a zone (default: packaged traces)."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Trace to use where the file has several: its name or a part of it."),
    ] = None,
    time_unit: Annotated[str, typer.Option(help="Unit of numeric times: s, m, h or d.")] = "s",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the job asks for.")] = 1,
    least_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest nodes that can still run the job (default: all)."),
    ] = None,
    restart: Annotated[
        float,
        quantity(
            SECONDS, "--restart", default="5m", help="Time from having nodes to the first step."
        ),
    ] = 300.0,
    checkpoint_every: Annotated[
        float,
        quantity(
            SECONDS,
            "--checkpoint-every",
            default="30m",
            help="Useful computing time between two checkpoints.",
        ),
    ] = 1800.0,
    checkpoint: Annotated[
        float,
        quantity(
            SECONDS,
            "--checkpoint",
            default="0s",
            help="How long training stands still while a checkpoint is saved.",
        ),
    ] = 0.0,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="The job saves no checkpoints.")
    ] = False,
    warning: Annotated[
        float | None,
        quantity(
            SECONDS,
            "--warning",
            help="Notice that the provider gives before a preemption, if the job then saves a "
            "checkpoint.",
        ),
    ] = None,
    deadline: Deadline = None,
    price: Annotated[
        float, quantity(USD, "--price", help="On-demand price of one node, in USD per hour.")
    ] = 1.0,
    spot_price: Annotated[
        float, quantity(USD, "--spot-price", help="Spot price of one node, in USD per hour.")
    ] = 0.3,
    interruptions: Annotated[
        str | None,
        typer.Option(
            help="How many such machines the provider interrupts in a month, without --trace: "
            f"{', '.join(BAND_FRACTIONS)} (default: >20%)."
        ),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Replay a job on spot nodes under each strategy, and on demand."""
    from advisor.planners.spot.availability import SpotJob
    from advisor.simulation import spot as simulation
    from advisor.simulation.spot_question import SpotQuestion

    question = SpotQuestion(
        job=SpotJob(
            work_s=hours * HOUR_S,
            restart_s=restart,
            checkpoint_interval_s=math.inf if no_checkpoints else checkpoint_every,
            checkpoint_s=checkpoint,
            warning_s=warning,
        ),
        nodes=nodes,
        least_nodes=nodes if least_nodes is None else min(least_nodes, nodes),
        deadline_s=None if deadline is None else deadline * HOUR_S,
        price_usd_per_h=price,
        spot_price_usd_per_h=spot_price,
        hazard=1.0 if interruptions is None else hazard_of_band(interruptions),
    )
    if interruptions is not None and trace is not None:
        raise UsageError("--interruptions does not go with --trace", hint="leave one of them out")
    with waiting("replaying the job", is_quiet=as_json):
        if trace is None:
            answer = simulation.packaged_answer(question)
        else:
            unit_s = parse_seconds(f"1{time_unit}", option="--time-unit")
            chosen, others = _chosen(trace, zone, unit_s)
            answer = simulation.spot_answer(chosen, question, others)
    show(answer.to_record(), answer.charts, plot, as_json, "spot")


def _chosen(path: Path, zone: str | None, unit_s: float) -> tuple[Any, list[Any]]:
    """Return the trace to replay on, and the others of the file."""
    from advisor.records.traces import read_spot_traces

    traces = read_spot_traces(path, unit_s=unit_s)
    fitting = [t for t in traces if zone is None or zone in t.name]
    if len(fitting) != 1:
        names = ", ".join(t.name for t in (fitting or traces)[:8])
        raise UsageError(
            f"{len(fitting)} of {len(traces)} traces in {path.name} fit --zone {zone or '(none)'}",
            hint=f"name one with --zone: {names}",
        )
    return fitting[0], [t for t in traces if t is not fitting[0]]
