"""From a step to a finish and a bill: start-up, data, checkpoints, failures, removals of machines.

On demand the expected time with failures (``planners.goodput``); on spot machines the quantiles of
replayed availability records (``planners.spot.history``). What a whole run adds besides multiplies
both (``planners.goodput``). The errors of the step time and of the whole run widen both.
A new machine in place of another starts the program and brings in the data again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import COMPLETIONS, CompletionWay, Estimate, Part, fitted
from advisor.catalogue import Catalogue, Offers, TableRow, TypeColumns
from advisor.estimate.case import StepCase
from advisor.estimate.knowledge.layout_model import trained_share
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import RUN_LOG_SD, Job, write_bytes_per_s
from advisor.machines import surplus_usd_per_h
from advisor.planners.core import GIB, HOUR_S, select
from advisor.planners.goodput import CampaignLaw, expected_completion
from advisor.planners.spot import BANDS, hazard_of_band, spot_completion
from advisor.planners.step import half_peaks, model_flop_per_token
from advisor.providers import SHORTEST_BILL_H, charged_h
from advisor.quantities import QUANTILES
from advisor.records import packaged_spot_history

SCHEMA_VERSION: Final = 2


@cache
def campaign_law(file: Path | None = None) -> CampaignLaw:
    """Read the law of what a whole run adds to its steps, fitted on every published run.

    ``file``: replaces the packaged one, which ``advisor train campaigns`` wrote; the laws fitted
    without each family in turn (``folds``) are the laboratory's.
    """
    file = file or data.root("trained_models") / "campaign" / "parameters.json"
    return fitted(CampaignLaw, file, part="law", train="campaigns", version=SCHEMA_VERSION)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Ways with other machines, or another price of theirs, from one time to the next.
BLENDED: Final = ("spot-with-fallback", "elastic-spot", "spot-by-deadline")
# Ways whose billed hours are counted in the price of on-demand machines.
PAID_ON_DEMAND: Final = ("spot-with-fallback", "spot-by-deadline")
# Between 10th and 90th percentile, in standard deviations.
_SHOWN_SDS: Final = QUANTILES[0.8]


def time_parts(
    job: Job, columns: TimeColumns, *, whole_run_s: Floats | float = 0.0,
    checkpoints_s: Floats | float = 0.0, interruptions_s: Floats | float = 0.0,
) -> dict[str, Floats]:  # fmt: skip
    """Return what the expected time of a whole job goes to, by part; nan without a time [s].

    The one ledger of a job's time, which is the parts' sum; answers name them so
    (``Answer.breakdown``). ``start_up``: booting, and the program's own way to its first step;
    ``data_in``: bringing in data and weights; ``steps``: training steps; ``epoch_ends``:
    validation at the ends of epochs; ``whole_run``: what whole runs take besides: evaluation,
    stalls, stops by hand; ``checkpoints``: standing still for saves; ``interruptions``: failures,
    removals, work done again, waits for machines.
    """
    zero = np.where(columns.status == 0, 0.0, np.nan)
    return {
        "start_up": columns.startup_s,
        "data_in": columns.data_in_s,
        "steps": columns.step_s * job.total_steps,
        "epoch_ends": columns.step_s * job.epochs * job.epoch_end_steps,
        "whole_run": whole_run_s + zero,
        "checkpoints": checkpoints_s + zero,
        "interruptions": interruptions_s + zero,
    }


def lasting(parts_s: dict[str, Floats], total_s: Floats, saves_s: Floats) -> dict[str, Floats]:
    """Return the parts of a time that was replayed: what is in no other are interruptions [s]."""
    rest = total_s - sum(parts_s.values())
    saves_s = np.clip(saves_s, 0.0, np.maximum(rest, 0.0))
    return parts_s | {"checkpoints": saves_s, "interruptions": rest - saves_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """What is paid for the machines of one answer, all together; nan where there is no price."""

    # price_usd_per_h, storage_usd_per_h, surplus_usd_per_h: the machines, their volumes, and
    # processor time beyond their baselines [USD/h]
    price_usd_per_h: float
    storage_usd_per_h: float = 0.0
    surplus_usd_per_h: float = 0.0
    egress_usd: float = 0.0  # for the results, once [USD]
    # what is charged at least, and what a bill is a whole multiple of (0: by the second) [h]
    billing: tuple[float, float] = (SHORTEST_BILL_H, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Low, expected and high, shape (n, 3), one row a candidate."""

    # from the machines' start to the end of the job; on spot machines from the request [h]
    finish_h: Floats
    # while the machines are paid, as if all of them; of ways that change to on-demand machines
    # (``PAID_ON_DEMAND``) at their price [h]
    billed_h: Floats
    overhead_fraction: Floats  # (n,); what checkpoints, failures and removals add to the work
    # (n,); useful work between two checkpoints that the figures assume [s]
    checkpoint_interval_s: Floats
    # (n,); checkpoints and failures add less than ``planners.goodput.NEGLIGIBLE_FRACTION``
    is_negligible: NDArray[np.bool_]
    way: Integers  # (n,); how the job is completed, an index into ``COMPLETIONS``
    # spot_h, on_demand_h: (n,); expected rented time of each kind, as if of all machines [h]
    spot_h: Floats
    on_demand_h: Floats
    rented_h: Floats  # (n,); expected time with at least one machine [h]
    # (n,); probability that a plan by a deadline misses it; nan where the finish alone says that
    late_fraction: Floats
    parts_s: dict[str, Floats]  # of ``time_parts``; their sum is ``finish_h[:, 1]`` [s]

    @property
    def before_s(self) -> Floats:
        """What is over before the first step [s]."""
        return self.parts_s["start_up"] + self.parts_s["data_in"]

    @property
    def from_first_step_s(self) -> Floats:
        """What the expected time is from the first step on [s]."""
        return self.finish_h[:, 1] * HOUR_S - self.before_s

    def way_of(self, row: int) -> CompletionWay:
        """Return how the job of one row is completed."""
        return COMPLETIONS[int(self.way[row])]

    def time_h(self, row: int, coverage: float) -> Estimate:
        """Return when the job of one row is done [h]."""
        return _around(self.finish_h[row], coverage)

    def cost_usd(self, row: int, rent: Rent, coverage: float) -> Estimate:
        """Return what the job of one row costs [USD]."""
        storage, once = np.nan_to_num([rent.storage_usd_per_h, rent.egress_usd]).tolist()
        hourly = rent.price_usd_per_h + (storage + rent.surplus_usd_per_h)
        hours = charged_h(self.billed_h[row], *rent.billing)
        return _around(hours * hourly + once, coverage)

    def breakdown(self, row: int, rent: Rent) -> dict[str, Part]:
        """Return the parts of one row's expected time and cost.

        What has no price has the cost None; what is not waited for costs no time, what is not
        billed no money. Where the machines or their price change on the way, every hour costs the
        mean.
        """
        hours = {name: float(part[row]) / HOUR_S for name, part in self.parts_s.items()}
        billed, whole = float(self.billed_h[row, 1]), sum(hours.values())
        if self.way_of(row) in BLENDED:
            paid = {name: billed * part / whole for name, part in hours.items()}
        else:
            paid = dict(hours, interruptions=billed - whole + hours["interruptions"])
        charged = float(charged_h(np.array(billed), *rent.billing))
        parts = {name: _part(hours[name], paid[name] * rent.price_usd_per_h) for name in hours}
        return parts | {
            "shortest_bill": _part(0.0, (charged - billed) * rent.price_usd_per_h),
            "cpu_surplus": _part(0.0, charged * rent.surplus_usd_per_h),
            "storage": _part(0.0, charged * rent.storage_usd_per_h),
            "results_out": _part(0.0, rent.egress_usd),
        }


