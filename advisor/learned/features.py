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
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.learned.analytic import analytic_time_s, communication_s
from advisor.learned.course import SEQUENCE_CHANNELS, series_of
from advisor.records import AnchorRun, Fact, ResourceSeries, RunRecord

SCHEMA_VERSION: Final = 3
Group = Literal["job", "anchor", "series", "configuration", "layout", "physics"]
Floats = NDArray[np.float64]


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
# No recording of a job tells them (``importers.profiled``), whoever else's runs may: a model that
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

    Raises
    ------
    ModelError
        Naming ``where`` and some of the features that differ.
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


def table(records: Sequence[RunRecord]) -> Floats:
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
