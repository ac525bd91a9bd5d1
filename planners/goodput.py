"""Failures, checkpoints and restarts of a job: the exact expectation and its optimum.

Further parts: whole training runs beside their steps: stalls, evaluation, stops, software of its
year; the time of a save, and the standstill when nodes go or come.

====================  ===========  ==============================================================
here                  in papers    meaning, unit
====================  ===========  ==============================================================
``work_s``            W            useful computing that the job needs. [s]
``rate_per_s``        lambda, 1/M  interruptions of the whole job (any device, any node). [1/s]
``checkpoint_s``      C, delta     the job stands still while it saves. [s]
``interval_s``        tau          useful computing between two checkpoints. [s]
``downtime_s``        D            noticing the failure and getting a node: cannot fail. [s]
``restart_s``         R            start, initialisation, loading the state: can fail. [s]
====================  ===========  ==============================================================

Interruptions are a Poisson process here (many independent devices); spot removals are not, and
``planners.spot.history`` replays them. Sources: Young, CACM 17(9), 1974 (first-order interval);
Daly, FGCS
22(3), 2006, eq. 20 (expectation) and 37 (higher-order interval); the THORN-ML slides (edge fault
tolerance, initialisation and checkpoint times); Llama 3 (arXiv 2407.21783), section 3.3.4 and
table 5 (failure rate); StepFun's fault trace (InfiniteHBD-Trace, repair time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    GB,
    GIB,
    HOUR_S,
    check_counts,
    check_not_negative,
    check_positive,
    impossible,
    refused,
)

Column = NDArray[np.float64]

# Step times themselves repeat to 3-5 % (Pollux tables, same placement measured twice): an expected
# loss below 1 % cannot be seen on a bill.
NEGLIGIBLE_FRACTION: Final = 0.01
# THORN-ML testbed, GPT-2 on 5 GPUs, data parallel; MegaScale, 2,048 GPUs (both on the slides).
INITIALISATION_POINTS: Final = ((5.0, 22.61), (2048.0, 1047.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """A published count of unexpected interruptions of one long job."""

    interruptions: int  # unexpected ones: they stop the job
    # those among them that a second path at the edge would hide (switch, cable, NIC)
    network_interruptions: int
    devices: int
    days: float
    source: str

    def __post_init__(self) -> None:
        check_counts("record of failures", interruptions=self.interruptions, devices=self.devices)
        check_positive("record of failures", days=self.days)
        check_not_negative("record of failures", network_interruptions=self.network_interruptions)

    @property
    def per_device_h(self) -> float:
        """Return the interruptions per device and hour [1/h]."""
        return self.interruptions / (self.days * 24.0 * self.devices)

    @property
    def network_fraction(self) -> float:
        """Return the share of the interruptions that the network's edge causes."""
        return self.network_interruptions / self.interruptions


# 35 switch or cable + 7 NIC of 419; the table prints 8.4 % + 1.7 % for the two.
LLAMA3: Final = FailureRecord(
    interruptions=419,
    network_interruptions=35 + 7,
    devices=16_384,
    days=54.0,
    source="Llama 3 (arXiv 2407.21783), table 5",
)


