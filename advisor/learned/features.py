"""One row of numbers for one run: names, order, units and groups in one table.

Everything here is known before the run that is predicted: the job, its partial run on the anchor,
the configuration, the layout, and what physics makes of them. What is unknown is nan, and stays
so: estimators fill it with the median they were fitted on. Positive quantities of many orders of
magnitude are taken as natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.machines import accelerator_devices
from advisor.planners.core import Device
from advisor.records import AnchorRun, Fact, Instances, ResourceSeries, Role, RunRecord

# The physical estimate before anything is learned: the anchor's time, carried over.
#
# here        in the text                      meaning, unit
# anchor_s    T_a                              time of the whole job on the anchor [s]
# speed       v                                of one process: cores, or the device's rates [any]
# workers     W                                processes that share the samples
# parameters  P                                bytes of gradients sent per step [bytes]
# rate        B                                a machine's link, each way [bytes/s]
#
# Compute: T_a v_a / (v W). Between accelerators v is the geometric mean of arithmetic rate and
# memory bandwidth: the two ceilings of a roofline, when the mix of the job is unknown. An anchor
# of another batch is scaled by operations. Communication of one step: all-reduce in a ring sends 2
# (n-1)/n P through every link (Patarasu & Yuan 2009, section 3); a parameter server sends and
# receives P for each of W workers through its one link, both directions at once: W P. Lower
# bounds.


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
    """Return the time that gradients and buffers take through the slowest link [s]."""
    rates = [m.network_gbit_per_s for m in record.configuration if m.network_gbit_per_s]
    nodes, size = record.instances, _gradient_bytes(record)
    if nodes < 2 or not rates or math.isnan(size):
        return 0.0
    servers = _layout(record, "servers", 0.0)
    workers = _layout(record, "workers", float(nodes))
    if servers:
        traffic = workers * size / servers
    else:  # a ring; before each forward pass rank 0 sends the buffers down a tree, as DDP does
        traffic = 2.0 * (nodes - 1) / nodes * size
        traffic += math.ceil(math.log2(nodes)) * _fact(record, "buffer_bytes", 0.0)
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


# The course of the partial run, as a sequence network takes it: channels of equal length.
#
# | channels                                     | of                  | scaled                  |
# |----------------------------------------------|---------------------|-------------------------|
# | cores busy                                   | the whole job       | over the anchor's cores |
# | memory                                       | the whole job       | over its peak           |
# | network received, sent [bytes/s]             | the whole job       | ln(1 + kB/s) / 10       |
# | step, mean of the ranks and slowest          | `profile --workers` | over the mean step      |
# | wait of a step for the others, mean          | `profile --workers` | over the mean step      |
# | sent on the wire [bytes/s], the busiest rank | `profile --workers` | ln(1 + kB/s) / 10       |
#
# The four of the thesis come first, in its order. Those of ranks follow where a record that is
# fitted has them; a record without is all zeros there.


Floats = NDArray[np.float64]

SEQUENCE_CHANNELS: Final = (
    "cpu_cores", "memory_bytes", "network_received_bytes_per_s", "network_sent_bytes_per_s",
)  # fmt: skip
SEQUENCE_READINGS: Final = 64  # a series is brought to this length
RANK_CHANNELS: Final[tuple[tuple[Role, str], ...]] = (
    ("worker_mean", "step_s"), ("worker_max", "step_s"), ("worker_mean", "wait_s"),
    ("worker_max", "network_sent_bytes_per_s"),
)  # fmt: skip


def channels_of(records: Sequence[RunRecord]) -> int:
    """Return how many channels some records have: of the whole job, and of ranks where seen."""
    has_ranks = any("step_s" in _rank_series(record, "worker_mean") for record in records)
    return len(SEQUENCE_CHANNELS) + (len(RANK_CHANNELS) if has_ranks else 0)


def sequences(records: Sequence[RunRecord], channels: int | None = None) -> Floats:
    """Return the partial runs' series, resampled to one length and scaled to order one.

    ``channels``: as many as the model was fitted on; those that the records have by default.

    Returns
    -------
    array of shape (n_records, channels * SEQUENCE_READINGS)
        Channel by channel. A series of length 0 is all zeros.
    """
    count = channels_of(records) if channels is None else channels
    out = np.zeros((len(records), count, SEQUENCE_READINGS))
    own = len(SEQUENCE_CHANNELS)
    for row, record in enumerate(records):
        out[row, :own] = _of_the_job(record)
        if count > own:
            out[row, own:] = _of_ranks(record)
    return out.reshape(len(records), -1)


def series_of(record: RunRecord, role: Role | None = None) -> ResourceSeries | None:
    """Return a partial run's series of a role, the first without; None where it has none."""
    found = record.anchor.series if record.anchor else ()
    return next((one for one in found if role in (None, one.role)), None)


