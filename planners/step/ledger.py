"""Adds up the operators, parameters and kept activations of a described model, layer by layer.

The operators are made by a ``Tally``, the optimizer's by ``update``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from advisor.planners.core import (
    DEFAULT_SETUP,
    PRECISION_BYTES,
    Layer,
    Operator,
    OperatorKind,
    Operators,
    Phase,
    Precision,
    TrainingSetup,
    Work,
    refused,
)
from advisor.planners.step.quantised import KERNELS

Pair = tuple[float, float]
FP32_BYTES: Final = 4
# Passes over a tensor of (forward, backward), and calls of each.
LOSS: Final = ((3, 5), (2, 2))  # log-softmax and the likelihood of the labels
LAYER_NORM: Final = ((2, 3), (1, 1))
ROOT_MEAN_SQUARE: Final = ((7, 25), (6, 12))  # written out in elementwise operators
MASKED_SOFTMAX: Final = ((7, 5), (3, 2))  # scale, mask, softmax over written-out scores
SUM_PASSES: Final = 3  # c = a + b
# An adapter's output is scaled and added; backward scales its gradient and adds the input's.
ADAPTER_SUM: Final = ((2 + SUM_PASSES, 2 + SUM_PASSES), (2, 2))
ACTIVATION: Final = ((2.0, 3.0), (1.0, 1.0))
# Passes, calls, and tensors that are kept besides the product's input, by activation.
ActivationKind = Literal["relu", "gelu", "gated", "gated, written out"]
ACTIVATIONS: Final[dict[ActivationKind, tuple[Pair, Pair, int]]] = {
    "relu": (*ACTIVATION, 0),
    "gelu": (*ACTIVATION, 1),
    "gated": ((5.0, 9.0), (2.0, 3.0), 3),  # and the product with the gate
    # transformers' "gelu_new": eight elementwise operators before the product with the gate.
    "gated, written out": ((21.0, 33.0), (9.0, 15.0), 6),
}
ELEMENT_FLOP: Final = 1.0  # a pointwise operator counts one operation an element


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Makes the operators of a step with one activation width.

    Operators that described models share, with their work forward and backward.

    Traffic is what the collector counts in PyTorch's eager mode: operands read plus results
    written.

    ``element`` is bytes of an activation, ``dtype`` its precision name; ``setup`` says what is
    frozen and what has adapters.
    """

    element: int
    dtype: Precision
    setup: TrainingSetup = DEFAULT_SETUP

    @classmethod
    def of(cls, precision: Precision, setup: TrainingSetup) -> Tally:
        """Return a tally of activations in a precision."""
        return cls(element=activation_bytes(precision), dtype=precision, setup=setup)

    def product(
        self, name: str, rows: float, inner: float, columns: float, *,
        count: float = 1, resident: float = 1, has_bias: bool = False, is_frozen: bool = False,
    ) -> list[Operator]:  # fmt: skip
        """Return a product with a weight, forward and backward, and its adapter's products.

        ``rows``, ``inner``, ``columns``: (rows, inner) times (inner, columns); ``resident``:
        weights of this size that are read in all: the experts of a mixture; ``is_frozen``: no
        gradient of the weight is computed; so it is beside adapters.
        """
        is_frozen = is_frozen or self.setup.has_adapters
        flop = 2.0 * rows * inner * columns * count
        moved = self.element * rows * (inner + columns) * count
        weight = self.element * inner * columns * count * resident
        # By input (gradient and weight read) and by weight (gradient and input read).
        n = 1 if is_frozen else 2
        made = [
            self.operator(name, "matmul", "forward", count, flop, moved, weight),
            self.operator(name, "matmul", "backward", n * count, n * flop, n * moved, n * weight),
        ]
        if has_bias and not is_frozen:
            summed = rows * columns * count
            made.append(self.operator(
                "sum", "reduction", "backward", count, summed, self.element * summed
            ))  # fmt: skip
        if self.setup.is_quantised(name):
            made += self._quantised(moved, weight, count * resident)
        if self.setup.adapts(name):
            made += self._adapter(rows, inner, columns, count, resident)
        return made

    def _quantised(self, moved: float, weight: float, count: float) -> list[Operator]:
        """Return what the kernel of quantised weights does beside a product, in both passes."""
        kernel = KERNELS[self.setup.base_bits]
        parameters, elements = weight / self.element, moved / self.element
        flop = kernel.decoded_flop * parameters
        return [
            self.operator(
                "quantised", "elementwise", "forward", count * kernel.forward_calls,
                flop if kernel.forward_bytes else 0.0, elements * kernel.element_bytes,
                parameters * kernel.forward_bytes,
            ),
            self.operator(
                "quantised", "elementwise", "backward", count * kernel.backward_calls, flop, 0.0,
                parameters * kernel.backward_bytes,
            ),
        ]  # fmt: skip

    def _adapter(
        self, rows: float, inner: float, columns: float, count: float, resident: float
    ) -> list[Operator]:
        rank = self.setup.adapter_rank or 0
        whole = replace(self.setup, adapter_rank=None, adapter_targets=None, base_bits=16)
        trained = replace(self, setup=whole)
        (forward, backward), (calls, backward_calls) = ADAPTER_SUM
        return [
            *trained.product("adapter", rows, inner, rank, count=count, resident=resident),
            *trained.product("adapter", rows, rank, columns, count=count, resident=resident),
            *self.pointwise(
                "adapter", "elementwise", rows * columns, (count * forward, count * backward),
                (count * calls, count * backward_calls),
            ),
        ]  # fmt: skip

    def attention(
        self, pairs: float, heads: int, width: float, streamed: float, *, is_fused: bool,
        seen: float = 1.0,
    ) -> list[Operator]:  # fmt: skip
        """Return the products of queries, keys and values; backward recomputes fused scores.

        ``pairs``: queries times the keys that each looks at, of all samples; ``streamed``: entries
        of queries and keys together; results and values have as many; ``seen``: share of the pairs
        that a fused kernel computes: half of them behind a causal mask.
        """
        flop = 4.0 * pairs * width
        if is_fused:
            flop, moved = seen * flop, 2.0 * self.element * streamed
            return [
                self.operator("attention", "attention", "forward", 1, flop, moved),
                self.operator("attention", "attention", "backward", 1, 2.5 * flop, 2 * moved),
            ]
        scores = heads * pairs
        moved = 2.0 * self.element * (scores + streamed / 2)
        return [
            self.operator("scores", "matmul", "forward", 2, flop, moved),
            self.operator("scores", "matmul", "backward", 4, 2 * flop, 2 * moved),
            *self.pointwise("softmax", "reduction", scores, *MASKED_SOFTMAX),
        ]

    def pointwise(
        self, name: str, kind: OperatorKind, elements: float,
        passes: tuple[float, float], calls: tuple[float, float], *, element: int | None = None,
    ) -> list[Operator]:  # fmt: skip
        """Return an operator that streams over ``elements``, forward and backward."""
        size = self.element if element is None else element
        phases: tuple[Phase, Phase] = ("forward", "backward")
        return [
            self.operator(
                name, kind, phase, n, ELEMENT_FLOP * elements * n, size * elements * p, 0
            )
            for phase, p, n in zip(phases, passes, calls, strict=True)
            if p > 0
        ]

    def norm(
        self, elements: float, *, has_root_mean_square: bool, number: float = 1
    ) -> list[Operator]:
        """Return ``number`` normalisations over ``elements`` each."""
        (forward, backward), (calls, backward_calls) = (
            ROOT_MEAN_SQUARE if has_root_mean_square else LAYER_NORM
        )
        return self.pointwise(
            "norm", "elementwise" if has_root_mean_square else "normalisation", elements,
            (number * forward, number * backward), (number * calls, number * backward_calls),
        )  # fmt: skip

    def embedding(
        self, rows: float, entries: int, width: int, *, is_frozen: bool
    ) -> list[Operator]:
        """Return a look-up of ``rows`` rows in a table, whose gradient is dense."""
        moved = self.element * rows * width
        made = [self.operator("embedding", "embedding", "forward", 1, 0.0, 2 * moved)]
        if not is_frozen:
            table = self.setup.stored_bytes(self.dtype) * entries * width
            made.append(self.operator("embedding", "embedding", "backward", 1, 0.0, moved, table))
        return made

    def loss(self, logits: float) -> list[Operator]:
        """Return the likelihood of the labels, in 32 bits."""
        return self.pointwise("loss", "reduction", logits, *LOSS, element=FP32_BYTES)

    def operator(
        self, name: str, kind: OperatorKind, phase: Phase, count: float, flop: float,
        moved: float, fixed: float = 0.0,
    ) -> Operator:  # fmt: skip
        """Return one operator; ``fixed`` bytes do not grow with the batch."""
        return Operator(
            name=name, kind=kind, phase=phase, count=count, flop=flop, bytes=moved + fixed,
            fixed_bytes=fixed, dtype=self.dtype,
        )  # fmt: skip


