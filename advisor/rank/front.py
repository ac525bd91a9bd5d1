"""Rows of a front that are worth a line, and the one to choose.

here         meaning, unit
t_i, c_i     predicted time [h] and cost [USD] of row i; the time counts from ten minutes before
             the start, in which somebody rents the machines and brings the script there
g            least gain that a row must have over another: a stated share, 10 % by default
s_ij         standard deviation of the error of ln(t_i / t_j): what both rows share cancels
e_ij         max(g, min(exp(s_ij) - 1, 1/4)): what two rows must differ by to be told apart; where
             nothing similar was measured the model can say little, but a quarter is worth a line

Row j stands for row i where t_j <= (1 + e_ij) t_i and c_j <= (1 + e_ij) c_i: nobody would rent i
beside j. The rows are gone through by rising t c, so that of two rows the one with the better
product stays (epsilon-dominance: Laumanns, Thiele, Deb and Zitzler 2002, section 3). Of any two
rows that are kept, one is faster and the other cheaper, each by more than e_ij.

What is picked of the rows is ``renting``'s. A row outside what the models were fitted on is judged
by the upper bounds of its intervals, where products are compared: it is picked where it would be
even then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Alternative, Candidate, Configuration, Estimate
from advisor.ask import Constraints
from advisor.catalogue import OfferColumns
from advisor.estimate import Predictor, TimeColumns, offer_of
from advisor.learned import SHARED
from advisor.quantities import REACH_90
from advisor.rank.prune import MixedRows
from advisor.rank.ranking_rows import TROUBLE_H, Rows, spread_out
from advisor.rank.renting import USUALLY, WEIGHTS, Renting

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Pick = int | Literal["here"]

_LARGEST_NOISE: Final = 0.25
# With which probability the pick of a deadline keeps it, where nobody says.
CONFIDENCE: Final = 0.9
# A machine that is at hand is left only for one that takes half its time, that trouble included.
LEAST_SPEED_UP: Final = 2.0
# Nobody waits this many times as long to save the rent.
_MOST_PATIENCE: Final = 100.0
# Nobody starts a job here that takes longer than a month where anything else can be had, nor is
# told that it is good value: a machine could be ordered and delivered meanwhile. [h]
LONGEST_STAY_H: Final = 30 * 24.0


def apart(first_sd: ArrayLike, second_sd: ArrayLike, is_same: ArrayLike, gain: float) -> Floats:
    """Return e_ij: by what share rows must differ to be told apart. Arguments are broadcast.

    Errors are those of ``learned.probing``: rows of one job share half of their variance, rows of
    one instance type all of it.

    ``first_sd``, ``second_sd``: standard deviations of the errors of ln(time); ``is_same``:
    whether both run on machines of one type; ``gain``: least gain, as a share.

    Examples
    --------
    >>> apart(0.2, 0.2, [True, False], 0.1).round(3).tolist()
    [0.1, 0.221]
    """
    one, other = np.nan_to_num(np.asarray(first_sd)), np.nan_to_num(np.asarray(second_sd))
    covariance = np.where(is_same, 1.0, SHARED) * one * other
    variance = np.maximum(one**2 + other**2 - 2.0 * covariance, 0.0)
    noise = np.minimum(np.expm1(np.sqrt(variance)), _LARGEST_NOISE)
    return np.asarray(np.maximum(gain, noise))


def distinct(
    time_h: ArrayLike, cost_usd: ArrayLike, least: Floats, worst: ArrayLike = 1.0
) -> Integers:
    """Return the rows of a front that are worth a line, in their order.

    ``least``: (n, n); e_ij of ``apart``; ``worst``: by which time and cost of each row are
    multiplied where products are compared.

    Examples
    --------
    Eight, four and one machine for a job that starting them takes most of:

    >>> distinct([25.5, 25.7, 25.9], [8.0, 4.0, 1.0], np.full((3, 3), 0.1)).tolist()
    [2]
    """
    t, c = np.asarray(time_h, float) + TROUBLE_H, np.asarray(cost_usd, float)
    judged = (np.asarray(time_h, float) * worst + TROUBLE_H) * (c * worst)
    kept: list[int] = []
    for row in np.argsort(judged, kind="stable").tolist():
        at = np.array(kept, dtype=np.int64)
        most = 1.0 + least[row, at]
        if not ((t[at] <= most * t[row]) & (c[at] <= most * c[row])).any():
            kept.append(row)
    return np.array(sorted(kept), dtype=np.int64)


def picks(
    front: Sequence[Candidate], here: Candidate | None, *,
    renting: Renting = USUALLY, deadline_h: float | None = None, confidence: float | None = None,
) -> dict[str, Pick]:  # fmt: skip
    """Return what to choose, by the name of what is wanted: a rank of ``front``, or ``"here"``.

    ``here``: this machine, where it keeps the constraints; ``renting``: that of a question
    without ``--effort`` by default.
    """
    found: dict[str, Pick] = {}
    kept = [] if deadline_h is None else _keeping(front, here, deadline_h, confidence)
    able = [one for one in kept if one is not here]
    for name in WEIGHTS if front else ():
        rows = able if able and name == "best_value" else front
        found[name] = rows[_best(renting, name, rows)].rank
    by_rank = {one.rank: one for one in front}
    for name in WEIGHTS if here is not None else ():
        place = found.get(name)
        rented = by_rank.get(place) if isinstance(place, int) else None
        is_late = bool(able) and not any(one is here for one in kept) and name == "best_value"
        if here is not None and not is_late and _is_enough(renting, name, here, rented):
            found[name] = "here"
    if kept:
        cheapest = min(kept, key=lambda one: (one.cost_usd.value, one.training_time_h.value))
        found["within_deadline"] = "here" if cheapest is here else cheapest.rank
    return found


def _best(renting: Renting, name: str, rows: Sequence[Candidate]) -> int:
    """Return the place of the row that a pick names."""
    times, costs = zip(*(_judged(one) for one in rows), strict=True)
    machines = [sum(count for _, count in one.configuration.parts) for one in rows]
    return renting.best(name, times, costs, machines, [one.request_h for one in rows])


def _judged(one: Candidate) -> tuple[float, float]:
    """Return the time [h] and cost [USD] a row is picked by."""
    if one.is_extrapolating:
        return one.training_time_h.high, one.cost_usd.high
    return one.training_time_h.value, one.cost_usd.value


def _is_enough(renting: Renting, name: str, here: Candidate, rented: Candidate | None) -> bool:
    """Whether this machine takes the place of a rented one."""
    time_h, cost = here.training_time_h.value, here.cost_usd.value
    if rented is None:
        return time_h <= LONGEST_STAY_H
    machines = sum(count for _, count in rented.configuration.parts)
    there_h, price = rented.training_time_h.value, rented.cost_usd.value
    hurried_h = float(renting.judged_h("fastest", there_h, machines, rented.request_h))
    if name == "cheapest":
        return cost <= price and time_h <= _MOST_PATIENCE * hurried_h
    if name == "fastest":
        return time_h <= hurried_h
    if time_h > LONGEST_STAY_H and there_h < time_h:
        return False
    waited_h = float(renting.judged_h(name, there_h, machines, rented.request_h))
    judged_h = float(renting.judged_h(name, time_h, 0))
    if price < cost and waited_h < judged_h:
        return False  # sooner and cheaper, the work of renting included
    saves = judged_h >= LEAST_SPEED_UP * waited_h
    return not saves or (cost > 0 and judged_h * cost <= waited_h * price)


def _keeping(
    front: Iterable[Candidate], here: Candidate | None, deadline_h: float,
    confidence: float | None,
) -> list[Candidate]:  # fmt: skip
    """Return what keeps the deadline with the confidence that was asked for."""
    late = 1.0 - (CONFIDENCE if confidence is None else confidence)
    every = [*front, *([] if here is None else [here])]
    return [one for one in every if _late(one, deadline_h) <= late]


def _late(one: Candidate, deadline_h: float) -> float:
    planned = one.late_probability
    return one.training_time_h.above(deadline_h) if planned is None else planned


# The rows of a front that are shown, and what could be rented in the place of each.


_REGIONS: Final = 3
_MACHINES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """What is believed of rows, those of mixed clusters behind those of equal machines."""

    # time_h, cost_usd, log_sd: (n,); of the whole job; standard deviation of the error of
    # ln(time). [h], [USD]
    time_h: Floats
    cost_usd: Floats
    log_sd: Floats
    kind: Integers  # (n,); the instance type; negative, and each its own, for mixed clusters
    is_extrapolating: NDArray[np.bool_]  # (n,); outside what the models were fitted on
    # machines, request_h: (n,); how many, and the wait for what a new account has to ask for [h]
    machines: Integers
    request_h: Floats

    @cached_property
    def worst(self) -> Floats:
        """Factor by which rows are judged worse than expected, as ``picks`` judges them."""
        factor = np.ones(self.log_sd.shape)
        far = np.flatnonzero(self.is_extrapolating)
        factor[far] = np.exp(REACH_90 * self.log_sd[far])
        return factor

    @classmethod
    def of(
        cls, rows: Rows, columns: TimeColumns, mixed: MixedRows | None, request_h: Floats
    ) -> Beliefs:
        """Return what is believed of the rows that were priced.

        ``request_h``: (n,); of the rows of equal machines. Mixed ones are asked for: 0.
        """
        found = cls(
            time_h=rows.time_h,
            cost_usd=rows.cost_usd,
            log_sd=columns.log_sd[rows.column],
            kind=columns.type_index[rows.column],
            is_extrapolating=columns.is_extrapolating[rows.column],
            machines=columns.count[rows.column],
            request_h=request_h,
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
            machines=np.concatenate([found.machines, [one.machines for one in mixed.rows]]),
            request_h=np.concatenate([found.request_h, np.zeros(len(mixed.rows))]),
        )

    def best(self, names: Iterable[str], rows: Integers, renting: Renting) -> dict[str, int]:
        """Return the row that each pick names among ``rows``, of which there is at least one."""
        worst = self.worst[rows]
        time_h, cost_usd = self.time_h[rows] * worst, self.cost_usd[rows] * worst
        others = self.machines[rows], self.request_h[rows]
        return {one: int(rows[renting.best(one, time_h, cost_usd, *others)]) for one in names}


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


def shown_of(beliefs: Beliefs, rows: Integers, size: int, *, first: Integers) -> Integers:
    """Return at most ``size`` rows of a list: those that picks name, then the others.

    ``first``: what picks name among ``rows``, the most important first.
    """
    if rows.size == 0:
        return rows
    places = np.array([int(np.flatnonzero(rows == one)[0]) for one in first[:size]], np.int64)
    time_h, cost = beliefs.time_h[rows], beliefs.cost_usd[rows]
    return rows[spread_out(time_h, cost, size, first=places.tolist())]


def near_any(beliefs: Beliefs, feasible: Integers, shown: Integers, gain: float) -> Integers:
    """Return the rows that may be an alternative to one that is shown: all that ``apart`` admits.

    ``gain``: as of ``alternatives``.
    """
    most = 1.0 + (max(gain, _LARGEST_NOISE) if gain > 0 else 0.0)
    order = shown[np.argsort(beliefs.time_h[shown], kind="stable")]
    # The dearest that takes at least so long, by place in the order; none behind the slowest.
    dearest = np.maximum.accumulate(beliefs.cost_usd[order][::-1])[::-1]
    place = np.searchsorted(most * beliefs.time_h[order], beliefs.time_h[feasible])
    bar = np.append(most * dearest, -np.inf)[place]
    return feasible[beliefs.cost_usd[feasible] <= bar]


def alternatives(
    beliefs: Beliefs, rows: Rows, columns: TimeColumns, feasible: Integers, row: int, gain: float,
    predictor: Predictor, offers: OfferColumns,
) -> tuple[Alternative, ...]:  # fmt: skip
    """Return what could be rented in place of ``row``, the best product of time and cost first.

    ``feasible``: rows that keep the constraints, those that are not ``near_any`` left out if one
    likes; those of mixed clusters are passed over;
    ``gain``: as of ``apart``; 0 admits only what is as good.
    """
    near = feasible[feasible < len(rows.offer)]
    near = near[(near != row) & (rows.is_spot[near] == rows.is_spot[row])]
    # More machines are more work, and what has to be asked for is not there.
    near = near[beliefs.machines[near] <= beliefs.machines[row]]
    near = near[beliefs.request_h[near] <= beliefs.request_h[row]]
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


# Whether a job keeps its deadline and its budget.


def keeps(one: Candidate, request: Constraints) -> bool:
    """Whether a candidate keeps deadline and budget, with the confidence that was asked for."""
    return not broken(request, one.training_time_h, one.cost_usd)


def broken(
    request: Constraints, time_h: Estimate, cost_usd: Estimate | None
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
