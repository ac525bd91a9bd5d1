"""The one estimate: this job, on these machines, in the best of all ways of training it there.

Where it does not run, ``refusal`` says for every verb by how much it misses, and what would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.errors import DoesNotFitError
from advisor.estimate.case import SPACE, StepCase, is_laid_out_by_shape
from advisor.estimate.completion import log_usual
from advisor.estimate.time_columns import STATUSES, TimeColumns
from advisor.estimate.ways.beside import BESIDE_WAYS
from advisor.estimate.ways.data_parallel import data_parallel
from advisor.estimate.ways.model_parallel import WAY as BY_SHAPE
from advisor.estimate.ways.model_parallel import (
    least_split_s,
    model_parallel,
    network_slope,
    on_machine,
    search,
    space_on,
    stack_spaces,
    within_links,
)
from advisor.estimate.ways.recorded_units import (
    GAIN,
    could_gain,
    improved,
    least_laid_out_s,
    unit_model,
)
from advisor.machines import assumed_network_log_sd, host_needed_bytes
from advisor.planners.core import GIB, PlanningError, put
from advisor.planners.layouts import INDISTINGUISHABLE, POSSIBLE, SearchSpace, check, nothing_fits
from advisor.planners.step import step_time
from advisor.reasons import OF_ESTIMATES

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Micro-batches among which the fewest seconds a sample are looked for.
_BATCHES: Final = tuple(float(2**k) for k in range(17))


def best_columns(
    case: StepCase, type_index: Integers, count: Integers, most_s: Floats | None = None
) -> TimeColumns:
    """Return the fastest layout of every row of machines, among all ways of training the job.

    A transformer on accelerators is laid out by its dimensions (``model_parallel``); everything
    else trains data parallel, or cut at its recorded units where that fits or is faster. Where the
    question admits them, the ways beside the layouts take the rows that they do better.

    ``type_index``, ``count``: shape (n,); ``most_s``: (n,); a row's step above which its answer
    is of no matter, so that slower layouts need not be looked for; inf by default [s].
    """
    columns = _best(case, type_index, count, most_s)
    for way in BESIDE_WAYS:
        if way.applies(case):
            columns = way.columns(case, columns)
    return believing(case, _with_assumed_networks(case, columns))


Found = TypeVar("Found")


def rented_or_possible(
    answer: Callable[[SearchSpace | None], Found], space: SearchSpace | None
) -> Found:
    """Return the answer of machines that are named: as surely as what is rented must fit.

    Where nothing fits so, what is as likely to fit as not.
    """
    try:
        return answer(space)
    except (PlanningError, DoesNotFitError) as error:
        usual = space or SPACE
        if error.exit_code != 3 or usual.sureness == POSSIBLE:
            raise
    return answer(replace(usual, sureness=POSSIBLE))


def believing(case: StepCase, columns: TimeColumns) -> TimeColumns:
    """Return the columns with what the job's own runs know of rows like theirs.

    Asked for exactly a given run, the answer lies within the scatter of such runs.
    """
    if case.believed is None:
        return columns
    from advisor.estimate.knowledge.own_runs import placed

    step_s, log_sd = columns.step_s.copy(), columns.log_sd.copy()
    for row in np.flatnonzero(columns.status == 0):
        kind, nodes = int(columns.type_index[row]), int(columns.count[row])
        added, left, scatter = case.believed.at(
            placed(case.fleet, kind, nodes, case.job.global_batch, float(columns.step_s[row]))
        )
        if left < 1.0:
            step_s[row] *= np.exp(added)
            log_sd[row] = np.sqrt(left * log_sd[row] ** 2 + scatter)
    return replace(columns, step_s=step_s, log_sd=log_sd)


def _best(
    case: StepCase, type_index: Integers, count: Integers, most_s: Floats | None
) -> TimeColumns:
    columns = _laid_out(case, type_index, count, model_parallel)
    is_by_shape = is_laid_out_by_shape(case, type_index).any()
    return columns if is_by_shape else improved(case, columns, most_s)


def _laid_out(
    case: StepCase, type_index: Integers, count: Integers,
    by_shape: Callable[[StepCase, Integers, Integers], TimeColumns] | None = None,
) -> TimeColumns:  # fmt: skip
    """Return rows by shape as ``by_shape`` says, others data parallel; without it only these."""
    is_by_shape = is_laid_out_by_shape(case, type_index)
    if not is_by_shape.any():
        return data_parallel(case, type_index, count)
    columns = case.no_times(BY_SHAPE, type_index, count)
    for rows, way in ((is_by_shape, by_shape), (~is_by_shape, data_parallel)):
        if way is not None and rows.any():
            found = way(case, type_index[rows], count[rows])
            columns = put(columns, np.flatnonzero(rows), found)
    return columns


def _with_assumed_networks(case: StepCase, columns: TimeColumns) -> TimeColumns:
    """Mark the rows that rest on an assumed network, widen their intervals, say what is usual."""
    rows = columns.type_index, columns.count
    is_assumed = case.is_network_assumed(*rows)
    slope = _network_slopes(case, columns, is_assumed)
    added = assumed_network_log_sd(case.fleet, *rows, slope)
    rates = case.fleet.network_bytes_per_s[columns.type_index]
    return replace(
        columns,
        log_sd=np.hypot(columns.log_sd, added),
        assumed_network_bytes_per_s=np.where(is_assumed, rates, np.nan),
        network_slope=slope,
        log_usual=log_usual(columns.step_s, (case, columns.type_index, columns.workers)),
    )


def _network_slopes(case: StepCase, columns: TimeColumns, is_assumed: NDArray[np.bool_]) -> Floats:
    """Return by how much ln(step) falls as the logarithm of the network rises, at most.

    The share that waits for it, and of a pipeline for its stages; exactly where a layout problem
    can be asked again.
    """
    slope = columns.shares["network"] + columns.shares["pipeline"]
    for row in np.flatnonzero(is_assumed & (columns.status == 0) & (columns.way == BY_SHAPE)):
        if np.isfinite(columns.step_s[row]):
            problem = on_machine(case, int(columns.type_index[row])).problem
            slope[row] = network_slope(problem, columns.layout(int(row)))
    return slope


def first_look(case: StepCase, type_index: Integers, count: Integers) -> TimeColumns:
    """Return what can be said of every row at little cost: plain data parallelism.

    Rows that are laid out by shape have no estimate yet: ``nan`` with status ok.
    """
    columns = _laid_out(case, type_index, count)
    return believing(case, _with_assumed_networks(case, columns))


def improvable(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows of a first look that a search may give another answer for."""
    by_shape = is_laid_out_by_shape(case, columns.type_index)
    if by_shape.any():
        return np.asarray(by_shape & (columns.status == 0))
    is_open = could_gain(case, columns)
    for way in BESIDE_WAYS:
        if way.applies(case):
            is_open |= way.could_win(case, columns)
    return is_open