def activation_bytes(precision: str) -> int:
    """Return the bytes of an activation: 8-bit products keep 16-bit activations.

    Raises PlanningError if the precision is unknown.
    """
    if precision not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise refused(f"unknown precision {precision!r}", f"one of: {known}")
    return max(PRECISION_BYTES[precision], 2)


# A fused kernel's name here has no passes: its traffic is that of its operands, once.
_PASSES: Final[dict[str, int]] = {
    "adamw": 21, "sgd": 3, "sgd-momentum": 8, "adafactor": 20, "muon": 20, "galore": 8,
}  # fmt: skip
# Kernels in all (over lists of tensors), or of each tensor.
_CALLS: Final[dict[str, int]] = {"adamw": 10, "sgd": 1, "sgd-momentum": 3}
_CALLS_PER_TENSOR: Final[dict[str, int]] = {
    "adamw-8bit": 1, "adamw-4bit": 1, "adamw-bf16": 1, "paged-adamw": 1, "paged-adamw-8bit": 1,
    "lion": 1, "lion-8bit": 1, "adafactor": 15, "muon": 30, "galore": 18,
}  # fmt: skip
_FLOP: Final[dict[str, float]] = {
    "adamw": 8.0, "adamw-8bit": 10.0, "adamw-4bit": 10.0, "adamw-bf16": 8.0, "paged-adamw": 8.0,
    "paged-adamw-8bit": 10.0, "sgd": 2.0, "sgd-momentum": 4.0, "adafactor": 8.0, "lion": 6.0,
    "lion-8bit": 8.0, "muon": 6.0, "galore": 4.0,
}  # fmt: skip