def _around(bounds: Floats, coverage: float) -> Estimate:
    low, value, high = bounds.tolist()
    return Estimate(value=value, low=min(low, value), high=max(high, value), coverage=coverage)


def _part(time_h: float, usd: float) -> Part:
    return Part(time_h=time_h, cost_usd=None if np.isnan(usd) else usd)


def on_demand(
    job: Job, columns: TimeColumns, coverage: float, *, law: CampaignLaw | None = None
) -> Completion:
    """Return what the job takes on machines that stay until it ends, one row a (type, count).

    ``law`` is of what a whole run adds; the packaged one by default.
    """
    with np.errstate(invalid="ignore"):
        work_s = np.where(columns.status == 0, columns.step_s * job.paid_steps, 1.0)
    save_s = save_of_rows_s(job, columns)
    expected = expected_completion(
        work_s,
        devices=columns.workers,
        nodes=columns.count,
        checkpoint_s=save_s,
        restart_s=restart_s(columns),
    )
    factor, log_sd = whole_run(job, columns, law)
    saves_s = expected.checkpoints * save_s
    parts_s = time_parts(
        job, columns, whole_run_s=expected.expected_s * (factor - 1.0), checkpoints_s=saves_s,
        interruptions_s=np.maximum(expected.expected_s - work_s - saves_s, 0.0),
    )  # fmt: skip
    return _undisturbed(
        job, parts_s, log_sd, coverage,
        overhead_fraction=expected.overhead_fraction,
        checkpoint_interval_s=expected.checkpoint_interval_s,
        is_negligible=expected.is_negligible,
    )  # fmt: skip


