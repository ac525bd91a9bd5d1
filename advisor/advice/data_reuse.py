"""Data that was loaded already: batches that are used again, samples that are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.domain import QUANTILES
from advisor.jobs.job import Job
from advisor.planners.core.units import GIB
from advisor.planners.data_reuse.feeding import Feeding
from advisor.planners.data_reuse.perfect import (
    RHO,
    RHO_HIGH,
    RHO_LOW,
    best_echo,
    freshness,
    repeat_then_fresh_s,
)

# Of the wall time, spent repeating before the job goes on with fresh data: that of our own
# experiment (docs/experiments.md); PerFect's was not published.
REPEATING: Final = 0.7
# Of the memory that is left, for samples that are kept.
_OF_MEMORY: Final = 0.8


def _used_again(facts: Facts) -> Iterator[Advice | None]:
    """Offer to use loaded data again where the job is input-bound."""
    fed = _feeding(facts)
    if fed is not None and fed.is_input_bound:
        yield from _repeated(facts, fed)
        yield from _kept(facts)


def _feeding(facts: Facts) -> Feeding | None:
    """Return what feeds the job on the machines it is judged on; None where that is unknown."""
    job, now = facts.job, facts.now
    if job.work is None or not (job.feed.cpu_s_per_sample or job.feed.idle_s_per_sample):
        return None
    step_s, share = now.step_time_s.value, now.shares.get("input", 0.0)
    if not 0.0 < share < 1.0:
        return None
    # Beside the step loading takes all of it, in the loop its share.
    batch_s = step_s if job.feed.workers else share * step_s
    return Feeding(
        cpu_s=0.0,
        idle_s=batch_s * max(job.feed.workers, 1),
        compute_s=(1.0 - share) * step_s,
        workers=job.feed.workers,
        cores=1.0,
    )


def _repeated(facts: Facts, fed: Feeding) -> Iterator[Advice | None]:
    """Offer to repeat every batch for most of the time, and to end on fresh data."""
    found = best_echo(fed)
    if found.echo < 2:
        return
    savings = [1.0 - _time_factor(fed, found.echo, rho) for rho in (RHO, RHO_LOW, RHO_HIGH)]
    spread = (savings[2] - savings[1]) / (2.0 * QUANTILES[facts.now.cost_usd.coverage])
    echo = found.echo
    yield facts.priced(
        _echoed(facts.job, fed, echo),
        name="repeat-batches",
        change=f"Use each batch {echo} times for {REPEATING:.0%} of the time, then fresh batches.",
        rests_on=f"loading a batch takes {fed.ratio:.1f} times as long as computing on it; a "
        f"repetition is worth {RHO:g} of the one before ({RHO_LOW:g} to {RHO_HIGH:g}; data "
        "echoing, arXiv 1907.05550: 3.25 times less time)",
        condition="The accuracy must be looked at: one small task of ours gained by it "
        "(docs/experiments.md), yours was not tried. More loader workers come first.",
        how=How(kind="lines", text=_lines(echo)),
        effect_log_sd=spread / savings[0] if savings[0] > 0 else 0.0,
        is_model_kept=False,
    )


def _lines(echo: int) -> str:
    return (
        "def repeated(loader, times):\n    for batch in loader:\n        for _ in range(times):\n"
        f"            yield batch\n\nfor batch in repeated(loader, {echo}):"
        f"  # {REPEATING:.0%} of the time; then over loader itself"
    )


def _rates(fed: Feeding, echo: int) -> tuple[float, float]:
    """Return updates a second, all of them, while repeating and after."""
    return REPEATING / fed.step_s(echo), (1.0 - REPEATING) / fed.step_s()


def _time_factor(fed: Feeding, echo: int, rho: float) -> float:
    spent_s = repeat_then_fresh_s(fed, updates=1.0, echo=echo, share=REPEATING, rho=rho)
    return spent_s / fed.step_s()


def _echoed(job: Job, fed: Feeding, echo: int) -> Job:
    """Return the job with more steps, of which each loads less."""
    repeating, fresh = _rates(fed, echo)
    updates = repeating + fresh
    more = updates / (repeating * freshness(echo, RHO) + fresh)
    return _loading_less(
        replace(job, total_steps=job.total_steps * more), (repeating / echo + fresh) / updates
    )


def _loading_less(job: Job, share: float) -> Job:
    """Return the job whose steps load a share of what they did; where it ran, it waits less."""
    feed = job.feed
    less = replace(
        feed,
        cpu_s_per_sample=None if feed.cpu_s_per_sample is None else share * feed.cpu_s_per_sample,
        idle_s_per_sample=share * feed.idle_s_per_sample,
    )
    seen = job.measured
    if seen is None:
        return replace(job, feed=less)
    computing_s = seen.step_s - feed.wait_s
    loading_s = seen.step_s if feed.workers and feed.wait_s else feed.wait_s
    wait_s = share * loading_s
    if feed.workers:
        wait_s = max(wait_s - computing_s, 0.0)
    measured = replace(seen, step_s=max(computing_s + wait_s, 1e-9))
    return replace(job, feed=replace(less, wait_s=wait_s), measured=measured)


def _kept(facts: Facts) -> Iterator[Advice | None]:
    """Offer to keep samples that the processor makes anew every epoch."""
    job, feed = facts.job, facts.job.feed
    made_s = feed.cpu_s_per_sample or 0.0
    if feed.sample_bytes is None or not feed.dataset_samples or made_s <= feed.idle_s_per_sample:
        return
    epochs = job.total_steps * job.global_batch / feed.dataset_samples
    size = feed.sample_bytes * feed.dataset_samples
    offer, _ = facts.now.configuration.parts[0]
    room = offer.memory_gib * GIB - job.peak_rss_bytes
    if epochs < 2 or not 0 < size <= _OF_MEMORY * room:
        return
    benchmark = None if job.measured is None else job.measured.host.benchmark
    copied_s = (
        0.0 if benchmark is None else feed.sample_bytes / benchmark.copy_one_core_bytes_per_s
    )
    again = min(copied_s / made_s, 1.0)
    yield facts.priced(
        _loading_less(job, (1.0 + (math.ceil(epochs) - 1.0) * again) / math.ceil(epochs)),
        name="keep-samples",
        change="Make each sample once and keep it in memory.",
        rests_on=f"{1e3 * made_s:.2g} ms of a core make a sample, in each of {epochs:.0f} epochs; "
        f"all of them as tensors are {size / GIB:.3g} GiB",
        condition="For what is the same every epoch: random augmentation stays behind it. Fill "
        "the list before loader processes start, so that they share it.",
        how=How(kind="lines", text="samples = [dataset[i] for i in range(len(dataset))]\n"
                "loader = DataLoader(samples, ...)"),
        evidence="measured",
    )  # fmt: skip


advise: Final = source("data_reuse", _used_again)
