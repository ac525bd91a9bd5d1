"""The file format of a recording: packed, checksummed, append-only records.

A file is a sequence of frames, each written at once::

    magic (2 bytes)  kind (1)  0 (1)  payload length (4)  crc32 (4)  payload

little-endian; the checksum covers the payload and starts from the kind. A reader that meets
anything else looks for the next magic whose checksum holds, so a torn tail or a flipped bit costs
the frame it hits and no other; zeros behind the last frame are space that earlier versions kept.

Every file begins with a ``HEADER`` frame that names the schema version. Kinds are never reused
and fields only ever added at the end of a payload: a reader takes the fields it knows.
"""

from __future__ import annotations

import os
import re
import struct
from zlib import crc32

from .lineage import stat_of

SCHEMA_VERSION = 1
MAGIC = b"\xadR"
FRAME = struct.Struct("<2sBxII")
LARGEST_PAYLOAD = 64 * 2**20

# Kinds. HEADER, FACT and END carry JSON objects; the others the structures below.
HEADER, FACT, END, STEP, POOL, LOADER, DEVICE_STEP, READING, PROCESS, STEPS = range(1, 11)
COMMUNICATION, TOUCHED = 20, 21

# One step of a clock: time and the main thread's wait for a core, both monotonic [ns]; index from
# 1; clock; flags; which optimizer; backward passes and loader batches since the step before; time
# in those loader batches [us]; samples in them; the main thread's wait for a core in them [us].
STEP_PAYLOAD = struct.Struct("<QQIBBHHHIII")
# Several steps in one record: the size of each one's payload, and the payloads.
STEPS_HEAD = struct.Struct("<H")
# A time, and the wait for a core accumulated by then: of the slowest thread of the pool over each
# interval between two such records, of the main thread, and of the slowest thread but the main one
# (missing before 2026-11-22); and the main thread's CPU time since it began (0: not read). [ns]
POOL_PAYLOAD = struct.Struct("<QQQQQ")
# One loader so far: time [ns]; loader; iterators begun; steps that followed its batches; batches;
# samples; time inside the iterator, the loop's own CPU time inside it, the workers' CPU time;
# the workers' wait for a core, of their main threads and of their others. [ns]
LOADER_PAYLOAD = struct.Struct("<QHHIIQQQQQQ")
# A step's time on the accelerator: index of the step that it ends with, and duration [ns].
DEVICE_STEP_PAYLOAD = struct.Struct("<IQ")
# One tick of the profiler over the process tree, cumulative since the start: time [ns];
# processes; CPU time, wait for a core [ns]; resident bytes, proportional share (-1: not read);
# bytes read and written on disk; bytes received and sent; throttled time [ns]; CPU pressure
# (-1: unknown); time stolen by the hypervisor [ns]; major page faults; GPU busy share, memory
# bytes, power [W], SM clock [MHz], PCIe bytes/s in and out (all -1: no GPU); minor page faults;
# the wait for a core of the process that waited most, over each interval between two readings; CPU
# time of the whole machine as last read, since it began [ns]. The last three are missing before
# 2026-11-22, and 0 where nothing is known.
READING_PAYLOAD = struct.Struct("<QIQQqqQQQQQdQQdqddddQQQ")
# The sizes that version 1 began with: the fields after them came later.
STEP_BYTES, LOADER_BYTES, READING_BYTES, POOL_BYTES = 36, 52, 156, 24
POOL_OTHERS_BYTES = 32
# One process of the tree, cumulative since it began: time [ns]; pid, start [clock ticks since
# boot]; resident bytes now; CPU time [ns]; minor, major page faults; TCP bytes received and sent.
PROCESS_PAYLOAD = struct.Struct("<QIQQQQQQQ")
# What training together has cost a process, cumulative since it joined: time [ns]; steps; CPU time
# of the main thread and its wait for a core [ns]; time inside collectives [ns], their number, and
# the bytes handed to them; bytes that its TCP sockets sent and received (-1: not read); of the
# latest backward pass that DistributedDataParallel timed, how long gradients were exchanged, and
# the part that the computation hid [ns] (-1: none).
COMMUNICATION_PAYLOAD = struct.Struct("<QIQQQIQqqqq")

# Memory that the process tree touched in a window: its end [ns] and length [ns]; bytes touched in
# it, and resident at its end; processes; bytes resident at its begin. Only where it was asked for
# (``profile --working-set``).
TOUCHED_PAYLOAD = struct.Struct("<QQQQIQ")

