"""The job on the machine at hand as a candidate beside those that could be rented."""

from __future__ import annotations

from advisor.answer import Candidate
from advisor.errors import AdvisorError
from advisor.estimate.estimate import PROVIDER, machine_here, on_device
from advisor.estimate.predictor import Predictor
from advisor.jobs import Job
from advisor.planners.core import PlanningError
from advisor.planners.layouts import SearchSpace

__all__ = ["PROVIDER", "machine_at_hand"]


def machine_at_hand(
    predictor: Predictor, job: Job, *, price_usd_per_h: float = 0.0, coverage: float = 0.9,
    space: SearchSpace | None = None, count: int = 1, is_changed: bool = False,
) -> Candidate | None:  # fmt: skip
    """Return the job on this machine; None where it cannot run here, or is of unknown length.

    Nothing is measured for it: where nobody has (``advisor doctor``), the processor's tables
    answer.

    ``is_changed``: the job is trained otherwise than it was recorded in ways that its record does
    not show: its measured step is an anchor, not the answer.
    """
    try:
        machine = machine_here(job, measures=False)
        found = on_device(
            predictor, job, machine.device, (machine.offer(count, price_usd_per_h), 1), coverage,
            space, is_recorded=machine.is_recorded and not is_changed,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None
    if found.training_time_h is None or found.bottleneck is None:
        return None
    return Candidate(
        rank=0,
        configuration=found.configuration,
        devices=found.devices,
        layout=found.layout,
        step_time_s=found.step_time_s,
        throughput_samples_per_s=found.throughput_samples_per_s,
        training_time_h=found.training_time_h,
        cost_usd=found.training_time_h.scaled(price_usd_per_h),
        memory_gib=found.memory_gib,
        bottleneck=found.bottleneck,
        shares=found.shares,
        is_extrapolating=found.is_extrapolating,
        way=found.way,
        units=found.units,
        sources=found.sources,
    )
