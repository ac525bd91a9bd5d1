"""The work of a training step of a conditional diffusion U-Net described in a few numbers.

Levels of residual convolution blocks, each level at half the side of the one before, some with
transformer blocks that look at the picture and at a text; the way back up takes in what each
block of the way down gave. Stable Diffusion 1.x, 2.x and XL are of this form. The text encoder
and the autoencoder are frozen and not counted: their outputs are usually stored.

Sources: R. Rombach et al., CVPR 2022; D. Podell et al., SDXL, 2023; the blocks as diffusers'
class ``UNet2DConditionModel`` has them. Parameters and operations are held to it by
``tests/test_describe_unet.py``. Dimensions come from the
configuration that diffusers writes, as a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from advisor.planners.core import (
    DEFAULT_SETUP,
    OperatorKind,
    PlanningError,
    Precision,
    TrainingSetup,
    Work,
    check_dimensions,
    refused,
)
from advisor.planners.step.ledger import ACTIVATION, LAYER_NORM, BlockLedger, Pair, Tally

# The width of the time step's embedding, by that of the first level.
_TIME: Final = 4
_COPY: Final = ((2, 2), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionUNet:
    """A conditional diffusion U-Net in a few numbers."""

    side: int  # of the square input: the latent's, an eighth of the picture's [cells]
    channels: int
    out_channels: int
    widths: tuple[int, ...]
    blocks: int  # residual blocks of a level on the way down; one more on the way up
    # transformer layers after each residual block of a level; 0 for none
    transformers: tuple[int, ...]
    middle_transformers: int  # transformer layers at the bottom
    heads: tuple[int, ...]
    # text_tokens, text_width: what the picture is conditioned on
    text_tokens: int
    text_width: int
    # of another embedding that is added to the time step's (SDXL's sizes); 0 for none
    condition_width: int = 0


def diffusion_work(
    model: DiffusionUNet, *, micro_batch: int, precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a training step of the U-Net computes on one device.

    Raises PlanningError if a size is not positive, or the picture is too small for its levels.
    """
    _check_unet(model, micro_batch)
    ledger = _UNetLedger(tally=Tally.of(precision, setup), batch=micro_batch, model=model)
    ledger.time_embedding()
    side = ledger.way_down()
    ledger.middle(side)
    ledger.way_up(side)
    latents = 4.0 * model.channels * model.side**2
    return ledger.work(
        input_bytes_per_sample=2 * latents + 4.0 * model.text_tokens * model.text_width
    )


def _check_unet(model: DiffusionUNet, micro_batch: int) -> None:
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
        raise refused(
            f"a side of {model.side} is halved {len(model.widths) - 1} times",
            f"give an image whose side is a multiple of {8 * smallest} pixels",
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
        self._activated(side, channels)
        self.convolution(side, channels, model.out_channels, 3, 1)

    def _residual_block(self, side: int, channels: int, width: int) -> None:
        cells = self.batch * side**2
        self._activated(side, channels)
        self.convolution(side, channels, width, 3, 1)
        self.linear("time", self.batch, self._time_width, width)
        self.residual(cells, width)
        self._activated(side, width)
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
                self.attention(
                    tokens, keys, hidden=width, heads=heads, width=width, source_width=source,
                    has_bias=False, has_output_bias=True,
                )  # fmt: skip
            self.feed_forward(rows, width, 4 * width, activation="gated")
        self.linear("outwards", rows, width, width)
        self.residual(rows, width)

    def _group_norm(self, side: int, channels: int) -> None:
        self.own(2 * channels, 2)
        self._streamed("group_norm", "normalisation", side, channels, *LAYER_NORM)

    def _activated(self, side: int, channels: int) -> None:
        self._group_norm(side, channels)
        self._streamed("activation", "elementwise", side, channels, *ACTIVATION)

    def _streamed(
        self, name: str, kind: OperatorKind, side: int, channels: int, passes: Pair, calls: Pair
    ) -> None:
        elements = self.batch * channels * side**2
        self.pointwise(name, kind, elements, passes, calls)
        self.keep(self.tally.element * elements)


CLASS: Final = "UNet2DConditionModel"
# Pixels of a latent cell's side: the autoencoders of Stable Diffusion halve three times.
_PIXELS: Final = 8
# CLIP's text encoder reads 77 tokens (Radford et al., 2021).
_TEXT_TOKENS: Final = 77
_PLAIN: Final = ("DownBlock2D", "UpBlock2D")
_WITH_TEXT: Final = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D")
# Fields that change the form of the model where they say anything but this.
_ORDINARY: Final[dict[str, tuple[object, ...]]] = {
    "class_embed_type": (None,),
    "encoder_hid_dim": (None,),
    "dual_cross_attention": (None, False),
    "only_cross_attention": (None, False),
    "resnet_time_scale_shift": (None, "default"),
    "time_embedding_type": (None, "positional"),
    "mid_block_type": (None, "UNetMidBlock2DCrossAttn"),
}


def read_unet(config: Mapping[str, Any], *, image: int | None = None) -> DiffusionUNet:
    """Return the U-Net that a configuration describes.

    ``config``: the content of ``unet/config.json``; ``image``: side of the picture [pixels]; the
    configuration's ``sample_size`` where not given.

    Raises PlanningError if a dimension is not stated, or the model has parts that the description
    does not know.
    """
    for name, known in _ORDINARY.items():
        if config.get(name) not in known:
            raise _unread(f"a U-Net with {name} {config[name]!r} cannot be described")
    try:
        widths = tuple(int(width) for width in config["block_out_channels"])
        channels = int(config["in_channels"])
        pixels = 1 if channels == 3 else _PIXELS
        down = config["down_block_types"]
        if unknown := set(down) - {_PLAIN[0], _WITH_TEXT[0]}:
            raise _unread(f"a U-Net with {', '.join(sorted(unknown))} cannot be described")
        layers = _by_level(config.get("transformer_layers_per_block") or 1, len(widths))
        heads = config.get("num_attention_heads") or config["attention_head_dim"]
        (blocks,) = set(_by_level(config["layers_per_block"], len(widths)))
        return DiffusionUNet(
            side=image // pixels if image else int(config["sample_size"]),
            channels=channels,
            out_channels=int(config["out_channels"]),
            widths=widths,
            blocks=blocks,
            transformers=tuple(
                n if kind == _WITH_TEXT[0] else 0 for n, kind in zip(layers, down, strict=True)
            ),
            middle_transformers=layers[-1],
            heads=_by_level(heads, len(widths)),
            text_tokens=_TEXT_TOKENS,
            text_width=int(config["cross_attention_dim"]),
            condition_width=int(config.get("projection_class_embeddings_input_dim") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unread(f"not the configuration of a {CLASS}: {error}") from error


def _by_level(value: Any, levels: int) -> tuple[int, ...]:
    """Return one number a level: of a list, or the same for all."""
    if isinstance(value, int):
        return (value,) * levels
    found = tuple(int(each) for each in value)
    if len(found) != levels:
        raise ValueError(f"{list(value)} for {levels} levels")
    return found


def _unread(message: str) -> PlanningError:
    return refused(message, "profile one step of it instead: advisor profile train.py")
