"""One row of numbers for one run: names, order, units and groups in one table.

Everything here is known before the run that is predicted: the job, its partial run on the anchor,
the configuration, the layout, and what physics makes of them. What is unknown is nan, and stays
so: estimators fill it with the median they were fitted on. Positive quantities of many orders of
magnitude are taken as natural logarithms. What physics says before anything is learned is
``compute_s`` and ``communication_s``; what a sequence network takes, ``sequences``.
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

UNKNOWN: Final = math.nan
_BYTES_PER_PARAMETER: Final = 4.0  # gradients in single precision


def compute_s(record: RunRecord) -> float:
    """Return the anchor's time over the speed and the workers of the configuration [s].

    The physical estimate before anything is learned: the anchor's time, carried over.

    here        in the text                      meaning, unit
    anchor_s    T_a                              time of the whole job on the anchor [s]
    speed       v                                of one process: cores, or the device's rates [any]
    workers     W                                processes that share the samples
    parameters  P                                bytes of gradients sent per step [bytes]
    rate        B                                a machine's link, each way [bytes/s]

    Compute: T_a v_a / (v W). Between accelerators v is the geometric mean of arithmetic rate and
    memory bandwidth: the two ceilings of a roofline, when the mix of the job is unknown. An anchor
    of another batch is scaled by operations. Communication of one step: all-reduce in a ring sends
    2 (n-1)/n P through every link (Patarasu & Yuan 2009, section 3); a parameter server sends and
    receives P for each of W workers through its one link, both directions at once: W P. Lower
    bounds.
    """
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


def communication_s(of: Mapping[str, Floats]) -> Floats:
    """Return the time that gradients and buffers take through the slowest link [s].

    ``of``: columns by name, as ``as_columns`` returns them.
    """
    nodes, size = of["instances"], of["gradient_bytes"]
    workers = np.where(of["workers"] > 0, of["workers"], nodes)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A ring; before each forward pass rank 0 sends the buffers down a tree, as DDP does.
        traffic = 2.0 * (nodes - 1) / nodes * size
        traffic += np.ceil(np.log2(nodes)) * of["buffer_bytes"]
        traffic = np.where(of["servers"] > 0, workers * size / of["servers"], traffic)
        steps = np.where(of["is_job"] > 0, of["steps"] / workers, 1.0)
        seconds = steps * traffic * 8.0 / (1e9 * of["slowest_gbit_per_s"])
    return np.where((nodes >= 2) & ~np.isnan(seconds), seconds, 0.0)


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


def _gradient_bytes(facts: Mapping[str, Fact]) -> float:
    size = _number(facts, "parameter_bytes")
    return _number(facts, "parameters") * _BYTES_PER_PARAMETER if math.isnan(size) else size


def _layout(record: RunRecord, name: str, default: float) -> float:
    value = record.layout.get(name)
    return value if isinstance(value, float) and value > 0 else default


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

    The course of the partial run, as a sequence network takes it: channels of equal length.

    | channels                                 | of                  | scaled                  |
    |------------------------------------------|---------------------|-------------------------|
    | cores busy                               | the whole job       | over the anchor's cores |
    | memory                                   | the whole job       | over its peak           |
    | network received, sent [bytes/s]         | the whole job       | ln(1 + kB/s) / 10       |
    | step, mean of the ranks and slowest      | `profile --workers` | over the mean step      |
    | wait of a step for the others, mean      | `profile --workers` | over the mean step      |
    | sent on the wire [bytes/s], busiest rank | `profile --workers` | ln(1 + kB/s) / 10       |

    The four of the thesis come first, in its order. Those of ranks follow where a record that is
    fitted has them; a record without is all zeros there.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumns:
    """What a model is asked about or learns from, one row a run; nan where unknown."""

    features: Floats  # (n, n_features); in the order of ``FEATURES``
    # physics_s, anchor_s, price_usd_per_h: (n,); what a label is relative to
    physics_s: Floats
    anchor_s: Floats
    price_usd_per_h: Floats
    accelerator: NDArray[np.str_]  # (n,); of the first machines
    records: tuple[RunRecord, ...]  # of every run, or one whose partial run all of them share

    def __len__(self) -> int:
        """Return how many runs there are."""
        return len(self.features)

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> RunColumns:
        """Return runs of which each has a record."""
        first = [record.configuration[0].accelerator for record in records]
        return cls._of(tuple(records), as_columns(records), first)

    @classmethod
    def like(
        cls, record: RunRecord, accelerator: Sequence[str], columns: Mapping[str, Floats]
    ) -> RunColumns:
        """Return runs of one job, whose machines and layouts are columns in features' units.

        ``columns``: what stands in place of the record's own, by name.
        """
        count = len(accelerator)
        own = {name: np.repeat(value, count) for name, value in as_columns([record]).items()}
        return cls._of((record,), own | dict(columns), accelerator)

    @classmethod
    def _of(
        cls, records: tuple[RunRecord, ...], columns: Mapping[str, Floats],
        accelerator: Sequence[str],
    ) -> RunColumns:  # fmt: skip
        shared = _of_jobs(records)
        values = np.repeat(shared, len(accelerator), axis=0) if len(records) == 1 else shared
        for name, column in (*columns.items(), *_derived(columns).items()):
            if name in _COLUMN:
                values[:, _COLUMN[name]] = column
        logs = values[:, _IS_LOG]
        with np.errstate(divide="ignore", invalid="ignore"):
            values[:, _IS_LOG] = np.where(logs > 0, np.log(logs), math.nan)
        analytic, anchor = columns["analytic_time_s"], columns["anchor_s"]
        return cls(
            features=values, physics_s=np.where(np.isnan(analytic), anchor, analytic),
            anchor_s=anchor, price_usd_per_h=columns["price_usd_per_h"],
            accelerator=np.array(accelerator, dtype=np.str_), records=records,
        )  # fmt: skip

    def take(self, rows: NDArray[Any]) -> RunColumns:
        """Return some of the runs, by place or by a mask."""
        places = np.arange(len(self))[rows].tolist()
        is_shared = len(self.records) == 1
        return RunColumns(
            features=self.features[rows], physics_s=self.physics_s[rows],
            anchor_s=self.anchor_s[rows], price_usd_per_h=self.price_usd_per_h[rows],
            accelerator=self.accelerator[rows],
            records=self.records if is_shared else tuple(self.records[i] for i in places),
        )  # fmt: skip

    def course(self, channels: int) -> Floats:
        """Return the partial runs' series (``sequences``) of every row."""
        found = sequences(self.records, channels)
        return np.repeat(found, len(self), axis=0) if len(self.records) == 1 else found


