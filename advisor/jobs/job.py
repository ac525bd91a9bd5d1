"""The noun between what was seen (collectors) and what a step computes (planners).

A ``Job`` is the work of one step, how many steps there are, what feeds them, and the one point
that was measured. Everything the predictors know of the user's script passes through here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import to_record, told, with_hooks
from advisor.collectors.derive import Resources
from advisor.collectors.errors import counted
from advisor.collectors.format import Host, Limits, Loading, Told
from advisor.jobs.runs import Actual, LayoutRun
from advisor.planners.core import Operator, Operators, TrainingSetup, Work
from advisor.planners.memory import model_state
from advisor.planners.systems import NoiseScale, RankSpread
from advisor.quantities import count_text, seconds_text

if TYPE_CHECKING:
    from cattrs import Converter

# A job's length as its user says it: epochs, steps, samples; at most one of them.
Lengths = tuple[float | None, float | None, float | None]
NOT_SEEN: Final = "not seen"
# From the request of a rented machine to the first line of the program: it boots within a minute
# (time to SSH of 5,000 Google machines 23-25 s, rule of thumb 1-2 min: Aboukhalil 2018; over
# 300,000 starts on AWS and Google: Hao et al., arXiv 2107.03467), and an image of 8 GB (PyTorch
# with CUDA, unpacked) takes another to be written to a plain volume (131 MB/s, ``data_in``). [s]
BOOT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """What a job moves."""

    # brought to every machine before its first step; None where it is unknown [bytes]
    data_bytes: float | None = None
    data_source: str = NOT_SEEN
    # most that the place where the data lies gives to one machine; None for no limit but the
    # machine's own [bytes/s]
    data_bytes_per_s: float | None = None
    # of a model that training starts from, brought to every machine too [bytes]
    weights_bytes: float = 0.0
    # at which one machine writes a checkpoint; None for ``write_bytes_per_s`` [bytes/s]
    checkpoint_bytes_per_s: float | None = None
    # taken out of the cloud at the end; None for one checkpoint [bytes]
    result_bytes: float | None = None
    # from the request of a rented machine to the start of the program: boot and image; None where
    # nothing is rented [s]
    boot_s: float | None = None

    @property
    def rate_source(self) -> str:
        """Who says how fast checkpoints are written."""
        if self.checkpoint_bytes_per_s is not None:
            return "given: --checkpoint-rate"
        return "assumed: a volume with throughput for a save a minute, 125 to 1,000 MiB/s"


def recorded_data(samples: int | None, sample_bytes: float | None) -> Transfers:
    """Return the data of a loader as far as it was seen: its samples as tensors.

    Decoded samples are larger than files that hold them compressed, so this errs upwards.
    """
    if not samples or not sample_bytes:
        return Transfers()
    return Transfers(
        data_bytes=samples * sample_bytes,
        data_source=f"recorded: {samples:,} samples of {sample_bytes:,.0f} bytes as tensors",
    )


Floats = NDArray[np.float64]

# What a plain block-storage volume takes: the baseline of AWS gp3, 125 MiB/s, likewise Azure P10
# and a Google balanced disk of a few hundred GB.
VOLUME_BYTES_PER_S: Final = 131e6


# The most that such a volume takes where its throughput is provisioned: 1,000 MiB/s of AWS gp3, at
# 0.04 USD for a MiB/s and month (us-east-1: 0.05 USD an hour at most, not in the cost); Azure
# Premium SSD v2 and Google's persistent disks of a large machine reach 1,200 MB/s. (AWS's
# documentation of gp3 volumes, read 2026-11-25; gp3's price from its list of 2020-12.)
FASTEST_VOLUME_BYTES_PER_S: Final = 1000 * 2.0**20
# Throughput is provisioned so that a save is over in a minute, where a volume can.
_SAVED_WITHIN_S: Final = 60.0


def write_bytes_per_s(transfers: Transfers, size_bytes: float) -> float:
    """Return the rate at which one machine writes its part of a checkpoint [bytes/s].

    Local disks are not in the catalogue: who writes to them says ``--checkpoint-rate``.

    >>> [round(write_bytes_per_s(Transfers(), size) / 1e6) for size in (1e9, 30e9, 560e9)]
    [131, 500, 1049]
    """
    if transfers.checkpoint_bytes_per_s is not None:
        return transfers.checkpoint_bytes_per_s
    wanted = size_bytes / _SAVED_WITHIN_S
    return min(max(wanted, VOLUME_BYTES_PER_S), FASTEST_VOLUME_BYTES_PER_S)


def data_in_s(transfers: Transfers, network_bytes_per_s: Floats) -> Floats:
    """Return the time to bring data and weights to machines with these networks [s].

    Weights come from a model hub that gives what the machine takes.
    """
    rate = np.minimum(network_bytes_per_s, VOLUME_BYTES_PER_S)
    weights_s = transfers.weights_bytes / rate
    if transfers.data_bytes_per_s is not None:
        rate = np.minimum(rate, transfers.data_bytes_per_s)
    return np.asarray((transfers.data_bytes or 0.0) / rate + weights_s, dtype=float)


# The scatter of runs, of which one run says nothing: repeats of whole jobs on one cloud machine
# scatter by 8-10 % (repeated Lambda and MLPerf measurements); whole jobs of
# ``lab/experiments/zoo.py`` two hours apart on one shared machine by 10 % each (27 scripts,
# 2026-11-22).
RUN_LOG_SD: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Loading):
    """What feeds the job: its loader as far as it was seen, and what of it was not."""

    # that a loader process waits for disks and networks besides, anywhere alike [s]
    idle_s_per_sample: float = 0.0
    # what nobody saw being loaded, in the plural: ``"images"``; empty where it was seen, or where
    # it is text, which costs next to nothing
    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The one point that was measured: a step of this job on the host."""

    step_s: float  # mean optimizer step without contention, waiting for data included [s]
    log_sd: float  # one standard deviation of the error of ``ln(step_s)``
    host: Host
    threads: int | None
    device: str  # ``"cpu"`` or ``"cuda"``
    processes: int = 1
    # part of the measured step in which they exchanged gradients and none computed [s]
    exchange_s: float = 0.0
    precision: str = ""  # as recorded; empty where that is not known
    setup: TrainingSetup | None = None  # the software as recorded; None where that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program without training steps, or a step that nobody saw into."""

    # duration_s, cpu_s: its time, and its CPU time over all cores [s]
    duration_s: float
    cpu_s: float
    parallelism: float  # mean number of cores it kept busy while it ran [cores]
    # as many as it lets itself use (``n_jobs``, ``nthread``); None for all there are [cores]
    cores: float | None = None
    # as many as there were where it was measured; None for a program that is not expected to use
    # more than it did [cores]
    host_cores: float | None = None
    # kind, unit: the framework, and what a round of it is; empty for a whole program
    kind: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: its work, its length, its feed, its measured point."""

    name: str
    work: Work | None  # what one step computes on one device; None for a program without steps
    program: Program | None  # in place of ``work`` for such a program
    global_batch: int  # samples of one optimizer step over all workers [samples]
    total_steps: float  # optimizer steps of the whole job at that global batch
    total_source: str
    feed: Feed
    measured: Measured | None  # none for a job that was described, not run
    # peak_rss_bytes, recorded_batch: peak resident memory, and the samples per process and step it
    # was seen at
    peak_rss_bytes: int
    recorded_batch: int
    # from the start of the program to its first step, on the host: imports, data, compilation
    startup_s: float = 0.0
    # how often the end of an epoch comes; 0 where that is unknown or there is none
    epochs: float = 0.0
    # what the end of an epoch (validation, checkpoints) takes, in steps
    epoch_end_steps: float = 0.0
    actuals: tuple[Actual, ...] = ()  # steps measured in real runs of the job
    # those of other jobs, by ``Actual.run``: what they say of machines is heard where nothing but
    # its runs is known of this one
    other_runs: tuple[Actual, ...] = ()
    resources: Resources | None = None  # what its recorded steps used over time
    transfers: Transfers = field(default_factory=Transfers)  # what is moved before and after it
    # defaults that were taken because nobody said otherwise, in words
    assumptions: tuple[str, ...] = ()
    # what of a model its description lacks or guesses, a clause each
    left_out: tuple[str, ...] = ()
    # attention heads of a recorded transformer, as its attention was recorded or the user says
    heads: int | None = None
    # checkpoint_bytes, checkpoint_s: size and standstill of a checkpoint where the recording saw
    # one. [bytes], [s]
    checkpoint_bytes: float | None = None
    checkpoint_s: float | None = None
    told: Told | None = None  # what a recorded script was told of devices; see ``script_notes``
    # what keeps the script from using a whole machine, wherever it runs
    limits: Limits = field(default_factory=Limits)
    # length_log_sd, startup_log_sd, epoch_end_log_sd: one standard deviation of the error of
    # ln(total_steps), ln(startup_s), ln(epoch_end_steps); 0 where somebody said them
    length_log_sd: float = 0.0
    startup_log_sd: float = 0.0
    epoch_end_log_sd: float = 0.0
    # what may stand beside the steps and was not seen, as an error of ln(their time)
    unseen_log_sd: float = 0.0
    # what should have been known of it and could not be read, in words
    unread: tuple[str, ...] = ()
    # the user's measured steps of transformers, this one or others: they calibrate its layouts
    layout_runs: tuple[LayoutRun, ...] = ()
    # how unlike its recorded ranks computed; None where fewer than two were recorded, or others
    # used the machine too
    spread: RankSpread | None = None
    # of its recorded gradients; None where a step has one gradient norm only
    noise: NoiseScale | None = None
    # its step was traced with nothing computed, on an accelerator that was not there: it needs one
    is_rehearsed: bool = False
    # that fast kernels were missing where it was recorded, in a sentence; empty where none was
    fallback: str = ""

    def __repr__(self) -> str:
        """Say in one line which job this is, how long it is, and what is known of its step."""
        what = "program" if self.work is None else f"{count_text(self.work.parameters)} parameters"
        each = counted(self.global_batch, "sample")
        length = f"{counted(self.total_steps, 'step')} of {each}"
        known = "rehearsed" if self.is_rehearsed else "described"
        seen = f"{known}, nothing measured"
        if self.measured is not None:
            cpu = self.measured.host.cpu_model
            seen = f"{seconds_text(self.measured.step_s)} a step measured on {cpu}"
        return f"<Job {self.name}: {what}, {length} ({self.total_source}); {seen}>"

    @property
    def state_bytes(self) -> float:
        """Size of one checkpoint: as seen, otherwise parameters and optimizer state. [bytes].

        Of adapters themselves where nothing else is trained; 0 for a program.
        """
        if self.checkpoint_bytes is not None:
            return self.checkpoint_bytes
        if self.work is None:
            return 0.0
        work = self.work
        weights = work.parameter_bytes
        if work.setup.has_adapters:
            weights = work.trainable_parameters * work.setup.stored_bytes(work.precision)
        return float(model_state(weights, 0, work.optimizer_state_bytes).device_bytes)

    @property
    def result_bytes(self) -> float:
        """What leaves the cloud at the end: as given, otherwise one checkpoint. [bytes]."""
        given = self.transfers.result_bytes
        return self.state_bytes if given is None else given

    @property
    def recorded_passes(self) -> int:
        """Micro-batches of a recorded step: 1 unless the script accumulates gradients."""
        if self.work is None:
            return 1
        return max(round(self.recorded_batch / self.work.micro_batch), 1)

    @property
    def is_as_recorded(self) -> bool:
        """Whether a step is still the one that was measured: nobody has changed it since."""
        seen = self.measured
        if seen is None or self.work is None:
            return seen is not None
        return (
            self.global_batch == self.recorded_batch * seen.processes
            and seen.precision in ("", self.work.precision)
            and seen.setup in (None, self.work.setup)
        )

    @property
    def compute_threads(self) -> float | None:
        """Threads that the job computes with on any processor; None for all there are."""
        processes = 1 if self.measured is None else self.measured.processes
        return self.limits.compute_threads(processes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the job beside any answer."""
        own: tuple[str, ...] = ()
        if self.layout_runs:
            several = "s" if len(self.layout_runs) > 1 else ""
            own = (
                f"layouts calibrated on {len(self.layout_runs)} measured run{several} of yours "
                "(advisor runs actual)",
            )
        return (*own, *self.left_out, *self.limits.notes(), *self.unread)

    @property
    def paid_steps(self) -> float:
        """Steps that the whole job takes the time of: its own, and those its epochs' ends cost."""
        return self.total_steps + self.epochs * self.epoch_end_steps

    @property
    def paid_steps_log_sd(self) -> float:
        """One standard deviation of the error of ln(``paid_steps``)."""
        ends = self.epochs * self.epoch_end_steps / self.paid_steps
        return math.hypot(self.length_log_sd, ends * self.epoch_end_log_sd, self.unseen_log_sd)

    def facts(self) -> dict[str, Any]:
        """Return what the numbers rest on, for reports and JSON; sources in words."""
        facts: dict[str, Any] = {
            "is_program": self.program is not None,
            "global_batch": self.global_batch,
            "total_steps": self.total_steps,
            "total_steps_source": self.total_source,
            "startup_s": self.startup_s,
            "epoch_end_steps": self.epoch_end_steps,
            "epochs_that_end": self.epochs,
            "checkpoint": {
                "bytes": self.state_bytes,
                "seen_s": self.checkpoint_s,
                "bytes_per_s": write_bytes_per_s(self.transfers, self.state_bytes),
                "rate_source": self.transfers.rate_source,
                "source": "parameters and optimizer state"
                if self.checkpoint_bytes is None
                else "recorded",
            },
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "transfers": to_record(self.transfers) | {"result_bytes": self.result_bytes},
            "peak_rss_gib": self.peak_rss_bytes / 2**30,
            "measured_elsewhere": [
                *(f"{a.count} x {a.instance_type}: {a.step_s:g} s" for a in self.actuals),
                *(run.words for run in self.layout_runs),
            ],
        }
        if self.left_out:
            facts["left_out"] = list(self.left_out)
        if self.is_rehearsed:
            facts["is_rehearsed"] = True
        if self.fallback:
            facts["fallback"] = self.fallback
        if self.feed.is_environment:
            facts["environment_s"] = self.feed.wait_s
        if self.feed.unseen:
            facts["unseen_input"] = self.feed.unseen
        if self.program is not None and self.program.unit:
            facts["rounds"] = {"kind": self.program.kind, "unit": self.program.unit}
        if self.measured is not None:
            facts |= {
                "measured_step_s": self.measured.step_s,
                "measured_on": self.measured.host.cpu_model,
            }
        if self.work is not None:
            flop = float(self.work.operators.flop.sum())
            facts |= {
                **told(self.work, ("parameters", "trainable_parameters", "precision", "setup")),
                "flop_per_sample": flop / self.work.micro_batch,
            }
        return facts


