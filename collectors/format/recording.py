"""The nouns of a recording, as derived from the raw files of a run.

The raw append-only files are the truth; everything here can be derived from them again.
``read_recording`` (module ``store``) is the only way from a folder to these nouns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

from advisor.collectors.format.facts import (
    Ended,
    GradientNorms,
    Limits,
    Rehearsed,
    Routing,
    Saves,
    typed,
)
from advisor.collectors.format.record_files import fields
from advisor.collectors.format.why_cpu import Told
from advisor.collectors.hooks import format as fmt

# What memory may grow by in a window that says something of ordinary running.
_STEADY: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeries:
    """One of the processes that train together; rank 0 of a program of one process."""

    rank: int
    pid: int
    # ordinary steps in order, the rank's own waiting for a core taken out [s]
    step_s: tuple[float, ...]
    # time of each step blocked in communication, after the first twelve (warm-up, traced steps);
    # the mean of the steps between two records, at most 20 ms apart or one step. Empty for a
    # program of one process [s]
    wait_s: tuple[float, ...]
    # sent_bytes_per_step, received_bytes_per_step: on the wire, by its TCP sockets; None where the
    # system does not tell [bytes]
    sent_bytes_per_step: float | None
    received_bytes_per_step: float | None
    # handed to collectives called from Python; DDP's gradients are not among them [bytes]
    payload_bytes_per_step: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeries:
    """One process of the tree, once a second; counters since it began."""

    pid: int
    rank: int | None
    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    cpu_s: tuple[float, ...]
    minor_faults: tuple[int, ...]
    major_faults: tuple[int, ...]
    received_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """A stretch of readings in each of which a quota took time away. [s]."""

    begin_s: float
    end_s: float
    throttled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedReading:
    """Memory that the processes touched in one window (``profile --working-set``)."""

    t_s: float
    window_s: float
    # touched_bytes, resident_bytes: touched in it, and held at its end; pages that processes share
    # count once for each [bytes]
    touched_bytes: int
    resident_bytes: int
    processes: int
    held_bytes: int  # held at its begin: what came meanwhile was touched because it came [bytes]

    @property
    def is_steady(self) -> bool:
        """Whether memory hardly grew meanwhile: not a start, nor the loading of data."""
        return self.resident_bytes <= _STEADY * self.held_bytes


RunStatus = Literal["running", "finished", "stopped", "failed", "killed", "interrupted"]
StepClock = Literal["optimizer", "backward", "loader", "marker", "fit", "round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBenchmark:
    """Micro-benchmarks of the host, measured once and cached (``advisor doctor``)."""

    # matmul_flop_per_s, matmul_one_core_flop_per_s: large fp32 product on every usable core at
    # once, and on one alone [flop/s]
    matmul_flop_per_s: float
    matmul_one_core_flop_per_s: float
    # copy_bytes_per_s, copy_one_core_bytes_per_s: memory traffic (read plus write) of a large copy
    # [bytes/s]
    copy_bytes_per_s: float
    copy_one_core_bytes_per_s: float
    # interpreter-free integer work of one core while all are busy, in CoreMark-like iterations;
    # see ``watch.benchmark`` for how it was tied to CoreMark [1/s]
    scalar_score: float
    disk_read_bytes_per_s: float | None
    measured_at: str


# What a device of this machine sustains, by name (``advisor doctor --device-sheet``). device: cpu
# or cuda; name: as the processor or the driver names itself; ..._flop_per_s: large products by
# precision, on all threads, None where the device has none [flop/s]; copy_bytes_per_s: traffic,
# read plus written, of a large copy [bytes/s]; call_s: one small call from Python, many issued in
# a row [s]. Of processors, empty for GPUs: threads, numbers of threads, and for each of them large
# fp32 products, the copy, and a small training step.
Sheet = Mapping[str, Any]
_BY_THREADS: Final = ("flop_per_s_by_threads", "bytes_per_s_by_threads", "step_s_by_threads")
_SHEET: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "name", "torch_version", "measured_at"), str),
    **dict.fromkeys(("fp32_flop_per_s", "copy_bytes_per_s", "call_s"), float),
    **{f"{name}_flop_per_s": float | None for name in ("tf32", "bf16", "fp16", "fp8")},
    "threads": tuple[int, ...],
    **dict.fromkeys(_BY_THREADS, tuple[float, ...]),
}
_UNSAID: Final = {
    "torch_version": "", "measured_at": "", **dict.fromkeys(("threads", *_BY_THREADS), ()),
}  # fmt: skip


def sheet_of(said: Mapping[str, Any]) -> Sheet:
    """Return a device's sheet from its JSON record.

    Raises TypeError or KeyError if something is missing, or of another type.
    """
    return {name: typed(hint, {**_UNSAID, **said}[name]) for name, hint in _SHEET.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine that was recorded on.

    ``cpu_limit`` is what the process may use: affinity and cgroup quota together. [cores]
    ``sheets`` is empty where nobody measured the devices.
    """

    cpu_model: str
    logical_cpus: int
    physical_cpus: int | None
    cpu_limit: float
    memory_bytes: int
    memory_limit_bytes: int
    gpus: tuple[str, ...]
    system: str
    python_version: str
    torch_version: str | None
    benchmark: HostBenchmark | None = None
    sheets: tuple[Sheet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One tick over the whole process tree; counters are cumulative since the start.

    ``gpu_*`` is None where there is no GPU or NVML; received and sent are over its bus. Fractions
    are in [0, 1]. ``rss_bytes`` is the sum over the processes; ``pss_bytes`` counts what they
    share once (see ``watch.proportional``; None where an earlier version had not looked yet).
    ``stolen_s`` is time that the hypervisor gave to others, over all processors; ``major_faults``
    page faults that went to disk, ``minor_faults`` those that did not (0 in recordings made before
    they were read). ``run_delay_s`` is the waiting for a core of all processes,
    ``slowest_delay_s`` of whoever waited most between two readings; ``machine_cpu_s`` the
    processor time of the whole machine as last read, None unknown. The fields are in the order of
    the sampler's payload.
    """

    t_s: float
    processes: int
    cpu_s: float
    run_delay_s: float
    rss_bytes: int
    pss_bytes: int | None
    disk_read_bytes: int
    disk_write_bytes: int
    network_received_bytes: int
    network_sent_bytes: int
    throttled_s: float
    pressure_fraction: float | None
    stolen_s: float = 0.0
    major_faults: int = 0
    gpu_fraction: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_received_bytes_per_s: float | None = None
    gpu_sent_bytes_per_s: float | None = None
    minor_faults: int = 0
    slowest_delay_s: float = 0.0
    machine_cpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The settled time of one optimizer step, contention taken out."""

    # corrected_s, raw_s: mean step after warm-up, without and with the waiting for a core [s]
    corrected_s: float
    raw_s: float
    # low_s, high_s: 90 % interval of the corrected mean by batch means [s]
    low_s: float
    high_s: float
    # steps, warmup_steps: steps used, and steps dropped before them
    steps: int
    warmup_steps: int
    delay_fraction: float  # share of the raw time spent waiting for a core: the machine's noise
    clock: StepClock
    is_settled: bool  # the stop rule was satisfied before the recording ended
    # how far the correction may be off: part of the interval [s]
    contention_half_width_s: float = 0.0


# Rows of the hooks' tables as columns of one length, by name; empty where there are no rows.
Columns = Mapping[str, tuple[Any, ...]]


def rows_of(columns: Columns, *names: str) -> Iterator[tuple[Any, ...]]:
    """Return the rows of some columns.

    >>> list(rows_of({"name": ("a", "b"), "count": (1, 2)}, "count"))
    [(1,), (2,)]
    """
    return zip(*(columns[name] for name in names), strict=True) if columns else iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepStep:
    """One real step traced inside the user's own loop.

    Attributes
    ----------
    operators : Columns
        All calls of one operator with the same sizes: ``name``, ``phase`` (``"forward"``,
        ``"backward"`` or ``"optimizer"``), ``count``, ``flop``, ``bytes`` (operands read plus
        results written), ``fixed_bytes`` (the part that belongs to parameters, gradients and
        optimizer state), ``dtype`` (operators on integers count no flop and are filed under
        ``"fp32"``), ``shapes`` (the tensor operands' sizes, e.g. ``"128,32x64,64x128"``),
        ``fused_by`` (the class of the module whose time steps these are and which accelerators
        compute by few kernels a step, ``"GRU"``; empty of any other), and ``time_s``, the
        host's, scaled to the corrected step.
    layers : Columns
        Leaf modules in forward order, over the step's samples: ``name``, ``kind``,
        ``parameters``, ``forward_s``, ``backward_s``, ``forward_flop``, ``backward_flop``,
        ``output_bytes``, ``saved_bytes``.
    """

    samples: int  # samples that went through it (all micro-batches of the step)
    micro_batches: int  # passes over samples of their own in it (gradient accumulation)
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    optimizer_state_bytes: int
    saved_bytes: int  # kept for the backward pass at its peak [bytes]
    peak_bytes: int | None  # peak of tensor memory in the step, where it could be followed [bytes]
    precision: str  # autocast or parameter type: ``"fp32"``, ``"bf16"``,
    device: str
    is_compiled: bool
    operators: Columns
    layers: Columns
    flags: tuple[str, ...]
    gradient_bytes: int = 0
    # buffers of the modules that learn: data parallelism sends them to all ranks in every step
    buffer_bytes: int = 0
    # fixed bytes, bytes that grow with the micro-batch, and storages, at the moments of the step
    # that are its peak for some batch: the largest of fixed + growing x batch / traced [bytes]
    memory_frontier: tuple[tuple[int, int, int], ...] = ()
    # the same while optimizers update, where these are apart: of rehearsals
    update_frontier: tuple[tuple[int, int, int], ...] = ()
    # what the allocator's segments are more than the peak, of batches so many times as large,
    # where its blocks were replayed [bytes]
    lost: tuple[tuple[float, int], ...] = ()
    # share of the time that the calmest trace waited for a core: how rough the operators' shares
    # are
    contention: float = 0.0
    # what the optimizers' updates take of an ordinary step, with the Python between their
    # operators, which the trace does not see [s]
    update_s: float | None = None
    # of a rehearsed step in which sizes that the network decides are the least there can be;
    # ``operators`` are of the most. Empty where it decides none
    least_operators: Columns = field(default_factory=dict)
    # of a rehearsal's one rank. shards: what all ranks' optimizers update, over what this one's
    # do; ranks: those that divide the work of a sample, which is all of theirs here; elsewhere:
    # what other ranks compute that this one's step does not show, in words
    shards: float = 1.0
    ranks: int = 1
    elsewhere: str = ""
    # of low-rank adapters: their rank, the names of the modules beside which they stand, and the
    # bits of a frozen weight there (32, 16, 8 or 4); 0 and none where there are none
    adapter_rank: int = 0
    adapter_modules: tuple[str, ...] = ()
    base_bits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The training loader: what feeds the job."""

    batch: int | None = None
    dataset_samples: int | None = None
    batches_per_epoch: int | None = None
    workers: int = 0  # loader processes; 0 loads inside the loop
    prefetch_factor: int | None = None  # batches that each of them makes ahead
    # pin_memory, non_blocking: whether batches lie in pinned memory, and whether the script lets
    # its copies to the device be queued; by its words, since a processor copies nothing
    pin_memory: bool = False
    non_blocking: bool = False
    # wait_s, raw_wait_s: mean time per step that the loop spends in the loader, without neighbours
    # and by the clock; the first is part of the corrected step [s]
    wait_s: float = 0.0
    # of one host core to produce a sample; None where it was not seen [s]
    cpu_s_per_sample: float | None = None
    sample_bytes: float | None = None
    raw_wait_s: float = 0.0
    # an environment (reinforcement learning) in a loader's place: the host steps it in the loop
    is_environment: bool = False


Confidence = Literal["given", "certain", "likely", "weak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalWork:
    """How long the whole job is, and how we know.

    ``source`` says where it was found, e.g. ``"range(args.epochs) in train.py:41"``.
    """

    steps: int
    epochs: float | None
    source: str
    confidence: Confidence

    @classmethod
    def of(
        cls, steps: float, epochs: float | None, source: str, confidence: Confidence
    ) -> TotalWork:
        """Return the work of so many steps, rounded; one at least."""
        whole = max(1, round(steps))
        return cls(steps=whole, epochs=epochs, source=source, confidence=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds as the steps of a recording."""

    kind: str  # the framework, e.g. ``"LightGBM"``.
    unit: str  # what a round is: ``"round"``, ``"tree"``, ``"batch"``, ``"fit"``,
    device: str
    cores: float | None  # as many as the script lets it use; None for all there are [cores]
    busy_cores: float | None
    # what the first round took beyond an ordinary one: compilation, binning [s]
    compile_s: float | None
    # how far the mean of the rounds to come may be from that of the rounds seen
    spread_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A partial run as recorded; users call it a profile.

    Parts are None where the script gave nothing to see: a script without torch has readings only.
    ``threads`` is what the framework computes with; ``world_size`` the processes that train
    together. ``startup_s`` is from the start to the end of the first step; ``boundary_s`` what a
    step takes longer that has the end of an epoch in it (validation, checkpoints, a loader that
    starts anew), and ``boundaries`` how many of these were seen; ``step_samples`` the samples of a
    step over all processes. ``communication`` holds the framework's own figures on it; ``saves``
    are the checkpoints that were seen; ``gradients`` the gradient norms at two batch sizes, None
    where a step has one only; ``limits`` what kept the script from using the machine;
    ``told`` what it was told of devices; ``rounds`` says what the steps are where no optimizer of
    torch makes them.
    ``ranks`` are the processes that train together, ``processes`` all (the largest 32),
    ``throttling`` when a quota took time away. ``workers`` is how many ranks ``--workers`` asked
    for, ``wrapping`` what was done to a script that is no ranks' by itself: ``""``,
    ``"wrapped"``, ``"refused: ..."``. ``folder`` is where the command was started, ``""`` unknown.

    ``touched`` is the memory touched in windows, where that was asked for; ``routing`` says which
    experts the tokens of a mixture were sent to. ``rehearsal`` is set where nothing was computed:
    then no step has a time, and operators take none. ``ended`` is the error that the script ended
    with, None where no hook saw one. ``endless`` names the loop around the steps that never ends,
    or the hours that it lasts; ``""`` where it ends or nobody knows. ``fallbacks`` are packages of
    fast kernels that the script said it goes without.

    ``ending_s`` is from the last step to the end of the program, as it left or was asked to leave.

    All times are those without neighbours (module ``contention``), what the clock said beside them
    as ``raw``, and how far the correction may be off as ``half_width``. ``duration_s`` is by the
    clock, ``busy_s`` the same without neighbours, ``contention`` the share of it that they took,
    and ``contention_half_width`` relative to ``busy_s``.
    """

    run_id: str
    path: Path
    command: tuple[str, ...] = ()
    status: RunStatus = "running"
    stop_reason: str = ""
    exit_code: int | None = None
    started_at: str = ""
    duration_s: float
    host: Host
    readings: tuple[Reading, ...]
    step_time: StepTime | None
    deep_step: DeepStep | None
    loading: Loading | None
    total_work: TotalWork | None
    threads: int | None
    world_size: int
    accumulation_steps: int
    peak_rss_bytes: int
    warnings: tuple[str, ...]
    startup_s: float | None = None
    boundary_s: float | None = None
    boundaries: int = 0
    step_samples: float | None = None
    optimizers: tuple[str, ...] = ()
    communication: dict[str, float] | None = None
    saves: Saves | None = None
    gradients: GradientNorms | None = None
    ending_s: float | None = None
    startup_raw_s: float | None = None
    startup_half_width_s: float | None = None
    boundary_raw_s: float | None = None
    boundary_half_width_s: float | None = None
    busy_s: float | None = None
    contention: float = 0.0
    contention_half_width: float = 0.0
    limits: Limits = field(default_factory=Limits)
    told: Told | None = None
    rounds: Rounds | None = None
    ranks: tuple[RankSeries, ...] = ()
    processes: tuple[ProcessSeries, ...] = ()
    throttling: tuple[Throttling, ...] = ()
    workers: int = 1
    bandwidth_bit_per_s: float | None = None
    wrapping: str = ""
    touched: tuple[TouchedReading, ...] = ()
    routing: Routing | None = None
    folder: str = ""
    rehearsal: Rehearsed | None = None
    ended: Ended | None = None
    endless: str = ""
    fallbacks: tuple[str, ...] = ()

    @property
    def fallback_words(self) -> str:
        """A sentence about fast kernels that were not there; empty where none was missed.

        What stood in for them was recorded, and is what answers price.
        """
        if not self.fallbacks:
            return ""
        *others, last = self.fallbacks
        names = f"{', '.join(others)} and {last}" if others else last
        are, them = ("are", "them") if others else ("is", "it")
        return (
            f"{names} {are} not installed here: the slow code in place of {them} is what was "
            f"recorded and is priced. With {them} a step may take far less."
        )

    @property
    def steps_by_rank(self) -> dict[int, tuple[float, ...]]:
        """Rank -> its ordinary steps in order, its own waiting for a core taken out [s]."""
        return {one.rank: one.step_s for one in self.ranks}

    @property
    def wait_by_step(self) -> dict[int, tuple[float, ...]]:
        """Rank -> time of each step blocked in communication [s]; see ``RankSeries``."""
        return {one.rank: one.wait_s for one in self.ranks}


def read_reading(payload: bytes, start_ns: int) -> Reading:
    """Return the reading in a payload, its time counted from ``start_ns``."""
    values = dict(_unpacked(Reading, fmt.READING_PAYLOAD, payload, start_ns))
    return Reading(**values | {"machine_cpu_s": values["machine_cpu_s"] or None})


def read_touched(payload: bytes, start_ns: int) -> TouchedReading | None:
    """Return the window in a payload; None if it is too short to hold one."""
    if len(payload) < fmt.TOUCHED_PAYLOAD.size:
        return None
    return TouchedReading(
        **dict(_unpacked(TouchedReading, fmt.TOUCHED_PAYLOAD, payload, start_ns))
    )


def _unpacked(
    kind: type, layout: Struct, payload: bytes, start_ns: int
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a payload of the sampler's, by name, in seconds.

    They are times in ns there, and below 0 what nobody read.
    """
    for one, value in zip(dataclasses.fields(kind), fields(layout, payload), strict=True):
        name = one.name
        if name.endswith("_s") and not name.endswith("_per_s"):
            yield name, (value - start_ns * (name == "t_s")) / 1e9
        else:
            is_unread = value < 0 and name.startswith(("pss_", "pressure_", "gpu_"))
            yield name, None if is_unread else value
