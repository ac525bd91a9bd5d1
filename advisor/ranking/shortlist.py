"""The rows of a front that are shown, and what could be rented in the place of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns
from advisor.domain import REACH_90, Alternative, Candidate, Configuration
from advisor.predict import Predictor, TimeColumns
from advisor.predict.candidates import offer_of
from advisor.ranking.front import spread_out
from advisor.ranking.mixed import MixedRows
from advisor.ranking.picks import apart, best_rows, distinct
from advisor.ranking.rows import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_REGIONS: Final = 3
_MACHINES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What is believed of rows, those of mixed clusters behind those of equal machines.

    Attributes
    ----------
    time_h, cost_usd, log_sd : float arrays of shape (n,)
        Of the whole job; standard deviation of the error of ln(time). [h], [USD]
    kind : integer array of shape (n,)
        The instance type; negative, and each its own, for mixed clusters.
    is_extrapolating : boolean array of shape (n,)
        Outside what the models were fitted on.
    """

    time_h: Floats
    cost_usd: Floats
    log_sd: Floats
    kind: Integers
    is_extrapolating: NDArray[np.bool_]

    @property
    def worst(self) -> Floats:
        """Factor by which rows are judged worse than expected, as ``picks.picks`` judges them."""
        return np.where(self.is_extrapolating, np.exp(REACH_90 * self.log_sd), 1.0)

    @classmethod
    def of(cls, rows: Rows, columns: TimeColumns, mixed: MixedRows | None) -> Beliefs:
        """Return what is believed of the rows that were priced."""
        found = cls(
            time_h=rows.time_h,
            cost_usd=rows.cost_usd,
            log_sd=columns.log_sd[rows.column],
            kind=columns.type_index[rows.column],
            is_extrapolating=columns.is_extrapolating[rows.column],
        )
        if mixed is None:
            return found
        own_kinds = -1 - np.arange(len(mixed.rows))
        return cls(
            time_h=np.concatenate([found.time_h, mixed.time_h]),
            cost_usd=np.concatenate([found.cost_usd, mixed.cost_usd]),
            log_sd=np.concatenate([found.log_sd, *(one.columns.log_sd for one in mixed.rows)]),
            kind=np.concatenate([found.kind, own_kinds]),
            is_extrapolating=np.concatenate(
                [found.is_extrapolating, *(one.columns.is_extrapolating for one in mixed.rows)]
            ),
        )


def worth_a_line(beliefs: Beliefs, front: Integers, gain: float) -> Integers:
    """Return the rows of a front that differ by more than the model can be wrong about.

    A gain of 0 keeps them all.
    """
    if gain <= 0 or front.size == 0:
        return front
    sd, kind = beliefs.log_sd[front], beliefs.kind[front]
    least = apart(sd[:, None], sd[None, :], kind[:, None] == kind[None, :], gain)
    time_h, cost = beliefs.time_h[front], beliefs.cost_usd[front]
    return front[distinct(time_h, cost, least, beliefs.worst[front])]


def shown_of(beliefs: Beliefs, rows: Integers, size: int, *, also: Integers) -> Integers:
    """Return at most ``size`` rows of a front: those that picks may name, then the others.

    ``also`` are rows among them that a pick names for another reason than time and cost.
    """
    if rows.size == 0:
        return rows
    time_h, cost = beliefs.time_h[rows], beliefs.cost_usd[rows]
    worst = beliefs.worst[rows]
    named = best_rows(time_h * worst, cost * worst)
    named = (*named, *np.flatnonzero(np.isin(rows, also)).tolist())[:size]
    return rows[spread_out(time_h, cost, size, first=named)]


def alternatives(
    beliefs: Beliefs, rows: Rows, columns: TimeColumns, feasible: Integers, row: int, gain: float,
    predictor: Predictor, offers: OfferColumns,
) -> tuple[Alternative, ...]:  # fmt: skip
    """Return what could be rented in place of ``row``, the best product of time and cost first.

    Parameters
    ----------
    feasible : integer array
        Rows that keep the constraints; those of mixed clusters are passed over.
    gain : float
        As of ``picks.apart``; 0 admits only what is as good.
    """
    near = feasible[feasible < len(rows.offer)]
    near = near[(near != row) & (rows.is_spot[near] == rows.is_spot[row])]
    most = np.ones(near.size)
    if gain > 0:
        is_same = beliefs.kind[near] == beliefs.kind[row]
        most += apart(beliefs.log_sd[row], beliefs.log_sd[near], is_same, gain)
    near = near[
        (beliefs.time_h[near] <= most * beliefs.time_h[row])
        & (beliefs.cost_usd[near] <= most * beliefs.cost_usd[row])
    ]
    near = near[np.argsort(beliefs.time_h[near] * beliefs.cost_usd[near], kind="stable")]
    same = columns.type_index[rows.column[near]] == columns.type_index[rows.column[row]]
    elsewhere = near[same & (rows.column[near] == rows.column[row])][:_REGIONS]
    others = near[~same]
    _, first = np.unique(columns.type_index[rows.column[others]], return_index=True)
    others = others[np.sort(first)][:_MACHINES]
    chosen = np.concatenate([elsewhere, others])
    return tuple(_alternative(rows, columns, at, row, predictor, offers) for at in chosen.tolist())


def _alternative(
    rows: Rows, columns: TimeColumns, at: int, row: int, predictor: Predictor,
    offers: OfferColumns,
) -> Alternative:  # fmt: skip
    offer = offer_of(predictor.catalogue, offers, int(rows.offer[at]))
    own = offer_of(predictor.catalogue, offers, int(rows.offer[row]))
    count, own_count = (int(columns.count[rows.column[i]]) for i in (at, row))
    devices = offer.accelerator, offer.accelerators * count
    is_same_device = offer.accelerator and devices == (
        own.accelerator, own.accelerators * own_count,
    )  # fmt: skip
    kind: Literal["region", "provider", "machine"] = "machine"
    if (offer.provider, offer.instance_type) == (own.provider, own.instance_type):
        kind = "region"
    elif is_same_device and offer.provider != own.provider:
        kind = "provider"
    return Alternative(
        configuration=Configuration(parts=((offer, count),)),
        kind=kind,
        training_time_h=float(rows.time_h[at]),
        cost_usd=float(rows.cost_usd[at]),
    )


def shared_reasons(front: tuple[Candidate, ...]) -> tuple[str, ...]:
    """Return what is said of every candidate, in the order of the first."""
    if len(front) < 2:
        return ()
    others = [set(one.reasons) for one in front[1:]]
    return tuple(said for said in front[0].reasons if all(said in one for one in others))
