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
last one waits for: min w. The step is max C + min w. Taking a rank's own d off W, as for a single
process, would leave in its w the time that the others waited for a core of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from advisor.collectors.events import CommunicationCounts, Events
from advisor.collectors.recording import StepTime
from advisor.collectors.series import RankSeries

_MOST_STEPS = 100_000  # of a kept series: the last ones
_FIRST_STEPS = 12  # warm-up, and the traced ones


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One rank's mean step [s]: on the wall, waiting for a core, waiting for the others."""

    wall_s: float
    delay_s: float
    wait_s: float

    @property
    def own_s(self) -> float:
        return self.wall_s - self.delay_s - self.wait_s


def ranks_of(processes: Sequence[Events], trainer: Events) -> tuple[RankSeries, ...]:
    """Return the series of every rank, by rank; of a program of one process, rank 0 alone.

    Parameters
    ----------
    processes : sequence of Events
        All of the recording.
    trainer : Events
        The one whose steps count where no process has joined a group.
    """
    together = _by_rank(processes)
    if not together:
        return (_series(0, trainer),) if trainer.completed else ()
    return tuple(_series(rank, together[rank]) for rank in sorted(together))


def _by_rank(processes: Sequence[Events]) -> dict[int, Events]:
    """Return the process of each rank; of several, the one with most steps."""
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
    sent = _per_step(counts, "sent_bytes")
    return RankSeries(
        rank=rank,
        pid=int(events.header.get("pid", 0)),
        step_s=tuple((after - before) / 1e9 for before, after in pairwise(sums)),
        wait_s=_waits_s(counts)[-_MOST_STEPS:],
        sent_bytes_per_step=sent,
        received_bytes_per_step=_per_step(counts, "received_bytes"),
        payload_bytes_per_step=_per_step(counts, "payload_bytes"),
    )


def _waits_s(counts: Sequence[CommunicationCounts]) -> tuple[float, ...]:
    """Return what each step waited for the others; between two records, their mean. [s]."""
    waits: list[float] = []
    for before, after in pairwise(counts):
        steps = after.steps - before.steps
        if steps > 0:
            waits += [_wait_s(before, after) / steps] * steps
    return tuple(waits)


def _wait_s(before: CommunicationCounts, after: CommunicationCounts) -> float:
    """Return the waiting between two records: in collectives, and for gradients in C++. [s]."""
    inside_ns = after.wait_ns - before.wait_ns
    exposed_ns = max(0, after.exchanged_ns - after.hidden_ns) if after.exchanged_ns > 0 else 0
    return (inside_ns + exposed_ns * (after.steps - before.steps)) / 1e9


def _per_step(counts: Sequence[CommunicationCounts], name: str) -> float | None:
    """Return a counter's mean growth with a step, from the first record on; None if not read."""
    known = [one for one in counts if getattr(one, name) >= 0]
    if len(known) < 2 or known[-1].steps <= known[0].steps:
        return None
    grown = getattr(known[-1], name) - getattr(known[0], name)
    return max(0.0, grown / (known[-1].steps - known[0].steps))


def communication_of(
    processes: Sequence[Events], ranks: Sequence[RankSeries]
) -> dict[str, float] | None:
    """Return DDP's own figures, and what was measured beside it: means over the ranks.

    Parameters
    ----------
    processes : sequence of Events
    ranks : sequence of RankSeries
        Theirs.

    Returns
    -------
    dict of str to float, or None
        The framework's names and units; ``*_bytes_per_step`` [bytes], ``wait_s_per_step`` [s].
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


def corrected_together(step: StepTime, trainer: Events, processes: Sequence[Events]) -> StepTime:
    """Take the contention of the other ranks out of a step that the trainer's own is out of.

    Waiting for a core while gradients are on their way delays nothing and is not taken out. No
    more is taken out than a rank has waited for a core: on an idle machine nothing is.

    Parameters
    ----------
    step : StepTime
        Of the trainer, its own waiting for a core taken out.
    trainer : Events
    processes : sequence of Events

    Returns
    -------
    StepTime
    """
    ranks = _by_rank(processes)
    if len(ranks) < 2:
        return step
    shares = {rank: _share(ranks[rank].communication) for rank in ranks}
    known = [one for one in shares.values() if one is not None]
    if len(known) < len(ranks):
        return step
    mine = shares.get(int(trainer.fact("process_group").get("rank", 0))) or known[0]
    alone_s = mine.wall_s - mine.delay_s
    together_s = max(one.own_s for one in known) + min(one.wait_s for one in known)
    least_s = alone_s - max(one.delay_s for one in known)
    corrected_s = step.raw_s * max(together_s, least_s) / mine.wall_s
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
        delay_fraction=max(0.0, 1.0 - corrected_s / step.raw_s),
    )


def _share(counts: Sequence[CommunicationCounts]) -> _Share | None:
    """Return a rank's mean step; None where too little was recorded of it."""
    counts = [one for one in counts if one.steps > _FIRST_STEPS]
    if len(counts) < 2 or counts[-1].steps <= counts[0].steps:
        return None
    first, last = counts[0], counts[-1]
    steps = last.steps - first.steps
    wall_s = (last.t_ns - first.t_ns) / 1e9 / steps
    delay_s = (last.delay_ns - first.delay_ns) / 1e9 / steps
    cpu_s = (last.cpu_ns - first.cpu_ns) / 1e9 / steps
    wait_s = sum(_wait_s(before, after) for before, after in pairwise(counts)) / steps
    return _Share(
        wall_s=wall_s,
        delay_s=delay_s,
        wait_s=min(wait_s, max(0.0, wall_s - delay_s - cpu_s)),
    )