# PyTorch's optimizers that update lists of tensors on accelerators unless told otherwise
# (``foreach``, on by itself since 2.0), as their classes are called.
OVER_LISTS: Final = frozenset({
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
})  # fmt: skip
# What a kernel over lists takes: 64 tensors of two lists, 48 of three
# (ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS_A_KERNEL: Final = 48.0
# Python walks the parameters and groups them all the same: 0.7 us a tensor (SGD) to 1.5 (Adadelta)
# of the 8 to 14 that a call takes (lab/experiments/eager_calls.py, 2026-11-22), and some to spare.
_WALK: Final = 0.2


def over_lists(calls: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the calls of an update shrink where it runs over lists of tensors.

    ``calls``: of each operator, where they are called for every tensor.

    Examples
    --------
    Adam's eleven operators of 96 tensors; of 2 tensors each kernel takes half of what it could:

    >>> round(over_lists(dict.fromkeys("abcdefghijk", 96.0))["a"] * 96, 2)
    3.75
    >>> over_lists({"a": 2.0})
    {'a': 0.7}
    """
    walk = _WALK / max(len(calls), 1)
    return {
        name: min(1.0, max(1.0 / count, 1.0 / _TENSORS_A_KERNEL) + walk)
        for name, count in calls.items()
    }


def update(
    parameters: float, setup: TrainingSetup, precision: Precision, *, tensors: float
) -> Operator:
    """Return the optimizer's update.

    The optimizer's update of the parameters as one operator a step.

    | optimizer        | passes over fp32 numbers of a parameter, read off the code named         |
    |------------------|--------------------------------------------------------------------------|
    | ``adamw``        | 21: decay 2, lerp 3, second moment 2 + 4, sqrt 2, scalings 4, update 4   |
    | ``adamw-bf16``   | one kernel: weight and moments read and written, gradient read (torchao) |
    | ``adamw-8bit``   | one kernel, as above with 8-bit moments (bitsandbytes); so are           |
    |                  | ``adamw-4bit`` (torchao, compiled), ``paged-...`` and ``lion-...``       |
    | ``sgd``          | 3: one addition                                                          |
    | ``sgd-momentum`` | 8: decay of the buffer 2, two additions 6                                |
    | ``adafactor``    | 20: square 4, row and column means 2, their product 1, two products 5,   |
    |                  | root mean square 2, two scalings 4, addition 2 (transformers.Adafactor)  |
    | ``muon``         | 20: momentum 6, cast 2, five iterations of 2 in 16 bits, addition 2      |
    |                  | (``torch.optim.Muon``); its products are ``TrainingSetup.update_flop``   |
    | ``galore``       | 8: gradient projected 1, update 1 + 1, decay 2, addition 3 (galore_torch)|

    PyTorch 2 runs the first, the fourth and the fifth over lists of tensors (``foreach``).

    ``tensors``: how many the parameters are spread over: some optimizers start kernels for each.

    Examples
    --------
    >>> update(1e6, TrainingSetup(), "bf16", tensors=10).bytes / 1e6  # 21 passes of 4 bytes
    84.0
    """
    name, stored = setup.optimizer, setup.stored_bytes(precision)
    if name in _PASSES:
        moved = _PASSES[name] * stored
    else:
        moved = 2 * stored + 2 * setup.moment_bytes(precision) + setup.gradient_bytes(precision)
    calls = _CALLS.get(name) or _CALLS_PER_TENSOR[name] * max(tensors, 1.0)
    return Operator(
        name=name, kind="optimizer", phase="optimizer", count=calls,
        flop=_FLOP[name] * parameters, bytes=moved * parameters, fixed_bytes=moved * parameters,
        dtype="bf16" if stored == 2 else "fp32",
    )  # fmt: skip


# How many operators, parameters and kept tensors a ledger had at a place.
Mark = tuple[int, int, int]


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What has been added so far, in forward order.

    ``marks`` are the parameters up to each operator, its own included: frozen parameters are the
    first ones, and operators among them have no backward pass and keep nothing for it.
    """

    tally: Tally
    batch: int
    operators: list[Operator] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    kept: list[tuple[int, float]] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0
    adapters: int = 0
    quantised: int = 0
    tensors: int = 0

    def add(self, operators: list[Operator]) -> None:
        """Add operators at this place."""
        self.operators += operators
        self.marks += [self.parameters] * len(operators)

    def pointwise(
        self, name: str, kind: OperatorKind, elements: float,
        passes: tuple[float, float], calls: tuple[float, float], *, element: int | None = None,
    ) -> None:  # fmt: skip
        """Add an operator that streams over ``elements``; see ``Tally.pointwise``."""
        self.add(self.tally.pointwise(name, kind, elements, passes, calls, element=element))

    def own(self, parameters: int, tensors: int = 1) -> None:
        """Add the parameters of the operators that are added next."""
        self.parameters += parameters
        self.tensors += tensors

    def keep(self, bytes_: float) -> None:
        """Add activations that the backward pass reads [bytes of the batch]."""
        self.kept.append((self.parameters, bytes_))

    def linear(
        self, name: str, rows: float, inner: int, columns: int, *, has_bias: bool = True,
        keeps_input: bool = True, is_shared: bool = False,
    ) -> None:  # fmt: skip
        """Add a dense layer.

        ``keeps_input``: its input is kept for the backward pass; false where another layer keeps
        it already.
        """
        setup = self.tally.setup
        if not is_shared:
            self.own(inner * columns + has_bias * columns, 1 + has_bias)
            self.adapters += setup.adapts(name) * (setup.adapter_rank or 0) * (inner + columns)
            self.quantised += setup.is_quantised(name) * inner * columns
        self.add(self.tally.product(name, rows, inner, columns, has_bias=has_bias))
        if keeps_input:
            self.keep(self.tally.element * rows * inner)

    def convolution(
        self, side: int, channels: int, width: int, kernel: int, stride: int,
        *, has_bias: bool = True, is_depthwise: bool = False,
    ) -> int:  # fmt: skip
        """Add a square convolution; return the side behind it.

        ``is_depthwise``: every channel has a kernel of its own.
        """
        out = -(-side // stride)
        element = self.tally.element
        weight = (1 if is_depthwise else channels) * width * kernel**2
        read = element * self.batch * channels * side**2
        made = element * self.batch * width * out**2
        flop = 2.0 * self.batch * weight * out**2
        kind: OperatorKind = "winograd" if kernel == 3 and stride == 1 else "convolution"
        kind = "depthwise" if is_depthwise else kind
        back = read + made + (read if self.operators else 0.0)
        self._convolved(kind, weight, width * has_bias, flop, read + made, back)
        self.keep(read)
        return out

    def along_time(
        self, rows: float, channels: int, width: int, kernel: int, *, stride: int = 1,
        groups: int = 1, has_bias: bool = True,
    ) -> None:  # fmt: skip
        """Add a convolution over ``rows`` frames in one direction; its input is kept."""
        made, element = rows / stride, self.tally.element
        weight = kernel * channels * width // groups
        flop, moved = 2.0 * made * weight, element * (rows * channels + made * width)
        back = moved * self._backward_products()
        self._convolved("convolution", weight, width * has_bias, flop, moved, back)
        self.keep(element * rows * channels)

    def _backward_products(self) -> int:
        """Return the products of a convolution's backward call: by input and by weight.

        Nothing is handed back to an image, or to what was recorded.
        """
        return (2 if self.operators else 1) - self.tally.setup.has_adapters

    def _convolved(
        self, kind: OperatorKind, weight: int, bias: int, flop: float, moved: float, back: float
    ) -> None:
        """Add a convolution that moves these bytes forward and ``back``, and its parameters."""
        read, times = self.tally.element * weight, self._backward_products()
        self.own(weight + bias, 1 + (bias > 0))
        make = self.tally.operator
        made = [make("convolution", kind, "forward", 1, flop, moved, read)]
        if times:
            made.append(make("convolution", kind, "backward", 1, times * flop, back, 2 * read))
        self.add(made)

    def close_layer(self, name: str, since: Mark, output: float) -> None:
        """Record what was added since a mark as one layer that a pipeline may put anywhere.

        ``output``: numbers that it hands on, of the whole batch.
        """
        operators, parameters, kept = since
        added = self.operators[operators:]
        forward, backward = (
            sum(o.flop for o in added if o.phase == phase) / self.batch
            for phase in ("forward", "backward")
        )
        self.layers.append(
            Layer(
                name=name, parameters=self.parameters - parameters,
                forward_flop_per_sample=forward, backward_flop_per_sample=backward,
                output_bytes_per_sample=self.tally.element * output / self.batch,
                saved_bytes_per_sample=sum(b for _, b in self.kept[kept:]) / self.batch,
                kind="Linear",
            )
        )  # fmt: skip

    def mark(self) -> Mark:
        """Return this place, for ``close_layer``."""
        return len(self.operators), self.parameters, len(self.kept)

    def work(self, *, input_bytes_per_sample: float) -> Work:
        """Return the whole as the work of a step.

        Raises PlanningError if adapters are asked for and the model has no matrix that takes them.
        """
        setup, precision = self.tally.setup, self.tally.dtype
        if setup.has_adapters and not self.adapters:
            raise refused(
                "the model has no matrices for adapters",
                "leave out the adapters, or freeze a share of the layers",
            )
        frozen = setup.frozen_fraction * self.parameters
        trained = self.adapters or round(self.parameters - frozen)
        operators = [
            operator
            for mark, operator in zip(self.marks, self.operators, strict=True)
            if operator.phase != "backward" or not 0 < mark <= frozen
        ]
        saved = sum(bytes_ for mark, bytes_ in self.kept if not 0 < mark <= frozen)
        return Work(
            operators=Operators.of(
                [*_merged(operators), update(trained, setup, precision, tensors=self.tensors)]
            ),
            micro_batch=self.batch,
            parameters=self.parameters + self.adapters,
            trainable_parameters=trained,
            parameter_bytes=self._stored_bytes(trained, precision),
            optimizer_state_bytes=trained * setup.moment_bytes(precision),
            saved_bytes_per_sample=saved / self.batch,
            input_bytes_per_sample=input_bytes_per_sample,
            layers=tuple(self.layers),
            precision=precision,
            setup=setup,
        )

    def _stored_bytes(self, trained: int, precision: Precision) -> float:
        setup = self.tally.setup
        unquantised = replace(setup, base_bits=16).frozen_bytes(precision)
        frozen = self.parameters - (0 if self.adapters else trained)
        return (
            trained * setup.stored_bytes(precision)
            + (frozen - self.quantised) * unquantised
            + self.quantised * setup.frozen_bytes(precision)
        )


def _merged(operators: list[Operator]) -> list[Operator]:
    """Join operators whose calls are alike: repeated blocks cost their number, not their list."""
    found: dict[tuple[object, ...], Operator] = {}
    for o in operators:
        sizes = (o.flop / o.count, o.bytes / o.count, o.fixed_bytes / o.count)
        key = (o.name, o.kind, o.phase, o.dtype, *sizes)
        seen = found.get(key)
        found[key] = o if seen is None else replace(
            seen, count=seen.count + o.count, flop=seen.flop + o.flop,
            bytes=seen.bytes + o.bytes, fixed_bytes=seen.fixed_bytes + o.fixed_bytes,
        )  # fmt: skip
    return list(found.values())


@dataclass(slots=True, kw_only=True)
class BlockLedger(Ledger):
    """A ledger that knows attention and what surrounds it."""

    # normalisation without mean and bias, written out in elementwise operators
    has_root_mean_square: bool = False

    def norm(self, rows: float, width: int) -> None:
        """Add a normalisation over ``width`` columns."""
        is_rms = self.has_root_mean_square
        self.own(width if is_rms else 2 * width, 1 if is_rms else 2)
        self.add(self.tally.norm(rows * width, has_root_mean_square=is_rms))
        # Its input; written out also the input over its root.
        self.keep(self.tally.element * rows * width * (2 if is_rms else 1))

    def residual(self, rows: float, width: int) -> None:
        """Add a sum with the stream; backward adds the gradients of both ways."""
        self.pointwise("add", "elementwise", rows * width, (SUM_PASSES, SUM_PASSES), (1, 1))

    def attention(
        self, queries: int, keys: int, *, hidden: int, heads: int, width: int,
        source_width: int | None = None, has_bias: bool = True, has_key_bias: bool = True,
        has_output_bias: bool | None = None, is_cut: bool = False,
    ) -> None:  # fmt: skip
        """Add attention of every query to all keys of its sample, normalised and then summed.

        ``queries``, ``keys``: tokens of a sample; ``hidden``, ``width``: columns of the stream, of
        all heads together; ``source_width``: columns of what is looked at, where that is another
        stream, kept elsewhere; ``has_bias``: of query and value, and unless told otherwise of key
        and output; ``is_cut``: the kernel skips what a causal mask hides.
        """
        asked, read = self.batch * queries, self.batch * keys
        inner, element = source_width or hidden, self.tally.element
        # In one kernel scores are never written.
        is_flash = self.tally.setup.attention == "flash"
        self.norm(asked, hidden)
        self.linear("query", asked, hidden, width, has_bias=has_bias)
        has_key_bias = has_key_bias and has_bias
        self.linear("key", read, inner, width, has_bias=has_key_bias, keeps_input=False)
        self.linear("value", read, inner, width, has_bias=has_bias, keeps_input=False)
        self.keep(element * (asked + 2 * read) * width)
        self.add(self.tally.attention(
            self.batch * float(queries) * keys, heads, width, (asked + read) * width,
            is_fused=is_flash, seen=0.5 if is_cut else 1.0,
        ))  # fmt: skip
        if not is_flash:
            self.keep(element * self.batch * heads * float(queries) * keys)
        has_bias = has_bias if has_output_bias is None else has_output_bias
        self.linear("projection", asked, width, hidden, has_bias=has_bias)
        self.residual(asked, hidden)

    def feed_forward(
        self, rows: float, hidden: int, ffn: int, *, activation: ActivationKind = "gelu",
        has_bias: bool = True, is_scaled: bool = False,
    ) -> None:  # fmt: skip
        """Add up and down products with the activation between them, normalised and then summed.

        ``is_scaled``: every column has a scale of its own before the sum.
        """
        self.norm(rows, hidden)
        self.linear("up", rows, hidden, ffn, has_bias=has_bias)
        if activation.startswith("gated"):
            self.linear("up", rows, hidden, ffn, has_bias=has_bias, keeps_input=False)
        passes, calls, kept = ACTIVATIONS[activation]
        self.pointwise("activation", "elementwise", rows * ffn, passes, calls)
        self.keep(self.tally.element * rows * ffn * kept)
        self.linear("down", rows, ffn, hidden, has_bias=has_bias)
        if is_scaled:
            self.own(hidden)
        self.residual(rows, hidden)

    def embedding(self, rows: float, entries: int, width: int, *, is_owned: bool = True) -> None:
        """Add a look-up of ``rows`` rows in a table."""
        if is_owned:
            self.own(entries * width)
        is_frozen = self.tally.setup.has_adapters
        self.add(self.tally.embedding(rows, entries, width, is_frozen=is_frozen))
