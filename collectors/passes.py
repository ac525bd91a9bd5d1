"""Passes over the training loader: batches in a step, steps in a pass."""

from __future__ import annotations

import math
from typing import Final

from advisor.collectors.events import Events
from advisor.collectors.rounds import has_rounds

# A loader may run ahead of the steps by a few batches, and an epoch may end in a shorter step:
# a ratio this near to an integer is that integer.
_RUNS_AHEAD: Final = 0.15


def _observed(events: Events) -> float:
    """Return the training loader's batches over the steps that followed them; 1 unknown."""
    number = events.training_loader()
    counts = None if number is None else events.loaders.get(number)
    if counts is None or not counts.steps or not counts.batches:
        return 1.0
    return counts.batches / counts.steps


def batches_per_step(events: Events) -> float:
    """Return the training loader's batches in a whole step; 1 where no loader was seen."""
    ratio = _observed(events)
    nearest = max(1, round(ratio))
    return nearest if abs(ratio - nearest) < _RUNS_AHEAD * nearest else ratio


def steps_in(batches: int, events: Events) -> float:
    """Return the steps in a pass of so many batches.

    Batches left over at the end make a step of their own, or none, or a part of the next pass's
    first: whichever is nearest to what was seen.
    """
    whole = batches / batches_per_step(events)
    seen = batches / _observed(events)
    return min(math.floor(whole), whole, math.ceil(whole), key=lambda steps: abs(steps - seen))


def steps_per_epoch(events: Events) -> float | None:
    """Return the steps in a pass over the training data, where its length is known."""
    if has_rounds(events) and (per_epoch := events.fact("fit").get("per_epoch")):
        return float(per_epoch)
    batches = events.loader_fact().get("batches_per_epoch")
    return None if not batches else steps_in(batches, events)
