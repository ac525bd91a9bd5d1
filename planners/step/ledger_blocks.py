"""Blocks that several described models are made of: normalisation, attention, feed-forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from advisor.planners.core.nouns import OperatorKind
from advisor.planners.step.describe_operators import (
    LAYER_NORM,
    MASKED_SOFTMAX,
    ROOT_MEAN_SQUARE,
    SUM_PASSES,
)
from advisor.planners.step.ledger import Ledger

Pair = tuple[float, float]
# Passes of (forward, backward) over a tensor, and calls of each; as those in describe_operators.
ACTIVATION: Final = ((2.0, 3.0), (1.0, 1.0))
# Passes, calls, and tensors that are kept besides the product's input, by activation.
ActivationKind = Literal["relu", "gelu", "gated", "gated, written out"]
_ACTIVATIONS: Final[dict[ActivationKind, tuple[Pair, Pair, int]]] = {
    "relu": (*ACTIVATION, 0),
    "gelu": (*ACTIVATION, 1),
    "gated": ((5.0, 9.0), (2.0, 3.0), 3),
    # transformers' "gelu_new": eight elementwise operators before the product with the gate.
    "gated, written out": ((21.0, 33.0), (9.0, 15.0), 6),
}


@dataclass(slots=True, kw_only=True)
class BlockLedger(Ledger):
    """A ledger that knows attention and what surrounds it.

    Attributes
    ----------
    is_flash : bool
        Attention in one kernel, scores never written.
    has_root_mean_square : bool
        Normalisation without mean and bias, written out in elementwise operators.
    """

    is_flash: bool = True
    has_root_mean_square: bool = False

    def norm(self, rows: float, width: int) -> None:
        """Add a normalisation over ``width`` columns."""
        is_rms = self.has_root_mean_square
        (forward, backward), calls = ROOT_MEAN_SQUARE if is_rms else LAYER_NORM
        self.own(width if is_rms else 2 * width, 1 if is_rms else 2)
        kind: OperatorKind = "elementwise" if is_rms else "normalisation"
        self.pointwise("norm", kind, rows * width, (forward, backward), calls)
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
        """Add attention of every query to all keys of its sample, with its four products.

        Parameters
        ----------
        queries, keys : int
            Tokens of a sample.
        hidden, heads, width : int
            Of the stream; attention heads; of all heads together.
        source_width : int, optional
            Columns of what is looked at, where that is another stream, kept elsewhere.
        has_bias, has_key_bias, has_output_bias : bool
            Biases of query and value; of the key; of the output (as the query by default).
        is_cut : bool
            The kernel skips what a causal mask hides.
        """
        asked, read = self.batch * queries, self.batch * keys
        inner, element = source_width or hidden, self.tally.element
        self.linear("query", asked, hidden, width, has_bias=has_bias)
        has_key_bias = has_key_bias and has_bias
        self.linear("key", read, inner, width, has_bias=has_key_bias, keeps_input=False)
        self.linear("value", read, inner, width, has_bias=has_bias, keeps_input=False)
        self.keep(element * (asked + 2 * read) * width)
        self._scores(queries, keys, heads, width, is_cut=is_cut)
        has_bias = has_bias if has_output_bias is None else has_output_bias
        self.linear("projection", asked, width, hidden, has_bias=has_bias)

    def _scores(self, queries: int, keys: int, heads: int, width: int, *, is_cut: bool) -> None:
        element, rows = self.tally.element, self.batch * (queries + keys)
        flop = 4.0 * self.batch * queries * keys * width
        make = self.tally.operator
        if self.is_flash:
            flop *= 0.5 if is_cut else 1.0
            moved = element * 2.0 * rows * width
            self.add([
                make("attention", "attention", "forward", 1, flop, moved),
                make("attention", "attention", "backward", 1, 2.5 * flop, 2 * moved),
            ])  # fmt: skip
            return
        scores = self.batch * heads * float(queries) * keys
        moved = 2.0 * element * (scores + rows * width / 2)
        self.add([
            make("scores", "matmul", "forward", 2, flop, moved),
            make("scores", "matmul", "backward", 4, 2 * flop, 2 * moved),
        ])  # fmt: skip
        self.pointwise("softmax", "reduction", scores, *MASKED_SOFTMAX)
        self.keep(element * scores)

    def feed_forward(
        self, rows: float, hidden: int, ffn: int, *, activation: ActivationKind, has_bias: bool
    ) -> None:
        """Add up and down products with the activation between them."""
        self.linear("up", rows, hidden, ffn, has_bias=has_bias)
        if activation.startswith("gated"):
            self.linear("up", rows, hidden, ffn, has_bias=has_bias, keeps_input=False)
        passes, calls, kept = _ACTIVATIONS[activation]
        self.pointwise("activation", "elementwise", rows * ffn, passes, calls)
        self.keep(self.tally.element * rows * ffn * kept)
        self.linear("down", rows, ffn, hidden, has_bias=has_bias)

    def embedding(self, rows: float, entries: int, width: int, *, is_owned: bool = True) -> None:
        """Add a look-up of ``rows`` rows in a table."""
        element, setup = self.tally.element, self.tally.setup
        if is_owned:
            self.own(entries * width)
        self.add([self.tally.operator(
            "embedding", "embedding", "forward", 1, 0.0, 2 * element * rows * width
        )])  # fmt: skip
        if not setup.has_adapters:
            table = setup.stored_bytes(self.tally.dtype) * entries * width
            self.add([self.tally.operator(
                "embedding", "embedding", "backward", 1, 0.0, element * rows * width, table
            )])  # fmt: skip
