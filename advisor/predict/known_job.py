"""Jobs that are known by their runs: where those were, and which step would have taken so long."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.errors import CatalogueError, UsageError
from advisor.jobs import loading
from advisor.jobs.actuals import Actual, read_runs, runs_of
from advisor.jobs.described import described_job
from advisor.jobs.job import Job
from advisor.machines.cluster import ClusterGroup
from advisor.machines.cluster_text import one_group
from advisor.machines.devices import accelerator_devices, suite_device
from advisor.machines.fleet import Fleet, lone_fleet
from advisor.machines.fleet import fleet as all_machines
from advisor.machines.own_nodes import own_fleet
from advisor.planners.core.nouns import Device, Precision
from advisor.planners.links.data_parallel import straggling
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import MeasuredRun, work_from_runs
from advisor.question import ENTRIES, JobSpec, Question, SetupRequest
from advisor.ways.constants import constants

# The names of a question that say which job is meant, and how it is trained.
JOB_NAMES: Final = frozenset(n for n, entry in ENTRIES.items() if entry.part in ("job", "setup"))
# What tells machines as ``--cluster`` takes them, "2x4xT4@50Gbps", from names of types and cards.
_CLUSTER: Final = re.compile(r"^\d+\s*x|[:@]")
_PRECISION: Final = "bf16"  # where nobody says another, as for described jobs
Machines = Callable[[], Fleet]


def find_job(**named: Any) -> Job:
    """Return the job that names and values ask for, as Python's keywords.

    Raises UsageError if a name is unknown, several jobs are named, or a value makes no sense;
    PlanningError if a model cannot be described.

    Parameters
    ----------
    **named
        The names of ``advisor.question.entries`` that say which job is meant, how long it is, what
        surrounds it and which software trains it: ``model="llama", tokens="15B"``.
    """
    asked = Question.read(named, names=JOB_NAMES)
    return job_of(asked.job, asked.setup)


def job_of(
    spec: JobSpec, setup: SetupRequest | None = None, *, job: Job | None = None,
    catalogue: Callable[[], Catalogue] = Catalogue.load,
) -> Job:  # fmt: skip
    """Return the job that is meant; as ``jobs.loading.job_of``, known by its runs alone as well.

    Raises UsageError if several jobs are named, or a value makes no sense; CatalogueError if a run
    was on a machine that the catalogue does not have; PlanningError if a model cannot be
    described.

    Parameters
    ----------
    catalogue : callable
        Loads what has the machines of ``spec.runs``; called where there are any.
    """
    if spec.runs is None:
        return loading.job_of(spec, setup, job=job)
    path, known = Path(spec.runs), catalogue()
    runs, others = runs_of(path, read_runs(path), spec.runs_of)
    if job is None and spec.is_known_by_runs:
        found = job_from_runs(
            runs, known, constants().device, name=spec.runs_of or path.stem, others=others,
            precision=cast(Precision, spec.precision or _PRECISION), batch=spec.batch,
        )  # fmt: skip
        return loading.job_of(replace(spec, batch=None), setup, job=found)
    for run in runs:
        machine_of(run, known)  # a name that nobody has is refused
    return loading.job_of(spec, setup, job=job, actuals=runs)


def job_from_runs(
    runs: tuple[Actual, ...], catalogue: Catalogue, parameters: DeviceParameters, *, name: str,
    precision: Precision, batch: int | None = None, others: tuple[Actual, ...] = (),
) -> Job:  # fmt: skip
    """Return a job of which nothing is known but what its runs took.

    Raises UsageError if a machine is unknown, or a run had fewer samples than devices.

    Parameters
    ----------
    batch : int, optional
        Samples of a step; the median of the runs by default.
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
    device, workers = _equal_devices(one, catalogue, machines)
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
) -> tuple[Fleet, NDArray[np.int64], NDArray[np.int64]]:
    """Return the machines of a run: a fleet, the row of their type in it, and how many.

    Raises
    ------
    UsageError, CatalogueError
        As ``machine_of``.
    """
    found = machine_of(actual, catalogue)
    if isinstance(found, ClusterGroup):
        own, at = own_fleet(found, catalogue, machines(), per_node=found.node.devices)
        return own, np.array([at]), np.array([found.count])
    if isinstance(found, Device):
        lone = lone_fleet(found, actual.count, catalogue.accelerators.get(found.name))
        return lone, np.array([0]), np.array([1])
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
        return catalogue.instance_type(name, provider=actual.provider or None).index
    except CatalogueError as error:
        device = None if actual.provider else suite_device(name)
        if device is None:
            raise UsageError(
                f"no machine or accelerator is called {name!r}", hint=error.hint
            ) from error
        return device


def _equal_devices(actual: Actual, catalogue: Catalogue, machines: Machines) -> tuple[Device, int]:
    there, (row,), (count,) = place_of(actual, catalogue, machines)
    at = int(there.device[row])
    if at < 0:
        raise UsageError(
            f"nobody knows what {actual.instance_type} computes on",
            hint="give runs on known accelerators, or say which model it was: --model, --run",
        )
    return there.devices[at], int(count * there.per_node[row])
