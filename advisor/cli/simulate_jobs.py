"""``advisor simulate elastic|failures|spot``: a job's run on machines that come, go and fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.ask import Question
from advisor.cli.options import (
    BYTES,
    COUNT,
    HOURS,
    JOB,
    RATE,
    SECONDS,
    SETUP,
    SHARE,
    USD,
    Plot,
    asks,
    quantity,
    waiting,
)
from advisor.cli.simulate_options import HOUR_S, AsJson, Deadline, show
from advisor.errors import UsageError
from advisor.planners.spot import BAND_FRACTIONS, hazard_of_band
from advisor.quantities import parse_cores_and_memory, parse_seconds

if TYPE_CHECKING:
    from advisor.simulate import JobFigures, WorkerContainer


# ``advisor simulate elastic``: plan workers that join and leave.


@asks(JOB, ("catalogue", "overrides"), SETUP)
def elastic(
    question: Question,
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Machine type of a worker, for a job that is named (--run, --model, ...): "
            "g5.xlarge or aws:g5.xlarge.",
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:VCPUSxGIB]",
            help="Run workers in containers billed by size and second, as fast as the machines of "
            "--on: aws-fargate, aws-fargate-arm or gcp-cloud-run (default size: that machine's).",
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="VCPUSxGIB",
            help="Size of a container that coordinates the workers, with --container: 1x2.",
        ),
    ] = None,
    samples: Annotated[
        float | None,
        quantity(COUNT, "--samples", help="Samples each phase needs at a very small batch size."),
    ] = None,
    phases: Annotated[
        int | None, typer.Option(min=1, help="Phases of the training run, such as epochs.")
    ] = None,
    sample_time: Annotated[
        float | None,
        quantity(SECONDS, "--sample-time", help="Time of one sample on one worker, e.g. 4ms."),
    ] = None,
    price: Annotated[
        float | None, quantity(USD, "--price", help="Price of one worker, in USD per hour.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Gradient noise scale in samples at points of the training, FIRST:...:LAST, or "
            "the runs that were recorded there, in order (default: that of the recorded "
            "gradients, if known)."
        ),
    ] = None,
    noise_growth: Annotated[
        float,
        typer.Option(min=1.0, help="Noise scale at the end, as a multiple of the recorded one."),
    ] = 1.0,
    batches: Annotated[str, typer.Option(help="Other batch sizes to try, comma-separated.")] = "",
    workers: Annotated[
        str, typer.Option(help="Worker counts to choose from, comma-separated.")
    ] = "1,2,4,8,16",
    step_time: Annotated[
        float,
        quantity(
            SECONDS,
            "--step-time",
            default="0s",
            help="Part of a step that does not depend on the batch.",
        ),
    ] = 0.0,
    sync_time: Annotated[
        float,
        quantity(
            SECONDS,
            "--sync-time",
            default="0s",
            help="Exposed communication time for each doubling of the workers.",
        ),
    ] = 0.0,
    spread: Annotated[
        float | None,
        quantity(
            SHARE,
            "--spread",
            help="Standard deviation of the workers' compute time as a share of its mean: each "
            "step waits for the slowest (default: that of the recorded ranks, otherwise of the "
            "fitted clusters).",
        ),
    ] = None,
    resize: Annotated[
        float,
        quantity(
            SECONDS,
            "--resize",
            default="60s",
            help="How long training stands still when the number of workers changes.",
        ),
    ] = 60.0,
    quantum: Annotated[
        float,
        quantity(
            SECONDS,
            "--quantum",
            default="1s",
            help="Billing granularity; charges round up to a multiple of this.",
        ),
    ] = 1.0,
    startup: Annotated[
        float,
        quantity(
            SECONDS,
            "--startup",
            default="0s",
            help="Time that is billed before a worker computes.",
        ),
    ] = 0.0,
    deadline: Deadline = None,
    budget: Annotated[
        float | None, quantity(USD, "--budget", help="Maximum to spend, in USD.")
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Plan when workers join and leave; compare with a fixed number.

    With a job (--run, --model, ...) and --on, the figures come from the estimate for these
    machines; options replace single figures.
    """
    from advisor.simulate import elastic_answer, question_of

    spec = question.job
    is_named = spec.names_a_job or spec.runs is not None
    batch = None if is_named else spec.batch

    counts = [int(count) for count in _numbers("--workers", workers)]
    by_hand = {
        "--samples": samples, "--phases": phases, "--batch": batch, "--sample-time": sample_time,
        "--price": price,
    }  # fmt: skip
    known = _figures(question, on, counts) if is_named else None
    if known is None:
        missing = [flag for flag, value in by_hand.items() if value is None]
        if missing:
            raise UsageError(
                f"missing: {', '.join(missing)}",
                hint="give them, or take them from a recording: --run latest --on g5.xlarge",
            )
        if on is not None:
            raise UsageError("--on needs a job", hint="name one: --run latest --on g5.xlarge")
    asked = question_of(
        samples=samples,
        phases=None if phases is None else int(phases),
        noise=_noise(noise),
        noise_growth=noise_growth,
        container=_container(container, coordinator, known),
        batch=_first(batch, None if known is None else known.batch),
        batches=_numbers("--batches", batches),
        workers=counts,
        step_s=step_time,
        sample_s=sample_time,
        sync_per_doubling_s=sync_time,
        price_usd_per_h=_first(price, None if known is None else known.price_usd_per_h),
        quantum_s=quantum,
        startup_s=known.startup_s if known is not None and not startup else startup,
        resize_s=resize,
        deadline_s=None if deadline is None else deadline * HOUR_S,
        budget_usd=budget,
        spread_fraction=spread,
        known=known,
    )
    with waiting("planning", is_quiet=as_json):
        answer = elastic_answer(asked)
    show(answer.to_record(), answer.charts, plot, as_json, "elastic")


