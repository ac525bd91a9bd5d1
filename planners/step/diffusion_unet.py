"""The work of a training step of a conditional diffusion U-Net described in a few numbers.

Levels of residual convolution blocks, each level at half the side of the one before, some with
transformer blocks that look at the picture and at a text; the way back up takes in what each block
of the way down gave. Stable Diffusion 1.x, 2.x and XL are of this form. The text encoder and the
autoencoder are frozen and not counted: their outputs are usually stored.

Sources: R. Rombach et al., CVPR 2022; D. Podell et al., SDXL, 2023; the blocks as diffusers' class
``UNet2DConditionModel`` has them. Parameters and operations are held to it by
``tests/test_describe_unet.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from advisor.planners.core.checks import check_dimensions
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import DEFAULT_SETUP, Precision, TrainingSetup, Work
from advisor.planners.step.describe_operators import (
    ACTIVATION,
    LAYER_NORM,
    Tally,
)
from advisor.planners.step.ledger_blocks import BlockLedger

# The width of the time step's embedding, by that of the first level.
_TIME: Final = 4
_COPY: Final = ((2, 2), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionUNet:
    """A conditional diffusion U-Net in a few numbers.

    Attributes
    ----------
    side : int
        Of the square input: the latent's, an eighth of the picture's. [cells]
    blocks : int
        Residual blocks of a level on the way down; one more on the way up.
    transformers : tuple of int
        Transformer layers after each residual block of a level; 0 for none.
    middle_transformers : int
        Transformer layers at the bottom.
    text_tokens, text_width : int
        What the picture is conditioned on.
    condition_width : int
        Of another embedding that is added to the time step's (SDXL's sizes); 0 for none.
    """

    side: int
    channels: int
    out_channels: int
    widths: tuple[int, ...]
    blocks: int
    transformers: tuple[int, ...]
    middle_transformers: int
    heads: tuple[int, ...]
    text_tokens: int
    text_width: int
    condition_width: int = 0


def diffusion_work(
    model: DiffusionUNet,
    *,
    micro_batch: int,
    precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:
    """Return what a training step of the U-Net computes on one device.

    Raises
    ------
    PlanningError
        If a size is not positive, or the picture is too small for its levels.
    """
    _check(model, micro_batch)
    ledger = _UNetLedger(
        tally=Tally.of(precision, setup),
        batch=micro_batch,
        is_flash=setup.attention == "flash",
        model=model,
    )
    ledger.time_embedding()
    side = ledger.way_down()
    ledger.middle(side)
    ledger.way_up(side)
    latents = 4.0 * model.channels * model.side**2
    return ledger.work(
        precision, input_bytes_per_sample=2 * latents + 4.0 * model.text_tokens * model.text_width
    )


def _check(model: DiffusionUNet, micro_batch: int) -> None:
    sizes: dict[str, float] = {
        "side": model.side, "channels": model.channels, "out_channels": model.out_channels,
        "levels": len(model.widths), "blocks": model.blocks, "text_tokens": model.text_tokens,
        "text_width": model.text_width, "micro_batch": micro_batch,
    }  # fmt: skip
    sizes |= {f"layers of level {i}": max(n, 1) for i, n in enumerate(model.transformers, 1)}
    check_dimensions(sizes | {f"width of level {i}": w for i, w in enumerate(model.widths, 1)})
    if not len(model.widths) == len(model.transformers) == len(model.heads):
        raise ValueError(f"levels of different number: {model}")
    smallest = 2 ** (len(model.widths) - 1)
    if model.side % smallest:
        raise PlanningError(
            f"a side of {model.side} is halved {len(model.widths) - 1} times",
            hint=f"give an image whose side is a multiple of {8 * smallest} pixels",
            exit_code=2,
        )


@dataclass(slots=True, kw_only=True)
class _UNetLedger(BlockLedger):
    """Adds the blocks of diffusion U-Nets; ``skips`` are channels that the way up takes in."""

    model: DiffusionUNet
    skips: list[int] = field(default_factory=list)

    @property
    def _time_width(self) -> int:
        return _TIME * self.model.widths[0]

    def time_embedding(self) -> None:
        """Add the two dense layers of each embedding."""
        for inner in (self.model.widths[0], self.model.condition_width):
            if inner:
                self.linear("time", self.batch, inner, self._time_width)
                self.linear("time", self.batch, self._time_width, self._time_width)

    def way_down(self) -> int:
        """Add the levels downwards; return the side at the bottom."""
        model, side = self.model, self.model.side
        channels = model.widths[0]
        self.convolution(side, model.channels, channels, 3, 1)
        self.skips.append(channels)
        for level, width in enumerate(model.widths):
            for _ in range(model.blocks):
                self._residual_block(side, channels, width)
                self._transformer(side, width, level)
                channels = width
                self.skips.append(width)
            if level < len(model.widths) - 1:
                side = self.convolution(side, width, width, 3, 2)
                self.skips.append(width)
        return side

    def middle(self, side: int) -> None:
        """Add two residual blocks with a transformer between them."""
        width, level = self.model.widths[-1], len(self.model.widths) - 1
        self._residual_block(side, width, width)
        self._transformer(side, width, level, layers=self.model.middle_transformers)
        self._residual_block(side, width, width)

    def way_up(self, side: int) -> None:
        """Add the levels upwards and the output."""
        model = self.model
        channels = model.widths[-1]
        for level in reversed(range(len(model.widths))):
            width = model.widths[level]
            for _ in range(model.blocks + 1):
                joined = channels + self.skips.pop()
                cells = self.batch * side**2
                self.pointwise("cat", "copy", cells * joined, *_COPY)
                self._residual_block(side, joined, width)
                self._transformer(side, width, level)
                channels = width
            if level > 0:
                side *= 2
                self.pointwise("upsample", "copy", self.batch * side**2 * width, *_COPY)
                self.convolution(side, width, width, 3, 1)
        self._group_norm(side, channels)
        self._activation(side, channels)
        self.convolution(side, channels, model.out_channels, 3, 1)

    def _residual_block(self, side: int, channels: int, width: int) -> None:
        cells = self.batch * side**2
        self._group_norm(side, channels)
        self._activation(side, channels)
        self.convolution(side, channels, width, 3, 1)
        self.linear("time", self.batch, self._time_width, width)
        self.residual(cells, width)
        self._group_norm(side, width)
        self._activation(side, width)
        self.convolution(side, width, width, 3, 1)
        if channels != width:
            self.convolution(side, channels, width, 1, 1)
        self.residual(cells, width)

    def _transformer(self, side: int, width: int, level: int, *, layers: int = 0) -> None:
        model, tokens = self.model, side**2
        rows, heads = self.batch * tokens, model.heads[level]
        layers = layers or model.transformers[level]
        if not layers:
            return
        self._group_norm(side, width)
        self.linear("inwards", rows, width, width)
        for _ in range(layers):
            for keys, source in ((tokens, None), (model.text_tokens, model.text_width)):
                self.norm(rows, width)
                self.attention(
                    tokens, keys, hidden=width, heads=heads, width=width, source_width=source,
                    has_bias=False, has_output_bias=True,
                )  # fmt: skip
                self.residual(rows, width)
            self.norm(rows, width)
            self.feed_forward(rows, width, 4 * width, activation="gated", has_bias=True)
            self.residual(rows, width)
        self.linear("outwards", rows, width, width)
        self.residual(rows, width)

    def _group_norm(self, side: int, channels: int) -> None:
        elements = self.batch * channels * side**2
        self.own(2 * channels, 2)
        self.pointwise("group_norm", "normalisation", elements, *LAYER_NORM)
        self.keep(self.tally.element * elements)

    def _activation(self, side: int, channels: int) -> None:
        elements = self.batch * channels * side**2
        self.pointwise("activation", "elementwise", elements, *ACTIVATION)
        self.keep(self.tally.element * elements)
