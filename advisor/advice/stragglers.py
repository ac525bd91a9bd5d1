"""Ranks that wait for a slow one: batches by speed, fewer samples, backups, no waiting at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from advisor.advice.facts import Facts, saved
from advisor.advice.record import Advice, How
from advisor.planners.stragglers.mending import (
    Mended,
    UnlikeRanks,
    asynchronous,
    backed_up,
    dropped,
    rebalanced,
)
from advisor.planners.stragglers.spread import FEWEST_STEPS, measured_spread, own_times

LEAST_GAIN: Final = 0.05
# Of the saved time: our experiment's two ranks (docs/experiments.md) came out 10 to 20 % off.
_EFFECT_SD: Final = 0.3


def advise(facts: Facts) -> Iterable[Advice]:
    """Offer what mends the recorded ranks, on the machines that they were recorded on."""
    ranks = ranks_of(facts)
    if ranks is None or not facts.is_here:
        return
    spread = measured_spread(ranks.own_s)
    seen = (
        f"{spread.ranks} ranks over {spread.steps} steps: their times differ by "
        f"{spread.staying_fraction:.0%} that stays and {spread.passing_fraction:.0%} that passes"
    )
    for one in _ways(facts, ranks, seen):
        if one.time_factor <= 1.0 / (1.0 + LEAST_GAIN):
            yield one


def ranks_of(facts: Facts) -> UnlikeRanks | None:
    """Return the recorded ranks, what held them back counted as theirs; None where unknown."""
    recording = facts.recording
    if recording is None or len(recording.ranks) < 2 or not facts.job.recorded_batch:
        return None
    own = own_times(recording.steps_by_rank, recording.wait_by_step, is_wall=True)
    if len(own) < FEWEST_STEPS or (own <= 0).any():
        return None
    return UnlikeRanks(
        own_s=own,
        batches=np.full(own.shape[1], float(facts.job.recorded_batch)),
        exchange_s=(recording.communication or {}).get("exchange_s_per_step", 0.0),
    )


def _ways(facts: Facts, ranks: UnlikeRanks, seen: str) -> Iterator[Advice]:
    even = rebalanced(ranks)
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
    fewer = dropped(ranks, selection_s=0.0)
    kept = tuple(int(one) for one in fewer.batches)
    yield _advice(
        facts, fewer, "drop-near-duplicates", seen,
        change=f"Let slow ranks drop near-duplicates of their samples: {_listed(kept)} are kept.",
        condition=f"Pays only where choosing them takes less than {_saved_s(ranks, fewer):.2g} s "
        f"of a step; {1 - fewer.samples_fraction:.0%} of the samples are not learned from.",
        how=f"keep = {kept}[rank]  # representatives of the batch, chosen by distance",
        is_model_kept=False,
    )  # fmt: skip
    if len(sizes) > 2:
        spare = backed_up(ranks, 1)
        yield _advice(
            facts, spare, "backup-worker", seen,
            change=f"Wait for the first {len(sizes) - 1} of {len(sizes)} ranks in each step.",
            condition="One rank's samples of every step are thrown away; pays where ranks are "
            "slow in turns.",
            how="# a parameter server that applies the first gradients and drops the last",
            is_model_kept=False,
        )  # fmt: skip
    yield _advice(
        facts, asynchronous(ranks), "asynchronous", seen,
        change="Let ranks update without waiting for each other.",
        condition=f"Gradients are up to {len(sizes) - 1} updates old: look at the accuracy.",
        how="# a parameter server, or torch.distributed.rpc with one optimizer",
        is_model_kept=False,
    )  # fmt: skip


def _advice(
    facts: Facts, way: Mended, name: str, seen: str, *, change: str, condition: str, how: str,
    is_model_kept: bool = True,
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
    )  # fmt: skip


def _saved_s(ranks: UnlikeRanks, way: Mended) -> float:
    return max(0.0, ranks.step_s - way.step_s)


def _listed(sizes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown if len(sizes) <= 8 else f"{shown}, ..."