def on_recorded_machine(job: Job, columns: TimeColumns, coverage: float) -> Completion:
    """Return what the job takes on the machine that it was recorded on.

    Its start, its steps and the ends of its epochs as they were measured there: a checkpoint that
    the script writes is among them, and nothing is rented that could be taken away. However well
    its step is known, another run takes another time (``RUN_LOG_SD``).
    """
    log_sd = np.hypot(np.maximum(columns.log_sd, RUN_LOG_SD), job.paid_steps_log_sd)
    none = np.zeros(len(columns.count))
    return _undisturbed(
        job, time_parts(job, columns), log_sd, coverage,
        overhead_fraction=none, checkpoint_interval_s=none + np.inf, is_negligible=none == 0,
    )  # fmt: skip


def _undisturbed(
    job: Job, parts_s: dict[str, Floats], log_sd: Floats, coverage: float, **saves: Any
) -> Completion:
    """Return the completion of parts on machines that stay.

    ``log_sd``: of what runs on them; ``**saves``: the columns about checkpoints and failures.
    The errors of work and start-up are independent: on either side they add in quadrature.
    """
    reach = QUANTILES[coverage]
    spread = np.exp(reach * np.nan_to_num(log_sd))
    start_s, start_spread = parts_s["start_up"], np.exp(reach * job.startup_log_sd)
    value = np.asarray(sum(parts_s.values()))
    work_s = value - (start_s + parts_s["data_in"])
    below = np.hypot(work_s * (1 - 1 / spread), start_s * (1 - 1 / start_spread))
    above = np.hypot(work_s * (spread - 1), start_s * (start_spread - 1))
    finish_h = np.stack([value - below, value, value + above], axis=1) / HOUR_S
    return Completion(
        finish_h=finish_h, billed_h=finish_h, parts_s=parts_s,
        **saves, **steady_kind("on-demand", finish_h[:, 1]),
    )  # fmt: skip


# Halvings of the bracket in which a number of steps is looked for: to one part in 10^12.
_HALVINGS: Final = 45


def of_length(job: Job, steps: float) -> Job:
    """Return the job with as many steps, its epochs in proportion."""
    return replace(job, total_steps=steps, epochs=job.epochs * steps / job.total_steps)


