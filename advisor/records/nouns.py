"""One labelled run: a job on a configuration in a layout, and the time and money that it took.

A record is what the learned models are fitted on. It is kept as one JSON object a line (module
``files``); the attributes below name every field with its unit, and ``docs/formats.md`` shows one.
A record is checked where it enters, and refused with file, row and column. Runs that failed or
were cut short are records too: ``time_s`` of a censored run is the time at which it was cut, a
lower bound.

Split keys: runs of one ``family`` are siblings (one program at other sizes) and must never stand
on both sides of a split; ``instance_key`` names the instance types of the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from advisor.errors import RunError

SCHEMA_VERSION: Final = 1

TimeKind = Literal["step", "epoch", "job", "per_million_samples"]
Status = Literal["ok", "failed", "oom", "censored"]
Role = Literal["all", "master", "worker_mean", "worker_max"]
Fact = float | str

# Channel of a resource series -> its unit. Rates, not counters: a reading is the mean over a tick.
CHANNELS: Final[dict[str, str]] = {
    "cpu_cores": "cores busy in the process tree",
    "memory_bytes": "bytes",
    "network_received_bytes_per_s": "bytes/s",
    "network_sent_bytes_per_s": "bytes/s",
    "disk_read_bytes_per_s": "bytes/s",
    "disk_write_bytes_per_s": "bytes/s",
    "gpu_fraction": "share of time with a kernel running, in [0, 1]",
    "gpu_memory_bytes": "bytes",
    "gpu_power_w": "W",
    "samples_per_s": "training examples/s",
    "steps_per_s": "optimizer steps/s",
    "step_s": "s, a step of a rank",
    "wait_s": "s of a step that a rank waits for the others",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSeries:
    """Readings of one role at a fixed interval."""

    role: Role = "all"  # whose: the whole job, the master, or the workers' mean or maximum
    interval_s: float  # [s]
    # keys of ``CHANNELS``, all of one length; the length may be 0
    channels: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        _require(self.role in get_args(Role), "role", self.role)
        _require(_is_positive(self.interval_s), "interval_s", self.interval_s)
        lengths = {len(values) for values in self.channels.values()}
        _require(len(lengths) <= 1, "channels", f"lengths {sorted(lengths)}")
        for name, values in self.channels.items():
            _require(name in CHANNELS, "channels", name)
            _require(all(math.isfinite(v) and v >= 0 for v in values), name, "a reading")

    @property
    def readings(self) -> int:
        """Length of every channel."""
        return max((len(values) for values in self.channels.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The training job as it is known before it runs in the cloud."""

    job_id: str  # the same program with the same settings
    family: str  # the same program: the split key of ``job``
    # numbers with the unit in the name (``batch``, ``parameters``, ``flop_per_step``) and labels
    # (``optimizer``). ``features.py`` lists the names that the models know.
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(bool(self.job_id), "job_id", self.job_id)
        _require(bool(self.family), "family", self.family)
        _check_facts(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """``count`` equal instances. None means unknown, never zero."""

    provider: str
    instance_type: str
    count: int = 1
    region: str = ""
    is_spot: bool = False
    vcpus: float | None = None  # of one instance; a fraction where a quota limits it [cores]
    memory_gib: float | None = None  # of one instance [GiB]
    accelerator: str = ""  # ``""`` for none
    accelerators: int = 0
    network_gbit_per_s: float | None = None  # of one instance [Gbit/s]
    price_usd_per_h: float | None = None  # of one instance [USD/h]
    # what else distinguishes it: ``core_speed``, ``fp32_flop_per_s``, ``network_delay_s``
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(bool(self.instance_type), "instance_type", self.instance_type)
        _require(self.count >= 1, "count", self.count)
        _require(self.accelerators >= 0, "accelerators", self.accelerators)
        _require(bool(self.accelerator) == (self.accelerators > 0), "accelerator",
                 f"{self.accelerator!r} with accelerators = {self.accelerators}")  # fmt: skip
        for name in ("vcpus", "memory_gib", "network_gbit_per_s"):
            value = getattr(self, name)
            _require(value is None or _is_positive(value), name, value)
        price = self.price_usd_per_h
        _require(price is None or (math.isfinite(price) and price >= 0), "price_usd_per_h", price)
        _check_facts(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRun:
    """The partial run of the same job on the anchor machine: what the user can give."""

    machines: Instances
    # of the same kind as the record's, full job extrapolated from the partial run where the kind
    # is ``job`` [s]
    time_s: float
    # statistics of the run: ``step_time_s``, ``cpu_s_per_step``, shares of operators
    facts: Mapping[str, Fact] = field(default_factory=dict)
    series: tuple[ResourceSeries, ...] = ()

    def __post_init__(self) -> None:
        _require(_is_positive(self.time_s), "time_s", self.time_s)
        _check_facts(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One labelled run."""

    record_id: str
    source: str
    job: JobFacts
    configuration: tuple[Instances, ...]
    # ``workers``, ``servers``, ``dp``, ``tp``, ``pp``, ``threads``, ``sync``, ...
    layout: Mapping[str, Fact] = field(default_factory=dict)
    # the label; a lower bound where the status is ``censored``; may be None where the run failed
    # [s]
    time_s: float | None
    time_kind: TimeKind  # what ``time_s`` is the time of
    cost_usd: float | None = None  # what was billed; None where unknown [USD]
    status: Status = "ok"
    replicate: int = 0  # repeats of one cell count from 0
    anchor: AnchorRun | None = None
    # of this very run (not known before it runs: only its beginning may be used)
    series: tuple[ResourceSeries, ...] = ()
    # anything else that was observed in the run; never a feature
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(bool(self.record_id), "record_id", self.record_id)
        _require(bool(self.configuration), "configuration", "no machines")
        _require(self.time_kind in get_args(TimeKind), "time_kind", self.time_kind)
        _require(self.status in get_args(Status), "status", self.status)
        if self.time_s is None:
            _require(self.status in ("failed", "oom"), "time_s", f"None with status {self.status}")
        else:
            _require(_is_positive(self.time_s), "time_s", self.time_s)
        cost = self.cost_usd
        _require(cost is None or (math.isfinite(cost) and cost >= 0), "cost_usd", cost)
        _require(self.replicate >= 0, "replicate", self.replicate)
        _check_facts(self.layout)
        _check_facts(self.facts)
        self._check_money()

    def _check_money(self) -> None:
        """Refuse a cost that is a hundred times off its own time and price: a wrong unit.

        Short runs are left alone, since providers bill a minimum.
        """
        price = self.price_usd_per_h
        if self.time_kind != "job" or not (self.cost_usd and price and self.time_s):
            return
        ratio = self.cost_usd / (price * self.time_s / 3600.0)
        _require(self.time_s < 60 or 0.01 < ratio < 100, "cost_usd",
                 f"{self.cost_usd}, but {self.time_s} s at {price} USD/h")  # fmt: skip

    @property
    def price_usd_per_h(self) -> float | None:
        """Price of the whole configuration [USD/h]; None where one of its prices is unknown."""
        total = 0.0
        for machines in self.configuration:
            if machines.price_usd_per_h is None:
                return None
            total += machines.count * machines.price_usd_per_h
        return total

    @property
    def instances(self) -> int:
        """Machines in all groups together."""
        return sum(machines.count for machines in self.configuration)

    @property
    def instance_key(self) -> str:
        """The split key of ``instance``: every instance type in the configuration."""
        return "+".join(sorted({machines.instance_type for machines in self.configuration}))


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _check_facts(facts: Mapping[str, Fact]) -> None:
    for name, value in facts.items():
        _require(isinstance(value, str) or math.isfinite(value), name, value)


def _require(condition: bool, column: str, value: object) -> None:
    if not condition:
        raise RunError(f"{column}: {value!r} is not a valid value", hint="see docs/formats.md")
