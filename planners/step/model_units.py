"""A recorded model as the units that a layout may cut: repeated blocks, and single layers.

| here               | papers | meaning                                                       |
|--------------------|--------|---------------------------------------------------------------|
| ``units``          | layers | what is never cut inside: a block with its residual sums      |
| ``hidden``         | h      | width of the stream between blocks                            |
| ``tokens``         | s      | of a sample                                                   |
| ``whole_share``    | -      | parameters of a unit that tensor parallelism leaves whole     |

A block is what an integer in a module's name counts: ``blocks.3.mlp.0`` belongs to ``blocks.3``.
Inside of it residual sums cross, so that it is cut nowhere. Layers without parameters outside of
blocks stay with the layer before them. What cannot be seen in a recording: connections that jump
over units (U-Net), which a cut would have to carry too.

What tensor parallelism divides is ``transformer_blocks``; what feeds a job, ``vcpus_needed`` and
``idle_s_per_sample``; how long each unit takes, ``unit_times``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    PRECISION_BYTES,
    Device,
    Floats,
    Layer,
    Operator,
    OperatorKind,
    Operators,
    UnitTimes,
    Work,
)
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters

_COUNTED: Final = re.compile(r"^((?:[^.\d][^.]*\.)*\d+)\.")
# What a module's class says of its arithmetic; "Conv1D" is what transformers calls a product.
_KINDS: Final[tuple[tuple[OperatorKind, str], ...]] = (
    ("matmul", r"Linear|Conv1D$|Attention$"),
    ("normalisation", r"Norm"),
    ("convolution", r"Conv"),
    ("recurrent", r"LSTM|GRU|RNN"),
    ("embedding", r"Embedding"),
    ("reduction", r"Pool|Softmax|Loss"),
)
# A head is never divided; where their number is unknown, a rank gets columns for one of the usual
# 64 (Vaswani et al., 2017, table 3, and nearly all since).
_HEAD_WIDTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Consecutive layers that stay on one device."""

    name: str
    layers: tuple[Layer, ...]
    # one of several that are counted in the model (``blocks.0``, ``blocks.1``, ...)
    is_block: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of all its layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def output_bytes_per_sample(self) -> float:
        """Activation handed to the next unit: that of its last layer [bytes]."""
        return self.layers[-1].output_bytes_per_sample

    @property
    def saved_bytes_per_sample(self) -> float:
        """Activations kept for the backward pass [bytes]."""
        return sum(layer.saved_bytes_per_sample for layer in self.layers)

    @property
    def whole_share(self) -> float:
        """Part of the parameters that tensor parallelism leaves whole: the normalisations'."""
        whole = sum(layer.parameters for layer in self.layers if is_normalisation(layer))
        return whole / self.parameters if self.parameters else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlocks:
    """What makes a recorded model a transformer."""

    blocks: int
    hidden: int
    tokens: int
    element_bytes: int
    # most tensor-parallel ranks: heads where they are known, a head of 64 a rank otherwise
    widest_tp: int

    def degrees(self, most: int) -> tuple[int, ...]:
        """Return the tensor-parallel degrees that divide the width (and heads), up to ``most``."""
        limit = min(most, self.widest_tp)
        return tuple(
            t for t in range(1, limit + 1) if self.widest_tp % t == 0 and self.hidden % t == 0
        )


def work_units(work: Work) -> tuple[Unit, ...]:
    """Return the units of a model in forward order; one where no layers were recorded.

    Examples
    --------
    >>> names = ["embed", "blocks.0.norm", "blocks.0.fc", "blocks.1.norm", "blocks.1.fc", "head"]
    >>> layers = tuple(Layer(name=n, parameters=8) for n in names)
    >>> work = Work(operators=Operators.of(()), micro_batch=1, parameters=48,
    ...             trainable_parameters=48, parameter_bytes=192.0, optimizer_state_bytes=0.0,
    ...             saved_bytes_per_sample=0.0, layers=layers)
    >>> [u.name for u in work_units(work)]
    ['embed', 'blocks.0', 'blocks.1', 'head']
    """
    if not work.layers:
        return (_whole(work),)
    found: list[Unit] = []
    for name, group in groupby(work.layers, key=_block_of):
        layers = tuple(group)
        if name:
            found.append(Unit(name=name, layers=layers, is_block=True))
            continue
        for layer in layers:
            if found and layer.parameters == 0 and not found[-1].is_block:
                found[-1] = Unit(name=found[-1].name, layers=(*found[-1].layers, layer))
            else:
                found.append(Unit(name=layer.name, layers=(layer,)))
    return tuple(found)


