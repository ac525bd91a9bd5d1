"""The job on the machine at hand as a candidate beside those that could be rented."""

from __future__ import annotations

from advisor.domain import Candidate, Configuration, Estimate, Offer
from advisor.errors import AdvisorError
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict import Predictor
from advisor.predict.estimate import machine_here, on_device

PROVIDER = "here"


def at_hand(
    predictor: Predictor, job: Job, *, price_usd_per_h: float = 0.0, coverage: float = 0.9,
    space: SearchSpace | None = None, count: int = 1, is_changed: bool = False,
) -> Candidate | None:  # fmt: skip
    """Return the job on this machine; None where it cannot run here, or is of unknown length.

    Nothing is measured for it: where nobody has (``advisor doctor``), the processor's tables
    answer.

    Parameters
    ----------
    predictor : Predictor
    job : Job
    price_usd_per_h : float
        What an hour of it costs. [USD/h]
    coverage : float
    space : SearchSpace, optional
        What a layout may be; everything by default.
    count : int
        Its accelerators to train on.
    is_changed : bool
        The job is trained otherwise than it was recorded in ways that its record does not show:
        its measured step is an anchor, not the answer.
    """
    try:
        machine = machine_here(job, measures=False)
        device, host = machine.device, machine.host
        found = on_device(
            predictor, job, device, "this machine", count, coverage, space,
            is_recorded=machine.is_recorded and not is_changed,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None
    if found.training_time_h is None:
        return None
    step = found.step_time_s.value
    shares = {name: seconds / step for name, seconds in found.parts_s.items()}
    is_cpu = device.kind == "cpu"
    offer = Offer(
        provider=PROVIDER,
        instance_type=host.cpu_model if is_cpu else device.name,
        region="this machine",
        pricing="own",
        price_usd_per_h=price_usd_per_h,
        accelerator=None if is_cpu else device.name,
        accelerators=0.0 if is_cpu else float(count),
        vcpus=host.logical_cpus,
        memory_gib=host.memory_limit_bytes / 2**30,
    )
    time_h = found.training_time_h
    cost = Estimate(
        value=time_h.value * price_usd_per_h,
        low=time_h.low * price_usd_per_h,
        high=time_h.high * price_usd_per_h,
        coverage=coverage,
    )
    return Candidate(
        rank=0,
        configuration=Configuration(parts=((offer, 1),)),
        layout=found.layout,
        step_time_s=found.step_time_s,
        throughput_samples_per_s=found.throughput_samples_per_s,
        training_time_h=time_h,
        cost_usd=cost,
        memory_gib=found.memory_gib,
        bottleneck=max(shares, key=lambda name: shares[name]),
        shares=shares,
        reasons=(),
        is_extrapolating=found.is_extrapolating,
        way=found.way,
        units=found.units,
        facts=found.facts,
    )
