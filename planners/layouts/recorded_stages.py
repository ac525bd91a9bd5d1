"""The step of a recorded model on one split of equal machines: one stage, or several.

| here      | papers | meaning                                                                  |
|-----------|--------|--------------------------------------------------------------------------|
| ``u, a``  | b, m   | micro-batch, and micro-batches of a step on one device                   |
| ``T_i``   | T      | forward, backward, exchanges and sends of stage i for a micro-batch [s]  |

    step = max(sum_i T_i + (a - 1) max_i T_i + exposed reductions + optimizer + offload, load)

with the stages cut by ``planners.layouts.stage_partition`` over the units' times under the memory
of the device (1F1B's micro-batches in flight); one stage is plain data parallel, its reductions
hidden as ``planners.links.data_parallel`` says. Sources: PipeDream and Alpa for the form, as in
``stage_partition``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layer_latency import Floats
from advisor.planners.layouts.pipeline import in_flight
from advisor.planners.layouts.planned import Found
from advisor.planners.layouts.recorded_case import RecordedCase
from advisor.planners.layouts.recorded_layout import INDISTINGUISHABLE, RecordedLayout
from advisor.planners.layouts.stage_partition import Partition, partition
from advisor.planners.memory.unit_memory import base_bytes


def without_pipeline(case: RecordedCase, seen: Found) -> RecordedLayout | None:
    """Return the layout of the fastest micro-batch that fits, None where none does."""
    layout, tp = case.layout, case.layout.tp
    u = np.array(case.micro_batches, float)
    a = np.ceil(case.local / u)
    forward, backward, exchanged = (x.sum(axis=1) for x in case.times(u))
    used, host = _memory(case, u)
    fits = _fits(case, used, host, u, seen)
    if not fits.any():
        return None
    on_device_s = forward + backward + exchanged
    optimizer_s = 0.0 if case.updates_on_host else case.machine.times[tp].optimizer_s
    columns = case.reduced(on_device_s, backward, optimizer_s, a)
    moved = case.offload_s(a, u, on_device_s * a)
    loaded = case.load_s(columns.step_s + moved, case.local)
    total = columns.step_s + moved + loaded
    i = int(np.argmin(np.where(fits, total, np.inf)))
    seen.least_s = min(seen.least_s, float(total[i]))
    parts = {
        "compute_s": a[i] * (forward[i] + backward[i]),
        "tensor_parallel_s": a[i] * exchanged[i],
        "data_parallel_s": columns.exposed_s[i] + columns.straggler_s[i],
        "optimizer_s": optimizer_s / (layout.dp if layout.zero_stage else 1),
        "offload_s": moved[i],
        "input_s": loaded[i],
    }
    return RecordedLayout(
        layout=case.described(int(u[i])),
        step_s=float(total[i]),
        memory_bytes=float(used[i]),
        host_bytes=float(host[i]),
        parts_s={name: float(part) for name, part in parts.items()},
        stages=(len(case.model.table.names),),
        log_sd=float(np.hypot(case.machine.times[tp].log_sd, columns.log_sd[i])),
    )


def _memory(case: RecordedCase, u: Floats) -> tuple[Floats, Floats]:
    """Return what one stage takes on the device and on its host, by micro-batch [bytes]."""
    table, tp, memory = case.model.table, case.layout.tp, case.model.memory
    activations = table.kept_bytes(tp, case.kept).sum() + table.live_bytes(tp, case.kept)
    used = base_bytes(case.model.work, u, memory) + case.state_bytes().sum()
    host = np.array([case.on_host_bytes(int(x)) for x in u])
    return used + memory.slack * u * activations, host


def _fits(
    case: RecordedCase, used: Floats, host: Floats, u: Floats, seen: Found
) -> NDArray[np.bool_]:
    room, host_room = case.capacity_bytes, case.machine.node.memory_bytes
    fits = (used <= room) & (host <= host_room)
    seen.fitting += int(np.count_nonzero(fits))
    if not fits.any():
        excess = np.maximum(used - room, host - host_room)
        seen.misses(float(excess.min()), case.described(int(u[int(np.argmin(excess))])))
    return np.asarray(fits)


def with_pipeline(case: RecordedCase, seen: Found) -> RecordedLayout | None:
    """Return the layout of the fastest micro-batch over pp stages that fits.

    Micro-batches whose stages, cut evenly, are already too slow to be chosen are not cut at all.
    """
    found: list[RecordedLayout] = []
    bounds = sorted((_least_s(case, u), u) for u in case.micro_batches)
    for bound_s, u in bounds:
        if bound_s > INDISTINGUISHABLE * seen.least_s:
            break
        cut = _cut(case, u, seen)
        if cut is not None:
            seen.fitting += 1
            found.append(_pipelined(case, u, cut))
            seen.least_s = min(seen.least_s, found[-1].step_s)
    return min(found, key=lambda x: x.step_s, default=None)


def _least_s(case: RecordedCase, u: int) -> float:
    """Return a bound from below on the step of any cut for a micro-batch [s]."""
    unit_s = sum(x[0] for x in case.times(np.array([float(u)])))
    whole_s, steps = float(np.sum(unit_s)), -(-case.local // u)
    pp = case.layout.pp
    # Whatever the cuts, nothing smaller than the smallest output is handed over at any of them.
    send_s = float(2 * np.sort(case.send_s(u)[:-1])[: pp - 1].sum())
    least_send_s = float(2 * case.send_s(u)[:-1].min())
    slowest_s = max(whole_s / pp, float(np.max(unit_s)), least_send_s)
    return whole_s + send_s + (steps - 1) * slowest_s


def _cut(case: RecordedCase, u: int, seen: Found) -> Partition | None:
    """Return the best cut of the units for a micro-batch, None where none fits."""
    model, layout = case.model, case.layout
    a = -(-case.local // u)
    unit_s = sum(x[0] for x in case.times(np.array([float(u)])))
    held = model.memory.slack * u * model.table.kept_bytes(layout.tp, case.kept)
    capacity = case.capacity_bytes - _beside_units(case, u)
    flights = in_flight(layout.pp, a, schedule="1f1b")
    if case.on_host_bytes(u) > case.machine.node.memory_bytes:
        return None
    try:
        return partition(
            unit_s,
            a,
            stages=layout.pp,
            send_s=2 * case.send_s(u),
            state_bytes=case.state_bytes(),
            activation_bytes=held,
            in_flight=flights,
            capacity_bytes=capacity,
        )
    except PlanningError:
        # An even cut's mean stage: how far the model as a whole is from fitting.
        mean = (case.state_bytes().sum() + flights.mean() * held.sum()) / layout.pp
        seen.misses(max(float(mean - capacity), 1.0), case.described(u))
        return None


def _beside_units(case: RecordedCase, u: int) -> float:
    """Return what a stage's device holds beside state and kept activations [bytes]."""
    model = case.model
    live = model.memory.slack * u * model.table.live_bytes(case.layout.tp, case.kept)
    return live + float(base_bytes(model.work, np.array(float(u)), model.memory))