def _whole(work: Work) -> Unit:
    layer = Layer(
        name="model",
        parameters=work.parameters,
        saved_bytes_per_sample=work.saved_bytes_per_sample,
    )
    return Unit(name="model", layers=(layer,))


def _block_of(layer: Layer) -> str:
    match = _COUNTED.match(layer.name)
    return match[1] if match else ""


def is_normalisation(layer: Layer) -> bool:
    """Whether a layer normalises: those are not divided over tensor-parallel ranks."""
    return layer_kind(layer) == "normalisation"


def layer_kind(layer: Layer) -> OperatorKind:
    """Return the class of operators that most of a layer's time goes to, by its module's class.

    >>> layer_kind(Layer(name="c", parameters=9, kind="Conv2d"))
    'convolution'
    """
    return _kind_of_class(layer.kind)


@cache
def _kind_of_class(name: str) -> OperatorKind:
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name)), "elementwise")


def transformer_blocks(
    work: Work, parts: tuple[Unit, ...], *, heads: int | None = None
) -> TransformerBlocks | str:
    """Recognise a transformer in a recorded model, or say what is missing for it.

    Tensor parallelism (Shoeybi et al., Megatron-LM, 2019) divides the products of attention and of
    the feed-forward block over ranks, and leaves the normalisations whole. It needs to know which
    layers these are: repeated blocks of equal size, each with a normalisation of the model's width
    and products that are multiples of it, and attention in the step.

    ``heads``: attention heads, where the user says so: no recording has them.
    """
    if len(parts) < 2:
        return "the recording has no layers"
    blocks = _equal_blocks(parts)
    if len(blocks) < 2:
        return "no block of layers is repeated"
    if not _has_attention(work):
        return "the step has no attention"
    hidden = _width(blocks[0])
    if hidden is None:
        return f"no width is common to the layers of {blocks[0].name}"
    element = _element_bytes(work)
    tokens = round(blocks[0].output_bytes_per_sample / (hidden * element))
    if tokens < 1:
        return f"the output of {blocks[0].name} is narrower than its {hidden} columns"
    return TransformerBlocks(
        blocks=len(blocks),
        hidden=hidden,
        tokens=tokens,
        element_bytes=element,
        widest_tp=heads or max(1, hidden // _HEAD_WIDTH),
    )


def _equal_blocks(parts: tuple[Unit, ...]) -> list[Unit]:
    """Return the blocks of the most frequent size."""
    counted = [u for u in parts if u.is_block]
    if not counted:
        return []
    (size, _), *_ = Counter(u.parameters for u in counted).most_common(1)
    return [u for u in counted if u.parameters == size]


def _has_attention(work: Work) -> bool:
    names = {name.split("::")[-1] for name in work.operators.name}
    return "attention" in work.operators.kind or (
        "bmm" in names and any("softmax" in n for n in names)
    )


def _width(block: Unit) -> int | None:
    """Return h: two (LayerNorm) or one (RMSNorm) parameters a column, dividing every product."""
    products = [x.parameters for x in block.layers if layer_kind(x) == "matmul"]
    for layer in block.layers:
        if not is_normalisation(layer) or not layer.parameters:
            continue
        per_column = 1 if "rms" in layer.kind.lower() else 2
        hidden = layer.parameters // per_column
        # h^2 is the least that a projection of the whole stream can have.
        if products and max(products) >= hidden * hidden and _is_width(hidden, products):
            return hidden
    return None


def _is_width(hidden: int, products: list[int]) -> bool:
    """Whether every product reads or writes the stream: n h weights and a bias, or none."""
    return all(p % hidden == 0 or p % (hidden + 1) == 0 for p in products)


def _element_bytes(work: Work) -> int:
    """Return the bytes of an activation: two under autocast to 16 bits, else four."""
    return 2 if work.precision in ("bf16", "fp16", "fp8", "fp4") else 4


# A loop that waits for a smaller share of its steps has loaders that keep up.
_WAITING: Final = 0.05
# Cores busier than this make loader processes wait for one another, and not for a disk.
_FULL: Final = 0.9


def vcpus_needed(
    samples_per_s: ArrayLike,
    cpu_s_per_sample: float,
    host_core_speed: float | None,
    core_speed: ArrayLike,
) -> NDArray[np.float64]:
    """Return the virtual CPUs that would feed ``samples_per_s``: what cures an input-bound job.

    Limit of the input pipeline: a job runs no faster than its samples arrive.

        throughput <= vcpus x (v / v0) / c,   workers / (c + d)

    | here                        | paper | meaning, unit                                     |
    |-----------------------------|-------|---------------------------------------------------|
    | ``cpu_s_per_sample``        | c     | one core of the recorded host per sample [s]      |
    | ``idle_s_per_sample``       | d     | a loader process, for disks and networks [s]      |
    | ``host_core_speed``         | v0    | CoreMark of one virtual CPU of that host [1/s]    |
    | ``core_speed``              | v     | the same of the target [1/s]                      |

    Source: the law of utilisation (Denning and Buzen, Computing Surveys 10(3), 1978, section 3)
    for the loader's cores at utilisation one, and for its processes where they wait.
    """
    needed = np.asarray(samples_per_s, float) * cpu_s_per_sample
    return np.asarray(np.ceil(needed / relative_speed(host_core_speed, core_speed) - 1e-9))


def relative_speed(host_core_speed: float | None, core_speed: ArrayLike) -> NDArray[np.float64]:
    """Return v / v0, one where either is unknown."""
    speed = np.asarray(core_speed, float)
    if host_core_speed is None:
        return np.ones_like(speed)
    return np.asarray(np.where(np.isfinite(speed), speed / host_core_speed, 1.0))


def idle_s_per_sample(
    *, step_s: float, wait_s: float, cpu_s: float | None, samples: float, workers: int,
    busy_cores: float, cores: float,
) -> float:  # fmt: skip
    """Return how long a loader process stands still for a sample: no core makes that shorter [s].

    It is 0 where the loaders keep up, and where full cores may be what they wait for.

    ``step_s``, ``wait_s``: a step of one training process, and its part that waited for data [s];
    ``cpu_s``: core seconds to make a sample [s]; ``workers``: loader processes of the training
    process; 0 loads inside the loop; ``busy_cores``: mean number of cores that the whole job kept
    busy [cores].

    Examples
    --------
    Eight samples a step of 50 ms, 40 ms of it in the loader, which computes for 8 ms:

    >>> idle_s_per_sample(step_s=0.05, wait_s=0.04, cpu_s=1e-3, samples=8, workers=0,
    ...                   busy_cores=0.4, cores=2)
    0.004
    """
    if wait_s <= _WAITING * step_s or (workers > 0 and busy_cores > _FULL * cores):
        return 0.0
    occupied_s = wait_s if workers == 0 else step_s * workers
    return max(occupied_s / samples - (cpu_s or 0.0), 0.0)


# A roofline of nothing takes nothing: the least share of a unit, so that logarithms exist. [s]
_LEAST_S = 1e-12


def unit_times(
    work: Work, parts: Sequence[Unit], devices: Sequence[Device], micro_batches: ArrayLike,
    parameters: DeviceParameters, *, host: Device | None = None, gain: float = 0.0,
    log_factor: ArrayLike = 0.0, log_sd: ArrayLike | None = None, tp: int = 1,
) -> list[UnitTimes]:  # fmt: skip
    """Return the times of a model's units on each of the devices.

    Times of a recorded model's units on a device: the device's step, shared out.

    The device model times whole steps (operators are counted, not placed). A unit's share of a
    step is that of its layers, each timed as one operator by the same roofline, and corrected by
    what the recording measured of it:

        w_u = p_u(device) (m_u / p_u(host))^g,      t_u(b) = t(b) w_u(b) / sum_v w_v(b)

    | here  | meaning                                                                |
    |-------|------------------------------------------------------------------------|
    | ``p`` | roofline of the unit's layers: flop, weights and activations moved [s] |
    | ``m`` | measured forward or backward of the unit on the host [s]               |
    | ``g`` | how far a measured error carries to the device (``planners.step.calibrate``)  |
    | ``t`` | forward or backward of the whole model on the device, calibrated [s]   |

    So the units always add up to the step that every other planner uses.

    ``parts``: ``work_units(work)``; a single one is the whole model; ``host``: where the layers
    were measured; None leaves their measured times out; ``gain``: g: 0 trusts the roofline alone,
    1 the measured shares; ``log_factor``, ``log_sd``: calibration of each device's whole step;
    ``tp``: tensor-parallel ranks: all but the normalisations is divided; the shares of the
    undivided model are taken and the divided layers' parts shrink as their roofline does.
    """
    batches = np.atleast_1d(np.asarray(micro_batches, float))
    whole = step_time(work, devices, batches, parameters)
    scale = np.exp(np.broadcast_to(log_factor, len(devices)))
    backward = whole.backward_s * scale[:, None]
    forward = whole.micro_batch_s * scale[:, None] - backward
    if len(parts) == 1:
        f_roof = b_roof = np.ones((len(devices), batches.size, 1))
    else:
        f_roof, b_roof = _rooflines(work, parts, devices, batches, parameters, 1)
    f_weight, b_weight = f_roof, b_roof
    if host is not None and gain and len(parts) > 1:
        f_seen, b_seen = _seen(work, parts, host, parameters)
        f_weight, b_weight = f_roof * f_seen**gain, b_roof * b_seen**gain
    f = forward[..., None] * f_weight / f_weight.sum(axis=2, keepdims=True)
    b = backward[..., None] * b_weight / b_weight.sum(axis=2, keepdims=True)
    if tp > 1 and len(parts) > 1:
        f_part, b_part = _rooflines(work, parts, devices, batches, parameters, tp)
        f, b = f * np.minimum(f_part / f_roof, 1.0), b * np.minimum(b_part / b_roof, 1.0)
    errors = np.broadcast_to(whole.log_sd if log_sd is None else log_sd, len(devices))
    return [
        UnitTimes(
            micro_batches=batches,
            forward_s=f[i],
            backward_s=b[i],
            optimizer_s=float(whole.optimizer_s[i] * scale[i]) / tp,
            log_sd=float(errors[i]),
        )
        for i in range(len(devices))
    ]


def _rooflines(
    work: Work, parts: Sequence[Unit], devices: Sequence[Device], batches: Floats,
    parameters: DeviceParameters, tp: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return forward and backward by the roofline, (n_devices, n_batches, n_units) [s]."""
    found = []
    given = 0.0
    # A transformer's blocks are alike: each kind is timed once.
    timed: dict[tuple[Any, ...], tuple[Floats, Floats]] = {}
    for part in parts:
        operators: list[Operator] = []
        for layer in part.layers:
            share = tp if part.is_block and not is_normalisation(layer) else 1
            operators += _operators(layer, work, given, share)
            given = layer.output_bytes_per_sample
        key = tuple((o.kind, o.phase, o.flop, o.bytes, o.fixed_bytes) for o in operators)
        if key not in timed:
            alone = replace(work, operators=Operators.of(operators))
            columns = step_time(alone, devices, batches, parameters)
            backward = columns.backward_s
            timed[key] = columns.micro_batch_s - backward, backward
        found.append(timed[key])
    forward, backward = (np.stack(passes, axis=2) for passes in zip(*found, strict=True))
    return np.maximum(forward, _LEAST_S), np.maximum(backward, _LEAST_S)


def _operators(layer: Layer, work: Work, given: float, share: int) -> list[Operator]:
    """Return one operator a pass: the layer's flop, its parameters, its input and its output.

    The backward pass reads the parameters for the input's gradient and writes their own.
    """
    moved = (given + layer.output_bytes_per_sample) * work.micro_batch
    stored = work.parameter_bytes / max(work.parameters, 1)
    weights = layer.parameters * stored
    kind = layer_kind(layer)
    dtype = "bf16" if PRECISION_BYTES.get(work.precision, 4) == 2 else "fp32"
    flops = (layer.forward_flop_per_sample, layer.backward_flop_per_sample)
    return [
        Operator(
            name=layer.name,
            kind=kind,
            phase="forward" if times == 1 else "backward",
            count=times,
            flop=flop * work.micro_batch / share,
            bytes=times * (moved + weights) / share,
            fixed_bytes=times * weights / share,
            dtype=dtype,
        )
        for times, flop in zip((1, 2), flops, strict=True)
    ]


def _seen(
    work: Work, parts: Sequence[Unit], host: Device, parameters: DeviceParameters
) -> tuple[Floats, Floats]:
    """Return measured over roofline on the host by unit; 1 where a unit was not measured."""
    at = np.array([float(work.micro_batch)])
    found = []
    for roof, times in zip(
        (one[0] for one in _rooflines(work, parts, [host], at, parameters, 1)),
        ([_sum(p, "forward_s") for p in parts], [_sum(p, "backward_s") for p in parts]),
        strict=True,
    ):
        ratio = np.array([t / r if t else np.nan for t, r in zip(times, roof[0], strict=True)])
        if np.isnan(ratio).all():
            found.append(np.ones(len(parts)))
            continue
        # What the whole step missed is the calibration's; here only how units differ counts.
        ratio = ratio / np.exp(np.nanmean(np.log(ratio)))
        found.append(np.nan_to_num(ratio, nan=1.0))
    return found[0], found[1]


def _sum(part: Unit, name: str) -> float:
    return float(sum(getattr(layer, name) or 0.0 for layer in part.layers))