def _figures(question: Question, on: str | None, workers: list[int]) -> JobFigures:
    """Return what the one estimate says of the job on these machines."""
    from advisor.catalogue import Catalogue
    from advisor.estimate import Predictor, job_of
    from advisor.simulate import figures_of

    if on is None:
        raise UsageError("a job needs machines", hint="name a worker's type: --on g5.xlarge")
    with waiting("estimating the job on each number of workers"):
        predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
        job = job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
        return figures_of(predictor, job, on, workers)


def _container(
    name: str | None, coordinator: str | None, known: JobFigures | None
) -> WorkerContainer | None:
    """Return what workers run in: by default as large as the machine that they compute as."""
    from advisor.catalogue import container_of
    from advisor.simulate import WorkerContainer

    if name is None:
        if coordinator is not None:
            raise UsageError("--coordinator is of containers", hint="add --container aws-fargate")
        return None
    vcpus, gib = (0.0, 0.0) if known is None else (known.vcpus, known.gib)
    offer, vcpus, gib = container_of(name, vcpus=vcpus, gib=gib)
    if not vcpus or not gib:
        raise UsageError(
            "the size of a container is not known", hint=f"give it: --container {name}:4x16"
        )
    beside = None
    if coordinator is not None:
        cores, memory_bytes = parse_cores_and_memory(coordinator, option="--coordinator")
        beside = cores, memory_bytes / 2**30
    return WorkerContainer(
        offer=offer, vcpus=vcpus, gib=gib, accelerator="" if known is None else known.accelerator,
        coordinator=beside,
    )  # fmt: skip


def _first(given: float | None, known: float | None) -> float:
    value = known if given is None else given
    assert value is not None  # checked: all are given, or the run is
    return float(value)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            f"{option}: cannot read {text!r} as a list of numbers", hint="write e.g. 1,2,4"
        ) from None


def _noise(text: str | None) -> tuple[float, ...] | None:
    """Return the noise scale at some points: numbers, or runs whose gradients were recorded."""
    if text is None:
        return None
    found = tuple(_noise_at(part) for part in text.replace(",", ":").split(":"))
    if not found or min(found) <= 0:
        raise UsageError(
            f"--noise: cannot read {text!r} as a noise scale", hint="write e.g. 500:20000"
        )
    return found


def _noise_at(part: str) -> float:
    try:
        return float(part)
    except ValueError:
        pass
    from advisor.collectors import RecordingError
    from advisor.jobs import load_job

    try:
        job = load_job(part.strip())
    except RecordingError as error:
        raise UsageError(
            f"--noise: {part!r} is neither a noise scale nor a recorded run",
            hint="write e.g. 500:20000, or the runs of several points: early:late",
        ) from error
    if job.noise is None:
        raise UsageError(
            f"--noise: the gradients of {job.name} show no noise scale",
            hint="record it with accumulation or on two workers, or give the number",
        )
    return job.noise.samples


# ``advisor simulate failures``: predict what failures, saves and restarts add.


def failures(
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
            SECONDS, "--restart", default="5m", help="Time from having a node to the first step."
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
            help="Layout, which sets the published slowdown after losing a network path: "
            "data-parallel, pipeline or pipeline-tensor."
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
    from advisor.planners.goodput import EDGE_P95, EdgeFaultTolerance, save_s
    from advisor.simulate import FailureQuestion, failures_answer

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
    answer = failures_answer(
        FailureQuestion(
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


# ``advisor simulate spot``: replay a job on spot nodes.


def spot(
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
            help="Without --trace: share of such machines that is interrupted in a month: "
            f"{', '.join(BAND_FRACTIONS)} (default: >20%)."
        ),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Replay a job on spot nodes under each strategy, and on demand."""
    from advisor.planners.spot import SpotJob
    from advisor.simulate import SpotQuestion, packaged_answer, spot_answer

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
            answer = packaged_answer(question)
        else:
            unit_s = parse_seconds(f"1{time_unit}", option="--time-unit")
            chosen, others = _chosen(trace, zone, unit_s)
            answer = spot_answer(chosen, question, others)
    show(answer.to_record(), answer.charts, plot, as_json, "spot")


def _chosen(path: Path, zone: str | None, unit_s: float) -> tuple[Any, list[Any]]:
    """Return the trace to replay on, and the others of the file."""
    from advisor.records import read_spot_traces

    traces = read_spot_traces(path, unit_s=unit_s)
    fitting = [t for t in traces if zone is None or zone in t.name]
    if len(fitting) != 1:
        names = ", ".join(t.name for t in (fitting or traces)[:8])
        raise UsageError(
            f"{len(fitting)} of {len(traces)} traces in {path.name} fit --zone {zone or '(none)'}",
            hint=f"name one with --zone: {names}",
        )
    return fitting[0], [t for t in traces if t is not fitting[0]]
