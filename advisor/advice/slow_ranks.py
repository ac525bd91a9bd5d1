"""Ranks that wait for a slow one: batches by speed, fewer samples or transfers, backups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Advice, Facts, How, saved
from advisor.machines import host_device
from advisor.planners import systems
from advisor.planners.core import PlanningError
from advisor.planners.systems import Mended, UnlikeRanks
from advisor.quantities import percent_text, seconds_text

LEAST_GAIN: Final = 0.05
# Of the saved time: our experiment's two ranks (lab/notes/experiments.md) saved 0.4 to 1.0 of it.
_EFFECT_SD: Final = 0.3
# What a changing batch has to gain over one that stays, to be worth the trouble.
_MORE_GAIN: Final = 0.05


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
    total = int(ranks.batches.sum())
    yield _advice(
        facts, even, "uneven-batches", seen,
        change=f"Give each rank the samples it can do in one time: {_listed(sizes)}.",
        condition="Holds while the same ranks are slow, all have one batch size now and every "
        "sample costs the same.",
        how=f"batch = {sizes}[rank]  # of the loader; weight each loss by its share:\n"
        f"loss = loss * batch * world_size / {total}",
    )  # fmt: skip
    moving = systems.by_forecast(ranks)
    if moving.gain > even.gain + _MORE_GAIN:
        yield _advice(
            facts, moving, "batches-by-forecast", seen,
            change="Share the samples of every step out anew, by a forecast of each rank's speed.",
            condition="Where every rank can load any sample; the batches follow the last steps.",
            how=_FORECAST.format(total=total),
        )  # fmt: skip
    yield from _thinned(facts, ranks, seen)
    yield from _sent_less(facts, ranks, seen)
    if len(sizes) > 2:
        yield _advice(
            facts, systems.backed_up(ranks, 1), "backup-worker", seen,
            change=f"Wait for the first {len(sizes) - 1} of {len(sizes)} ranks in each step.",
            condition="One rank's samples of every step are thrown away; pays where ranks are "
            "slow in turns.",
            how="# a parameter server that applies the first gradients and drops the last",
            is_model_kept=False,
        )  # fmt: skip
    yield _advice(
        facts, systems.asynchronous(ranks), "asynchronous", seen,
        change="Let ranks update without waiting for each other.",
        condition=f"Gradients are up to {len(sizes) - 1} updates old: look at the accuracy.",
        how="# a parameter server, or torch.distributed.rpc with one optimizer",
        is_model_kept=False,
    )  # fmt: skip


def _thinned(facts: Facts, ranks: UnlikeRanks, seen: str) -> Iterator[Advice]:
    """Offer to drop near-duplicates; silent where a sample's size or the processor is unknown."""
    kept = systems.kept_batches(ranks)
    choosing = _choosing_s(facts, ranks, kept)
    if choosing is None or np.array_equal(kept, ranks.batches):
        return
    way = systems.dropped(ranks, choosing_s=choosing)
    sizes = tuple(int(one) for one in kept)
    yield _advice(
        facts, way, "drop-near-duplicates", seen,
        change=f"Let slow ranks drop near-duplicates of their samples: {_listed(sizes)} are kept.",
        condition=f"Choosing them is counted with {seconds_text(choosing.max())} of a step, of "
        f"{seconds_text(ranks.step_s - way.step_s + choosing.max())} that fewer samples save; "
        f"{percent_text(1 - way.samples_fraction)} of the samples are not learned from.",
        how=_REPRESENTATIVES.format(kept=sizes), is_model_kept=False,
        choosing_s=float(choosing.max()),
    )  # fmt: skip


def _choosing_s(
    facts: Facts, ranks: UnlikeRanks, kept: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return what choosing takes each rank of every step, at its own speed [s]."""
    size, seen = facts.job.feed.sample_bytes, facts.job.measured
    device = None if seen is None else host_device(seen.host, seen.threads, "cpu")
    if size is None or size <= 0 or device is None or not device.sustained_fp32_flop_per_s:
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
        facts, way, "fewer-transfers", seen,
        change=f"Let slow ranks send gradients every {_listed(tuple(every.tolist()))} steps, of "
        "one batch; the others go on meanwhile.",
        condition=f"{percent_text(1 - way.samples_fraction)} of the samples are not computed; "
        "late "
        f"gradients are up to {every.max() - 1} updates old: look at the accuracy.",
        how=_GROUPS.format(often=often, every=int(every.max())), is_model_kept=False,
        every=every.tolist(),
    )  # fmt: skip


def _advice(
    facts: Facts, way: Mended, name: str, seen: str, *, change: str, condition: str, how: str,
    is_model_kept: bool = True, **details: Any,
) -> Advice:  # fmt: skip
    """Return advice on a way of mending: the steps' share of the job takes by so much less."""
    factor = 1.0 / (1.0 + way.gain)
    now = facts.now
    return Advice(
        name=name, source="stragglers", change=change, evidence="measured", rests_on=seen,
        condition=condition, how=How(kind="lines", text=how), is_model_kept=is_model_kept,
        time_saved_h=saved(now.training_time_h, factor, _EFFECT_SD),
        cost_saved_usd=saved(now.cost_usd, factor, _EFFECT_SD),
        time_factor=factor, cost_factor=factor,
        details={"batches": way.batches.tolist(), "step_s": way.step_s,
                 "samples_fraction": way.samples_fraction, **details},
    )  # fmt: skip


def _listed(sizes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown if len(sizes) <= 8 else f"{shown}, ..."


# What is pasted. Braces of Python are doubled: the texts are formatted.
_FORECAST: Final = """\
# own: seconds that this rank computed in the last step, without waiting for others
speeds = [None] * dist.get_world_size()
dist.all_gather_object(speeds, len(x) / own)  # average them over the last steps
batch = int({total} * speeds[rank] / sum(speeds))  # of the next step; weight the loss by it"""

_REPRESENTATIVES: Final = """\
keep = {kept}[rank]
flat = x.flatten(1).float().cpu().numpy()  # the batch of this rank
square = (flat * flat).sum(1)
apart = square[:, None] + square - 2 * flat @ flat.T
np.fill_diagonal(apart, np.inf)
near, gap = apart.argmin(1), apart.min(1)
for _ in range(len(flat) - keep):
    gone = gap.argmin()  # one of the two nearest samples
    apart[gone] = apart[:, gone] = gap[gone] = np.inf
    near[gone] = -1
    for k in np.flatnonzero((near == gone) & (gap < np.inf)):
        near[k], gap[k] = apart[k].argmin(), apart[k].min()
kept = np.flatnonzero(near >= 0)
x, y = x[kept], y[kept]"""

_GROUPS: Final = """\
others = dist.new_group({often})  # ranks that send in every step
# without DDP's own exchange: with model.no_sync(): loss.backward()
# these ranks: dist.all_reduce(p.grad, group=others), in every {every}th step in all ranks;
# a slow rank: one batch in {every} steps, then the same all_reduce and the parameters anew"""
