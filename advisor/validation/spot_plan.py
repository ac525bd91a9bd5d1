"""Protocol ``spot-plan``: what a job on spot machines pays by a deadline, over the least possible.

The job of protocol ``spot``, submitted at times spread over the second half of each trace, with
deadlines of 12 to 30 h and a spot price of 0.3 of the on-demand price. The plan of ``simulate
spot`` knows what it would there: the zone's last fortnight up to the submission (looked up again
every third day) and the other traces' first halves. Beside it stands the least bill of somebody
who knows the trace (``planners.spot.clairvoyant``), by a plan that can be carried out. MAPE is
bill over least bill, less 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, SpotJob
from advisor.planners.spot.clairvoyant import clairvoyant_usd
from advisor.planners.spot.controlled import Choose, replay_policy
from advisor.planners.spot.fallback import FallbackRun, replay_with_fallback
from advisor.planners.spot.forecast import RECENT_DAYS
from advisor.planners.spot.policy import IDLE, ON_DEMAND, ON_SPOT, SpotPolicy
from advisor.planners.spot.spell_ages import SpellHazards
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score
from advisor.validation.spot import DEADLINES_H, JOB, SPOT_PRICE, Half, halves_of

STARTS: Final = 16  # of each trace and deadline: 1,024 replays of 16 traces
NOTICE_S: Final = 120.0  # what AWS gives before it takes a spot machine away
_DAYS: Final = 3.0  # after which the plan is made again
PRICES: Final[Mapping[str, Any]] = {"spot_price_usd_per_h": SPOT_PRICE, "price_usd_per_h": 1.0}
FALLBACK: Final = "spot until the last safe moment"
UNIFORM: Final = "uniform progress"
DEMAND: Final = "always on demand"
SEEN: Final = (
    "the form of the plan, bins of age and weight of other zones: not tuned, but written with "
    "these traces in sight",
)
Modes = NDArray[np.intp]
Flags = NDArray[np.bool_]
Rule = Callable[[int, Half, Column, SpotJob, float], FallbackRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bills:
    """Bills of every replay, trace by trace and deadline by deadline [USD]."""

    least: Mapping[tuple[str, float], Column]
    paid: Mapping[tuple[str, float], Column]
    late: int

    def joined(self, trace: str | None = None) -> Scores:
        """Score the bills of one trace, or of all."""
        keys = [key for key in self.least if trace in (None, key[0])]
        return score(
            np.concatenate([self.paid[key] for key in keys]),
            np.concatenate([self.least[key] for key in keys]),
        )

    def ratio(self, deadline_h: float) -> float:
        """Return the mean bill over the mean least bill, traces weighing alike."""
        keys = [key for key in self.least if key[1] == deadline_h]
        means = [np.mean([side[key].mean() for key in keys]) for side in (self.paid, self.least)]
        return float(means[0] / means[1])


def run(data: Path) -> Validation:
    """Replay the plan and simpler rules.

    Raises
    ------
    UsageError
        If the table holds no trace of four days with nodes in both halves.
    """
    halves = halves_of(data)
    ours = _bills(halves, JOB, _plans(halves, JOB))
    noticed = replace(JOB, warning_s=NOTICE_S)
    on_notice = _bills(halves, noticed, _plans(halves, noticed))
    rules = {FALLBACK: _fallback, UNIFORM: _uniform, DEMAND: _on_demand}
    simple = {name: _bills(halves, JOB, rule) for name, rule in rules.items()}
    return Validation(
        protocol="spot-plan",
        description="Bill of a 10 h job by a deadline over the least possible one.",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=ours.joined(),
        groups=[
            Group(
                group=half.trace.name,
                scores=ours.joined(half.trace.name),
                baselines={rule: bills.joined(half.trace.name) for rule, bills in simple.items()},
            )
            for half in halves
            if (half.trace.name, DEADLINES_H[0]) in ours.least
        ],
        baselines={name: bills.joined() for name, bills in simple.items()},
        figures={
            "replays": float(ours.joined().rows),
            "deadlines missed": float(ours.late),
            "deadlines missed, saved on notice": float(on_notice.late),
            "saved on notice: bill over least, mean": 1.0 + on_notice.joined().mape_fraction,
            **dict(_by_deadline({"ours": ours, "ours, saved on notice": on_notice, **simple})),
        },
        notes=[
            f"saved on notice: the job saves within the {NOTICE_S:g} s that AWS gives",
            "most of what is lost without notice is work since the last save, which who knows the "
            "trace never loses",
            "no interval: a bill has none here",
        ],
    )


def _by_deadline(bills: Mapping[str, _Bills]) -> Iterator[tuple[str, float]]:
    for deadline_h in DEADLINES_H:
        for name, found in bills.items():
            label = f"{name}: mean bill over mean least bill, deadline {deadline_h:g} h"
            yield label, found.ratio(deadline_h)


def _bills(halves: Sequence[Half], job: SpotJob, rule: Rule) -> _Bills:
    """Replay a rule from the same starts as everybody."""
    least, paid, late = {}, {}, 0
    for number, half in enumerate(halves):
        starts = _starts_s(half)
        for deadline_h in DEADLINES_H if starts.size else ():
            deadline_s = deadline_h * HOUR_S
            key = half.trace.name, deadline_h
            least[key] = clairvoyant_usd(half.future, JOB, starts, deadline_s=deadline_s, **PRICES)
            found = rule(number, half, starts, job, deadline_s)
            paid[key] = found.cost_usd(SPOT_PRICE, 1.0)
            late += int(np.sum(~(found.finish_s <= deadline_s + 1e-3)))
    return _Bills(least=least, paid=paid, late=late)


def _starts_s(half: Half) -> Column:
    """Return submissions spread over the second half, early enough for every deadline [s]."""
    able = half.start_s[half.start_s + max(DEADLINES_H) * HOUR_S <= half.trace.end_s]
    starts: Column = able[np.unique(np.linspace(0, able.size - 1, STARTS).astype(int))]
    return starts


def _plans(halves: Sequence[Half], job: SpotJob) -> Rule:
    """Return the product's plan, made again every third day from what is known then."""
    made: dict[tuple[int, int], SpotPolicy] = {}

    def plan(number: int, half: Half, begin_s: float, day: int) -> SpotPolicy:
        if (number, day) not in made:
            nodes = half.trace.nodes
            past = half.trace.between(0.0, begin_s).recent(RECENT_DAYS, nodes).spells(nodes)
            others = [other.known for k, other in enumerate(halves) if k != number]
            hazards = SpellHazards.of(past, others)
            longest_s = max(DEADLINES_H) * HOUR_S
            made[number, day] = SpotPolicy.of(hazards, job, deadline_s=longest_s, **PRICES)
        return made[number, day]

    def replayed(
        number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
    ) -> FallbackRun:
        days = ((starts - starts[0]) // (_DAYS * 24 * HOUR_S)).astype(int)
        parts = [
            _replayed(half, starts[days == day], job, deadline_s,
                      plan(number, half, float(starts[days == day][0]), int(day)).choose)
            for day in np.unique(days)
        ]  # fmt: skip
        return FallbackRun(
            **{name: np.concatenate([getattr(p, name) for p in parts])
               for name in FallbackRun.__slots__}
        )  # fmt: skip

    return replayed


def _replayed(
    half: Half, starts: Column, job: SpotJob, deadline_s: float, choose: Choose
) -> FallbackRun:
    return replay_policy(half.future, job, starts, deadline_s=deadline_s, choose=choose)


def _fallback(
    number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
) -> FallbackRun:
    return replay_with_fallback(half.future, job, starts, deadline_s=deadline_s)


def _uniform(
    number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
) -> FallbackRun:
    """Keep up with work in proportion to time: on demand when behind it, or little ahead."""

    def choose(to_go_s: float, rest_s: Column, mode: Modes, is_up: Flags, age_s: Column) -> Modes:
        ahead_s = job.attempt_s * to_go_s / deadline_s - rest_s
        stays = (mode == ON_DEMAND) & (ahead_s < 2.0 * job.restart_s)
        wanted = np.where((ahead_s < 0.0) | stays, ON_DEMAND, IDLE)
        return np.where(is_up, ON_SPOT, wanted)

    return _replayed(half, starts, job, deadline_s, choose)


def _on_demand(
    number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
) -> FallbackRun:
    wall = np.full(starts.shape, job.wall_s)
    return FallbackRun(finish_s=wall, spot_s=np.zeros(starts.shape), on_demand_s=wall)
