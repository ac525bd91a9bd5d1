"""A predicted step as a Chrome trace: one lane a rank, one event a pass, layer or exchange.

The file opens in Perfetto (ui.perfetto.dev) and ``chrome://tracing``: the "Trace Event Format",
complete events (``ph`` "X") with times in microseconds, a process a rank, in it a thread for what
the device computes and one for what it waits for. All events of a rank together last as long as
the predicted step.

A transformer's passes run in its schedule's order (``planners.layouts.pipeline``), each layer as
long as the layout law says; a recorded step's operators follow one another by phase, all calls of
one operator with the same sizes as one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from advisor.answer import Answer
from advisor.ask import LayoutRequest, layout_space
from advisor.catalogue import TypeColumns
from advisor.estimate import SPACE, Predictor, StepCase, is_laid_out_by_shape, on_machine
from advisor.jobs import Job
from advisor.planners.core import Layout, Work
from advisor.planners.layouts import LayoutProblem, layout_columns, pass_times, stage_times
from advisor.planners.step import PRODUCTS, runs_as, sustained_flop_per_s

# Ranks that have a lane: the others do what these do.
_MOST_RANKS: Final = 128
# Passes are drawn layer by layer where there are no more events than a viewer stays quick with.
_MOST_EVENTS: Final = 50_000
_COMPUTES, _WAITS = 0, 1
_THREADS: Final = {_COMPUTES: "computes", _WAITS: "waits"}
_PHASES: Final = ("forward", "backward", "optimizer")
# Parts of a step in the order in which they come, and what they are called.
_BEFORE: Final = {"input": "waits for input", "copy": "copies the batch"}
_AFTER: Final = {"network": "reduces gradients", "offload": "moves to and from the host"}


@dataclass(frozen=True, slots=True)
class _Event:
    """What a rank does, or waits for, from when on and for how long [s]."""

    name: str
    begin_s: float
    took_s: float
    thread: int = _COMPUTES
    about: Mapping[str, Any] | None = None


def step_trace(
    predictor: Predictor, job: Job, place: tuple[TypeColumns, int, int, str], answer: Answer,
    asked: LayoutRequest | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the step of an answer in the Trace Event Format.

    ``place``: as of ``machines_asked``; ``asked``: what was fixed of the layout.
    """
    fleet, row, _, where = place
    case = predictor.case(job, fleet=fleet, space=layout_space(asked or LayoutRequest(), SPACE))
    layout, step_s = answer.layout, answer.step_time_s.value
    if is_laid_out_by_shape(case, np.array([row])).all():
        lanes = _laid_out(on_machine(case, row).problem, layout, step_s)
    else:
        events = list(_recorded(case, answer, row))
        lanes = [events] * min(layout.devices, _MOST_RANKS)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "what": "a predicted step, not a measured one", "job": job.name, "machines": where,
            "ranks": layout.devices, "step_s": step_s,
        },
        "traceEvents": [one for rank, lane in enumerate(lanes) for one in _lane(rank, lane)],
    }  # fmt: skip


def _lane(rank: int, events: Sequence[_Event]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    for thread, name in _THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread,
               "args": {"name": name}}  # fmt: skip
    for one in events:
        yield {
            "ph": "X", "name": one.name, "pid": rank, "tid": one.thread,
            "ts": round(one.begin_s * 1e6, 3), "dur": round(one.took_s * 1e6, 3),
            "args": dict(one.about or {}),
        }  # fmt: skip


def _one_after_another(begin_s: float, parts: Mapping[str, float]) -> Iterator[_Event]:
    """Return what a rank waits for, one part after the other."""
    for name, took_s in parts.items():
        if took_s > 0:
            yield _Event(name, begin_s, took_s, _WAITS)
            begin_s += took_s


