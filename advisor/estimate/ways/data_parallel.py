"""Data parallelism: every device holds the model, or a share of its state (ZeRO).

Steps, all on columns: batch per device -> micro-batch and ZeRO stage that fit -> step time of the
device model, calibrated on measured steps -> data-parallel scaling -> input limit.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Bottleneck
from advisor.estimate.case import SPACE, StepCase, is_step_uncertain
from advisor.estimate.time_columns import (
    CODE,
    WAITS,
    TimeColumns,
    integer_layouts,
    shares_of,
    way_code,
)
from advisor.jobs import Job, Measured
from advisor.planners.core import GIB, Device, Layouts, concatenate, select
from advisor.planners.layouts import SearchSpace
from advisor.planners.links import data_parallel_step
from advisor.planners.memory import largest_micro_batch, training_memory_bytes
from advisor.planners.step import StepColumns, step_time

WAY: Final = way_code("data parallel")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_KEPT_FREE_FRACTION: Final = 0.2
_KEPT_FREE_SHARE: Final = 0.07  # of an accelerator's memory
_MOST_KEPT_FREE_BYTES: Final = 5 * GIB
# Plain data parallel first; shards only where it does not fit, the cheapest to communicate first.
_ZERO_STAGES: Final = (0, 1, 2, 3)


def fit_in_memory(case: StepCase, columns: TimeColumns, rows: Integers) -> None:
    """Choose the largest micro-batch of rows that fits, with the lowest ZeRO stage that allows it.

    The stages are those that a named stack has, as where a layout is planned by the model's shape.
    The global batch is kept: what does not fit at once is accumulated, in equal micro-batches
    where a worker's samples have a divisor that is not much smaller. A recorded script that
    accumulates goes on doing so: its micro-batch is the largest, unless another is asked for.
    """
    job, work, fleet, constants = case.job, case.work, case.fleet, case.constants
    setup, dp, type_index = work.setup, columns.dp[rows], columns.type_index[rows]
    space = case.space.sharded_as(setup.facts if setup.named_stack else None)
    local = -(-job.global_batch // dp)
    memory = fleet.devices.fact("memory_bytes")[fleet.device[type_index]]
    is_cpu = ~fleet.is_accelerated[type_index]
    largest = np.zeros(len(dp), dtype=np.int64)
    stage = np.zeros(len(dp), dtype=np.int64)
    wanted = _wanted_micro_batch(space, local)
    most = local
    if wanted is None and job.recorded_passes > 1:
        most = np.minimum(local, work.micro_batch)
    margin = kept_free_bytes(memory, ~is_cpu) / memory
    for zero_stage in [z for z in _ZERO_STAGES if z in space.zero_stages]:
        # Where stages are asked for, a lone accelerator has the least, and shares nothing.
        is_alone = (zero_stage == min(space.zero_stages)) & ((zero_stage == 0) | ~is_cpu)
        may_share = zero_stage > 0 or not space.always_shards
        open_rows = np.flatnonzero((largest < 1) & np.where(dp > 1, may_share, is_alone))
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
        is_whole = (at_once >= local[open_rows]) & (most[open_rows] == local[open_rows])
        fits = np.where(is_whole, local[open_rows], fits)
        if wanted is not None:
            asked = wanted[open_rows]
            fits = np.where(fits >= asked, asked, 0)
        largest[open_rows] = np.minimum(fits, most[open_rows])
        stage[open_rows] = zero_stage
    micro_batch, accumulation = in_equal_parts(local, largest)
    needed = training_memory_bytes(
        work, np.maximum(micro_batch, 1), dp=dp, zero_stage=stage, is_cpu=is_cpu,
        accumulates=accumulation > 1, parameters=constants.memory,
    )  # fmt: skip
    status = np.where(micro_batch < 1, CODE["does_not_fit_in_memory"], 0)
    if space.accumulation_steps is not None:
        others = (status == 0) & (accumulation != space.accumulation_steps)
        status[others] = CODE["excluded_by_layout"]
    columns.status[rows] = status
    chosen = {"micro_batch": micro_batch, "accumulation_steps": accumulation, "zero_stage": stage}
    for name, values in chosen.items():
        getattr(columns.layouts, name)[rows] = values
    columns.memory_bytes[rows] = np.where(status == 0, needed, np.nan)


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


def kept_free_bytes(memory_bytes: Floats, is_accelerated: NDArray[np.bool_]) -> Floats:
    """Return what a layout may not fill of a device's memory, the same for every verb [bytes].

    7 % of an accelerator's, at most 5 GiB: what its allocator cannot hand out grows with what it
    hands out. Of published runs that ran one in a hundred needs more than 93 % of its card, of
    those that ran out of memory four in five (``advisor validate memory``, sources left out). Of
    main memory a fifth.
    """
    margin = np.minimum(memory_bytes * _KEPT_FREE_SHARE, _MOST_KEPT_FREE_BYTES)
    return np.where(is_accelerated, margin, _KEPT_FREE_FRACTION * memory_bytes)


def memory_there(device: Device, *, is_program: bool = False) -> dict[str, Any]:
    """Return a device's memory, and what of it no layout may fill, by the names of its fields.

    ``is_program``: a program without steps has its room in what it needs.
    """
    of_all = np.array([device.memory_bytes])
    free = kept_free_bytes(of_all, np.array([device.kind != "cpu"]))
    return {
        "device_memory_gib": device.memory_bytes / GIB,
        "kept_free_gib": 0.0 if is_program else float(free[0]) / GIB,
    }


def data_parallel(case: StepCase, type_index: Integers, count: Integers) -> TimeColumns:
    """Estimate the step on ``count`` machines of each type, every device with its own samples.

    ``type_index``, ``count``: (n,); rows of the fleet's types, and machines rented of each.
    """
    columns = case.no_times(WAY, type_index, count)
    is_few = columns.dp > case.job.global_batch
    columns.status[(columns.status == 0) & is_few] = CODE["fewer_samples_than_workers"]
    if not admits(case):
        columns.status[columns.status == 0] = CODE["excluded_by_layout"]
    fit_in_memory(case, columns, np.flatnonzero(columns.status == 0))
    rows = np.flatnonzero(columns.status == 0)
    _time(case, columns, rows, select(columns, rows))
    return columns


def _time(case: StepCase, whole: TimeColumns, rows: Integers, columns: TimeColumns) -> None:
    """Write the times of ``columns``, whose layouts are known, into their rows of the whole."""
    single = _single(case, columns)
    parts_s, scaled_log_sd = _parts(case, columns, single)
    of_size = case.anchors.size_log_sd(columns.dp)
    log_sd = np.sqrt(single.log_sd**2 + scaled_log_sd**2 + of_size**2)
    _put_measured(case, columns, parts_s, log_sd)
    whole.step_s[rows], shares = shares_of(parts_s)
    for name, share in shares.items():
        whole.shares[name][rows] = share
    whole.log_sd[rows] = log_sd
    whole.is_extrapolating[rows] = single.is_extrapolating > 0


def admits(case: StepCase) -> bool:
    """Whether plain data parallelism is among the layouts that may be chosen."""
    space = case.space
    alone = all(degree in (None, 1) for degree in (space.tp, space.pp, space.cp, space.ep))
    alone &= max(space.min_tp, space.min_pp, space.min_cp, space.min_ep) == 1
    return alone and "none" in space.recomputes and not space.moves


# Fields of ``StepColumns`` by device and micro-batch, and by device alone.
_BY_BATCH: Final = (
    "micro_batch_s", "backward_s", "compute_s", "memory_s", "launch_s", "copy_s", "idle_s"
)  # fmt: skip
_BY_DEVICE: Final = ("optimizer_s", "optimizer_launch_s")


def _single(case: StepCase, rows_of: TimeColumns) -> StepColumns:
    """Return one device's step, calibrated, one row a candidate.

    The device model is asked once for each distinct (device, micro-batch).
    """
    fleet, anchors, constants = case.fleet, case.anchors, case.constants
    device, micro_batch = fleet.device[rows_of.type_index], rows_of.micro_batch
    found: list[StepColumns] = []
    # Two grids, since accelerators see many more distinct micro-batches than CPUs do.
    is_cpu = fleet.devices.word("kind")[device] == "cpu"
    order = np.argsort(~is_cpu, kind="stable")
    for rows in np.split(order, [np.count_nonzero(is_cpu)]):
        if rows.size == 0:
            continue
        pairs = np.stack([device[rows], case.host_speed(rows_of.type_index[rows])])
        (used, speed), at_device = np.unique(pairs, axis=1, return_inverse=True)
        used, at_device = used.astype(np.int64), at_device.ravel()
        batches, at_batch = np.unique(micro_batch[rows], return_inverse=True)
        targets = fleet.devices.take(used)
        columns: StepColumns = step_time(case.work, targets, batches, constants.device, speed)
        factor, log_sd = case.calibrated(used)
        scale, cell = np.exp(factor)[at_device], (at_device, at_batch)
        host = columns.host_log_sd * anchors.unheard(targets, constants)[:, None]
        seconds = {name: getattr(columns, name)[cell] * scale for name in _BY_BATCH}
        seconds |= {name: getattr(columns, name)[at_device] * scale for name in _BY_DEVICE}
        found.append(replace(
            columns,
            **seconds,
            log_sd=np.hypot(log_sd[at_device], host[cell]),
            host_log_sd=host[cell],
            is_extrapolating=columns.is_extrapolating[at_device],
        ))  # fmt: skip
    if not found:
        nothing = {f.name: np.zeros(0) for f in fields(StepColumns)}
        return StepColumns(**nothing)  # type: ignore[arg-type]
    return found[0] if len(found) == 1 else select(concatenate(found), np.argsort(order))


def _parts(
    case: StepCase, columns: TimeColumns, single: StepColumns
) -> tuple[dict[Bottleneck, Floats], Floats]:
    """Return what the step waits for, loading included, and what scaling adds to ln(step)'s error.

    The parts add up to the step [s].
    """
    work, fleet, kind, count = case.work, case.fleet, columns.type_index, columns.count
    # Machines whose devices one switch fabric joins are a node to a ring.
    joined = np.minimum(fleet.domain_machines[kind], count)
    nodes = -(-count // joined)
    scaled = data_parallel_step(
        micro_batch_s=single.micro_batch_s,
        backward_s=single.backward_s,
        optimizer_s=single.optimizer_s,
        accumulation_steps=columns.accumulation_steps,
        gradient_bytes=work.gradient_bytes,
        buffer_bytes=work.buffer_bytes,
        is_pipelined=fleet.is_accelerated[kind],
        nodes=nodes,
        devices_per_node=fleet.per_node[kind] * count / nodes,
        intra_bytes_per_s=fleet.intra_bytes_per_s[kind],
        intra_latency_s=fleet.intra_latency_s[kind],
        network_bytes_per_s=np.where(nodes > 1, fleet.network_bytes_per_s[kind] * joined, np.inf),
        network_latency_s=fleet.network_latency_s[kind],
        zero_stage=columns.zero_stage,
        has_rdma=fleet.rdma_share[kind],
        parameters=case.constants.scaling,
    )
    step_s = np.asarray(scaled.step_s, dtype=float)
    network = np.asarray(scaled.exposed_s) + np.asarray(scaled.straggler_s)
    device_s = np.maximum(step_s - network, 0.0)
    busy = np.maximum(single.micro_batch_s, 1e-30)
    # The optimizer streams its state through memory, a small one only starts kernels.
    updating = np.minimum(single.optimizer_s, device_s)
    starts = np.minimum(single.optimizer_launch_s, updating)
    working = (device_s - updating) / busy
    samples = columns.micro_batch * columns.accumulation_steps
    return {
        "compute": single.compute_s * working,
        "memory": single.memory_s * working + updating - starts,
        "launch": single.launch_s * working + starts,
        "copy": single.copy_s * working,
        "network": step_s - device_s,
        "input": case.waiting_s(step_s, samples, kind, single.idle_s * working),
    }, np.asarray(scaled.log_sd)


def _put_measured(
    case: StepCase, columns: TimeColumns, parts_s: dict[Bottleneck, Floats], log_sd: Floats
) -> None:
    """Replace what the job's own runs on such machines know better: step, network and error."""
    if not case.clusters:
        return
    from advisor.estimate.knowledge.own_runs import fitted_rows, placements

    per_node = case.fleet.per_node[columns.type_index]
    batch = columns.micro_batch * columns.accumulation_steps
    for law, rows in fitted_rows(case.clusters, case.fleet, columns.type_index):
        asked = placements(columns.count[rows], per_node[rows], batch[rows])
        step_s, log_sd[rows] = law.predict(asked)
        of_law = law.parts(asked)
        network = step_s * of_law.exposed_s / of_law.step_s
        rest = sum(part[rows] for name, part in parts_s.items() if name != "network")
        scale = (step_s - network) / np.maximum(rest, 1e-30)
        for name, part in parts_s.items():
            part[rows] = network if name == "network" else part[rows] * scale


