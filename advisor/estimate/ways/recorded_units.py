"""A recorded model cut at its own modules: pipelines, divided blocks, recomputation, offload.

What plain data parallelism (``ways.data_parallel``) does not do for a model that is no described
transformer: the units of its layers are laid out by ``planners.layouts.unit_search``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Accelerator, TypeColumns
from advisor.errors import UsageError
from advisor.estimate.case import StepCase, machine_key
from advisor.estimate.time_columns import CODE, TimeColumns, way_code
from advisor.estimate.ways.data_parallel import kept_free_bytes
from advisor.estimate.ways.model_parallel import put_layout, waiting_parts
from advisor.jobs import Job
from advisor.machines import host_device, host_fits, host_room_bytes
from advisor.planners.core import Device, Link, Node, PlanningError, UnitTimes
from advisor.planners.layouts import PlannedLayout, SearchSpace, UnitProblem, search_units
from advisor.planners.links import data_parallel_step, hierarchical_all_reduce_s
from advisor.planners.memory import UnitTable
from advisor.planners.step import (
    Devices,
    TransformerBlocks,
    Unit,
    step_time,
    transformer_blocks,
    unit_times,
    work_units,
)

WAY: Final = way_code("recorded units")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MICRO_BATCHES: Final = np.exp2(np.arange(17))
_DEEPEST: Final = 64
# Rows whose cuts are bounded at once: their columns stay small.
_AT_ONCE: Final = 256


def least_pipelined_s(
    case: StepCase, type_index: Integers, count: Integers, degrees: tuple[int, ...],
    output_bytes: Floats, *, reduced: Mapping[int, float] | None = None,
) -> Floats:  # fmt: skip
    """Return a bound from below on the step of any cut on so many machines of each type [s].

    Filling and draining the stages, evenly cut, and the smallest sends between them: of every
    micro-batch u that is tried and depth p, t + (p - 1) s + (m - 1) max(t / p, s) with m u the
    samples of a data-parallel rank. Divided blocks start all their kernels on every rank.

    ``type_index``, ``count``: shape (n,); ``degrees``: tensor-parallel ranks that the model can be
    divided over; ``output_bytes``: (n_units,); what each unit hands on [bytes/sample];
    ``reduced``: by degree, the share of the gradients that its ranks reduce each: with it also
    what no backward pass hides of that, and the model that is not cut at all.
    """
    best = np.full(len(type_index), np.inf)
    least = float(output_bytes[:-1].min(initial=np.inf))
    for start in range(0, len(type_index), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        cuts = _cuts(case, type_index[part], count[part], degrees, len(output_bytes))
        if reduced is None:
            cuts = tuple(one[(cuts[1] > 1) | (cuts[2] > 1)] for one in cuts)
        row, *ways = cuts
        if row.size:
            found = _cut_s(case, type_index[part][row], count[part][row], ways, least, reduced)
            rows, first = np.unique(row, return_index=True)
            best[start + rows] = np.minimum.reduceat(found, first)
    return best


def _cuts(
    case: StepCase, type_index: Integers, count: Integers, degrees: tuple[int, ...], units: int
) -> tuple[Integers, ...]:
    """Return rows, rising, with their tensor-parallel ranks, stages and data-parallel ranks."""
    per_node = case.fleet.per_node[type_index][:, None, None].astype(np.int64)
    tp = np.array(degrees, dtype=np.int64)[None, :, None]
    depth = np.arange(1, min(units, _DEEPEST) + 1)[None, None, :]
    devices = per_node * count[:, None, None]
    ranks = devices // (tp * depth)
    stage = np.maximum(ranks * tp, 1)
    is_cut = (devices % (tp * depth) == 0) & (per_node % tp == 0)
    is_cut &= (stage % per_node == 0) | (per_node % stage == 0)
    row, t, d = np.nonzero(is_cut & (ranks <= case.job.global_batch))
    return row, tp[0, t, 0], depth[0, 0, d], ranks[row, t, d]


def _cut_s(
    case: StepCase, type_index: Integers, count: Integers, ways: list[Integers], least: float,
    reduced: Mapping[int, float] | None,
) -> Floats:  # fmt: skip
    """Return the least step of each cut over the micro-batches that are tried, (n,) [s]."""
    (tp, depth, ranks), device = ways, case.fleet.device[type_index]
    launch, busy, backward = case.once(("whole passes",), lambda: _passes(case))
    local, fixed = -(-case.job.global_batch // ranks), case.space.micro_batch
    halved = np.exp2(np.arange(int(local.max()).bit_length())).astype(np.int64)[:, None]
    size = -(-local // halved) if fixed is None else np.full((1, len(local)), fixed)
    steps = -(-local // size)
    through = _at(launch[device] + busy[device] / tp[:, None], size)
    if reduced is not None:
        through = through + _exchanged_s(case, type_index, tp, size)
    latency, each = _send_s(case, type_index, count, ranks, tp, least)
    send = np.where(depth > 1, latency + each * size if np.isfinite(least) else 0.0, 0.0)
    found = through + (depth - 1) * send + (steps - 1) * np.maximum(through / depth, send)
    if reduced is not None:
        hides = _at(backward[device], size)
        shares = np.array([reduced[int(one)] for one in tp]) / depth
        found = _with_reductions_s(case, type_index, ways, shares, (found, steps, hides))
    return np.asarray(found.min(axis=0))


def _passes(case: StepCase) -> tuple[Floats, Floats, Floats]:
    """Return launching, computing and the backward pass by device and micro-batch [s]."""
    devices = case.fleet.devices
    columns = step_time(case.work, devices, _MICRO_BATCHES, case.constants.device)
    scale = np.exp(case.calibrated(np.arange(len(devices)))[0])[:, None]
    busy = columns.compute_s + columns.memory_s
    return columns.launch_s * scale, busy * scale, columns.backward_s * scale


def _exchanged_s(case: StepCase, type_index: Integers, tp: Integers, size: Integers) -> Floats:
    """Return what the ranks of divided blocks exchange in both passes of micro-batches [s]."""
    model, fleet = unit_model(case), case.fleet
    if not isinstance(blocks := model.blocks, TransformerBlocks):
        return np.zeros(size.shape)
    message = size * (blocks.tokens * blocks.hidden * blocks.element_bytes)
    intra, network = _rates(fleet, type_index)
    once = hierarchical_all_reduce_s(
        message, tp, 1, intra, fleet.intra_latency_s[type_index], network,
        fleet.network_latency_s[type_index], case.constants.scaling.collectives,
    )  # fmt: skip
    return np.asarray(4.0 * np.count_nonzero(model.table.is_block) * once)


def _rates(fleet: TypeColumns, type_index: Integers) -> tuple[Floats, Floats]:
    """Return what the links of planners' machines carry, inside and between them [bytes/s]."""
    intra, network = fleet.intra_bytes_per_s[type_index], fleet.network_bytes_per_s[type_index]
    return np.minimum(intra, 1e15), np.minimum(np.nan_to_num(network, nan=1e15), 1e15)


