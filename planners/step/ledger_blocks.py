"""Blocks that several described models are made of: normalisation, attention, feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.planners.core.nouns import OperatorKind
from advisor.planners.step.describe_operators import (
    ACTIVATIONS,
    LAYER_NORM,
    ROOT_MEAN_SQUARE,
    SUM_PASSES,
    ActivationKind,
)
from advisor.planners.step.ledger import Ledger


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
        self.add(self.tally.attention(
            self.batch * float(queries) * keys, heads, width, (asked + read) * width,
            is_fused=self.is_flash, seen=0.5 if is_cut else 1.0,
        ))  # fmt: skip
        if not self.is_flash:
            self.keep(element * self.batch * heads * float(queries) * keys)
        has_bias = has_bias if has_output_bias is None else has_output_bias
        self.linear("projection", asked, width, hidden, has_bias=has_bias)

    def feed_forward(
        self, rows: float, hidden: int, ffn: int, *, activation: ActivationKind, has_bias: bool
    ) -> None:
        """Add up and down products with the activation between them."""
        self.linear("up", rows, hidden, ffn, has_bias=has_bias)
        if activation.startswith("gated"):
            self.linear("up", rows, hidden, ffn, has_bias=has_bias, keeps_input=False)
        passes, calls, kept = ACTIVATIONS[activation]
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
