"""``advisor simulate spot|elastic|queue|...``: replay a job, for the curious.

Here are the verbs in which several jobs, nodes or sites share something; those of one job on
machines that come and go are in ``simulate_jobs``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advisor.ask import COUNT, HOURS, RATE, SECONDS, SHARE, USD, Question, as_json_option, option
from advisor.cli.options import add, plot_option
from advisor.cli.simulate_jobs import Elastic, Failures, Spot
from advisor.cli.simulate_options import deadline_option, runs_argument, show
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.quantities import parse_cores_and_memory

if TYPE_CHECKING:
    from advisor.answer import Recommendation
    from advisor.estimate import PeerGroup, Predictor
    from advisor.jobs import Job
    from advisor.planners.systems import FirstMinutes, Peers
    from advisor.simulate import ClusterComparison


# ``advisor simulate aggregation``: put the gradients of several jobs on shared cores.


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """Share aggregating cores among jobs (Parameter Service).

    Shows how many cores the jobs need together instead of one or more each, how long each waits
    for the others, and what all-reduce would take, which needs no such core.
    """

    # fmt: off
    runs: list[str] = runs_argument()
    link: float = option("Network of each machine, each way, e.g. 10Gbit/s.", RATE, ...)
    workers: int = option("Machines that each job trains on.", default=4, min=1)
    servers: int = option("Machines whose network the aggregators use.", default=1, min=1)
    loss: float = option("Longest delay of a job, as a share of its step.", SHARE, "5%")
    cap: float = option("Highest load of an aggregating core.", SHARE, "80%")
    core_rate: float | None = option("Memory traffic of one aggregating core (default: as "
        "measured where the job ran).", RATE)
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor import api
        from advisor.ask import JobSpec
        from advisor.simulate import shared_aggregation

        jobs = [api.job_of(JobSpec(run=run)) for run in self.runs]
        found = shared_aggregation(
            jobs, workers=self.workers, link_bytes_per_s=self.link, cap=self.cap,
            most_loss=self.loss, core_bytes_per_s=self.core_rate, servers=self.servers,
            steps_s=[_recorded_steps_s(run) for run in self.runs],
        )  # fmt: skip
        show(found.to_record(), (), None, self.as_json, "aggregation")


def _recorded_steps_s(run: str) -> tuple[float, ...]:
    """Return the steps of a recorded run; none of what was not recorded."""
    from advisor.collectors import RecordingError
    from advisor.collectors.derive import find_run, read_recording

    try:
        ranks = read_recording(find_run(run)).ranks
    except (RecordingError, OSError):
        return ()
    return ranks[0].step_s if ranks else ()


# ``advisor simulate limits``: recorded jobs on shared nodes under every way of setting limits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Set limits of CPU and memory on shared nodes (Escra).

    Each job runs again as it was recorded, under fixed limits, the Vertical Pod Autoscaler,
    Autopilot, KRR and Escra's controller. The answer has what is reserved and not used, how often
    a job is throttled or killed, and what it costs.
    """

    # fmt: off
    runs: list[str] = runs_argument()
    pool: str | None = option("What the jobs share, cores x memory: 8x32GB (default: the sum of "
        "their peaks).", metavar="SIZE")
    core_price: float | None = option("Price of a core for an hour (default: from two types of "
        "the catalogue that differ only in memory).", USD)
    memory_price: float | None = option("Price of a GiB for an hour.", USD)
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.collectors.derive import find_run, read_recording
        from advisor.estimate import Predictor
        from advisor.planners.rightsizing import ResourceLimits
        from advisor.simulate import ResourcePrices, limits_answer, resource_prices

        if (self.core_price is None) != (self.memory_price is None):
            raise UsageError(
                "--core-price and --memory-price go together", hint="give both, or neither"
            )
        size = None
        if self.pool is not None:
            cores, memory_bytes = parse_cores_and_memory(self.pool, option="--pool")
            size = ResourceLimits(cores=cores, memory_bytes=memory_bytes)
        with waiting("replaying the jobs", is_quiet=self.as_json):
            recordings = [read_recording(find_run(run)) for run in self.runs]
            if self.core_price is None or self.memory_price is None:
                prices = resource_prices(Predictor())
            else:
                prices = ResourcePrices(
                    usd_per_core_h=self.core_price, usd_per_gib_h=self.memory_price, source="given"
                )
            answer = limits_answer(recordings, pool=size, prices=prices)
        show(answer.to_record(), (), None, self.as_json, "limits")


