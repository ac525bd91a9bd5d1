"""Advice that makes a job faster or cheaper before anything is rented.

A source is a function from ``Facts`` to ``Advice``, and one line in ``SOURCES``. It
offers only what the recording shows to apply, prices it with ``facts.priced`` (the one estimate,
asked of a changed job), and is silent otherwise; see ``docs/advice.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from advisor.advice import feeding, machines, neighbours, step
from advisor.advice.facts import Advice, Facts
from advisor.jobs import Job
from advisor.quantities import hours_text, usd_text

if TYPE_CHECKING:
    from advisor.planners.systems import MeasuredPair

__all__ = ["FASTER", "FEEDING", "SOURCES", "Advice", "Facts", "cures_for", "sharing_with"]


def _stragglers(facts: Facts) -> Iterable[Advice]:
    """Return what mends recorded ranks; nothing is loaded for the many jobs of one rank."""
    if facts.recording is None or len(facts.recording.ranks) < 2:
        return ()
    from advisor.advice import slow_ranks

    return slow_ranks.advise_stragglers(facts)


# What mends the feed of a job that waits for data.
FEEDING: Final[tuple[Callable[[Facts], Iterable[Advice]], ...]] = (
    feeding.advise_feeding,
    feeding.advise_data_reuse,
)  # fmt: skip
# One line a source, in any order: what is strongest is said first.
SOURCES: Final[tuple[Callable[[Facts], Iterable[Advice]], ...]] = (
    step.advise_software,
    step.advise_optimizers,
    step.advise_batches,
    *FEEDING,
    feeding.advise_chores,
    machines.advise_machines,
    step.advise_described,
    neighbours.advise_colocation,
    machines.advise_rightsizing,
    machines.advise_borrowing,
    _stragglers,
    neighbours.advise_harvesting,
)  # fmt: skip

# What makes a job faster: what others gain by what it leaves is none of it.
_OF_OTHERS: Final = (machines.advise_rightsizing, neighbours.advise_harvesting)
FASTER: Final = tuple(one for one in SOURCES if one not in _OF_OTHERS)
# Said however weak: it was recorded for nothing else.
_ASKED_FOR: Final = frozenset({"harvest-memory"})
# Effects below this share on time times cost are not worth a line: two runs differ by more.
LEAST_STRENGTH: Final = 0.02


def cures_for(
    facts: Facts, sources: Iterable[Callable[[Facts], Iterable[Advice]]] = SOURCES, *,
    kept: Iterable[str] = (),
) -> tuple[Advice, ...]:  # fmt: skip
    """Return what is worth saying of a job, the strongest first.

    ``sources``: all of them by default; ``kept``: names of advice that is said however weak, or
    where it does not pay.
    """
    found = [one for source in sources for one in source(facts)]
    always = _ASKED_FOR | set(kept)
    said = [one for one in found if one.strength >= LEAST_STRENGTH or one.name in always]
    return tuple(sorted(said, key=lambda one: (-one.strength, one.name)))


def noted(found: Sequence[Advice], facts: Facts) -> tuple[tuple[Advice, ...], tuple[str, ...]]:
    """Return what gains time or money, and as sentences what does not and what cannot be told."""
    kept, notes = [], []
    for one in found:
        time, cost = one.time_saved_h, one.cost_saved_usd
        if time is None or cost is None or max(time.value, cost.value) > 0 or one.strength >= 0:
            kept.append(one)
            continue
        more = f"{hours_text(-time.value)} and {usd_text(-cost.value)} more"
        notes.append(f"Does not pay ({more}): {one.change}")
    recording = facts.recording
    if recording is not None and facts.is_here and not facts.has_accelerators:
        why = machines.untold(recording)
        notes += [f"Limits of cores and memory cannot be told: {why}."] if why else []
        if recording.touched and not neighbours.windows_of(recording):
            notes.append("Untouched memory cannot be told: what it holds grew in every window.")
    return tuple(kept), tuple(notes)


def sharing_with(
    other: Job, pairs: Sequence[MeasuredPair] = ()
) -> tuple[Callable[[Facts], Iterable[Advice]], ...]:
    """Return the sources where another job is there to share a device with.

    ``pairs``: as of ``neighbours.beside_run``.
    """

    def share(facts: Facts) -> Iterable[Advice]:
        return neighbours.beside_run(facts, other, pairs)

    return tuple(share if one is neighbours.advise_colocation else one for one in SOURCES)
