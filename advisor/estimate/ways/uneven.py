"""Data parallelism with uneven batches, and with uneven state: all devices compute equally long.

The whole model lies on every device, or its state in equal shards (ZeRO, at the lowest stage that
fits); activations are kept, or computed again where that is faster on the whole. The gradients are
weighted by each rank's share of the batch. Uneven shards beside uneven batches (Cephalo) are
``uneven_state``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Answer, Command
from advisor.estimate.knowledge.laws import LayoutLaw, ModelOn, ReducedStep, Stage, replica
from advisor.estimate.unlike.groups import ALONE, OnGroups, fullest, fullest_ledgers
from advisor.planners.core import GIB, Column, Floats, Layouts, PlanningError, Recompute
from advisor.planners.memory import Kept, Ledger, ModelState, at_row, model_state
from advisor.planners.systems import (
    CephaloConstants,
    MicroBatchCurve,
    UnevenJob,
    Worker,
    balance,
    even_plan,
    plan_cephalo,
)
from advisor.quantities import percent_text

Ints = NDArray[np.int64]

NAME: Final = "uneven batches"
# Keep activations, or compute them again.
_RECOMPUTES: Final[Mapping[Kept, Recompute]] = {"kept": "none", "recomputed": "full"}
NOTE: Final = "gradients are weighted by the rank's share of the batch: examples/uneven_ddp.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A split of the batch: a device's samples, micro-batches and time [s], by group."""

    zero_stage: int
    kept: Kept
    samples: Ints
    steps: Ints
    largest: Ints  # micro-batch of so many samples, (groups, batch)
    compute_s: Floats
    whole: ReducedStep


