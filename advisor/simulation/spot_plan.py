"""A job on spot nodes by a deadline that moves between spot, on demand and waiting as is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from advisor.planners.spot.availability import Column, SpotJob, SpotTrace
from advisor.planners.spot.controlled import replay_policy
from advisor.planners.spot.forecast import RECENT_DAYS
from advisor.planners.spot.planned import replay_plan
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
    deadline_s = question.deadline_s or 0.0
    spot_usd, usd = _usd_per_h(question)
    policy = SpotPolicy.of(
        hazards, job, deadline_s=deadline_s, spot_price_usd_per_h=spot_usd, price_usd_per_h=usd
    )
    spells = repeated.spells(question.nodes)
    run = replay_policy(spells, job, start_s, deadline_s=deadline_s, choose=policy.choose)
    return run.finish_s, run.cost_usd(spot_usd, usd)


def plan_anywhere(
    history: SpotHistory, job: SpotJob, question: SpotQuestion
) -> tuple[Column, Column]:
    """Replay one plan over the records of a history, for a zone without a record of its own.

    Returns
    -------
    finish_s, cost_usd : ndarray
        Of starts spread over all records. [s], [USD]
    """
    records = scaled_records(history, question.nodes, question.hazard)
    spot_usd, usd = _usd_per_h(question)
    run = replay_plan(
        records, job, starts=-(-STARTS // len(records)), deadline_s=question.deadline_s or 0.0,
        spot_price_usd_per_h=spot_usd, price_usd_per_h=usd,
    )  # fmt: skip
    return run.finish_s, run.cost_usd(spot_usd, usd)


def _usd_per_h(question: SpotQuestion) -> tuple[float, float]:
    """Return the spot and the on-demand price of all nodes [USD/h]."""
    spot_usd = question.spot_price_usd_per_h * question.nodes
    return spot_usd, question.price_usd_per_h * question.nodes
