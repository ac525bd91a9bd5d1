"""Machines as a job sees them that is limited to so many threads or cores.

A limit that the script or its environment sets stays where it runs: beyond it a larger machine
has nothing for the job.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from advisor.jobs.job import Job
from advisor.machines.fleet import Fleet
from advisor.machines.processors import processor_bytes_per_s, threads_per_core
from advisor.planners.core.nouns import Device


def limited_fleet(fleet: Fleet, job: Job) -> Fleet:
    """Return the machines with no more threads and cores than the job's limits leave it.

    The cards of accelerated machines stay as they are, their hosts do not.
    """
    threads, cores = job.compute_threads, job.limits.cores
    if threads is None:
        return fleet
    return replace(
        fleet,
        devices=tuple(limited_processor(device, threads) for device in fleet.devices),
        vcpus=fleet.vcpus if cores is None else np.minimum(fleet.vcpus, cores),
    )


def limited_processor(device: Device, threads: float) -> Device:
    """Return a processor of which a job uses so many threads; a card as it is.

    A few threads have a physical core each, where there are as many: with two hyper-threads a
    core, half of the virtual CPUs do nearly all of the work.
    """
    if device.kind != "cpu" or not device.cores or device.cores <= threads:
        return device
    used = min(threads * threads_per_core(device.vendor), float(device.cores))
    share = used / device.cores
    rates: dict[str, Any] = {
        f.name: value * share
        for f in fields(Device)
        if f.name.endswith("_flop_per_s") and (value := getattr(device, f.name)) is not None
    }
    reached = processor_bytes_per_s(device.vendor, used)
    return replace(
        device,
        **rates,
        memory_bytes_per_s=min(device.memory_bytes_per_s, reached),
        cores=max(1, round(threads)),
    )
