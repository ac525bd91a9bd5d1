"""Workers that join and leave beside a fixed number, as text, record and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import ContainerOffer
from advisor.errors import UsageError
from advisor.estimate import Predictor, TimeColumns, constants, on_demand
from advisor.jobs import Job
from advisor.planners.core import GIB, HOUR_S, PlanningError
from advisor.planners.links import straggling
from advisor.planners.systems import (
    Billing,
    ElasticPlan,
    NoiseScale,
    Phase,
    Schedule,
    WorkerScaling,
    elastic_plan,
)
from advisor.show import Chart, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticQuestion:
    """A job in phases, how it scales, what a worker costs, and the limit."""

    phases: Sequence[Phase]
    scaling: WorkerScaling
    billing: Billing
    batch: float
    batches: Sequence[float] = ()
    resize_s: float = 60.0
    deadline_s: float | None = None
    budget_usd: float | None = None
    source: str = ""
    noise_from: str = ""
    recorded_noise: NoiseScale | None = None
    # the same job on machines rented whole, where ``billing`` is of containers
    machines: Billing | None = None
    containers: str = ""  # offer, size, day and source of their price, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticAnswer:
    """The plan and its charts."""

    question: ElasticQuestion
    plan: ElasticPlan
    charts: Sequence[Chart] = field(repr=False, default=())
    on_machines: ElasticPlan | None = None  # where the plan is of containers

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        plan, recorded = self.plan, self.question.recorded_noise
        return {
            "schema_version": 1,
            "source": self.question.source or "given",
            "batch": self.question.batch,
            "phases": len(self.question.phases),
            "samples_per_phase": self.question.phases[0].samples,
            "noise_scale_samples": [phase.noise_batch for phase in self.question.phases],
            "noise_scale_source": self.question.noise_from or "unknown",
            "noise_scale_recorded": None if recorded is None else asdict(recorded),
            "price_usd_per_h": self.question.billing.price_usd_per_h,
            "scaling": asdict(self.question.scaling),
            "step_s": self.question.scaling.steps_s(np.array([self.question.batch]))[0].tolist(),
            "deadline_h": _hours(self.question.deadline_s),
            "budget_usd": self.question.budget_usd,
            "fixed": None if plan.fixed is None else _schedule(plan.fixed),
            "elastic": _schedule(plan.elastic),
            "constant": None if plan.constant is None else _schedule(plan.constant),
            "saving_fraction": plan.saving_fraction,
            "batch_saving_fraction": plan.batch_saving_fraction,
            "containers": self.question.containers,
            "on_machines": None
            if self.on_machines is None
            else {
                "price_usd_per_h": _price(self.question.machines),
                "fixed": None
                if self.on_machines.fixed is None
                else _schedule(self.on_machines.fixed),
                "elastic": _schedule(self.on_machines.elastic),
            },
            "front": [{"time_h": s.time_s / HOUR_S, "cost_usd": s.cost_usd} for s in plan.front],
        }


def question_of(
    *,
    samples: float | None,
    phases: int | None,
    noise: Sequence[float] | None,
    batch: float,
    batches: Sequence[float],
    workers: Sequence[int],
    step_s: float,
    sample_s: float | None,
    sync_per_doubling_s: float,
    price_usd_per_h: float,
    quantum_s: float,
    startup_s: float,
    resize_s: float,
    deadline_s: float | None,
    budget_usd: float | None,
    spread_fraction: float | None = None,
    known: JobFigures | None = None,
    noise_growth: float = 1.0,
    container: WorkerContainer | None = None,
) -> ElasticQuestion:
    """Return equal phases whose noise scale grows geometrically between the points known of it.

    ``samples``: of a phase at a very small batch; by default the whole job's at its own batch,
    divided among the phases [samples]; ``phases``: those of the job by default; where it has one
    and its noise grows, as many as there are doublings of it, and one; ``sample_s``: the
    recording's steps on each number of workers by default; otherwise communication grows by
    ``sync_per_doubling_s`` with each doubling of them [s]; ``noise``: at as many points of the
    training, from its first phase to its last; that of the recorded gradients by default, growing
    to ``noise_growth`` times it; ``container``: what workers run in, in place of whole machines;
    ``spread_fraction``: of the workers' compute, over its mean; by default that of the recorded
    ranks, or of the clusters that the constants were fitted to.
    """
    measured = None if known is None or noise is not None else known.noise
    points = noise if measured is None else (measured.samples, measured.samples * noise_growth)
    if phases is None:
        assert known is not None
        phases = max(known.phases, _doublings(points) + 1 if known.phases == 1 else 1)
    scales = [None] * phases if points is None else over_phases(points, phases)
    counts = sorted(set(workers))
    if samples is None:
        assert known is not None
        each = known.samples / phases
        needed = [each / (1.0 + known.batch / one if one else 1.0) for one in scales]
    else:
        needed = [samples] * phases
    if known is not None and sample_s is None:
        scaling = known.scaling
        if spread_fraction is not None:
            scaling = replace(scaling, spread_fraction=spread_fraction)
    else:
        assert sample_s is not None
        usual = constants().scaling.straggler_sd_fraction
        scaling = WorkerScaling(
            workers=tuple(counts),
            step_s=step_s,
            sample_s=sample_s,
            sync_s=tuple(sync_per_doubling_s * float(np.log2(max(n, 1))) for n in counts),
            spread_fraction=usual if spread_fraction is None else spread_fraction,
        )
    rented = Billing(price_usd_per_h=price_usd_per_h, quantum_s=quantum_s, startup_s=startup_s)
    return ElasticQuestion(
        phases=[
            Phase(samples=one, noise_batch=scale)
            for one, scale in zip(needed, scales, strict=True)
        ],
        scaling=scaling,
        billing=rented if container is None else container.billing(startup_s),
        machines=None if container is None else rented,
        containers="" if container is None else container.words,
        batch=batch,
        batches=batches,
        resize_s=resize_s,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        source="" if known is None else known.source,
        noise_from="given" if noise is not None else "" if measured is None else "recorded",
        recorded_noise=measured,
    )


def _doublings(points: Sequence[float] | None) -> int:
    """Return how often what is known at some points doubles from the least to the most."""
    return 0 if points is None else math.ceil(math.log2(max(points) / min(points)))


def over_phases(points: Sequence[float], phases: int) -> list[float]:
    """Return what is known at some points of a training for each phase, geometrically between.

    >>> [round(one) for one in over_phases((100, 1000, 10000), 5)]
    [100, 316, 1000, 3162, 10000]
    """
    places = np.linspace(0.0, 1.0, len(points)) if len(points) > 1 else np.zeros(1)
    at = np.linspace(0.0, 1.0, phases)
    found: list[float] = np.exp(np.interp(at, places, np.log(np.asarray(points, float)))).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContainer:
    """What a worker runs in that is billed by its size: and the coordinator beside them."""

    offer: ContainerOffer
    # vcpus, gib: of a worker
    vcpus: float
    gib: float
    accelerator: str = ""
    coordinator: tuple[float, float] | None = None  # vCPUs and GiB; None for none

    def billing(self, startup_s: float) -> Billing:
        """Return the bill of a worker and of what stands beside them all."""
        offer, beside = self.offer, 0.0
        if self.coordinator is not None:
            beside = offer.usd_per_h(*self.coordinator)
        return Billing(
            price_usd_per_h=offer.usd_per_h(self.vcpus, self.gib, self.accelerator),
            quantum_s=offer.quantum_s, minimum_s=offer.minimum_s, startup_s=startup_s,
            beside_usd_per_h=beside,
        )  # fmt: skip

    @property
    def words(self) -> str:
        """Say offer, sizes, day and source of the price."""
        card = f" and one {self.accelerator}" if self.accelerator else ""
        beside = ""
        if self.coordinator is not None:
            beside = f", a coordinator of {self.coordinator[0]:g} and {self.coordinator[1]:g} GiB"
        return (
            f"{self.offer.name} in {self.offer.region}: {self.vcpus:g} vCPUs{card}, "
            f"{self.gib:g} GiB a worker{beside}; list prices of {self.offer.as_of}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of a job for a plan of elastic workers: as the one estimate says them."""

    samples: float  # of the whole job at its own batch [samples]
    phases: int  # epochs, where the dataset is known; one otherwise
    batch: float  # global batch [samples]
    scaling: WorkerScaling
    # price_usd_per_h, startup_s: of a worker. [USD/h], [s]
    price_usd_per_h: float
    startup_s: float
    source: str  # job and machine, in words
    # of the recorded gradients; None where a step had one gradient norm only
    noise: NoiseScale | None = None
    # vcpus, gib, accelerator: of that machine; the name is empty where it has none, or several
    vcpus: float = 0.0
    gib: float = 0.0
    accelerator: str = ""


