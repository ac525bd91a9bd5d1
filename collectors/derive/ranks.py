"""The processes that train together: each one's steps, waiting and bytes, and the step of all.

=========  ====================================================================================
name       meaning, a mean over the steps that every rank has recorded
=========  ====================================================================================
W          time of a step on the wall, the same for all: they wait for each other
d          how long the rank's main thread waited for a core (``run_delay``)
b          how long it was blocked: W - d - its CPU time
w          how long it was inside collectives and waiting for gradients, at most b
C          W - d - w: what the rank itself does in a step
=========  ====================================================================================

On machines of their own the slowest rank computes for max C, and the exchange takes what even the
last one to come waits: in each step the least w of any rank, x on the mean. The step is max C + x.
Taking a rank's own d off W, as for a single process, would leave in its w the time that the others
waited for a core of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from advisor.collectors.format import CommunicationCounts, Events, RankSeries, StepTime

_MOST_STEPS = 100_000  # of a kept series: the last ones
_FIRST_STEPS = 12  # warm-up, and the traced ones


def ranks_of(processes: Sequence[Events], trainer: Events) -> tuple[RankSeries, ...]:
    """Return the series of every rank, by rank; of a program of one process, rank 0 alone.

    ``trainer``: the one whose steps count where no process has joined a group.
    """
    together = _by_rank(processes)
    if not together:
        return (_series(0, trainer),) if trainer.completed else ()
    return tuple(_series(rank, together[rank]) for rank in sorted(together))


def _by_rank(processes: Sequence[Events]) -> dict[int, Events]:
    found: dict[int, Events] = {}
    for one in processes:
        group = one.fact("process_group")
        if group.get("world_size", 1) > 1 and one.completed:
            rank = int(group.get("rank", 0))
            if rank not in found or found[rank].completed < one.completed:
                found[rank] = one
    return found


def _series(rank: int, events: Events) -> RankSeries:
    counts = events.communication
    sums = events.steps.corrected_ns[-_MOST_STEPS - 1 :]
    waits = _wait_of_each(_after_first_steps(counts) or counts)
    return RankSeries(
        rank=rank,
        pid=int(events.header.get("pid", 0)),
        step_s=tuple((after - before) / 1e9 for before, after in pairwise(sums)),
        wait_s=tuple(waits.values())[-_MOST_STEPS:],
        sent_bytes_per_step=_per_step(counts, "sent_bytes"),
        received_bytes_per_step=_per_step(counts, "received_bytes"),
        payload_bytes_per_step=_per_step(counts, "payload_bytes"),
    )


def _wait_of_each(counts: Sequence[CommunicationCounts]) -> dict[int, float]:
    """Return what each step waited for the others, by its number."""
    waits: dict[int, float] = {}
    for before, after in pairwise(counts):
        steps = range(before.steps + 1, after.steps + 1)
        if steps:
            waits.update(dict.fromkeys(steps, _wait_s(before, after) / len(steps)))
    return waits


def _exchange_s(ranks: Sequence[Events]) -> float | None:
    """Return the mean over the steps of what the last rank to come waits; None if unknown [s].

    It waits for nobody: what it waits is the exchange itself.
    """
    waits = [_wait_of_each(_after_first_steps(one.communication)) for one in ranks]
    common = set[int]() if len(waits) < 2 else set(waits[0]).intersection(*waits[1:])
    if not common:
        return None
    return sum(min(one[step] for one in waits) for step in common) / len(common)


def _wait_s(before: CommunicationCounts, after: CommunicationCounts) -> float:
    """Return the waiting between two records: in collectives, and for gradients in C++.

    No more than the time that the rank neither computed nor waited for a core in. [s]
    """
    inside_ns = after.wait_ns - before.wait_ns
    exposed_ns = max(0, after.exchanged_ns - after.hidden_ns) if after.exchanged_ns > 0 else 0
    used_ns = after.cpu_ns - before.cpu_ns + after.delay_ns - before.delay_ns
    blocked_ns = max(0, after.t_ns - before.t_ns - used_ns)
    return float(min(inside_ns + exposed_ns * (after.steps - before.steps), blocked_ns) / 1e9)


def _per_step(counts: Sequence[CommunicationCounts], name: str) -> float | None:
    """Return a counter's mean growth with a step, from the first record on; None if not read."""
    known = [one for one in counts if getattr(one, name) >= 0]
    if len(known) < 2 or known[-1].steps <= known[0].steps:
        return None
    grown = getattr(known[-1], name) - getattr(known[0], name)
    return max(0.0, float(grown / (known[-1].steps - known[0].steps)))


