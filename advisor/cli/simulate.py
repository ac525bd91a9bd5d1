"""``advisor simulate spot|elastic|queue|...``: replay a job, for the curious."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
    PlotCommand,
    asks,
    check_drawable,
    quantity,
    show_plot,
    waiting,
)
from advisor.errors import UsageError
from advisor.planners.spot import BAND_FRACTIONS, hazard_of_band
from advisor.quantities import parse_cores_and_memory, parse_seconds

if TYPE_CHECKING:
    from advisor.answer import Recommendation
    from advisor.estimate import PeerGroup, Predictor
    from advisor.jobs import Job
    from advisor.planners.systems import FirstMinutes, Peers
    from advisor.show import Chart
    from advisor.simulate import ClusterComparison, JobFigures, WorkerContainer


# ------------------------------------------------------------------------------------------
# Options of the verbs of ``advisor simulate``, and the one way to show their answers.


HOUR_S: Final = 3600.0

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        show_default=False,
        help="Recorded runs, by name, part of it, or folder; name a run twice for two jobs.",
    ),
]
Deadline = Annotated[
    float | None,
    quantity(
        HOURS,
        "--deadline",
        help="Latest end of the job, counted from its submission: 12h, 90m or 2d.",
    ),
]


def show(
    record: Mapping[str, Any], charts: Sequence[Chart], plot: str | None, as_json: bool, verb: str
) -> None:
    """Print the record or its text, and draw the charts where asked."""
    check_drawable(charts, plot, hint="name a trace with --trace")
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        from rich.console import Console

        from advisor.report import show_simulated

        show_simulated(verb, record, Console())
    show_plot(charts, plot)


# ------------------------------------------------------------------------------------------
# ``advisor simulate aggregation``: put the gradients of several jobs on shared cores.


def aggregation(
    runs: Runs,
    link: Annotated[
        float, quantity(RATE, "--link", help="Network of each machine, each way, e.g. 10Gbit/s.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="Machines that each job trains on.")] = 4,
    servers: Annotated[
        int, typer.Option(min=1, help="Machines whose network the aggregators use.")
    ] = 1,
    loss: Annotated[
        float,
        quantity(
            SHARE, "--loss", default="5%", help="Longest delay of a job, as a share of its step."
        ),
    ] = 0.05,
    cap: Annotated[
        float, quantity(SHARE, "--cap", default="80%", help="Highest load of an aggregating core.")
    ] = 0.8,
    core_rate: Annotated[
        float | None,
        quantity(
            RATE,
            "--core-rate",
            help="Memory traffic of one aggregating core (default: as measured where the job "
            "ran).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share aggregating cores among jobs (Parameter Service).

    Shows how many cores the jobs need together instead of one or more each, how long each waits
    for the others, and what all-reduce would take, which needs no such core.
    """
    from advisor import api
    from advisor.ask import JobSpec
    from advisor.simulate import shared_aggregation

    jobs = [api.job_of(JobSpec(run=run)) for run in runs]
    found = shared_aggregation(
        jobs, workers=workers, link_bytes_per_s=link, cap=cap,
        most_loss=loss, core_bytes_per_s=core_rate, servers=servers,
        steps_s=[_recorded_steps_s(run) for run in runs],
    )  # fmt: skip
    show(found.to_record(), (), None, as_json, "aggregation")


def _recorded_steps_s(run: str) -> tuple[float, ...]:
    """Return the steps of a recorded run; none of what was not recorded."""
    from advisor.collectors import RecordingError
    from advisor.collectors.derive import find_run, read_recording

    try:
        ranks = read_recording(find_run(run)).ranks
    except (RecordingError, OSError):
        return ()
    return ranks[0].step_s if ranks else ()


# ------------------------------------------------------------------------------------------
# ``advisor simulate limits``: recorded jobs on shared nodes under every way of setting limits.


