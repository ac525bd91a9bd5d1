"""From a step to a finish and a bill: start-up, checkpoints, failures, removals of spot machines.

On demand the expected time with failures (``planners.goodput``); on spot machines the quantiles of
replayed availability records (``planners.spot``). The error of the step time widens both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import QUANTILES, Estimate
from advisor.job import Job
from advisor.planners.goodput import expected_completion
from advisor.planners.spot import BAND_FRACTIONS, hazard_of_band, spot_completion
from advisor.predict.columns import TimeColumns
from advisor.traces import packaged_spot_history

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_HOUR_S: Final = 3600.0
# AWS, Google and most smaller providers bill by the second, one minute at least.
SHORTEST_BILL_H: Final = 60 / _HOUR_S
# What a plain block-storage volume takes: the baseline of AWS gp3, 125 MiB/s, likewise Azure P10
# and a Google balanced disk of a few hundred GB.
_CHECKPOINT_BYTES_PER_S: Final = 131e6
# Between 10th and 90th percentile, in standard deviations.
_SHOWN_SDS: Final = QUANTILES[0.8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Low, expected and high, shape (n, 3), one row a candidate.

    Attributes
    ----------
    finish_h : float array
        From the machines' start to the end of the job; on spot machines from the request. [h]
    billed_h : float array
        While the machines are paid. [h]
    overhead_fraction : float array of shape (n,)
        What checkpoints, failures and removals add to the work.
    checkpoint_interval_s : float array of shape (n,)
        Useful work between two checkpoints that the figures assume. [s]
    """

    finish_h: Floats
    billed_h: Floats
    overhead_fraction: Floats
    checkpoint_interval_s: Floats

    def estimates(
        self, row: int, price_usd_per_h: float, coverage: float
    ) -> tuple[Estimate, Estimate]:
        """Return time [h] and cost [USD] of one row at a price of all machines together."""
        low, value, high = self.finish_h[row].tolist()
        time_h = Estimate(value=value, low=min(low, value), high=max(high, value),
                          coverage=coverage)  # fmt: skip
        billed_h = np.maximum(self.billed_h[row], SHORTEST_BILL_H)
        low, value, high = (billed_h * price_usd_per_h).tolist()
        cost = Estimate(value=value, low=min(low, value), high=max(high, value),
                        coverage=coverage)  # fmt: skip
        return time_h, cost


def on_demand(job: Job, columns: TimeColumns, coverage: float) -> Completion:
    """Return what the job takes on machines that stay until it ends, one row a (type, count)."""
    with np.errstate(invalid="ignore"):
        work_s = np.where(columns.status == 0, columns.step_s * job.paid_steps, 1.0)
    expected = expected_completion(
        work_s,
        devices=columns.dp,
        nodes=columns.count,
        checkpoint_s=checkpoint_s(job),
        restart_s=_restart_s(columns),
    )
    spread = np.exp(QUANTILES[coverage] * np.nan_to_num(columns.log_sd))
    value = np.where(columns.status == 0, expected.expected_s, np.nan)
    finish = np.stack([value / spread, value, value * spread], axis=1)
    finish = (finish + columns.startup_s[:, None]) / _HOUR_S
    return Completion(
        finish_h=finish,
        billed_h=finish,
        overhead_fraction=expected.overhead_fraction,
        checkpoint_interval_s=expected.checkpoint_interval_s,
    )


def on_spot(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, coverage: float
) -> Completion:
    """Return what the job takes on spot machines, one row a row of ``columns`` that is named.

    Parameters
    ----------
    job : Job
    columns : TimeColumns
    rows : integer array of shape (n,)
        Rows of ``columns``, all with a time.
    bands : float array of shape (n,)
        AWS's interruption band, 0 to 4; nan (unknown) is taken as the worst.
    coverage : float
        Of the interval: percentiles of the replays, widened by the error of the step time.
    """
    spot = spot_completion(
        columns.step_s[rows] * job.paid_steps,
        history=packaged_spot_history(),
        nodes=columns.count[rows],
        checkpoint_s=checkpoint_s(job),
        restart_s=_restart_s(columns)[rows],
        hazard=_hazards(bands),
    )
    error = columns.log_sd[rows]
    return Completion(
        finish_h=_widened(spot.finish_s, spot.finish_s[:, 1], error, coverage) / _HOUR_S,
        billed_h=_widened(spot.billed_s, spot.billed_mean_s, error, coverage) / _HOUR_S,
        overhead_fraction=spot.finish_s[:, 1] / (columns.step_s[rows] * job.paid_steps) - 1.0,
        checkpoint_interval_s=np.broadcast_to(spot.checkpoint_interval_s, rows.shape),
    )


def checkpoint_s(job: Job) -> float:
    """Return the standstill of one save: parameters and optimizer state to a plain volume. [s]."""
    if job.work is None:
        return 0.0
    state = job.work.parameter_bytes + job.work.optimizer_state_bytes
    return float(state / _CHECKPOINT_BYTES_PER_S)


def _restart_s(columns: TimeColumns) -> Floats:
    """Start the program again on a machine that is there: a second at least, to notice it."""
    return np.maximum(np.nan_to_num(columns.startup_s), 1.0)


def _hazards(bands: Floats) -> Floats:
    """Return the hazard of each row's interruption band, the open band's where it is unknown."""
    by_band: Sequence[float] = [hazard_of_band(name) for name in BAND_FRACTIONS]
    index = np.nan_to_num(bands, nan=len(by_band) - 1).astype(np.int64)
    return np.asarray(by_band)[index]


def _widened(quantiles: Floats, value: Floats, log_sd: Floats, coverage: float) -> Floats:
    """Join the spread of the replays (10th, 50th, 90th percentile) with the step's own error.

    Both are taken as log-normal on each side of the median, so their variances add.
    """
    low, middle, high = np.log(np.minimum(quantiles, 1e12)).T
    factor = QUANTILES[coverage]
    below = factor * np.hypot((middle - low) / _SHOWN_SDS, log_sd)
    above = factor * np.hypot((high - middle) / _SHOWN_SDS, log_sd)
    return np.stack([np.exp(middle - below), value, np.exp(middle + above)], axis=1)
