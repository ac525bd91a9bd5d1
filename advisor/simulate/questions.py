"""Questions of ``advisor simulate``: one record a verb, whose fields are its options.

Nothing heavy is imported here: what answers a question is the module of its name (``answer``).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    Drawn,
    Printed,
    Question,
    argument,
    asked,
    option,
)

if TYPE_CHECKING:
    from advisor.planners.spot import SpotJob
    from advisor.show import Chart

HOUR_S: Final = 3600.0
# Options that several questions have.
_RUNS: Final[dict[str, Any]] = {
    "help": "Recorded runs, by name, part of it, or folder; name a run twice for two jobs.",
    "default": ..., "metavar": "RUN...",
}  # fmt: skip
_DEADLINE: Final[dict[str, Any]] = {
    "help": "Latest end of the job, counted from its submission: 12h, 90m or 2d.", "kind": HOURS,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation answers: its JSON record, and charts of the same numbers."""

    record: Mapping[str, Any]
    charts: Sequence[Chart] = field(repr=False, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSpot(Drawn):
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
    deadline: float | None = option(**_DEADLINE)
    price: float = option("On-demand price of one node, in USD per hour.", USD, 1.0)
    spot_price: float = option("Spot price of one node, in USD per hour.", USD, 0.3)
    interruptions: str | None = option("Without --trace: share of such machines that is "
        "interrupted in a month: <5%, 5-10%, 10-15%, 15-20%, >20% (default: >20%).")
    # fmt: on

    @property
    def job(self) -> SpotJob:
        """The job; its checkpoint interval is inf where it saves nothing."""
        from advisor.planners.spot import SpotJob

        return SpotJob(
            work_s=self.hours * HOUR_S, restart_s=self.restart, checkpoint_s=self.checkpoint,
            checkpoint_interval_s=math.inf if self.no_checkpoints else self.checkpoint_every,
            warning_s=self.warning,
        )  # fmt: skip

    @property
    def hazard(self) -> float:
        """Hazard of a removal, relative to the packaged records."""
        from advisor.planners.spot import hazard_of_band

        return 1.0 if self.interruptions is None else hazard_of_band(self.interruptions)

    @property
    def least(self) -> int:
        """Fewest nodes that can still run the job."""
        return self.nodes if self.least_nodes is None else min(self.least_nodes, self.nodes)

    @property
    def deadline_s(self) -> float | None:
        """Latest end, counted from the submission [s]."""
        return None if self.deadline is None else self.deadline * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateQueue(Drawn):
    """Replay a job on a shared cluster's recorded history.

    Shows how long the job waits, when it is done, whether renting pays off, and what the
    cluster's own jobs would meet under every policy.
    """

    # fmt: off
    trace: Path = option("Jobs of the cluster: an export of sacct or kubectl, or a CSV.",
        default=...)
    nodes: int = option("Nodes of the cluster.", default=..., min=1)
    devices_per_node: int = option("Devices of each node.", default=..., min=1)
    devices: int = option("Devices that your job asks for.", default=..., min=1)
    hours: float = option("Computing time of your job on these devices.", HOURS, ...)
    low: float | None = option("Lower bound of the computing time (90 %).", HOURS)
    high: float | None = option("Upper bound of the computing time (90 %).", HOURS)
    policy: str = option("Order in which jobs start: fifo, fit-first, shortest, shortest-gpu, "
        "las, las-2d or gittins.", default="fifo")
    consolidated: bool = option("Give each job one node, or whole nodes.",
        default=False, flags="--consolidated/--no-consolidated")
    insertions: int = option("Random times at which your job is submitted.", default=100, min=1)
    seed: int = option("Seed of these random times.", default=0)
    deadline: float | None = option(**_DEADLINE)
    rent_hours: float | None = option("Completion time on rented machines, start-up included.",
        HOURS)
    rent_cost: float = option("What renting costs, in USD.", USD, 0.0)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateAvailability(Printed):
    """Choose nodes of a shared cluster by their free shares.

    All workers wait for the slowest node. Several ways of choosing, one of them learned from the
    record, are tried on parts of the record that were left out; the one whose jobs were fastest
    names the nodes.
    """

    # fmt: off
    workers: int = option("Workers of your job, one on each node.", default=..., min=1)
    hours: float = option("Computing time of your job on whole nodes.", HOURS, ...)
    trace: Path | None = option("Free share of each node over time: a CSV with the columns time, "
        "node, free_fraction, or counts of several pools (default: twelve virtual clusters of "
        "Helios, May 2020).")
    slot: float = option("Length of the slots of the forecast.", SECONDS, "30m")
    need: float = option("Share of its node that each worker needs; shows how likely all get it.",
        SHARE, "50%")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateElastic(Drawn):
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
    deadline: float | None = option(**_DEADLINE)
    budget: float | None = option("Maximum to spend, in USD.", USD)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFailures(Drawn):
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
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatePeers(Printed):
    """Predict the speed of peers that share a batch (Hivemind).

    Give the rate of each peer alone (`--peer`), or the first minute of the running job
    (`--running`). A link between sites slows every averaging down.
    """

    # fmt: off
    target_batch: float = option("Samples that all peers accumulate between two averagings.",
        COUNT, ...)
    peer: list[str] | None = option("Equal peers: COUNT x RATE @ SITE, e.g. '4x85@us'. RATE is "
        "one's own samples/s, or a recorded run of it alone.")
    running: list[str] | None = option("A recorded run of one peer while all train, in place of "
        "--peer: its first minute is used.")
    nodes: int | None = option("With --running: how many peers train (default: those named).",
        min=1)
    link: list[str] | None = option("Bandwidth between two sites, of one stream as iperf measures "
        "it: 'us,eu=210Mbps'.")
    parameters: float | None = option("Parameters of the model: 198M (default: as recorded).",
        COUNT)
    samples: float | None = option("Samples of the whole job, for its time.", COUNT)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateAggregation(Printed):
    """Share aggregating cores among jobs (Parameter Service).

    Shows how many cores the jobs need together instead of one or more each, how long each waits
    for the others, and what all-reduce would take, which needs no such core.
    """

    # fmt: off
    runs: list[str] = argument(**_RUNS)
    link: float = option("Network of each machine, each way, e.g. 10Gbit/s.", RATE, ...)
    workers: int = option("Machines that each job trains on.", default=4, min=1)
    servers: int = option("Machines whose network the aggregators use.", default=1, min=1)
    loss: float = option("Longest delay of a job, as a share of its step.", SHARE, "5%")
    cap: float = option("Highest load of an aggregating core.", SHARE, "80%")
    core_rate: float | None = option("Memory traffic of one aggregating core (default: as "
        "measured where the job ran).", RATE)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateLimits(Printed):
    """Set limits of CPU and memory on shared nodes (Escra).

    Each job runs again as it was recorded, under fixed limits, the Vertical Pod Autoscaler,
    Autopilot, KRR and Escra's controller. The answer has what is reserved and not used, how often
    a job is throttled or killed, and what it costs.
    """

    # fmt: off
    runs: list[str] = argument(**_RUNS)
    pool: str | None = option("What the jobs share, cores x memory: 8x32GB (default: the sum of "
        "their peaks).", metavar="SIZE")
    core_price: float | None = option("Price of a core for an hour (default: from two types of "
        "the catalogue that differ only in memory).", USD)
    memory_price: float | None = option("Price of a GiB for an hour.", USD)
    # fmt: on


QUESTIONS: Final[Mapping[str, type[Any]]] = {
    "spot": SimulateSpot, "queue": SimulateQueue, "availability": SimulateAvailability,
    "elastic": SimulateElastic, "failures": SimulateFailures, "peers": SimulatePeers,
    "aggregation": SimulateAggregation, "limits": SimulateLimits,
}  # fmt: skip


def simulated(verb: str, asked: Any) -> Simulated:
    """Return what the module of a verb answers to its question."""
    found: Simulated = importlib.import_module(f"advisor.simulate.{verb}").answer(asked)
    return found
