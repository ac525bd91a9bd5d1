"""A profiled job as a run record: what is asked of a learned model, and what a real run labels.

``machines_of`` names the catalogue's machines as records do.

The anchor is the host, as one core: with several threads a step's processor time stands for its
time on one core, since the models' anchors are single cores. Physics is the estimate of
``advisor recommend``, handed in and kept in the fact ``analytic_time_s``: what is learned from
real runs is what that estimate leaves over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, named
from advisor.collectors.derive import Resources
from advisor.jobs import Job, Measured
from advisor.planners.core import Work
from advisor.records.nouns import (
    AnchorRun,
    Fact,
    Instances,
    JobFacts,
    ResourceSeries,
    Role,
    RunRecord,
)
from advisor.records.tracked import resource_series

Floats = NDArray[np.float64]

SOURCE: Final = "advisor"
_RUN_ID: Final = re.compile(r"\d{8}-\d{6}-(?P<program>.+)-\w+")
_CLASSES: Final = ("matmul", "convolution", "recurrent", "attention", "embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The part of a record that is the same on every configuration."""

    job: JobFacts
    anchor: AnchorRun


def program_of(run: str) -> str:
    """Return the program that a run is of: runs of one program are siblings.

    Examples
    --------
    >>> program_of("20261121-120948-stdlib_transformer-4865"), program_of("resnet50")
    ('stdlib_transformer', 'resnet50')
    """
    found = _RUN_ID.fullmatch(run)
    return found["program"] if found else run


def profile(job: Job) -> Profile | None:
    """Return what a job that was profiled on processors says of itself; None for any other."""
    if job.work is None or job.measured is None or job.measured.device != "cpu":
        return None
    work, batch = job.work, float(job.global_batch)
    facts = _work_facts(work, batch) | {"steps": job.total_steps}
    factor = batch / job.recorded_batch
    step_s = _one_core_s(job.measured, job.resources) * factor
    anchor: dict[str, Fact] = {
        "step_time_s": step_s,
        "cpu_s_per_step": _processor_s(job, step_s / factor) * factor,
        "loading_fraction": min(job.feed.wait_s / job.measured.step_s, 1.0),
        "memory_peak_bytes": float(job.peak_rss_bytes),
    }
    series = () if job.resources is None else _series(job.resources)
    return Profile(
        job=JobFacts(job_id=f"{program_of(job.name)}-b{job.global_batch}",
                     family=program_of(job.name), facts=facts),
        anchor=AnchorRun(
            machines=Instances(provider="host", instance_type="host", vcpus=1.0),
            time_s=step_s * job.total_steps,
            facts=anchor,
            series=series,
        ),
    )  # fmt: skip


def record(
    profile: Profile, machines: Instances, *, record_id: str, workers: int, physics_s: float
) -> RunRecord:
    """Return a run of a profiled job that is asked about: it has no time, as if it had failed.

    ``workers``: processes that share the samples of a step; ``physics_s``: the whole job as
    ``advisor recommend`` estimates it, without learning [s].
    """
    return RunRecord(
        record_id=record_id,
        source=SOURCE,
        job=profile.job,
        configuration=(machines,),
        layout={
            "workers": float(workers),
            "servers": 0.0,
            "threads": float(machines.vcpus or 1.0),
            "kind": "single" if workers == 1 else "allreduce",
        },
        time_s=None,
        time_kind="job",
        status="failed",
        anchor=profile.anchor,
        facts={"analytic_time_s": physics_s},
    )


def _series(used: Resources) -> tuple[ResourceSeries, ...]:
    """Return the course of the whole job, then of its ranks where there were several."""
    found = [resource_series(_per_core(used.channels), used.interval_s)]
    of_ranks: tuple[tuple[Role, Mapping[str, tuple[float, ...]]], ...] = (
        ("worker_mean", used.rank_mean), ("worker_max", used.rank_max),
    )  # fmt: skip
    for role, channels in of_ranks:
        if channels:
            values = {name: np.asarray(one, float) for name, one in channels.items()}
            found.append(resource_series(values, used.rank_interval_s, role))
    return tuple(found)


