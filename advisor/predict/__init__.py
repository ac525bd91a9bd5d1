"""From a job and a catalogue to time, memory and interval of every candidate.

``Predictor`` is the one estimate function: the command line, the Python API, the reports and the
exports all show its numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, OfferColumns, OfferFilter, Pricing
from advisor.domain import Candidate
from advisor.errors import CatalogueError, UsageError
from advisor.job import Job
from advisor.planners.nouns import Work
from advisor.predict.anchors import Anchors, host_anchor, host_core_speed
from advisor.predict.candidates import candidate
from advisor.predict.columns import STATUSES, TimeColumns, time_columns
from advisor.predict.completion import Completion, on_demand, on_spot
from advisor.predict.constants import Constants, constants
from advisor.predict.data_costs import SideCosts, SidePrices, side_prices
from advisor.predict.fleet import Fleet, fleet
from advisor.predict.mixed import DeviceTimes, MixedCase
from advisor.predict.programs import program_columns

__all__ = ["STATUSES", "Predictor", "TimeColumns"]


class Predictor:
    """Estimates training jobs on cloud configurations, anchored on the host's measured step.

    Parameters
    ----------
    catalogue : Catalogue, optional
        The bundled (or the user's updated) one by default.
    constants : Constants, optional
        The shipped ones by default.
    """

    name: Final = "roofline"
    version: Final = "1"

    def __init__(
        self, catalogue: Catalogue | None = None, *, constants: Constants | None = None
    ) -> None:
        self.catalogue = catalogue if catalogue is not None else Catalogue.load()
        self._constants = constants
        self._fleet: Fleet | None = None
        self._side_prices: SidePrices | None = None

    @property
    def fleet(self) -> Fleet:
        """The catalogue's types as columns, made once."""
        if self._fleet is None:
            self._fleet = fleet(self.catalogue)
        return self._fleet

    def side_costs(self, job: Job, offers: OfferColumns) -> SideCosts:
        """Return what storage and outgoing traffic of ``job`` add to each offer."""
        if self._side_prices is None:
            self._side_prices = side_prices(self.catalogue)
        return self._side_prices.costs(job, offers)

    def step_columns(
        self,
        job: Job,
        type_index: NDArray[np.int64],
        count: NDArray[np.int64],
        *,
        fleet: Fleet | None = None,
    ) -> TimeColumns:
        """Estimate one step of ``job`` on ``count`` machines of the types at ``type_index``.

        Parameters
        ----------
        job : Job
        type_index, count : integer arrays of shape (n,)
            Rows of the fleet's types; machines used together.
        fleet : Fleet, optional
            Other machines than the catalogue's, e.g. the user's own.
        """
        machines = fleet if fleet is not None else self.fleet
        if job.work is None:
            if job.program is None:
                raise ValueError(f"job {job.name} has neither work nor program")
            return program_columns(
                job,
                job.program,
                machines,
                host_core_speed(job),
                type_index=type_index,
                count=count,
            )
        shipped = self._constants if self._constants is not None else constants()
        anchors = self.anchors(job, job.work, shipped)
        return time_columns(
            job, job.work, machines, anchors, shipped, type_index=type_index, count=count
        )

    def mixed_case(self, job: Job) -> MixedCase | None:
        """Return what estimates two types of machines together; None for a job without steps."""
        if job.work is None:
            return None
        shipped = self._constants if self._constants is not None else constants()
        anchors = self.anchors(job, job.work, shipped)
        return MixedCase(
            job=job,
            work=job.work,
            fleet=self.fleet,
            anchors=anchors,
            constants=shipped,
            times=DeviceTimes.of(job.work, self.fleet, anchors, shipped),
        )

    def anchors(self, job: Job, work: Work, shipped: Constants) -> Anchors:
        """Return the host's measured step and those of real runs; unusable ones are left out.

        Parameters
        ----------
        job : Job
        work : Work
            The job's.
        shipped : Constants
        """
        anchors = host_anchor(job, work, shipped)
        bare = Anchors(core_speed=anchors.core_speed)
        for actual in job.actuals:
            row = self.catalogue.instance_type(actual.instance_type, provider=actual.provider)
            there = time_columns(
                job, work, self.fleet, bare, shipped,
                type_index=np.array([row.index]), count=np.array([actual.count]),
            )  # fmt: skip
            if there.status[0] == 0:
                anchors = anchors.with_actual(
                    self.fleet.devices[self.fleet.device[row.index]],
                    float(there.step_s[0]),
                    actual.step_s,
                    float(there.log_sd[0]),
                )
        return anchors

    def predict(
        self,
        job: Job,
        instance_type: str,
        *,
        count: int = 1,
        provider: str | None = None,
        region: str | None = None,
        pricing: Pricing = "on-demand",
        coverage: float = 0.9,
    ) -> Candidate:
        """Estimate the whole job on ``count`` machines of one type, in its cheapest region.

        Raises
        ------
        CatalogueError
            If the type is unknown or has no such price.
        UsageError
            If the job cannot run there: memory, workers, unknown network.
        """
        row = self.catalogue.instance_type(instance_type, provider=provider)
        offers = self.catalogue.select(
            OfferFilter(
                providers=(row.provider,),
                types=(row.name,),
                regions=(region,) if region else (),
                pricing=(pricing,),
            )
        )
        places = np.flatnonzero(offers.type_index == row.index)
        if places.size == 0:
            raise CatalogueError(
                f"{instance_type} has no {pricing} price in {region or 'any region'}",
                hint=f"see `advisor catalogue show {instance_type}`",
            )
        columns = self.step_columns(job, np.array([row.index]), np.array([count]))
        cheapest = places[np.argmin(offers.price_usd_per_h[places])]
        if columns.status[0]:
            reason = STATUSES[int(columns.status[0])].replace("_", " ")
            raise UsageError(
                f"{job.name} cannot be estimated on {count} x {instance_type}: {reason}",
                hint="choose another type or count",
            )
        if pricing == "spot":
            band = offers.spot_interruption_band[[cheapest]]
            completion = on_spot(job, columns, np.array([0]), band, coverage)
        else:
            completion = on_demand(job, columns, coverage)
        return self.candidate(
            job,
            columns,
            completion,
            offers,
            self.side_costs(job, offers),
            offer_row=int(cheapest),
            column=0,
            completion_row=0,
            coverage=coverage,
        )

    def candidate(
        self,
        job: Job,
        columns: TimeColumns,
        completion: Completion,
        offers: OfferColumns,
        side: SideCosts,
        *,
        offer_row: int,
        column: int,
        completion_row: int,
        coverage: float,
        rank: int = 1,
    ) -> Candidate:
        """Make the object of one row of the columns, rented by one offer."""
        return candidate(
            job,
            self.catalogue,
            columns,
            completion,
            offers,
            offer_row=offer_row,
            column=column,
            completion_row=completion_row,
            side=side,
            host_core_speed=host_core_speed(job),
            coverage=coverage,
            rank=rank,
        )
