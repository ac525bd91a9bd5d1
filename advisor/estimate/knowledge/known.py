"""Jobs that are known by their runs: where those were, and which step would have taken so long."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from advisor.ask import ENTRIES, JobSpec, Question, SetupRequest
from advisor.catalogue import Catalogue, TypeColumns
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.estimate.best import best_columns
from advisor.estimate.case import Anchors, Constants, StepCase, constants, host_core_speed
from advisor.jobs import Actual, Job, LayoutRun, described_job, job_from_spec, read_runs, runs_of
from advisor.machines import (
    ClusterGroup,
    accelerator_devices,
    lone_machines,
    one_group,
    own_fleet,
    suite_device,
)
from advisor.machines import catalogue_fleet as all_machines
from advisor.planners.core import Device, PlanningError, Precision, Work
from advisor.planners.layouts import layout_columns
from advisor.planners.links import straggling
from advisor.planners.step import (
    DeviceParameters,
    Devices,
    MeasuredRun,
    OtherJobs,
    is_known_by_runs,
    step_time,
    transformer_work,
    unmeasured,
    work_from_runs,
)

if TYPE_CHECKING:
    from advisor.estimate.knowledge.own_runs import (
        Believed,
        Key,
        MeasuredLayout,
        OwnLayouts,
        PlacedRun,
    )
    from advisor.planners.links import ScalingFit

# The names of a question that say which job is meant, and how it is trained.
JOB_NAMES: Final = frozenset(n for n, entry in ENTRIES.items() if entry.part in ("job", "setup"))
# What tells machines as ``--cluster`` takes them, "2x4xT4@50Gbps", from names of types and cards.
_CLUSTER: Final = re.compile(r"^\d+\s*x|[:@]")
_PRECISION: Final = "bf16"  # where nobody says another, as for described jobs
Machines = Callable[[], TypeColumns]


def find_job(**named: Any) -> Job:
    """Return the job that names and values ask for, as Python's keywords.

    Raises UsageError if a name is unknown, several jobs are named, or a value makes no sense;
    PlanningError if a model cannot be described.

    Parameters
    ----------
    **named
        The names of ``advisor.ask.entries`` that say which job is meant, how long it is, what
        surrounds it and which software trains it: ``model="llama", tokens="15B"``.
    """
    asked = Question.read(named, names=JOB_NAMES)
    return job_of(asked.job, asked.setup)


def job_of(
    spec: JobSpec, setup: SetupRequest | None = None, *, job: Job | None = None,
    catalogue: Callable[[], Catalogue] = Catalogue.load,
) -> Job:  # fmt: skip
    """Return the job that is meant; one known by its runs alone as well.

    Raises UsageError if several jobs are named, or a value makes no sense; CatalogueError if a run
    was on a machine that the catalogue does not have; PlanningError if a model cannot be
    described.

    ``catalogue``: loads what has the machines of ``spec.runs``; called where there are any.
    """
    if spec.runs is None:
        return job_from_spec(spec, setup, job=job)
    path, known = Path(spec.runs), catalogue()
    runs, others = runs_of(path, read_runs(path), spec.runs_of)
    if job is None and spec.is_known_by_runs:
        found = job_from_runs(
            runs, known, constants().device, name=spec.runs_of or path.stem, others=others,
            precision=cast(Precision, spec.precision or _PRECISION), batch=spec.batch,
        )  # fmt: skip
        return job_from_spec(replace(spec, batch=None), setup, job=found)
    for run in runs:
        machine_of(run, known)  # a name that nobody has is refused
    return job_from_spec(spec, setup, job=job, actuals=runs)


def job_from_runs(
    runs: tuple[Actual, ...], catalogue: Catalogue, parameters: DeviceParameters, *, name: str,
    precision: Precision, batch: int | None = None, others: tuple[Actual, ...] = (),
) -> Job:  # fmt: skip
    """Return a job of which nothing is known but what its runs took.

    Raises UsageError if a machine is unknown, or a run had fewer samples than devices.

    ``batch``: samples of a step; the median of the runs by default.
    """
    runs, usual = with_batches(runs, batch)
    for one in others:
        machine_of(one, catalogue)  # a name that nobody has is refused
    work = work_from_runs(
        measured_runs(runs, catalogue), parameters, precision=precision, batch=usual
    )
    return replace(described_job(work, name=name), actuals=runs, other_runs=others)


def with_batches(
    runs: tuple[Actual, ...], batch: int | None = None
) -> tuple[tuple[Actual, ...], int]:
    """Return a job's runs with the batch of all known, and its usual batch.

    That is the one given, or the median of the runs, which those without one are taken to have.
    """
    sizes = [one.batch for one in runs if one.batch is not None]
    usual = batch or (round(float(np.median(sizes))) if sizes else 1)
    return tuple(
        one if one.batch is not None else replace(one, batch=usual) for one in runs
    ), usual


def measured_runs(
    runs: tuple[Actual, ...], catalogue: Catalogue, machines: Machines | None = None
) -> list[MeasuredRun]:
    """Return runs as the planner takes them, each on one of its devices; batches are known.

    Several equal devices share the batch, and wait for the slowest of them: what their exchange of
    gradients takes besides is not told apart from their computing, and stays in the step. Devices
    are taken by their specifications: a rate measured on some of them says less of the others than
    that all are treated alike (``validate gpu``: mean 17.6 against 15.9 %). Raises UsageError if a
    machine is unknown, or a run had fewer samples than devices.
    """
    machines = machines or cache(partial(all_machines, catalogue))
    return [_measured_run(one, catalogue, machines) for one in runs]


def _measured_run(one: Actual, catalogue: Catalogue, machines: Machines) -> MeasuredRun:
    there, (row,), (count,) = place_of(one, catalogue, machines)
    if (at := int(there.device[row])) < 0:
        raise UsageError(
            f"the accelerator of {one.instance_type} is unknown",
            hint="give runs on known accelerators, or say which model it was: --model, --run",
        )
    device, workers = there.devices[at], int(count * there.per_node[row])
    share = (one.batch or 1) / workers
    if share < 1:
        raise UsageError(
            f"the run on {one.count} x {one.instance_type} had fewer samples ({one.batch}) than "
            f"accelerators ({workers})",
            hint="say which model it was, so that its layout can be searched: --model, --run",
        )
    return MeasuredRun(
        device=unmeasured(device),
        batch=share,
        step_s=one.step_s / float(straggling(workers, constants().scaling)),
        workers=workers,
    )


def place_of(
    actual: Actual, catalogue: Catalogue, machines: Machines
) -> tuple[TypeColumns, NDArray[np.int64], NDArray[np.int64]]:
    """Return the machines of a run: a fleet, the row of their type in it, and how many.

    Raises UsageError, CatalogueError as ``machine_of``.
    """
    found = machine_of(actual, catalogue)
    if isinstance(found, ClusterGroup):
        own, at = own_fleet(found, machines(), per_node=found.node.devices)
        return own, np.array([at]), np.array([found.count])
    if isinstance(found, Device):
        lone, machines_of = lone_machines(found, actual.count, catalogue)
        return lone, np.array([0]), np.array([machines_of])
    return machines(), np.array([found]), np.array([actual.count])


def machine_of(actual: Actual, catalogue: Catalogue) -> int | Device | ClusterGroup:
    """Return what a run was on: a type's number, an accelerator, or machines as of ``--cluster``.

    Raises UsageError if neither a type nor an accelerator has the name, or it cannot be read as a
    cluster; CatalogueError if nobody has the machines of a cluster.
    """
    name = actual.instance_type
    if not actual.provider and _CLUSTER.search(name):
        several = f"{actual.count}x" if actual.count > 1 else ""
        return one_group(f"{several}{name}", catalogue)
    exact = None if actual.provider else accelerator_devices().get(name)
    if exact is not None:
        return exact
    try:
        return int(catalogue.instance_type(name, provider=actual.provider or None).index)
    except CatalogueError as error:
        device = None if actual.provider else suite_device(name)
        if device is None:
            raise UsageError(
                f"no machine or accelerator is called {name!r}", hint=error.hint
            ) from error
        return device


_MOST_KEPT: Final = 10_000
Found = TypeVar("Found")
Beside = tuple[Device, float, float, float, float]
Place = tuple[TypeColumns, NDArray[np.int64], NDArray[np.int64]]


class Asked(Protocol):
    """What runs are set beside: the estimate by physics."""

    catalogue: Catalogue

    @property
    def constants(self) -> Constants:
        """The fitted constants."""

    @property
    def fleet(self) -> TypeColumns:
        """The catalogue's machines."""

    def fleet_of(self, job: Job) -> TypeColumns:
        """Return the catalogue's machines as the job may use them."""

    def case(
        self, job: Job, *, fleet: TypeColumns | None = None, believes: bool = True
    ) -> StepCase:
        """Return the job as the ways of training see it."""


