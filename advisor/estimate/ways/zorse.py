"""Ministages that go round data-parallel groups cut along the slow links (Zorse)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from advisor.estimate.knowledge.laws import ModelOn
from advisor.estimate.plan import Choice
from advisor.estimate.unlike.groups import ALONE, Machines, OnGroups, slowest_networks
from advisor.estimate.ways.stages import partitions
from advisor.planners.core import GIB, PlanningError
from advisor.planners.systems import (
    AsymmetricPlan,
    PipelineGroup,
    PipelineJob,
    Worker,
    ZorseConstants,
    best_of_groups,
    order_groups,
)

NAME: Final = "asymmetric pipeline"


def asymmetric_stages(case: OnGroups) -> Choice:
    """Plan ministages that go round groups of machines (Zorse): for models of repeated blocks.

    Raises PlanningError if the layers are unlike, no grouping fits, or degrees are asked for.
    """
    case.refuse(
        **(ALONE | {"pp": ()}), micro_batch=(), accumulation_steps=(), zero_stages=(3,),
        recomputes=("full",),
    )  # fmt: skip
    if case.model.blocks < 2:
        raise PlanningError("no block of layers is repeated: ministages need equal ones")
    best: AsymmetricPlan | None = None
    held: list[Machines] = []
    problem: PlanningError | None = None
    for parts in partitions(case):
        try:
            found, order = _planned(case, parts)
        except PlanningError as error:
            problem = error
            continue
        if best is None or found.step_s < best.step_s:
            best, held = found, [parts[i] for i in order]
    if best is None:
        raise problem or PlanningError("one machine makes no pipeline of groups")
    return _described(case, best, held)


def _planned(case: OnGroups, parts: Sequence[Machines]) -> tuple[AsymmetricPlan, list[int]]:
    """Return the best plan over given groups of machines, and their pipeline order.

    Offloading is looked at only where nothing fits without: its transfers are not counted.
    """
    groups = [_group(case, part) for part in parts]
    slowest = slowest_networks(parts)
    order = order_groups(groups, slowest)
    ordered = [groups[i] for i in order]
    try:
        return _best(case, ordered, parts, may_offload=False), order
    except PlanningError:
        found = _best(case, ordered, parts, may_offload=True)
    room = sum(m.node.memory_bytes for part in parts for m in part)
    if found.host_bytes > room:
        raise PlanningError(
            f"offloading takes {found.host_bytes / GIB:.0f} GiB of host memory, the machines have "
            f"{room / GIB:.0f} GiB",
            hint="add machines or host memory",
            exit_code=3,
        )
    return found, order


def _group(case: OnGroups, part: Machines) -> PipelineGroup:
    """Return machines as one group of an asymmetric pipeline."""
    model, blocks = case.model, case.model.blocks
    workers = [
        Worker(
            name=m.part.name,
            memory_bytes=model.room_bytes(m),
            latency=model.layer_latency(m, blocks),
        )
        for m in part
    ]
    gather = model.law.gather_s(part, model.weight_bytes * model.work.parameters / blocks)
    return PipelineGroup(
        workers=tuple(w for w, m in zip(workers, part, strict=True) for _ in range(m.devices)),
        all_gather_s=gather,
        reduce_scatter_s=gather,
    )


def _best(
    case: OnGroups,
    groups: Sequence[PipelineGroup],
    parts: Sequence[Machines],
    *,
    may_offload: bool,
) -> AsymmetricPlan:
    model = case.model
    table, blocks = model.table, model.blocks
    boundary = table.output_bytes[table.is_block].max()
    machines = [m for part in parts for m in part]
    return best_of_groups(
        groups,
        PipelineJob(
            global_batch=case.global_batch,
            layers=blocks,
            layer_parameters=model.work.parameters / blocks,
            sequence=1,
            hidden=max(1, round(float(boundary) / model.weight_bytes)),
        ),
        send_receive_s=lambda u: float(model.law.send_s(machines, u * boundary)),
        constants=_constants(model),
        may_offload=may_offload,
    )


def _constants(model: ModelOn) -> ZorseConstants:
    """Return the bytes of a parameter: as gathered, and all else that is sharded."""
    state = float(model.law.state_bytes(1).sum()) / model.memory.slack
    each = state / max(float(model.table.parameters.sum()), 1.0)
    return ZorseConstants(
        parameter_bytes=model.weight_bytes,
        optimizer_bytes=max(each - model.weight_bytes, 0.0),
        reserve_bytes=model.memory.context_bytes,
    )


def _described(case: OnGroups, found: AsymmetricPlan, held: Sequence[Machines]) -> Choice:
    filling_s, computing_s, draining_s = found.without_network_s()
    pipeline_s = filling_s + draining_s
    offloaded = ("its transfers to host memory are not counted",) if found.is_offloaded else ()
    return case.choice(
        NAME,
        found.step_s + case.model.law.fixed_s,
        case.model.log_sd(case.groups),
        samples={m.label: max(found.counts[0]) * found.micro_batch for m in held[0]},
        memory_bytes={f"group {i + 1}": m for i, m in enumerate(found.memory_bytes)},
        parts_s={"network": found.step_s - computing_s - pipeline_s, "pipeline": pipeline_s},
        details={
            "groups": [" + ".join(m.label for m in part) for part in held],
            "layers_by_stage": list(found.layers),
            "ministages_per_group": found.degree,
            "micro_batch": found.micro_batch,
            "micro_batches": [list(c) for c in found.counts],
            "is_offloaded": found.is_offloaded,
        },
        notes=(
            "needs a runtime with ministages over unequal groups (Zorse's); no released framework",
            *offloaded,
        ),
    )
