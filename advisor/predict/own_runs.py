"""The user's own runs of a job in the form that planners take, each made once.

- Steps of transformers in known layouts calibrate the layout model (``ways.own_layouts``).
- Three runs of the job on several numbers of devices are its law of scaling there
  (``ways.measured_cluster``).
- Runs of other jobs tell of devices that they were on and the job was not
  (``planners.step.other_jobs``).
- Every run of the job stands beside the bare model's step in its place (``ways.anchors``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.errors import AdvisorError
from advisor.jobs.actuals import Actual
from advisor.jobs.described import described_job
from advisor.jobs.job import Job
from advisor.jobs.layout_runs import LayoutRun
from advisor.machines.cluster_text import one_group
from advisor.machines.fleet import Fleet
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Device, Work
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.links.scaling_fit import ScalingFit
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.from_runs import MeasuredRun, is_known_by_runs
from advisor.planners.step.other_jobs import OtherJobs
from advisor.predict.known_job import measured_runs, place_of, with_batches
from advisor.ways.anchors import Anchors, host_core_speed
from advisor.ways.best import best_columns
from advisor.ways.case import StepCase
from advisor.ways.constants import Constants
from advisor.ways.measured_cluster import LEAST_RUNS, Key, PlacedRun, key_of, measured_clusters
from advisor.ways.model_parallel import on_machine
from advisor.ways.own_layouts import MeasuredLayout, OwnLayouts, own_layouts
from advisor.ways.places import places

_MOST_KEPT: Final = 10_000
Beside = tuple[Device, float, float, float]
Place = tuple[Fleet, NDArray[np.int64], NDArray[np.int64]]


class Asked(Protocol):
    """What runs are set beside: the estimate by physics."""

    catalogue: Catalogue

    @property
    def constants(self) -> Constants:
        """The fitted constants."""

    @property
    def fleet(self) -> Fleet:
        """The catalogue's machines."""

    def fleet_of(self, job: Job) -> Fleet:
        """Return the catalogue's machines as the job may use them."""

    def case(self, job: Job) -> StepCase:
        """Return the job as the ways of training see it."""


class OwnRuns:
    """The user's runs, seen by one predictor."""

    def __init__(self, physics: Asked) -> None:
        self._physics = physics
        self._clusters: dict[tuple[object, ...], dict[Key, ScalingFit]] = {}
        self._seen_there: dict[tuple[object, ...], tuple[Work, Beside | None]] = {}
        self._own: dict[tuple[LayoutRun, ...], OwnLayouts | None] = {}
        self._others: dict[tuple[object, ...], OtherJobs] = {}

    def layouts(self, job: Job) -> OwnLayouts | None:
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
        known = self._physics.constants
        if not measured:
            return None
        return own_layouts(measured, known.layout.log_spread(), known.calibration)

    def clusters(self, job: Job, work: Work) -> dict[Key, ScalingFit]:
        """Return the job's own law of scaling, made once, where enough of it was measured."""
        by_shape = work.transformer is not None and not work.layers
        if len(job.actuals) < LEAST_RUNS or by_shape or is_known_by_runs(work):
            return {}
        batches = tuple(actual.batch or job.global_batch for actual in job.actuals)
        key = (job.name, work.gradient_bytes, work.precision, batches, job.actuals)
        if key not in self._clusters:
            runs = [self._placed(job, actual) for actual in job.actuals]
            placed = [run for run in runs if run is not None]
            self._clusters[key] = measured_clusters(placed, work, self._physics.constants.device)
        return self._clusters[key]

    def others(self, job: Job, work: Work, known: tuple[MeasuredRun, ...]) -> OtherJobs | None:
        """Return other jobs' runs as the planner takes them, made once; None without any."""
        if not job.other_runs:
            return None
        key = (job.other_runs, job.actuals, work.precision)
        if key not in self._others:
            by_job: dict[str, tuple[Actual, ...]] = {}
            for one in job.other_runs:
                by_job[one.run] = (*by_job.get(one.run, ()), one)
            physics = self._physics
            runs = (
                measured_runs(with_batches(of)[0], physics.catalogue, lambda: physics.fleet)
                for of in by_job.values()
            )
            self._others[key] = OtherJobs(
                runs=tuple(map(tuple, runs)), known=known, precision=work.precision,
                parameters=physics.constants.device,
            )  # fmt: skip
        return self._others[key]

    def _placed(self, job: Job, actual: Actual) -> PlacedRun | None:
        """Return a run as the law of scaling takes it; None where it has no known device."""
        place = self._place(job, actual)
        if place is None:
            return None
        fleet, (row,), (nodes,) = place
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

    def _place(self, job: Job, actual: Actual) -> Place | None:
        """Return the machines of a run; None where nobody knows them."""
        try:
            known = self._physics
            return place_of(actual, known.catalogue, lambda: known.fleet_of(job))
        except AdvisorError:
            return None

    def measured_layout(self, run: LayoutRun) -> MeasuredLayout:
        """Return a measured step as the layout model sees it.

        Raises AdvisorError if its machines are not known, or unlike.
        """
        work = transformer_work(
            run.transformer, micro_batch=1, precision=run.precision, setup=run.setup
        )
        bare = described_job(work, name=run.name, global_batch=run.layout.global_batch)
        (place,) = places(
            self._physics.case(bare),
            self._physics.catalogue,
            [one_group(run.machines, self._physics.catalogue)],
        )
        machines = place.case.fleet
        return MeasuredLayout(
            problem=on_machine(place.case, place.row).problem,
            layout=layout_columns(run.layout),
            device=machines.devices[machines.device[place.row]],
            step_s=run.step_s,
        )

    def beside(self, job: Job, work: Work, actual: Actual) -> Beside | None:
        """Return a run's device, the bare model's step there, the measured one, and log_sd.

        None where the model has no step; kept, since every candidate asks for all of them.
        """
        key = (id(work), job.name, actual, actual.batch or job.global_batch)
        if key not in self._seen_there or self._seen_there[key][0] is not work:
            if len(self._seen_there) >= _MOST_KEPT:
                self._seen_there.clear()
            self._seen_there[key] = work, self._bare_step(job, work, actual)
        return self._seen_there[key][1]

    def _bare_step(self, job: Job, work: Work, actual: Actual) -> Beside | None:
        place = self._place(job, actual)
        if place is None:
            return None
        there, row, count = place
        case = StepCase(
            job=replace(job, global_batch=actual.batch or job.global_batch), work=work,
            fleet=there, anchors=Anchors(core_speed=host_core_speed(job)),
            constants=self._physics.constants, accelerators=self._physics.catalogue.accelerators,
        )  # fmt: skip
        columns = best_columns(case, row, count)
        if columns.status[0]:
            return None
        device = there.devices[there.device[row[0]]]
        return device, float(columns.step_s[0]), actual.step_s, float(columns.log_sd[0])
