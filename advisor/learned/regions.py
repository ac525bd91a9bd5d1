"""Where what was learned from own runs is heard: contests with the answers, region by region.

Two questions are put to own runs, each judged by leaving out what it does not know: a job that
has none (whole jobs are left out), and a job that has some (of jobs with several runs, one is left
out with its repeats).
Within a pool (``Places.pool``) the candidate is heard that errs least; the candidate that judges
a group was chosen on the others.

A region (machine, kind and size of job) is won where it errs less than the answers beyond one
standard error over groups; or, with too few groups to tell, where its whole pool is won and it
is not itself lost by more than a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from advisor.learned.pooled import (
    CandidateName,
    Flags,
    Floats,
    Places,
    Residuals,
    Strings,
    alike,
    candidates,
)
from advisor.learned.quick import Trees
from advisor.quantities import REACH_90

Standing = Literal["jobs without a run", "jobs with runs"]
NEW: Final[Standing] = "jobs without a run"
KNOWN: Final[Standing] = "jobs with runs"
LEAST_GAIN: Final = 0.001  # of an error; errors are shown in tenths of a per cent
# Runs that say as much of the width of intervals as the answers' own intervals do.
_PRIOR_RUNS: Final = 5.0
_LEAST_SPREAD: Final = 0.5  # where no contest said how far such answers are off
_VERY_ALIKE: Final = 0.8  # a run of the same job on the same machine, at about the same size


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionContest:
    """Errors of the answers and of what was learned in one region, on groups left out."""

    region: str
    runs: int
    jobs: int
    # before, after: mean abs(ln(predicted / measured)) over groups, each counting the same
    before: float
    after: float
    gain_error: float  # standard error of their difference; inf where there is one group
    standing: Standing = NEW
    candidate: CandidateName = "pooled"  # which errs least
    is_pool_won: bool = False  # whether the pool of the region is
    spread: float = 1.0  # by which intervals are multiplied, so that nine in ten hold

    @property
    def is_won(self) -> bool:
        """Whether what was learned errs less beyond chance: by more than one standard error."""
        gain = self.before - self.after
        is_beyond = gain >= LEAST_GAIN and gain > self.gain_error
        return is_beyond or (self.is_pool_won and gain > -min(self.gain_error, self.before))


def contests(
    region: Strings, group: Strings, before: Floats, after: Floats
) -> tuple[RegionContest, ...]:
    """Return the contest of every region, from the absolute errors of runs, each left out."""
    found = []
    for name in sorted(set(region.tolist())):
        here = region == name
        groups = sorted(set(group[here].tolist()))
        means = np.array([
            [errors[here & (group == one)].mean() for one in groups] for errors in (before, after)
        ])  # fmt: skip
        gains = means[0] - means[1]
        spread = float(gains.std(ddof=1) / math.sqrt(len(groups))) if len(groups) > 1 else math.inf
        found.append(
            RegionContest(
                region=name,
                runs=int(here.sum()),
                jobs=len(groups),
                before=float(means[0].mean()),
                after=float(means[1].mean()),
                gain_error=spread,
            )
        )
    return tuple(found)


def judged(runs: Residuals) -> tuple[RegionContest, ...]:
    """Return how what own runs say does, region by region, of jobs without a run and with some."""
    found: list[RegionContest] = []
    pools = runs.places.pool
    for standing in (NEW, KNOWN):
        for pool in np.unique(pools):
            found += _of_pool(runs.take(pools == pool), standing)
    return tuple(sorted(found, key=lambda one: (one.region, one.standing)))


def _of_pool(runs: Residuals, standing: Standing) -> list[RegionContest]:
    """Return the contests of the regions of one pool; none where nothing can be left out."""
    group, is_judged = runs.places.job, np.ones(len(runs.residual), bool)
    if standing == KNOWN:
        group = runs.places.cell
        cells = {job: len(set(group[runs.places.job == job])) for job in set(runs.places.job)}
        is_judged = np.array([cells[job] > 1 for job in runs.places.job])
    if not is_judged.any():
        return []
    names = candidates(runs)
    found = np.array([runs.left_out(group, name) for name in names])[:, is_judged]
    runs, group = runs.take(is_judged), group[is_judged]
    errors = np.abs(runs.residual - found)
    one_each = np.array([errors[:, group == one].mean(axis=1) for one in np.unique(group)])
    # of every group, the best of the others
    best = np.argmin(one_each.sum(axis=0) - one_each, axis=1)
    of_run = best[np.searchsorted(np.unique(group), group)]
    nested = errors[of_run, np.arange(len(of_run))]
    before, chosen = np.abs(runs.residual), int(np.argmin(one_each.sum(axis=0)))
    (whole,) = contests(runs.places.pool, group, before, nested)
    told = {
        "standing": standing, "candidate": names[chosen], "is_pool_won": whole.is_won,
        "spread": _spread(nested / runs.log_sd),
    }  # fmt: skip
    regions = runs.places.region
    return [
        replace(one, jobs=len(set(runs.places.job[regions == one.region])), **told)  # type: ignore[arg-type]
        for one in contests(regions, group, before, nested)
    ]


def _spread(z: Floats) -> float:
    """Return by what intervals are multiplied so that nine in ten of such errors lie inside."""
    rank = min(math.ceil(0.9 * (len(z) + 1)), len(z)) - 1
    reached = float(np.sort(z)[rank]) / REACH_90
    return math.sqrt((_PRIOR_RUNS + len(z) * reached**2) / (_PRIOR_RUNS + len(z)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Own runs, and where they are heard."""

    kept: tuple[RegionContest, ...]  # that are won
    lost: tuple[str, ...]  # regions in which jobs' own runs say less than the answers
    residuals: Residuals
    trees: Trees | None = None  # where boosting is heard

    @classmethod
    def of(cls, runs: Residuals, found: Sequence[RegionContest]) -> Lessons:
        """Return what won contests say."""
        kept = tuple(one for one in found if one.is_won)
        is_boosted = any(one.candidate == "boosting" for one in kept)
        lost = [one.region for one in found if one.standing == KNOWN and not one.is_won]
        trees = runs.boosted() if is_boosted else None
        return cls(kept=kept, lost=tuple(lost), residuals=runs, trees=trees)

    @property
    def is_any(self) -> bool:
        """Whether anything is said that was not answered before."""
        return bool(self.kept) or bool((np.abs(self.residuals.residual) >= LEAST_GAIN).any())

    def expected(self, at: Places) -> tuple[Floats, Floats, Flags]:
        """Return expected errors, what their deviation is multiplied by, and where any is known.

        Where nothing is known of regions, a job is answered by its own runs on the same machine.
        """
        known = self.residuals.places
        error, spread = np.zeros(len(at.flop)), np.ones(len(at.flop))
        heard, is_own = np.zeros(len(at.flop), bool), np.isin(_own_key(at), _own_key(known))
        for one in self.kept:
            here = (at.region == one.region) & (is_own == (one.standing == KNOWN))
            if here.any():
                error[here], _ = self.residuals.expected(at.take(here), one.candidate, self.trees)
                spread[here] = one.spread
                heard |= here
        rest = np.flatnonzero(is_own & ~heard & ~np.isin(at.region, self.lost))
        if rest.size:
            runs = self.residuals.take(np.isin(known.job, at.job[rest]))
            rest = rest[alike(at.take(rest), runs.places).max(axis=1) >= _VERY_ALIKE]
            error[rest], left = runs.expected(at.take(rest))
            spread[rest], heard[rest] = np.maximum(np.sqrt(left), _LEAST_SPREAD), True
        return error, spread, heard


def _own_key(places: Places) -> Strings:
    return np.char.add(np.char.add(places.job, " "), places.pool)


def contest_table(found: Sequence[RegionContest]) -> list[str]:
    """Return the lines of a table of contests, by what was left out."""
    if not found:
        return []
    lines = [f"{'own runs, each left out':42}{'runs':>6}{'before %':>10}{'after %':>9}"]
    for place, one in enumerate(found):
        if not place or found[place - 1].region != one.region:
            lines.append(one.region)
        lines.append(
            f"  {one.standing:40}{one.runs:6}{100 * math.expm1(one.before):10.1f}"
            f"{100 * math.expm1(one.after):9.1f}  {_verdict(one)}"
        )
    return lines


def _verdict(one: RegionContest) -> str:
    if one.is_won:
        return "learned"
    return "too few to tell" if math.isinf(one.gain_error) else "as before"
