"""Machines whose processors burst: what lasts of them, and what more costs.

=====  ===========================================================================================
here   meaning
=====  ===========================================================================================
v, b   virtual CPUs of a machine, and the share of each that lasts (its baseline)
u      virtual CPUs that the job keeps busy
L      what a machine may compute beyond its baseline from its launch on [vCPU-hours]
=====  ===========================================================================================

Where more is sold (AWS "unlimited"), the job runs at full speed and u - b v vCPU-hours are paid an
hour. Else it runs at full speed for L / (u - b v) hours, and then at b v / u of it (AWS
"standard", Azure); where nothing is given at launch every virtual CPU is held at b from the start
(Google's shared cores). A step's time is the mean over the whole job.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import NO_LENGTH, Job
from advisor.machines import Fleet
from advisor.planners.core import HOUR_S

Floats = NDArray[np.float64]


def busy_vcpus(job: Job, vcpus: Floats) -> Floats:
    """Return how many of a machine's virtual CPUs the job keeps busy."""
    program = job.program
    if program is None:
        return np.minimum(vcpus, job.compute_threads or np.inf)
    usable = np.minimum(vcpus, program.cores or np.inf)
    if program.host_cores is None:
        return np.minimum(usable, program.parallelism)
    return np.asarray(usable * min(program.parallelism / program.host_cores, 1.0))


def surplus_usd_per_h(
    job: Job, vcpus: Floats, baseline: Floats, surplus_usd_per_vcpu_h: Floats
) -> Floats:
    """Return what processor time beyond the baseline costs by the hour on one machine [USD/h]."""
    beyond = np.maximum(busy_vcpus(job, vcpus) - baseline * vcpus, 0.0)
    return np.nan_to_num(beyond * surplus_usd_per_vcpu_h)


def sustained(job: Job, columns: TimeColumns, fleet: Fleet) -> TimeColumns:
    """Return the columns with the steps of rows that are held at a baseline at their mean time."""
    kind = columns.type_index
    is_held = (fleet.cpu_baseline[kind] < 1.0) & np.isnan(fleet.cpu_surplus_usd_per_h[kind])
    rows = np.flatnonzero(is_held & (columns.status == 0))
    if not rows.size:
        return columns
    kind, step_s = kind[rows], columns.step_s.copy()
    share, launch_h = fleet.cpu_baseline[kind], fleet.cpu_launch_h[kind]
    busy = busy_vcpus(job, fleet.vcpus[kind])
    lasting = share * fleet.vcpus[kind]
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where(launch_h > 0, np.minimum(lasting / busy, 1.0), share)
        at_full_h = np.where(busy > lasting, launch_h / (busy - lasting), np.inf)
    at_full_h = np.where(launch_h > 0, at_full_h, 0.0)
    work_h = step_s[rows] * job.paid_steps / HOUR_S
    if job.total_source == NO_LENGTH:
        work_h = np.full(len(rows), np.inf)
    at_full = np.minimum(at_full_h / work_h, 1.0)
    step_s[rows] *= at_full + (1.0 - at_full) / speed
    return replace(columns, step_s=step_s)
