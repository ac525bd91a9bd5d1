"""Two types of machines as the two stages of a pipeline, where that beats one reduction over all.

| here        | papers | meaning                                                                |
|-------------|--------|------------------------------------------------------------------------|
| ``M``, ``u``| m, b   | micro-batches of a step, samples of one                                |
| ``W_k``     | -      | devices of a type: they share the stage's micro-batches evenly         |
| ``S_c``     | -      | share of a step that the units before cut c take                       |

    core_k = ceil(M / W_k) (t_k(u) S + 2 send),   step = max core + the other stage's t S + exposed

the form of ``planners.asymmetric_pipeline.grouped_pipeline`` for two groups of equal devices, as
columns over (pair, cut), with one set of shares for all devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.tables import put, select
from advisor.planners.memory.unit_memory import base_bytes
from advisor.planners.step.model_units import units
from advisor.ways.columns import CODE
from advisor.ways.pair_laws import ReducedSteps, Stages
from advisor.ways.pairs import PairCase, PairColumns
from advisor.ways.unit_models import unit_table, with_layers

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# A pipeline is tried where the reduction and waiting take more of the step than this: it has at
# least as much of them.
_WORTH_TRYING: Final = 0.05
# Cuts are tried behind at most so many units, evenly spread over the step.
_MOST_CUTS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Columns over the cuts: what lies before each of them, and what there is in all.

    ``parameters`` are numbers of them; the last stage holds those of a tied head besides.
    """

    place: Integers
    step: Floats
    saved_bytes: Floats
    boundary_bytes: Floats
    parameters: Floats
    all_saved_bytes: float
    all_parameters: float
    tied_parameters: float


@dataclass(frozen=True, slots=True)
class _Best:
    """The best pipeline of every row so far."""

    pipeline_s: Floats
    micro_batch: Integers
    cut: Integers
    is_second_first: NDArray[np.bool_]
    core_first: NDArray[np.bool_]
    memory_bytes: Floats
    send_s: Floats


def in_two_stages(pairs: PairCase, uneven: PairColumns) -> PairColumns:
    """Return the columns, each row as the pipeline of two stages where that is faster."""
    times = uneven.times
    with np.errstate(invalid="ignore"):
        waits = times.shares["network"] > _WORTH_TRYING
    # Equal accelerators in different machines: as even a pipeline as equal machines would make.
    kinds = pairs.kinds(uneven.types)
    unlike = kinds[0] != kinds[1]
    does_not_fit = times.status == CODE["does_not_fit_in_memory"]
    rows = np.flatnonzero(unlike & ((times.status == 0) & waits | does_not_fit))
    cuts = _cuts(pairs)
    if rows.size == 0 or cuts is None:
        return uneven
    part = select(uneven, rows)
    best = _search(pairs, part, cuts)
    piped = _with_reductions(pairs, part, cuts, best)
    is_better = np.isfinite(piped.times.step_s) & ~(part.times.step_s <= piped.times.step_s)
    return put(uneven, rows[is_better], select(piped, np.flatnonzero(is_better)))


def _cuts(pairs: PairCase) -> _Cuts | None:
    """Return the cuts between the model's units, None where there is one unit."""
    work, memory = with_layers(pairs.case.work), pairs.case.constants.memory
    parts = units(work)
    if len(parts) < 2:
        return None
    table = unit_table(work, parts, logit_bytes=memory.logit_bytes)
    shares = pairs.law.unit_shares(parts)
    place = np.arange(1, len(parts))
    if place.size > _MOST_CUTS:
        at = np.searchsorted(np.cumsum(shares), (np.arange(_MOST_CUTS) + 0.5) / _MOST_CUTS)
        place = np.unique(np.clip(at + 1, 1, len(parts) - 1))
    before = place - 1
    model = work.transformer
    is_tied = model is not None and model.has_tied_embeddings and model.has_head
    return _Cuts(
        place=place,
        step=np.cumsum(shares)[before],
        saved_bytes=np.cumsum(table.saved_bytes)[before],
        boundary_bytes=table.output_bytes[before],
        parameters=np.cumsum(table.parameters)[before],
        all_saved_bytes=float(table.saved_bytes.sum()),
        all_parameters=float(table.parameters.sum()),
        tied_parameters=float(model.vocabulary * model.hidden) if is_tied and model else 0.0,
    )