def _of_the_job(record: RunRecord) -> Floats:
    out = np.zeros((len(SEQUENCE_CHANNELS), SEQUENCE_READINGS))
    series = series_of(record)
    if series is None or series.readings == 0:
        return out
    cores = record.anchor.machines.vcpus if record.anchor else None
    for column, channel in enumerate(SEQUENCE_CHANNELS):
        values = _resampled(series.channels.get(channel, ()))
        if channel == "cpu_cores":
            out[column] = values / (cores or max(float(values.max()), 1e-9))
        elif channel == "memory_bytes":
            out[column] = values / max(float(values.max()), 1.0)
        else:
            out[column] = _traffic(values)
    return out


def _of_ranks(record: RunRecord) -> Floats:
    out = np.zeros((len(RANK_CHANNELS), SEQUENCE_READINGS))
    usual_s = float(np.mean(_rank_series(record, "worker_mean").get("step_s", (0.0,))))
    if usual_s <= 0:
        return out
    for column, (role, channel) in enumerate(RANK_CHANNELS):
        values = _resampled(_rank_series(record, role).get(channel, ()))
        out[column] = values / usual_s if channel in ("step_s", "wait_s") else _traffic(values)
    return out


def _rank_series(record: RunRecord, role: Role) -> dict[str, tuple[float, ...]]:
    """Return the channels of a partial run's ranks; none where it was of one process."""
    series = series_of(record, role)
    return {} if series is None or "step_s" not in series.channels else dict(series.channels)


def _traffic(bytes_per_s: Floats) -> Floats:
    return np.asarray(np.log1p(bytes_per_s / 1e3) / 10.0)


def _resampled(values: Sequence[float]) -> Floats:
    if len(values) == 0:
        return np.zeros(SEQUENCE_READINGS)
    positions = np.linspace(0, len(values) - 1, SEQUENCE_READINGS)
    return np.asarray(np.interp(positions, np.arange(len(values)), values), float)


