"""Which micro-batch and ZeRO stage fit into the devices' memory, for each (type, workers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.collectors.memory import advised_memory_bytes
from advisor.jobs.job import Job
from advisor.machines.fleet import Fleet
from advisor.planners.core.nouns import Work
from advisor.planners.core.units import GIB
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.memory.training_memory import largest_micro_batch, training_memory_bytes
from advisor.ways.case import StepCase

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_KEPT_FREE_FRACTION: Final = 0.2
_KEPT_FREE_BYTES: Final = 5 * GIB
# Plain data parallel first; shards only where it does not fit, the cheapest to communicate first.
_ZERO_STAGES: Final = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One row a candidate; ``micro_batch`` 0 does not fit. Memory is of one device. [bytes]."""

    micro_batch: Integers
    accumulation_steps: Integers
    zero_stage: Integers
    memory_bytes: Floats


def fit_in_memory(case: StepCase, type_index: Integers, dp: Integers) -> Fit:
    """Choose the largest micro-batch that fits, with the lowest ZeRO stage that lets one fit.

    The global batch is kept: what does not fit at once is accumulated, in equal micro-batches
    where a worker's samples have a divisor that is not much smaller.
    """
    job, work, fleet, constants = case.job, case.work, case.fleet, case.constants
    space = case.space
    local = -(-job.global_batch // dp)
    memory = np.array([device.memory_bytes for device in fleet.devices])[fleet.device[type_index]]
    is_cpu = ~fleet.is_accelerated[type_index]
    largest = np.zeros(len(dp), dtype=np.int64)
    stage = np.zeros(len(dp), dtype=np.int64)
    wanted = _wanted_micro_batch(space, local)
    margin = kept_free_bytes(memory, ~is_cpu) / memory
    for zero_stage in [z for z in _ZERO_STAGES if z in space.zero_stages]:
        open_rows = np.flatnonzero((largest < 1) & ((dp > 1) | (zero_stage == 0)))
        if open_rows.size == 0:
            continue
        # Gradients are there from the second micro-batch on; the whole batch may fit without.
        fits, at_once = (
            largest_micro_batch(
                work, memory[open_rows], dp=dp[open_rows], zero_stage=zero_stage,
                is_cpu=is_cpu[open_rows], margin_fraction=margin[open_rows],
                accumulates=accumulates, parameters=constants.memory,
            )
            for accumulates in (True, False)
        )  # fmt: skip
        fits = np.where(at_once >= local[open_rows], local[open_rows], fits)
        if wanted is not None:
            asked = wanted[open_rows]
            fits = np.where(fits >= asked, asked, 0)
        largest[open_rows] = np.minimum(fits, local[open_rows])
        stage[open_rows] = zero_stage
    largest = np.where(host_fits(job, work, fleet, type_index, is_cpu), largest, 0)
    micro_batch, accumulation = in_equal_parts(local, largest)
    needed = training_memory_bytes(
        work, np.maximum(micro_batch, 1), dp=dp, zero_stage=stage, is_cpu=is_cpu,
        accumulates=accumulation > 1, parameters=constants.memory,
    )  # fmt: skip
    return Fit(
        micro_batch=micro_batch,
        accumulation_steps=accumulation,
        zero_stage=stage,
        memory_bytes=np.asarray(needed, dtype=float),
    )


def _wanted_micro_batch(space: SearchSpace, local: Integers) -> Integers | None:
    """Return the micro-batch that is fixed, 0 where it does not divide; None where it is open."""
    if space.micro_batch is not None:
        return np.where(local % space.micro_batch == 0, space.micro_batch, 0)
    if space.accumulation_steps is not None:
        steps = space.accumulation_steps
        return np.where(local % steps == 0, local // steps, 0)
    return None


def in_equal_parts(local: Integers, largest: Integers) -> tuple[Integers, Integers]:
    """Return micro-batch and accumulation steps of workers with ``local`` samples each.

    The largest divisor that fits, unless it is less than half of what fits: then the fewest
    micro-batches, the last one smaller. A micro-batch of 0 does not fit.
    """
    steps = -(-local // np.maximum(largest, 1))
    for samples, most in {*zip(local.tolist(), largest.tolist(), strict=True)}:
        if most < 1:
            continue
        sizes = np.arange(most // 2 + 1, most + 1)
        dividing = sizes[samples % sizes == 0]
        if dividing.size:
            steps[(local == samples) & (largest == most)] = samples // dividing[-1]
    return np.where(largest < 1, 0, -(-local // np.maximum(steps, 1))), steps


def host_fits(
    job: Job, work: Work, fleet: Fleet, type_index: Integers, is_cpu: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether main memory holds the processes: one a device, each as large as the recorded one.

    On accelerators the tensors leave main memory, so what remains is the recorded peak less them.
    """
    per_process = np.where(
        is_cpu,
        advised_memory_bytes(job.peak_rss_bytes),
        advised_memory_bytes(int(host_process_bytes(job, work))),
    )
    host_memory = fleet.host_memory_bytes[type_index]
    return np.asarray(per_process * fleet.per_node[type_index] <= host_memory)


def host_process_bytes(job: Job, work: Work) -> float:
    """Return what a process takes of main memory beside its tensors, by the recorded one [bytes].

    0 for a described job: nothing was seen of it.
    """
    tensors = work.parameter_bytes * 2 + work.optimizer_state_bytes
    tensors += work.saved_bytes_per_sample * job.recorded_batch
    return max(job.peak_rss_bytes - tensors, 0.3 * job.peak_rss_bytes)


def kept_free_bytes(memory_bytes: Floats, is_accelerated: NDArray[np.bool_]) -> Floats:
    """Return what a layout may not fill of a device's memory, the same for every verb [bytes].

    5 GiB of an accelerator, at most a third of a small one: the margin that tells runs that went
    out of memory from others with the fewest false alarms (``advisor validate oom``; chosen on its
    curve). Of main memory a fifth. A false "fits" is worse than a slow row.
    """
    small = np.minimum(memory_bytes / 3, _KEPT_FREE_BYTES)
    return np.where(is_accelerated, small, _KEPT_FREE_FRACTION * memory_bytes)