def _search(pairs: PairCase, part: PairColumns, cuts: _Cuts) -> _Best:
    """Try every micro-batch, order and cut; reductions are added to the best afterwards."""
    size = len(part.times.dp)
    best = _Best(
        np.full(size, np.inf), np.ones(size, np.int64), np.zeros(size, np.int64),
        np.zeros(size, bool), np.zeros(size, bool), np.full(size, np.nan), np.zeros(size),
    )  # fmt: skip
    number = pairs.devices(part.types, part.counts)
    batch = pairs.case.job.global_batch
    for u in (2**k for k in range(batch.bit_length())):
        # Every device of both stages gets at least one micro-batch.
        enough = -(-batch // u) >= np.maximum(*number)
        if not enough.any():
            break
        for is_second_first in (False, True):
            found = _stages(pairs, part, cuts, u, is_second_first)
            pipeline_s = np.where(enough[:, None], found[0], np.inf)
            i = np.argmin(pipeline_s, axis=1)
            at = np.arange(size), i
            best = _better(
                best, pipeline_s[at], u, i, is_second_first, *(x[at] for x in found[1:])
            )
    return best


def _better(
    best: _Best, pipeline_s: Floats, u: int, cut: Integers, is_second_first: bool,
    core_first: NDArray[np.bool_], memory: Floats, send_s: Floats,
) -> _Best:  # fmt: skip
    wins = pipeline_s < best.pipeline_s
    return _Best(
        np.where(wins, pipeline_s, best.pipeline_s),
        np.where(wins, u, best.micro_batch),
        np.where(wins, cut, best.cut),
        np.where(wins, is_second_first, best.is_second_first),
        np.where(wins, core_first, best.core_first),
        np.where(wins, memory, best.memory_bytes),
        np.where(wins, send_s, best.send_s),
    )


def _stages(
    pairs: PairCase, part: PairColumns, cuts: _Cuts, u: int, is_second_first: bool
) -> tuple[Floats, NDArray[np.bool_], Floats, Floats]:
    """Return time, whether the first is the slower stage, memory and sends, each (rows, cuts)."""
    fleet = pairs.case.fleet
    order = (1, 0) if is_second_first else (0, 1)
    one, two = (part.types[k] for k in order)
    number = pairs.devices(part.types, part.counts)
    w_one, w_two = (number[k][:, None] for k in order)
    many = -(-pairs.case.job.global_batch // u)
    whole = [pairs.times.whole.at(fleet.device[t], float(u))[:, None] for t in (one, two)]
    rate, latency = pairs.law.link(one, two)
    # All devices of a machine send through its one network.
    senders = np.maximum(fleet.per_node[one], fleet.per_node[two])
    send = 2 * (u * cuts.boundary_bytes * (senders / rate)[:, None] + latency[:, None])
    first_s = whole[0] * cuts.step + send
    last_s = whole[1] * (1 - cuts.step) + send
    core_one, core_two = -(-many // w_one) * first_s, -(-many // w_two) * last_s
    is_first = core_one >= core_two
    pipeline_s = np.maximum(core_one, core_two) + np.where(is_first, last_s, first_s)
    used = _memory(pairs, cuts, u, many, (w_one, w_two))
    room = pairs.room_bytes()
    fits = (used[0] <= room[fleet.device[one]][:, None]) & (
        used[1] <= room[fleet.device[two]][:, None]
    )
    return np.where(fits, pipeline_s, np.inf), is_first, np.maximum(*used), send


def _memory(
    pairs: PairCase, cuts: _Cuts, u: int, many: int, workers: tuple[Integers, Integers]
) -> tuple[Floats, Floats]:
    """Return what a device of the first and of the last stage holds, (rows, cuts) [bytes]."""
    memory = pairs.case.constants.memory
    base = float(base_bytes(pairs.case.work, np.array(float(u)), memory))
    ahead = np.ceil(np.minimum(workers[0] + workers[1], many) / workers[0])
    each = [pairs.law.state_bytes_per_parameter(w) for w in workers]
    first = base + each[0] * cuts.parameters + memory.slack * u * ahead * cuts.saved_bytes
    behind = cuts.all_parameters - cuts.parameters + cuts.tied_parameters
    after = cuts.all_saved_bytes - cuts.saved_bytes
    return first, base + each[1] * behind + memory.slack * u * after


def _with_reductions(pairs: PairCase, part: PairColumns, cuts: _Cuts, best: _Best) -> PairColumns:
    """Return the pipelines as columns: the slower of both stages' reductions behind them."""
    times, kinds = pairs.times, pairs.kinds(part.types)
    number = pairs.devices(part.types, part.counts)
    order = best.is_second_first
    reduced = [_reduced(pairs, part, cuts, best, k) for k in (0, 1)]
    slower = reduced[0].step_s >= reduced[1].step_s

    def of_slower(name: str) -> Floats:
        return np.asarray(np.where(slower, *(getattr(r, name) for r in reduced)))

    step_s = np.where(np.isfinite(best.pipeline_s), of_slower("step_s"), np.inf)
    many = -(-pairs.case.job.global_batch // best.micro_batch)
    steps = -(-many // number[0]), -(-many // number[1])
    samples = steps[0] * best.micro_batch, steps[1] * best.micro_batch
    waiting = pairs.loaded_s(part.types, samples, step_s)
    total = step_s + waiting
    core_type = best.core_first != order  # whether the slower stage is the first type's
    slow = np.where(core_type, *kinds)
    log_sd = np.maximum(times.log_sd[kinds[0]], times.log_sd[kinds[1]])
    network = best.send_s * np.where(core_type, *steps)
    network = network + of_slower("exposed_s") + of_slower("straggler_s")
    layouts = part.times.layouts
    nothing = np.zeros_like(best.micro_batch)
    found = replace(
        part.times,
        status=np.where(np.isfinite(total), 0, part.times.status),
        step_s=total,
        log_sd=np.hypot(log_sd, of_slower("log_sd")),
        shares=pairs.shares(times, slow, total, network, waiting),
        layouts=replace(
            layouts,
            micro_batch=best.micro_batch,
            accumulation_steps=steps[0],
            zero_stage=nothing,
            recompute=nothing,
        ),
        memory_bytes=best.memory_bytes,
    )
    return replace(
        part,
        times=found,
        samples=samples,
        steps=steps,
        cut=cuts.place[best.cut],
        is_second_first=order,
    )


def _reduced(pairs: PairCase, part: PairColumns, cuts: _Cuts, best: _Best, k: int) -> ReducedSteps:
    """Return the pipeline with the reduction of the stage that a type holds behind it."""
    is_front = (k == 0) != best.is_second_first
    share, step = cuts.parameters[best.cut] / cuts.all_parameters, cuts.step[best.cut]
    held = np.where(is_front, share, 1 - share)
    within = np.where(is_front, step, 1 - step)
    device = pairs.kinds(part.types)[k]
    finite = np.where(np.isfinite(best.pipeline_s), best.pipeline_s, 1.0)
    backward = pairs.times.backward.at(device, best.micro_batch) * within
    return pairs.law.reduced(
        Stages(
            types=(part.types[k],),
            counts=(part.counts[k],),
            micro_batch_s=finite,
            backward_s=np.minimum(backward, finite),
            optimizer_s=pairs.times.optimizer_s[device] * held,
            held=held,
        )
    )
