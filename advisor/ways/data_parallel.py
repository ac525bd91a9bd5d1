"""Data parallelism: every device holds the model, or a share of its state (ZeRO).

Steps, all on columns: batch per device -> micro-batch and ZeRO stage that fit -> step time of the
device model, calibrated on measured steps -> data-parallel scaling -> input limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.domain import Bottleneck
from advisor.planners.core.tables import select
from advisor.planners.links.data_parallel import DataParallelColumns, data_parallel_step
from advisor.planners.step.device import StepColumns, step_time
from advisor.ways.case import StepCase
from advisor.ways.columns import CODE, WAYS, TimeColumns, integer_layouts, shares_of, spread
from advisor.ways.fitting import Fit, fit_in_memory
from advisor.ways.measured_cluster import fitted_rows, placements

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def data_parallel(case: StepCase, type_index: Integers, count: Integers) -> TimeColumns:
    """Estimate the step on ``count`` machines of each type, every device with its own samples.

    Parameters
    ----------
    case : StepCase
    type_index, count : integer arrays of shape (n,)
        Rows of the fleet's types, and machines rented of each.
    """
    fleet, space, n = case.fleet, case.space, len(count)
    dp = fleet.per_node[type_index] * count
    status = case.status(type_index, count)
    status[(status == 0) & (dp > case.job.global_batch)] = CODE["fewer_samples_than_workers"]
    if not admits(case):
        status[status == 0] = CODE["excluded_by_layout"]
    rows = np.flatnonzero(status == 0)
    fit = fit_in_memory(case, type_index[rows], dp[rows])
    status[rows[fit.micro_batch < 1]] = CODE["does_not_fit_in_memory"]
    rows, fit = rows[fit.micro_batch >= 1], select(fit, fit.micro_batch >= 1)
    if space.accumulation_steps is not None:
        kept = fit.accumulation_steps == space.accumulation_steps
        status[rows[~kept]] = CODE["excluded_by_layout"]
        rows, fit = rows[kept], select(fit, kept)
    types = type_index[rows]
    single = _single(case, fleet.device[types], fit)
    scaled = _scaled(case, single, fit, types, count[rows])
    parts_s = _parts(case, single, fit, scaled, types)
    of_size = case.anchors.size_log_sd(dp[rows])
    log_sd = np.sqrt(single.log_sd**2 + np.asarray(scaled.log_sd) ** 2 + of_size**2)
    _put_measured(case, fit, types, count[rows], parts_s, log_sd)
    step_s, shares = shares_of(parts_s)
    return TimeColumns(
        type_index=type_index,
        count=count,
        status=status,
        way=np.full(n, WAYS.index("data parallel")),
        step_s=spread(step_s, rows, n),
        log_sd=spread(log_sd, rows, n),
        shares={name: spread(part, rows, n) for name, part in shares.items()},
        layouts=integer_layouts(
            n,
            dp=dp,
            micro_batch=spread(fit.micro_batch, rows, n),
            accumulation_steps=spread(fit.accumulation_steps, rows, n),
            zero_stage=spread(fit.zero_stage, rows, n),
        ),
        memory_bytes=spread(fit.memory_bytes, rows, n),
        host_bytes=np.zeros(n),
        startup_s=case.startup_s(type_index),
        data_in_s=case.data_in_s(type_index),
        is_extrapolating=spread(single.is_extrapolating, rows, n) > 0,
        is_network_assumed=case.is_network_assumed(type_index, count),
    )


def admits(case: StepCase) -> bool:
    """Whether plain data parallelism is among the layouts that may be chosen."""
    space = case.space
    alone = all(degree in (None, 1) for degree in (space.tp, space.pp, space.cp, space.ep))
    alone &= max(space.min_tp, space.min_pp, space.min_cp, space.min_ep) == 1
    return alone and "none" in space.recomputes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Single:
    """One device's step, calibrated, one row a candidate. Times in seconds."""

    micro_batch_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    optimizer_launch_s: Floats
    compute: Floats
    memory: Floats
    launch: Floats
    log_sd: Floats
    is_extrapolating: NDArray[np.bool_]