def _pipelined(case: RecordedCase, u: int, cut: Partition) -> RecordedLayout:
    model, layout = case.model, case.layout
    a = -(-case.local // u)
    edges = np.concatenate([[0], np.cumsum(cut.layers)])
    slow = int(np.argmax(cut.stage_s))
    inside = slice(edges[slow], edges[slow + 1])
    forward, backward, exchanged = (
        float(x[0][inside].sum()) for x in case.times(np.array([float(u)]))
    )
    parameters = np.add.reduceat(model.table.held_parameters(layout.tp), edges[:-1])
    heaviest = float(parameters.max()) / max(model.work.parameters, 1)
    times = case.machine.times[layout.tp]
    optimizer_s = 0.0 if case.updates_on_host else times.optimizer_s * heaviest * layout.tp
    columns = case.reduced(
        np.array(cut.step_s),
        np.array(backward),
        optimizer_s,
        np.array(1.0),
        gradient_bytes=model.work.gradient_bytes * heaviest,
    )
    moved = float(case.offload_s(np.array(float(a)), np.array(float(u)), np.array(0.0)))
    step_s = float(columns.step_s) + moved
    loaded = float(case.load_s(np.array(step_s), case.local))
    computed, traded = a * (forward + backward), a * exchanged
    return RecordedLayout(
        layout=case.described(u),
        step_s=step_s + loaded,
        memory_bytes=max(cut.memory_bytes) + _beside_units(case, u),
        host_bytes=case.on_host_bytes(u),
        parts_s={
            "compute_s": computed,
            "tensor_parallel_s": traded,
            "pipeline_s": cut.step_s - computed - traded,
            "data_parallel_s": float(columns.exposed_s + columns.straggler_s),
            "optimizer_s": optimizer_s / (layout.dp if layout.zero_stage else 1),
            "offload_s": moved,
            "input_s": loaded,
        },
        stages=cut.layers,
        log_sd=float(np.hypot(times.log_sd, float(columns.log_sd))),
    )
