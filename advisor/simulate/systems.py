"""Nodes of a shared cluster for a job's workers, and how long the job takes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.jobs import Job
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.goodput import (
    LLAMA3,
    EdgeFaultTolerance,
    ExpectedCompletion,
    expected_completion,
)
from advisor.planners.systems import (
    ENOUGH,
    LEARNED,
    WAYS,
    AggregatedJob,
    Arrival,
    Exchange,
    Fold,
    Packing,
    Placement,
    aggregation_s,
    arrivals,
    chosen_of,
    enough,
    exchange,
    folds_of,
    groups,
    judged_ways,
    learn,
    learned_policy,
    most_saved_fraction,
    pack,
    placement,
)
from advisor.records import NodeShares
from advisor.show import Chart, Series

_GROUPS: Final = 3
_DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJobs:
    """Times of jobs like this one on days of the record that were left out."""

    mean_h: float
    median_h: float
    p90_h: float
    jobs: int

    @classmethod
    def of(cls, slots: NDArray[np.float64], slot_h: float) -> PastJobs:
        """Return the statistics of jobs that took so many slots."""
        hours = slots * slot_h
        return cls(
            mean_h=float(hours.mean()), median_h=float(np.median(hours)),
            p90_h=float(np.quantile(hours, 0.9)), jobs=len(hours),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnswer:
    """Nodes for the workers of a job."""

    record: NodeShares
    workers: int
    work_h: float
    chosen: str  # the way whose nodes are recommended
    # what each way would choose now; slots are those of the record
    placements: Mapping[str, Placement]
    # by way, and of choices at random; empty where the record is too short
    past: Mapping[str, PastJobs]
    need: float  # of a node, what a worker needs [fraction]
    # of past jobs on days left out, placed the chosen way: in which share of their slots every
    # worker had that, as was said and as it was; None where the record is too short
    enough_said: float | None
    enough_was: float | None
    # groups of nodes of like forecasts, the freest first
    like_nodes: tuple[tuple[tuple[str, ...], float, float], ...]

    @property
    def slot_h(self) -> float:
        """Length of a slot [h]."""
        return self.record.slot_s / HOUR_S

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "schema_version": 1,
            "trace": self.record.source,
            "days": self.record.days,
            "slot_s": self.record.slot_s,
            "nodes": list(self.record.names),
            "job": {"workers": self.workers, "work_h": self.work_h},
            "chosen": self.chosen,
            "need_fraction": self.need,
            "enough_of_past_jobs": None
            if self.enough_said is None
            else {"said": self.enough_said, "was": self.enough_was},
            "ways": [self._way(name, one) for name, one in self.placements.items()],
            "past": {name: asdict(one) for name, one in self.past.items()},
            "groups": [
                {"nodes": list(names), "free_mean": mean, "free_sd": sd}
                for names, mean, sd in self.like_nodes
            ],
        }

    def _way(self, name: str, one: Placement) -> dict[str, Any]:
        past = self.past.get(name)
        return {
            "name": name,
            "nodes": [self.record.names[k] for k in one.nodes],
            "expected_h": one.slots * self.slot_h,
            "p95_h": one.p95_slots * self.slot_h,
            "straggler_loss_fraction": one.straggler_loss,
            "enough_probability": one.enough_probability,
            "past": None if past is None else asdict(past),
        }


def nodes_answer(
    record: NodeShares, *, workers: int, work_h: float, need: float = ENOUGH
) -> NodesAnswer:
    """Choose nodes for a job that arrives at the end of a record.

    By the way whose jobs took least on each part of the record by what the other parts told;
    the other ways stand beside it, and so does the policy that the record teaches. ``need``: of a
    node, what a worker needs [fraction].

    Raises PlanningError if the record is shorter than two days, or there are fewer nodes than
    workers.
    """
    day_slots = max(1, round(_DAY_S / record.slot_s))
    work = work_h * HOUR_S / record.slot_s
    history = learn(record.shares, day_slots=day_slots)
    one = Arrival.at(
        history, record.shares[-1], slot=len(record.shares) - 1, workers=workers, work=work
    )
    ways = dict(WAYS)
    try:
        folds = folds_of(record.shares, day_slots=day_slots, workers=workers, work=work)
        past = judged_ways(folds, workers=workers, work=work)
        ways[LEARNED] = learned_policy(history, workers=workers, work=work)
    except PlanningError:  # the record is too short
        folds, past = [], {}
    chosen = chosen_of(past)
    said, was = _enough(folds, workers, work, need, chosen) if folds else _NONE
    mean, sd = one.possible.mean(axis=(0, 1)), one.possible.std(axis=(0, 1))
    alike = sorted(groups(one.possible, _GROUPS), key=lambda own: -float(mean[list(own)].mean()))
    return NodesAnswer(
        record=record, workers=workers, work_h=work_h, chosen=chosen, need=need,
        enough_said=said, enough_was=was,
        placements={
            name: placement(one.possible, way(one), work, need) for name, way in ways.items()
        },
        past={
            name: PastJobs.of(slots, record.slot_s / HOUR_S)
            for name, slots in past.items()
        },
        like_nodes=tuple(
            (tuple(record.names[k] for k in own), float(mean[list(own)].mean()),
             float(sd[list(own)].mean()))
            for own in alike
        ),
    )  # fmt: skip


_NONE: Final = (None, None)


def _enough(
    folds: Sequence[Fold], workers: int, work: float, need: float, chosen: str
) -> tuple[float, float]:
    """Return in which share of past jobs' slots all had what they need: as said, and as it was."""
    rows = [
        (enough(one.possible, nodes, work, need), enough(path[None], nodes, work, need))
        for fold in folds
        for one, path in arrivals(fold.history, fold.later, workers=workers, work=work, most=24)
        for nodes in (fold.ways[chosen](one),)
    ]
    said, was = np.mean(rows, axis=0).tolist()
    return said, was