def least_step_s(
    case: StepCase, columns: TimeColumns, rows: Integers, *, closely: bool = False
) -> Floats:
    """Return a bound from below on the step of some rows, in whatever layout [s].

    Computing alone, at the best micro-batch, shared evenly and with nothing waited for. For
    deciding which rows need a search (``rank.search``).

    ``rows``: (n,); rows of a first look that are ``improvable``; ``closely``: with what the best
    split waits for, too, which takes some hundred times as long.
    """
    type_index, count = columns.type_index[rows], columns.count[rows]
    if not closely:
        least_s = _least_step_s(case, type_index, count)
    elif is_laid_out_by_shape(case, type_index).any():
        least_s = least_split_s(case, type_index, count)
    else:
        least_s = least_laid_out_s(case, columns, rows)
    for way in BESIDE_WAYS:
        if way.applies(case):
            # What bounds the layouts need not hold for it.
            least_s = np.minimum(least_s, way.bound(case, type_index, count))
    if case.believed is not None:
        least_s = least_s * np.exp(min(0.0, 2.0 * min(case.believed.errors)))
    return least_s


def least_searched_s(case: StepCase, found: TimeColumns) -> Floats:
    """Return what no layout of rows is faster than, that were searched to the end [s].

    Of layouts that measurements would not tell apart the simpler one is the answer.
    """
    is_by_shape = is_laid_out_by_shape(case, found.type_index)
    return found.step_s / (INDISTINGUISHABLE * np.where(is_by_shape, 1.0, GAIN))


def is_no_faster(case: StepCase, type_index: Integers, than: int) -> NDArray[np.bool_]:
    """Return where no layout takes less than the best one on another machine.

    The devices are the same, and the links, the hosts' memory and the loading no better. False
    wherever more than the layout's own time decides.

    ``type_index``: (n,); ``than``: a row of the fleet's types.
    """
    fleet = case.fleet
    has_more = case.believed is not None or case.own is not None
    if has_more or any(way.applies(case) for way in BESIDE_WAYS):
        return np.zeros(len(type_index), dtype=bool)
    other, one = np.array([than]), np.ones(1)
    found = case.loading_s(np.ones(len(type_index)), type_index) >= case.loading_s(one, other)
    found &= is_laid_out_by_shape(case, type_index) == is_laid_out_by_shape(case, other)
    for column in (fleet.device, fleet.per_node, fleet.domain_machines, fleet.is_rdma):
        found &= column[type_index] == column[than]
    for better in (fleet.intra_bytes_per_s, fleet.network_bytes_per_s, fleet.memory_bytes,
                   -fleet.intra_latency_s, -fleet.network_latency_s):  # fmt: skip
        found &= better[type_index] <= better[than]
    return np.asarray(found)