def figures_of(
    predictor: Predictor, job: Job, instance_type: str, workers: Sequence[int]
) -> JobFigures:
    """Return a job's figures on one type of machines: a worker is a machine.

    The step on one worker at two batches gives what does not depend on the batch and what a
    sample takes; what more workers add beyond their share and the slowest one's is their exchange.

    Raises UsageError if the job has no steps, or the type cannot run it or is not sold on demand.
    """
    provider, _, name = instance_type.rpartition(":")
    row = predictor.catalogue.instance_type(name, provider=provider or None)
    offers, place = predictor.cheapest(row)
    counts = np.array(sorted(set(workers)))
    if job.work is None or place is None:
        what = "no training steps" if job.work is None else f"no on-demand price of {row.name}"
        raise UsageError(f"{job.name}: {what}", hint="give the figures by hand: --sample-time ...")

    def steps_s(asked: Job, on: NDArray[np.int64]) -> NDArray[np.float64]:
        columns = predictor.step_columns(asked, np.full(on.shape, row.index), on)
        return np.asarray(np.where(columns.status == 0, columns.step_s, np.nan))

    batch = float(job.global_batch)
    one_step = float(steps_s(job, np.ones(1, dtype=np.int64))[0])
    double = replace(job, global_batch=2 * job.global_batch, total_steps=job.total_steps / 2)
    two_step = float(steps_s(double, np.ones(1, dtype=np.int64))[0])
    if not (np.isfinite(one_step) and two_step > one_step):
        raise UsageError(
            f"{job.name} cannot be estimated on one {row.name} at twice its batch",
            hint="name another machine with --on, or give the figures by hand",
        )
    sample_s = (two_step - one_step) / batch
    alone_s = max(one_step - sample_s * batch, 0.0)
    sample_s = (one_step - alone_s) / batch
    step_s = steps_s(job, counts)
    runs = np.isfinite(step_s)
    spread = constants().with_spread(job.spread).scaling
    computing_s = (alone_s + sample_s * batch / counts) * straggling(counts, spread)
    sync_s = np.maximum(step_s - computing_s, 0.0)
    phases = max(round(job.epochs), 1)
    dataset = job.feed.dataset_samples
    if not job.epochs and dataset:
        phases = max(round(job.total_steps * batch / dataset), 1)
    columns = predictor.step_columns(job, np.full(counts.shape, row.index), counts)
    ledger = on_demand(job, columns, 0.9).ledger
    besides = (ledger.total_s - ledger.before_s) / ledger.steps_s - 1.0
    layouts = tuple(_layout_name(columns, at) for at in np.flatnonzero(runs).tolist())
    # The state goes out as one layout keeps it, and in as the other needs it.
    link = predictor.fleet.network_bytes_per_s[row.index]
    return JobFigures(
        samples=job.total_steps * batch,
        phases=phases,
        batch=batch,
        scaling=WorkerScaling(
            workers=tuple(counts[runs].tolist()), step_s=alone_s, sample_s=sample_s,
            sync_s=tuple(sync_s[runs].tolist()),
            spread_fraction=spread.straggler_sd_fraction,
            layouts=layouts if len(set(layouts)) > 1 else (),
            relayout_s=float(2.0 * job.state_bytes / link) if link > 0 else 0.0,
            besides=tuple(np.maximum(besides[runs], 0.0).tolist()),
        ),
        price_usd_per_h=float(offers.price_usd_per_h[place]),
        startup_s=float(ledger.before_s[0]),
        source=f"{job.name} on {row.name} ({row.provider})",
        noise=job.noise,
        vcpus=float(row.vcpus or 0.0),
        gib=(row.memory_bytes or 0.0) / GIB,
        accelerator=(row.accelerator or "") if row.accelerator_count else "",
    )  # fmt: skip


