"""``advisor simulate availability``: choose nodes of a shared cluster for a job's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.quantity_types import HOURS, SECONDS, quantity
from advisor.cli.simulate_options import AsJson, show
from advisor.cli.waiting import waiting


def command(
    workers: Annotated[int, typer.Option(min=1, help="Workers of your job, one on each node.")],
    hours: Annotated[
        float, quantity(HOURS, "--hours", help="Computing time of your job on whole nodes.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="What was free of each node over time: a CSV with the columns time, node, "
            "free_fraction, or counts of several pools (default: twelve virtual clusters of "
            "Helios, May 2020).",
            show_default=False,
        ),
    ] = None,
    slot: Annotated[
        float,
        quantity(SECONDS, "--slot", default="30m", help="Length of the slots of the forecast."),
    ] = 1800.0,
    as_json: AsJson = False,
) -> None:
    """Choose nodes of a shared cluster by what was free of each.

    All workers wait for the slowest node. The forecast chooses for a job that arrives at the end
    of the record; other ways of choosing stand beside it, each with what past jobs took by it.
    """
    from advisor.records.node_shares import published_node_shares, read_node_shares
    from advisor.simulation.nodes import nodes_answer

    with waiting("playing jobs on the record", is_quiet=as_json):
        record = published_node_shares() if trace is None else read_node_shares(trace, slot_s=slot)
        answer = nodes_answer(record, workers=workers, work_h=hours)
    show(answer.to_record(), (), None, as_json, "availability")