def steps_within(job: Job, columns: TimeColumns, hours: float, coverage: float) -> Estimate:
    """Return how many steps the only row's machines finish in ``hours``: the inverse of a finish.

    The fewest are those of its longest finish; 0 where the machines are not ready by then.
    """

    def finish_h(steps: float, bound: int) -> float:
        return float(on_demand(of_length(job, steps), columns, coverage).finish_h[0, bound])

    def most(bound: int) -> float:
        few, many = 0.0, 2.0 * hours * HOUR_S / float(columns.step_s[0])
        while finish_h(many, bound) < hours:  # a low finish may be shorter than the steps alone
            few, many = many, 2.0 * many
        for _ in range(_HALVINGS):
            middle = 0.5 * (few + many)
            few, many = (middle, many) if finish_h(middle, bound) <= hours else (few, middle)
        return few if few > 1e-9 * many else 0.0

    return _around(np.array([most(2), most(1), most(0)]), coverage)


def on_spot(
    job: Job, columns: TimeColumns, rows: Integers, bands: Floats, coverage: float,
    *, law: CampaignLaw | None = None,
) -> Completion:  # fmt: skip
    """Return what the job takes on spot machines, one row a row of ``columns`` that is named.

    ``rows``: (n,); rows of ``columns``, all with a time; ``bands``: (n,); AWS's interruption band,
    0 to 4; nan (unknown) is taken as the worst; ``coverage``: of the interval: percentiles of the
    replays, widened by the error of the step time; ``law``: of what a whole run adds; the packaged
    one by default.
    """
    factors, log_sds = whole_run(job, columns, law)
    factor, save_s = factors[rows], save_of_rows_s(job, columns)[rows]
    work_s = columns.step_s[rows] * job.paid_steps
    spot = spot_completion(
        work_s,
        history=packaged_spot_history(),
        nodes=columns.count[rows],
        checkpoint_s=save_s,
        restart_s=restart_s(columns)[rows],
        hazard=hazards(bands),
    )
    error = log_sds[rows]
    # The replays are tabulated at rounded restart times; no job is done before its work is.
    least_s = work_s + restart_s(columns)[rows]
    finish_s = np.maximum(spot.finish_s, least_s[:, None]) * factor[:, None]
    billed_s = np.maximum(spot.billed_s, least_s[:, None]) * factor[:, None]
    paid_s = np.maximum(spot.billed_mean_s, least_s) * factor
    interval_s = np.broadcast_to(spot.checkpoint_interval_s, rows.shape)
    return replayed(
        job, columns, rows, finish_s, billed_s, paid_s, interval_s, factor, error, coverage,
        **steady_kind("spot", paid_s / HOUR_S),
    )  # fmt: skip


def replayed(
    job: Job, columns: TimeColumns, rows: Integers, finish_s: Floats, billed_s: Floats,
    paid_s: Floats, interval_s: Floats, factor: Floats, error: Floats, coverage: float,
    **kind: Any,
) -> Completion:  # fmt: skip
    """Return what replays say of some rows, joined with the error of the step.

    ``finish_s``, ``billed_s``: (n, 3); 10th, 50th and 90th percentile over the replays, whole run
    included [s]; ``paid_s``: (n,); mean of what is billed [s]; ``factor``, ``error``: (n,); of the
    whole run, and deviation of the logarithm of the finish; ``**kind``: the columns of
    ``Completion`` that differ by way, as ``steady_kind`` gives them.
    """
    work_s = columns.step_s[rows] * job.paid_steps
    finish_h = widened(finish_s, finish_s[:, 1], error, coverage) / HOUR_S
    saves_s = work_s / interval_s * save_of_rows_s(job, columns)[rows]
    ends = np.isfinite(finish_s[:, 1])  # with a time that has an end
    whole_run_s = np.where(ends, finish_s[:, 1], 0.0) * (1.0 - 1.0 / factor)
    steady = time_parts(job, select(columns, rows), whole_run_s=whole_run_s)
    return Completion(
        finish_h=finish_h,
        billed_h=widened(billed_s, paid_s, error, coverage) / HOUR_S,
        overhead_fraction=finish_s[:, 1] / (work_s * factor) - 1.0,
        checkpoint_interval_s=interval_s,
        is_negligible=np.zeros(rows.shape, dtype=bool),
        parts_s=lasting(steady, finish_s[:, 1], saves_s),
        **kind,
    )