def _layout_name(columns: TimeColumns, at: int) -> str:
    """Say how the state lies: what differs between two counts has to be moved."""
    layout = columns.layout(at)
    shards = layout.shard_group or layout.dp if layout.zero_stage else 1
    return f"tp{layout.tp} pp{layout.pp} shards{shards}"


def elastic_answer(question: ElasticQuestion) -> ElasticAnswer:
    """Plan a schedule and draw it.

    Raises PlanningError if nothing meets the limit.
    """
    plan = _planned(question, question.billing)
    other = None
    if question.machines is not None:
        with suppress(PlanningError):  # nothing that is rented whole meets the limit
            other = _planned(question, question.machines)
    return ElasticAnswer(
        question=question, plan=plan, charts=_charts(question, plan), on_machines=other
    )


def _planned(question: ElasticQuestion, billing: Billing) -> ElasticPlan:
    return elastic_plan(
        question.phases, question.scaling, billing, batch=question.batch,
        batches=question.batches, resize_s=question.resize_s, deadline_s=question.deadline_s,
        budget_usd=question.budget_usd,
    )  # fmt: skip


def _price(billing: Billing | None) -> float | None:
    return None if billing is None else billing.price_usd_per_h


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S


def _schedule(schedule: Schedule) -> dict[str, Any]:
    record = asdict(schedule)
    record["phase_h"] = [s / HOUR_S for s in record.pop("phase_s")]
    record["time_h"] = record.pop("time_s") / HOUR_S
    record["resizes"] = schedule.resizes
    return record


