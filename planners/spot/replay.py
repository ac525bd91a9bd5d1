"""Spot instances in a ranking: time, bill and missed deadlines of thousands of candidates at once.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
history                    spells of several zones and instance types: what spot was like.
``work_s``          W      useful computing of a candidate. [s]
billed time                while the nodes are rented, lost work and restarts included. [s]
``gang_exponent``   gamma  up spells of n nodes shrink as (n / recorded nodes)^-gamma.
``hazard``          h      up spells are 1/h as long as in the history.
=========================  =====================================================================

Candidates that differ only in their work share one table: quantiles of finish and billed time on a
grid of works, replayed exactly over every history (``planners.spot.availability``), interpolated
in log(time / work) over log(work). A job's own forecast from one zone's record, state and age is
``planners.spot.forecast``; this is what can be said where only the kind of instance is known, so
its interval spans zones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.checks import check_not_negative, check_positive
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.units import HOUR_S
from advisor.planners.goodput.goodput import optimal_interval_s
from advisor.planners.spot.availability import Column
from advisor.planners.spot.table import (
    GANG_EXPONENT,
    NEVER_S,
    SHOWN,
    SpotHistory,
    Table,
    groups,
    rounded,
)

__all__ = [
    "SpotCompletion",
    "SpotHistory",
    "refuse_without_checkpoints",
    "spot_completion",
    "unsaved_billed_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCompletion:
    """Columns of what candidates take on spot instances, one row a candidate.

    Attributes
    ----------
    finish_s : ndarray of shape (n, 3)
        10th, 50th and 90th percentile of the time to the finish, waiting included. [s]
    billed_s : ndarray of shape (n, 3)
        The same of the time for which the nodes are paid. [s]
    billed_mean_s : ndarray of shape (n,)
        Expected paid time. [s]
    miss_probability : ndarray of shape (n,)
        That the deadline is missed; 0 where there is none.
    checkpoint_interval_s : ndarray of shape (n,)
        As given or chosen. [s]
    """

    finish_s: Column
    billed_s: Column
    billed_mean_s: Column
    miss_probability: Column
    checkpoint_interval_s: Column


def spot_completion(
    work_s: ArrayLike,
    *,
    history: SpotHistory,
    nodes: ArrayLike = 1.0,
    checkpoint_s: ArrayLike | None,
    restart_s: ArrayLike,
    checkpoint_interval_s: ArrayLike | None = None,
    warning_s: float | None = None,
    deadline_s: ArrayLike | None = None,
    hazard: ArrayLike = 1.0,
    spot_price_usd_per_h: ArrayLike = 0.0,
) -> SpotCompletion:
    """Return quantiles of finish and billed time for columns of candidates.

    Parameters
    ----------
    work_s : array-like of shape (n,)
        Useful computing. [s]
    nodes : array-like of shape (n,)
    checkpoint_s : array-like of shape (n,) or None
        Standstill of one save; None is refused with the expected bill. [s]
    restart_s : array-like of shape (n,)
        From the nodes being up to the first useful step. [s]
    checkpoint_interval_s : array-like of shape (n,), optional
        By default the optimum for exponential spells of the history's mean length. [s]
    warning_s : float, optional
        The provider's notice, where the job saves on notice. [s]
    deadline_s : array-like of shape (n,), optional
        Counted from submission. [s]
    hazard : array-like of shape (n,)
        Relative to the history; see ``spot.bands``.
    spot_price_usd_per_h : array-like of shape (n,)
        Of one node; only for the bill in a refusal. [USD/h]

    Raises
    ------
    PlanningError
        If the job saves no checkpoints, or a value makes no sense.
    """
    amounts = _amounts(work_s, nodes, restart_s, hazard)
    if checkpoint_s is None:
        first = [float(column.flat[0]) for column in amounts]
        refuse_without_checkpoints(
            history,
            work_s=first[0],
            nodes=first[1],
            restart_s=first[2],
            hazard=first[3],
            spot_price_usd_per_h=float(np.asarray(spot_price_usd_per_h).flat[0]),
        )
    save = np.asarray(checkpoint_s, float)
    interval = (
        best_interval_s(history, amounts[1], amounts[3], save)
        if checkpoint_interval_s is None
        else np.asarray(checkpoint_interval_s, float)
    )
    check_not_negative("spot job", checkpoint_s=save, warning_s=warning_s)
    check_positive("spot job", checkpoint_interval_s=interval)
    limit = np.asarray(np.inf if deadline_s is None else deadline_s, float)
    work, *keys, interval, limit = (
        np.atleast_1d(c) for c in np.broadcast_arrays(*amounts, save, interval, limit)
    )
    keys = [keys[0], rounded(keys[1]), keys[2], rounded(keys[3]), rounded(interval)]
    answer = SpotCompletion(
        finish_s=np.empty((work.size, len(SHOWN))),
        billed_s=np.empty((work.size, len(SHOWN))),
        billed_mean_s=np.empty(work.size),
        miss_probability=np.empty(work.size),
        checkpoint_interval_s=interval,
    )
    for rows, values in groups(np.stack(keys, axis=1)):
        table = Table.of(history, work[rows], values, warning_s)
        answer.finish_s[rows] = table.quantiles_s(table.finish, work[rows])
        answer.billed_s[rows] = table.quantiles_s(table.billed, work[rows])
        answer.billed_mean_s[rows] = table.interpolated_s(table.billed_mean, work[rows])
        answer.miss_probability[rows] = table.late(work[rows], limit[rows])
    return answer


def _amounts(*values: ArrayLike) -> list[Column]:
    """Return work, nodes, restart time and hazard as columns, refused where they make no sense."""
    columns = [np.asarray(value, float) for value in values]
    for name, column in zip(("work_s", "nodes", "restart_s", "hazard"), columns, strict=True):
        is_good = column >= 0 if name == "restart_s" else column > 0
        is_good &= np.isfinite(column)
        if not np.all(is_good):
            raise PlanningError(
                f"{name} of {column[~is_good].flat[0]:g} is out of range",
                hint="work, nodes and hazard are positive, times are seconds",
                exit_code=2,
            )
    return columns


def unsaved_billed_s(history: SpotHistory, wall_s: float, up_scale: float = 1.0) -> float:
    """Return the expected paid time of a job that starts over at every removal [s].

    With spells drawn independently, ``E[min(u, T)] / P(u >= T)``, T restart and work. Where no
    recorded spell is long enough, the tail beyond the longest is taken as exponential with the
    spells' mean, the memoryless ``M (e^(T/M) - 1)``.
    """
    up = np.concatenate([s.up_length_s for s in history.spells]) * up_scale
    chance = float(np.mean(up >= wall_s))
    if chance > 0:
        return float(np.mean(np.minimum(up, wall_s)) / chance)
    with np.errstate(over="ignore"):
        return float(up.mean() * np.expm1(wall_s / up.mean()))


def refuse_without_checkpoints(
    history: SpotHistory,
    *,
    work_s: float,
    restart_s: float,
    nodes: float = 1.0,
    hazard: float = 1.0,
    spot_price_usd_per_h: float = 0.0,
) -> NoReturn:
    """Refuse spot for a job without checkpoints, with the bill it would run up.

    Raises
    ------
    PlanningError
        Always; its exit code is 3.
    """
    scale = (nodes / history.nodes[0]) ** -GANG_EXPONENT / hazard
    hours = unsaved_billed_s(history, work_s + restart_s, scale) / HOUR_S
    billed = "for ever" if hours > NEVER_S / HOUR_S else f"{hours:,.1f} h"
    paid = spot_price_usd_per_h * nodes * hours
    cost = f" ({paid:,.2f} USD)" if 0 < paid < np.inf else ""
    raise PlanningError(
        f"spot without checkpoints: {work_s / HOUR_S:.1f} h of work would be expected to be "
        f"billed {billed}{cost}, since every removal starts it over",
        hint="save checkpoints (every half an hour keeps most of the work), or rent on demand",
        exit_code=3,
    )


def best_interval_s(history: SpotHistory, nodes: Column, hazard: Column, save: Column) -> Column:
    """Return the best interval for memoryless spells of the mean length, at least a minute."""
    mean = float(np.mean(np.concatenate([s.up_length_s for s in history.spells])))
    rate = hazard * nodes**GANG_EXPONENT / mean
    return np.maximum(optimal_interval_s(save, rate), 60.0)
