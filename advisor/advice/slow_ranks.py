"""Ranks that wait for a slow one: batches by speed, fewer samples or transfers, backups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Advice, Facts
from advisor.collectors.format import rows_of
from advisor.machines import host_device
from advisor.planners import systems
from advisor.planners.core import PlanningError
from advisor.planners.systems import Mended, UnlikeRanks
from advisor.quantities import percent_text

LEAST_GAIN: Final = 0.05
# Of the saved time: our experiment's two ranks (lab/notes/experiments.md) saved 0.4 to 1.0 of it.
_EFFECT_SD: Final = 0.3
# What a changing batch has to gain over one that stays, to be worth the trouble.
_MORE_GAIN: Final = 0.05
# Operators that layers call on a batch of samples, first dimension the samples.
_LAYERS: Final = frozenset({"aten::addmm", "aten::convolution", "aten::linear", "aten::mm"})
_FP32_BYTES: Final = 4.0


def advise_stragglers(facts: Facts) -> Iterable[Advice]:
    """Offer what mends the recorded ranks, on the machines that they were recorded on."""
    ranks = ranks_of(facts)
    if ranks is None or not facts.is_here:
        return
    for one in _ways(facts, ranks, _seen(ranks)):
        if one.time_factor <= 1.0 / (1.0 + LEAST_GAIN):
            yield one


def ranks_of(facts: Facts) -> UnlikeRanks | None:
    """Return the recorded ranks, what held them back counted as theirs; None where unknown."""
    recording = facts.recording
    if recording is None or len(recording.ranks) < 2 or not facts.job.recorded_batch:
        return None
    try:
        return systems.unlike_ranks(
            recording.steps_by_rank, recording.wait_by_step,
            batch=float(facts.job.recorded_batch),
            exchange_s=(recording.communication or {}).get("exchange_s_per_step", 0.0),
        )  # fmt: skip
    except PlanningError:
        return None


def _seen(ranks: UnlikeRanks) -> str:
    spread = systems.measured_spread(ranks.own_s)
    said = (
        f"{spread.ranks} ranks over {spread.steps} steps: their times differ by "
        f"{percent_text(spread.staying_fraction)} that stays and "
        f"{percent_text(spread.passing_fraction)} that passes"
    )
    slow, ahead, habit = systems.named_ahead(ranks)
    if not slow:
        return said
    return (
        f"{said}; of {slow} steps with a straggler a forecast from the steps before names it in "
        f"{percent_text(ahead)}, the one that is slow most often is it in {percent_text(habit)}"
    )


def _ways(facts: Facts, ranks: UnlikeRanks, seen: str) -> Iterator[Advice]:
    even = systems.rebalanced(ranks)
    sizes = tuple(int(one) for one in even.batches)
    usual: dict[str, Any] = {"seen": seen, "total": int(ranks.batches.sum())}
    yield _advice(facts, even, "uneven-batches", listed=_listed(sizes), sizes=sizes, **usual)
    moving = systems.by_forecast(ranks)
    if moving.gain > even.gain + _MORE_GAIN:
        yield _advice(facts, moving, "batches-by-forecast", **usual)
    yield from _thinned(facts, ranks, seen)
    yield from _sent_less(facts, ranks, seen)
    if len(sizes) > 2:
        way = systems.backed_up(ranks, 1)
        yield _advice(
            facts, way, "backup-worker", seen=seen, first=len(sizes) - 1, ranks=len(sizes)
        )
    yield _advice(
        facts, systems.asynchronous(ranks), "asynchronous", seen=seen, old=len(sizes) - 1
    )


def _thinned(facts: Facts, ranks: UnlikeRanks, seen: str) -> Iterator[Advice]:
    """Offer to drop near-duplicates; silent where a sample's size or the processor is unknown."""
    kept, size = systems.kept_batches(ranks), _sample_bytes(facts)
    choosing = _choosing_s(facts, ranks, kept, size)
    if choosing is None or np.array_equal(kept, ranks.batches):
        return
    way = systems.dropped(ranks, choosing_s=choosing)
    sizes = tuple(int(one) for one in kept)
    longest = float(choosing.max())
    yield _advice(
        facts, way, "drop-near-duplicates", {"choosing_s": longest}, seen=seen, sizes=sizes,
        listed=_listed(sizes), size=size, choosing_s=longest,
        saved_s=ranks.step_s - way.step_s + longest,
        lost=1 - way.samples_fraction,
    )  # fmt: skip


def _sample_bytes(facts: Facts) -> float:
    """Return what a sample is made of: as its loader gave it, or the widest input of a layer.

    Samples are told apart by it, so that the widest costs most. 0 where neither was seen.
    """
    size = facts.job.feed.sample_bytes
    deep = None if facts.recording is None else facts.recording.deep_step
    if size is not None or deep is None:
        return size or 0.0
    inputs = [
        math.prod(map(int, rest)) for name, shapes in rows_of(deep.operators, "name", "shapes")
        if name in _LAYERS
        for first, *rest in (one.split("x") for one in shapes.split(","))
        if first == str(deep.samples) and rest
    ]  # fmt: skip
    return _FP32_BYTES * max(inputs, default=0)


def _choosing_s(
    facts: Facts, ranks: UnlikeRanks, kept: NDArray[np.float64], size: float
) -> NDArray[np.float64] | None:
    """Return what choosing takes each rank of every step, at its own speed [s]."""
    seen = facts.job.measured
    device = None if seen is None else host_device(seen.host, seen.threads, "cpu")
    if size <= 0 or device is None or not device.sustained_fp32_flop_per_s:
        return None
    mean = ranks.own_s.mean(axis=0)
    return np.array([
        float(own / np.median(mean)) * systems.selection_s(
            float(batch), float(left), size, flop_per_s=device.sustained_fp32_flop_per_s,
            memory_bytes_per_s=device.memory_bytes_per_s,
        )
        for own, batch, left in zip(mean, ranks.batches, kept, strict=True)
    ])  # fmt: skip


def _sent_less(facts: Facts, ranks: UnlikeRanks, seen: str) -> Iterator[Advice]:
    """Offer that slow ranks send their gradients every few steps, and are waited for then only."""
    mean = ranks.own_s.mean(axis=0)
    every = np.maximum(np.ceil(mean / np.median(mean) - systems.SLOWER), 1.0).astype(int)
    if every.max() == 1 or every.min() != 1:
        every = np.maximum(np.ceil(mean / mean.min() - systems.SLOWER), 1.0).astype(int)
    if every.max() == 1:
        return
    often = [k for k, apart in enumerate(every) if apart == 1]
    way = systems.sent_less(ranks, every)
    yield _advice(
        facts, way, "fewer-transfers", {"every": every.tolist()}, seen=seen, often=often,
        listed=_listed(tuple(every.tolist())), old=every.max() - 1, most=int(every.max()),
        lost=1 - way.samples_fraction,
    )  # fmt: skip


def _advice(
    facts: Facts, way: Mended, name: str, details: Mapping[str, Any] = MappingProxyType({}),
    **figures: Any,
) -> Advice:  # fmt: skip
    """Return advice on a way of mending: the steps' share of the job takes by so much less."""
    factor = 1.0 / (1.0 + way.gain)
    found = facts.advised(name, factor, factor, _EFFECT_SD, **figures)
    batches = {"batches": way.batches.tolist(), "step_s": way.step_s}
    return replace(found, details={**batches, "samples_fraction": way.samples_fraction, **details})


def _listed(sizes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown if len(sizes) <= 8 else f"{shown}, ..."
