"""The whole job on spot machines that are helped out or that come one by one, as completions.

The replays are ``planners.spot``'s; here they are joined with
the step's own error, the failures and the parts of the time, as ``completion`` does for machines
that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import COMPLETIONS, CompletionWay
from advisor.estimate.completion import (
    Completion,
    Floats,
    Integers,
    hazards,
    lasting,
    replayed,
    restart_s,
    save_of_rows_s,
    time_parts,
    whole_run,
    widened,
)
from advisor.estimate.time_columns import TimeColumns
from advisor.estimate.ways.beside import is_beside
from advisor.jobs import Job
from advisor.planners.core import HOUR_S, select
from advisor.planners.goodput import expected_completion
from advisor.planners.spot import (
    GANG_EXPONENT,
    Column,
    Rental,
    RentalColumns,
    Spells,
    SpotHistory,
    SpotJob,
    best_interval_s,
    copies_of,
    cut,
    growing_timeline,
    joined,
    late_probability,
    nested_levels,
    replay_alternating,
    replay_plan,
    replay_records,
    replay_timeline,
    scaled_records,
    settling_s,
    starts_s,
    with_saves_s,
)
from advisor.quantities import QUANTILES
from advisor.records import packaged_spot_history

# Counts that are looked at everywhere: powers of two and the middle between two of them.
_LARGEST_POWER: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What a job can run on: counts of machines, and the throughput on each.

    Of data-parallel workers only: the batch stays, so fewer machines take more micro-batches, and
    every count has the step time that the estimate gives it. See ``planners.spot.timelines``.
    """

    counts: NDArray[np.int64]  # (k,); ascending; the last is all
    rate: Column  # (k,); throughput by that on all machines, ascending to 1

    @classmethod
    def of(cls, counts: Sequence[int], step_s: Sequence[float]) -> Workers | None:
        """Return the counts that pay, from step times [s]; None where only all machines do.

        A count that is no faster than a smaller one is left out; one that is as fast as all
        machines makes them pointless.

        ``counts``: ascending; the last is all machines; ``step_s``: nan where a count cannot run
        the job [s].
        """
        rate = step_s[-1] / np.asarray(step_s, float)
        kept: list[int] = []
        for at in np.flatnonzero(np.isfinite(rate)):
            if not kept or rate[at] > rate[kept[-1]]:
                kept.append(int(at))
        if len(kept) < 2 or kept[-1] != len(rate) - 1:
            return None
        return cls(counts=np.asarray(counts, dtype=np.int64)[kept], rate=rate[kept])


