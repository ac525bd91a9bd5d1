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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S, check_not_negative, check_positive, impossible
from advisor.planners.goodput import optimal_interval_s
from advisor.planners.spot.availability import (
    Column,
    Rental,
    Spells,
    SpotJob,
    Timeline,
    joined,
    replay_timeline,
)

# The SkyPilot trace of four requested nodes gives 0.16 (a zone runs dry as a whole), Bamboo's p3
# pool of 2020 gives 0.88 up to eight nodes (removals nearly one by one): the middle of the two.
GANG_EXPONENT: Final = 0.5
STARTS: Final = 120  # replays per record: 16 records make 2,000 samples, 2 % of a quantile
WORKS: Final = 9  # grid points over the works of a large group
EXACT_WORKS: Final = 256  # groups of so many works are replayed one by one, and need no grid
LEVELS: Final = np.linspace(0.0, 1.0, 41)  # of the tabulated quantiles
SHOWN: Final = (0.1, 0.5, 0.9)
NEVER_S: Final = 1e15  # stands for inf inside logarithms
MAXIMUM_TILES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotHistory:
    """Records of availability that stand for what a job will meet, equally likely."""

    spells: tuple[Spells, ...]
    nodes: tuple[int, ...]  # nodes that were up together in each record
    source: str

    def __post_init__(self) -> None:
        if not self.spells or len(self.spells) != len(self.nodes):
            raise ValueError(f"{len(self.spells)} records for {len(self.nodes)} node counts")


def groups(keys: Column) -> Iterator[tuple[NDArray[np.intp], Column]]:
    """Yield the rows that share each distinct combination of parameters, and the combination."""
    values, member = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    edges = np.cumsum(np.bincount(member.reshape(-1)))[:-1]
    yield from zip(np.split(order, edges), values, strict=True)


