"""Nouns of the planners: a job's work, devices, links, machines and layouts.

Units stand in the names; sizes are bytes, rates bytes/s and flop/s, times seconds. Nothing here
knows of prices, files or providers. Thousands of layouts are columns of arrays inside the
planners; the objects here are for what comes in and what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.arrays import Offload, concatenate, select
from advisor.planners.core.errors import check_counts, check_not_negative, check_positive
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    Precision,
    Schedule,
    TrainingSetup,
    Transformer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One moment that is the step's peak for some size of the micro-batch.

    The replay of a step's allocations at every size of the batch at once: whatever the
    micro-batch, the step's peak is one of these moments (the upper hull of fixed and growing
    bytes).
    """

    gradient_bytes: float  # of the parameters' gradients that were there [bytes]
    # what else does not grow with the micro-batch: what an optimizer computes with, a
    # micro-batch's gradient before it is added [bytes]
    temporary_bytes: float
    growing_bytes_per_sample: float  # activations, their gradients, logits [bytes/sample]
    blocks: int = 0  # storages that lived; 0 where nobody counted
    # the temporaries are what an accelerator's optimizer updates parameters in groups with
    is_update: bool = False

    def __post_init__(self) -> None:
        check_not_negative(
            "moment",
            gradient_bytes=self.gradient_bytes,
            temporary_bytes=self.temporary_bytes,
            growing_bytes_per_sample=self.growing_bytes_per_sample,
            blocks=self.blocks,
        )


