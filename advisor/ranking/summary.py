"""Whether a job keeps its deadline and its budget."""

from __future__ import annotations

from typing import Literal

from advisor.domain import Candidate, Estimate
from advisor.ranking.request import Request


def keeps(one: Candidate, request: Request) -> bool:
    """Whether a candidate keeps deadline and budget, with the confidence that was asked for."""
    return not broken(request, one.training_time_h, one.cost_usd)


def broken(
    request: Request, time_h: Estimate, cost_usd: Estimate | None
) -> tuple[Literal["deadline", "budget"], ...]:
    """Return which of deadline and budget a job breaks, with the confidence that was asked for.

    ``time_h`` and ``cost_usd`` are of the whole job; what has no price breaks no budget.
    """
    confidence = request.confidence
    found: list[Literal["deadline", "budget"]] = []
    limits: tuple[tuple[Literal["deadline", "budget"], float | None, Estimate | None], ...] = (
        ("deadline", request.deadline_h, time_h), ("budget", request.budget_usd, cost_usd),
    )  # fmt: skip
    for name, limit, one in limits:
        if limit is None or one is None:
            continue
        if one.value > limit if confidence is None else one.above(limit) > 1 - confidence:
            found.append(name)
    return tuple(found)