EdgeLayout = Literal["data-parallel", "pipeline", "pipeline-tensor"]
# Added step time while a path is down, 95th percentile by layout (THORN-ML slides, GPT-2).
EDGE_P95: Final[dict[EdgeLayout, float]] = {
    "data-parallel": 0.016, "pipeline": 0.078, "pipeline-tensor": 0.117,
}  # fmt: skip
# An exponential's mean by its 95th percentile. The slides' 90th percentiles (1.1, 5.6, 9.2 %) are
# such an exponential's to 8 %; an expectation needs the mean, which the percentile is three times.
MEAN_BY_P95: Final = 1.0 / math.log(20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeFaultTolerance:
    """A second network path at every host (THORN-ML): hides network failures, slows meanwhile.

    Raises PlanningError if a figure makes no sense.
    """

    # mean added step time while a path is down; data parallel's by default
    slowdown_fraction: float = EDGE_P95["data-parallel"] * MEAN_BY_P95
    repair_h: float = 20.0  # how long a path stays down: StepFun's median repair, 20 h [h]
    # share of the failures that the second path hides; Llama 3's by default
    network_fraction: float = LLAMA3.network_fraction

    def __post_init__(self) -> None:
        check_not_negative(
            "a second network path",
            slowdown_fraction=self.slowdown_fraction,
            repair_h=self.repair_h,
            network_fraction=self.network_fraction,
        )
        if self.network_fraction > 1:
            raise refused(
                f"a second path cannot hide {self.network_fraction:g} of the failures",
                "give a share of them, at most 1",
            )

    @classmethod
    def of_layout(cls, layout: EdgeLayout, **given: float) -> EdgeFaultTolerance:
        """Return the second path of a layout, with its published slowdown's mean.

        Examples
        --------
        >>> round(EdgeFaultTolerance.of_layout("pipeline").slowdown_fraction, 3)
        0.026
        """
        return cls(slowdown_fraction=EDGE_P95[layout] * MEAN_BY_P95, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCompletion:
    """Columns of what a job takes with failures, one row a candidate."""

    # (n,); expected wall time of the job, checkpoints and failures included; inf where the job
    # cannot be expected to end [s]
    expected_s: Column
    overhead_fraction: Column  # (n,); ``expected_s / work_s - 1``
    # (n,); useful computing between two checkpoints; equals ``work_s`` where saving only at the
    # end is best [s]
    checkpoint_interval_s: Column
    checkpoints: Column  # (n,); checkpoints of the whole job, the final one included
    expected_failures: Column  # (n,); interruptions expected while the job runs
    # (n,); checkpoints and failures together cost less than ``NEGLIGIBLE_FRACTION``
    is_negligible: NDArray[np.bool_]


def expected_completion(
    work_s: ArrayLike, *, devices: ArrayLike, nodes: ArrayLike = 1.0,
    checkpoint_s: ArrayLike | None, restart_s: ArrayLike | None = None,
    detection_s: ArrayLike = 60.0, failures_per_device_h: ArrayLike = LLAMA3.per_device_h,
    preemptions_per_node_h: ArrayLike = 0.0, checkpoint_interval_s: ArrayLike | None = None,
    edge: EdgeFaultTolerance | None = None,
) -> ExpectedCompletion:  # fmt: skip
    """Return the expected wall time of a job that fails, restarts and saves checkpoints.

    Raises PlanningError if a time, a rate or a count is negative, or the work or the devices are
    not positive.

    Parameters
    ----------
    work_s : array-like of shape (n,)
        Useful computing: steps x step time. [s]
    devices, nodes : array-like of shape (n,)
        Of the job; failures are counted by device, preemptions by node.
    checkpoint_s : array-like of shape (n,) or None
        Standstill of one save; None where the job saves nothing before its end. [s]
    restart_s : array-like of shape (n,), optional
        From a node being there to the first useful step; by default ``initialisation_s``. [s]
    detection_s : array-like
        From the failure to a node being there. 60 s: the one to two minutes that the THORN slides
        give for a standstill, less the initialisation of their five GPUs. [s]
    failures_per_device_h : array-like
        [1/h]
    preemptions_per_node_h : array-like of shape (n,)
        Spot removals; 0 on demand. [1/h]
    checkpoint_interval_s : array-like of shape (n,), optional
        What the job does; by default the best interval is taken. [s]
    edge : EdgeFaultTolerance, optional
        With it, network failures slow the job down and do not stop it.

    Examples
    --------
    >>> day = expected_completion(86400, devices=512, checkpoint_s=30.0)
    >>> round(float(day.overhead_fraction[0]), 3), round(float(day.checkpoint_interval_s[0]))
    (0.014, 4547)
    """
    work = _column("work_s", work_s, is_positive=True)
    rate, slowdown = _rates(
        _column("devices", devices, is_positive=True)
        * _column("failures_per_device_h", failures_per_device_h),
        _column("nodes", nodes, is_positive=True)
        * _column("preemptions_per_node_h", preemptions_per_node_h),
        edge,
    )
    restart = initialisation_s(devices) if restart_s is None else _column("restart_s", restart_s)
    downtime = _column("detection_s", detection_s)
    wanted = None
    if checkpoint_interval_s is not None:
        wanted = _column("checkpoint_interval_s", checkpoint_interval_s, is_positive=True)
    save = np.zeros(1) if checkpoint_s is None else _column("checkpoint_s", checkpoint_s)
    work, rate, save, restart, downtime = np.broadcast_arrays(
        work * slowdown, rate, save, restart, downtime
    )
    count = _checkpoints(work, rate, save, wanted) if checkpoint_s is not None else np.ones(1)
    expected = count * segment_s(work / count, rate, save, downtime, restart)
    overhead = expected / (work / slowdown) - 1.0
    return ExpectedCompletion(
        expected_s=expected,
        overhead_fraction=overhead,
        checkpoint_interval_s=work / count,
        checkpoints=np.broadcast_to(count, work.shape),
        expected_failures=_failures(work / count, count, rate, save, restart),
        is_negligible=overhead < NEGLIGIBLE_FRACTION,
    )


def _rates(
    failures_per_h: Column, preemptions_per_h: Column, edge: EdgeFaultTolerance | None
) -> tuple[Column, Column]:
    """Return the rate of interruptions [1/s] and how much slower steps are on one path."""
    if edge is None:
        return (failures_per_h + preemptions_per_h) / HOUR_S, np.ones(1)
    hidden_per_h = edge.network_fraction * failures_per_h
    degraded = np.minimum(1.0, hidden_per_h * edge.repair_h)
    rate = (failures_per_h - hidden_per_h + preemptions_per_h) / HOUR_S
    return rate, np.asarray(1.0 + edge.slowdown_fraction * degraded)


def segment_s(
    interval_s: Column | float, rate_per_s: Column | float, checkpoint_s: Column | float,
    downtime_s: Column | float, restart_s: Column | float,
) -> Column:  # fmt: skip
    """Return the expected time [s] for ``interval_s`` of work and its checkpoint to succeed.

    ``E = (1/lambda + D) e^(lambda R) (e^(lambda (tau + C)) - 1)``: a failure may strike work,
    checkpoint and restart, not the downtime. Daly's eq. 20 is the case D = 0.
    """
    attempt = np.asarray(interval_s, float) + checkpoint_s
    rate = np.asarray(rate_per_s, float)
    x = rate * attempt
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # (e^x - 1) / x is one to rounding below this, where its parts would leave the range.
        growth = np.where(x > 1e-12, np.expm1(x) / x, 1.0)
        interrupted = attempt * growth * (1.0 + rate * downtime_s) * np.exp(rate * restart_s)
    return np.asarray(interrupted)


def _failures(
    interval: Column, count: Column, rate: Column, save: Column, restart: Column
) -> Column:
    """Return the expected failures: the factor of D in ``segment_s``, for all segments."""
    with np.errstate(over="ignore"):
        return np.asarray(count * np.exp(rate * restart) * np.expm1(rate * (interval + save)))


def optimal_interval_s(checkpoint_s: Column | float, rate_per_s: Column | float) -> Column:
    """Return the interval [s] that minimises the expectation of a long job exactly.

    The minimum of ``(e^(x + c) - 1) / x`` with x = lambda tau and c = lambda C solves
    ``1 - x = e^(-x - c)``, i.e. ``x = 1 + W0(-e^(-1 - c))`` with Lambert's W. Downtime and restart
    scale the expectation and do not move its minimum. inf where nothing fails.
    """
    rate = np.asarray(rate_per_s, float)
    c = rate * np.asarray(checkpoint_s, float)
    x = np.minimum(np.sqrt(2.0 * c), 1.0)
    # Newton on a convex function, started where c -> 0 and c -> inf are exact: four steps reach
    # rounding between.
    for _ in range(6):
        decay = np.exp(-x - c)
        with np.errstate(invalid="ignore", divide="ignore"):
            step = (x - 1.0 + decay) / (1.0 - decay)
        x = np.where(c > 0, x - step, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rate > 0, x / rate, np.inf)


def initialisation_s(devices: ArrayLike) -> Column:
    """Return the time [s] to start the processes, join them and load the state.

    A straight line in log-log through the only two published points (5 and 2,048 GPUs), flat
    outside them: an order of magnitude. A measured restart is better.
    """
    (small, fast), (large, slow) = INITIALISATION_POINTS
    count = np.log(_column("devices", devices, is_positive=True))
    return np.exp(np.interp(count, np.log([small, large]), np.log([fast, slow])))


def _checkpoints(work: Column, rate: Column, save: Column, wanted: Column | None) -> Column:
    """Return the number of equal segments: the user's, or the better of two beside ``W / tau``."""
    if wanted is not None:
        return np.maximum(1.0, np.ceil(work / wanted - 1e-9))
    best = optimal_interval_s(save, rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        ideal = np.where((best > 0) & (rate > 0), work / best, 1.0)
    # Free checkpoints would be taken without end: one a second is as good.
    ideal = np.where((save <= 0) & (rate > 0), work, ideal)
    low = np.maximum(1.0, np.floor(ideal))
    cost_low = low * segment_s(work / low, rate, save, 0.0, 0.0)
    cost_high = (low + 1.0) * segment_s(work / (low + 1.0), rate, save, 0.0, 0.0)
    return np.where(cost_high < cost_low, low + 1.0, low)


def _column(name: str, value: ArrayLike, *, is_positive: bool = False) -> Column:
    """Return ``value`` as a one-dimensional column, refused where it makes no sense."""
    column = np.atleast_1d(np.asarray(value, float))
    bad = ~(column > 0) if is_positive else ~(column >= 0)
    if bad.any():
        wanted = "positive" if is_positive else "zero or more"
        raise refused(
            f"{name} must be {wanted}, got {column[bad].flat[0]:g}",
            "times are seconds, rates are per hour",
        )
    return column


# Whole training runs beside their steps: stalls, evaluation, stops, software of its year.
#
# Published hours of whole runs exceed the steps, checkpoints and failures that the models count,
# the more so the larger the run: somebody watches, evaluates, restarts by hand, waits for a file
# system. The law says that every e-fold of device-hours beyond one machine for one day multiplies
# the hours by a factor of the same mean, and that every year by which the software is older than
# that of the measured step times multiplies them once more::
#
#     x = ln(1 + G / G0)
#     ln F = growth x + per_year y,        sd(ln F) = s min(x, 1)^(1/2)
#
# The spread is that of who runs it and how: it is there from the first e-fold on, and runs of
# millions of hours scatter no more than runs of hundreds (a spread that grew with the root of x
# covered as many at half-widths of 1.9).
#
# The spread s of a job that was only described holds what its software makes of the machines too;
# that of a job whose step was measured is what whole runs add to a known step.
#
# ====================  =========  ================================================================
# here                  above      meaning, unit
# ====================  =========  ================================================================
# ``device_h``          G          device-hours of the run's steps. [h]
# ``MACHINE_DAY_H``     G0         eight devices for a day. [h]
# ``efolds``            x          size of the run.
# ``software_years``    y          how much older its software is.
# ``history``           h          share of the usual rate.
# ``log_usual``         ln u       how much longer the steps take at the usual rate.
# ====================  =========  ================================================================
#
# Runs of other people on the same chips say what they keep up, however steps are estimated. Where
# a described step would take another time at that usual rate, u times as long, the estimate is
# drawn towards it, in logarithms, and its own error counts so much less::
#
#     ln F = max(growth x + per_year y + h min(x, 1) ln u, 0)
#     sd^2 = (1 - h min(x, 1))^2 sd(ln step)^2 + s^2 min(x, 1)
#
# (shrinkage towards the mean of like cases: B. Efron, C. Morris, "Stein's Paradox in Statistics",
# 1977.) No whole run is shorter than its steps.
#
# A run much smaller than a machine-day is left as it is: F tends to 1 and its spread to 0. The
# constants are fitted on published runs (``trained_models/campaign``); no paper states the law.


# A run within a day on one machine of eight: somebody starts it and comes back the next morning.
MACHINE_DAY_H: Final = 8 * 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignLaw:
    """The fitted constants.

    Raises ValueError if a constant is negative or not finite: a whole run is never shorter than
    its steps.
    """

    growth: float  # mean of ln F an e-fold of device-hours
    per_year: float  # mean of ln F a year of older software [1/year]
    # standard deviation of ln F from one e-fold on, of a step that was described
    sd: float
    sd_measured: float = 0.0  # the same of a step that was measured
    history: float = 0.0
    # by architecture, "" for all others: mean of ln(hours of steps over those at the 16-bit peak)
    usual: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in (
            self.growth, self.per_year, self.sd, self.sd_measured, self.history
        ):  # fmt: skip
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"a constant of the whole-run law must not be negative: {self}")

    def log_factor(
        self, device_h: ArrayLike, software_years: ArrayLike = 0.0, log_usual: ArrayLike = np.nan
    ) -> Column:
        """Return ln F of runs of so many device-hours, shape as broadcast.

        ``log_usual``: nan where nobody knows what is usual.

        Examples
        --------
        >>> law = CampaignLaw(growth=0.03, per_year=0.15, sd=0.2)
        >>> law.log_factor([1.0, 1e6]).round(3).tolist()
        [0.0, 0.257]
        """
        years = np.maximum(np.asarray(software_years, float), 0.0)
        own = self.growth * efolds(device_h) + self.per_year * years
        drawn = self._drawn(device_h, log_usual) * np.nan_to_num(log_usual)
        return np.asarray(np.maximum(own + drawn, 0.0))

    def log_sd(
        self, device_h: ArrayLike, *, is_measured: bool = False, step_log_sd: ArrayLike = 0.0,
        log_usual: ArrayLike = np.nan,
    ) -> Column:  # fmt: skip
        """Return the standard deviation of ln(hours), shape as broadcast."""
        spread = self.sd_measured if is_measured else self.sd
        of_run = spread * np.sqrt(np.minimum(efolds(device_h), 1.0))
        kept = 1.0 - self._drawn(device_h, log_usual)
        return np.asarray(np.hypot(kept * np.asarray(step_log_sd), of_run))

    def _drawn(self, device_h: ArrayLike, log_usual: ArrayLike) -> Column:
        share = self.history * np.minimum(efolds(device_h), 1.0)
        return np.where(np.isfinite(log_usual), share, 0.0)


# The steps and what completion counts, nothing else.
STEPS_ALONE: Final = CampaignLaw(growth=0.0, per_year=0.0, sd=0.0)


def efolds(device_h: ArrayLike) -> Column:
    """Return the size of runs in e-folds of device-hours beyond a machine-day."""
    return np.log1p(np.asarray(device_h, float) / MACHINE_DAY_H)


# The time of a save, and the standstill when nodes go or come.
#
# ====================  ==========================================================================
# here                  meaning, unit
# ====================  ==========================================================================
# ``state_bytes``       parameters and optimizer state as saved. [bytes]
# ``bytes_per_s``       what one node writes to where checkpoints lie. [bytes/s]
# ``nodes``             that write their parts side by side.
# ====================  ==========================================================================
#
# Sources: BigScience (25 to 181 billion parameters, 14 bytes each, saved in 18 to 20 s from 8 to
# 64 nodes: 2.0 to 2.4 GB/s a node on a parallel file system); Parcae's measured restarts (V100, 10
# Gb/s, 1 to 32 nodes).


# Adam in mixed precision: bf16 parameters and fp32 master, first and second moment.
BYTES_PER_PARAMETER = 14.0
# A parallel file system's share of a node (BigScience); a cloud's default disk gives a tenth.
NODE_BYTES_PER_S = 2.0 * GB


def save_s(
    state_bytes: ArrayLike, *, nodes: ArrayLike = 1, bytes_per_s: ArrayLike = NODE_BYTES_PER_S,
    disk_bytes: float | None = None,
) -> Column:  # fmt: skip
    """Return how long the job stands still for one save, written by all nodes side by side [s].

    Raises PlanningError if the checkpoints do not fit the disk (exit code 3), or a value makes no
    sense.

    Parameters
    ----------
    state_bytes : array-like of shape (n,)
        [bytes]
    nodes : array-like of shape (n,)
    bytes_per_s : array-like
        Of one node. [bytes/s]
    disk_bytes : float, optional
        Space for checkpoints. [bytes]

    Examples
    --------
    >>> round(float(save_s(181e9 * BYTES_PER_PARAMETER, nodes=64)[0]), 1)  # published: 18 to 20 s
    19.8
    """
    size = np.atleast_1d(np.asarray(state_bytes, float))
    rate = np.asarray(bytes_per_s, float) * np.asarray(nodes, float)
    if not (np.all(size >= 0) and np.all(rate > 0)):
        raise refused(
            f"a checkpoint of {size.min():g} bytes, written at {rate.min():g} bytes/s, is "
            "out of range",
            "give bytes and bytes per second",
        )
    # The new one is written before the old one goes.
    if disk_bytes is not None and 2 * float(size.max()) > disk_bytes:
        raise impossible(
            f"2 checkpoints of {size.max() / GIB:.1f} GiB do not fit the disk's "
            f"{disk_bytes / GIB:.1f} GiB",
            "rent a larger disk, or save to an object store",
        )
    seconds: Column = size / rate
    return seconds


def restart_after_removal_s(nodes: ArrayLike) -> Column:
    """Return the standstill after nodes were taken from a job of so many [s].

    ``43.3 + 9.4 sqrt(n)``: least squares on Parcae's nine measurements (3 % off at most); the root
    was chosen after a look at them. The first four alone (up to 8 nodes) predict the rest within
    7 %.
    """
    removal: Column = 43.3 + 9.4 * np.sqrt(np.asarray(nodes, float))
    return removal


# After nodes were added Parcae's jobs stood still for 29 to 43 s, 37 s on average, whatever their
# number.
RESTART_AFTER_ADDITION_S = 37.0
