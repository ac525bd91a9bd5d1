"""The layouts that the user leaves open, as the space that the layout search looks in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from advisor.planners.layouts.grid import SearchSpace
from advisor.question.records import LayoutRequest

# Names of a request that are those of the search space.
_SAME: Final = ("tp", "pp", "cp", "ep", "micro_batch")


def layout_space(request: LayoutRequest, default: SearchSpace | None = None) -> SearchSpace | None:
    """Return the layouts that a request leaves; None where it leaves all and none is the default.

    ``default``: where nothing is fixed.
    """
    fixed = request.fixed
    changes: dict[str, Any] = {name: fixed[name] for name in _SAME if name in fixed}
    if request.accumulate is not None:
        changes["accumulation_steps"] = request.accumulate
    if request.zero is not None:
        changes["zero_stages"] = (request.zero,)
    if request.recompute is not None:
        changes["recomputes"] = (request.recompute,)
    if request.offload is False:
        changes["offloads"] = ()
    if request.average_every is not None:
        changes["average_every"] = request.average_every
    # Whoever says how often swapping GPUs average asks for them, unless they are refused.
    if request.swap or (request.swap is None and request.average_every is not None):
        changes["swaps"] = True
    if not changes:
        return default
    return replace(default or SearchSpace(schedules=("1f1b", "interleaved")), **changes)