def _charts(question: ElasticQuestion, plan: ElasticPlan) -> list[Chart]:
    # The schedule last: where both have the same workers it should be seen.
    both = [("elastic", plan.elastic)]
    if plan.fixed is not None:
        both.insert(0, ("fixed", plan.fixed))
    workers = [
        Series(
            name=f"{name}: {s.cost_usd:.2f} USD",
            x=[0.0, *(np.cumsum(s.phase_s) / HOUR_S).tolist()],
            y=[*s.workers, s.workers[-1]],
            shape="steps",
        )
        for name, s in both
    ]
    front = plan.front
    points = [
        Series(
            name="schedules that no other beats",
            x=[s.time_s / HOUR_S for s in front],
            y=[s.cost_usd for s in front],
        )
    ]
    if question.deadline_s is not None:
        points.append(Series(name="deadline", x=[question.deadline_s / HOUR_S], shape="vertical"))
    return [
        Chart(title="Workers over the job", x_label="hours", y_label="workers", series=workers),
        Chart(
            title="Time against bill",
            x_label="hours (logarithmic)",
            y_label="USD",
            series=points,
            is_x_logarithmic=True,
            x_range=(0.9 * front[0].time_s / HOUR_S, 1.1 * front[-1].time_s / HOUR_S),
        ),
    ]