def communication_of(
    processes: Sequence[Events], ranks: Sequence[RankSeries]
) -> dict[str, float] | None:
    """Return DDP's own figures, and what was measured beside it: means over the ranks.

    Returns
    -------
    dict of str to float, or None
        The framework's names and units; ``*_bytes_per_step`` [bytes]; ``wait_s_per_step``, and
        ``exchange_s_per_step``: what even the rank waits that waits least [s].
    """
    fact = next((one.fact("ddp") for one in processes if one.fact("ddp")), {})
    found: dict[str, float] = {
        name: value
        for name, value in fact.items()
        if isinstance(value, (int, float)) and name != "t_ns"
    }
    for name in ("sent_bytes_per_step", "received_bytes_per_step", "payload_bytes_per_step"):
        known = [value for one in ranks if (value := getattr(one, name)) is not None]
        if known:
            found[name] = sum(known) / len(known)
    waits = [sum(one.wait_s) / len(one.wait_s) for one in ranks if one.wait_s]
    if waits:
        found["wait_s_per_step"] = sum(waits) / len(waits)
    exchange_s = _exchange_s(list(_by_rank(processes).values()))
    if exchange_s is not None:
        found["exchange_s_per_step"] = exchange_s
    return found or None


def wrapping_of(processes: Sequence[Events]) -> str:
    """Return what was done to a script that does not train together by itself.

    ``""``: nothing; ``"wrapped"``; ``"refused: ..."`` with the reason.
    """
    facts = [one.fact("wrapping") for one in processes]
    for fact in facts:
        if fact.get("state") == "refused":
            return f"refused: {fact.get('why')}"
    return "wrapped" if any(fact.get("state") == "wrapped" for fact in facts) else ""


def unshared_data(trainer: Events) -> list[str]:
    """Return a warning where a wrapped script's ranks may all have trained on the same data."""
    if trainer.training_loader() is None:
        return [
            "the script makes its batches itself: ranks draw different random numbers, but what "
            "it reads in order is the same on every rank"
        ]
    if trainer.loader_fact().get("sampler") != "DistributedSampler":
        return ["the training loader does not shuffle: every rank trained on the same data"]
    return []


def corrected_together(step: StepTime, trainer: Events, processes: Sequence[Events]) -> StepTime:
    """Take the contention of the other ranks out of a step that the trainer's own is out of.

    Waiting for a core while gradients are on their way delays nothing and is not taken out. No
    more is taken out than ranks have waited for a core: on an idle machine nothing is.

    ``step``: of the trainer, its own waiting for a core taken out.
    """
    ranks = _by_rank(processes)
    if len(ranks) < 2:
        return step
    shares = {rank: _share(ranks[rank].communication) for rank in ranks}
    known = [one for one in shares.values() if one is not None]
    exchange_s = _exchange_s(list(ranks.values()))
    if len(known) < len(ranks) or exchange_s is None:
        return step
    if trainer.steps.throttled.over(trainer.steps.first_ns, trainer.steps.last_ns) > 0:
        return step  # a quota's waiting belongs to the machine, and nobody says whose it was
    mine = shares.get(int(trainer.fact("process_group").get("rank", 0))) or known[0]
    together_s = max(own_s for _, _, own_s in known) + exchange_s
    least_s = mine[0] - sum(delay_s for _, delay_s, _ in known)
    corrected_s = step.raw_s * max(together_s, least_s) / mine[0]
    if (trainer.fact("torch").get("threads") or 1) > 1:
        # Its pool computes, and waits for cores too; else the other threads only carry bytes.
        corrected_s = min(corrected_s, step.corrected_s)
    if not 0 < corrected_s <= step.raw_s:
        return step
    factor = corrected_s / step.corrected_s
    return replace(
        step,
        corrected_s=corrected_s,
        low_s=step.low_s * factor,
        high_s=step.high_s * factor,
        contention_half_width_s=step.contention_half_width_s * factor,
        delay_fraction=max(0.0, 1.0 - corrected_s / step.raw_s),
    )


def _after_first_steps(counts: Sequence[CommunicationCounts]) -> list[CommunicationCounts]:
    """Return the records after warm-up and the traced steps; none if no two steps are left."""
    later = [one for one in counts if one.steps > _FIRST_STEPS]
    return later if len(later) > 1 and later[-1].steps > later[0].steps else []


def _share(counts: Sequence[CommunicationCounts]) -> tuple[float, float, float] | None:
    """Return a rank's mean step [s]: on the wall, waiting for a core, and its own part.

    None where too little was recorded of it.
    """
    counts = _after_first_steps(counts)
    if not counts:
        return None
    first, last = counts[0], counts[-1]
    steps = last.steps - first.steps
    wall_s = (last.t_ns - first.t_ns) / 1e9 / steps
    delay_s = (last.delay_ns - first.delay_ns) / 1e9 / steps
    wait_s = sum(_wait_s(before, after) for before, after in pairwise(counts)) / steps
    return wall_s, delay_s, wall_s - delay_s - wait_s
