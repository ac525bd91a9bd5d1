"""A job on spot nodes by a deadline that moves between spot, on demand and waiting as is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from advisor.planners.spot.availability import Column, Spells, SpotJob, SpotTrace
from advisor.planners.spot.controlled import replay_policy
from advisor.planners.spot.forecast import RECENT_DAYS
from advisor.planners.spot.policy import SpotPolicy
from advisor.planners.spot.rentals import scaled_records
from advisor.planners.spot.replay import SpotHistory
from advisor.planners.spot.spell_ages import SpellHazards
from advisor.simulation.spot_question import STARTS, SpotQuestion

PLANNED: Final = "spot, on demand or waiting"


def plan_on_trace(
    trace: SpotTrace, others: Sequence[SpotTrace], job: SpotJob, question: SpotQuestion,
    repeated: SpotTrace, start_s: Column,
) -> tuple[Column, Column]:  # fmt: skip
    """Replay the plan that a zone's last fortnight and other zones suggest.

    Parameters
    ----------
    trace : SpotTrace
        Of the zone.
    others : sequence of SpotTrace
    job, question
        With a deadline.
    repeated : SpotTrace
        The same record several times, for jobs that outlast it.
    start_s : ndarray of shape (n,)
        Submissions. [s]

    Returns
    -------
    finish_s, cost_usd : ndarray of shape (n,)
        From submission and of all nodes. [s], [USD]
    """
    past = trace.recent(RECENT_DAYS, question.nodes).spells(question.nodes)
    hazards = SpellHazards.of(past, [other.spells(question.nodes) for other in others])
    return _planned([repeated.spells(question.nodes)], [start_s], hazards, job, question)


def plan_anywhere(
    history: SpotHistory, job: SpotJob, question: SpotQuestion
) -> tuple[Column, Column]:
    """Replay one plan over the records of a history, for a zone without a record of its own.

    Returns
    -------
    finish_s, cost_usd : ndarray
        Of starts spread over all records. [s], [USD]
    """
    records = scaled_records(history, question.nodes, hazard=1.0)
    each = -(-STARTS // len(records))
    starts = [(np.arange(each) + 0.5) / each * record.end_s for record in records]
    deadline_s = question.deadline_s or 0.0
    lasting = [r.tiled(int(np.ceil(deadline_s / r.end_s)) + 1) for r in records]
    nothing = np.zeros(0)
    unknown = Spells(up_start_s=nothing, up_length_s=nothing, end_s=1.0)
    return _planned(lasting, starts, SpellHazards.of(unknown, records), job, question)


def _planned(
    records: Sequence[Spells], starts_s: Sequence[Column], hazards: SpellHazards, job: SpotJob,
    question: SpotQuestion,
) -> tuple[Column, Column]:  # fmt: skip
    """Return finish [s] and cost [USD] of every start in every record."""
    deadline_s = question.deadline_s or 0.0
    spot_usd = question.spot_price_usd_per_h * question.nodes
    usd = question.price_usd_per_h * question.nodes
    policy = SpotPolicy.of(
        hazards, job, deadline_s=deadline_s, spot_price_usd_per_h=spot_usd, price_usd_per_h=usd
    )
    finish, cost = [], []
    for spells, start in zip(records, starts_s, strict=True):
        run = replay_policy(spells, job, start, deadline_s=deadline_s, choose=policy.choose)
        finish.append(run.finish_s)
        cost.append(run.cost_usd(spot_usd, usd))
    return np.concatenate(finish), np.concatenate(cost)
