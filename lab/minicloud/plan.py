"""The runs to make, in an order such that stopping early still leaves a balanced set.

A job is a workload at one width and one batch. How many steps it has in all is declared when its
anchor run was made (``total_steps``): as many as take a time of the plan's ``Scale`` there, drawn
from the job's name, and a multiple of what the partial run saw. There are two plans: of
seconds (1 to 3 s, at least twice the partial run), of which many fit into an hour, and of minutes
(45 s to 2 min, at least twenty times), where a partial run tells of what is mostly not seen. A
larger job is thus not longer by construction, and the same job has the same total samples on every
configuration: ``W`` workers make ``ceil(total / W)`` steps.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from advisor.lab.workloads import WORKLOADS, load
from advisor.records.collected import Row, read_prices, shape_name

# Machines with limits that stand for instance types, at a nominal price.
#
# Price of one machine, SYNTHETIC: price_usd_per_h = BASE + PER_CORE x cores + PER_GBIT x Gbit/s.
# No provider's figure: the coefficients only have the order of magnitude of small cloud machines,
# and a fixed part, so that neither the smallest nor the largest machine is always the cheapest.


NOMINAL_BASE_USD_PER_H: Final = 0.005
NOMINAL_CORE_USD_PER_H: Final = 0.04
NOMINAL_GBIT_USD_PER_H: Final = 0.01
MIB: Final = 2**20

LayoutKind = Literal["single", "parameter-server", "allreduce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniInstance:
    """A limited share of this machine, named for its limit."""

    name: str
    cores: int = 1
    # cores' worth of time that the cgroup grants; None: all of the pinned cores [cores]
    quota: float | None = None
    threads: int = 1
    # data memory it may add to the freshly started process; None: no limit [bytes]
    memory_headroom_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cores < 1 or self.threads < 1 or not 0 < self.granted_cores <= self.cores:
            raise ValueError(f"impossible limits in {self}")

    @property
    def granted_cores(self) -> float:
        """Cores' worth of time that it may use [cores]."""
        return float(self.cores) if self.quota is None else self.quota


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniLayout:
    """How a job is spread over machines."""

    # ``"parameter-server"``: a master that holds the parameters, and workers that compute;
    # ``"allreduce"``: workers only, DistributedDataParallel, the first is the chief
    kind: LayoutKind = "single"
    workers: int = 1
    # every machine's link, each way; None where there is none [bit/s]
    rate_bit_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or (self.kind == "single") != (self.workers == 1):
            raise ValueError(f"impossible layout {self}")

    @property
    def nodes(self) -> int:
        return self.workers + (self.kind == "parameter-server")

    @property
    def name(self) -> str:
        """A short name for keys and tables."""
        if self.kind == "single":
            return "single"
        rate = "free" if self.rate_bit_per_s is None else f"{self.rate_bit_per_s / 1e6:g}mbit"
        return f"{'ps' if self.kind == 'parameter-server' else 'ddp'}{self.workers}-{rate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniPrices:
    """What machines that look like a limited share cost: given from outside, by shape."""

    # ``shape_of`` -> price of one machine [USD/h], and whose price it is
    by_shape: Mapping[str, tuple[float, str]]

    @classmethod
    def read(cls, path: Path) -> MiniPrices:
        """Read the prices of a collection, ``prices.json``."""
        return cls(by_shape=read_prices(path))

    def of(self, instance: MiniInstance, layout: MiniLayout) -> tuple[float, str]:
        """Return the price of one machine [USD/h] and its source; SYNTHETIC where none is."""
        nominal = nominal_price_usd_per_h(instance, layout), "synthetic"
        return self.by_shape.get(shape_of(instance, layout), nominal)


def shape_of(instance: MiniInstance, layout: MiniLayout) -> str:
    """Return what a machine's price goes by: its cores and its link."""
    rate = 0.0 if layout.kind == "single" else layout.rate_bit_per_s or 0.0
    return shape_name(instance.granted_cores, rate)


def nominal_price_usd_per_h(instance: MiniInstance, layout: MiniLayout) -> float:
    """Return the SYNTHETIC price of one machine of the layout [USD/h]."""
    gbit_per_s = (layout.rate_bit_per_s or 0.0) / 1e9
    return (
        NOMINAL_BASE_USD_PER_H
        + NOMINAL_CORE_USD_PER_H * instance.granted_cores
        + NOMINAL_GBIT_USD_PER_H * gbit_per_s
    )


