"""The analytic estimate: the planners' laws over a catalogue, anchored on what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, OfferColumns
from advisor.errors import AdvisorError
from advisor.jobs.actuals import Actual
from advisor.jobs.described import described_job
from advisor.jobs.job import Job
from advisor.jobs.layout_runs import LayoutRun
from advisor.machines.cluster_text import one_group
from advisor.machines.fleet import Fleet, fleet
from advisor.machines.limited import limited_fleet
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Device, Work
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.links.scaling_fit import ScalingFit
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import is_known_by_runs, steps_s
from advisor.predict.data_costs import SideCosts, SidePrices, side_prices
from advisor.predict.known_job import is_named, measured_runs, place_of
from advisor.ways.anchors import Anchors, host_anchor, host_core_speed
from advisor.ways.as_recorded import as_recorded, is_answer
from advisor.ways.best import best_columns
from advisor.ways.case import StepCase
from advisor.ways.columns import TimeColumns
from advisor.ways.constants import Constants, constants
from advisor.ways.measured_cluster import LEAST_RUNS, Key, PlacedRun, key_of, measured_clusters
from advisor.ways.model_parallel import on_machine
from advisor.ways.own_layouts import MeasuredLayout, OwnLayouts, own_layouts
from advisor.ways.places import places
from advisor.ways.programs import program_columns
from advisor.ways.unit_space import check_space


class Physics:
    """Steps of jobs on machines, by physics alone.

    Parameters
    ----------
    catalogue : Catalogue, optional
        The bundled (or the user's updated) one by default.
    constants : Constants, optional
        The shipped ones by default.
    """

    def __init__(
        self, catalogue: Catalogue | None = None, *, constants: Constants | None = None
    ) -> None:
        self.catalogue = catalogue if catalogue is not None else Catalogue.load()
        self._constants = constants
        self._fleet: Fleet | None = None
        self._limited: dict[tuple[float | None, float | None], Fleet] = {}
        self._side_prices: SidePrices | None = None
        self._clusters: dict[tuple[object, ...], dict[Key, ScalingFit]] = {}
        self._seen_there: dict[
            tuple[object, ...], tuple[Work, tuple[Device, float, float, float] | None]
        ] = {}
        self._own: dict[tuple[LayoutRun, ...], OwnLayouts | None] = {}

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

        Parameters
        ----------
        job : Job
            With work.
        fleet : Fleet, optional
            Other machines than the catalogue's.
        space : SearchSpace, optional
            What a layout may be.
        known_network : bool, default False
            Leave machines out whose network is not known.

        Raises
        ------
        UsageError
            If the space fixes what only a transformer of known dimensions has.
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
        own = self.own_layouts(job)
        constants = self.constants
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
            clusters=self._measured_clusters(job, job.work),
        )
        return case if space is None else replace(case, space=space)

    def own_layouts(self, job: Job) -> OwnLayouts | None:
        """Return what the user's measured layouts say, made once; None where there are none."""
        if not job.layout_runs:
            return None
        if job.layout_runs not in self._own:
            self._own[job.layout_runs] = self._calibrated(job.layout_runs)
        return self._own[job.layout_runs]

    def _calibrated(self, runs: tuple[LayoutRun, ...]) -> OwnLayouts | None:
        """Calibrate the layout model; runs on machines that are not known are left out."""
        measured = []
        for run in runs:
            try:
                measured.append(self.measured_layout(run))
            except (AdvisorError, PlanningError):
                continue
        known = self.constants
        if not measured:
            return None
        return own_layouts(measured, known.layout.log_spread(), known.calibration)

    def _measured_clusters(self, job: Job, work: Work) -> dict[Key, ScalingFit]:
        """Return the job's own law of scaling, made once, where enough of it was measured."""
        if len(job.actuals) < LEAST_RUNS or (work.transformer is not None and not work.layers):
            return {}
        batches = tuple(actual.batch or job.global_batch for actual in job.actuals)
        key = (job.name, work.gradient_bytes, work.precision, batches, job.actuals)
        if key not in self._clusters:
            runs = [self._placed(job, actual) for actual in job.actuals]
            placed = [run for run in runs if run is not None]
            self._clusters[key] = measured_clusters(placed, work, self.constants.device)
        return self._clusters[key]

    def _placed(self, job: Job, actual: Actual) -> PlacedRun | None:
        """Return a run as the law of scaling takes it; None where it has no known device."""
        fleet, (row,), (nodes,) = place_of(actual, self.catalogue, self.fleet_of(job))
        if fleet.device[row] < 0:
            return None
        per_node = int(fleet.per_node[row])
        return PlacedRun(
            key=key_of(fleet, row),
            device=fleet.devices[fleet.device[row]],
            nodes=int(nodes),
            per_node=per_node,
            batch=(actual.batch or job.global_batch) / (int(nodes) * per_node),
            step_s=actual.step_s,
        )

    def measured_layout(self, run: LayoutRun) -> MeasuredLayout:
        """Return a measured step as the layout model sees it.

        Raises
        ------
        AdvisorError
            If its machines are not known, or unlike.
        """
        work = transformer_work(
            run.transformer, micro_batch=1, precision=run.precision, setup=run.setup
        )
        bare = described_job(work, name=run.name, global_batch=run.layout.global_batch)
        (place,) = places(
            self.case(bare), self.catalogue, [one_group(run.machines, self.catalogue)]
        )
        machines = place.case.fleet
        return MeasuredLayout(
            problem=on_machine(place.case, place.row).problem,
            layout=layout_columns(run.layout),
            device=machines.devices[machines.device[place.row]],
            step_s=run.step_s,
        )

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
        """Return the host's measured step and those of real runs; unusable ones are left out.

        Parameters
        ----------
        job : Job
        work : Work
            The job's.
        """
        anchors = host_anchor(job, work, self.constants)
        if is_known_by_runs(work):
            return self._anchored_on_runs(anchors, job, work)
        for actual in job.actuals:
            if not is_named(actual, self.catalogue):
                continue  # a cluster, which shows how the job scales, or a card that nobody knows
            there = self._beside(job, work, actual)
            if there is not None:
                anchors = anchors.with_actual(*there)
        return anchors

    def _beside(
        self, job: Job, work: Work, actual: Actual
    ) -> tuple[Device, float, float, float] | None:
        """Return a run's device, the bare model's step there, the measured one, and log_sd.

        None where the model has no step; kept, since every candidate asks for all of them.
        """
        key = (id(work), job.name, actual, actual.batch or job.global_batch)
        if key not in self._seen_there or self._seen_there[key][0] is not work:
            self._seen_there[key] = work, self._bare_step(job, work, actual)
        return self._seen_there[key][1]

    def _bare_step(
        self, job: Job, work: Work, actual: Actual
    ) -> tuple[Device, float, float, float] | None:
        there, row, count = place_of(actual, self.catalogue, self.fleet_of(job))
        case = StepCase(
            job=replace(job, global_batch=actual.batch or job.global_batch), work=work,
            fleet=there, anchors=Anchors(core_speed=host_core_speed(job)),
            constants=self.constants, accelerators=self.catalogue.accelerators,
        )  # fmt: skip
        columns = best_columns(case, row, count)
        if columns.status[0]:
            return None
        device = there.devices[there.device[row[0]]]
        return device, float(columns.step_s[0]), actual.step_s, float(columns.log_sd[0])

    def _anchored_on_runs(self, anchors: Anchors, job: Job, work: Work) -> Anchors:
        """Return the anchors with the runs that the work was fitted to, one device each."""
        runs = measured_runs(job.actuals, self.catalogue)
        steps = steps_s(work, runs, self.constants.device)
        bare = step_time(work, [run.device for run in runs], [1.0], self.constants.device)
        for run, predicted_s, log_sd in zip(runs, steps, bare.log_sd, strict=True):
            anchors = anchors.with_actual(
                run.device, float(predicted_s), run.step_s, float(log_sd)
            )
        return anchors
