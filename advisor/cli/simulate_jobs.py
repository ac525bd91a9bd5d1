"""``advisor simulate elastic|failures|spot``: a job's run on machines that come, go and fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.ask import (
    BYTES,
    COUNT,
    HOURS,
    JOB,
    PRICES,
    RATE,
    SECONDS,
    SETUP,
    SHARE,
    USD,
    Question,
    as_json_option,
    asked,
    option,
)
from advisor.cli.options import plot_option
from advisor.cli.simulate_options import HOUR_S, deadline_option, show
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.planners.spot import BAND_FRACTIONS, hazard_of_band
from advisor.quantities import parse_cores_and_memory, parse_seconds

if TYPE_CHECKING:
    from advisor.simulate import JobFigures, WorkerContainer


# ``advisor simulate elastic``: plan workers that join and leave.


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Plan when workers join and leave; compare with a fixed number.

    With a job (--run, --model, ...) and --on, the figures come from the estimate for these
    machines; options replace single figures.
    """

    # fmt: off
    question: Question = asked(JOB, PRICES, SETUP)
    on: str | None = option("Machine type of a worker, for a job that is named (--run, --model, "
        "...): g5.xlarge or aws:g5.xlarge.")
    container: str | None = option("Run workers in containers billed by size and second, as fast "
        "as the machines of --on: aws-fargate, aws-fargate-arm or gcp-cloud-run (default size: "
        "that machine's).", metavar="NAME[:VCPUSxGIB]")
    coordinator: str | None = option("Size of a container that coordinates the workers, with "
        "--container: 1x2.", metavar="VCPUSxGIB")
    samples: float | None = option("Samples each phase needs at a very small batch size.", COUNT)
    phases: int | None = option("Phases of the training run, such as epochs.", min=1)
    sample_time: float | None = option("Time of one sample on one worker, e.g. 4ms.", SECONDS)
    price: float | None = option("Price of one worker, in USD per hour.", USD)
    noise: str | None = option("Gradient noise scale in samples at points of the training, "
        "FIRST:...:LAST, or the runs that were recorded there, in order (default: that of the "
        "recorded gradients, if known).")
    noise_growth: float = option("Noise scale at the end, as a multiple of the recorded one.",
        default=1.0, min=1.0)
    batches: str = option("Other batch sizes to try, comma-separated.", default="")
    workers: str = option("Worker counts to choose from, comma-separated.", default="1,2,4,8,16")
    step_time: float = option("Part of a step that does not depend on the batch.", SECONDS, "0s")
    sync_time: float = option("Exposed communication time for each doubling of the workers.",
        SECONDS, "0s")
    spread: float | None = option("Standard deviation of the workers' compute time as a share of "
        "its mean: each step waits for the slowest (default: that of the recorded ranks, "
        "otherwise of the fitted clusters).", SHARE)
    resize: float = option("How long training stands still when the number of workers changes.",
        SECONDS, "60s")
    quantum: float = option("Billing granularity; charges round up to a multiple of this.",
        SECONDS, "1s")
    startup: float = option("Time that is billed before a worker computes.", SECONDS, "0s")
    deadline: float | None = deadline_option()
    budget: float | None = option("Maximum to spend, in USD.", USD)
    plot: str | None = plot_option()
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.simulate import elastic_answer, question_of

        spec = self.question.job
        is_named = spec.names_a_job or spec.runs is not None
        batch = None if is_named else spec.batch

        counts = [int(count) for count in _numbers("--workers", self.workers)]
        by_hand = {
            "--samples": self.samples, "--phases": self.phases, "--batch": batch, "--sample-time": self.sample_time,
            "--price": self.price,
        }  # fmt: skip
        known = _figures(self.question, self.on, counts) if is_named else None
        if known is None:
            missing = [flag for flag, value in by_hand.items() if value is None]
            if missing:
                raise UsageError(
                    f"missing: {', '.join(missing)}",
                    hint="give them, or take them from a recording: --run latest --on g5.xlarge",
                )
            if self.on is not None:
                raise UsageError("--on needs a job", hint="name one: --run latest --on g5.xlarge")
        asked = question_of(
            samples=self.samples,
            phases=int(_first(self.phases, None if known is None else known.phases)),
            noise=_noise(self.noise),
            noise_growth=self.noise_growth,
            container=_container(self.container, self.coordinator, known),
            batch=_first(batch, None if known is None else known.batch),
            batches=_numbers("--batches", self.batches),
            workers=counts,
            step_s=self.step_time,
            sample_s=self.sample_time,
            sync_per_doubling_s=self.sync_time,
            price_usd_per_h=_first(self.price, None if known is None else known.price_usd_per_h),
            quantum_s=self.quantum,
            startup_s=known.startup_s if known is not None and not self.startup else self.startup,
            resize_s=self.resize,
            deadline_s=None if self.deadline is None else self.deadline * HOUR_S,
            budget_usd=self.budget,
            spread_fraction=self.spread,
            known=known,
        )
        with waiting("planning", is_quiet=self.as_json):
            answer = elastic_answer(asked)
        show(answer.to_record(), answer.charts, self.plot, self.as_json, "elastic")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Predict what failures, checkpoints and restarts add to a job.

    The answer is given by number of devices, with and without a second network path.
    """

    # fmt: off
    hours: float = option("Useful computing time of the job.", HOURS, ...)
    devices: int = option("Devices that the job runs on.", default=..., min=1)
    checkpoint: float | None = option("How long training stands still while a checkpoint is saved "
        "(default: no checkpoints).", SECONDS)
    checkpoint_size: float | None = option("Size of a checkpoint, e.g. 200GB, in place of "
        "--checkpoint.", BYTES)
    write_rate: float = option("Rate at which one node writes checkpoints, with "
        "--checkpoint-size.", RATE, "131MB/s")
    disk: float | None = option("Disk space for checkpoints; two of them must fit.", BYTES)
    nodes: int = option("Nodes that write a checkpoint side by side.", default=1, min=1)
    restart: float = option("Time from having a node to the first step.", SECONDS, "5m")
    detection: float = option("Time from a failure to having a node again.", SECONDS, "1m")
    checkpoint_every: float | None = option("Useful computing time between two checkpoints "
        "(default: the best interval).", SECONDS)
    rate: float | None = option("Failures per device and hour (default: as published for "
        "Llama 3).")
    layout: str = option("Layout, which sets the published slowdown after losing a network path: "
        "data-parallel, pipeline or pipeline-tensor.", default="data-parallel")
    slowdown: float | None = option("Mean added step time while a path is down, e.g. 2% (default: "
        "the layout's).", SHARE)
    repair: float = option("How long a network path stays down.", HOURS, "20h")
    network_share: float | None = option("Share of the failures that a second path hides "
        "(default: Llama 3's, 10%).", SHARE)
    plot: str | None = plot_option()
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.planners.goodput import EDGE_P95, EdgeFaultTolerance, save_s
        from advisor.simulate import FailureQuestion, failures_answer

        save = self.checkpoint
        if self.checkpoint_size is not None:
            save = float(
                save_s(self.checkpoint_size, nodes=self.nodes, bytes_per_s=self.write_rate, disk_bytes=self.disk)[0]
            )
        known = next((name for name in EDGE_P95 if name == self.layout), None)
        if known is None:
            raise UsageError(f"no layout named {self.layout!r}", hint=f"one of {', '.join(EDGE_P95)}")
        edge = EdgeFaultTolerance.of_layout(known, repair_h=self.repair)
        if self.slowdown is not None:
            edge = replace(edge, slowdown_fraction=self.slowdown)
        if self.network_share is not None:
            edge = replace(edge, network_fraction=self.network_share)
        answer = failures_answer(
            FailureQuestion(
                work_s=self.hours * HOUR_S,
                devices=self.devices,
                checkpoint_s=save,
                restart_s=self.restart,
                detection_s=self.detection,
                checkpoint_interval_s=self.checkpoint_every,
                failures_per_device_h=self.rate,
                edge=edge,
            )
        )
        show(answer.to_record(), answer.charts, self.plot, self.as_json, "failures")


# ``advisor simulate spot``: replay a job on spot nodes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Replay a job on spot nodes under each strategy, and on demand."""

    # fmt: off
    hours: float = option("Useful computing time on all nodes.", HOURS, ...)
    trace: Path | None = option("Recorded availability of a zone (default: packaged traces).")
    zone: str | None = option("Trace to use where the file has several: its name or a part of it.")
    time_unit: str = option("Unit of numeric times: s, m, h or d.", default="s")
    nodes: int = option("Nodes that the job asks for.", default=1, min=1)
    least_nodes: int | None = option("Fewest nodes that can still run the job (default: all).",
        min=1)
    restart: float = option("Time from having nodes to the first step.", SECONDS, "5m")
    checkpoint_every: float = option("Useful computing time between two checkpoints.",
        SECONDS, "30m")
    checkpoint: float = option("How long training stands still while a checkpoint is saved.",
        SECONDS, "0s")
    no_checkpoints: bool = option("The job saves no checkpoints.", default=False)
    warning: float | None = option("Notice that the provider gives before a preemption, if the "
        "job then saves a checkpoint.", SECONDS)
    deadline: float | None = deadline_option()
    price: float = option("On-demand price of one node, in USD per hour.", USD, 1.0)
    spot_price: float = option("Spot price of one node, in USD per hour.", USD, 0.3)
    interruptions: str | None = option("Without --trace: share of such machines that is "
        f"interrupted in a month: {', '.join(BAND_FRACTIONS)} (default: >20%).")
    plot: str | None = plot_option()
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.planners.spot import SpotJob
        from advisor.simulate import SpotQuestion, packaged_answer, spot_answer

        question = SpotQuestion(
            job=SpotJob(
                work_s=self.hours * HOUR_S,
                restart_s=self.restart,
                checkpoint_interval_s=math.inf if self.no_checkpoints else self.checkpoint_every,
                checkpoint_s=self.checkpoint,
                warning_s=self.warning,
            ),
            nodes=self.nodes,
            least_nodes=self.nodes if self.least_nodes is None else min(self.least_nodes, self.nodes),
            deadline_s=None if self.deadline is None else self.deadline * HOUR_S,
            price_usd_per_h=self.price,
            spot_price_usd_per_h=self.spot_price,
            hazard=1.0 if self.interruptions is None else hazard_of_band(self.interruptions),
        )
        if self.interruptions is not None and self.trace is not None:
            raise UsageError("--interruptions does not go with --trace", hint="leave one of them out")
        with waiting("replaying the job", is_quiet=self.as_json):
            if self.trace is None:
                answer = packaged_answer(question)
            else:
                unit_s = parse_seconds(f"1{self.time_unit}", option="--time-unit")
                chosen, others = _chosen(self.trace, self.zone, unit_s)
                answer = spot_answer(chosen, question, others)
        show(answer.to_record(), answer.charts, self.plot, self.as_json, "spot")


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