def _alone(fleet: TypeColumns, row: int) -> TypeColumns:
    """Return machines of which only one type's device is known: nothing else is asked."""
    device = np.full_like(fleet.device, -1)
    device[row] = 0
    return replace(fleet, devices=fleet.devices.take(fleet.device[[row]]), device=device)


def _nearest(job: Job) -> tuple[Actual, ...]:
    """Return the runs in the batches nearest to the one that is asked for."""

    def far(one: Actual) -> float:
        return abs(math.log((one.batch or job.global_batch) / job.global_batch))

    nearest = set(sorted(job.actuals, key=far)[:_MOST_BELIEVED])
    return tuple(one for one in job.actuals if one in nearest)


# Runs that are set beside answers: each is asked of the whole estimate.
_MOST_BELIEVED: Final = 24


class OwnRuns:
    """The user's runs, seen by one predictor."""

    def __init__(self, physics: Asked) -> None:
        self._physics = physics
        self._made: dict[tuple[object, ...], tuple[Work | None, Any]] = {}
        self._bare: StepCase | None = None

    def _once(
        self, key: tuple[object, ...], make: Callable[[], Found], of: Work | None = None
    ) -> Found:
        """Return what was made before, of this very work: while it is kept, so is its number."""
        key = (*key, id(of))
        if key not in self._made:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[key] = of, make()
        found: Found = self._made[key][1]
        return found

    def layouts(self, job: Job) -> OwnLayouts | None:
        """Return what the user's measured layouts say, made once; None where there are none."""
        if not job.layout_runs:
            return None
        return self._once(("layouts", job.layout_runs), lambda: self._calibrated(job.layout_runs))

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
        from advisor.estimate.knowledge.own_runs import own_layouts

        return own_layouts(measured, known.layout.log_spread(), known.calibration)

    def clusters(self, job: Job, work: Work) -> dict[Key, ScalingFit]:
        """Return the job's own law of scaling, made once, where enough of it was measured."""
        if not job.actuals or (work.transformer is not None and not work.layers):
            return {}
        from advisor.estimate.knowledge.own_runs import measured_clusters

        batches = tuple(actual.batch or job.global_batch for actual in job.actuals)
        runs = (self._placed(job, actual) for actual in job.actuals)
        return self._once(
            (job.name, work.gradient_bytes, work.precision, batches, job.actuals),
            lambda: measured_clusters(
                [run for run in runs if run is not None], work, self._physics.constants.device
            ),
        )

    def believed(self, job: Job, work: Work) -> Believed | None:
        """Return the job's runs beside what is answered in their places; None without any."""
        if not job.actuals:
            return None
        heard = _nearest(job)
        batches = tuple(one.batch or job.global_batch for one in heard)
        made = partial(self._beside_answers, job, work, heard)
        return self._once(("believed", job.name, heard, batches), made, work)

    def _beside_answers(self, job: Job, work: Work, heard: tuple[Actual, ...]) -> Believed | None:
        from advisor.estimate.knowledge.own_runs import Believed

        placed, errors = [], []
        laws = self.clusters(job, work)  # carry what they miss of their own runs themselves
        for actual in heard:
            run, place = self._placed(job, actual), self._place(job, actual)
            if run is None or place is None or run.key in laws:
                continue
            there, row, count = place
            case = self._in_place(job, work, actual, _alone(there, int(row[0])))
            columns = best_columns(case, row, count)
            if columns.status[0] == 0 and np.isfinite(columns.step_s[0]):
                placed.append(run)
                errors.append(float(np.log(actual.step_s / columns.step_s[0])))
        return Believed(runs=tuple(placed), errors=tuple(errors)) if placed else None

    def _in_place(self, job: Job, work: Work, actual: Actual, there: TypeColumns) -> StepCase:
        """Return the job as it is asked in a run's place, the run's own errors left alone."""
        asked = replace(job, global_batch=actual.batch or job.global_batch)
        if not is_known_by_runs(work):
            return self._physics.case(asked, fleet=there, believes=False)
        if self._bare is None or self._bare.job is not job:
            self._bare = self._physics.case(job, believes=False)
        bare = replace(there, devices=Devices(map(unmeasured, there.devices)))
        return replace(self._bare, job=asked, fleet=bare, seen={})

    def others(self, job: Job, work: Work, known: tuple[MeasuredRun, ...]) -> OtherJobs | None:
        """Return other jobs' runs as the planner takes them, made once; None without any."""
        if not job.other_runs:
            return None
        by_job: dict[str, tuple[Actual, ...]] = {}
        for one in job.other_runs:
            by_job[one.run] = (*by_job.get(one.run, ()), one)
        physics = self._physics
        runs = (
            tuple(measured_runs(with_batches(of)[0], physics.catalogue, lambda: physics.fleet))
            for of in by_job.values()
        )
        return self._once(
            (job.other_runs, job.actuals, work.precision),
            lambda: OtherJobs(
                runs=tuple(runs), known=known, precision=work.precision,
                parameters=physics.constants.device,
            ),
        )  # fmt: skip

    def _placed(self, job: Job, actual: Actual) -> PlacedRun | None:
        """Return a run as the law of scaling takes it; None where it has no known device."""
        place = self._place(job, actual)
        if place is None:
            return None
        from advisor.estimate.knowledge.own_runs import placed

        fleet, (row,), (nodes,) = place
        batch = actual.batch or job.global_batch
        is_known = fleet.device[row] >= 0
        return placed(fleet, row, int(nodes), batch, actual.step_s) if is_known else None

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
        group = one_group(run.machines, self._physics.catalogue)
        from advisor.estimate.knowledge.own_runs import MeasuredLayout
        from advisor.estimate.unlike.places import places_of
        from advisor.estimate.ways.model_parallel import on_machine

        (place,) = places_of(self._physics.case(bare), [group])
        machines = place.case.fleet
        return MeasuredLayout(
            problem=on_machine(place.case, place.row).problem,
            layout=layout_columns(run.layout),
            device=machines.devices[machines.device[place.row]],
            step_s=run.step_s,
        )

    def beside(self, job: Job, work: Work, actual: Actual) -> Beside | None:
        """Return a run's device, the bare model's step there, the measured one, and deviations.

        None where the model has no step; kept, since every candidate asks for all of them.
        """
        key = "beside", job.name, actual, actual.batch or job.global_batch
        return self._once(key, partial(self._bare_step, job, work, actual), work)

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
        device, at = there.devices[there.device[row[0]]], [float(columns.micro_batch[0])]
        host = float(step_time(work, [device], at, case.constants.device).host_log_sd[0, 0])
        log_sd = math.sqrt(max(float(columns.log_sd[0]) ** 2 - host**2, 0.0))
        return device, float(columns.step_s[0]), actual.step_s, log_sd, host