# Statistics of fewer samples than these are noise to batch normalisation: ResNet-50's error on
# ImageNet is 23.6 % at 32 images a device, 24.8 % at 8, 27.3 % at 4 and 34.7 % at 2
# (Wu and He, Group Normalization, 2018, table 2).
_FEWEST_SAMPLES = 8


def script_notes(job: Job, placed: Iterable[tuple[bool, int]]) -> tuple[str, ...]:
    """Return what to change in the script, and what spreading its batch does.

    ``placed``: of every candidate shown: whether it has accelerators, and its devices.
    """
    rows = list(placed)
    notes = []
    told = job.told
    if told is not None and told.change and any(is_accelerated for is_accelerated, _ in rows):
        notes.append(f"on accelerators the script needs a change ({told.reason}): {told.change}")
    most = max((devices for _, devices in rows), default=1)
    if job.told is not None and most > 1 and not job.told.spreads:
        notes.append(
            "rows of several devices need DDP or FSDP in the script, and none was seen "
            "(advisor plan prints the lines to add)"
        )
    each = job.global_batch / most
    if job.work is not None and job.told is not None and most > 1 and each < _FEWEST_SAMPLES:
        batch = counted(job.global_batch, "sample")
        samples = f"on {counted(most, 'device')} each sees {each:.3g} of the {batch} a step"
        is_normalised = any(one.kind.startswith("BatchNorm") for one in job.work.layers)
        notes.append(
            f"{samples}: batch normalisation over so few changes what is learned "
            "(torch.nn.SyncBatchNorm, or a larger --batch)"
            if is_normalised
            else f"{samples}; a larger --batch uses them better, with its learning rate tuned "
            "again"
        )
    return tuple(notes)


def _as_rows(converter: Converter) -> None:
    """Write operators as the list of their rows."""
    rows = tuple[Operator, ...]
    converter.register_unstructure_hook(
        Operators, lambda found: converter.unstructure(tuple(found), rows)
    )
    converter.register_structure_hook(
        Operators, lambda value, _: Operators.of(converter.structure(value, rows))
    )


with_hooks(_as_rows)
