"""Checkpoints of a recorded process, from its calls of ``torch.save``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from advisor.collectors.contention import Corrected, Stretch, correct

# A script may save small things beside its checkpoints: those within this share of the largest
# are taken to be checkpoints.
_ALIKE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints that were seen.

    Attributes
    ----------
    seconds, raw_seconds : float
        Median standstill of one, without neighbours and by the clock. [s]
    size_bytes : int or None
        Of the largest; None where files could not be measured. [bytes]
    half_width_s : float
        How far the correction may be off. [s]
    """

    count: int
    seconds: float
    size_bytes: int | None
    raw_seconds: float = 0.0
    half_width_s: float = 0.0


def saves_of(facts: Sequence[Mapping[str, Any]], kept_share: float = 0.0) -> Saves | None:
    """Return the checkpoints among the saves, None where nothing was saved.

    ``kept_share`` is the share of the waiting for a core that is the job's own.
    """
    if not facts:
        return None
    largest = max((one["bytes"] or 0) for one in facts)
    alike = [one for one in facts if (one["bytes"] or 0) >= _ALIKE * largest]
    times = [_time(one, kept_share) for one in alike]
    return Saves(
        count=len(alike),
        seconds=median(one.corrected_s for one in times),
        size_bytes=int(largest) or None,
        raw_seconds=median(one.raw_s for one in times),
        half_width_s=median(one.half_width_s for one in times),
    )


def _time(fact: Mapping[str, Any], kept_share: float) -> Corrected:
    wall_ns, delay_ns = 1e9 * float(fact["seconds"]), 1e9 * float(fact.get("delay_s", 0.0))
    return correct(Stretch(wall_ns=wall_ns, delay_ns=delay_ns, kept_ns=kept_share * delay_ns))
