"""Layer swapping (ATOM): every GPU trains the whole model, its layers loaded from host memory.

The peers average their weights every K steps, so that a slow network is met once in K steps and
not at every micro-batch. Between two averagings each peer takes K steps of its own: local SGD
(Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). What K costs in steps to
the same loss is **not** modelled; K = 1 is synchronous SGD, as in every other layout.

In the columns for those who ask (``SearchSpace.swaps``): no released framework swaps layers. The
steps are those of ``estimate.ways.swap_steps``, for ``plan``'s clusters and for every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Answer, Bottleneck
from advisor.ask import LayoutRequest
from advisor.errors import UsageError
from advisor.estimate.case import StepCase, machine_key
from advisor.estimate.time_columns import (
    CODE,
    WAITS,
    TimeColumns,
    integer_layouts,
    shares_of,
    way_code,
)
from advisor.machines import Cluster, assumed_network_log_sd, host_fits
from advisor.planners.core import GIB, RECOMPUTES, PlanningError, put, select
from advisor.planners.layouts import SearchSpace
from advisor.planners.memory import needed_of
from advisor.quantities import digits

if TYPE_CHECKING:
    from advisor.estimate.unlike.groups import OnGroups
    from advisor.estimate.ways.swap_steps import PeersOn, SwapStep

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NAME: Final = "layer swapping"
UNRELEASED: Final = "no released framework swaps layers this way (ATOM's code is not published)"
SWAPPING: Final = way_code(NAME)
# Rows that other ways leave without an answer, and that peers with the whole model each may have.
_OPEN: Final = ("ok", "does_not_fit_in_memory", "excluded_by_layout", "batch_does_not_divide")
# Sums in another order differ in the last digits.
_EXACT: Final = 1.0 - 1e-9


class LayerSwapping:
    """Layer swapping as one of the ways beside the layouts (``ways.beside``)."""

    name: Final = NAME

    def applies(self, case: StepCase) -> bool:
        """Whether it is asked for."""
        return case.space.swaps

    def columns(self, case: StepCase, columns: TimeColumns) -> TimeColumns:
        """Return the columns with swapping where it is faster, or the only way that fits."""
        found = {}
        for row in np.flatnonzero(_is_open(case, columns)).tolist():
            below_s = float(columns.step_s[row]) if columns.status[row] == 0 else math.inf
            step = _swapped(case, int(columns.type_index[row]), int(columns.count[row]), below_s)
            if step is not None:
                found[row] = step
        if not found:
            return columns
        at = np.array(list(found))
        return put(columns, at, _columns(case, select(columns, at), list(found.values())))

    def could_win(self, case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
        """Return the rows for which it may be faster than what is known, or fit at all."""
        is_open = _is_open(case, columns)
        rows = np.flatnonzero(is_open)
        known_s = np.where(columns.status == 0, np.nan_to_num(columns.step_s, nan=np.inf), np.inf)
        least_s = self.bound(case, columns.type_index[rows], columns.count[rows])
        is_open[rows] = least_s < known_s[rows]
        return is_open

    def bound(self, case: StepCase, type_index: Integers, count: Integers) -> Floats:
        """Return a bound from below on the step of swapping peers; inf where none can be [s]."""
        from advisor.estimate.ways.swap_steps import least_step_s

        found = np.full(len(count), np.inf)
        for place, (row, n) in enumerate(zip(type_index.tolist(), count.tolist(), strict=True)):
            if (on := _peers(case, row)) is not None:
                found[place] = _EXACT * least_step_s([on], on.asked(n * on.devices, case.space))
        return found

    def words(self, columns: TimeColumns, row: int) -> tuple[str, ...]:
        """Return what a reader must know of a row whose peers swap layers."""
        every = int(np.asarray(columns.layouts.average_every)[row])
        averaging_s = float(columns.shares["network"][row] * columns.step_s[row])
        return (
            "layer swapping: every GPU trains the whole model, its layers loaded from host memory",
            *averaging_notes(every, averaging_s),
            UNRELEASED,
        )

    def without(self, space: SearchSpace) -> SearchSpace:
        """Return the layouts to search, this way left out."""
        return replace(space, swaps=False)

    def is_asked(self, asked: LayoutRequest) -> bool:
        """Whether it was asked for by its own flag."""
        return bool(asked.swap)

    def stands_beside(self, cluster: Cluster, asked: LayoutRequest) -> bool:
        """Whether ``plan`` shows it: where asked for, or on consumer cards.

        ATOM was made for these: no NVLink, machines joined by Ethernet.
        """
        return all(g.part.is_consumer for g in cluster) if asked.swap is None else asked.swap

    def choice(self, case: OnGroups, asked: LayoutRequest) -> Answer:
        """Return it on every GPU of a cluster, each a peer; the slowest group rules the step.

        Raises UsageError if the interval of averaging is below 1. Raises PlanningError if the
        model does not fit into host memory, or no layer into a GPU.
        """
        from advisor.estimate.ways.swap_steps import PeersOn, swap_step

        if asked.average_every is not None and asked.average_every < 1:
            raise UsageError(
                f"--average-every {asked.average_every} is out of range",
                hint="1 averages after every step, 8 after every eighth",
            )
        kinds = [PeersOn(model=case.model, place=place) for place in case.model.places]
        space = replace(kinds[0].place.case.space, average_every=asked.average_every)
        found = swap_step(kinds, replace(
            kinds[0].asked(case.devices, space), global_batch=case.global_batch
        ))  # fmt: skip
        if found is None:
            raise PlanningError(
                "no micro-batch of the size asked for gives every GPU the same whole number of "
                "them",
                hint="leave --micro-batch and --accumulate open",
                exit_code=3,
            )
        return _described(case, found)

    def instead(self, problem: PlanningError, found: Answer) -> PlanningError:
        """Return why nothing else runs, with what this way would take."""
        step_s = found.step_time_s.value
        return PlanningError(
            str(problem),
            hint=f"{problem.hint}; swapping its layers (ATOM) would take {step_s:.3g} s a step",
            exit_code=problem.exit_code,
        )


LAYER_SWAPPING: Final = LayerSwapping()


def _described(case: OnGroups, found: SwapStep) -> Answer:
    plan, u = found.plan, found.model.micro_batch
    return case.choice(
        NAME,
        found.step_s,
        _log_sd(case, found),
        ledgers={found.on.place.group.label: found.ledger},
        parts_s={str(name): part for name, part in found.parts_s.items()},
        details={
            "layers_by_piece": list(plan.layers),
            "micro_batch": u,
            "accumulation_steps": plan.accumulation_steps,
            "accumulation_to_hide": plan.accumulation_to_hide,
            "exposed_fraction": plan.exposed_fraction,
            "average_every": plan.average_every,
            "averaging_s": plan.sync_s,
            "host_update_s": plan.update_s,
            "loading_s": found.waiting_s,
            "synchronous_step_s": plan.synchronous_step_s + found.waiting_s,
            "host_gib": plan.host_bytes / GIB,
        },
        notes=(
            *averaging_notes(plan.average_every, plan.sync_s),
            *(
                ()
                if plan.sync_s == 0 or plan.average_every == 1
                else (f"{plan.synchronous_step_s:.3g} s a step with --average-every 1",)
            ),
            UNRELEASED,
        ),
    )


def beside_pipelines(choice: Answer, others: Sequence[Answer]) -> Answer:
    """Return swapping as compared with the fastest pipeline that is printed beside it."""
    piped = [one for one in others if any(each.pp > 1 for each in one.layouts.values())]
    if choice.name != NAME or not piped:
        return choice
    rival_s = min(one.step_time_s.value for one in piped)
    gain = rival_s / choice.step_time_s.value
    said = f"{digits(gain)} x the throughput of the fastest pipeline here ({rival_s:.3g} s a step)"
    return replace(
        choice, notes=(said, *choice.notes),
        details={**choice.details, "pipeline_step_s": rival_s, "gain_over_pipeline": gain},
    )  # fmt: skip


def _log_sd(case: OnGroups, found: SwapStep) -> float:
    """Return one standard deviation of ln(error), an assumed network between machines included."""
    place, network_s = found.on.place, found.parts_s["network"]
    added = assumed_network_log_sd(
        place.case.fleet, np.array([place.row]), np.array([case.nodes]),
        np.array([network_s / found.step_s]),
    )  # fmt: skip
    return float(np.hypot(found.log_sd, added[0]))


def averaging_notes(average_every: int, averaging_s: float) -> tuple[str, ...]:
    """Return what a reader must know of the averaging interval.

    ``average_every``: steps between two averagings; ``averaging_s``: of it in one step; 0 on a
    single GPU [s].
    """
    if averaging_s == 0:
        return ()
    if average_every == 1:
        return ("every GPU averages with the others after each step: synchronous SGD",)
    return (
        f"every GPU averages with the others every {average_every} steps: local SGD, not the "
        "synchronous SGD of the other layouts; the extra steps that it may need are not modelled",
    )


def _is_open(case: StepCase, columns: TimeColumns) -> NDArray[np.bool_]:
    """Return the rows on accelerators that only memory, links or the layout may speak against."""
    can_run = np.isin(columns.status, [CODE[name] for name in _OPEN])
    can_run &= host_fits(case.job, case.work, case.fleet, columns.type_index)
    return np.asarray(can_run & case.fleet.is_accelerated[columns.type_index])


def _swapped(case: StepCase, row: int, count: int, below_s: float) -> SwapStep | None:
    from advisor.estimate.ways.swap_steps import swap_step

    if (on := _peers(case, row)) is None:
        return None
    try:
        return swap_step([on], on.asked(count * on.devices, case.space), below_s=below_s)
    except PlanningError:
        return None


def _peers(case: StepCase, row: int) -> PeersOn | None:
    """Return the model on the GPUs of a type, made once; None where little is known of them."""
    from advisor.estimate.ways.swap_steps import peers_on

    fleet = case.fleet
    beside = (fleet.network_latency_s, fleet.vcpus, np.nan_to_num(fleet.core_speed))
    key = ("swapping", *machine_key(case, row), *(column[row].item() for column in beside))
    return case.once(key, lambda: peers_on(case, row))


def _columns(case: StepCase, before: TimeColumns, found: list[SwapStep]) -> TimeColumns:
    """Return rows of swapping peers; start and data are those of the other ways."""
    from advisor.estimate.unlike.places import is_extrapolating

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
        memory_bytes=np.array([float(needed_of(step.ledger)) for step in found]),
        host_bytes=np.array([plan.host_bytes for plan in plans]) * devices,
        is_extrapolating=np.array([is_extrapolating(case, int(row)) for row in before.type_index]),
    )
