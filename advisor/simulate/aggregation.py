"""Several recorded jobs whose gradients are added up on shared cores, against all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor import api
from advisor.ask import JobSpec
from advisor.collectors import RecordingError
from advisor.collectors.derive import find_run, read_recording
from advisor.errors import UsageError
from advisor.jobs import Job
from advisor.planners.systems import (
    AggregatedJob,
    aggregation_s,
    exchange,
    most_saved_fraction,
    pack,
)  # fmt: skip
from advisor.simulate.questions import SimulateAggregation, Simulated


def answer(asked: SimulateAggregation) -> Simulated:
    """Return what the gradients of recorded jobs take on shared cores."""
    jobs = [api.job_of(JobSpec(run=run)) for run in asked.runs]
    return shared(jobs, asked, [_recorded_steps_s(run) for run in asked.runs])


def _recorded_steps_s(run: str) -> tuple[float, ...]:
    """Return the steps of a recorded run; none of what was not recorded."""
    try:
        ranks = read_recording(find_run(run)).ranks
    except (RecordingError, OSError):
        return ()
    return ranks[0].step_s if ranks else ()


def shared(
    jobs: Sequence[Job], asked: SimulateAggregation, steps_s: Sequence[Sequence[float]] = ()
) -> Simulated:
    """Return what the jobs' aggregation takes on shared cores.

    ``jobs``: recorded; each would train on machines like the one it ran on; ``steps_s``: recorded
    steps of each job, which tell how they scatter; none scatters by default [s].

    Raises UsageError if a job's step or gradients are not known, or a core was not measured.
    Raises PlanningError if an amount makes no sense.
    """
    rates = [asked.core_rate or _core_bytes_per_s(job) for job in jobs]
    tenants = tuple(
        _tenant(job, asked.workers, rate, seen)
        for job, rate, seen in zip(jobs, rates, steps_s or [()] * len(jobs), strict=True)
    )
    packing = pack(tenants, cap=asked.cap, most_loss=asked.loss)
    demand = sum(one.demand for one in tenants) / len(tenants)
    return Simulated(record={
        "schema_version": 1,
        "workers": asked.workers,
        "link_bytes_per_s": asked.link,
        "core_bytes_per_s": min(rates),
        "cores": packing.cores,
        "dedicated_cores": packing.dedicated_cores,
        "saved_fraction": packing.saved_fraction,
        # if all jobs asked as much as the mean and waited for nobody
        "most_saved_fraction": min(
            most_saved_fraction(demand, asked.cap), 1.0 - 1.0 / len(tenants)
        ),
        "jobs": [
            {
                "name": tenant.name,
                "step_s": tenant.step_s,
                "demand_cores": tenant.demand,
                "scatter_fraction": float(np.std(tenant.scatter)),
                "delay_s": delay_s,
                "loss_fraction": loss,
                **exchange(
                    tenant, delay_s=delay_s, gradient_bytes=_gradient_bytes(job),
                    workers=asked.workers, link_bytes_per_s=asked.link, servers=asked.servers,
                ),
            }
            for job, tenant, delay_s, loss in zip(
                jobs, tenants, packing.delay_s, packing.loss, strict=True
            )
        ],
        "aggregators": [list(place) for place in packing.loads],
    })  # fmt: skip


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