# Several recorded jobs whose gradients are added up on shared cores, against all-reduce.
#
# The one function behind ``advisor simulate aggregation``.


SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAggregation:
    """Jobs on shared aggregators."""

    jobs: tuple[AggregatedJob, ...]
    packing: Packing
    exchanges: tuple[Exchange, ...]  # what a step of each exchanges, in three ways
    workers: int  # machines of each job
    # link_bytes_per_s, core_bytes_per_s: of a machine's network, and of a core's memory [bytes/s]
    link_bytes_per_s: float
    core_bytes_per_s: float
    # of the cores, if all jobs asked as much as the mean and waited for nobody [fraction]
    most_saved_fraction: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        packing = self.packing
        rows = zip(self.jobs, packing.delay_s, packing.loss, self.exchanges, strict=True)
        return {
            "schema_version": SCHEMA_VERSION,
            "workers": self.workers,
            "link_bytes_per_s": self.link_bytes_per_s,
            "core_bytes_per_s": self.core_bytes_per_s,
            "cores": packing.cores,
            "dedicated_cores": packing.dedicated_cores,
            "saved_fraction": packing.saved_fraction,
            "most_saved_fraction": self.most_saved_fraction,
            "jobs": [
                {
                    "name": job.name,
                    "step_s": job.step_s,
                    "demand_cores": job.demand,
                    "scatter_fraction": float(np.std(job.scatter)),
                    "delay_s": delay_s,
                    "loss_fraction": loss,
                    **asdict(moved),
                }
                for job, delay_s, loss, moved in rows
            ],
            "aggregators": [list(place) for place in packing.loads],
        }


