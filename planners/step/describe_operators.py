"""Operators that described models share, with their work forward and backward.

Traffic is what the collector counts in PyTorch's eager mode: operands read plus results written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import (
    DEFAULT_SETUP,
    PRECISION_BYTES,
    Operator,
    OperatorKind,
    Phase,
    Precision,
    TrainingSetup,
)

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

        Parameters
        ----------
        rows, inner, columns : float
            (rows, inner) times (inner, columns).
        resident : float
            Weights of this size that are read in all: the experts of a mixture.
        is_frozen : bool
            No gradient of the weight is computed; so it is beside adapters.
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
            summed = self.element * rows * columns * count
            made.append(
                self.operator("sum", "reduction", "backward", count, rows * columns, summed, 0.0)
            )
        if self.setup.is_quantised(name):
            made += self._dequantised(weight, count * resident)
        if self.setup.adapts(name):
            made += self._adapter(rows, inner, columns, count, resident)
        return made

    def _dequantised(self, weight: float, count: float) -> list[Operator]:
        """Return reading quantised weights and writing them in full, in both passes."""
        moved = weight * (1 + self.setup.frozen_bytes("bf16") / self.element)
        flop = ELEMENT_FLOP * weight / self.element
        phases: tuple[Phase, Phase] = ("forward", "backward")
        return [
            self.operator("dequantise", "elementwise", phase, count, flop, 0.0, moved)
            for phase in phases
        ]

    def _adapter(
        self, rows: float, inner: float, columns: float, count: float, resident: float
    ) -> list[Operator]:
        rank = self.setup.adapter_rank or 0
        trained = replace(self, setup=replace(self.setup, adapter_rank=None, base_bits=16))
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
        self, pairs: float, heads: int, width: int, streamed: float, *, is_fused: bool,
        seen: float = 1.0,
    ) -> list[Operator]:  # fmt: skip
        """Return the products of queries, keys and values; backward recomputes fused scores.

        Parameters
        ----------
        pairs : float
            Queries times the keys that each looks at, of all samples.
        width : int
            All heads together.
        streamed : float
            Entries of queries and keys together; results and values have as many.
        seen : float
            Share of the pairs that a fused kernel computes: half of them behind a causal mask.
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

    Raises
    ------
    PlanningError
        If the precision is unknown.
    """
    if precision not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise PlanningError(
            f"unknown precision {precision!r}", hint=f"one of: {known}", exit_code=2
        )
    return max(PRECISION_BYTES[precision], 2)