# Clocks by the number that stands in the file: a loader's batches, backward passes, updates of an
# optimizer, the script's own marks; whole fits of an estimator in a loop; rounds, batches or
# jitted updates of a framework without torch's optimizers.
CLOCKS = ("loader", "backward", "optimizer", "marker", "fit", "round")
CLOCK_LOADER, CLOCK_BACKWARD, CLOCK_OPTIMIZER, CLOCK_MARKER, CLOCK_FIT, CLOCK_ROUND = range(6)
# A recording uses the clock of the highest rank that ticked. By the clock's number; the last entry
# is for -1, no clock yet.
CLOCK_RANK = (0, 3, 4, 5, 1, 2, -1)

# Flags of a tick: it was traced, follows a traced one, held more than training (a loader began
# anew), completes a training step (of several optimizers one does), or is the first to complete a
# whole one: what the ticks before completed turned out to be parts of steps.
FLAG_DEEP, FLAG_AFTER_DEEP, FLAG_BOUNDARY, FLAG_COMPLETES, FLAG_RENEWED = 1, 2, 4, 8, 16

# The file through which the profiler talks to the script: what to do and from which step on
# (0: never), and when it last said so (monotonic ns). Rewritten in place.
CONTROL_FILE = "control"
CONTROL_PAYLOAD = struct.Struct("<QQQ")
ACTION_STOP, ACTION_DETACH = 1, 2
NEVER = 2**63

# Environment of a rank of ``profile --workers N``: how many there are, and the port at rank 0 on
# which the hooks may bring them together.
WRAP_VARIABLE = "ADVISOR_WORKERS"
# What scripts and frameworks call a job's length, the plainest last, and what turns it into steps.
# A rollout has "num_steps", too. Frames are an environment's, of reinforcement learning.
LENGTHS = {
    "steps": ("max_steps", "total_steps", "max_train_steps", "num_train_steps", "train_steps",
              "num_training_steps", "total_training_steps", "training_steps", "total_train_steps",
              "train_iters", "num_iterations", "total_iterations", "max_iterations", "max_iters",
              "num_iters", "total_iters", "n_iters", "max_iter", "train_num_steps", "max_updates",
              "max_update", "iterations", "num_steps", "steps"),
    "epochs": ("num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "total_epochs",
               "train_epochs", "max_epoch", "epochs"),
    "samples": ("train_samples", "total_samples", "num_train_samples"),
    "tokens": ("total_tokens", "train_tokens", "max_train_tokens", "num_train_tokens",
               "token_budget", "training_tokens", "target_tokens"),
    "frames": ("total_timesteps", "max_timesteps", "total_env_steps", "total_frames"),
    "hours": ("max_hours", "train_hours", "max_train_hours", "time_budget_hours"),
    "tokens_per_step": ("tokens_per_step", "tokens_per_iter", "tokens_per_batch",
                        "batch_tokens", "global_batch_tokens", "total_batch_size"),
    "sequence": ("seq_len", "sequence_length", "seq_length", "block_size", "max_seq_len",
                 "context_length", "max_seq_length"),
    "passes": ("update_epochs", "ppo_epochs", "k_epochs", "num_sgd_iter", "n_epochs"),
    "frames_per_step": ("train_frequency", "train_freq"),
}  # fmt: skip
LENGTH_NAMES = frozenset(name for names in LENGTHS.values() for name in names)
# How a recording says whether, and as what, its scripts are rehearsed (JSON); see
# ``rehearsal.start``.
REHEARSAL = "ADVISOR_REHEARSAL"
REHEARSED = "-rehearsed"  # ends the name of its event file


def is_rehearsed() -> bool:
    """Whether this process is a rehearsal."""
    return '"always"' in os.environ.get(REHEARSAL, "")


def is_kept_offline() -> bool:
    """Whether this process is a rehearsal that may not connect to other machines."""
    return is_rehearsed() and '"network": true' not in os.environ[REHEARSAL]


def framed(kind: int, payload: bytes) -> bytes:
    """Return ``payload`` as one frame."""
    return FRAME.pack(MAGIC, kind, len(payload), crc32(payload, kind)) + payload


def start_ticks(pid: int) -> int:
    """Return when ``pid`` started, in clock ticks since boot: with the pid, its identity.

    0 where there is no ``/proc``.
    """
    return max(0, stat_of(pid, 19))


# What can be a secret at all has one of these in it.
_SUSPICIOUS = re.compile(
    r"pass|pwd|token|secret|key|cred|auth|cookie|otp|bearer|basic|sig|jwt|pat|session|@|://|"
    r"A[KSIRG][IDOP]A|AIza|hf_|gh[pousr]_|sk-|xox|eyJ|glpat|pypi-|npm_|dop_|ya29|PRIVATE",
    re.IGNORECASE,
)


def may_hold_secrets(text: str) -> bool:
    """Whether a text may have a secret in it."""
    return _SUSPICIOUS.search(text) is not None