def shared_aggregation(
    jobs: Sequence[Job], *, workers: int, link_bytes_per_s: float, cap: float, most_loss: float,
    core_bytes_per_s: float | None = None, servers: int = 1,
    steps_s: Sequence[Sequence[float]] = (),
) -> SharedAggregation:  # fmt: skip
    """Return what the jobs' aggregation takes on shared cores.

    Raises UsageError if a job's step or gradients are not known, or a core was not measured.
    Raises PlanningError if an amount makes no sense.

    Parameters
    ----------
    jobs : sequence of Job
        Recorded; each would train on ``workers`` machines like the one it ran on.
    workers, servers : int
        Machines of each job, and machines whose network the aggregators use.
    link_bytes_per_s : float
        Of each machine, each way. [bytes/s]
    cap, most_loss : float
        Most load of a core, and most delay of a job over its step. [fraction]
    core_bytes_per_s : float, optional
        Traffic of one aggregating core; as measured of the machine that the job ran on by
        default. [bytes/s]
    steps_s : sequence of sequence of float
        Recorded steps of each job, which tell how they scatter; none scatters by default. [s]
    """
    rates = [core_bytes_per_s or _core_bytes_per_s(job) for job in jobs]
    tenants = tuple(
        _tenant(job, workers, rate, seen)
        for job, rate, seen in zip(jobs, rates, steps_s or [()] * len(jobs), strict=True)
    )
    packing = pack(tenants, cap=cap, most_loss=most_loss)
    exchanges = tuple(
        exchange(
            tenant, delay_s=delay_s, gradient_bytes=_gradient_bytes(job), workers=workers,
            link_bytes_per_s=link_bytes_per_s, servers=servers,
        )
        for job, tenant, delay_s in zip(jobs, tenants, packing.delay_s, strict=True)
    )  # fmt: skip
    demand = sum(one.demand for one in tenants) / len(tenants)
    return SharedAggregation(
        jobs=tenants,
        packing=packing,
        exchanges=exchanges,
        workers=workers,
        link_bytes_per_s=link_bytes_per_s,
        core_bytes_per_s=min(rates),
        most_saved_fraction=min(most_saved_fraction(demand, cap), 1.0 - 1.0 / len(tenants)),
    )


def _tenant(
    job: Job, workers: int, core_bytes_per_s: float, steps_s: Sequence[float]
) -> AggregatedJob:
    if job.measured is None:
        raise UsageError(f"{job.name} was not recorded", hint="name recorded runs")
    sizes = _tensor_bytes(job)
    return AggregatedJob(
        name=job.name,
        step_s=job.measured.step_s,
        work_s=tuple(aggregation_s(size, workers, core_bytes_per_s) for size in sizes),
        scatter=_scatter(steps_s),
    )