ANCHOR: Final = MiniInstance(name="core-1")
QUARTER: Final = MiniInstance(name="quota-0.25core", quota=0.25)
HALF: Final = MiniInstance(name="quota-0.5core", quota=0.5)
THREE_QUARTERS: Final = MiniInstance(name="quota-0.75core", quota=0.75)
ONE_BY_TWO: Final = MiniInstance(name="quota-1core-2threads", cores=2, quota=1.0, threads=2)
ONE_AND_A_HALF: Final = MiniInstance(name="quota-1.5core", cores=2, quota=1.5, threads=2)
TWO: Final = MiniInstance(name="cores-2", cores=2, threads=2)
SCARCE_MEMORY: Final = MiniInstance(
    name="quota-0.5core-memory-96mib", quota=0.5, memory_headroom_bytes=96 * MIB
)
SMALL_MEMORY: Final = MiniInstance(
    name="quota-0.5core-memory-32mib", quota=0.5, memory_headroom_bytes=32 * MIB
)


Kind = Literal["partial", "full"]

PARTIAL_CPU_S: Final = 0.8  # least CPU time of a partial run of a job of seconds [s]

REPEATS: Final = 5

SINGLE: Final = MiniLayout()
THESIS_FREE: Final = MiniLayout(kind="parameter-server", workers=2)
DISTRIBUTED: Final[tuple[tuple[MiniInstance, MiniLayout], ...]] = (
    (HALF, MiniLayout(kind="parameter-server", workers=2, rate_bit_per_s=1e9)),
    (HALF, MiniLayout(kind="parameter-server", workers=2, rate_bit_per_s=3e8)),
    (HALF, MiniLayout(kind="allreduce", workers=3, rate_bit_per_s=1e9)),
    (HALF, MiniLayout(kind="allreduce", workers=3, rate_bit_per_s=3e8)),
    (HALF, MiniLayout(kind="parameter-server", workers=2, rate_bit_per_s=1e8)),
    (THREE_QUARTERS, MiniLayout(kind="allreduce", workers=2, rate_bit_per_s=1e9)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long the jobs of a plan are, and how closely they are watched."""

    name: str
    # shortest_s, longest_s: of a whole job on the anchor [s]
    shortest_s: float
    longest_s: float
    least_ratio: int  # steps of the whole job over those of its partial run
    partial_cpu_s: float
    cap_s: float  # a run that takes longer is cut short [s]
    partial_interval_s: float
    full_interval_s: float
    nodes: int


SECONDS: Final = Scale(
    name="seconds", shortest_s=1.0, longest_s=3.0, least_ratio=2, partial_cpu_s=PARTIAL_CPU_S,
    cap_s=25.0, partial_interval_s=0.05, full_interval_s=0.1, nodes=3,
)  # fmt: skip
MINUTES: Final = Scale(
    name="minutes", shortest_s=45.0, longest_s=120.0, least_ratio=20, partial_cpu_s=2.0,
    cap_s=3600.0, partial_interval_s=0.1, full_interval_s=1.0, nodes=4,
)  # fmt: skip
SCALES: Final = {scale.name: scale for scale in (SECONDS, MINUTES)}
_SPREAD_OVER: Final[tuple[tuple[MiniInstance, LayoutKind, int], ...]] = (
    (HALF, "allreduce", 2), (HALF, "allreduce", 4), (THREE_QUARTERS, "allreduce", 3),
    (HALF, "parameter-server", 3),
)  # fmt: skip
# Two to four ranks, over links from slow to fast.
SPREAD: Final[tuple[tuple[MiniInstance, MiniLayout], ...]] = tuple(
    (instance, MiniLayout(kind=kind, workers=workers, rate_bit_per_s=rate))
    for rate in (3e8, 1e8, 1e9)
    for instance, kind, workers in _SPREAD_OVER
)
# What every job of a minute runs on before any other does.
_FIRST_OF_MINUTES: Final[tuple[tuple[MiniInstance, MiniLayout], ...]] = (
    (ANCHOR, SINGLE),
    (HALF, MiniLayout(kind="allreduce", workers=2, rate_bit_per_s=3e8)),
    (TWO, SINGLE),
    (HALF, SINGLE),
    (HALF, MiniLayout(kind="allreduce", workers=4, rate_bit_per_s=1e8)),
    (HALF, MiniLayout(kind="parameter-server", workers=3, rate_bit_per_s=3e8)),
    (SMALL_MEMORY, SINGLE),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniJob:
    """A training job: a workload at one width and one batch (samples a worker and step)."""

    workload: str
    width: int
    batch: int

    @property
    def key(self) -> str:
        """The job's name; the workload before the first dash is the group to leave out."""
        return f"{self.workload}-w{self.width}-b{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniRun:
    """One run to make: a job on a configuration, partly (on the anchor) or in full."""

    kind: Kind
    job: MiniJob
    instance: MiniInstance
    layout: MiniLayout = SINGLE
    replicate: int = 0
    scale: Scale = SECONDS

    @property
    def key(self) -> str:
        """Unique in the plan; what "done already" is decided by."""
        return (
            f"{self.kind}/{self.job.key}/{self.instance.name}/{self.layout.name}/{self.replicate}"
        )


def jobs() -> tuple[MiniJob, ...]:
    """Return every job of the zoo, workload by workload."""
    return tuple(
        MiniJob(workload=name, width=width, batch=batch)
        for name in WORKLOADS
        for width in load(name).widths
        for batch in load(name).batches
    )


def distributed_jobs() -> tuple[MiniJob, ...]:
    """Return the jobs that are also spread over machines: every width at its largest batch."""
    return tuple(job for job in jobs() if job.batch == max(load(job.workload).batches))


def total_steps(
    job: MiniJob, *, anchor_step_s: float, partial_steps: int, scale: Scale = SECONDS
) -> int:
    """Return the steps that the job declares as its whole on one worker.

    ``anchor_step_s``: corrected median step of its partial run [s].
    """
    return max(scale.least_ratio * partial_steps, math.ceil(wanted_s(job, scale) / anchor_step_s))


def wanted_s(job: MiniJob, scale: Scale) -> float:
    """Return what the whole job is to take on the anchor, drawn from its name [s]."""
    position = (zlib.crc32(job.key.encode()) % 1000) / 999.0  # uniform in [0, 1]
    return float(scale.shortest_s * (scale.longest_s / scale.shortest_s) ** position)


def plan(scale: Scale = SECONDS) -> Iterator[MiniRun]:
    """Yield all runs of a scale, the most telling first."""
    runs = _plan_of_seconds() if scale == SECONDS else _plan_of_minutes()
    return (replace(run, scale=scale) for run in runs)


def _plan_of_minutes() -> Iterator[MiniRun]:
    """Yield jobs of every workload at its largest batch; each full run takes about a minute.

    One width of every workload first, each in all that matters: the anchor itself, more and fewer
    cores, clusters whose ranks exchange gradients over limited links, scarce memory. The other
    widths follow, then what is left of the links and machines.
    """
    every = _rounds_of_widths()
    for some in every:
        yield from (MiniRun(kind="partial", job=job, instance=ANCHOR) for job in some)
        yield from (
            MiniRun(kind="partial", job=job, instance=HALF, layout=THESIS_FREE) for job in some
        )
        for instance, layout in _FIRST_OF_MINUTES:
            yield from _each(some, instance, layout=layout)
    together = [job for some in every for job in some]
    for instance, layout in SPREAD:
        if (instance, layout) not in _FIRST_OF_MINUTES:
            yield from _each(together, instance, layout=layout)
    for instance in (THREE_QUARTERS, QUARTER, ONE_AND_A_HALF, SCARCE_MEMORY):
        yield from _each(together, instance)


def _rounds_of_widths() -> list[list[MiniJob]]:
    """Return three lists of jobs, each with every workload once, its widths in turn."""
    rounds: list[list[MiniJob]] = [[], [], []]
    for at, name in enumerate(sorted(WORKLOADS, key=lambda name: zlib.crc32(name.encode()))):
        widths = load(name).widths
        for number, some in enumerate(rounds):
            width = widths[(at + number) % len(widths)]
            some.append(MiniJob(workload=name, width=width, batch=max(load(name).batches)))
    return rounds


def _plan_of_seconds() -> Iterator[MiniRun]:
    """Yield the shipped dataset's runs.

    Each tier visits every job, in an order that changes workload from run to run, so that what
    has been collected is balanced over workloads at any time. Quotas come first: a run that asks
    for half a core is hardly disturbed by others; runs that want the whole machine come last.
    """
    every = sorted(jobs(), key=lambda job: zlib.crc32(job.key.encode()))
    spread = sorted(distributed_jobs(), key=lambda job: zlib.crc32(job.key.encode()))
    noise = [job for job in every if job in _median_jobs()]

    yield from (MiniRun(kind="partial", job=job, instance=ANCHOR) for job in every)
    for instance in (HALF, SMALL_MEMORY, QUARTER):
        yield from _each(every, instance)
    for replicate in range(1, REPEATS):
        yield from _each(noise, HALF, replicate=replicate)
    yield from (
        MiniRun(kind="partial", job=job, instance=HALF, layout=THESIS_FREE) for job in spread
    )
    for instance, layout in DISTRIBUTED:
        yield from _each(spread, instance, layout=layout)
    for instance in (THREE_QUARTERS, ANCHOR, TWO):
        yield from _each(every, instance)
    yield from (MiniRun(kind="partial", job=job, instance=ANCHOR, replicate=1) for job in every)
    for replicate in range(1, REPEATS):
        yield from _each(noise, ANCHOR, replicate=replicate)
    for instance in (ONE_AND_A_HALF, ONE_BY_TWO):
        yield from _each(every, instance)


def _each(
    some: Iterable[MiniJob],
    instance: MiniInstance,
    *,
    layout: MiniLayout = SINGLE,
    replicate: int = 0,
) -> Iterator[MiniRun]:
    for job in some:
        yield MiniRun(kind="full", job=job, instance=instance, layout=layout, replicate=replicate)


def _median_jobs() -> frozenset[MiniJob]:
    """Return one job a workload, middle width and batch: what the repeat noise is measured on."""
    return frozenset(
        MiniJob(workload=name, width=load(name).widths[1], batch=load(name).batches[1])
        for name in WORKLOADS
    )


# The duration of a plan: what each run declares, at the pace of the runs that were made.
#
#     t(run) = T / (c W)              a full run: T the whole job's time on the anchor, c the cores
#                                     granted to each worker, W the workers that share its samples
#     left   = sum over runs to make of t(run) x pace
#     pace   = sum over runs made of seconds spent / sum of their t, for runs of one kind of layout
#
# Start, exchange and contention are in the pace, which is 1 until a run of its kind was made.


def declared_s(run: MiniRun) -> float:
    """Return what a run takes where nothing is exchanged and nobody else is there [s]."""
    if run.kind == "partial":
        return run.scale.partial_cpu_s
    cores = min(run.instance.granted_cores, float(run.instance.threads))
    return wanted_s(run.job, run.scale) / (cores * run.layout.workers)


class Pace:
    """Seconds spent for each declared second, by the kind of layout; rows come one at a time."""

    def __init__(self, planned: Iterable[MiniRun]) -> None:
        self._planned = {run.key: run for run in planned}
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._declared_s: defaultdict[str, float] = defaultdict(float)

    def add(self, row: Row) -> None:
        """Take a run that was made into account."""
        run = self._planned.get(row["key"])
        nodes: Sequence[Mapping[str, Any]] = row.get("nodes") or ({},)
        if run is None or "wall_s" not in row:
            return
        kind = self._kind(run)
        self._spent_s[kind] += float(row["wall_s"]) + float(nodes[0].get("setup_s", 0.0))
        self._declared_s[kind] += declared_s(run)

    def left_s(self, runs: Iterable[MiniRun]) -> float:
        """Return how long runs that are still to be made will take [s]."""
        return sum(declared_s(run) * self._of(self._kind(run)) for run in runs)

    def _of(self, kind: str) -> float:
        declared = self._declared_s[kind]
        return self._spent_s[kind] / declared if declared else 1.0

    @staticmethod
    def _kind(run: MiniRun) -> str:
        return f"{run.kind} {run.layout.kind}"
