"""Groups of machines as rows of a fleet: what a way over several of them asks the estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.answer import Answer
from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.completion import log_usual
from advisor.estimate.time_columns import CODE, WAITS, TimeColumns, integer_layouts
from advisor.estimate.ways.model_parallel import on_machine
from advisor.estimate.ways.recorded_units import node_of
from advisor.machines import ClusterGroup, own_fleet
from advisor.planners.core import GIB, RECOMPUTES, Layout
from advisor.planners.step import step_time
from advisor.quantities import QUANTILES


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Machines of one group, and the fleet of which they are a row."""

    group: ClusterGroup  # its links are those of the fleet, so that every verb reads the same ones
    case: StepCase  # the job over that fleet
    row: int


def places_of(case: StepCase, groups: Sequence[ClusterGroup]) -> tuple[Place, ...]:
    """Return groups as rows of the catalogue's fleet, or of one made for them.

    ``case``: of the job over the catalogue's fleet.
    """
    found = []
    for group in groups:
        fleet, row = case.fleet, group.type_index
        if row is None or fleet.per_node[row] != group.node.devices:
            fleet, row = own_fleet(group, fleet, per_node=group.node.devices)
        node = node_of(fleet, row, case.accelerators)
        if group.type_index is None:  # its user may have said how fast host memory is
            node = replace(node, host=group.node.host or node.host)
        found.append(
            Place(
                group=replace(group, node=node),
                # What was found of a type is kept by its row: another fleet's rows are others.
                case=case if fleet is case.fleet else replace(case, fleet=fleet, seen={}),
                row=row,
            )
        )
    return tuple(found)


def group_columns(choice: Answer | None, places: Sequence[Place]) -> TimeColumns:
    """Return what the job takes on groups of machines as one row; no estimate where None.

    Its state is taken to be saved by one machine; the slowest machine to start is waited for.
    """
    case, counts = places[0].case, [p.group.count for p in places]
    devices, none = sum(p.group.devices for p in places), np.full(1, np.nan)
    starts = [p.case.startup_s(np.array([p.row])) for p in places]
    arrivals = [p.case.data_in_s(np.array([p.row])) for p in places]
    is_few = devices > case.job.global_batch
    empty = TimeColumns(
        type_index=np.array([places[0].row]),
        count=np.array([sum(counts)]),
        status=np.array(
            [CODE["fewer_samples_than_workers" if is_few else "does_not_fit_in_memory"]]
        ),
        way=np.zeros(1, dtype=np.int64),
        step_s=none,
        log_sd=none,
        shares=dict.fromkeys(WAITS, none),
        layouts=integer_layouts(1, dp=devices),
        memory_bytes=none,
        host_bytes=np.zeros(1),
        startup_s=np.max(starts, axis=0),
        data_in_s=np.max(arrivals, axis=0),
        is_extrapolating=np.array([any(is_extrapolating(p.case, p.row) for p in places)]),
        assumed_network_bytes_per_s=np.array([slowest_assumed(places) or np.nan]),
        network_slope=np.zeros(1),
    )
    if choice is None:
        return empty
    step = choice.step_time_s
    machines = [(p.case, np.array([p.row]), np.array([p.group.devices])) for p in places]
    return replace(
        empty,
        status=np.zeros(1, dtype=np.int64),
        step_s=np.full(1, step.value),
        log_sd=np.full(1, math.log(step.high / step.value) / QUANTILES[step.coverage]),
        shares={name: np.full(1, choice.shares.get(name, 0.0)) for name in WAITS},
        network_slope=np.full(1, network_waits(choice.shares)),
        memory_bytes=np.full(1, choice.memory_gib * GIB),
        log_usual=log_usual(np.full(1, step.value), *machines),
    )


def slowest_assumed(places: Sequence[Place]) -> float | None:
    """Return the slowest network that is assumed of several machines; None: each is stated."""
    rates = [
        float(p.case.fleet.network_bytes_per_s[p.row])
        for p in places
        if p.case.fleet.is_network_assumed[p.row]
    ]
    return min(rates) if rates and sum(p.group.count for p in places) > 1 else None


def network_waits(shares: Mapping[str, float]) -> float:
    """Return what at most waits for the network: what stages send is a part of the pipeline."""
    return shares.get("network", 0.0) + shares.get("pipeline", 0.0)


def layout_of_groups(choice: Answer) -> Layout:
    """Return one layout for all devices: the first group's, with the stages of all of them."""
    details = choice.details
    stages = len(details.get("layers_by_stage", [0]))
    if choice.layouts:
        return replace(next(iter(choice.layouts.values())), pp=stages)
    micro, steps = details.get("micro_batch", 1), 1
    if "samples_by_device" in details:
        samples = next(iter(details["samples_by_device"].values()))
        steps = next(iter(details["accumulation_steps"].values()))
        micro = -(-samples // steps)
    mode = details.get("recompute", "none")
    assert mode in RECOMPUTES
    return Layout(
        dp=choice.devices // stages, pp=stages, micro_batch=micro, accumulation_steps=steps,
        zero_stage=details.get("zero_stage", 0), recompute=mode,
    )  # fmt: skip


def is_extrapolating(case: StepCase, row: int) -> bool:
    """Whether the times on a type's devices lie outside what the models were fitted on."""
    if is_laid_out_by_shape(case, np.array([row])).all():
        return on_machine(case, row).law.is_extrapolating
    device = case.fleet.devices[case.fleet.device[row]]
    timed = step_time(case.work, [device], [1.0], case.constants.device)
    return bool(timed.is_extrapolating[0])
