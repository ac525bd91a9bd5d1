"""What the checkpoints of a recorded process took, from its calls of ``torch.save``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

# A script may save small things beside its checkpoints: those within this share of the largest
# are taken to be checkpoints.
_ALIKE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints that were seen.

    Attributes
    ----------
    count : int
    seconds : float
        Median standstill of one. [s]
    size_bytes : int or None
        Of the largest; None where files could not be measured. [bytes]
    """

    count: int
    seconds: float
    size_bytes: int | None


def saves_of(facts: Sequence[Mapping[str, Any]]) -> Saves | None:
    """Return the checkpoints among the saves, None where nothing was saved."""
    if not facts:
        return None
    largest = max((one["bytes"] or 0) for one in facts)
    alike = [one for one in facts if (one["bytes"] or 0) >= _ALIKE * largest]
    return Saves(
        count=len(alike),
        seconds=median(float(one["seconds"]) for one in alike),
        size_bytes=int(largest) or None,
    )
