"""Free shares of nodes: forecasts and possible futures from recorded shares.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``shares``     A    free share of each node over time. [fraction]
``usual``      m    mean share of a node at that time of the day. [fraction]
``persistence`` p   of a node's departure from it, from one slot to the next. [fraction]
==================  ============================================================================

    forecast  F_i(t + h) = m_i(t + h) + p_i^h (A_i(t) - m_i(t))

A future is the forecast plus what a past stretch of the record departed from its own forecast,
of all nodes at once, cut to [0, 1]: nodes that filled together then fill together in it, and
errors that last do last. Nothing is drawn from a curve. Source: SAS (Tairin and Shen, ICPP'23)
forecasts amounts with their probabilities per node and slot; how was not published, so this is
our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import refused

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """Recorded shares and what was learnt from them."""

    shares: Shares  # (slots, nodes); [fraction]
    day_slots: int  # slots of a day; the first one of the record is the first of a day
    usual: Shares  # (day_slots, nodes); [fraction]
    persistence: Shares  # (nodes,)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return int(self.shares.shape[1])

    def forecast(self, now: ArrayLike, slot: int, horizon: int) -> Shares:
        """Return the expected shares of the next slots.

        ``now``: (nodes,); shares in this slot [fraction]; ``slot``: number of this slot since the
        beginning of some day.

        Returns
        -------
        ndarray of shape (horizon, nodes)
        """
        ahead = np.arange(1, horizon + 1)
        at = self.usual[slot % self.day_slots]
        faded = self.persistence ** ahead[:, None] * (np.asarray(now, float) - at)
        return np.asarray(np.clip(self.usual[(slot + ahead) % self.day_slots] + faded, 0.0, 1.0))


def learn(shares: ArrayLike, *, day_slots: int) -> NodeHistory:
    """Return a record with what it tells of each node.

    ``shares``: (slots, nodes); free share of each node, one row a slot, from the beginning of a
    day on [fraction].

    Raises PlanningError if it is shorter than two days, or a share is not between 0 and 1.
    """
    seen = np.asarray(shares, float)
    if seen.ndim != 2 or not np.all((seen >= 0.0) & (seen <= 1.0)):
        raise refused(
            "shares of nodes must be between 0 and 1, one row a slot",
            "divide what is free by what there is",
        )
    if day_slots < 1 or len(seen) < 2 * day_slots:
        raise refused(
            f"{len(seen)} slots are less than two days of {day_slots}",
            "record the nodes for longer",
        )
    of_day = np.arange(len(seen)) % day_slots
    usual = np.stack([seen[of_day == k].mean(axis=0) for k in range(day_slots)])
    apart = seen - usual[of_day]
    power = (apart[:-1] ** 2).sum(axis=0)
    along = (apart[:-1] * apart[1:]).sum(axis=0)
    persistence = np.divide(along, power, out=np.zeros_like(along), where=power > 0)
    return NodeHistory(
        shares=seen, day_slots=day_slots, usual=usual, persistence=np.clip(persistence, 0.0, 0.999)
    )


def futures(
    history: NodeHistory, now: ArrayLike, *, slot: int, horizon: int, draws: int, seed: int
) -> Shares:
    """Return possible shares of the next slots, equally likely.

    ``now``: (nodes,); shares in this slot [fraction]; ``slot``: number of this slot since the
    beginning of some day; ``seed``: of the choice of past stretches.

    Raises PlanningError if the record is shorter than the horizon.

    Returns
    -------
    ndarray of shape (draws, horizon, nodes)
    """
    starts = len(history.shares) - horizon
    if horizon < 1 or starts < 1:
        raise refused(
            f"a forecast of {horizon} slots from a record of {len(history.shares)}",
            "look less far ahead",
        )
    expected = history.forecast(now, slot, horizon)
    chosen = np.random.default_rng(seed).integers(0, starts, draws)
    found = np.empty((draws, horizon, history.nodes))
    for k, start in enumerate(chosen):
        was = history.forecast(history.shares[start], int(start), horizon)
        found[k] = expected + history.shares[start + 1 : start + 1 + horizon] - was
    return np.clip(found, 0.0, 1.0)
