"""The analytic estimate: the planners' laws over a catalogue, anchored on what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, OfferColumns
from advisor.jobs.job import Job
from advisor.machines.fleet import Fleet, fleet
from advisor.machines.limited import limited_fleet
from advisor.planners.core.nouns import Device, Work
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import is_known_by_runs, steps_s
from advisor.predict.data_costs import SideCosts, SidePrices, side_prices
from advisor.predict.known_job import measured_runs
from advisor.predict.own_runs import OwnRuns
from advisor.ways.anchors import Anchors, host_anchor, host_core_speed
from advisor.ways.as_recorded import as_recorded, is_answer
from advisor.ways.best import best_columns
from advisor.ways.case import StepCase
from advisor.ways.columns import TimeColumns
from advisor.ways.constants import Constants, constants
from advisor.ways.programs import program_columns
from advisor.ways.unit_space import check_space


class Physics:
    """Steps of jobs on machines, by physics alone."""

    def __init__(
        self, catalogue: Catalogue | None = None, *, constants: Constants | None = None
    ) -> None:
        self.catalogue = catalogue if catalogue is not None else Catalogue.load()
        self._constants = constants
        self._fleet: Fleet | None = None
        self._limited: dict[tuple[float | None, float | None], Fleet] = {}
        self._side_prices: SidePrices | None = None
        self.own_runs = OwnRuns(self)

    @property
    def constants(self) -> Constants:
        """The fitted constants in use."""
        return self._constants if self._constants is not None else constants()

    def calibration_factor(self, job: Job, device: Device | None) -> float | None:
        """Return by what measured steps change the model's step on ``device``; None without.

        Published steps change it on GPUs, where the law of the operators answers.
        """
        if job.work is None or device is None:
            return None
        is_measured = job.measured is not None or bool(job.actuals)
        is_published = device.kind == "gpu" and job.work.transformer is None
        if not (is_measured or is_published):
            return None
        anchors = self.anchors(job, job.work)
        bare = step_time(job.work, [device], [job.work.micro_batch], self.constants.device)
        factor, _ = anchors.calibration([device], bare.log_sd, self.constants)
        return float(np.exp(factor[0]))

    @property
    def fleet(self) -> Fleet:
        """The catalogue's types as columns, made once."""
        if self._fleet is None:
            self._fleet = fleet(self.catalogue)
        return self._fleet

    def fleet_of(self, job: Job) -> Fleet:
        """Return the catalogue's types as the job's limits leave them to it, made once."""
        key = job.compute_threads, job.limits.cores
        if key not in self._limited:
            self._limited[key] = limited_fleet(self.fleet, job)
        return self._limited[key]

    def device_of(self, type_index: int, job: Job | None = None) -> Device | None:
        """Return what a type of the catalogue computes on; None where that is not known.

        ``job`` leaves some of its threads unused where it is limited.
        """
        machines = self.fleet if job is None else self.fleet_of(job)
        place = int(machines.device[type_index])
        return machines.devices[place] if place >= 0 else None

    def side_costs(self, job: Job, offers: OfferColumns) -> SideCosts:
        """Return what storage and outgoing traffic of ``job`` add to each offer."""
        if self._side_prices is None:
            self._side_prices = side_prices(self.catalogue)
        return self._side_prices.costs(job, offers)

    def case(
        self,
        job: Job,
        *,
        fleet: Fleet | None = None,
        space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> StepCase:
        """Return what the ways of training need to know of a job with steps, and of machines.

        Raises UsageError if the space fixes what only a transformer of known dimensions has.
        """
        assert job.work is not None
        if space is not None:
            check_space(job, space)
        anchors = self.anchors(job, job.work)
        machines = self.fleet_of(job) if fleet is None else limited_fleet(fleet, job)
        if machines.is_recorded and anchors.host is not None:
            # The very device that the anchor is of: what was measured holds for it as it is.
            machines = replace(machines, devices=(anchors.host,))
        if is_known_by_runs(job.work):
            machines = replace(machines, devices=tuple(map(unmeasured, machines.devices)))
        own = self.own_runs.layouts(job)
        constants = self.constants.with_spread(job.spread)
        if own is not None:
            layout = replace(constants.layout, parameters=own.parameters)
            constants = replace(constants, layout=layout)
        case = StepCase(
            job=job,
            work=job.work,
            fleet=machines,
            anchors=anchors,
            constants=constants,
            accelerators=self.catalogue.accelerators,
            known_network=known_network,
            own=own,
            clusters=self.own_runs.clusters(job, job.work),
        )
        return case if space is None else replace(case, space=space)

    def physics_columns(
        self,
        job: Job,
        type_index: NDArray[np.int64],
        count: NDArray[np.int64],
        *,
        fleet: Fleet | None = None,
        space: SearchSpace | None = None,
        known_network: bool = False,
    ) -> TimeColumns:
        """Estimate the same by physics alone."""
        if job.work is None:
            columns = self.program(job, type_index, count, fleet=fleet)
        else:
            case = self.case(job, fleet=fleet, space=space, known_network=known_network)
            columns = best_columns(case, type_index, count)
        if fleet is not None and fleet.is_recorded and is_answer(job, space):
            return as_recorded(job, columns)
        return columns

    def program(
        self,
        job: Job,
        type_index: NDArray[np.int64],
        count: NDArray[np.int64],
        *,
        fleet: Fleet | None = None,
    ) -> TimeColumns:
        """Estimate a program without training steps."""
        if job.program is None:
            raise ValueError(f"job {job.name} has neither work nor program")
        return program_columns(
            job,
            job.program,
            self.fleet_of(job) if fleet is None else limited_fleet(fleet, job),
            host_core_speed(job),
            type_index=type_index,
            count=count,
        )

    def anchors(self, job: Job, work: Work) -> Anchors:
        """Return the host's measured step and those of real runs; unusable ones are left out."""
        anchors = host_anchor(job, work, self.constants)
        if is_known_by_runs(work):
            return self._anchored_on_runs(anchors, job, work)
        for actual in job.actuals:
            there = self.own_runs.beside(job, work, actual)
            if there is not None:
                anchors = anchors.with_actual(*there)
        return anchors

    def _anchored_on_runs(self, anchors: Anchors, job: Job, work: Work) -> Anchors:
        """Return the anchors with the runs that the work was fitted to, each on one device."""
        runs = measured_runs(job.actuals, self.catalogue, lambda: self.fleet)
        steps = steps_s(work, runs, self.constants.device)
        bare = step_time(work, [run.device for run in runs], [1.0], self.constants.device)
        for run, predicted_s, log_sd in zip(runs, steps, bare.log_sd, strict=True):
            anchors = anchors.with_actual(
                run.device, float(predicted_s), run.step_s, float(log_sd), run.workers
            )
        return replace(anchors, others=self.own_runs.others(job, work, tuple(runs)))