def _one_core_s(measured: Measured, used: Resources | None) -> float:
    """Return a recorded step's time on one core of the host, exchanging left out [s]."""
    step_s = measured.step_s - measured.exchange_s
    if (measured.threads or 1) == 1 or used is None or used.cpu_s_per_step is None:
        return step_s
    return max(step_s, used.cpu_s_per_step)


def _processor_s(job: Job, step_s: float) -> float:
    """Return the processor time of a recorded step, ``step_s`` long on one core of the host [s].

    What was measured where one thread of one process trained; for several it is the step already.
    """
    used, measured = job.resources, job.measured
    is_alone = measured is not None and (measured.threads or 1) == 1 and not job.feed.workers
    if not is_alone or used is None or not used.cpu_s_per_step or used.rank_mean:
        return step_s
    return used.cpu_s_per_step


def _per_core(channels: Mapping[str, tuple[float, ...]]) -> dict[str, Floats]:
    """Return the channels as if one core had done the work of all that were busy."""
    found = {name: np.asarray(values, float) for name, values in channels.items()}
    cores = found.get("cpu_cores")
    if cores is not None and cores.size:
        found["cpu_cores"] = cores / max(1.0, float(np.mean(cores)))
    return found


def _work_facts(work: Work, batch: float) -> dict[str, Fact]:
    """Return what one step of ``batch`` samples computes; the optimizer's part does not grow."""
    counted = work.operators
    times = np.where(counted.is_update, 1.0, batch / work.micro_batch)
    # All convolutions are one class to what is learned.
    is_convolved = np.isin(counted.kind, ("winograd", "depthwise"))
    kinds = np.where(is_convolved, "convolution", counted.kind)
    flop = {kind: float((counted.flop * times)[kinds == kind].sum()) for kind in _CLASSES}
    total_flop = float((counted.flop * times).sum())
    total_bytes = float((counted.fixed_bytes + counted.grown_bytes * times).sum())
    operators = float(counted.count.sum())
    facts: dict[str, Fact] = {
        "batch": batch,
        "parameters": float(work.parameters),
        "parameter_bytes": float(work.parameter_bytes),
        "buffer_bytes": float(work.buffer_bytes),
        "optimizer_state_bytes": float(work.optimizer_state_bytes),
        "saved_bytes": work.saved_bytes_per_sample * batch,
        "flop_per_step": total_flop,
        "bytes_per_step": total_bytes,
        "operators_per_step": operators,
    }
    if total_flop > 0:
        facts |= {f"flop_share_{k}": v / total_flop for k, v in flop.items() if v > 0}
    return facts


def machines_of(catalogue: Catalogue, type_index: int, count: int) -> Instances:
    """Return ``count`` machines of a type of the catalogue as records name them."""
    types = catalogue.types
    name, cards = str(types.accelerator[type_index]), float(types.accelerator_count[type_index])
    network = float(types.network_bytes_per_s[type_index])
    return Instances(
        provider=str(types.provider[type_index]),
        instance_type=str(types.name[type_index]),
        count=count,
        vcpus=float(types.vcpus[type_index]),
        memory_gib=float(types.memory_bytes[type_index]) / 2**30,
        accelerator=name,
        accelerators=max(math.ceil(cards), 1) if name else 0,
        network_gbit_per_s=network * 8e-9 if count > 1 and network > 0 else None,
    )


def named_machines(
    configuration: str, catalogue: Catalogue, *, price_usd_per_h: float | None = None
) -> Instances:
    """Return machines that a user names: ``"g5.xlarge"``, ``"2 x aws:g5.xlarge"``.

    ``price_usd_per_h``: what one of them was paid [USD/h].

    Raises CatalogueError if the catalogue has no such type, or several providers have it.
    """
    name, count = named(configuration)
    machines = machines_of(catalogue, catalogue.instance_type(name).index, count)
    return replace(machines, price_usd_per_h=price_usd_per_h)