def _single(case: StepCase, device: Integers, fit: Fit) -> _Single:
    """Evaluate the device model once for each distinct (device, micro-batch), then spread it."""
    fleet, anchors, constants = case.fleet, case.anchors, case.constants
    out = np.zeros((8, len(device)))
    extrapolating = np.zeros(len(device), dtype=bool)
    # Two grids, since accelerators see many more distinct micro-batches than CPUs do.
    is_cpu = np.array([d.kind == "cpu" for d in fleet.devices], dtype=bool)[device]
    for rows in (np.flatnonzero(is_cpu), np.flatnonzero(~is_cpu)):
        if rows.size == 0:
            continue
        used, at_device = np.unique(device[rows], return_inverse=True)
        batches, at_batch = np.unique(fit.micro_batch[rows], return_inverse=True)
        targets = [fleet.devices[i] for i in used]
        columns: StepColumns = step_time(case.work, targets, batches, constants.device)
        factor, log_sd = anchors.calibration(targets, columns.log_sd, constants)
        scale = np.exp(factor)[at_device]
        cell = (at_device, at_batch)
        parts = (columns.micro_batch_s, columns.backward_s, columns.compute_s, columns.memory_s,
                 columns.launch_s)  # fmt: skip
        for i, part in enumerate(parts):
            out[i, rows] = part[cell] * scale
        out[5, rows] = columns.optimizer_s[at_device] * scale
        out[6, rows] = columns.optimizer_launch_s[at_device] * scale
        out[7, rows] = log_sd[at_device]
        extrapolating[rows] = columns.is_extrapolating[at_device]
    return _Single(
        micro_batch_s=out[0], backward_s=out[1], compute=out[2], memory=out[3], launch=out[4],
        optimizer_s=out[5], optimizer_launch_s=out[6], log_sd=out[7],
        is_extrapolating=extrapolating,
    )  # fmt: skip


def _scaled(
    case: StepCase, single: _Single, fit: Fit, type_index: Integers, count: Integers
) -> DataParallelColumns:
    work, fleet = case.work, case.fleet
    # Machines whose devices one switch fabric joins are a node to a ring.
    joined = np.minimum(fleet.domain_machines[type_index], count)
    nodes = -(-count // joined)
    network = fleet.network_bytes_per_s[type_index] * joined
    return data_parallel_step(
        micro_batch_s=single.micro_batch_s,
        backward_s=single.backward_s,
        optimizer_s=single.optimizer_s,
        accumulation_steps=fit.accumulation_steps,
        gradient_bytes=work.gradient_bytes,
        nodes=nodes,
        devices_per_node=fleet.per_node[type_index] * count / nodes,
        intra_bytes_per_s=fleet.intra_bytes_per_s[type_index],
        intra_latency_s=fleet.intra_latency_s[type_index],
        network_bytes_per_s=np.where(nodes > 1, network, np.inf),
        network_latency_s=fleet.network_latency_s[type_index],
        zero_stage=fit.zero_stage,
        has_rdma=fleet.is_rdma[type_index],
        parameters=case.constants.scaling,
    )


def _put_measured(
    case: StepCase, fit: Fit, type_index: Integers, count: Integers,
    parts_s: dict[Bottleneck, Floats], log_sd: Floats,
) -> None:  # fmt: skip
    """Replace what the job's own runs on such machines know better: step, network and error."""
    per_node = case.fleet.per_node[type_index]
    batch = fit.micro_batch * fit.accumulation_steps
    for law, rows in fitted_rows(case.clusters, case.fleet, type_index):
        asked = placements(count[rows], per_node[rows], batch[rows])
        step_s, log_sd[rows] = law.predict(asked)
        of_law = law.parts(asked)
        network = step_s * of_law.exposed_s / of_law.step_s
        rest = sum(part[rows] for name, part in parts_s.items() if name != "network")
        scale = (step_s - network) / np.maximum(rest, 1e-30)
        for name, part in parts_s.items():
            part[rows] = network if name == "network" else part[rows] * scale


def _parts(
    case: StepCase, single: _Single, fit: Fit, scaled: DataParallelColumns, type_index: Integers
) -> dict[Bottleneck, Floats]:
    """Return what the step waits for, loading included; the parts add up to it [s]."""
    step_s = np.asarray(scaled.step_s, dtype=float)
    waiting = case.waiting_s(step_s, fit.micro_batch * fit.accumulation_steps, type_index)
    network = np.asarray(scaled.exposed_s) + np.asarray(scaled.straggler_s)
    device_s = np.maximum(step_s - network, 0.0)
    busy = np.maximum(single.compute + single.memory + single.launch, 1e-30)
    # The optimizer streams its state through memory, a small one only starts kernels.
    optimizer = np.minimum(single.optimizer_s, device_s)
    starts = np.minimum(single.optimizer_launch_s, optimizer)
    working = (device_s - optimizer) / busy
    return {
        "compute": single.compute * working,
        "memory": single.memory * working + optimizer - starts,
        "launch": single.launch * working + starts,
        "network": step_s - device_s,
        "input": waiting,
    }