def steady_kind(way: CompletionWay, billed_h: Floats) -> dict[str, Any]:
    """Return the columns of ``Completion`` of a way that rents all machines, of one kind."""
    none = np.zeros(billed_h.shape)
    return {
        "way": np.full(billed_h.shape, COMPLETIONS.index(way)),
        "spot_h": billed_h if way == "spot" else none,
        "on_demand_h": none if way == "spot" else billed_h,
        "rented_h": billed_h,
        "late_fraction": np.full(billed_h.shape, np.nan),
    }


def whole_run(job: Job, columns: TimeColumns, law: CampaignLaw | None) -> tuple[Floats, Floats]:
    """Return the factor of what a whole run adds, and the deviation of the hours' logarithm.

    A step that was measured on the user's own run has its software's part in it already, and
    nothing usual is asked. The deviation holds those of the step and of the job's length, and of
    what stands beside its steps.
    """
    law, is_measured = law or campaign_law(), job.measured is not None
    steps_h = np.nan_to_num(columns.step_s) * job.paid_steps / HOUR_S
    device_h = steps_h * columns.workers
    usual = columns.log_usual
    usual = np.full(device_h.shape, np.nan) if is_measured or usual is None else usual
    log_sd = law.log_sd(
        device_h, is_measured=is_measured, step_log_sd=columns.log_sd, log_usual=usual
    )
    factor = np.exp(law.log_factor(device_h, log_usual=usual))
    return factor, np.hypot(log_sd, job.paid_steps_log_sd)


def _usual_flop_per_s(case: StepCase, type_index: Integers, workers: Integers) -> Floats:
    """Return what published pre-trainings keep up on so many GPUs; nan on all else [flop/s]."""
    devices, usual = case.fleet.devices, campaign_law().usual

    def rates() -> Floats:
        peak = half_peaks(devices)
        is_known = (devices.word("kind") == "gpu") & np.isfinite(peak) & bool(usual)
        share = np.exp(-devices.by_word("architecture", usual, usual.get("", 0.0)))
        return np.where(is_known, peak * share, np.nan)

    return np.asarray(workers * case.once(("usual rate",), rates)[case.fleet.device[type_index]])


def log_usual(step_s: Floats, *machines: tuple[StepCase, Integers, Integers]) -> Floats:
    """Return how much longer a described pre-training took at the usual rate, as logarithm.

    ``step_s``: shape (n,) [s]; ``machines``: that work together; the job over their fleet, their
    types there, shape (n,), and devices.
    """
    case = machines[0][0]
    work = case.work
    if work.transformer is None or case.job.measured or trained_share(work) < 1:
        return np.full(step_s.shape, np.nan)
    tokens = case.job.global_batch * work.transformer.sequence
    flop = model_flop_per_token(work.transformer, work.setup) * tokens
    flop_per_s = np.sum([_usual_flop_per_s(*some) for some in machines], axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.log(flop / (flop_per_s * step_s)))


def checkpoint_s(job: Job) -> float:
    """Return the standstill of one save by one machine [s].

    Where one was seen it is no shorter than there: packing the state takes its time too.
    """
    alone_s = job.state_bytes / write_bytes_per_s(job.transfers, job.state_bytes)
    return max(alone_s, job.checkpoint_s or 0.0)