def _send_s(
    case: StepCase, type_index: Integers, count: Integers, ranks: Integers, tp: Integers,
    least: float,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return latency, and time a sample, of handing over the smallest cut there and back [s]."""
    fleet = case.fleet
    senders = np.maximum(np.minimum(ranks * tp, fleet.per_node[type_index]) // tp, 1)
    with np.errstate(invalid="ignore"):  # without a cut, over links that nothing crosses
        across = least * senders / fleet.network_bytes_per_s[type_index]
        inside = least / tp / fleet.intra_bytes_per_s[type_index]
    is_one = count == 1
    latency = np.where(
        is_one, fleet.intra_latency_s[type_index], fleet.network_latency_s[type_index]
    )
    return 2 * latency, 2 * np.where(is_one, inside, across)


def _with_reductions_s(
    case: StepCase, type_index: Integers, ways: list[Integers], shares: Floats,
    passes: tuple[Floats, Integers, Floats],
) -> Floats:  # fmt: skip
    """Return times of cuts with what no backward pass hides of the reductions, (sizes, n) [s].

    As ``UnitProblem.least_reduced_s``. ``passes``: all passes, micro-batches, and the backward
    pass of one.
    """
    fleet, (tp, depth, ranks), (found, steps, hides) = case.fleet, ways, passes
    per_node, is_whole = fleet.per_node[type_index].astype(np.int64), depth == 1
    several, zero = np.where(is_whole, steps, 1), np.array(case.space.zero_stages)[:, None, None]
    intra, network = _rates(fleet, type_index)
    columns = data_parallel_step(
        micro_batch_s=found / several, backward_s=hides, optimizer_s=0.0,
        accumulation_steps=several, gradient_bytes=case.work.gradient_bytes * shares,
        buffer_bytes=case.work.buffer_bytes * shares,
        nodes=np.maximum(1, ranks * tp // per_node),
        devices_per_node=np.minimum(ranks * tp, per_node) // tp,
        intra_bytes_per_s=intra, intra_latency_s=fleet.intra_latency_s[type_index],
        network_bytes_per_s=network / tp, network_latency_s=fleet.network_latency_s[type_index],
        has_rdma=fleet.rdma_share[type_index], zero_stage=zero,
        parameters=case.constants.scaling,
    )  # fmt: skip
    left = columns.communication_s * np.where(zero == 3, 2 / 3, 1.0)
    left = np.maximum(left - case.constants.scaling.overlap_fraction * hides, 0.0)
    return np.asarray(np.where(is_whole, columns.step_s, found + left).min(axis=0))


def _at(values: Floats, micro_batch: Integers) -> Floats:
    """Return times at micro-batches between the tabulated ones, as units are timed [s].

    ``values``: (n, tabulated); ``micro_batch``: (..., n).
    """
    below = np.clip(np.log2(micro_batch).astype(np.int64), 0, len(_MICRO_BATCHES) - 2)
    share, rows = micro_batch / _MICRO_BATCHES[below] - 1.0, np.arange(len(values))
    return np.asarray(values[rows, below] * (1 - share) + values[rows, below + 1] * share)


# Micro-batches at which units are timed: the device model is piecewise linear in between.
_TABULATED: Final = tuple(float(2**k) for k in range(17))
_HOST_BYTES_PER_S: Final = 11.1e9
# Only a layout that is faster by more than measurements scatter is worth its complexity.
GAIN: Final = 1.03
# What a faster layout could save of the whole job, below which none is looked for. [s]
_WORTH_SEARCHING_S: Final = 60.0


def improved(case: StepCase, columns: TimeColumns, most_s: Floats | None = None) -> TimeColumns:
    """Return the columns with every row that units lay out faster, or at all, replaced.

    Looked at are the rows that plain data parallelism does not fit, and those that could gain:
    whose step is not all computing.

    ``columns``: of ``data_parallel``; changed in place; ``most_s``: (n,); slower steps are not
    looked for, inf by default: a row where nothing is known then counts as dominated [s].
    """
    model = unit_model(case)
    for row in np.flatnonzero(could_gain(case, columns)):
        at = int(columns.type_index[row])
        plain_s = columns.step_s[row]
        worth_s = np.inf if np.isnan(plain_s) else plain_s / GAIN
        limit_s = np.inf if most_s is None else float(most_s[row])
        found = model.best(at, int(columns.count[row]), min(worth_s, limit_s))
        if found is not None and not found.step_s * GAIN >= plain_s:
            put_layout(columns, int(row), found, WAY, waiting_parts(found))
            columns.log_sd[row] = found.log_sd
        elif found is None and np.isnan(plain_s) and np.isfinite(limit_s):
            columns.status[row] = CODE["dominated"]
    return columns


def could_gain(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows that another layout could make faster by more than ``GAIN``, or fit at all.

    What no device or host of a row can hold, however the model is cut, is left out at once.
    Machines without accelerators are cut into stages only where nothing else fits; no machines are
    where all waiting of the whole job is shorter than ``_WORTH_SEARCHING_S``, or where a device
    mostly waits for its kernels to be started: stages and divided blocks start as many. A row's
    answer depends on nothing but the row, so that every verb gives the same.
    """
    fleet, at = case.fleet, columns.type_index
    is_starved = _starved(case)[fleet.device[at]]
    is_accelerated = fleet.is_accelerated[at]
    with np.errstate(invalid="ignore"):
        waits = columns.shares["network"] > 1.0 - 1.0 / GAIN
        waiting_s = columns.shares["network"] * columns.step_s * case.job.paid_steps
        waits &= waiting_s > _WORTH_SEARCHING_S
    is_several = np.asarray(columns.layouts.dp) > 1
    waits &= (columns.status == 0) & is_several & is_accelerated & ~is_starved
    holds = fleet.devices.fact("memory_bytes")[fleet.device[at]] >= unit_model(case).least_bytes
    holds &= host_fits(case.job, case.work, fleet, at)
    lacks_layout = [CODE["does_not_fit_in_memory"], CODE["excluded_by_layout"]]
    is_crowded = (columns.status == CODE["fewer_samples_than_workers"]) & holds & ~is_starved
    found = (np.isin(columns.status, lacks_layout) & holds) | waits | is_crowded
    rows = np.flatnonzero(waits | is_crowded)
    least_s = _least_s(case, at[rows], columns.count[rows])
    found[rows] = np.where(
        is_crowded[rows],
        np.isfinite(least_s) & (least_s * case.job.paid_steps > _WORTH_SEARCHING_S),
        least_s * GAIN < columns.step_s[rows],
    )
    return np.asarray(found)


def _least_s(
    case: StepCase, type_index: Integers, count: Integers, *, closely: bool = False
) -> Floats:
    """Return a bound from below on the step of any cut of the units on these machines [s].

    ``closely``: of any layout at all, with the reductions.
    """
    model, shares = unit_model(case), None
    outputs = np.array([part.output_bytes_per_sample for part in model.parts])
    if closely:
        held = {tp: float(model.table.held_parameters(tp).sum()) for tp in model.degrees}
        shares = {tp: one / max(case.work.parameters, 1) for tp, one in held.items()}
    return least_pipelined_s(case, type_index, count, model.degrees, outputs, reduced=shares)


def least_laid_out_s(case: StepCase, columns: TimeColumns, rows: Integers) -> Floats:
    """Return a bound from below on some rows' step, plain data parallel or by units [s]."""
    at, count = columns.type_index[rows], columns.count[rows]
    return np.fmin(columns.step_s[rows], _least_s(case, at, count, closely=True))


def _starved(case: StepCase) -> NDArray[np.bool_]:
    """Return which devices mostly wait for kernels to be started, with an eighth of the batch."""

    def made() -> NDArray[np.bool_]:
        batch = [max(case.job.global_batch / 8, 1.0)]
        columns = step_time(case.work, case.fleet.devices, batch, case.constants.device)
        return np.asarray(columns.launch_s[:, 0] > 0.5 * columns.micro_batch_s[:, 0])

    return case.once(("starved",), made)


def unit_model(case: StepCase) -> UnitModel:
    """Return the job's units over the case's fleet, made once.

    A described model has no modules that stages or divided blocks could be named by, and its
    framework no switch: it is cut only where that is asked for.
    """
    space, job = case.space, case.job
    is_whole = (space.tp, space.pp, space.min_tp, space.min_pp) == (None, None, 1, 1)
    if is_whole and job.measured is None and not job.is_rehearsed:
        case = replace(case, space=replace(space, tp=1, pp=1))
    return case.once(("units",), lambda: UnitModel(case))


class UnitModel:
    """A job's units on the machines of a fleet, timed once a device."""

    def __init__(self, case: StepCase) -> None:
        self.case = case
        self.parts: tuple[Unit, ...] = work_units(case.work)
        self.blocks: TransformerBlocks | str = transformer_blocks(
            case.work, self.parts, heads=case.job.heads
        )
        self.table = UnitTable.of(self.parts, case.work)
        self._timed: dict[tuple[Device, int], UnitTimes] = {}
        self._found: dict[tuple[object, ...], PlannedLayout | None] = {}
        self._seen: dict[Hashable, Any] = {}

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel ranks that some machine of the fleet has room for."""
        if not isinstance(self.blocks, TransformerBlocks):
            return (1,)
        return tuple(self.blocks.degrees(int(self.case.fleet.per_node.max(initial=1))))

    @property
    def widest(self) -> int:
        """Most tensor-parallel ranks on any machine of the fleet."""
        return max(self.degrees)

    @property
    def least_bytes(self) -> float:
        """Device memory without which no cut helps: one sample in the largest unit [bytes]."""
        memory = self.case.constants.memory
        largest = max(part.saved_bytes_per_sample for part in self.parts) / self.widest
        return float(min(memory.context_bytes, memory.process_bytes) + largest)

    def best(self, row: int, count: int, worth_s: float = float("inf")) -> PlannedLayout | None:
        """Return the best layout on ``count`` machines of a type, None where nothing fits.

        ``worth_s``: slower steps are not looked for.
        """
        case = self.case
        vcpus, load_s = float(case.fleet.vcpus[row]), self._load_s(row)
        key = (*machine_key(case, row), vcpus, load_s, count, worth_s)
        if key not in self._found:
            found = self._searched(row, count, worth_s)
            self._found[key] = found if isinstance(found, PlannedLayout) else None
        return self._found[key]

    def refusal(self, row: int, count: int) -> PlanningError | None:
        """Return why nothing fits on ``count`` machines of a type, None where something does."""
        found = self._searched(row, count)
        return found if isinstance(found, PlanningError) else None

    def _searched(
        self, row: int, count: int, worth_s: float = float("inf")
    ) -> PlannedLayout | PlanningError:
        space, batch = self.case.space, self.case.job.global_batch
        try:
            return search_units(self.problem(row), count, batch, space=space, worth_s=worth_s)
        except PlanningError as error:
            return error

    def problem(self, row: int) -> UnitProblem:
        """Return the units to be laid out on machines of a type."""
        case = self.case
        node = node_of(case.fleet, row, case.accelerators)
        room = host_room_bytes(case.job, case.work, case.fleet, row)
        blocks = self.blocks if isinstance(self.blocks, TransformerBlocks) else None
        degrees = blocks.degrees(node.devices) if blocks else (1,)
        free = kept_free_bytes(
            np.array([node.device.memory_bytes]), case.fleet.is_accelerated[[row]]
        )
        return UnitProblem(
            work=case.work,
            table=self.table,
            blocks=blocks,
            memory=case.constants.memory,
            scaling=case.constants.scaling,
            node=replace(node, memory_bytes=max(room, 1.0)),
            times={tp: self.times(node.device, tp) for tp in degrees if tp <= case.space.max_tp},
            kept_free_bytes=float(free[0]),
            parameters=case.constants.layout.parameters,
            load_s_per_sample=self._load_s(row),
            loads_inline=case.job.feed.workers == 0,
            seen=self._seen,
        )

    def _load_s(self, row: int) -> float:
        """Return what a machine of a type takes to load a device's sample [s]."""
        return float(self.case.loading_s(np.ones(1), np.array([row]))[0])

    def times(self, device: Device, tp: int = 1) -> UnitTimes:
        """Return the units' times on a device, calibrated; made once for all accelerators."""
        if (device, tp) not in self._timed:
            fleet = self.case.fleet
            devices = fleet.devices.take(np.unique(fleet.device[fleet.is_accelerated]))
            if device not in devices:  # a processor, or a share of a device, of a group
                devices = Devices.of([device])
            found = _units_times(self.case, self.parts, devices, tp)
            self._timed |= {(one, tp): of for one, of in zip(devices, found, strict=True)}
        return self._timed[device, tp]


def _units_times(
    case: StepCase, parts: tuple[Unit, ...], devices: Devices, tp: int
) -> list[UnitTimes]:
    constants = case.constants
    factor, log_sd = case.calibrated_on(devices)
    return unit_times(
        case.work, parts, devices, _TABULATED, constants.device, host=measured_on(case.job),
        gain=constants.calibration.cpu_to_accelerator, log_factor=factor, log_sd=log_sd, tp=tp,
    )  # fmt: skip


def measured_on(job: Job) -> Device | None:
    """Return the device that the job's layers were measured on, None where there is none."""
    seen = job.measured
    return None if seen is None else host_device(seen.host, seen.threads, seen.device)


def node_of(fleet: TypeColumns, row: int, accelerators: Mapping[str, Accelerator]) -> Node:
    """Return one type of a fleet as the planners' machine."""
    device = fleet.devices[fleet.device[row]]
    speed, (intra, network) = float(fleet.core_speed[row]), _rates(fleet, np.array([row]))
    return Node(
        name=device.name,
        device=device,
        devices=int(fleet.per_node[row]),
        domain_machines=int(fleet.domain_machines[row]),
        intra=Link(
            name="intra", bytes_per_s=float(intra[0]), latency_s=float(fleet.intra_latency_s[row])
        ),
        network=Link(
            name="network",
            bytes_per_s=float(network[0]),
            latency_s=float(fleet.network_latency_s[row]),
            rdma_share=float(fleet.rdma_share[row]),
        ),
        host=Link(name="pcie", bytes_per_s=host_bytes_per_s(device, accelerators)),
        vcpus=int(min(float(fleet.vcpus[row]), 1e9)),
        core_speed=None if np.isnan(speed) else speed,
        memory_bytes=float(fleet.memory_bytes[row]),
    )


def host_bytes_per_s(device: Device, accelerators: Mapping[str, Accelerator]) -> float:
    """Return the rate between host memory and a device, by its PCIe generation [bytes/s]."""
    row = accelerators.get(device.name.partition("/")[0])
    return _HOST_BYTES_PER_S if row is None else row.laid_out().host_bytes_per_s


_OF_SHAPES: Final = ("cp", "ep", "etp")


# What ``planners.layouts.unit_search`` moves of a recorded step; gradients go with the optimizer.
_MOVED: Final = (
    {"optimizer"}, {"optimizer", "gradients"}, {"activations"}, {"optimizer", "parameters"},
    {"optimizer", "gradients", "parameters"},
)  # fmt: skip


def check_space(job: Job, space: SearchSpace) -> None:
    """Refuse what only a transformer of known dimensions can be asked.

    Raises UsageError if context or expert parallelism, or selective recomputation, is demanded of
    another job.
    """
    work = job.work
    if work is None or (work.transformer is not None and not work.layers):
        return
    what = (
        "a model that is not a transformer"
        if job.measured is None and not job.is_rehearsed
        else "a recorded run"
    )
    for name in _OF_SHAPES:
        if (getattr(space, name) or 1) > 1:
            raise UsageError(
                f"--{name} is not for {what}: the dimensions of its layers are not known",
                hint="describe the transformer (--model config.json), or leave it out",
            )
    if space.updates_in_backward:
        raise UsageError(
            f"--optimizer-in-backward is not for {what}: it updates as its script does",
            hint="profile a script that updates so, or describe the transformer",
        )
    if space.moves is not None and set(space.moves) not in _MOVED:
        raise UsageError(
            f"--offload {','.join(space.moves)} is not for {what}",
            hint="--offload optimizer, optimizer,parameters or activations",
        )
    if space.schedule not in (None, "1f1b") or (space.chunks or 1) > 1:
        asked = f"--schedule {space.schedule}" if space.schedule else f"--chunks {space.chunks}"
        raise UsageError(
            f"{asked} is not for {what}: its stages run 1F1B, one chunk each",
            hint="describe the transformer (--model config.json), or leave it out",
        )
    if space.recomputes == ("selective",):
        raise UsageError(
            f"{what} is recomputed by whole units of layers", hint="--recompute none or full"
        )
