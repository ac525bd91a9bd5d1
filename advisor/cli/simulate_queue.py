"""``advisor simulate queue``: insert a job into a shared cluster's past."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.plot_option import Plot
from advisor.cli.quantity_types import HOURS, USD, quantity
from advisor.cli.simulate_options import AsJson, Deadline, show
from advisor.cli.waiting import waiting
from advisor.errors import UsageError


def command(
    trace: Annotated[
        Path, typer.Option(help="Jobs of the cluster: an export of sacct or kubectl, or a CSV.")
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")],
    devices_per_node: Annotated[int, typer.Option(min=1, help="Devices of each node.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices that your job asks for.")],
    hours: Annotated[
        float, quantity(HOURS, "--hours", help="Computing time of your job on these devices.")
    ],
    low: Annotated[
        float | None,
        quantity(HOURS, "--low", help="Lower bound of the computing time (90 %)."),
    ] = None,
    high: Annotated[
        float | None,
        quantity(HOURS, "--high", help="Upper bound of the computing time (90 %)."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Order in which jobs start: fifo, fit-first, shortest, shortest-gpu, las, "
            "las-2d or gittins."
        ),
    ] = "fifo",
    consolidated: Annotated[
        bool, typer.Option(help="Give each job one node, or whole nodes.")
    ] = False,
    insertions: Annotated[
        int, typer.Option(min=1, help="Random times at which your job is submitted.")
    ] = 100,
    seed: Annotated[int, typer.Option(help="Seed of these random times.")] = 0,
    deadline: Deadline = None,
    rent_hours: Annotated[
        float | None,
        quantity(
            HOURS, "--rent-hours", help="Completion time on rented machines, start-up included."
        ),
    ] = None,
    rent_cost: Annotated[
        float, quantity(USD, "--rent-cost", help="What renting costs, in USD.")
    ] = 0.0,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Replay a job on a shared cluster's recorded history.

    Shows how long the job waits, when it is done, whether renting pays off, and what the
    cluster's own jobs would meet under every policy.
    """
    from advisor.domain import Estimate
    from advisor.planners.queueing.nouns import POLICIES, SharedCluster
    from advisor.records.job_tables import read_cluster_trace
    from advisor.simulation import queue as simulation
    from advisor.simulation.queue_now import OwnCluster

    known = next((p for p in POLICIES if p == policy), None)
    if known is None:
        raise UsageError(f"no policy named {policy!r}", hint=f"one of {', '.join(POLICIES)}")
    if not (0 < (low or hours) <= hours <= (high or hours)):
        raise UsageError(
            f"not 0 < low <= hours <= high: {low or hours}, {hours}, {high or hours}",
            hint="leave the bounds out where the time is certain",
        )
    own = OwnCluster(
        trace=read_cluster_trace(trace),
        cluster=SharedCluster(nodes=nodes, devices_per_node=devices_per_node),
        policy=known,
        placement="consolidated" if consolidated else "count",
        insertions=insertions,
        seed=seed,
    )
    rented = None
    if rent_hours is not None:
        rented = Estimate(value=rent_hours, low=rent_hours, high=rent_hours)
    with waiting("replaying the cluster's jobs", is_quiet=as_json):
        answer = simulation.queue_answer(
            own,
            devices=devices,
            duration_h=Estimate(value=hours, low=low or hours, high=high or hours),
            deadline_h=deadline,
            rent_completion_h=rented,
            rent_cost_usd=rent_cost,
            with_policies=True,
        )
    show(answer.to_record(), answer.charts, plot, as_json, "queue")