def _laid_out(problem: LayoutProblem, layout: Layout, step_s: float) -> list[list[_Event]]:
    """Return what every rank of a layout by shape does; stages are the outermost axis."""
    parts_s = problem.evaluate(layout).parts_s
    scale = step_s / sum(parts_s.values())
    said = {name.removesuffix("_s"): seconds * scale for name, seconds in parts_s.items()}
    begin_s = said["input"]
    length_s = said["compute"] + said["inside_layer"] + said["pipeline"]
    after = {_AFTER["network"]: said["data_parallel"], _AFTER["offload"]: said["offload"]}
    width = layout.devices // layout.pp
    stages = []
    for passes in _stages(problem, layout, length_s):
        events = [*_one_after_another(0.0, {_BEFORE["input"]: begin_s})]
        events += [_moved(one, begin_s) for one in passes]
        events += _one_after_another(begin_s + length_s, after)
        update_s = said["optimizer"]
        events.append(_Event("optimizer step", step_s - update_s, update_s))
        stages.append(events)
    return [stages[rank // width] for rank in range(min(layout.devices, _MOST_RANKS))]


def _moved(one: _Event, by_s: float) -> _Event:
    return _Event(one.name, one.begin_s + by_s, one.took_s, one.thread, one.about)


def _stages(problem: LayoutProblem, layout: Layout, length_s: float) -> list[list[_Event]]:
    """Return the passes of every stage, which together last ``length_s``."""
    columns = layout_columns(layout)
    one = stage_times(*(kind.case(columns) for kind in problem.kinds))
    busy_s, back_s, inside_s, head_s = (
        float(np.max(x)) for x in (one.busy_s, one.backward_s, one.inside_s, one.head_s)
    )
    layers = -(-problem.transformer.layers // layout.pp)
    ahead_s, back_s = max(busy_s - back_s, 0.0) + inside_s / 2, back_s + inside_s / 2
    head = [0.0] * (layout.pp - 1) + [head_s]
    timed = pass_times(
        [layers * ahead_s + h / 3 for h in head], [layers * back_s + 2 * h / 3 for h in head],
        layout.accumulation_steps, schedule=layout.schedule, virtual_stages=layout.virtual_stages,
    )  # fmt: skip
    stretch = length_s / max(one.end for one in timed)
    is_fine = layout.devices * len(timed) / layout.pp * layers < _MOST_EVENTS
    shares = inside_s / 2 / ahead_s, inside_s / 2 / back_s
    stages: list[list[_Event]] = [[] for _ in head]
    for done in timed:
        own = max(layers // layout.virtual_stages, 1)
        first = (done.chunk * layout.pp + done.stage) * own
        name = f"{'backward' if done.is_backward else 'forward'} of micro-batch {done.micro_batch}"
        begin_s, took_s = done.begin * stretch, (done.end - done.begin) * stretch
        stages[done.stage].append(_Event(name, begin_s, took_s, about={"chunk": done.chunk}))
        if is_fine:
            stages[done.stage] += _layers(
                begin_s, took_s / own, range(first, first + own), shares[done.is_backward],
                is_backward=done.is_backward,
            )  # fmt: skip
    return stages


def _layers(
    begin_s: float, each_s: float, layers: range, exchanged: float, *, is_backward: bool
) -> Iterator[_Event]:
    """Return a pass layer by layer, with what each waits for the ranks beside it."""
    for at, layer in enumerate(reversed(layers) if is_backward else layers):
        start_s = begin_s + at * each_s
        yield _Event(f"layer {layer}", start_s, each_s)
        if exchanged > 0:
            waited_s = each_s * exchanged
            yield _Event(f"exchange of layer {layer}", start_s + each_s - waited_s, waited_s,
                         _WAITS)  # fmt: skip


def _recorded(case: StepCase, answer: Answer, row: int) -> Iterator[_Event]:
    """Return a recorded step on one rank: what it waits for, and its operators by phase."""
    parts_s = {name: share * answer.step_time_s.value for name, share in answer.shares.items()}
    before = {said: parts_s.pop(name, 0.0) for name, said in _BEFORE.items()}
    after = {said: parts_s.pop(name, 0.0) for name, said in _AFTER.items()}
    yield from _one_after_another(0.0, before)
    begin_s, busy_s = sum(before.values()), sum(parts_s.values())
    times = answer.layout.accumulation_steps
    device = case.fleet.devices[int(case.fleet.device[row])]
    peak = sustained_flop_per_s(
        device, runs_as(device, case.work.precision), case.constants.device
    )
    weights = {p: _weights(case.work, p, peak, device.memory_bytes_per_s) for p in _PHASES}
    total = sum(w.sum() * (1 if p == "optimizer" else times) for p, w in weights.items()) or 1.0
    passes = [p for _ in range(times) for p in _PHASES[:2]] + [_PHASES[2]]
    for phase in passes:
        took_s = float(weights[phase].sum()) / total * busy_s
        yield _Event(phase, begin_s, took_s)
        yield from _operators(case.work, phase, begin_s, weights[phase] / total * busy_s)
        begin_s += took_s
    yield from _one_after_another(begin_s, after)


def _rows(work: Work, phase: str) -> list[int]:
    return np.flatnonzero(work.operators.phase == phase).tolist()


def _weights(work: Work, phase: str, peak: float, bytes_per_s: float) -> Any:
    """Return what each operator of a phase takes at the device's rates, to share the phase by."""
    ops, rows = work.operators, _rows(work, phase)
    is_product = np.isin(ops.kind[rows], list(PRODUCTS))
    computed = np.where(is_product, ops.flop[rows] / peak, 0.0)
    return np.maximum(computed, ops.bytes[rows] / bytes_per_s)


def _operators(work: Work, phase: str, begin_s: float, took_s: Any) -> Iterator[_Event]:
    ops = work.operators
    for row, each_s in zip(_rows(work, phase), took_s.tolist(), strict=True):
        about = {"calls": float(ops.count[row]), "flop": float(ops.flop[row]),
                 "bytes": float(ops.bytes[row])}  # fmt: skip
        yield _Event(str(ops.name[row]), begin_s, each_s, about=about)
        begin_s += each_s
