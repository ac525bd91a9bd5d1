"""Programs without training steps: one machine, scaled by the speed and number of its cores.

A program that kept c cores busy runs no faster on more of them, and slower on fewer:

T = T_host x (v_host / v) x max(1, c / vCPUs)

Rounds of a framework whose threads are as many as there are cores, or as the script allows, may
run faster on more. With P cores usable on the host and V on the machine (Amdahl 1967):

s = (P - c) / (P - 1)   share of the time on one core, the rest on all P: c = s + (1 - s) P
A = s + (1 - s) P / V   time on the machine over time on the host
T = T_host x (v_host / v) x sqrt(A)  where A < 1, else x A

How much of the gain is had is not known: the estimate stands in the middle between none and all
of it, and its 90 % interval holds both. Nothing is gained beyond the cores that the script allows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import TypeColumns
from advisor.collectors.derive import advised_memory_bytes
from advisor.errors import RunError
from advisor.estimate.case import host_core_speed
from advisor.estimate.time_columns import CODE, TimeColumns, no_times, shares_of, way_code
from advisor.jobs import Job, Program, data_in_s
from advisor.quantities import REACH_90

WAY: Final = way_code("program")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Scatter of ln(CoreMark / Geekbench single-core) over 1,131 instance types: how far one benchmark
# of a core's speed is from another (cpu_speed.csv of the catalogue's sources, 2026-11-20).
_CORE_SPEED_LOG_SD: Final = 0.248


def cores_factor(program: Program, vcpus: Floats) -> tuple[Floats, Floats]:
    """Return time with so many cores over time on the host, and the error of its logarithm.

    Examples
    --------
    >>> half = Program(duration_s=1.0, cpu_s=1.5, parallelism=1.5, host_cores=2.0)
    >>> factor, log_sd = cores_factor(half, np.array([1.0, 2.0, 8.0]))
    >>> factor.round(3).tolist()
    [1.5, 1.0, 0.791]
    """
    vcpus = np.asarray(vcpus, dtype=np.float64)
    if program.host_cores is None:
        return np.maximum(1.0, program.parallelism / vcpus), np.zeros(vcpus.shape)
    limit = np.inf if program.cores is None else program.cores
    here = min(program.host_cores, limit)
    idle = here - program.parallelism
    serial = 1.0 if here <= 1.0 else min(max(idle / (here - 1.0), 0.0), 1.0)
    # A limit of one core holds everywhere; one core of the host says nothing of more.
    amdahl = serial + (1.0 - serial) * here / np.minimum(vcpus, limit)
    gained = np.minimum(amdahl, 1.0)
    return np.where(amdahl < 1.0, np.sqrt(gained), amdahl), -np.log(gained) / 2.0 / REACH_90


def program_columns(
    job: Job, fleet: TypeColumns, type_index: Integers, count: Integers
) -> TimeColumns:
    """Estimate a program on one machine of each type; more machines do not help it.

    Raises RunError if the speed of the host's cores was not measured.
    """
    program, host_speed = job.program, host_core_speed(job)
    if program is None:
        raise ValueError(f"job {job.name} has neither work nor program")
    if host_speed is None:
        raise RunError(
            f"the speed of the cores that ran {job.name} is unknown",
            hint="measure this machine (advisor doctor) and profile again",
        )
    speed = fleet.core_speed[type_index]
    vcpus = fleet.vcpus[type_index]
    needed = advised_memory_bytes(job.peak_rss_bytes)
    status = np.zeros(len(count), dtype=np.int64)
    for reason, holds in (
        ("does_not_fit_in_memory", fleet.memory_bytes[type_index] < needed),
        ("no_time_model", np.isnan(speed)),
        ("cpu_baseline_unknown", np.isnan(fleet.cpu_baseline[type_index])),
        ("runs_on_one_machine", count > 1),
    ):
        status[holds] = CODE[reason]
    factor, factor_log_sd = cores_factor(program, vcpus)
    step_s = np.where(status == 0, program.duration_s * host_speed / speed * factor, np.nan)
    own_log_sd = job.measured.log_sd if job.measured else 0.0
    return replace(
        no_times(
            WAY, type_index, count, status,
            startup_s=fleet.boot_s(job.transfers.boot_s)
            + np.nan_to_num(job.startup_s * host_speed / speed),
            data_in_s=data_in_s(job.transfers, fleet.network_bytes_per_s[type_index]),
        ),
        step_s=step_s,
        log_sd=np.hypot(np.hypot(_CORE_SPEED_LOG_SD, own_log_sd), factor_log_sd),
        shares=shares_of({"compute": np.ones(len(count))})[1],
        memory_bytes=np.full(len(count), needed),
    )  # fmt: skip
