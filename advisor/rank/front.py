"""The front of time and cost, its rows that are worth a line, and the one to choose.

here         meaning, unit
t_i, c_i     predicted time [h] and cost [USD] of row i; the time counts from ten minutes before
             the start, in which somebody rents the machines and brings the script there
g            least gain that a row must have over another: a stated share, 10 % by default
s_ij         standard deviation of the error of ln(t_i / t_j): what both rows share cancels
e_ij         max(g, min(exp(s_ij) - 1, 1/4)): what two rows must differ by to be told apart; where
             nothing similar was measured the model can say little, but a quarter is worth a line

d_i          (1 + e_ii)^n, by which the best value judges c_i: n counts what its offer lacks (a
             price of a known day that its source lists; a launcher that rents it), and e_ii is
             e_ij of a row on other machines whose time errs as much. Of two rows that cannot be
             told apart the one that lacks less is so picked, and the order of all rows stays one
             order: a limit that the pick keeps does not change it

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
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Candidate, Estimate
from advisor.ask import Constraints
from advisor.learned import SHARED
from advisor.quantities import QUANTILES
from advisor.rank.renting import (
    DATED,
    DOUBTING,
    USUALLY,
    WEIGHTS,
    Booleans,
    Floats,
    Integers,
    Renting,
)

Pick = int | Literal["here"]

# A person has to rent machines, bring the script there and fetch the results: nobody who has done
# it takes less. [h]
TROUBLE_H: Final = 10 / 60
# Rows that are set against all others first, where there are many.
_SAMPLE: Final = 1000
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


def pareto_front(time: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Return the rows that no other row beats in both time and cost, fastest first.

    A row beats another if it is no worse in both and better in one; of equal rows the first
    stays. Rows with nan are never on the front.

    Returns
    -------
    integer array
        Rows by rising time, and so by falling cost.

    Examples
    --------
    >>> pareto_front([1.0, 2.0, 3.0, 3.0], [9.0, 5.0, 6.0, 4.0]).tolist()
    [0, 1, 3]
    """
    t, c = np.asarray(time, float), np.asarray(cost, float)
    rows = np.flatnonzero(np.isfinite(t) & np.isfinite(c))
    if rows.size > 4 * _SAMPLE:  # a few rows beat most of the others, and sorting is what costs
        few = rows[:: rows.size // _SAMPLE]
        few = few[pareto_front(t[few], c[few])]
        rows = rows[c[rows] <= bar_of(t[few], c[few], t[rows])]
    order = rows[np.lexsort((rows, c[rows], t[rows]))]
    if order.size == 0:
        return np.zeros(0, dtype=np.int64)
    cheapest_before = np.concatenate(([np.inf], np.minimum.accumulate(c[order])[:-1]))
    return np.asarray(order[c[order] < cheapest_before], dtype=np.int64)


def bar_of(
    front_time: NDArray[np.float64], front_cost: NDArray[np.float64], time: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cost that each time has to stay below: the least of a front that is no slower.

    ``front_time``, ``front_cost``: (k,); by rising time and falling cost.

    Returns
    -------
    float array of shape (n,)
        inf where the front has nothing as fast.
    """
    place = np.searchsorted(front_time, time, side="right")
    return np.concatenate([[np.inf], front_cost])[place]


class Front:
    """What is known to be possible: times and costs that others have to beat [h], [USD]."""

    def __init__(self, time_h: ArrayLike = (), cost_usd: ArrayLike = ()) -> None:
        self.time_h, self.cost_usd = np.zeros(0), np.zeros(0)
        self.add(time_h, cost_usd)

    def beats(self, time_h: Floats, cost_usd: Floats) -> Booleans:
        """Say which rows something known is as fast as and no dearer than, by their bounds."""
        return np.asarray(cost_usd >= bar_of(self.time_h, self.cost_usd, time_h))

    def add(self, time_h: ArrayLike, cost_usd: ArrayLike) -> None:
        """Raise the bar."""
        time_h = np.concatenate([self.time_h, np.asarray(time_h, float)])
        cost_usd = np.concatenate([self.cost_usd, np.asarray(cost_usd, float)])
        best = pareto_front(time_h, cost_usd)
        self.time_h, self.cost_usd = time_h[best], cost_usd[best]


class FrontByMachines:
    """What is known to be possible on no more machines: what only more beat may be less work."""

    def __init__(self, time_h: Floats, cost_usd: Floats, machines: Integers) -> None:
        self.fronts: dict[int, Front] = {}
        self.add(time_h, cost_usd, machines)

    def beats(self, time_h: Floats, cost_usd: Floats, machines: ArrayLike) -> Booleans:
        """Say which rows something known is as fast as and no dearer than, by their bounds."""
        is_beaten, count = np.zeros(time_h.shape, dtype=bool), np.asarray(machines)
        for least, front in self.fronts.items():
            is_beaten |= (count >= least) & front.beats(time_h, cost_usd)
        return is_beaten

    def add(self, time_h: Floats, cost_usd: Floats, machines: ArrayLike) -> None:
        """Raise the bars."""
        count = np.asarray(machines)
        for one in np.unique(count).tolist():
            same = count == one
            self.fronts.setdefault(one, Front()).add(time_h[same], cost_usd[same])


def spread_out(
    time: ArrayLike, cost: ArrayLike, size: int, *, first: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Choose ``size`` rows that cover a front evenly, both ends among them.

    The next row chosen is always the one farthest from all chosen so far, in logarithms, since a
    user weighs factors ("twice as fast"), not differences.

    ``time``, ``cost``: (n,); positive, in the order of the front; ``size``: at least 1; ``first``:
    rows to choose before both ends; no more than ``size``.

    Returns
    -------
    integer array
        Rising rows.
    """
    points = np.column_stack([np.log(np.asarray(time, float)), np.log(np.asarray(cost, float))])
    if len(points) <= size:
        return np.arange(len(points))
    chosen = list(dict.fromkeys((*first, 0, len(points) - 1)))[:size]
    distance = np.min([np.linalg.norm(points - points[i], axis=1) for i in chosen], axis=0)
    while len(chosen) < size:
        farthest = int(np.argmax(distance))
        chosen.append(farthest)
        distance = np.minimum(distance, np.linalg.norm(points - points[farthest], axis=1))
    return np.array(sorted(chosen))


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


def doubted(lacks: Integers, finish_h: Floats, gain: float, coverage: float) -> Floats:
    """Return d_i by which the best value judges costs: 1 of what lacks nothing.

    ``lacks``: (n,); of ``Offers.lacks``; ``finish_h``: (n, 3); the interval of the time and its
    middle, of this coverage. Where every gain counts (0), nothing is judged.

    >>> doubted(np.array([0, 1, 2]), np.array([[1.0, 2.0, 3.0]] * 3), 0.1, 0.9).round(3).tolist()
    [1.0, 1.25, 1.562]
    """
    if gain <= 0:
        return np.ones(lacks.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        sd = np.log(finish_h[:, 2] / finish_h[:, 1]) / QUANTILES[coverage]
    return np.asarray((1.0 + apart(sd, sd, False, gain)) ** lacks)


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


def near_any(
    time_h: Floats, cost_usd: Floats, rows: Integers, shown: Integers, gain: float
) -> Integers:
    """Return which of ``rows`` may stand in for one that is shown: all that ``apart`` admits."""
    most = 1.0 + (max(gain, _LARGEST_NOISE) if gain > 0 else 0.0)
    order = shown[np.argsort(time_h[shown], kind="stable")]
    # The dearest that takes at least so long, by place in the order; none behind the slowest.
    dearest = np.maximum.accumulate(cost_usd[order][::-1])[::-1]
    place = np.searchsorted(most * time_h[order], time_h[rows])
    bar = np.append(most * dearest, -np.inf)[place]
    return rows[cost_usd[rows] <= bar]


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
    by_rank: dict[Pick, Candidate] = {one.rank: one for one in front}
    rows = [one for one in able or front if _is_dated(one)]
    if rows and not _is_dated(by_rank[found["best_value"]]):
        found[DATED] = rows[_best(renting, DATED, rows)].rank
    for name in WEIGHTS if here is not None else ():
        place = found.get(name)
        rented = by_rank.get(place) if isinstance(place, int) else None
        is_late = bool(able) and not any(one is here for one in kept) and name == "best_value"
        if here is not None and not is_late and _is_enough(renting, name, here, rented):
            # What was best of all may be slower than this machine, and another beat both.
            rows = [one for one in able or front if _beats(renting, one, here)]
            is_beaten = bool(rows) and name == "best_value"
            found[name] = rows[_best(renting, name, rows)].rank if is_beaten else "here"
    if kept:
        cheapest = min(kept, key=lambda one: (one.cost_usd.value, one.training_time_h.value))
        found["within_deadline"] = "here" if cheapest is here else cheapest.rank
    return found


def _best(renting: Renting, name: str, rows: Sequence[Candidate]) -> int:
    """Return the place of the row that a pick names."""
    judged = [(*_judged(one), one.doubt if name in DOUBTING else 1.0) for one in rows]
    times, costs = zip(*((time, cost * doubt) for time, cost, doubt in judged), strict=True)
    machines = [sum(count for _, count in one.configuration.parts) for one in rows]
    asked_h = [0.0 if name == DATED else one.request_h for one in rows]
    return renting.best(name, times, costs, machines, asked_h)


def _is_dated(one: Candidate) -> bool:
    return all(offer.price_as_of for offer, _ in one.configuration.parts)


def _judged(one: Candidate) -> tuple[float, float]:
    """Return the time [h] and cost [USD] a row is picked by."""
    if one.is_extrapolating:
        return one.training_time_h.high, one.cost_usd.high
    return one.training_time_h.value, one.cost_usd.value


def _beats(renting: Renting, one: Candidate, here: Candidate) -> bool:
    """Whether a row is sooner and cheaper than this machine, the work of renting included."""
    time_h, cost = _judged(one)
    machines = sum(count for _, count in one.configuration.parts)
    waited_h = renting.judged_h("best_value", time_h, machines, one.request_h)
    judged_h = renting.judged_h("best_value", here.training_time_h.value, 0)
    return bool(cost * one.doubt < here.cost_usd.value and waited_h < judged_h)


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


def shared_reasons(front: tuple[Candidate, ...]) -> tuple[str, ...]:
    """Return what is said of every candidate, in the order of the first."""
    if len(front) < 2:
        return ()
    others = [set(one.reasons) for one in front[1:]]
    return tuple(said for said in front[0].reasons if all(said in one for one in others))


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
