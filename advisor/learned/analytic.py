"""The physical estimate before anything is learned: the anchor's time, carried over.

here        in the text                      meaning, unit
anchor_s    T_a                              time of the whole job on the anchor [s]
speed       v                                of one process: cores, or the device's rates [any]
workers     W                                processes that share the samples
parameters  P                                bytes of gradients sent per step [bytes]
rate        B                                a machine's link, each way [bytes/s]

Compute: T_a v_a / (v W). Between accelerators v is the geometric mean of arithmetic rate and
memory bandwidth: the two ceilings of a roofline, when the mix of the job is unknown. An anchor of
another batch is scaled by operations. Communication of one step: all-reduce in a ring sends
2 (n-1)/n P through every link (Patarasu & Yuan 2009, section 3); a parameter server sends and
receives P for each of W workers through its one link, both directions at once: W P. Lower bounds.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from advisor.machines.devices import accelerator_devices
from advisor.planners.core.nouns import Device
from advisor.records import AnchorRun, Instances, RunRecord

UNKNOWN: Final = math.nan
_BYTES_PER_PARAMETER: Final = 4.0  # gradients in single precision


def analytic_time_s(record: RunRecord) -> float:
    """Return the time that the anchor's run and physics give [s]; nan where it cannot be told.

    A record whose maker already knew better says so in the fact ``analytic_time_s``.
    """
    known = record.facts.get("analytic_time_s")
    if isinstance(known, float):
        return known
    if record.anchor is None:
        return UNKNOWN
    return compute_s(record) + communication_s(record)


def compute_s(record: RunRecord) -> float:
    """Return the anchor's time over the speed and the workers of the configuration [s]."""
    if record.anchor is None:
        return UNKNOWN
    workers = _layout(record, "workers", 1.0)
    if record.time_kind == "step":
        workers = 1.0  # every worker makes each step
    there = _speed(record.configuration[0], _layout(record, "threads", math.inf))
    here = _speed(record.anchor.machines, math.inf)
    return record.anchor.time_s * _work_ratio(record, record.anchor) * here / (there * workers)


def _work_ratio(record: RunRecord, anchor: AnchorRun) -> float:
    flop, seen = record.job.facts.get("flop_per_step"), anchor.facts.get("flop_per_step")
    if record.time_kind != "step" or not isinstance(flop, float) or not isinstance(seen, float):
        return 1.0
    return flop / seen


def communication_s(record: RunRecord) -> float:
    """Return the time that gradients take through the slowest link [s]."""
    rates = [m.network_gbit_per_s for m in record.configuration if m.network_gbit_per_s]
    nodes, size = record.instances, _gradient_bytes(record)
    if nodes < 2 or not rates or math.isnan(size):
        return 0.0
    servers = _layout(record, "servers", 0.0)
    workers = _layout(record, "workers", float(nodes))
    traffic = workers * size / servers if servers else 2.0 * (nodes - 1) / nodes * size
    steps = 1.0
    if record.time_kind == "job":
        steps = _fact(record, "steps", math.nan) / workers
    seconds = steps * traffic * 8.0 / (1e9 * min(rates))
    return 0.0 if math.isnan(seconds) else seconds


def _speed(machines: Instances, threads: float) -> float:
    if not machines.accelerators:
        return UNKNOWN if machines.vcpus is None else min(machines.vcpus, threads)
    device = _devices().get(machines.accelerator)
    if device is None:
        return UNKNOWN
    flop_per_s = device.sustained_fp32_flop_per_s or device.fp32_flop_per_s
    if flop_per_s is None:
        return UNKNOWN
    return machines.accelerators * math.sqrt(flop_per_s * device.memory_bytes_per_s)


@cache
def _devices() -> dict[str, Device]:
    return accelerator_devices()


def _gradient_bytes(record: RunRecord) -> float:
    size = _fact(record, "parameter_bytes", math.nan)
    return (
        _fact(record, "parameters", math.nan) * _BYTES_PER_PARAMETER if math.isnan(size) else size
    )


def _fact(record: RunRecord, name: str, default: float) -> float:
    value = record.job.facts.get(name)
    return value if isinstance(value, float) else default


def _layout(record: RunRecord, name: str, default: float) -> float:
    value = record.layout.get(name)
    return value if isinstance(value, float) and value > 0 else default
