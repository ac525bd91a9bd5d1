"""Layer swapping as columns: every row of machines that is faster with it, or fits only so (ATOM).

Asked for only (``SearchSpace.swaps``): no released framework swaps layers, and peers that average
every K steps do local SGD, whose extra steps are not modelled. The step is that of
``ways.swap_peers``, as ``plan`` shows it of a cluster.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Accelerator
from advisor.domain import Bottleneck
from advisor.errors import CatalogueError
from advisor.machines.cluster import ClusterGroup
from advisor.machines.parts import part
from advisor.planners.core.columns import RECOMPUTES
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.tables import put, select
from advisor.planners.swapping.atom import AVERAGE_EVERY
from advisor.ways.case import StepCase
from advisor.ways.columns import CODE, WAITS, WAYS, TimeColumns, integer_layouts, shares_of
from advisor.ways.group_columns import is_extrapolating
from advisor.ways.layer_swapping import NAME, UNRELEASED, averaging_notes
from advisor.ways.model_parallel import machine_key
from advisor.ways.places import Place
from advisor.ways.swap_peers import PeersOn, SwapQuestion, SwapStep, least_step_s, swap_step
from advisor.ways.unit_models import model_at
from advisor.ways.units import node_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SWAPPING: Final = WAYS.index(NAME)
# Rows that other ways leave without an answer, and that peers with the whole model each may have.
_OPEN: Final = ("ok", "does_not_fit_in_memory", "excluded_by_layout", "batch_does_not_divide")
# Sums in another order differ in the last digits.
_EXACT: Final = 1.0 - 1e-9


def with_swapping(case: StepCase, columns: TimeColumns) -> TimeColumns:
    """Return columns with layer swapping where it is faster, or the only way that fits.

    Parameters
    ----------
    case : StepCase
    columns : TimeColumns
        The best of the other ways.
    """
    rows, found = [], []
    for row in np.flatnonzero(_is_open(case, columns)).tolist():
        below_s = float(columns.step_s[row]) if columns.status[row] == 0 else math.inf
        step = _swapped(case, int(columns.type_index[row]), int(columns.count[row]), below_s)
        if step is not None:
            rows.append(row)
            found.append(step)
    if not rows:
        return columns
    at = np.array(rows)
    return put(columns, at, _columns(case, select(columns, at), found))


def could_swap(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows for which swapping may be faster than what is known, or fit at all."""
    is_open = _is_open(case, columns)
    rows = np.flatnonzero(is_open)
    known_s = np.where(columns.status == 0, np.nan_to_num(columns.step_s, nan=np.inf), np.inf)
    least_s = least_swap_s(case, columns.type_index[rows], columns.count[rows])
    is_open[rows] = least_s < known_s[rows]
    return is_open


def least_swap_s(case: StepCase, type_index: Integers, count: Integers) -> Floats:
    """Return a bound from below on the step of swapping peers; inf where there can be none [s].

    Parameters
    ----------
    case : StepCase
    type_index, count : integer arrays of shape (n,)
    """
    found = np.full(len(count), np.inf)
    for place, (row, n) in enumerate(zip(type_index.tolist(), count.tolist(), strict=True)):
        on = _peers(case, row)
        if on is not None:
            found[place] = _EXACT * least_step_s([on], _asked(case, on, n))
    return found


def swapping_reasons(columns: TimeColumns, row: int) -> tuple[str, ...]:
    """Return what a reader must know of a row whose peers swap layers."""
    every = int(np.asarray(columns.layouts.average_every)[row])
    averaging_s = float(columns.shares["network"][row] * columns.step_s[row])
    return (
        "layer swapping: every GPU trains the whole model, its layers loaded from host memory",
        *averaging_notes(every, averaging_s),
        UNRELEASED,
    )