def rounded(time_s: Column) -> Column:
    """Round positive times to steps of 10 %, so that near-equal candidates share a table."""
    step = np.log(1.1)
    positive = np.maximum(time_s, 1e-3)
    return np.where(time_s > 0, np.exp(np.round(np.log(positive) / step) * step), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Quantiles of ``log(time / work)`` on a grid of works; rows works, columns ``LEVELS``.

    =========================  ====================================================================
    here                       meaning, unit
    =========================  ====================================================================
    history                    records that stand for what a job will meet, equally likely.
    ``gang_exponent``   gamma  up spells of n nodes shrink as (n / recorded nodes)^-gamma.
    table                      quantiles of log(time / work) on a grid of works.
    =========================  ====================================================================

    Works are replayed exactly over every record of a history, from starts spread over it. Of more
    than ``EXACT_WORKS`` only a grid is, and what lies between two is interpolated in log(time /
    work) over log(work): then the numbers of a candidate depend a little on those beside it.
    """

    log_work: Column
    finish: Column
    billed: Column
    billed_mean: Column

    @classmethod
    def of(
        cls, history: SpotHistory, work_s: Column, values: Column, warning_s: float | None
    ) -> Table:
        """Replay the works, or a grid of them, over every record, from starts spread over it."""
        nodes, restart_s, hazard, save_s, interval_s = (float(v) for v in values)
        grid = np.unique(work_s)
        if grid.size > EXACT_WORKS:
            grid = np.unique(np.geomspace(grid[0], grid[-1], WORKS))
        job = SpotJob(
            work_s=float(grid[-1]),
            restart_s=restart_s,
            checkpoint_interval_s=interval_s,
            checkpoint_s=save_s,
            warning_s=warning_s,
        )
        runs = []
        for spells, recorded in zip(history.spells, history.nodes, strict=True):
            scaled = spells.scaled(up=(nodes / recorded) ** -GANG_EXPONENT / hazard)
            runs.append(_replayed(scaled, job, grid))
        finish = np.concatenate([r[0] for r in runs], axis=1)
        billed = np.concatenate([r[1] for r in runs], axis=1)
        return cls(
            log_work=np.log(grid),
            finish=np.log(_levels(finish) / grid[:, None]),
            billed=np.log(_levels(billed) / grid[:, None]),
            billed_mean=np.log(billed.mean(axis=1, keepdims=True) / grid[:, None]),
        )

    def quantiles_s(self, table: Column, work_s: Column) -> Column:
        """Return the shown quantiles of each work [s], shape (n, 3)."""
        at = np.searchsorted(LEVELS, np.asarray(SHOWN) - 1e-9)
        return np.stack([self.interpolated_s(table[:, [k]], work_s) for k in at], axis=1)

    def interpolated_s(self, column: Column, work_s: Column) -> Column:
        """Return one column of a table at each work [s]; inf where the job never ends."""
        time = work_s * np.exp(np.interp(np.log(work_s), self.log_work, column[:, 0]))
        return np.where(time < np.sqrt(NEVER_S), time, np.inf)

    def late(self, work_s: Column, deadline_s: Column) -> Column:
        """Return the probability that each work ends after its deadline."""
        chance = np.zeros(work_s.size)
        rows = np.flatnonzero(np.isfinite(deadline_s))
        log_ratio = np.log(np.maximum(deadline_s[rows], 1e-9) / work_s[rows])
        curve = np.stack(
            [np.interp(np.log(work_s[rows]), self.log_work, c) for c in self.finish.T], axis=1
        )
        after = np.sum(curve <= log_ratio[:, None] + 1e-12, axis=1)
        inner = np.clip(after, 1, LEVELS.size - 1)
        low = np.take_along_axis(curve, inner[:, None] - 1, axis=1)[:, 0]
        high = np.take_along_axis(curve, inner[:, None], axis=1)[:, 0]
        share = np.clip((log_ratio - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        reached = LEVELS[inner - 1] + share * (LEVELS[inner] - LEVELS[inner - 1])
        chance[rows] = 1.0 - np.where(after == 0, 0.0, np.where(after == LEVELS.size, 1, reached))
        return chance


def _replayed(spells: Spells, job: SpotJob, grid: Column) -> tuple[Column, Column]:
    """Return finish and billed time, shape (works, STARTS), of jobs over a repeated record [s]."""
    attempts = job.attempts_s(grid)
    progress = float(job.kept_s(spells.up_length_s).sum())
    tiles = (
        MAXIMUM_TILES if progress <= 0 else int(min(attempts[-1] / progress, MAXIMUM_TILES)) + 2
    )
    start = (np.arange(STARTS) + 0.5) / STARTS * spells.end_s
    shape = (grid.size, STARTS)
    run = replay_timeline(
        Timeline.of_spells(spells.tiled(tiles)),
        job,
        np.broadcast_to(start, shape).ravel(),
        np.broadcast_to(attempts[:, None], shape).ravel(),
    )
    finish, billed = (np.nan_to_num(c, nan=NEVER_S) for c in (run.finish_s, run.rented_s))
    return finish.reshape(shape), billed.reshape(shape)


def _levels(samples: Column) -> Column:
    """Return the quantiles at ``LEVELS`` of each row, each an actual sample."""
    at = np.minimum(np.round(LEVELS * (samples.shape[1] - 1)).astype(int), samples.shape[1] - 1)
    return np.sort(samples, axis=1)[:, at]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCompletion:
    """Columns of what candidates take on spot instances, one row a candidate."""

    # (n, 3); 10th, 50th and 90th percentile of the time to the finish, waiting included [s]
    finish_s: Column
    billed_s: Column  # (n, 3); the same of the time for which the nodes are paid [s]
    billed_mean_s: Column  # (n,); expected paid time [s]
    miss_probability: Column  # (n,); that the deadline is missed; 0 where there is none
    checkpoint_interval_s: Column  # (n,); as given or chosen [s]


def spot_completion(
    work_s: ArrayLike, *, history: SpotHistory, nodes: ArrayLike = 1.0,
    checkpoint_s: ArrayLike | None, restart_s: ArrayLike,
    checkpoint_interval_s: ArrayLike | None = None, warning_s: float | None = None,
    deadline_s: ArrayLike | None = None, hazard: ArrayLike = 1.0,
    spot_price_usd_per_h: ArrayLike = 0.0,
) -> SpotCompletion:  # fmt: skip
    """Return quantiles of finish and billed time for columns of candidates.

    Raises PlanningError if the job saves no checkpoints, or a value makes no sense.

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
        Relative to the history; see ``planners.spot.availability``.
    spot_price_usd_per_h : array-like of shape (n,)
        Of one node; only for the bill in a refusal. [USD/h]
    """
    amounts = [np.asarray(value, float) for value in (work_s, nodes, restart_s, hazard)]
    told = dict(zip(("work_s", "nodes", "restart_s", "hazard"), amounts, strict=True))
    check_not_negative("spot job", **told)
    check_positive("spot job", **told | {"restart_s": None})
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
    history: SpotHistory, *, work_s: float, restart_s: float, nodes: float = 1.0,
    hazard: float = 1.0, spot_price_usd_per_h: float = 0.0,
) -> NoReturn:  # fmt: skip
    """Refuse spot for a job without checkpoints, with the bill it would run up.

    Raises PlanningError: always; its exit code is 3.
    """
    scale = (nodes / history.nodes[0]) ** -GANG_EXPONENT / hazard
    hours = unsaved_billed_s(history, work_s + restart_s, scale) / HOUR_S
    billed = "for ever" if hours > NEVER_S / HOUR_S else f"{hours:,.1f} h"
    paid = spot_price_usd_per_h * nodes * hours
    cost = f" ({paid:,.2f} USD)" if 0 < paid < np.inf else ""
    raise impossible(
        f"spot without checkpoints: {work_s / HOUR_S:.1f} h of work would be expected to be "
        f"billed {billed}{cost}, since every removal starts it over",
        "save checkpoints (every half an hour keeps most of the work), or rent on demand",
    )


def best_interval_s(history: SpotHistory, nodes: Column, hazard: Column, save: Column) -> Column:
    """Return the best interval for memoryless spells of the mean length, at least a minute."""
    mean = float(np.mean(np.concatenate([s.up_length_s for s in history.spells])))
    rate = hazard * nodes**GANG_EXPONENT / mean
    return np.maximum(optimal_interval_s(save, rate), 60.0)


# Copies of a record behind the one in which the job would end at its mean progress.
_SPARE_COPIES: Final = 2
_COLUMNS: Final = tuple(one.name for one in fields(Rental))


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalColumns:
    """Rentals of candidates, one row each; inf where most replays never end.

    Each record of a history is repeated until the job ends, and the job submitted at ``STARTS``
    times spread over the first copy. A candidate's numbers are those of its own replays, whatever
    stands beside it: nothing is interpolated (``spot_completion`` is for thousands of
    candidates).
    """

    mean: Rental  # expected values of the replays' columns, shape (n,) each
    # finish_s, billed_s: (n, 3); 10th, 50th and 90th percentile of the time to the finish, and of
    # the rented time at the price of an on-demand hour of all machines [s]
    finish_s: Column
    billed_s: Column
    billed_mean_s: Column  # (n,); expected value of the latter [s]
    checkpoint_interval_s: Column  # (n,); useful computing between two saves [s]

    @classmethod
    def of(
        cls, rentals: Sequence[Rental], price_ratio: Column, checkpoint_interval_s: Column
    ) -> RentalColumns:
        """Summarise the replays of each candidate.

        ``price_ratio``: (n,); of a spot hour to an on-demand one; ``checkpoint_interval_s``: (n,);
        [s].
        """
        billed = [r.billed_s(ratio) for r, ratio in zip(rentals, price_ratio, strict=True)]
        return cls(
            mean=Rental(**{
                name: _means([getattr(rental, name) for rental in rentals]) for name in _COLUMNS
            }),
            finish_s=_stacked([_shown(rental.finish_s) for rental in rentals]),
            billed_s=_stacked([_shown(paid) for paid in billed]),
            billed_mean_s=_means(billed),
            checkpoint_interval_s=checkpoint_interval_s,
        )  # fmt: skip


def scaled_records(history: SpotHistory, nodes: float, hazard: float) -> list[Spells]:
    """Return a history's records as ``nodes`` nodes of another hazard would have seen them."""
    return [
        spells.scaled(up=(nodes / recorded) ** -GANG_EXPONENT / hazard)
        for spells, recorded in zip(history.spells, history.nodes, strict=True)
    ]


def availability_of(history: SpotHistory, nodes: float, hazard: float) -> float:
    """Return the share of the time with all nodes up, the mean over the records."""
    records = scaled_records(history, nodes, hazard)
    return float(np.mean([record.availability for record in records]))


def replay_records(
    records: Sequence[Spells],
    job: SpotJob,
    replay: Callable[[Spells, Column], Rental],
    progress_s: Sequence[float],
) -> Rental:
    """Run a job over every record, from starts spread over each.

    ``replay``: of spells and starts [s]; ``progress_s``: what the job gets done in each record,
    roughly [s].
    """
    copies = copies_of(job, progress_s)
    tiled = [record.tiled(times) for record, times in zip(records, copies, strict=True)]
    spells, begin = joined(tiled, gap_s=job.wall_s)
    start = starts_s(begin, np.array([record.end_s for record in records]))
    return cut(replay(spells, start), start, begin)


def copies_of(job: SpotJob, progress_s: Sequence[float]) -> list[int]:
    """Return how often to repeat each record until the job has ended.

    ``progress_s`` is what the job gets done in one copy, roughly. [s]
    """
    return [
        int(min(job.attempt_s / max(done, 1e-9), MAXIMUM_TILES)) + _SPARE_COPIES
        for done in progress_s
    ]


def starts_s(begin_s: Column, length_s: Column) -> Column:
    """Return starts spread over the first copy of each record, shape (records x STARTS,) [s]."""
    share = (np.arange(STARTS) + 0.5) / STARTS
    starts: Column = (begin_s[:-1, None] + share * length_s[:, None]).ravel()
    return starts


def cut(rental: Rental, start_s: Column, begin_s: Column) -> Rental:
    """Return the replays with those as never ended that go on into the next record."""
    is_over = start_s + rental.finish_s <= np.repeat(begin_s[1:], STARTS) + 1e-6
    return Rental(**{
        name: np.where(is_over, getattr(rental, name), np.nan) for name in _COLUMNS
    })  # fmt: skip


def _shown(samples: Column) -> Column:
    """Return the shown quantiles of replays, each an actual one; what never ends is longest."""
    order = np.sort(np.nan_to_num(samples, nan=np.inf))
    at = np.round(np.asarray(SHOWN) * (order.size - 1)).astype(int)
    shown: Column = order[at]
    return shown


def _stacked(rows: Sequence[Column]) -> Column:
    return np.stack(rows) if rows else np.zeros((0, len(SHOWN)))


def _means(rows: Sequence[Column]) -> Column:
    means = np.array([float(np.nan_to_num(row, nan=NEVER_S).mean()) for row in rows])
    return np.where(means < np.sqrt(NEVER_S), means, np.inf)