OperatorKind = Literal[
    "matmul", "convolution", "winograd", "depthwise", "attention", "recurrent",
    "normalisation", "elementwise", "reduction", "embedding", "copy", "optimizer", "other",
]  # fmt: skip
Phase = Literal["forward", "backward", "optimizer"]
_WORDS: Final = frozenset({"name", "kind", "phase", "dtype"})
Recompute = Literal["none", "selective", "full"]
# What a device sustains, as far as it is known.
_RATES: Final = (
    "memory_bytes_per_s", "fp32_flop_per_s", "tf32_flop_per_s", "bf16_flop_per_s",
    "fp16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s", "sustained_fp32_flop_per_s",
    "sustained_fp16_flop_per_s", "best_fp16_flop_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """All calls of one operator with the same sizes in one step: a row of ``Operators``."""

    name: str  # the framework's name, e.g. ``"aten::mm"``.
    kind: OperatorKind
    phase: Phase  # forward and backward grow with the micro-batch; the optimizer's share does not
    count: float
    flop: float  # floating-point operations of all calls together [flop]
    # memory traffic of all calls together: operands read plus results written [bytes]
    bytes: float
    # the part of ``bytes`` that does not grow with the batch (parameters, gradients) [bytes]
    fixed_bytes: float = 0.0
    dtype: str = "fp32"  # element type of the main operand as a precision name, e.g. ``"fp32"``.
    # calls on accelerators, where the framework runs it over lists of tensors; None: ``count``
    listed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operators:
    """The operators of a step, in columns of one length; one by one they are rows.

    The fields are those of ``Operator``; ``listed`` is NaN for None.

    Raises ValueError if sizes are impossible.
    """

    name: NDArray[Any]
    kind: NDArray[Any]
    phase: NDArray[Any]
    count: NDArray[np.float64]
    flop: NDArray[np.float64]
    bytes: NDArray[np.float64]
    fixed_bytes: NDArray[np.float64]
    dtype: NDArray[Any]
    listed: NDArray[np.float64]

    def __post_init__(self) -> None:
        is_called = np.isnan(self.listed) | ((self.listed > 0) & (self.listed <= self.count))
        is_sized = (self.count > 0) & (self.flop >= 0)
        is_sized &= (self.fixed_bytes >= 0) & (self.fixed_bytes <= self.bytes)
        for are_right, what in ((is_called, "calls over lists"), (is_sized, "sizes")):
            if not are_right.all():
                raise ValueError(f"impossible {what} in {self[int(are_right.argmin())]}")

    @classmethod
    def of(cls, rows: Iterable[Operator]) -> Operators:
        """Return rows as columns."""
        found = tuple(rows)
        return cls.from_columns(
            {column.name: [getattr(row, column.name) for row in found] for column in fields(cls)}
        )

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Operators:
        """Return columns of words, numbers and, in ``listed``, None."""
        return cls(**{
            name: np.array(values, object if name in _WORDS else float)
            for name, values in columns.items()
        })  # fmt: skip

    def keeping(self, rows: NDArray[np.bool_], *others: Operator) -> Operators:
        """Return the operators at some rows, and others behind them."""
        return concatenate([select(self, rows), Operators.of(others)])

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, place: int) -> Operator:
        return tuple(self)[place]

    def __iter__(self) -> Iterator[Operator]:
        columns = {column.name: getattr(self, column.name).tolist() for column in fields(self)}
        for *others, listed in zip(*columns.values(), strict=True):
            known = None if math.isnan(listed) else listed
            yield Operator(**dict(zip(columns, (*others, known), strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operators) and tuple(self) == tuple(other)

    @property
    def kernels(self) -> NDArray[np.float64]:
        """Calls in the step on an accelerator."""
        return np.where(np.isnan(self.listed), self.count, self.listed)

    @property
    def is_recurrent(self) -> NDArray[np.bool_]:
        """Whether an accelerator's library runs it, for all time steps of a recurrent layer."""
        is_fused = ~np.isnan(self.listed) & (self.phase != "optimizer")
        return np.asarray(is_fused | (self.kind == "recurrent"), bool)

    @property
    def is_update(self) -> NDArray[np.bool_]:
        """Whether it runs once a step, whatever the batch: the optimizer's."""
        return np.asarray(self.phase == "optimizer", bool)

    @property
    def grown_bytes(self) -> NDArray[np.float64]:
        """The part of ``bytes`` that grows with the batch [bytes]."""
        return self.bytes - self.fixed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer in forward order: what a pipeline planner cuts."""

    name: str
    parameters: int
    forward_flop_per_sample: float = 0.0
    backward_flop_per_sample: float = 0.0
    # output_bytes_per_sample, saved_bytes_per_sample: activation handed to the next layer, and
    # activations kept for the backward pass [bytes]
    output_bytes_per_sample: float = 0.0
    saved_bytes_per_sample: float = 0.0
    # forward_s, backward_s: measured at the recorded micro-batch on the host; None where not
    # measured [s]
    forward_s: float | None = None
    backward_s: float | None = None
    # the module's class as the framework names it, e.g. ``"Conv2d"``; empty where unknown.
    kind: str = ""

    def __post_init__(self) -> None:
        check_not_negative(
            f"layer {self.name}",
            parameters=self.parameters,
            forward_flop_per_sample=self.forward_flop_per_sample,
            backward_flop_per_sample=self.backward_flop_per_sample,
            output_bytes_per_sample=self.output_bytes_per_sample,
            saved_bytes_per_sample=self.saved_bytes_per_sample,
            forward_s=self.forward_s,
            backward_s=self.backward_s,
        )


# Operators that hand a value of the device to Python.
_READS: Final = ("aten::_local_scalar_dense", "aten::item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one training step computes on one device.

    The operators describe one optimizer step over ``micro_batch`` samples without accumulation.
    """

    operators: Operators
    micro_batch: int  # samples that the operators processed
    parameters: int
    trainable_parameters: int
    # parameter_bytes, optimizer_state_bytes: sizes as the job stores them
    parameter_bytes: float
    optimizer_state_bytes: float
    saved_bytes_per_sample: float  # activations kept for the backward pass [bytes/sample]
    input_bytes_per_sample: float = 0.0
    # is_pinned, is_queued: of what a loader hands over, whether it lies in pinned memory, and
    # whether its copy to the device is queued behind the device's work (``non_blocking``)
    is_pinned: bool = False
    is_queued: bool = False
    loaders: int = 0  # processes that make the batches and hand them over; 0: the loop does
    layers: tuple[Layer, ...] = ()  # in forward order; empty where unknown
    # what the job asks for in its large products (autocast or parameter type)
    precision: Precision = "fp32"
    # what the training software does: kernels, attention, optimizer, stored weights, adapters
    setup: TrainingSetup = DEFAULT_SETUP
    # where the job is known to be one: tensor, context and expert parallel layouts need it
    transformer: Transformer | None = None
    # of a recorded step, those that are its peak of memory for some micro-batch
    moments: tuple[Moment, ...] = ()
    # what the host takes to start a call on an accelerator; None: as the device model says [s]
    call_s: float | None = None
    is_host_known: bool = False  # the user says what a call takes there
    # operators of the same step where sizes that the network decides are the least there can be,
    # as ``operators`` are of the most; empty where it decides none
    least_operators: Operators = field(default_factory=lambda: Operators.of(()))
    # of a job whose allocator's blocks were replayed; None: as fitted. slack: what it takes of a
    # device over what comes and goes there; lost_bytes: beside that, whatever the batch [bytes]
    slack: float | None = None
    lost_bytes: float = 0.0
    # of the modules that learn: what replicated data parallelism hands to all ranks before each
    # forward pass [bytes]
    buffer_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1, got {self.micro_batch}")
        names = ("parameters", "trainable_parameters", "parameter_bytes", "optimizer_state_bytes",
                 "saved_bytes_per_sample", "input_bytes_per_sample", "buffer_bytes")  # fmt: skip
        check_not_negative("work", **{name: getattr(self, name) for name in names})

    @property
    def gradient_bytes(self) -> float:
        """Gradients of all trained parameters. [bytes]."""
        stored = self.parameter_bytes / max(self.parameters, 1)
        if self.setup.has_adapters:
            stored = self.setup.stored_bytes(self.precision)
        narrowest = 2.0 if self.setup.gradients == "bf16" else stored
        return self.trainable_parameters * min(stored, narrowest)

    @property
    def is_synchronised(self) -> bool:
        """Whether a step reads a value of the device, ``loss.item()``, and so waits for it."""
        reads = np.isin(self.operators.name.astype(str), _READS)
        return bool((reads & ~self.operators.is_update).any())  # an update reads its own counters

    @property
    def is_compiled(self) -> bool:
        """Whether the job runs through ``torch.compile`` or alike."""
        return self.setup.kernels == "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or all cores of a machine taken as one device.

    Peaks are dense datasheet rates; None means that the device does not run that precision
    (``planners.step.device`` says what it would run as). ``sustained_*`` are measured rates of
    large products, the better ceiling where known.

    Attributes
    ----------
    fp32_flop_per_s, ..., fp4_flop_per_s : float or None
        Dense peaks of the datasheet.
    """

    name: str
    kind: Literal["gpu", "tpu", "accelerator", "cpu"]
    vendor: str = ""
    architecture: str = ""
    memory_bytes: float
    memory_bytes_per_s: float
    fp32_flop_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    # rate of products in double precision over that in single; None: as cards of its kind
    fp64_share: float | None = None
    # sustained_fp32_flop_per_s, sustained_fp16_flop_per_s: measured rates; fp16 stands for bf16
    # too
    sustained_fp32_flop_per_s: float | None = None
    sustained_fp16_flop_per_s: float | None = None
    # the fastest product that anybody measured, over all sizes: none of a job's runs faster, and
    # most run slower [flop/s]
    best_fp16_flop_per_s: float | None = None
    cores: int | None = None  # CPUs: virtual CPUs of the machine
    core_speed: float | None = None  # CPUs: CoreMark per virtual CPU [1/s]
    assumed: str = ""  # CPUs: why its rates are not known to be this processor's, in words
    tdp_w: float | None = None
    # of the first card of its chip family: what a joule buys is the process's, so that an H200
    # computes as an H100 of the same power does
    release_year: float | None = None
    # what a call takes on the host, measured there; None: as devices of its kind [s]
    call_s: float | None = None
    # of a card, one way between it and pinned memory of its host; None where unknown [bytes/s]
    host_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(
            f"device {self.name}",
            memory_bytes=self.memory_bytes,
            cores=self.cores,
            core_speed=self.core_speed,
            **{name: getattr(self, name) for name in _RATES},
        )
        check_not_negative(f"device {self.name}", call_s=self.call_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection: alpha-beta, per direction."""

    name: str  # e.g. ``"nvlink"``, ``"pcie"``, ``"network"``
    bytes_per_s: float  # nominal bandwidth per direction [bytes/s]
    latency_s: float = 0.0  # time of an empty message [s]
    # how sure it is that messages bypass the kernel: 0 or 1 where it is known; None: by the rate
    rdma_share: float | None = None

    def __post_init__(self) -> None:
        check_positive(f"link {self.name}", bytes_per_s=self.bytes_per_s)
        check_not_negative(f"link {self.name}", latency_s=self.latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of a cluster."""

    name: str
    device: Device
    devices: int
    intra: Link  # between two devices of the machine
    network: Link  # the machine's network interface, shared by its devices
    host: Link | None = None  # between host memory and one device; None for CPUs
    vcpus: int
    # coreMark per virtual CPU: feeds the input-pipeline limit [1/s]
    core_speed: float | None = None
    memory_bytes: float
    # machines among which ``intra`` joins all devices: 1, or 18 in an NVL72 rack
    domain_machines: int = 1

    def __post_init__(self) -> None:
        check_counts(
            f"machine {self.name}", devices=self.devices, domain_machines=self.domain_machines
        )
        check_not_negative(f"machine {self.name}", vcpus=self.vcpus)
        check_positive(
            f"machine {self.name}", core_speed=self.core_speed, memory_bytes=self.memory_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is spread over devices.

    ``dp * tp * pp * cp`` devices are used; ``ep * etp`` divides ``dp * cp * tp``, ``etp`` ranks
    share an expert's products (None: tp of them). The global batch is
    ``dp * micro_batch * accumulation_steps``. ``shard_group`` is the number of data-parallel
    ranks that share one copy of the sharded state; None means all of them, fewer is hierarchical
    sharding. ``average_every`` is the number of steps between two averagings of the data-parallel
    ranks: 1 is synchronous SGD, more is local SGD.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    micro_batch: int = 1
    accumulation_steps: int = 1
    virtual_stages: int = 1
    schedule: Schedule = "1f1b"
    zero_stage: int = 0
    recompute: Recompute = "none"
    is_sequence_parallel: bool = False
    shard_group: int | None = None
    offload: frozenset[Offload] = field(default_factory=frozenset)
    # every layer is updated in the backward pass as soon as its gradient is there
    updates_in_backward: bool = False
    average_every: int = 1
    # of a stage's layers (of a chunk's, where stages interleave), those that full recomputation
    # repeats or whose activations are offloaded; None for all
    partial_layers: int | None = None

    def __post_init__(self) -> None:
        degrees = (self.dp, self.tp, self.pp, self.cp, self.ep, self.micro_batch,
                   self.accumulation_steps, self.virtual_stages, self.average_every)  # fmt: skip
        parts = [n for n in (self.etp, self.shard_group, self.partial_layers) if n is not None]
        if min(*degrees, *parts) >= 1 and not math.isnan(sum(degrees) + sum(parts)):
            return  # nearly always, and layouts are made by the thousand
        names = ("dp", "tp", "pp", "cp", "ep", "etp", "micro_batch", "accumulation_steps",
                 "virtual_stages", "average_every", "shard_group", "partial_layers")  # fmt: skip
        check_counts("layout", **{name: getattr(self, name) for name in names})

    @property
    def devices(self) -> int:
        """Devices that the layout occupies."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step over all workers."""
        return self.dp * self.micro_batch * self.accumulation_steps

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form, all degrees in it."""
        return {**asdict(self), "offload": sorted(self.offload)}