def counts_below(count: int) -> tuple[int, ...]:
    """Return the numbers of machines on the way to ``count``, ascending, itself the last.

    Each is at most half of the next, so that a resize is worth its standstill.

    >>> counts_below(8), counts_below(6), counts_below(10)
    ((1, 2, 4, 8), (1, 3, 6), (1, 2, 4, 10))
    """
    known = sorted({n for k in range(_LARGEST_POWER) for n in (2**k, 3 * 2**k // 2)})
    down = [count]
    while down[-1] > 1:
        down.append(max(n for n in known if n <= max(down[-1] // 2, 1)))
    return tuple(reversed(down))


def spot_jobs(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, factors: Floats | float = 1.0
) -> list[SpotJob]:
    """Return the job of each row, its work ``factors`` times as long (a whole run's)."""
    work_s = columns.step_s[rows] * job.paid_steps * factors
    save_s = save_of_rows_s(job, columns)[rows]
    nodes = columns.count[rows].astype(float)
    interval_s = np.broadcast_to(
        best_interval_s(packaged_spot_history(), nodes, hazards(bands), save_s), rows.shape
    )
    return [
        SpotJob(work_s=work, restart_s=start, checkpoint_interval_s=interval, checkpoint_s=save)
        for work, start, interval, save in zip(
            work_s.tolist(), restart_s(columns)[rows].tolist(), interval_s.tolist(),
            save_s.tolist(), strict=True,
        )
    ]  # fmt: skip


def _intervals_s(jobs: Sequence[SpotJob]) -> Floats:
    return np.array([one.checkpoint_interval_s for one in jobs])


def elastic_rentals(
    history: SpotHistory, jobs: Sequence[SpotJob], workers: Sequence[Workers], *, hazard: Column
) -> RentalColumns:
    """Return what jobs take and rent, one row a job; ``hazard`` is relative to the history."""
    recorded: dict[tuple[float, float], tuple[Spells, Column]] = {}
    rentals = []
    for one, there, risk in zip(jobs, workers, hazard.tolist(), strict=True):
        kind = (float(there.counts[-1]), risk)
        if kind not in recorded:
            recorded[kind] = joined(scaled_records(history, *kind), gap_s=0.0)
        rentals.append(_replayed(*recorded[kind], there, one))
    return RentalColumns.of(rentals, np.ones(len(rentals)), _intervals_s(jobs))


def _replayed(spells: Spells, begin: Column, workers: Workers, job: SpotJob) -> Rental:
    """Replay a job over records joined at ``begin``, each as often repeated as it takes."""
    levels = nested_levels(spells, workers.counts, GANG_EXPONENT, begin)
    timeline = growing_timeline(levels, workers.counts, workers.rate, settling_s(job))
    kept = timeline.kept_s(job, timeline.length_s, slice(None))
    record = np.searchsorted(begin, timeline.begin_s, side="right") - 1
    progress = np.bincount(record, weights=kept, minlength=begin.size - 1)
    timeline, begins = timeline.repeated(begin, copies_of(job, progress.tolist()))
    start = starts_s(begins, np.diff(begin))
    rental = replay_timeline(timeline, job, start, np.full(start.shape, job.attempt_s))
    return cut(rental, start, begins)


# A record is long enough if it lasts twice the time on demand: moves at most double that
# (``planners.spot.availability.settling_s``), and behind its end the job goes on on demand anyway.
_PROGRESS: Final = 0.5


def fallback_rentals(
    history: SpotHistory, jobs: Sequence[SpotJob], *, nodes: Column, hazard: Column,
    price_ratio: Column,
) -> RentalColumns:  # fmt: skip
    """Return what jobs take and rent, one row a job; ``hazard`` is relative to the history.

    On the same machines in the same region: the job moves to on-demand ones when spot machines are
    taken away, and back when they have been there again for a while (``planners.spot.timelines``).

    ``price_ratio``: of a spot hour to an on-demand hour.
    """
    rentals = []
    for one, *machines in zip(jobs, nodes.tolist(), hazard.tolist(), strict=True):
        records = scaled_records(history, *machines)
        progress_s = [_PROGRESS * record.end_s for record in records]
        rentals.append(replay_records(records, one, partial(replay_alternating, one), progress_s))
    return RentalColumns.of(rentals, price_ratio, _intervals_s(jobs))


def on_spot_with_fallback(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, price_ratio: Floats,
    coverage: float,
) -> Completion:  # fmt: skip
    """Return what the job takes on spot machines, on demand while there are none.

    ``rows``: (n,); rows of ``columns``, all with a time; ``bands``: (n,); AWS's interruption band,
    0 to 4; nan (unknown) is taken as the worst; ``price_ratio``: (n,); of a spot hour to an
    on-demand hour, with what is paid by the hour besides; ``coverage``: of the interval, as in
    ``completion.on_spot``.
    """
    rentals = fallback_rentals(
        packaged_spot_history(), spot_jobs(job, columns, rows, bands),
        nodes=columns.count[rows].astype(float), hazard=hazards(bands), price_ratio=price_ratio,
    )  # fmt: skip
    share = rentals.mean.on_demand_s / (rentals.mean.on_demand_s + rentals.mean.spot_s)
    failures_s = share * _failures_s(job, columns, rows)
    return _spot_ways_completion(
        job, columns, rows, rentals, coverage, way="spot-with-fallback", failures_s=failures_s
    )


def on_elastic_spot(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, workers: Sequence[Workers],
    coverage: float,
) -> Completion:  # fmt: skip
    """Return what the job takes on as many spot machines as there are, up to a row's count.

    ``workers`` has the counts of each row and how fast they are; the other parameters are those of
    ``on_spot_with_fallback``.
    """
    jobs = spot_jobs(job, columns, rows, bands)
    rentals = elastic_rentals(packaged_spot_history(), jobs, workers, hazard=hazards(bands))
    return _spot_ways_completion(
        job, columns, rows, rentals, coverage, way="elastic-spot", failures_s=np.zeros(rows.size)
    )


def elastic_workers(
    job: Job, columns: TimeColumns, rows: Integers, step_columns: Callable[..., TimeColumns]
) -> list[Workers | None]:
    """Return the counts that each row's job could run on, and how fast; None where only on all.

    Only for plain data parallelism: any number of machines then runs the same program.

    ``columns``: counts that are missing here are asked for.
    """
    known = _steps_s(columns)
    wanted = [
        (int(columns.type_index[row]), counts_below(int(columns.count[row]))) for row in rows
    ]
    missing = sorted({(kind, n) for kind, counts in wanted for n in counts} - set(known))
    if missing:
        kinds, counts = np.array(missing, dtype=np.int64).T
        known |= _steps_s(step_columns(job, kinds, counts))
    return [
        Workers.of(counts, [known.get((kind, n), np.nan) for n in counts])
        for kind, counts in wanted
    ]


def _steps_s(columns: TimeColumns) -> dict[tuple[int, int], float]:
    """Return the step times of the rows with data parallelism alone, by type and count [s]."""
    layouts = columns.layouts
    ways = np.asarray(layouts.tp) * layouts.pp * layouts.cp * layouts.ep
    is_plain = (ways == 1) & ~is_beside(columns)
    at = np.flatnonzero((columns.status == 0) & is_plain)
    keys = zip(columns.type_index[at].tolist(), columns.count[at].tolist(), strict=True)
    return dict(zip(keys, columns.step_s[at].tolist(), strict=True))


def _failures_s(job: Job, columns: TimeColumns, rows: Integers) -> Floats:
    """Return what failures of machines add to the whole job on demand [s].

    Of spot machines they are among the recorded removals.
    """
    work_s = columns.step_s[rows] * job.paid_steps
    save_s = save_of_rows_s(job, columns)[rows]
    expected = expected_completion(
        work_s,
        devices=columns.workers[rows],
        nodes=columns.count[rows],
        checkpoint_s=save_s,
        restart_s=restart_s(columns)[rows],
    )
    return np.asarray(expected.expected_s - work_s - expected.checkpoints * save_s)


def _spot_ways_completion(
    job: Job, columns: TimeColumns, rows: Integers, rentals: RentalColumns, coverage: float, *,
    way: CompletionWay, failures_s: Floats,
) -> Completion:  # fmt: skip
    """Join replays with the error of the step; ``failures_s`` are waited for and paid besides."""
    factors, log_sds = whole_run(job, columns, None)
    factor, error = factors[rows], log_sds[rows]
    return replayed(
        job, columns, rows,
        (rentals.finish_s + failures_s[:, None]) * factor[:, None],
        (rentals.billed_s + failures_s[:, None]) * factor[:, None],
        (rentals.billed_mean_s + failures_s) * factor,
        rentals.checkpoint_interval_s, factor, error, coverage,
        way=np.full(rows.shape, COMPLETIONS.index(way)),
        spot_h=rentals.mean.spot_s * factor / HOUR_S,
        on_demand_h=(rentals.mean.on_demand_s + failures_s) * factor / HOUR_S,
        rented_h=(rentals.mean.rented_s + failures_s) * factor / HOUR_S,
        late_fraction=np.full(rows.shape, np.nan),
    )  # fmt: skip


_SHOWN = (0.1, 0.5, 0.9)
_STARTS = 16  # in each record, as many as the simulator takes


def late_fractions(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, deadline_h: float
) -> Floats:
    """Return the probability that each row misses a deadline by its plan."""
    jobs, _, error = _whole_runs(job, columns, rows, bands)
    return _late(jobs, deadline_h, error)


def _whole_runs(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats
) -> tuple[list[SpotJob], Floats, Floats]:
    """Return the jobs of rows, the factor of whole runs in them, and the error of ln(time)."""
    factors, log_sds = whole_run(job, columns, None)
    return spot_jobs(job, columns, rows, bands, factors[rows]), factors[rows], log_sds[rows]


def _late(jobs: list[SpotJob], deadline_h: float, error: Floats) -> Floats:
    return late_probability(
        [with_saves_s(one) for one in jobs], [one.restart_s for one in jobs],
        deadline_h * HOUR_S, error,
    )  # fmt: skip


def on_spot_by_deadline(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats,
    usd_per_h: tuple[Floats, Floats], deadline_h: float, coverage: float,
) -> Completion:  # fmt: skip
    """Return what the job takes by the plan that costs least and keeps the deadline.

    The plan and its replay are ``planners.spot.deadline``'s, the same that ``advisor simulate
    spot`` follows; here they get the step's own error, what a whole run adds, and the parts of the
    time.

    ``rows``, ``bands``: as for ``on_spot_with_fallback``; each row can keep the deadline on
    demand; ``usd_per_h``: (n,); spot and on-demand price of all machines, with what is paid by the
    hour besides [USD/h]; ``coverage``: of the interval; no job that can keep the deadline ends
    behind it.
    """
    jobs, factor, error = _whole_runs(job, columns, rows, bands)
    runs = [
        replay_plan(
            scaled_records(packaged_spot_history(), float(columns.count[row]), float(hazard)),
            planned, starts=_STARTS, deadline_s=deadline_h * HOUR_S,
            spot_price_usd_per_h=float(spot), price_usd_per_h=float(on_demand),
        )
        for row, planned, hazard, spot, on_demand in zip(
            rows, jobs, hazards(bands), *usd_per_h, strict=True
        )
    ]  # fmt: skip
    ratio = usd_per_h[0] / usd_per_h[1]
    work_s = np.array([one.work_s for one in jobs])
    whole_s = np.array([with_saves_s(one) for one in jobs])
    spot_s = np.stack([run.spot_s for run in runs])
    on_demand_s = np.stack([run.on_demand_s for run in runs])
    finish_s = np.quantile(np.stack([run.finish_s for run in runs]), _SHOWN, axis=1).T
    billed_s = on_demand_s + ratio[:, None] * spot_s
    finish_h = widened(finish_s, finish_s[:, 1], error, coverage) / HOUR_S
    # Whatever the plan does, on demand from the start would have ended by then.
    surely_h = (restart_s(columns)[rows] + whole_s * np.exp(QUANTILES[coverage] * error)) / HOUR_S
    finish_h[:, 2] = np.minimum(finish_h[:, 2], np.maximum(surely_h, deadline_h))
    finish_h[:, 0] = np.minimum(finish_h[:, 0], finish_h[:, 1])
    stalls_s = work_s * (1.0 - 1.0 / factor)
    parts_s = time_parts(job, select(columns, rows), whole_run_s=stalls_s)
    spot_h, on_demand_h = (one.mean(axis=1) / HOUR_S for one in (spot_s, on_demand_s))
    quantiles_s = np.quantile(billed_s, _SHOWN, axis=1).T
    return Completion(
        finish_h=finish_h,
        billed_h=widened(quantiles_s, billed_s.mean(axis=1), error, coverage) / HOUR_S,
        overhead_fraction=finish_s[:, 1] / work_s - 1.0,
        checkpoint_interval_s=_intervals_s(jobs),
        is_negligible=np.zeros(rows.shape, dtype=bool),
        way=np.full(rows.shape, COMPLETIONS.index("spot-by-deadline")),
        spot_h=spot_h,
        on_demand_h=on_demand_h,
        rented_h=spot_h + on_demand_h,
        late_fraction=_late(jobs, deadline_h, error),
        parts_s=lasting(parts_s, finish_s[:, 1], whole_s - work_s),
    )