def _scatter(steps_s: Sequence[float]) -> tuple[float, ...]:
    """Return the later half of recorded steps over their mean, so that warm-up is not in it."""
    settled = np.array([one for one in steps_s[len(steps_s) // 2 :] if one > 0])
    return tuple((settled / settled.mean()).tolist()) if len(settled) > 1 else (1.0,)


def _gradient_bytes(job: Job) -> float:
    if job.work is None or not job.work.gradient_bytes:
        raise UsageError(
            f"{job.name}: no gradients were seen", hint="name runs that train with an optimizer"
        )
    return job.work.gradient_bytes


def _tensor_bytes(job: Job) -> list[float]:
    """Return the gradients layer by layer, in proportion to their parameters [bytes]."""
    whole = _gradient_bytes(job)
    assert job.work is not None
    parts = [float(layer.parameters) for layer in job.work.layers if layer.parameters > 0]
    return [whole * part / sum(parts) for part in parts] or [whole]


def _core_bytes_per_s(job: Job) -> float:
    benchmark = None if job.measured is None else job.measured.host.benchmark
    if benchmark is None:
        raise UsageError(
            f"what a core of {job.name}'s machine moves was not measured",
            hint="give it: --core-rate 10GB/s; or run `advisor doctor` before recording",
        )
    return benchmark.copy_one_core_bytes_per_s


# Failures, saves and restarts of a job, at its own scale and at others.


SCALES: Final = (1, 8, 64, 512, 4096, 16384)
# Beyond it nothing else would be seen.
_MOST_DRAWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureQuestion:
    """A job, its saves and restarts; see ``planners.goodput.expected_completion``.

    ``checkpoint_s`` is None for a job that saves nothing, ``checkpoint_interval_s`` for the best
    one, ``failures_per_device_h`` for Llama 3's rate. ``edge`` is the second network path that the
    other column has.
    """

    work_s: float
    devices: int
    checkpoint_s: float | None
    restart_s: float = 300.0
    detection_s: float = 60.0
    checkpoint_interval_s: float | None = None
    failures_per_device_h: float | None = None
    edge: EdgeFaultTolerance = field(default_factory=EdgeFaultTolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureAnswer:
    """One row a scale; the asked one is among them.

    ``plain`` and ``second_path`` are without and with fault tolerance at the network's edge.
    """

    question: FailureQuestion
    devices: tuple[int, ...]
    plain: ExpectedCompletion
    second_path: ExpectedCompletion
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record; what never ends is null."""
        asked = self.question
        rate = asked.failures_per_device_h
        return {
            "schema_version": 1,
            "job": {"work_h": asked.work_s / HOUR_S, "devices": asked.devices,
                    "checkpoint_s": asked.checkpoint_s or 0.0,
                    "saves_checkpoints": asked.checkpoint_s is not None,
                    "restart_s": asked.restart_s, "detection_s": asked.detection_s},
            "failures_per_device_h": LLAMA3.per_device_h if rate is None else rate,
            "source": LLAMA3.source if rate is None else "given",
            "edge": asdict(asked.edge),
            "scales": [
                {"devices": count, "is_asked": count == asked.devices,
                 "plain": _row(self.plain, k), "second_path": _row(self.second_path, k)}
                for k, count in enumerate(self.devices)
            ],
        }  # fmt: skip


def failures_answer(question: FailureQuestion) -> FailureAnswer:
    """Expect the job's time at its own number of devices and at powers of eight.

    Raises PlanningError if a time or a rate makes no sense.
    """
    devices = tuple(sorted({*SCALES, question.devices}))
    rate = question.failures_per_device_h

    def expected(edge: EdgeFaultTolerance | None) -> ExpectedCompletion:
        return expected_completion(
            np.full(len(devices), question.work_s),
            devices=devices,
            checkpoint_s=question.checkpoint_s,
            restart_s=question.restart_s,
            detection_s=question.detection_s,
            failures_per_device_h=LLAMA3.per_device_h if rate is None else rate,
            checkpoint_interval_s=question.checkpoint_interval_s,
            edge=edge,
        )

    plain, second = expected(None), expected(question.edge)
    return FailureAnswer(
        question=question,
        devices=devices,
        plain=plain,
        second_path=second,
        charts=_charts(question, devices, plain, second),
    )


def _row(table: ExpectedCompletion, k: int) -> dict[str, Any]:
    ends = bool(np.isfinite(table.expected_s[k]))
    return {
        "expected_h": float(table.expected_s[k]) / HOUR_S if ends else None,
        "overhead_fraction": float(table.overhead_fraction[k]) if ends else None,
        "checkpoint_interval_s": float(table.checkpoint_interval_s[k]),
        "checkpoints": float(table.checkpoints[k]),
        "expected_failures": float(table.expected_failures[k]) if ends else None,
        "is_negligible": bool(table.is_negligible[k]),
    }


def _charts(
    question: FailureQuestion,
    devices: Sequence[int],
    plain: ExpectedCompletion,
    second: ExpectedCompletion,
) -> list[Chart]:
    ways = (("one network path", plain), ("a second path at the edge", second))
    curves = []
    for name, table in ways:
        ends = table.overhead_fraction < _MOST_DRAWN  # False where it never ends
        curves.append(
            Series(
                name=name,
                x=np.asarray(devices, float)[ends].tolist(),
                y=(100 * table.overhead_fraction[ends]).tolist(),
            )
        )
    curves.append(Series(name="asked", x=[float(question.devices)], shape="vertical"))
    return [
        Chart(
            title="What saves and failures add",
            x_label="devices (logarithmic)",
            y_label="% of the work",
            series=curves,
            is_x_logarithmic=True,
            x_range=(0.9, 1.1 * max(devices)),
            notes=[f"a curve ends where {_MOST_DRAWN} times the work is added"]
            if any(len(one.x) < len(devices) for one in curves[:-1])
            else [],
        )
    ]