SCHEMA_VERSION: Final = 3
Group = Literal["job", "anchor", "series", "configuration", "layout", "physics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A column: what it is called, in which unit, what it describes."""

    name: str
    unit: str
    group: Group
    is_log: bool = False


def _features(group: Group, *rows: tuple[str, str, bool]) -> tuple[Feature, ...]:
    return tuple(Feature(name=n, unit=u, group=group, is_log=log) for n, u, log in rows)


_OPERATORS: Final = ("matmul", "convolution", "recurrent", "attention", "embedding")
_PROFILED: Final = (
    "convolution_forward", "convolution_weights", "convolution_inputs", "matmul",
    "normalisation", "pooling", "copy", "optimizer", "activation", "reduction", "other",
)  # fmt: skip
_STATISTICS: Final = (
    ("mean", "of the channel", True),
    ("variation", "-", False),  # standard deviation / mean
    ("late_growth", "-", False),  # (last third - first third) / mean: the thesis's cost feature
)

FEATURES: Final[tuple[Feature, ...]] = (
    *_features(
        "job",
        ("batch", "samples", True),
        ("steps", "-", True),
        ("parameters", "-", True),
        ("optimizer_state_bytes", "bytes", True),
        ("saved_bytes", "bytes", True),
        ("flop_per_step", "flop", True),
        ("bytes_per_step", "bytes", True),
        ("operators_per_step", "-", True),
        ("image_pixels", "pixels", True),
        ("sequence_tokens", "tokens", True),
        ("epoch_samples", "samples", True),
        ("target_batch", "samples", True),
        ("input_bytes", "bytes", True),
        *((f"flop_share_{kind}", "-", False) for kind in _OPERATORS),
        ("intensity", "flop/byte", True),
    ),
    *_features(
        "anchor",
        ("anchor_time_s", "s", True),
        ("step_time_s", "s", True),
        ("step_time_cv", "-", False),
        ("cpu_s_per_step", "s", True),
        ("busy_cores", "cores", False),
        ("loading_fraction", "-", False),
        ("memory_peak_bytes", "bytes", True),
        ("flop_per_s", "flop/s", True),
        ("gpu_fraction_mean", "-", False),
        ("gpu_memory_busy_fraction_mean", "-", False),
        ("gpu_power_w_mean", "W", False),
        ("idle_share", "-", False),
        ("three_node_ratio", "-", True),
        *((f"operator_share_{kind}", "-", False) for kind in _PROFILED),
    ),
    *_features(
        "series",
        *(
            (f"{channel}_{name}", unit, log)
            for channel in SEQUENCE_CHANNELS
            for name, unit, log in _STATISTICS
        ),
    ),
    *_features(
        "configuration",
        ("instances", "-", True),
        ("vcpus", "cores", True),
        ("total_vcpus", "cores", True),
        ("memory_gib", "GiB", True),
        ("accelerators", "-", False),
        ("network_gbit_per_s", "Gbit/s", True),
        ("price_usd_per_h", "USD/h", True),
        ("vcpus_over_anchor", "-", True),
    ),
    *_features(
        "layout",
        ("workers", "-", True),
        ("servers", "-", False),
        ("threads", "-", True),
        ("regions", "-", True),
        ("cores_over_threads", "-", False),
    ),
    *_features(
        "physics",
        ("analytic_time_s", "s", True),
        ("analytic_over_anchor", "-", True),
        ("communication_fraction", "-", False),
        ("traffic_s_per_step", "s", True),
    ),
)
NAMES: Final = tuple(feature.name for feature in FEATURES)
# They grow with the length of the job, or are set by who sells the machine: the ratio of two times
# of one job depends on neither, and a model that sees them takes a longer job for another one.
NO_RATIO_DEPENDS_ON: Final = ("steps", "anchor_time_s", "analytic_time_s", "price_usd_per_h")
# No recording of a job tells them (``records.profiled``), whoever else's runs may: a model that
# is to correct the estimate of recorded jobs would learn from what is unknown when it is asked.
NEVER_RECORDED: Final = (
    "image_pixels", "sequence_tokens", "epoch_samples", "target_batch", "input_bytes",
    "step_time_cv", "gpu_fraction_mean", "gpu_memory_busy_fraction_mean", "gpu_power_w_mean",
    "idle_share", "three_node_ratio", *(f"operator_share_{kind}" for kind in _PROFILED),
    "regions", "cores_over_threads",
)  # fmt: skip
# A fresh machine's own chatter (neighbours looked for, clocks) is a hundred to a thousand bytes a
# second; a gradient of 10,000 parameters every second is more than this. Below it nothing of the
# job is sent, and whether a few bytes were seen tells nothing of the job.
CHATTER_BYTES_PER_S: Final = 1e4
_IS_LOG: Final = np.array([feature.is_log for feature in FEATURES])


def require_same(about: Mapping[str, Any], where: str) -> None:
    """Refuse a model's ``features.json`` that lists other features than this version's.

    Raises ModelError naming ``where`` and some of the features that differ.
    """
    names = tuple(about.get("names", ()))
    if about.get("schema_version") == SCHEMA_VERSION and names == NAMES:
        return
    odd = sorted(set(names) ^ set(NAMES))[:3]
    raise ModelError(
        f"{where}: was fitted on other features"
        + (f" ({', '.join(odd)}, ...)" if odd else " (another order or version)"),
        hint="fit it again: advisor train models",
    )


def feature_table(records: Sequence[RunRecord]) -> Floats:
    """Return the features of some runs.

    Returns
    -------
    array of shape (n_records, n_features)
        In the order of ``FEATURES``; nan where unknown.
    """
    values = np.full((len(records), len(FEATURES)), math.nan)
    index = {name: column for column, name in enumerate(NAMES)}
    for row, record in enumerate(records):
        for name, value in _values(record):
            values[row, index[name]] = value
    logs = values[:, _IS_LOG]
    with np.errstate(divide="ignore", invalid="ignore"):
        values[:, _IS_LOG] = np.where(logs > 0, np.log(logs), math.nan)
    return values


def is_watched() -> NDArray[np.bool_]:
    """Return which features bound what a model covers, shape (n_features,).

    Not the course of the partial run and not the mix of operators: they describe the program, and
    how wrong a model is on programs unlike those it has seen is what its intervals are made of.
    Nor a process's memory, which is mostly that of the libraries it has imported (0.38 to 0.5 GB
    over all jobs of ``datasets/runs``): what the job itself keeps is watched as its parameters,
    the optimizer's state and what is saved for the backward pass.
    """
    return np.array([
        f.group != "series" and not f.name.startswith(("flop_share_", "operator_share_"))
        and f.name not in ("step_time_cv", "loading_fraction", "memory_peak_bytes")
        for f in FEATURES
    ])  # fmt: skip


def without_length_and_price(rows: Floats) -> Floats:
    """Return the rows with ``NO_RATIO_DEPENDS_ON`` unknown: what a ratio may be learned from."""
    return _unknown(rows, NO_RATIO_DEPENDS_ON)


def as_asked(rows: Floats) -> Floats:
    """Return the rows as those of recorded jobs: also ``NEVER_RECORDED`` are unknown."""
    return _unknown(rows, (*NO_RATIO_DEPENDS_ON, *NEVER_RECORDED))


def _unknown(rows: Floats, names: Sequence[str]) -> Floats:
    kept = rows.copy()
    kept[:, [NAMES.index(name) for name in names]] = math.nan
    return kept


def _values(record: RunRecord) -> Iterator[tuple[str, float]]:
    yield from _job_values(record.job.facts)
    if record.anchor is not None:
        yield from _anchor_values(record.anchor, record.job.facts)
    series = series_of(record)
    if series is not None:
        yield from _series_values(series)
    yield from _configuration_values(record)
    yield from _physics_values(record)


def _job_values(facts: Mapping[str, Fact]) -> Iterator[tuple[str, float]]:
    for feature in FEATURES:
        value = facts.get(feature.name)
        if feature.group == "job" and isinstance(value, float):
            yield feature.name, value
    if any(name.startswith("flop_share_") for name in facts):
        for kind in _OPERATORS:  # a kind that is not counted has no share
            yield f"flop_share_{kind}", _number(facts, f"flop_share_{kind}", 0.0)
    flop, traffic = _number(facts, "flop_per_step"), _number(facts, "bytes_per_step")
    if traffic > 0:
        yield "intensity", flop / traffic


def _anchor_values(anchor: AnchorRun, job: Mapping[str, Fact]) -> Iterator[tuple[str, float]]:
    yield "anchor_time_s", anchor.time_s
    for feature in FEATURES:
        value = anchor.facts.get(feature.name)
        if feature.group == "anchor" and isinstance(value, float):
            yield feature.name, value
    step_s = _number(anchor.facts, "step_time_s")
    if step_s > 0:
        yield "busy_cores", _number(anchor.facts, "cpu_s_per_step") / step_s
        yield "flop_per_s", _number(job, "flop_per_step") / step_s
        three = _number(anchor.facts, "three_node_step_s")
        yield "three_node_ratio", three * _number(anchor.facts, "three_node_vcpus") / step_s
    if "idle_s" in anchor.facts:
        yield "idle_share", _number(anchor.facts, "idle_s") / anchor.time_s
        for kind in _PROFILED:
            share = _number(anchor.facts, f"operator_{kind}_s") / anchor.time_s
            yield f"operator_share_{kind}", share


def _series_values(series: ResourceSeries) -> Iterator[tuple[str, float]]:
    for channel in SEQUENCE_CHANNELS:
        values = np.asarray(series.channels.get(channel, ()), float)
        if values.size == 0:
            continue
        mean = float(np.mean(values))
        if channel.startswith("network_") and mean < CHATTER_BYTES_PER_S:
            continue
        yield f"{channel}_mean", mean
        if values.size < 3 or mean <= 0:
            continue  # one or two readings have no course
        third = values.size // 3
        yield f"{channel}_variation", float(np.std(values)) / mean
        growth = float(np.mean(values[-third:]) - np.mean(values[:third]))
        yield f"{channel}_late_growth", growth / mean


def _configuration_values(record: RunRecord) -> Iterator[tuple[str, float]]:
    first = record.configuration[0]
    yield "instances", float(record.instances)
    yield "accelerators", float(sum(m.count * m.accelerators for m in record.configuration))
    vcpus = [m.vcpus for m in record.configuration]
    if first.vcpus is not None:
        yield "vcpus", first.vcpus
        if record.anchor is not None and record.anchor.machines.vcpus is not None:
            yield "vcpus_over_anchor", first.vcpus / record.anchor.machines.vcpus
    if all(v is not None for v in vcpus):
        yield "total_vcpus", sum(m.count * (m.vcpus or 0.0) for m in record.configuration)
    if first.memory_gib is not None:
        yield "memory_gib", first.memory_gib
    if first.network_gbit_per_s is not None:
        yield "network_gbit_per_s", first.network_gbit_per_s
    if record.price_usd_per_h is not None:
        yield "price_usd_per_h", record.price_usd_per_h
    for name in ("workers", "servers", "threads", "regions"):
        value = record.layout.get(name)
        if isinstance(value, float):
            yield name, value
    cores, threads = _number(first.facts, "cores"), _number(record.layout, "threads")
    if threads > 0:
        yield "cores_over_threads", cores / threads


def _physics_values(record: RunRecord) -> Iterator[tuple[str, float]]:
    analytic = analytic_time_s(record)
    if math.isnan(analytic):
        return
    yield "analytic_time_s", analytic
    if record.anchor is not None:
        yield "analytic_over_anchor", analytic / record.anchor.time_s
    traffic = communication_s(record)
    yield "communication_fraction", traffic / analytic
    steps = _number(record.job.facts, "steps")
    if steps > 0:
        yield "traffic_s_per_step", traffic / steps


def _number(facts: Mapping[str, Fact], name: str, default: float = math.nan) -> float:
    value = facts.get(name)
    return value if isinstance(value, float) else default