def is_answer(job: Job, space: SearchSpace | None) -> bool:
    """Whether the recorded step answers what is asked of the recorded machine."""
    is_whole = job.is_as_recorded and space in (None, SPACE)
    return job.measured is not None and is_whole and not is_step_uncertain(job)


def as_recorded(job: Job, columns: TimeColumns) -> TimeColumns:
    """Return the only row of ``columns``, the recorded machine, as it was measured.

    No model says it better: the recorded layout, the recorded time and the recorded interval. What
    the user has changed since (batch, precision, software, layout) is estimated as everywhere,
    with the measured step as its anchor.

    ``job``: as it was recorded (``is_answer``); ``columns``: what the model says of one such
    machine: its shares of computing, memory and starting kernels are kept.
    """
    seen = job.measured
    assert seen is not None
    rows = len(columns.count)
    memory = columns.memory_bytes
    if seen.device.startswith("cpu"):
        memory = np.full(rows, float(job.peak_rss_bytes))
    return replace(
        columns,
        status=np.zeros(rows, dtype=np.int64),
        step_s=np.full(rows, seen.step_s),
        log_sd=np.full(rows, seen.log_sd),
        shares=_shares(job, seen, columns),
        layouts=columns.layouts if job.work is None else _layouts(job, seen, rows),
        memory_bytes=memory,
        startup_s=np.full(rows, job.startup_s),
        data_in_s=np.zeros(rows),  # it is there
        is_extrapolating=np.zeros(rows, dtype=bool),
    )


def _shares(job: Job, seen: Measured, columns: TimeColumns) -> dict[Bottleneck, Floats]:
    """Return what the step waits for: data and other ranks as measured, the rest as modelled."""
    waits = {"input": job.feed.wait_s, "network": seen.exchange_s}
    scale = max(seen.step_s, sum(waits.values()))
    measured = {name: wait_s / scale for name, wait_s in waits.items()}
    modelled = {
        name: np.nan_to_num(columns.shares.get(name, np.zeros(1)))
        for name in WAITS
        if name not in measured
    }
    whole = sum(modelled.values())
    if not np.all(whole > 0):  # the model has no answer for this machine
        modelled["compute"], whole = np.ones(len(columns.count)), np.ones(1)
    computing = 1 - sum(measured.values())
    shares = {name: computing * part / whole for name, part in modelled.items()}
    rows = np.ones(len(columns.count))
    return shares | {"input": measured["input"] * rows, "network": measured["network"] * rows}


def _layouts(job: Job, seen: Measured, rows: int) -> Layouts:
    work = job.work
    assert work is not None
    return integer_layouts(
        rows,
        dp=seen.processes,
        micro_batch=work.micro_batch,
        accumulation_steps=job.recorded_passes,
    )
