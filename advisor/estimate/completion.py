"""From a step to a finish and a bill: start-up, data, checkpoints, failures, removals of machines.

On demand the expected time with failures (``planners.goodput``); on spot machines the
quantiles of
replayed availability records (``planners.spot.replay``). What a whole run adds besides multiplies
both (``planners.goodput``). The errors of the step time and of the whole run widen both.
A new machine in place of another starts the program and brings in the data again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import COMPLETIONS, CompletionWay, Estimate, Part
from advisor.catalogue import Catalogue, OfferColumns, OtherPrice, TypeColumns
from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import RUN_LOG_SD, Job, write_bytes_per_s
from advisor.machines import surplus_usd_per_h
from advisor.planners.core import GIB, HOUR_S
from advisor.planners.goodput import CampaignLaw, expected_completion
from advisor.planners.spot import BANDS, hazard_of_band, spot_completion
from advisor.providers import SHORTEST_BILL_H, charged_h
from advisor.quantities import QUANTILES
from advisor.records import packaged_spot_history

# The fitted law of what a whole run adds to its steps.
#
# ``trained_models/campaign/parameters.json`` holds the law fitted on every published run (``law``)
# and the laws fitted without each family in turn (``folds``), as ``advisor train campaigns`` wrote
# them.


SCHEMA_VERSION: Final = 2
_HINT: Final = "run `advisor train campaigns`, or install the package again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignModel:
    """The law, and how it came about."""

    version: str
    law: CampaignLaw  # fitted on all runs
    folds: Mapping[str, CampaignLaw]  # fitted without the named family


def path() -> Path:
    """Return where the packaged constants lie."""
    return data.root("trained_models") / "campaign" / "parameters.json"


@cache
def load(file: Path | None = None) -> CampaignModel:
    """Read the packaged constants, or others of the same form.

    Raises ModelError if the file is missing, not JSON, of another schema or lacks a constant.
    """
    file = file or path()
    try:
        record = bounded.read_json(file)
        found = record["schema_version"]
        bounded.check_numbers({"law": record["law"], "folds": record["folds"]})
        model = CampaignModel(
            version=record["version"],
            law=CampaignLaw(**record["law"]),
            folds={name: CampaignLaw(**law) for name, law in record["folds"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read the constants of whole runs {file}: {error}", hint=_HINT
        ) from error
    if found != SCHEMA_VERSION:
        raise ModelError(f"{file} has schema version {found}, not {SCHEMA_VERSION}", hint=_HINT)
    return model


def record(model: CampaignModel) -> dict[str, Any]:
    """Return the JSON form that ``load`` reads."""

    def rounded(law: CampaignLaw) -> dict[str, float]:
        return {name: float(f"{value:.5g}") for name, value in asdict(law).items()}

    return {
        "schema_version": SCHEMA_VERSION,
        "version": model.version,
        "law": rounded(model.law),
        "folds": {name: rounded(law) for name, law in sorted(model.folds.items())},
    }


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_BY_THE_SECOND: Final = (SHORTEST_BILL_H, 0.0)
# Ways with other machines, or another price of theirs, from one time to the next.
BLENDED: Final = ("spot-with-fallback", "elastic-spot", "spot-by-deadline")
# Ways whose billed hours are counted in the price of on-demand machines.
PAID_ON_DEMAND: Final = ("spot-with-fallback", "spot-by-deadline")
# Between 10th and 90th percentile, in standard deviations.
_SHOWN_SDS: Final = QUANTILES[0.8]


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
    # (n,); by which a whole run of this size takes longer than its steps, checkpoints, failures
    # and removals: evaluation, stalls, stops by hand
    whole_run_factor: Floats
    way: Integers  # (n,); how the job is completed, an index into ``COMPLETIONS``
    # spot_h, on_demand_h: (n,); expected rented time of each kind, as if of all machines [h]
    spot_h: Floats
    on_demand_h: Floats
    rented_h: Floats  # (n,); expected time with at least one machine [h]
    # (n,); probability that a plan by a deadline misses it; nan where the finish alone says that
    late_fraction: Floats
    # (n,); the expected time by what it goes to; they sum to ``finish_h[:, 1]`` [h]
    parts_h: Mapping[str, Floats]

    def way_of(self, row: int) -> CompletionWay:
        """Return how the job of one row is completed."""
        return COMPLETIONS[int(self.way[row])]

    def taken(self, rows: Integers) -> Completion:
        """Return some rows."""
        columns = {
            f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "parts_h"
        }
        return Completion(
            **columns, parts_h={name: part[rows] for name, part in self.parts_h.items()}
        )

    def with_rows(self, rows: Integers, others: Completion) -> Completion:
        """Return the completions with those of ``rows`` replaced, in their order."""

        def put(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            out = np.array(old)
            out[rows] = new
            return out

        columns = {
            f.name: put(getattr(self, f.name), getattr(others, f.name))
            for f in fields(self)
            if f.name != "parts_h"
        }
        parts = {name: put(part, others.parts_h[name]) for name, part in self.parts_h.items()}
        return Completion(**columns, parts_h=parts)

    def estimates(
        self, row: int, price_usd_per_h: float, coverage: float, *, once_usd: float = 0.0,
        billing: tuple[float, float] = _BY_THE_SECOND,
    ) -> tuple[Estimate, Estimate]:  # fmt: skip
        """Return time [h] and cost [USD] of one row.

        ``price_usd_per_h`` is of all machines together with their storage; ``once_usd`` is paid
        whatever the time; ``billing`` is the shortest bill and the step of bills [h].
        """
        low, value, high = self.finish_h[row].tolist()
        time_h = Estimate(value=value, low=min(low, value), high=max(high, value),
                          coverage=coverage)  # fmt: skip
        billed_h = charged_h(self.billed_h[row], *billing)
        low, value, high = (billed_h * price_usd_per_h + once_usd).tolist()
        cost = Estimate(value=value, low=min(low, value), high=max(high, value),
                        coverage=coverage)  # fmt: skip
        return time_h, cost

    def breakdown(
        self, row: int, price_usd_per_h: float, storage_usd_per_h: float, egress_usd: float,
        billing: tuple[float, float] = _BY_THE_SECOND, *, surplus_usd_per_h: float = 0.0,
    ) -> dict[str, Part]:  # fmt: skip
        """Return the parts of one row's expected time and cost.

        Prices are of all machines together; nan where there is none, which makes the cost None.
        What is not waited for costs no time, what is not billed no money. Where the machines or
        their price change on the way, every hour costs the mean.
        """
        hours = {name: float(part[row]) for name, part in self.parts_h.items()}
        billed = float(self.billed_h[row, 1])
        if self.way_of(row) in BLENDED:
            whole = sum(hours.values())
            paid = {name: billed * part / whole for name, part in hours.items()}
        else:
            paid = dict(hours, interruptions=billed - sum(hours.values()) + hours["interruptions"])
        parts = {
            name: Part(time_h=hours[name], cost_usd=paid[name] * price_usd_per_h) for name in hours
        }
        shortest = float(charged_h(np.array(billed), *billing)) - billed
        parts["shortest_bill"] = Part(time_h=0.0, cost_usd=shortest * price_usd_per_h)
        surplus = (billed + shortest) * surplus_usd_per_h
        parts["cpu_surplus"] = Part(time_h=0.0, cost_usd=surplus)
        storage = (billed + shortest) * storage_usd_per_h
        parts["storage"] = Part(time_h=0.0, cost_usd=None if np.isnan(storage) else storage)
        parts["results_out"] = Part(
            time_h=0.0, cost_usd=None if np.isnan(egress_usd) else egress_usd
        )
        return parts


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
    value = np.where(columns.status == 0, expected.expected_s * factor, np.nan)
    finish = _finish_h(job, columns, value, np.hypot(columns.log_sd, log_sd), coverage)
    saves_s = expected.checkpoints * save_s
    return Completion(
        finish_h=finish,
        billed_h=finish,
        overhead_fraction=expected.overhead_fraction,
        checkpoint_interval_s=expected.checkpoint_interval_s,
        is_negligible=expected.is_negligible,
        whole_run_factor=factor,
        **steady_kind("on-demand", finish[:, 1]),
        parts_h=parts_h(job, columns, finish[:, 1], saves_s, value * (1.0 - 1.0 / factor)),
    )


def _finish_h(
    job: Job, columns: TimeColumns, work_s: Floats, log_sd: Floats, coverage: float
) -> Floats:
    """Return low, expected and high finish, shape (n, 3) [h]: work, after start-up and data.

    The errors of work and start-up are independent: on either side they add in quadrature.
    """
    reach = QUANTILES[coverage]
    spread = np.exp(reach * np.nan_to_num(log_sd))
    start_s, start_spread = columns.startup_s, np.exp(reach * job.startup_log_sd)
    value = work_s + start_s + columns.data_in_s
    below = np.hypot(work_s * (1 - 1 / spread), start_s * (1 - 1 / start_spread))
    above = np.hypot(work_s * (spread - 1), start_s * (start_spread - 1))
    return np.stack([value - below, value, value + above], axis=1) / HOUR_S


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

    low, value, high = most(2), most(1), most(0)
    return Estimate(value=value, low=min(low, value), high=max(high, value), coverage=coverage)


def as_recorded_h(job: Job, columns: TimeColumns, coverage: float) -> Estimate:
    """Return the whole job on the machine that it was recorded on [h].

    Its start, its steps and the ends of its epochs as they were measured there: a checkpoint that
    the script writes is among them, and nothing is rented that could be taken away. However well
    its step is known, another run takes another time (``RUN_LOG_SD``).
    """
    log_sd = np.hypot(np.maximum(columns.log_sd, RUN_LOG_SD), job.paid_steps_log_sd)
    low, value, high = _finish_h(job, columns, columns.step_s * job.paid_steps, log_sd, coverage)[
        0
    ]
    return Estimate(value=float(value), low=float(low), high=float(high), coverage=coverage)


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
    spot = spot_completion(
        columns.step_s[rows] * job.paid_steps,
        history=packaged_spot_history(),
        nodes=columns.count[rows],
        checkpoint_s=save_s,
        restart_s=restart_s(columns)[rows],
        hazard=hazards(bands),
    )
    error = np.hypot(columns.log_sd[rows], log_sds[rows])
    work_s = columns.step_s[rows] * job.paid_steps
    # The replays are tabulated at rounded restart times; no job is done before its work is.
    least_s = work_s + restart_s(columns)[rows]
    finish_s = np.maximum(spot.finish_s, least_s[:, None]) * factor[:, None]
    billed_s = np.maximum(spot.billed_s, least_s[:, None]) * factor[:, None]
    paid_s = np.maximum(spot.billed_mean_s, least_s) * factor
    interval_s = np.broadcast_to(spot.checkpoint_interval_s, rows.shape)
    hours = paid_s / HOUR_S
    return replayed(
        job, columns, rows, finish_s, billed_s, paid_s, interval_s, factor, error, coverage,
        **steady_kind("spot", hours),
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
    whole_run_s = finish_s[:, 1] * (1.0 - 1.0 / factor)
    return Completion(
        finish_h=finish_h,
        billed_h=widened(billed_s, paid_s, error, coverage) / HOUR_S,
        overhead_fraction=finish_s[:, 1] / (work_s * factor) - 1.0,
        checkpoint_interval_s=interval_s,
        is_negligible=np.zeros(rows.shape, dtype=bool),
        whole_run_factor=factor,
        parts_h=parts_h(job, columns, finish_h[:, 1], saves_s, whole_run_s, rows=rows),
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
    """Return the factor of what a whole run adds, and the deviation of its logarithm.

    A step that was measured on the user's own run has its software's part in it already. The
    deviation holds that of the job's length, and of what stands beside its steps.
    """
    law = law or load().law
    steps_h = np.nan_to_num(columns.step_s) * job.paid_steps / HOUR_S
    device_h = steps_h * columns.workers
    log_sd = law.log_sd(device_h, is_measured=job.measured is not None)
    return np.exp(law.log_factor(device_h)), np.hypot(log_sd, job.paid_steps_log_sd)


def parts_h(
    job: Job, columns: TimeColumns, finish_h: Floats, saves_s: Floats, whole_run_s: Floats,
    rows: Integers | None = None,
) -> dict[str, Floats]:  # fmt: skip
    """Divide the expected time: what is in no other part are interruptions."""
    at = slice(None) if rows is None else rows
    parts = {
        "start_up": columns.startup_s[at] / HOUR_S,
        "data_in": columns.data_in_s[at] / HOUR_S,
        "steps": columns.step_s[at] * job.total_steps / HOUR_S,
        "epoch_ends": columns.step_s[at] * job.epochs * job.epoch_end_steps / HOUR_S,
        "whole_run": np.where(np.isfinite(finish_h), whole_run_s, 0.0) / HOUR_S,
    }
    rest = finish_h - sum(parts.values())
    parts["checkpoints"] = np.clip(saves_s / HOUR_S, 0.0, np.maximum(rest, 0.0))
    return parts | {"interruptions": rest - parts["checkpoints"]}


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


# Data in, storage and results out: waits and costs beside the machines.
#
# ==================  =============================================================================
# here                meaning, unit
# ==================  =============================================================================
# data in             every machine copies the data onto its own volume before the first step, as
#                     fast as the slowest of its network, its volume and where it lies. [s]
# storage             a volume on every machine for the data and two checkpoints (the new one is
#                     written before the old one goes), while the machines are billed. [USD/h]
# results out         over the internet, once, at the first tier's price. [USD]
# ==================  =============================================================================
#
# Bringing data in costs nothing at the providers themselves. Prices are those of the catalogue
# (``advisor catalogue storage``); where it has none, nothing is added and the breakdown says null.


CHECKPOINTS_KEPT: Final = 2
# Providers' month of storage prices: 365 x 24 / 12 hours.
_MONTH_H: Final = 730.0
# The plain volume of each provider (whose rate is above), and the first tier of its traffic.
_VOLUMES: Final = ("block storage gp3", "block storage balanced")
_FIRST_TIERS: Final = ("up to 10 TiB/month", "0-1 TiB/month")
# AWS's and Azure's traffic is listed once, for their American regions: taken for all of theirs.
_EVERYWHERE: Final = ("", "us")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCosts:
    """What each offer adds to the machines' price; nan where the catalogue has no price."""

    # storage_usd_per_h, surplus_usd_per_h: (n,); of one machine: its volume, and processor time
    # beyond its baseline (``machines.fleet``) [USD/h]
    storage_usd_per_h: Floats
    surplus_usd_per_h: Floats
    egress_usd: Floats  # (n,); once [USD]
    # shortest_bill_h, bill_step_h: (n,); what is charged at least, and what a bill is a whole
    # multiple of (0: by the second) [h]
    shortest_bill_h: Floats
    bill_step_h: Floats

    @property
    def usd_per_h(self) -> Floats:
        """What is paid by the hour besides a machine, (n,); no price costs nothing [USD/h]."""
        return np.asarray(np.nan_to_num(self.storage_usd_per_h) + self.surplus_usd_per_h)

    def charged_h(self, offer: Integers, hours: Floats) -> Floats:
        """Return the hours that are charged for machines of some offers rented so long [h]."""
        return charged_h(hours, self.shortest_bill_h[offer], self.bill_step_h[offer])

    def billing(self, *offers: int) -> tuple[float, float]:
        """Return shortest bill and step of machines that are rented together [h]."""
        rows = list(offers)
        return float(self.shortest_bill_h[rows].max()), float(self.bill_step_h[rows].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePrices:
    """Prices by provider (rows) and region (columns); nan where there is none."""

    # storage_usd_per_gib_h, egress_usd_per_gib: (providers, regions)
    storage_usd_per_gib_h: Floats
    egress_usd_per_gib: Floats
    provider: Integers  # (n_types,); row of each type of the catalogue
    region: Integers  # (n_prices,); column of each price of the catalogue
    types: TypeColumns  # of the catalogue

    def costs(self, job: Job, offers: OfferColumns) -> SideCosts:
        """Return what ``job`` adds to each offer."""
        place = self.provider[offers.type_index], self.region[offers.price_index]
        kept_gib = ((job.transfers.data_bytes or 0.0) + CHECKPOINTS_KEPT * job.state_bytes) / GIB
        return SideCosts(
            storage_usd_per_h=_priced(kept_gib, self.storage_usd_per_gib_h[place]),
            surplus_usd_per_h=self._surplus_usd_per_h(job, offers.type_index),
            egress_usd=_priced(job.result_bytes / GIB, self.egress_usd_per_gib[place]),
            shortest_bill_h=offers.shortest_bill_h,
            bill_step_h=offers.bill_step_h,
        )

    def _surplus_usd_per_h(self, job: Job, kind: Integers) -> Floats:
        types = self.types
        facts = (types.vcpus, types.cpu_baseline, types.cpu_surplus_usd_per_h)
        return surplus_usd_per_h(job, *(column[kind] for column in facts))


def side_prices(catalogue: Catalogue) -> SidePrices:
    """Lay the catalogue's prices of storage and traffic out by provider and region."""
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
    return SidePrices(
        storage_usd_per_gib_h=storage,
        egress_usd_per_gib=egress,
        provider=np.asarray(provider, dtype=np.int64),
        region=np.asarray(catalogue.prices.region_index, dtype=np.int64),
        types=catalogue.types,
    )


def _put(row: Floats, columns: Mapping[str, int], price: OtherPrice, usd: float) -> None:
    """Set a price in its region; one that has none of its own fills what is still unknown."""
    if price.region in _EVERYWHERE:
        row[np.isnan(row)] = usd
    elif price.region in columns:
        row[columns[price.region]] = usd


def _priced(gib: float, usd_per_gib: Floats) -> Floats:
    """Return the cost; nothing costs nothing even where its price is unknown."""
    return np.zeros(usd_per_gib.shape) if gib <= 0 else np.asarray(gib * usd_per_gib)
