"""``advisor simulate failures``: predict what failures, saves and restarts add."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from advisor.cli.plot_option import Plot
from advisor.cli.quantity_types import BYTES, HOURS, RATE, SECONDS, SHARE, quantity
from advisor.cli.simulate_options import HOUR_S, AsJson, show
from advisor.errors import UsageError


def command(
    hours: Annotated[float, quantity(HOURS, "--hours", help="Useful computing time of the job.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices that the job runs on.")],
    checkpoint: Annotated[
        float | None,
        quantity(
            SECONDS,
            "--checkpoint",
            help="How long training stands still while a checkpoint is saved "
            "(default: no checkpoints).",
        ),
    ] = None,
    checkpoint_size: Annotated[
        float | None,
        quantity(
            BYTES,
            "--checkpoint-size",
            help="Size of a checkpoint, e.g. 200GB, in place of --checkpoint.",
        ),
    ] = None,
    write_rate: Annotated[
        float,
        quantity(
            RATE,
            "--write-rate",
            default="131MB/s",
            help="Rate at which one node writes checkpoints, with --checkpoint-size.",
        ),
    ] = 131e6,
    disk: Annotated[
        float | None,
        quantity(BYTES, "--disk", help="Disk space for checkpoints; two of them must fit."),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, help="Nodes that write a checkpoint side by side.")
    ] = 1,
    restart: Annotated[
        float,
        quantity(
            SECONDS,
            "--restart",
            default="5m",
            help="Time from having a node to the first step.",
        ),
    ] = 300.0,
    detection: Annotated[
        float,
        quantity(
            SECONDS,
            "--detection",
            default="1m",
            help="Time from a failure to having a node again.",
        ),
    ] = 60.0,
    checkpoint_every: Annotated[
        float | None,
        quantity(
            SECONDS,
            "--checkpoint-every",
            help="Useful computing time between two checkpoints (default: the best interval).",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Failures per device and hour (default: as published for Llama 3)."),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="Layout whose published slowdown a lost network path has: data-parallel, "
            "pipeline or pipeline-tensor."
        ),
    ] = "data-parallel",
    slowdown: Annotated[
        float | None,
        quantity(
            SHARE,
            "--slowdown",
            help="Mean added step time while a path is down, e.g. 2% (default: the layout's).",
        ),
    ] = None,
    repair: Annotated[
        float,
        quantity(HOURS, "--repair", default="20h", help="How long a network path stays down."),
    ] = 20.0,
    network_share: Annotated[
        float | None,
        quantity(
            SHARE,
            "--network-share",
            help="Share of the failures that a second path hides (default: Llama 3's, 10%).",
        ),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Predict what failures, checkpoints and restarts add to a job.

    The answer is given by number of devices, with and without a second network path.
    """
    from advisor.planners.goodput.checkpoints import save_s
    from advisor.planners.goodput.goodput import EDGE_P95, EdgeFaultTolerance
    from advisor.simulation import failures as simulation

    save = checkpoint
    if checkpoint_size is not None:
        save = float(
            save_s(checkpoint_size, nodes=nodes, bytes_per_s=write_rate, disk_bytes=disk)[0]
        )
    known = next((name for name in EDGE_P95 if name == layout), None)
    if known is None:
        raise UsageError(f"no layout named {layout!r}", hint=f"one of {', '.join(EDGE_P95)}")
    edge = EdgeFaultTolerance.of_layout(known, repair_h=repair)
    if slowdown is not None:
        edge = replace(edge, slowdown_fraction=slowdown)
    if network_share is not None:
        edge = replace(edge, network_fraction=network_share)
    answer = simulation.failures_answer(
        simulation.FailureQuestion(
            work_s=hours * HOUR_S,
            devices=devices,
            checkpoint_s=save,
            restart_s=restart,
            detection_s=detection,
            checkpoint_interval_s=checkpoint_every,
            failures_per_device_h=rate,
            edge=edge,
        )
    )
    show(answer.to_record(), answer.charts, plot, as_json, "failures")
