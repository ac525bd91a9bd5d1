"""What renting costs a person, and the formula by which picks weigh the rows.

here         meaning, unit
t, c         predicted time [h] and cost [USD] of a row, boot, image and downloads included
m            machines of the row
e            a person's work to rent one machine and set it up: ``--effort``, 30 minutes [h]
E            work for m machines: e (1 + 6 (m - 1)) [h]
q            wait until a new account is granted what it has to ask for; 0 within its limits [h]
u            hours of the calendar for an hour of work: 168 in a week over 40 of work
s            what an hour of that work costs [USD/h]
P            patience: the wait below which nobody minds more or less, deadline or not: what a
             pick keeps anyway must not change it [h]
T            the wait that is judged: max(P, t + u E + q); of somebody in a hurry t + E + q
w            how many times the cost one pays for half the wait, as a power of two

A pick is the row with the least T^w (c + s E), the energy-delay products of circuit design
(Gonzalez and Horowitz 1996) with money in place of energy; "cheapest" is of the bill c alone. The
best value judges c by what an offer lacks (``front.doubted``): a price of a known day that its
source lists, and a launcher that rents it:

================  =====  =========================================================================
pick              w      half the wait is worth
================  =====  =========================================================================
cheapest          0      nothing more
best_value        1      up to twice the cost, and nothing below P; with a deadline, among the
                         rows that keep it with the confidence
fastest           2      up to four times the cost, to somebody in a hurry (no P, and u is 1)
within_deadline   0      nothing more, among the rows that keep the deadline with the confidence
================  =====  =========================================================================

Of a job that scales well c is the same on any m, t is W / m, and T is least at m = sqrt(W / (6 u
e)): another machine is rented where it ends the job sooner by the half day (12.6 hours) that its
setting up is worth (a little less often, for what its work costs). ``docs/answer.md`` tells where
6 and P come from, and what they were tried on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Recorded
from advisor.ask import Constraints
from advisor.catalogue import REQUEST_H

# Columns of the ranking.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

WEIGHTS: Final = {"best_value": 1.0, "cheapest": 0.0, "fastest": 2.0}
# The best value of the prices that have a day is named where that of all has none.
DATED: Final = "dated"
# A further machine takes a network, a launcher and shared data: as many times the work of one.
# Chosen on twenty published recipes (docs/accuracy.md): three hours beside half an hour.
FURTHER: Final = 6.0
# Picks that set what an offer lacks against its cost: "cheapest" is the cheapest.
DOUBTING: Final = frozenset({"best_value", DATED})
# Rows that are set against all others first, where there are many, and where in them: spread out,
# in step with nothing that they are sorted by.
_SAMPLE: Final = 1000
_GOLDEN: Final = 0.618034
# Hours of the calendar for an hour of work: a week has 168, 40 of them of work.
CALENDAR: Final = 168 / 40
# A mean year of a software developer over its working hours (US Bureau of Labor Statistics, 2024:
# 144,570 USD, as shown by ler.me/occupations/software-developers on 2026-11-26). [USD/h]
WAGE_USD_PER_H: Final = 144_570 / 2_080
# Half a working day: started before the break, done after it. Chosen on the same recipes. [h]
PATIENCE_H: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting(Recorded):
    """What somebody's time is worth beside money."""

    calendar_per_work_h: ClassVar[float] = CALENDAR
    work_usd_per_h: ClassVar[float] = WAGE_USD_PER_H
    said: ClassVar[Sequence[str]] = (
        "effort_h", "further_machine_h", "calendar_per_work_h", "patience_h", "work_usd_per_h",
    )  # fmt: skip

    effort_h: float = Constraints().effort_h  # work to rent one machine and set it up [h]
    patience_h: float = PATIENCE_H  # the wait below which nobody minds more or less [h]

    @classmethod
    def of(cls, request: Constraints) -> Self:
        """Return it as a question says."""
        return cls(effort_h=request.effort_h)

    @property
    def further_machine_h(self) -> float:
        """Work to set up each machine after the first."""
        return self.effort_h * FURTHER

    def work_h(self, machines: ArrayLike) -> Floats:
        """Return a person's work to rent machines and set them up [h]; 0 for none, at hand.

        >>> Renting(effort_h=0.5).work_h([0, 1, 2, 3]).tolist()
        [0.0, 0.5, 3.5, 6.5]
        """
        count = np.asarray(machines, float)
        further = np.maximum(count - 1.0, 0.0)
        return np.asarray(self.effort_h * (np.minimum(count, 1.0) + FURTHER * further))

    def judged_h(
        self, pick: str, time_h: ArrayLike, machines: ArrayLike, request_h: ArrayLike = 0.0
    ) -> Floats:
        """Return the wait T by which a pick judges rows [h].

        ``pick``: a name in ``WEIGHTS``; ``machines``: 0 for a machine at hand, which takes no
        work.
        """
        work = self.work_h(machines)
        waited = np.asarray(time_h, float) + np.asarray(request_h, float)
        if pick == "fastest":
            return np.asarray(waited + work)
        return np.asarray(np.maximum(self.patience_h, waited + CALENDAR * work))

    def worth(
        self, pick: str, time_h: ArrayLike, cost_usd: ArrayLike, machines: ArrayLike,
        request_h: ArrayLike = 0.0,
    ) -> Floats:  # fmt: skip
        """Return T^w (c + s E) of rows, or c: the least is picked."""
        bill = np.asarray(cost_usd, float)
        weight = _weight(pick)
        if weight == 0:
            return bill
        judged = self.judged_h(pick, time_h, machines, request_h)
        paid = bill + WAGE_USD_PER_H * self.work_h(machines)
        return np.asarray(np.power(judged, weight) * paid)

    def latest_h(self, pick: str, worth: float, price_usd_per_h: ArrayLike) -> Floats:
        """Return a bound on the time of a row that is worth no more than ``worth`` [h].

        T is at least t and the bill at least price t: t^(w + 1) price is at most the worth. Where
        no worth is known yet (inf), any time will do.
        """
        if np.isinf(worth):
            return np.full(np.shape(price_usd_per_h), np.inf)
        price = np.maximum(np.asarray(price_usd_per_h, float), 1e-12)
        return np.asarray(np.power(worth / price, 1.0 / (_weight(pick) + 1.0)))

    def best(
        self, pick: str, time_h: ArrayLike, cost_usd: ArrayLike, machines: ArrayLike,
        request_h: ArrayLike = 0.0,
    ) -> int:  # fmt: skip
        """Return the row with the least T^w (c + s E); of equal ones the cheapest.

        >>> Renting(effort_h=0.5).best("best_value", [0.15, 0.4, 3.0], [9.0, 7.5, 6.9], [4, 1, 1])
        1
        """
        given = np.broadcast_arrays(time_h, cost_usd, machines, request_h)
        able = self._able(pick, *given)
        value = self.worth(pick, *(column[able] for column in given))
        # Of a million rows a few are equal: only these are sorted.
        least = np.flatnonzero(value == np.fmin.reduce(value, initial=np.inf))
        ties = able[least if least.size else np.arange(value.size)]
        time, cost = np.asarray(time_h, float)[ties], np.asarray(cost_usd, float)[ties]
        return int(ties[np.lexsort((time, cost))[0]])

    def _able(self, pick: str, *given: NDArray[Any]) -> Integers:
        """Return the rows that may be worth the least: all, or what a sample does not beat.

        T is at least t and what is paid at least c.
        """
        time_h, cost_usd, *_ = given
        n = time_h.size
        if n <= 4 * _SAMPLE:
            return np.arange(n)
        some = np.unique((np.arange(_SAMPLE) * (_GOLDEN * n) % n).astype(np.int64))
        bar = np.fmin.reduce(self.worth(pick, *(column[some] for column in given)), initial=np.inf)
        bound = np.power(time_h, _weight(pick)) * cost_usd
        able = np.flatnonzero(bound <= bar * (1.0 + 1e-9))
        return able if able.size else np.arange(n)


def _weight(pick: str) -> float:
    return WEIGHTS["best_value" if pick == DATED else pick]


# Somebody who says nothing of it.
USUALLY: Final = Renting.of(Constraints())


def asking_h(request: Constraints, at_once: Floats, count: Integers) -> Floats:
    """Return the wait for what a new account has to ask for [h].

    ``at_once``: machines of each row's offer that such an account can rent (``rented_at_once``).
    Somebody who names the providers has accounts there, and nothing is waited for.
    """
    if request.providers or request.effort_h == 0:
        return np.zeros(count.shape)
    return np.where(count > at_once, REQUEST_H, 0.0)