def _least_step_s(case: StepCase, type_index: Integers, count: Integers) -> Floats:
    devices = case.fleet.per_node[type_index] * count
    if is_laid_out_by_shape(case, type_index).any():
        least_s = np.empty(len(devices))
        used, place = np.unique(type_index, return_inverse=True)
        for i, row in enumerate(used.tolist()):
            problem, of_type = on_machine(case, row).problem, place == i
            key = ("least device seconds", int(case.fleet.device[row]))
            device_s = case.once(key, problem.least_device_s_per_sample)
            least_s[of_type] = problem.least_step_s(
                devices[of_type], case.job.global_batch, device_s
            )
        return least_s
    used, place = np.unique(case.fleet.device[type_index], return_inverse=True)
    each, once = _least_of_operators(case, used)
    shared = each[place] * case.job.global_batch / devices
    return np.asarray(np.maximum(shared, once[place]))


def _least_of_operators(case: StepCase, device: Integers) -> tuple[Floats, Floats]:
    """Return bounds by the law of the operators: device-seconds of a sample, and of a step [s].

    Whatever the stages, a step takes the samples' device-seconds shared evenly, at a micro-batch
    that is no larger than the batch; and no less than one sample through the whole model, whose
    kernels every rank of a tensor-parallel group starts.
    """
    if not device.size:
        return np.zeros(0), np.zeros(0)
    targets = case.fleet.devices.take(device)
    batches = np.array([b for b in _BATCHES if b <= case.job.global_batch])
    columns = step_time(case.work, targets, batches, case.constants.device)
    factor, _ = case.calibrated(device)
    scale = np.exp(factor)
    widest = unit_model(case).widest
    each = (columns.micro_batch_s / batches).min(axis=1) * scale
    shared = (columns.compute_s + columns.memory_s)[:, 0] / widest
    return np.asarray(each), np.asarray((columns.launch_s[:, 0] + shared) * scale)


# Reasons that a search over layouts has more to say about.
_OF_LAYOUTS: Final = (
    "does_not_fit_in_memory", "fewer_samples_than_workers", "excluded_by_layout",
    "batch_does_not_divide",
)  # fmt: skip


def refusal(case: StepCase | None, columns: TimeColumns, row: int) -> PlanningError:
    """Return why a row of the columns has no estimate, with exit code 3, or 2 for contradictions.

    ``case``: that the columns were asked of; None of a program without steps, or where the
    status alone has to do.
    """
    status = STATUSES[int(columns.status[row])]
    found = None
    if case is not None and status in _OF_LAYOUTS:
        kind, count = int(columns.type_index[row]), int(columns.count[row])
        if (crowded := _of_processes(case, kind)) is not None:
            return crowded
        is_by_shape = bool(is_laid_out_by_shape(case, np.array([kind])).all())
        by_units = unit_model(case).refusal
        found = _of_shapes(case, kind, count) if is_by_shape else by_units(kind, count)
    if found is not None:
        return found
    reason = OF_ESTIMATES.get(status, {})
    return PlanningError(
        reason.get("why", status.replace("_", " ")),
        hint=reason.get("hint", "choose another type or count"), exit_code=3,
    )  # fmt: skip


def _of_processes(case: StepCase, kind: int) -> PlanningError | None:
    """Return by how much a machine's main memory misses the processes of its ranks, if it does."""
    needed = float(host_needed_bytes(case.job, case.work, case.fleet, np.array([kind]))[0]) / GIB
    there = float(case.fleet.memory_bytes[kind]) / GIB
    if not needed > there:
        return None
    ranks = int(case.fleet.per_node[kind])
    return PlanningError(
        f"{f'{ranks} processes need' if ranks > 1 else 'its process needs'} {needed:.3g} GiB of "
        f"main memory, {needed - there:.2g} GiB more than the {there:.3g} GiB of a machine",
        hint=f"choose a type with {math.ceil(needed)} GiB of main memory",
        exit_code=3,
    )


def _of_shapes(case: StepCase, kind: int, count: int) -> PlanningError:
    on = on_machine(case, kind)
    devices, batch = count * on.per_node, case.job.global_batch
    try:
        check(on.problem, devices, batch, space_on(case, on.problem))
    except PlanningError as error:
        return error
    # Where the search ended: in all that the stack can.
    space = within_links(stack_spaces(case.space, case.work.setup)[-1], on.problem)
    found = search(case, on.problem, devices)
    return nothing_fits(on.problem, found, devices, batch, space, case.space)
