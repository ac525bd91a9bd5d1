"""The tables behind ``planners.spot.replay``: replays of one kind of job, by work.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
history                    records that stand for what a job will meet, equally likely.
``gang_exponent``   gamma  up spells of n nodes shrink as (n / recorded nodes)^-gamma.
table                      quantiles of log(time / work) on a grid of works.
=========================  =====================================================================

Works are replayed exactly over every record of a history, from starts spread over it. Of more than
``EXACT_WORKS`` only a grid is, and what lies between two is interpolated in log(time / work) over
log(work): then the numbers of a candidate depend a little on those beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.spot.availability import Column, Spells, SpotJob, Timeline, replay_timeline

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
    """Records of availability that stand for what a job will meet, equally likely.

    Attributes
    ----------
    nodes : tuple of int
        Nodes that were up together in each record.
    """

    spells: tuple[Spells, ...]
    nodes: tuple[int, ...]
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
    """Quantiles of ``log(time / work)`` on a grid of works; rows works, columns ``LEVELS``."""

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