_COLUMN: Final = {name: column for column, name in enumerate(NAMES)}


def _of_jobs(records: Sequence[RunRecord]) -> Floats:
    """Return what jobs, their partial runs and the course of those say; runs share them."""
    values = np.full((len(records), len(FEATURES)), math.nan)
    distinct = {(id(one.job), id(one.anchor)): one for one in records}
    known = {key: dict(_values(one)) for key, one in distinct.items()}
    for row, record in enumerate(records):
        for name, value in known[id(record.job), id(record.anchor)].items():
            values[row, _COLUMN[name]] = value
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


def as_columns(records: Sequence[RunRecord]) -> dict[str, Floats]:
    """Return what is known of the runs' machines and layouts, and what physics makes of it."""
    rows = [_of_machines(record) for record in records]
    found = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    sent_s = np.where(found["is_estimated"] > 0, 0.0, communication_s(found))
    return found | {"analytic_time_s": found["analytic_time_s"] + sent_s}


def _of_machines(record: RunRecord) -> dict[str, float | None]:
    """Return the same of one run, by name."""
    groups, anchor, facts = record.configuration, record.anchor, record.job.facts
    known_s = record.facts.get("analytic_time_s")
    vcpus = [m.vcpus for m in groups]
    rates = [m.network_gbit_per_s for m in groups if m.network_gbit_per_s]
    layout = {n: _number(record.layout, n) for n in ("workers", "servers", "threads", "regions")}
    return layout | {
        "instances": record.instances,
        "accelerators": sum(m.count * m.accelerators for m in groups),
        "vcpus": vcpus[0],
        "total_vcpus": None if None in vcpus else sum(m.count * (m.vcpus or 0.0) for m in groups),
        "memory_gib": groups[0].memory_gib,
        "network_gbit_per_s": groups[0].network_gbit_per_s,
        "slowest_gbit_per_s": min(rates, default=None),
        "price_usd_per_h": record.price_usd_per_h,
        "cores": _number(groups[0].facts, "cores"),
        "anchor_s": None if anchor is None else anchor.time_s,
        "anchor_vcpus": None if anchor is None else anchor.machines.vcpus,
        "gradient_bytes": _gradient_bytes(facts),
        "buffer_bytes": _number(facts, "buffer_bytes", 0.0),
        "steps": _number(facts, "steps"),
        "is_job": float(record.time_kind == "job"),
        "analytic_time_s": known_s if isinstance(known_s, float) else compute_s(record),
        "is_estimated": isinstance(known_s, float),
    }


def _derived(of: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the features that follow from the columns."""
    analytic, traffic = of["analytic_time_s"], communication_s(of)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(np.isnan(analytic), math.nan, traffic / of["steps"])
        return {
            "vcpus_over_anchor": of["vcpus"] / of["anchor_vcpus"],
            "cores_over_threads": np.where(
                of["threads"] > 0, of["cores"] / of["threads"], math.nan
            ),
            "analytic_over_anchor": analytic / of["anchor_s"],
            "communication_fraction": traffic / analytic,
            "traffic_s_per_step": np.where(of["steps"] > 0, each, math.nan),
        }


def _number(facts: Mapping[str, Fact], name: str, default: float = math.nan) -> float:
    value = facts.get(name)
    return value if isinstance(value, float) else default
