"""A job by a deadline, as its plan moves it over many records of what spot was like.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
plan                       ``planners.spot.policy``: spot, on demand or waiting, by least bill.
replay                     ``planners.spot.policy_replay``: the plan looked up at short intervals.
``deadline_s``      D      from submission. [s]
``whole_s``                work and its saves at intervals. [s]
``log_sd``          s      standard deviation of the error of ln(work).
=========================  =====================================================================

The plan meets every deadline that on-demand machines alone could meet. So a job whose work is
known up to a log-normal error is late with the probability that ``restart + whole > D``:

    P(late) = 1 - Phi(ln((D - restart) / whole) / s)

What the work is shows within its first minutes, long before the plan has to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.spot.availability import Column, Spells, SpotJob, joined
from advisor.planners.spot.last_safe_moment import FallbackRun
from advisor.planners.spot.policy import SpellHazards, SpotPolicy
from advisor.planners.spot.policy_replay import replay_policy


def replay_plan(
    records: Sequence[Spells], job: SpotJob, *, starts: int, deadline_s: float,
    spot_price_usd_per_h: float, price_usd_per_h: float,
) -> FallbackRun:  # fmt: skip
    """Run a job by one plan over every record, from starts spread over each.

    The plan knows how long nodes stay and stay away in these records, and nothing of the future.

    ``records``: of all nodes that the job needs; ``spot_price_usd_per_h``, ``price_usd_per_h``: of
    all nodes together [USD/h].

    Raises PlanningError if not even a job that goes on demand at once meets the deadline.

    Returns
    -------
    FallbackRun
        One row a start, record by record.
    """
    nothing = np.zeros(0)
    unknown = Spells(up_start_s=nothing, up_length_s=nothing, end_s=1.0)
    policy = SpotPolicy.of(
        SpellHazards.of(unknown, records), job, deadline_s=deadline_s,
        spot_price_usd_per_h=spot_price_usd_per_h, price_usd_per_h=price_usd_per_h,
    )  # fmt: skip
    lasting = [one.tiled(int(np.ceil(deadline_s / one.end_s)) + 1) for one in records]
    spells, begin_s = joined(lasting, gap_s=deadline_s)
    share = (np.arange(starts) + 0.5) / starts
    length_s = np.array([record.end_s for record in records])
    start_s = (begin_s[:-1, None] + share * length_s[:, None]).ravel()
    return replay_policy(spells, job, start_s, deadline_s=deadline_s, choose=policy.choose)


def late_probability(
    whole_s: ArrayLike, restart_s: ArrayLike, deadline_s: float, log_sd: ArrayLike
) -> Column:
    """Return the probability that jobs miss a deadline that on-demand machines are bought for.

    ``whole_s``, ``restart_s``: expected work with its saves; from having nodes to the first useful
    step [s].

    Examples
    --------
    >>> late_probability(3600.0, 0.0, 3600.0, 0.2).item(), late_probability(3600, 60, 30, 0).item()
    (0.5, 1.0)
    """
    room = np.maximum(deadline_s - np.asarray(restart_s, float), 0.0) / np.asarray(whole_s, float)
    sd = np.asarray(log_sd, float)
    with np.errstate(all="ignore"):
        reach = np.log(room) / sd
    # Without an error the work either fits or does not.
    sure = np.where(room >= 1.0, np.inf, -np.inf)
    reach = np.where((sd > 0) & ~np.isnan(reach), reach, sure)
    tail = NormalDist()
    return np.asarray(np.vectorize(lambda z: 1.0 - tail.cdf(z), otypes=[float])(reach))