def _is_open(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows on accelerators that only memory, links or the layout may speak against."""
    can_run = np.isin(columns.status, [CODE[name] for name in _OPEN])
    return np.asarray(can_run & case.fleet.is_accelerated[columns.type_index])


def _swapped(case: StepCase, row: int, count: int, below_s: float) -> SwapStep | None:
    on = _peers(case, row)
    if on is None:
        return None
    try:
        return swap_step([on], _asked(case, on, count), below_s=below_s)
    except PlanningError:
        return None


def _asked(case: StepCase, on: PeersOn, count: int) -> SwapQuestion:
    return SwapQuestion(
        peers=count * on.place.group.node.devices,
        global_batch=case.job.global_batch,
        average_every=case.space.average_every or AVERAGE_EVERY,
        space=case.space,
    )


def _peers(case: StepCase, row: int) -> PeersOn | None:
    """Return the model on the GPUs of a type, made once; None where little is known of them."""
    fleet = case.fleet
    beside = (fleet.network_latency_s, fleet.vcpus, np.nan_to_num(fleet.core_speed))
    key = ("swapping", *machine_key(case, row), *(column[row].item() for column in beside))
    if key not in case.seen:
        name = fleet.devices[fleet.device[row]].name.partition("/")[0]
        known = case.accelerators.get(name)
        case.seen[key] = None if known is None else _peers_on(case, row, known)
    found: PeersOn | None = case.seen[key]
    return found


def _peers_on(case: StepCase, row: int, known: Accelerator) -> PeersOn | None:
    try:
        node, card = node_of(case.fleet, row, case.accelerators), part(known)
    except CatalogueError:
        return None
    group = ClusterGroup(label=node.name, node=node, part=card, count=1)
    place = Place(group=group, case=case, row=row)
    return PeersOn(model=model_at(case, (place,)), place=place)


def _columns(case: StepCase, before: TimeColumns, found: list[SwapStep]) -> TimeColumns:
    """Return rows of swapping peers; start and data are those of the other ways."""
    parts: dict[Bottleneck, Floats] = {
        name: np.array([step.parts_s.get(name, 0.0) for step in found]) for name in WAITS
    }
    step_s, shares = shares_of(parts)
    devices = case.fleet.per_node[before.type_index]
    plans = [step.plan for step in found]
    return replace(
        before,
        status=np.zeros_like(before.status),
        way=np.full_like(before.way, SWAPPING),
        step_s=step_s,
        log_sd=np.array([step.log_sd for step in found]),
        shares=shares,
        layouts=integer_layouts(
            len(found),
            dp=devices * before.count,
            micro_batch=[step.model.micro_batch for step in found],
            accumulation_steps=[plan.accumulation_steps for plan in plans],
            recompute=RECOMPUTES.index("full"),
            offloads_optimizer=1,
            offloads_parameters=1,
            average_every=[plan.average_every for plan in plans],
        ),
        memory_bytes=np.array([step.memory_bytes for step in found]),
        host_bytes=np.array([plan.host_bytes for plan in plans]) * devices,
        is_extrapolating=np.array([is_extrapolating(case, int(row)) for row in before.type_index]),
    )


class LayerSwapping:
    """Layer swapping as one of the ways beside the layouts (``ways.beside``)."""

    name: Final = NAME

    def applies(self, case: StepCase) -> bool:
        """Whether it is asked for."""
        return case.space.swaps

    def columns(self, case: StepCase, columns: TimeColumns) -> TimeColumns:
        """Return the best of the other ways' rows and its own."""
        return with_swapping(case, columns)

    def could_win(self, case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
        """Return the rows that it may do better, or alone."""
        return could_swap(case, columns)

    def bound(self, case: StepCase, type_index: Integers, count: Integers) -> Floats:
        """Return a bound from below on its step [s]."""
        return least_swap_s(case, type_index, count)

    def words(self, columns: TimeColumns, row: int) -> tuple[str, ...]:
        """Return what a reader must know of one of its rows."""
        return swapping_reasons(columns, row)


LAYER_SWAPPING: Final = LayerSwapping()
