"""Jobs that are known by their runs: where those were, and which step would have taken so long."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.errors import CatalogueError, UsageError
from advisor.jobs import loading
from advisor.jobs.actuals import Actual, read_runs
from advisor.jobs.described import described_job
from advisor.jobs.job import Job
from advisor.machines.cluster_text import one_group
from advisor.machines.devices import accelerator_devices, suite_device
from advisor.machines.fleet import Fleet, lone_fleet
from advisor.machines.fleet import fleet as all_machines
from advisor.machines.own_nodes import own_fleet
from advisor.planners.core.nouns import Device, Precision
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import MeasuredRun, work_from_runs
from advisor.question import JobSpec, SetupRequest
from advisor.ways.constants import constants

# What tells machines as ``--cluster`` takes them, "2x4xT4@50Gbps", from names of types and cards.
_CLUSTER: Final = re.compile(r"^\d+\s*x|[:@]")
_PRECISION: Final = "bf16"  # where nobody says another, as for described jobs


def job_of(spec: JobSpec, setup: SetupRequest | None = None, *, job: Job | None = None) -> Job:
    """Return the job that is meant; as ``jobs.loading.job_of``, known by its runs alone as well.

    Raises
    ------
    UsageError
        If several jobs are named, or a value makes no sense.
    PlanningError
        If a model cannot be described.
    """
    if job is None and spec.is_known_by_runs:
        path = Path(str(spec.runs))
        known = job_from_runs(
            read_runs(path), Catalogue.load(), constants().device, name=path.stem,
            precision=cast(Precision, spec.precision or _PRECISION), batch=spec.batch,
        )  # fmt: skip
        return loading.job_of(replace(spec, runs=None, batch=None), setup, job=known)
    if spec.runs is not None:
        catalogue = Catalogue.load()
        for run in read_runs(Path(spec.runs)):
            if not is_named(run, catalogue):
                one_group(run.instance_type, catalogue)  # a cluster; a wrong name is said
    return loading.job_of(spec, setup, job=job)


def job_from_runs(
    runs: tuple[Actual, ...], catalogue: Catalogue, parameters: DeviceParameters, *, name: str,
    precision: Precision, batch: int | None = None,
) -> Job:  # fmt: skip
    """Return a job of which nothing is known but what its runs took.

    Parameters
    ----------
    runs : tuple of Actual
        On one device each.
    catalogue : Catalogue
    parameters : DeviceParameters
    name : str
    precision : Precision
        Of its products.
    batch : int, optional
        Samples of a step; the median of the runs by default.

    Raises
    ------
    UsageError
        If a machine is unknown, or has several devices.
    """
    sizes = [one.batch for one in runs if one.batch is not None]
    usual = batch or (round(float(np.median(sizes))) if sizes else 1)
    runs = tuple(one if one.batch is not None else replace(one, batch=usual) for one in runs)
    work = work_from_runs(
        measured_runs(runs, catalogue), parameters, precision=precision, batch=usual
    )
    return replace(described_job(work, name=name), actuals=runs)


def measured_runs(runs: tuple[Actual, ...], catalogue: Catalogue) -> list[MeasuredRun]:
    """Return runs on one device each as the planner takes them; batches are known.

    Devices are taken by their specifications: a rate measured on some of them says less of the
    others than that all are treated alike (``validate gpu``: mean 17.6 against 15.9 %).

    Raises
    ------
    UsageError
        If a machine is unknown, or has several devices.
    """
    return [
        MeasuredRun(
            device=unmeasured(_lone_device(one, catalogue)),
            batch=one.batch or 1,
            step_s=one.step_s,
        )
        for one in runs
    ]


def is_named(actual: Actual, catalogue: Catalogue) -> bool:
    """Whether a type or an accelerator has the name of a run's machine."""
    try:
        _machine(actual, catalogue)
    except UsageError:
        return False
    return True


def place_of(
    actual: Actual, catalogue: Catalogue, fleet: Fleet
) -> tuple[Fleet, NDArray[np.int64], NDArray[np.int64]]:
    """Return the machines of a run: a fleet, the row of their type in it, and how many.

    Parameters
    ----------
    actual : Actual
    catalogue : Catalogue
    fleet : Fleet
        Of the catalogue.

    Raises
    ------
    UsageError
        If neither a type nor an accelerator has the name, and it is no cluster's.
    """
    if not actual.provider and _CLUSTER.search(actual.instance_type):
        several = f"{actual.count}x" if actual.count > 1 else ""
        group = one_group(f"{several}{actual.instance_type}", catalogue)
        own, at = own_fleet(group, catalogue, fleet, per_node=group.node.devices)
        return own, np.array([at]), np.array([group.count])
    found = _machine(actual, catalogue)
    if isinstance(found, Device):
        lone = lone_fleet(found, actual.count, catalogue.accelerators.get(found.name))
        return lone, np.array([0]), np.array([1])
    return fleet, np.array([found]), np.array([actual.count])


def _machine(actual: Actual, catalogue: Catalogue) -> int | Device:
    """Return the number of a type of the catalogue, or an accelerator."""
    name = actual.instance_type
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


def _lone_device(actual: Actual, catalogue: Catalogue) -> Device:
    found: int | Device | None = _machine(actual, catalogue)
    count = actual.count
    if not isinstance(found, Device):
        machines = all_machines(catalogue)
        count *= int(machines.per_node[found])
        at = int(machines.device[found])
        found = machines.devices[at] if at >= 0 else None
    if found is None or count != 1:
        raise UsageError(
            f"the run on {actual.count} x {actual.instance_type} was on several devices, or on "
            "one that is not known",
            hint="give runs on one accelerator, or say which model it was: --model, --run",
        )
    return found