def uneven_batches(case: OnGroups) -> Answer:
    """Plan data parallelism in which every device computes for equally long.

    Raises PlanningError if the model does not fit on some device even in shards, there are fewer
    samples than devices, or other degrees are asked for.
    """
    case.refuse(**ALONE, recomputes=tuple(_RECOMPUTES.values()))
    groups, model = case.groups, case.model
    found = _best(case)
    samples, steps = found.samples, found.steps
    even = np.full(len(groups), -(-case.global_batch // case.devices))
    notes = [f"ZeRO stage {found.zero_stage} in equal shards"] if found.zero_stage else []
    if found.kept != "kept":
        notes.append("activations are computed again in the backward pass")
    by_device = {g.label: int(b) for g, b in zip(groups, samples, strict=True)}
    return case.choice(
        NAME,
        found.whole.step_s,
        model.log_sd(groups, found.whole.log_sd, -(-samples // steps)),
        samples=by_device,
        ledgers=_ledgers(case, found),
        parts_s={"network": found.whole.exposed_s + found.whole.straggler_s},
        details={
            "samples_by_device": by_device,
            "accumulation_steps": {g.label: int(a) for g, a in zip(groups, steps, strict=True)},
            "zero_stage": found.zero_stage,
            "recompute": _RECOMPUTES[found.kept],
            "compute_s": {g.label: float(t) for g, t in zip(groups, found.compute_s, strict=True)},
            "reduction_s": found.whole.exposed_s,
            "even_step_s": _with(
                case, found.zero_stage, found.kept, even, found.largest
            ).whole.step_s,
        },
        commands=_commands(case, samples, steps),
        notes=(NOTE, *notes),
    )


def words(choice: Answer, names: Mapping[str, str]) -> str:
    """Say how the batch is split, groups by ``names``."""
    details = choice.details
    each = (f"{b} samples a step on each {names[g]}"
            for g, b in details["samples_by_device"].items())  # fmt: skip
    said = f"{NAME}: {', '.join(each)}"
    if details["zero_stage"]:
        said += f", ZeRO stage {details['zero_stage']}"
    if details["recompute"] != "none":
        said += ", activations computed again"
    return f"{said} (examples/uneven_ddp.py)"


def _best(case: OnGroups) -> _Split:
    """Return the fastest of all ZeRO stages, of keeping activations and computing them again.

    As equal machines have it: of a recorded model the lowest stage that fits.
    """
    space, devices, law = case.space, case.devices, case.model.law
    least = 1 if space.always_shards and max(space.zero_stages) > 0 else 0
    able = [zero for zero in space.zero_stages if zero >= least][: None if devices > 1 else 1]
    found: list[_Split] = []
    problem = PlanningError("no framework shards or recomputes as it may be chosen")
    for kept in list(_RECOMPUTES)[: None if len(case.model.parts) > 1 else 1]:
        stages = np.array(able if _RECOMPUTES[kept] in space.recomputes else (), dtype=np.int64)
        if isinstance(law, LayoutLaw):
            stages = stages[law.runs(_replica(case, 1, 1, stages, kept))]
        if _least_s(case, kept) > min([case.most_s, *(x.whole.step_s for x in found)]):
            continue
        largest = _largest(case, stages[:, None, None], kept)
        for zero, (once, most) in zip(stages.tolist(), largest, strict=True):
            try:
                found.append(_split(case, zero, kept, once, most))
            except PlanningError as error:
                problem = error
                continue
            if not isinstance(law, LayoutLaw):
                break
    if not found:
        raise problem
    return min(found, key=lambda x: x.whole.step_s)


def _least_s(case: OnGroups, kept: Kept) -> float:
    """Return a bound from below on a step: computing at every device's best micro-batch [s].

    Between its points a curve is straight, so a sample takes least at one of them, or far beyond.
    """
    times = _curve(case, kept).time_s
    each = np.minimum(
        (times / 2.0 ** np.arange(times.shape[1])).min(axis=1),
        2 * np.diff(times[:, -2:])[:, 0] / 2.0 ** (times.shape[1] - 1),
    )
    count = np.array([g.devices for g in case.groups])
    return float(case.global_batch / (count / each).sum()) * (1 - 1e-9)


def _replica(
    case: OnGroups, micro_batch: Column, steps: Column, zero: Column, kept: Kept
) -> Layouts:
    return replica(micro_batch, case.devices, steps=steps, zero_stage=zero, kept=kept)


def _rooms(case: OnGroups) -> list[float]:
    return [case.model.room_bytes(g) for g in case.groups]


def _largest(case: OnGroups, zero: Ints, kept: Kept) -> Ints:
    """Return each group's largest micro-batch, one and several a step; made once for a room.

    ``zero``: (stages, 1, 1); the answer is (stages, 2, groups); 0 where not even one sample fits.
    """
    # Another law's model may differ: what was found is its own.
    seen, law = case.model.places[0].case.seen, type(case.model.law)
    same = ("largest", law, case.global_batch, case.devices, zero.tobytes(), kept)
    rooms = _rooms(case)
    if unknown := sorted({room for room in rooms if (*same, room) not in seen}):
        found = _halved(case, zero, kept, np.array(unknown))
        seen.update(((*same, room), found[..., i]) for i, room in enumerate(unknown))
    return np.stack([seen[*same, room] for room in rooms], axis=-1)


def _halved(case: OnGroups, zero: Ints, kept: Kept, rooms: Floats) -> Ints:
    """Return the largest micro-batch for each room on the last axis."""
    steps = np.array([[1], [2]])  # gradients are there from the second one on
    low = np.zeros((zero.shape[0], 2, rooms.size), dtype=np.int64)
    high = np.full_like(low, case.global_batch)
    while (low < high).any():
        middle = (low + high + 1) // 2
        rows = _replica(case, np.maximum(middle, 1), steps, zero, kept)
        fits = np.asarray(case.model.law.replica_bytes(rows, kept)) <= rooms
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def _split(case: OnGroups, zero: int, kept: Kept, once: Ints, most: Ints) -> _Split:
    """Return the fastest split.

    ``once``, ``most``: each group's largest micro-batch, where it is the only one and of several.

    Raises PlanningError if not even one sample fits, or not what is asked for.
    """
    if (most < 1).any():
        tight = [g.part.name for g, fits in zip(case.groups, most, strict=True) if fits < 1]
        needed = case.model.law.replica_bytes(_replica(case, 1, 2, zero, kept), kept)
        short = float((needed - np.array(_rooms(case))).max())
        raise PlanningError(
            f"the model does not fit on {', '.join(tight)} even in shards: it misses by "
            f"{short / GIB:.1f} GiB",
            hint="uneven batches with uneven state may fit",
            exit_code=3,
        )
    if (asked := case.space.micro_batch) is not None:
        if (most < asked).any():
            raise PlanningError(
                f"a micro-batch of {asked} does not fit on every device",
                hint="leave --micro-batch open",
                exit_code=3,
            )
        once = most = np.full_like(most, asked)
    samples = np.arange(1, case.global_batch + 1)
    largest = np.where(samples <= once[:, None], once[:, None], most[:, None])
    count = np.array([g.devices for g in case.groups])
    kinds = np.arange(count.size)
    samples = balance(_curve(case, kept), kinds, count, largest, case.global_batch)
    found = _with(case, zero, kept, samples, largest)
    asked = case.space.accumulation_steps
    if asked is not None and (found.steps != asked).any():
        raise PlanningError(
            f"the devices take {', '.join(map(str, found.steps))} micro-batches a step, not "
            f"{asked}",
            hint="leave --accumulate open",
            exit_code=3,
        )
    return found


def _curve(case: OnGroups, kept: Kept) -> MicroBatchCurve:
    times = [case.model.times(g, kept) for g in case.groups]
    return MicroBatchCurve(np.stack([(t.forward_s + t.backward_s).sum(axis=1) for t in times]))


def _with(case: OnGroups, zero: int, kept: Kept, samples: Ints, largest: Ints) -> _Split:
    """Return a given split: the reduction hides behind the slowest kind's last backward pass."""
    kinds = np.arange(samples.size)
    most = largest[kinds, samples - 1]
    steps, compute_s = -(-samples // most), _curve(case, kept).step_s(kinds, samples, most)
    slow, times = int(np.argmax(compute_s)), [case.model.times(g, kept) for g in case.groups]
    whole_s = float(compute_s[slow])
    _, backward = times[slow].at(float(-(-samples[slow] // steps[slow])))
    if case.is_laid_out:
        # As equal machines have it, reductions hide behind the layers, not behind the head.
        backward = backward[case.model.table.is_block]
    stage = Stage(
        computed_s=whole_s,
        backward_s=min(float(backward.sum()), whole_s),
        optimizer_s=max(t.optimizer_s for t in times),
        steps=int(steps[slow]),
        zero_stage=zero,
    )
    return _Split(
        zero_stage=zero, kept=kept, samples=samples, steps=steps, largest=largest,
        compute_s=compute_s, whole=case.model.law.reduced(case.groups, stage),
    )  # fmt: skip


def _ledgers(case: OnGroups, found: _Split) -> dict[str, Ledger]:
    """Return the memory of a device of each group, by term [bytes]."""
    micro_batch = -(-found.samples // found.steps)
    rows = _replica(case, micro_batch, found.steps, found.zero_stage, found.kept)
    terms = case.model.law.replica_ledger(rows, found.kept)
    return {g.label: at_row(terms, i, micro_batch.shape) for i, g in enumerate(case.groups)}


def _commands(case: OnGroups, samples: Ints, steps: Ints) -> tuple[Command, ...]:
    """Return the launcher's lines; a script that takes the split gets it as arguments."""
    from advisor.estimate.launch.launcher import torchrun
    from advisor.estimate.launch.recorded_script import script_of

    split = ""
    if not case.command:
        split = f" --batches {_by_rank(case, samples)} --accumulation {_by_rank(case, steps)}"
    commands, first = [], 0
    for group, b, a in zip(case.groups, samples, steps, strict=True):
        last = first + group.devices - 1
        passes_text = f", {a} passes a step" if a > 1 else ""
        commands.append(
            Command(
                group=group.label,
                text=f"{torchrun(case.nodes, group.node.devices)} {script_of(case.command)}{split}"
                f"  # ranks {first}-{last}: {b} samples a step on each {group.part.name}"
                f"{passes_text}",
            )
        )
        first = last + 1
    return tuple(commands)


def _by_rank(case: OnGroups, values: Ints) -> str:
    each = np.repeat(values, [g.devices for g in case.groups])
    return ",".join(map(str, each.tolist()))


UNEVEN_STATE_NAME: Final = "uneven batches and state"
# A unit has its own time at every micro-batch: no second charge for accumulating.
_CONSTANTS: Final = CephaloConstants(accumulation_overhead_s=0.0)


def uneven_state(case: OnGroups) -> Answer:
    """Plan fully sharded data parallelism with uneven batches and state (Cephalo).

    Raises PlanningError if there are fewer samples than GPUs, no split fits, or other degrees are
    asked for.
    """
    case.refuse(
        **ALONE, micro_batch=(), accumulation_steps=(), zero_stages=(3,), recomputes=("full",)
    )
    model, groups = case.model, case.groups
    table, work, layers = model.table, model.work, len(model.table.names)
    layer_bytes = model.weight_bytes * model.work.parameters / layers
    gather = model.law.gather_s(groups, layer_bytes)
    of_group = [
        Worker(
            name=g.part.name,
            memory_bytes=g.node.device.memory_bytes,
            latency=model.layer_latency(g, layers),
        )
        for g in groups
    ]
    workers = [w for w, g in zip(of_group, groups, strict=True) for _ in range(g.devices)]
    # Of the computation: unit inputs and one live unit, by micro-batch.
    live = table.live_bytes(1, "recomputed")
    kept = table.kept_bytes(1, "recomputed").sum() + model.work.input_bytes_per_sample
    state = model_state(work.parameter_bytes, work.gradient_bytes, work.optimizer_state_bytes)
    job = UnevenJob(
        global_batch=case.global_batch,
        layers=layers,
        state_bytes=float(state.device_bytes),
        compute_bytes=tuple(model.memory.slack * np.arange(1.0, 9.0) * (kept + live)),
        all_gather_s=gather,
        reduce_scatter_s=gather,
        optimizer_s=max(model.times(g).optimizer_s for g in groups) / case.devices,
    )
    found = plan_cephalo(workers, job, constants=_CONSTANTS)
    whole = _with_stragglers(model, found.step_s)
    total = max(sum(found.state_bytes), 1.0)
    return case.choice(
        UNEVEN_STATE_NAME,
        whole.step_s,
        model.log_sd(groups, whole.log_sd),
        samples=fullest(case.worker_labels(), found.batches),
        ledgers=fullest_ledgers(
            case.worker_labels(),
            [
                _shard_ledger(state, shard / total, u * kept, u * live, model.memory.slack)
                for shard, u in zip(found.state_bytes, found.micro_batches, strict=True)
            ],
        ),
        parts_s={"network": found.exposed_s + whole.straggler_s},
        details={
            "split": _split_words(case, found.batches, [s / total for s in found.state_bytes]),
            "batches": list(found.batches),
            "accumulation_steps": list(found.accumulation_steps),
            "state_share": [s / total for s in found.state_bytes],
            "even_step_s": _even_s(model, workers, job),
        },
        notes=("shards of unequal size need Cephalo's own FSDP; no released framework",),
    )


def _split_words(case: OnGroups, batches: Sequence[int], shares: Sequence[float]) -> str:
    """Say each device's samples of the batch and share of the state, by group."""
    said, first = [], 0
    for group in case.groups:
        own = slice(first, first := first + group.devices)
        each = [
            _once([str(b) for b in batches[own]]),
            _once([percent_text(s) for s in shares[own]]),
        ]
        said.append(f"{group.part.name} {each[0]} samples and {each[1]} of the state")
    return "; ".join(said)


def _once(said: Sequence[str]) -> str:
    """Return what several devices have; once where it is the same."""
    alike = len(set(said)) == 1
    return f"{'each ' if alike and len(said) > 1 else ''}{said[0] if alike else ', '.join(said)}"


def _shard_ledger(
    state: ModelState, share: float, kept: float, live: float, slack: float
) -> Ledger:
    """Return what a device holds of its share of the state and of its micro-batch, by term."""
    return {
        "parameters": state.weights * share, "gradients": state.gradients * share,
        "optimizer": state.optimizer * share, "buckets": np.asarray(_CONSTANTS.reserve_bytes),
        "activations": np.asarray(kept), "recomputed": np.asarray(live),
        "rounding": np.asarray((slack - 1) * (kept + live)),
    }  # fmt: skip


def _with_stragglers(model: ModelOn, computed_s: float) -> ReducedStep:
    """Return the step with what waits for stragglers; its collectives are in it already."""
    stage = Stage(computed_s=computed_s, backward_s=computed_s, optimizer_s=0.0, units=slice(0))
    waiting = model.law.reduced(model.groups, stage)
    return replace(waiting, step_s=computed_s + waiting.straggler_s + model.law.fixed_s)


def _even_s(model: ModelOn, workers: Sequence[Worker], job: UnevenJob) -> float | None:
    """Return the step with equal batches; None where they do not divide or do not fit [s]."""
    try:
        even = even_plan(workers, job, constants=_CONSTANTS)
    except PlanningError:
        return None
    return _with_stragglers(model, even.step_s).step_s
