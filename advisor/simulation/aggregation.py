"""Several recorded jobs whose gradients are added up on shared cores, against all-reduce.

The one function behind ``advisor simulate aggregation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.aggregation.parameter_service import (
    AggregatedJob,
    Exchange,
    Packing,
    aggregation_s,
    exchange,
    most_saved_fraction,
    pack,
)

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAggregation:
    """Jobs on shared aggregators.

    Attributes
    ----------
    exchanges : tuple of Exchange
        What a step of each exchanges, in three ways.
    workers : int
        Machines of each job.
    link_bytes_per_s, core_bytes_per_s : float
        Of a machine's network, and of a core's memory. [bytes/s]
    most_saved_fraction : float
        Of the cores, if all jobs asked as much as the mean and waited for nobody [fraction].
    """

    jobs: tuple[AggregatedJob, ...]
    packing: Packing
    exchanges: tuple[Exchange, ...]
    workers: int
    link_bytes_per_s: float
    core_bytes_per_s: float
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
) -> SharedAggregation:  # fmt: skip
    """Return what the jobs' aggregation takes on shared cores.

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

    Raises
    ------
    UsageError
        If a job's step or gradients are not known, or a core was not measured.
    PlanningError
        If an amount makes no sense.
    """
    rates = [core_bytes_per_s or _core_bytes_per_s(job) for job in jobs]
    tenants = tuple(_tenant(job, workers, rate) for job, rate in zip(jobs, rates, strict=True))
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


def _tenant(job: Job, workers: int, core_bytes_per_s: float) -> AggregatedJob:
    if job.measured is None:
        raise UsageError(f"{job.name} was not recorded", hint="name recorded runs")
    sizes = _tensor_bytes(job)
    return AggregatedJob(
        name=job.name,
        step_s=job.measured.step_s,
        work_s=tuple(aggregation_s(size, workers, core_bytes_per_s) for size in sizes),
    )


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
