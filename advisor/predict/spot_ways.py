"""The whole job on spot machines that are helped out or that come one by one, as completions.

The replays are ``advisor.ways.spot_fallback``'s and ``elastic_spot``'s; here they are joined with
the step's own error, the failures and the parts of the time, as ``completion`` does for machines
that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from advisor.domain import COMPLETIONS, CompletionWay
from advisor.jobs.job import Job
from advisor.planners.core.units import HOUR_S
from advisor.planners.goodput.goodput import expected_completion
from advisor.planners.spot.rentals import RentalColumns
from advisor.predict.completion import (
    Completion,
    Floats,
    Integers,
    hazards,
    replayed,
    restart_s,
    save_of_rows_s,
    whole_run,
)
from advisor.records.traces import packaged_spot_history
from advisor.ways.beside import is_beside
from advisor.ways.columns import TimeColumns
from advisor.ways.elastic_spot import Workers, counts_below, elastic_spot
from advisor.ways.spot_fallback import spot_with_fallback


def on_spot_with_fallback(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, price_ratio: Floats,
    coverage: float,
) -> Completion:  # fmt: skip
    """Return what the job takes on spot machines, on demand while there are none.

    Parameters
    ----------
    rows : integer array of shape (n,)
        Rows of ``columns``, all with a time.
    bands : float array of shape (n,)
        AWS's interruption band, 0 to 4; nan (unknown) is taken as the worst.
    price_ratio : float array of shape (n,)
        Of a spot hour to an on-demand hour, with what is paid by the hour besides.
    coverage : float
        Of the interval, as in ``completion.on_spot``.
    """
    work_s = columns.step_s[rows] * job.paid_steps
    rentals = spot_with_fallback(
        work_s,
        history=packaged_spot_history(),
        nodes=columns.count[rows].astype(float),
        checkpoint_s=save_of_rows_s(job, columns)[rows],
        restart_s=restart_s(columns)[rows],
        hazard=hazards(bands),
        price_ratio=price_ratio,
    )
    share = rentals.mean.on_demand_s / (rentals.mean.on_demand_s + rentals.mean.spot_s)
    failures_s = share * _failures_s(job, columns, rows)
    return _completion(
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
    rentals = elastic_spot(
        columns.step_s[rows] * job.paid_steps,
        workers,
        history=packaged_spot_history(),
        checkpoint_s=save_of_rows_s(job, columns)[rows],
        restart_s=restart_s(columns)[rows],
        hazard=hazards(bands),
    )
    return _completion(
        job, columns, rows, rentals, coverage, way="elastic-spot", failures_s=np.zeros(rows.size)
    )


def elastic_workers(
    job: Job, columns: TimeColumns, rows: Integers, step_columns: Callable[..., TimeColumns]
) -> list[Workers | None]:
    """Return the counts that each row's job could run on, and how fast; None where only on all.

    Only for plain data parallelism: any number of machines then runs the same program.

    Parameters
    ----------
    columns : TimeColumns
        Counts that are missing here are asked for.
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


def _completion(
    job: Job, columns: TimeColumns, rows: Integers, rentals: RentalColumns, coverage: float, *,
    way: CompletionWay, failures_s: Floats,
) -> Completion:  # fmt: skip
    """Join replays with the error of the step; ``failures_s`` are waited for and paid besides."""
    factors, log_sds = whole_run(job, columns, None)
    factor, error = factors[rows], np.hypot(columns.log_sd[rows], log_sds[rows])
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