# ``advisor simulate availability``: choose nodes of a shared cluster for a job's workers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
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
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.records import published_node_shares, read_node_shares
        from advisor.simulate import nodes_answer

        with waiting("playing jobs on the record", is_quiet=self.as_json):
            record = (
                published_node_shares()
                if self.trace is None
                else read_node_shares(self.trace, slot_s=self.slot)
            )
            answer = nodes_answer(record, workers=self.workers, work_h=self.hours, need=self.need)
        show(answer.to_record(), (), None, self.as_json, "availability")


# ``advisor simulate peers``: predict how fast peers train that average now and then.


_PEER = re.compile(r"(?:(?P<count>\d{1,6})\s*x\s*)?(?P<what>[^@]+?)\s*(?:@\s*(?P<site>[\w.-]+))?$")
_LINK = re.compile(r"(?P<one>[\w.-]+)\s*,\s*(?P<other>[\w.-]+)\s*=\s*(?P<rate>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersAsked:
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
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.estimate import peers_answer, peers_of

        if bool(self.peer) == bool(self.running):
            raise UsageError(
                "say what is known of the peers, in one way",
                hint="each one alone: --peer 4x85@us; or the running job: --running RUN",
            )
        links = _links(self.link or [])
        asked: Peers | FirstMinutes
        if self.running:
            asked = _running(self.running, self.nodes, self.target_batch, self.parameters, links)
        else:
            found = [_peer(text) for text in self.peer or []]
            jobs = [job for _, job in found if job is not None]
            asked = peers_of(
                [group for group, _ in found], target_batch=self.target_batch,
                parameters=_parameters(self.parameters, jobs), links=links,
            )  # fmt: skip
        show(
            peers_answer(asked, samples=self.samples).to_record(), (), None, self.as_json, "peers"
        )


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


# ``advisor simulate queue``: insert a job into a shared cluster's past.


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
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
    deadline: float | None = deadline_option()
    rent_hours: float | None = option("Completion time on rented machines, start-up included.",
        HOURS)
    rent_cost: float = option("What renting costs, in USD.", USD, 0.0)
    plot: str | None = plot_option()
    as_json: bool = as_json_option()
    # fmt: on

    def __call__(self) -> None:
        from advisor.answer import Estimate
        from advisor.planners.queueing import POLICIES, SharedCluster
        from advisor.records import read_cluster_trace
        from advisor.simulate import OwnCluster, queue_answer

        known = next((p for p in POLICIES if p == self.policy), None)
        if known is None:
            raise UsageError(
                f"no policy named {self.policy!r}", hint=f"one of {', '.join(POLICIES)}"
            )
        if not (0 < (self.low or self.hours) <= self.hours <= (self.high or self.hours)):
            raise UsageError(
                f"not 0 < low <= hours <= high: {self.low or self.hours}, {self.hours}, {self.high or self.hours}",
                hint="leave the bounds out where the time is certain",
            )
        own = OwnCluster(
            trace=read_cluster_trace(self.trace),
            cluster=SharedCluster(nodes=self.nodes, devices_per_node=self.devices_per_node),
            policy=known,
            placement="consolidated" if self.consolidated else "count",
            insertions=self.insertions,
            seed=self.seed,
        )
        rented = None
        if self.rent_hours is not None:
            rented = Estimate(value=self.rent_hours, low=self.rent_hours, high=self.rent_hours)
        with waiting("replaying the cluster's jobs", is_quiet=self.as_json):
            answer = queue_answer(
                own,
                devices=self.devices,
                duration_h=Estimate(
                    value=self.hours, low=self.low or self.hours, high=self.high or self.hours
                ),
                deadline_h=self.deadline,
                rent_completion_h=rented,
                rent_cost_usd=self.rent_cost,
                with_policies=True,
            )
        show(answer.to_record(), answer.charts, self.plot, self.as_json, "queue")


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "over peers at several sites, with aggregation that jobs share, or under limits.",
)
add(app, "spot", Spot)
add(app, "queue", Queue)
add(app, "availability", Availability)
add(app, "elastic", Elastic)
add(app, "failures", Failures)
add(app, "peers", PeersAsked)
add(app, "aggregation", Aggregation)
add(app, "limits", Limits)


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