def save_of_rows_s(job: Job, columns: TimeColumns) -> Floats:
    """Return the standstill of one save, shape (n,): every machine writes the shards it holds [s].

    A state that tensor and pipeline parallelism or ZeRO divide is written by all the machines it
    is divided over, each to its own volume (PyTorch's and Megatron's distributed checkpoints).
    """
    parts = columns.layouts
    ranks = np.where(columns.zero_stage > 0, columns.dp * parts.cp, 1)
    shards = np.asarray(parts.tp, float) * parts.pp * ranks
    writers = np.clip(np.ceil(columns.count * shards / columns.workers), 1, columns.count)
    sizes, place = np.unique(job.state_bytes / writers, return_inverse=True)
    alone_s = [size / write_bytes_per_s(job.transfers, size) for size in sizes.tolist()]
    return np.asarray(np.maximum(np.asarray(alone_s)[place.ravel()], job.checkpoint_s or 0.0))


def restart_s(columns: TimeColumns) -> Floats:
    """Start again on a new machine, data included: a second at least, to notice it."""
    return np.maximum(np.nan_to_num(columns.startup_s), 1.0) + columns.data_in_s


def hazards(bands: Floats) -> Floats:
    """Return the hazard of each row's interruption band, the open band's where it is unknown."""
    by_band: Sequence[float] = [hazard_of_band(name) for name in BANDS]
    index = np.nan_to_num(bands, nan=len(by_band) - 1).astype(np.int64)
    return np.asarray(by_band)[index]


def widened(quantiles: Floats, value: Floats, log_sd: Floats, coverage: float) -> Floats:
    """Join the spread of the replays (10th, 50th, 90th percentile) with the step's own error.

    Both are taken as log-normal on each side of the median, so their variances add.
    """
    low, middle, high = np.log(np.minimum(quantiles, 1e12)).T
    factor = QUANTILES[coverage]
    below = factor * np.hypot((middle - low) / _SHOWN_SDS, log_sd)
    above = factor * np.hypot((high - middle) / _SHOWN_SDS, log_sd)
    return np.stack([np.exp(middle - below), value, np.exp(middle + above)], axis=1)