def limits(
    runs: Runs,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="What the jobs share, cores x memory: 8x32GB (default: the sum of their peaks).",
        ),
    ] = None,
    core_price: Annotated[
        float | None,
        quantity(USD, "--core-price", help="Price of a core for an hour (default: from "
                 "two types of the catalogue that differ only in memory)."),
    ] = None,
    memory_price: Annotated[
        float | None, quantity(USD, "--memory-price", help="Price of a GiB for an hour.")
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Set limits of CPU and memory on shared nodes (Escra).

    Each job runs again as it was recorded, under fixed limits, the Vertical Pod Autoscaler,
    Autopilot, KRR and Escra's controller. The answer has what is reserved and not used, how often
    a job is throttled or killed, and what it costs.
    """
    from advisor.collectors.derive import find_run, read_recording
    from advisor.estimate import Predictor
    from advisor.planners.rightsizing import ResourceLimits
    from advisor.simulate import ResourcePrices, limits_answer, resource_prices

    if (core_price is None) != (memory_price is None):
        raise UsageError(
            "--core-price and --memory-price go together", hint="give both, or neither"
        )
    size = None
    if pool is not None:
        cores, memory_bytes = parse_cores_and_memory(pool, option="--pool")
        size = ResourceLimits(cores=cores, memory_bytes=memory_bytes)
    with waiting("replaying the jobs", is_quiet=as_json):
        recordings = [read_recording(find_run(run)) for run in runs]
        if core_price is None or memory_price is None:
            prices = resource_prices(Predictor())
        else:
            prices = ResourcePrices(
                usd_per_core_h=core_price, usd_per_gib_h=memory_price, source="given"
            )
        answer = limits_answer(recordings, pool=size, prices=prices)
    show(answer.to_record(), (), None, as_json, "limits")


# ------------------------------------------------------------------------------------------
# ``advisor simulate availability``: choose nodes of a shared cluster for a job's workers.


def availability(
    workers: Annotated[int, typer.Option(min=1, help="Workers of your job, one on each node.")],
    hours: Annotated[
        float, quantity(HOURS, "--hours", help="Computing time of your job on whole nodes.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Free share of each node over time: a CSV with the columns time, node, "
            "free_fraction, or counts of several pools (default: twelve virtual clusters of "
            "Helios, May 2020).",
            show_default=False,
        ),
    ] = None,
    slot: Annotated[
        float,
        quantity(SECONDS, "--slot", default="30m", help="Length of the slots of the forecast."),
    ] = 1800.0,
    need: Annotated[
        float,
        quantity(
            SHARE,
            "--need",
            default="50%",
            help="Share of its node that each worker needs; shows how likely all get it.",
        ),
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Choose nodes of a shared cluster by their free shares.

    All workers wait for the slowest node. Several ways of choosing, one of them learned from the
    record, are tried on parts of the record that were left out; the one whose jobs were fastest
    names the nodes.
    """
    from advisor.records import published_node_shares, read_node_shares
    from advisor.simulate import nodes_answer

    with waiting("playing jobs on the record", is_quiet=as_json):
        record = published_node_shares() if trace is None else read_node_shares(trace, slot_s=slot)
        answer = nodes_answer(record, workers=workers, work_h=hours, need=need)
    show(answer.to_record(), (), None, as_json, "availability")


# ------------------------------------------------------------------------------------------
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
            show_default=False,
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:VCPUSxGIB]",
            help="Run workers in containers billed by size and second, as fast as the machines of "
            "--on: aws-fargate, aws-fargate-arm or gcp-cloud-run (default size: that machine's).",
            show_default=False,
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="VCPUSxGIB",
            help="Size of a container that coordinates the workers, with --container: 1x2.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        float | None,
        quantity(COUNT, "--samples", help="Samples each phase needs at a very small batch size."),
    ] = None,
    phases: Annotated[
        int | None,
        typer.Option(
            min=1, help="Phases of the training run, such as epochs.", show_default=False
        ),
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
            "gradients, if known).",
            show_default=False,
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
        phases=int(_first(phases, None if known is None else known.phases)),
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


# ------------------------------------------------------------------------------------------
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


# ------------------------------------------------------------------------------------------
# ``advisor simulate peers``: predict how fast peers train that average now and then.


_PEER = re.compile(r"(?:(?P<count>\d{1,6})\s*x\s*)?(?P<what>[^@]+?)\s*(?:@\s*(?P<site>[\w.-]+))?$")
_LINK = re.compile(r"(?P<one>[\w.-]+)\s*,\s*(?P<other>[\w.-]+)\s*=\s*(?P<rate>.+)$")


def peers(
    target_batch: Annotated[
        float,
        quantity(
            COUNT,
            "--target-batch",
            help="Samples that all peers accumulate between two averagings.",
        ),
    ],
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="Equal peers: COUNT x RATE @ SITE, e.g. '4x85@us'. RATE is one's own samples/s, "
            "or a recorded run of it alone.",
        ),
    ] = None,
    running: Annotated[
        list[str] | None,
        typer.Option(
            "--running",
            help="A recorded run of one peer while all train, in place of --peer: its first "
            "minute is used.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="With --running: how many peers train (default: those named)."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link",
            help="Bandwidth between two sites, of one stream as iperf measures it: "
            "'us,eu=210Mbps'.",
        ),
    ] = None,
    parameters: Annotated[
        float | None,
        quantity(
            COUNT, "--parameters", help="Parameters of the model: 198M (default: as recorded)."
        ),
    ] = None,
    samples: Annotated[
        float | None, quantity(COUNT, "--samples", help="Samples of the whole job, for its time.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the speed of peers that share a batch (Hivemind).

    Give the rate of each peer alone (`--peer`), or the first minute of the running job
    (`--running`). A link between sites slows every averaging down.
    """
    from advisor.estimate import peers_answer, peers_of

    if bool(peer) == bool(running):
        raise UsageError(
            "say what is known of the peers, in one way",
            hint="each one alone: --peer 4x85@us; or the running job: --running RUN",
        )
    links = _links(link or [])
    asked: Peers | FirstMinutes
    if running:
        asked = _running(running, nodes, target_batch, parameters, links)
    else:
        found = [_peer(text) for text in peer or []]
        jobs = [job for _, job in found if job is not None]
        asked = peers_of(
            [group for group, _ in found], target_batch=target_batch,
            parameters=_parameters(parameters, jobs), links=links,
        )  # fmt: skip
    show(peers_answer(asked, samples=samples).to_record(), (), None, as_json, "peers")


def _peer(text: str) -> tuple[PeerGroup, Job | None]:
    """Read one group of peers, and the run it names, if it names one."""
    from advisor.estimate import PeerGroup
    from advisor.jobs import load_job

    words = _PEER.match(text.strip())
    if words is None:
        raise UsageError(f"cannot read the peers {text!r}", hint="write e.g. 4x85@us")
    count, site = int(words["count"] or 1), words["site"] or ""
    try:
        rate = float(words["what"].removesuffix("/s"))
    except ValueError:
        job = load_job(words["what"])
        rate = job.global_batch / _step_s(job)
        return PeerGroup(count=count, samples_per_s=rate, site=site), job
    return PeerGroup(count=count, samples_per_s=rate, site=site), None


def _step_s(job: Job) -> float:
    if job.measured is None:
        raise UsageError(f"{job.name} was not recorded", hint="name a recorded run, or its rate")
    return job.measured.step_s


def _running(
    runs: list[str], nodes: int | None, target_batch: float, parameters: float | None,
    links: dict[frozenset[str], float],
) -> FirstMinutes:  # fmt: skip
    """Return the first minute of the running peers as one row."""
    from advisor.collectors.derive import find_run, read_recording
    from advisor.estimate import minute_of, series_of, together
    from advisor.jobs import load_job

    jobs = [load_job(run) for run in runs]
    minutes = [
        minute_of(series_of(read_recording(find_run(run)), float(job.global_batch)))
        for run, job in zip(runs, jobs, strict=True)
    ]
    if nodes is not None and nodes < len(runs):
        raise UsageError(f"{len(runs)} runs of {nodes} peers", hint="name each peer's run once")
    return together(
        minutes, target_batch=target_batch, parameters_gb=_parameters(parameters, jobs) / 1e9,
        link_bytes_per_s=min(links.values(), default=float("inf")), peers=nodes,
    )  # fmt: skip


def _parameters(given: float | None, jobs: list[Job]) -> float:
    if given is not None:
        return given
    known = {float(job.work.parameters) for job in jobs if job.work is not None}
    if len(known) != 1:
        raise UsageError(
            "how many parameters the model has is not known", hint="add e.g. --parameters 198M"
        )
    return known.pop()


def _links(texts: list[str]) -> dict[frozenset[str], float]:
    from advisor.quantities import parse_rate

    found = {}
    for text in texts:
        words = _LINK.match(text.strip())
        if words is None or words["one"] == words["other"]:
            raise UsageError(f"cannot read the link {text!r}", hint="write e.g. us,eu=210Mbps")
        rate = parse_rate(words["rate"], option="--link")
        if rate <= 0:
            raise UsageError(
                f"the rate of a link must be positive, got {words['rate']}", hint="us,eu=210Mbps"
            )
        found[frozenset((words["one"], words["other"]))] = rate
    return found


# ------------------------------------------------------------------------------------------
# ``advisor simulate queue``: insert a job into a shared cluster's past.


def queue(
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
        float | None, quantity(HOURS, "--low", help="Lower bound of the computing time (90 %).")
    ] = None,
    high: Annotated[
        float | None, quantity(HOURS, "--high", help="Upper bound of the computing time (90 %).")
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
    from advisor.answer import Estimate
    from advisor.planners.queueing import POLICIES, SharedCluster
    from advisor.records import read_cluster_trace
    from advisor.simulate import OwnCluster, queue_answer

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
        answer = queue_answer(
            own,
            devices=devices,
            duration_h=Estimate(value=hours, low=low or hours, high=high or hours),
            deadline_h=deadline,
            rent_completion_h=rented,
            rent_cost_usd=rent_cost,
            with_policies=True,
        )
    show(answer.to_record(), answer.charts, plot, as_json, "queue")


# ------------------------------------------------------------------------------------------
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


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "over peers at several sites, with aggregation that jobs share, or under limits.",
)
app.command("spot", cls=PlotCommand)(spot)
app.command("queue", cls=PlotCommand)(queue)
app.command("availability")(availability)
app.command("elastic", cls=PlotCommand)(elastic)
app.command("failures", cls=PlotCommand)(failures)
app.command("peers")(peers)
app.command("aggregation")(aggregation)
app.command("limits")(limits)


# ------------------------------------------------------------------------------------------
# The options of ``advisor recommend`` that name the user's own shared cluster.


def comparison(
    question: Question, job: Job, answer: Recommendation, predictor: Predictor
) -> ClusterComparison | None:
    """Return the comparison that the question asks for, None where it names no cluster.

    Raises UsageError if one of trace and machines is missing; otherwise as
    ``compare_with_cluster``.
    """
    asked, constraints = question.cluster, question.constraints
    if asked.trace is None and asked.machines is None:
        return None
    if asked.trace is None or asked.machines is None:
        raise UsageError(
            "--cluster-trace and --cluster are needed together",
            hint="--cluster-trace sacct.txt --cluster 10x4xV100-SXM2-16GB@100Gbps",
        )
    from advisor.simulate import compare_with_cluster

    return compare_with_cluster(
        job,
        answer,
        trace=asked.trace,
        cluster=asked.machines,
        policy=asked.policy,
        devices=asked.devices or None,
        consolidated=asked.is_consolidated,
        price_usd_per_device_h=asked.price_usd_per_device_h,
        deadline=constraints.deadline_h,
        budget=constraints.budget_usd,
        coverage=constraints.coverage,
        predictor=predictor,
    )
