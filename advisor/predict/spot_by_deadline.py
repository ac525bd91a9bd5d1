"""The whole job on spot machines by a deadline: on demand or waiting where its plan says so.

The plan and its replay are ``planners.spot.planned``'s, the same that ``advisor simulate spot``
follows; here they get the step's own error, what a whole run adds, and the parts of the time.
"""

from __future__ import annotations

import numpy as np

from advisor.domain import COMPLETIONS, QUANTILES
from advisor.jobs.job import Job
from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import SpotJob
from advisor.planners.spot.fallback import FallbackRun
from advisor.planners.spot.planned import late_probability, replay_plan
from advisor.planners.spot.policy import with_saves_s
from advisor.planners.spot.rentals import scaled_records
from advisor.planners.spot.replay import best_interval_s
from advisor.predict.completion import (
    Completion,
    Floats,
    Integers,
    hazards,
    parts_h,
    restart_s,
    save_of_rows_s,
    whole_run,
    widened,
)
from advisor.records.traces import packaged_spot_history
from advisor.ways.columns import TimeColumns

_SHOWN = (0.1, 0.5, 0.9)
_STARTS = 16  # in each record, as many as the simulator takes


def planned_jobs(job: Job, columns: TimeColumns, rows: Integers, bands: Floats) -> list[SpotJob]:
    """Return the job of each row as the plan sees it: work with what a whole run adds, and saves.

    Parameters
    ----------
    rows : integer array of shape (n,)
        Rows of ``columns``, all with a time.
    bands : float array of shape (n,)
        AWS's interruption band, 0 to 4; nan (unknown) is taken as the worst.
    """
    return _planned(job, columns, rows, bands, whole_run(job, columns, None)[0][rows])


def _planned(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, factors: Floats
) -> list[SpotJob]:
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


def late_fractions(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, deadline_h: float
) -> Floats:
    """Return the probability that each row misses a deadline by its plan."""
    factors, added = whole_run(job, columns, None)
    jobs = _planned(job, columns, rows, bands, factors[rows])
    return _late(jobs, deadline_h, _error(columns, rows, added))


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

    Parameters
    ----------
    job, columns, rows, bands
        As for ``planned_jobs``; each row can keep the deadline on demand.
    usd_per_h : pair of float arrays of shape (n,)
        Spot and on-demand price of all machines, with what is paid by the hour besides. [USD/h]
    coverage : float
        Of the interval; no job that can keep the deadline ends behind it.
    """
    factors, added = whole_run(job, columns, None)
    jobs = _planned(job, columns, rows, bands, factors[rows])
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
    error = _error(columns, rows, added)
    return _completion(
        job, columns, rows, jobs, runs, usd_per_h, deadline_h, coverage, factors[rows], error
    )


def _error(columns: TimeColumns, rows: Integers, added: Floats) -> Floats:
    return np.asarray(np.hypot(columns.log_sd, added)[rows])


def _completion(
    job: Job, columns: TimeColumns, rows: Integers, jobs: list[SpotJob], runs: list[FallbackRun],
    usd_per_h: tuple[Floats, Floats], deadline_h: float, coverage: float, factor: Floats,
    error: Floats,
) -> Completion:  # fmt: skip
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
    saves_s = whole_s - work_s
    spot_h, on_demand_h = (one.mean(axis=1) / HOUR_S for one in (spot_s, on_demand_s))
    quantiles_s = np.quantile(billed_s, _SHOWN, axis=1).T
    return Completion(
        finish_h=finish_h,
        billed_h=widened(quantiles_s, billed_s.mean(axis=1), error, coverage) / HOUR_S,
        overhead_fraction=finish_s[:, 1] / work_s - 1.0,
        checkpoint_interval_s=np.array([one.checkpoint_interval_s for one in jobs]),
        is_negligible=np.zeros(rows.shape, dtype=bool),
        whole_run_factor=factor,
        way=np.full(rows.shape, COMPLETIONS.index("spot-by-deadline")),
        spot_h=spot_h,
        on_demand_h=on_demand_h,
        rented_h=spot_h + on_demand_h,
        late_fraction=_late(jobs, deadline_h, error),
        parts_h=parts_h(
            job, columns, finish_h[:, 1], saves_s, work_s * (1.0 - 1.0 / factor), rows=rows
        ),
    )