CHECKPOINTS_KEPT: Final = 2
# Providers' month of storage prices: 365 x 24 / 12 hours.
_MONTH_H: Final = 730.0
# The plain volume of each provider (whose rate is above), and the first tier of its traffic.
_VOLUMES: Final = ("block storage gp3", "block storage balanced")
_FIRST_TIERS: Final = ("up to 10 TiB/month", "0-1 TiB/month")
# Provider's row of each type; then prices by provider and region: of storage [USD/GiB/h], and of
# traffic that leaves [USD/GiB].
SidePrices = tuple[Integers, Floats, Floats]
# AWS's and Azure's traffic is listed once, for their American regions: taken for all of theirs.
_EVERYWHERE: Final = ("", "us")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCosts:
    """What each offer adds to the machines' price; nan where the catalogue has no price.

    Storage is a volume on every machine for the data and two checkpoints (the new one is written
    before the old one goes), while the machines are billed. Results leave over the internet, once,
    at the first tier's price. Bringing data in costs nothing at the providers themselves. Prices
    are those of ``advisor catalogue storage``; where it has none, nothing is added and the
    breakdown says null.
    """

    # storage_usd_per_h, surplus_usd_per_h: (n,); of one machine: its volume, and processor time
    # beyond its baseline (``machines.fleet``) [USD/h]
    storage_usd_per_h: Floats
    surplus_usd_per_h: Floats
    egress_usd: Floats  # (n,); once [USD]
    # shortest_bill_h, bill_step_h: (n,); what is charged at least, and what a bill is a whole
    # multiple of (0: by the second) [h]
    shortest_bill_h: Floats
    bill_step_h: Floats

    @classmethod
    def of(cls, job: Job, types: TypeColumns, offers: Offers, prices: SidePrices) -> SideCosts:
        """Return what ``job`` adds to each offer; ``prices``: of ``side_prices``."""
        kind, (provider, storage, egress) = offers.type_index, prices
        place = provider[kind], offers.region_index
        kept_gib = ((job.transfers.data_bytes or 0.0) + CHECKPOINTS_KEPT * job.state_bytes) / GIB
        return cls(
            storage_usd_per_h=_priced(kept_gib, storage[place]),
            surplus_usd_per_h=surplus_usd_per_h(
                job, types.vcpus[kind], types.cpu_baseline[kind], types.cpu_surplus_usd_per_h[kind]
            ),
            egress_usd=_priced(job.result_bytes / GIB, egress[place]),
            shortest_bill_h=offers.shortest_bill_h,
            bill_step_h=offers.bill_step_h,
        )

    def rent(self, price_usd_per_h: float, *parts: tuple[int, int]) -> Rent:
        """Return what machines cost that are rented together; ``parts``: (offer, machines).

        Storage as it is priced, of the machines for which the catalogue has a price. Results leave
        from one place only.
        """
        offer, count = np.array(parts).T
        storage, egress = self.storage_usd_per_h[offer] * count, self.egress_usd[offer]
        return Rent(
            price_usd_per_h=price_usd_per_h,
            storage_usd_per_h=np.nan if np.isnan(storage).all() else float(np.nansum(storage)),
            surplus_usd_per_h=float(self.surplus_usd_per_h[offer] @ count),
            egress_usd=float(np.fmax.reduce(egress)),
            billing=(
                float(self.shortest_bill_h[offer].max()), float(self.bill_step_h[offer].max())
            ),
        )  # fmt: skip

    @property
    def usd_per_h(self) -> Floats:
        """What is paid by the hour besides a machine, (n,); no price costs nothing [USD/h]."""
        return np.asarray(np.nan_to_num(self.storage_usd_per_h) + self.surplus_usd_per_h)

    def charged_h(self, offer: Integers, hours: Floats) -> Floats:
        """Return the hours that are charged for machines of some offers rented so long [h]."""
        return charged_h(hours, self.shortest_bill_h[offer], self.bill_step_h[offer])


def side_prices(catalogue: Catalogue) -> SidePrices:
    """Return the catalogue's prices of storage and traffic; nan where there is none."""
    providers, provider = np.unique(np.asarray(catalogue.types.provider), return_inverse=True)
    rows = {str(name): i for i, name in enumerate(providers)}
    columns = {str(name): i for i, name in enumerate(catalogue.prices.regions)}
    storage = np.full((len(rows), len(columns)), np.nan)
    egress = storage.copy()
    for price in catalogue.other_prices:
        if price.provider not in rows:
            continue
        if price.item in _VOLUMES:
            _put(storage[rows[price.provider]], columns, price, price.price_usd / _MONTH_H)
        elif price.item.startswith("internet egress") and price.tier in _FIRST_TIERS:
            _put(egress[rows[price.provider]], columns, price, price.price_usd)
    # A region that lists no storage is no bargain: it costs as much as in the provider's dearest.
    dearest = np.fmax.reduce(storage, axis=1, keepdims=True, initial=0.0)
    storage = np.where(np.isnan(storage) & (dearest > 0), dearest, storage)
    return provider, storage, egress


def _put(row: Floats, columns: Mapping[str, int], price: TableRow, usd: float) -> None:
    """Set a price in its region; one that has none of its own fills what is still unknown."""
    if price.region in _EVERYWHERE:
        row[np.isnan(row)] = usd
    elif price.region in columns:
        row[columns[price.region]] = usd


def _priced(gib: float, usd_per_gib: Floats) -> Floats:
    """Return the cost; nothing costs nothing even where its price is unknown."""
    return np.zeros(usd_per_gib.shape) if gib <= 0 else np.asarray(gib * usd_per_gib)
