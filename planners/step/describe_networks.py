"""The work of a training step of an encoder-decoder described in a few numbers.

An encoder reads the source in both directions; every layer of the decoder looks at the target
before it and at the whole of the encoder's output. T5, BART and Whisper are of this form, which
differ in biases, normalisations, positions and what stands in front.

Sources: A. Vaswani et al., 2017; C. Raffel et al., JMLR 2020 (T5); M. Lewis et al., 2020 (BART);
A. Radford et al., 2022 (Whisper). Sizes and operations are held to the models of transformers by
``tests/test_describe_encoder_decoder.py``.
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
    check_counts,
    check_dimensions,
    check_not_negative,
    refused,
)
from advisor.planners.step.ledger import (
    ACTIVATION,
    FP32_BYTES,
    LAYER_NORM,
    ActivationKind,
    BlockLedger,
    Pair,
    Tally,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoder:
    """An encoder-decoder in a few numbers."""

    encoder_layers: int
    decoder_layers: int
    hidden: int
    encoder_heads: int
    decoder_heads: int
    encoder_ffn: int
    decoder_ffn: int
    vocabulary: int
    # source, target: tokens of a sample that the encoder reads (frames of audio after its
    # convolutions), and that the decoder writes
    source: int
    target: int
    head_width: int | None = None  # none means ``hidden / heads``
    # of the feed-forward block; gated ones have three matrices instead of two
    activation: ActivationKind = "gelu"
    has_bias: bool = True
    has_key_bias: bool = True
    has_root_mean_square: bool = False  # normalisation without mean and bias
    # has_embedding_norms, has_final_norms: a normalisation behind each embedding, and at the end
    # of each stack
    has_embedding_norms: bool = False
    has_final_norms: bool = True
    has_tied_head: bool = True  # the output head is the embedding's matrix
    # encoder_positions, decoder_positions: rows of stored position tables; 0 where positions are
    # computed
    encoder_positions: int = 0
    decoder_positions: int = 0
    # rows of a table of relative positions for each stack, a column a head; 0 for none
    relative_buckets: int = 0
    # rows of the spectrogram that two convolutions in front read; 0 for text
    audio_channels: int = 0


def encoder_decoder_work(
    model: EncoderDecoder,
    *,
    micro_batch: int,
    precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:
    """Return what a training step of an encoder-decoder computes on one device.

    Raises PlanningError if a size is not positive, or heads do not divide the width.
    """
    _check_encoder_decoder(model, micro_batch)
    ledger = _EncoderDecoderLedger(
        tally=Tally.of(precision, setup),
        batch=micro_batch,
        has_root_mean_square=model.has_root_mean_square,
        model=model,
    )
    ledger.source_ends()
    for index in range(model.encoder_layers):
        ledger.encoder_layer(index)
    if model.has_final_norms:
        ledger.norm(micro_batch * model.source, model.hidden)
    ledger.target_ends()
    for index in range(model.decoder_layers):
        ledger.decoder_layer(index)
    ledger.head()
    inputs = 4.0 * model.audio_channels * 2 * model.source or 8.0 * model.source
    return ledger.work(input_bytes_per_sample=inputs + 8.0 * model.target)


def _check_encoder_decoder(model: EncoderDecoder, micro_batch: int) -> None:
    names = (
        "encoder_layers", "decoder_layers", "hidden", "encoder_heads", "decoder_heads",
        "encoder_ffn", "decoder_ffn", "vocabulary", "source", "target",
    )  # fmt: skip
    check_dimensions({name: getattr(model, name) for name in names} | {"micro_batch": micro_batch})
    rest = ("encoder_positions", "decoder_positions", "relative_buckets", "audio_channels")
    check_not_negative("encoder-decoder", **{name: getattr(model, name) for name in rest})
    check_counts("encoder-decoder", head_width=model.head_width)
    for heads in (model.encoder_heads, model.decoder_heads):
        if model.head_width is None and model.hidden % heads:
            raise refused(
                f"a width of {model.hidden} over {heads} heads", "heads divide the width"
            )


@dataclass(slots=True, kw_only=True)
class _EncoderDecoderLedger(BlockLedger):
    """Adds the layers of encoder-decoders."""

    model: EncoderDecoder

    def source_ends(self) -> None:
        """Add what stands before the encoder."""
        model, rows = self.model, self.batch * self.model.source
        if model.audio_channels:
            # Along time only, so that a kernel has three weights; the second one halves it.
            self._convolution(2 * model.source, model.audio_channels, 1)
            self._convolution(2 * model.source, model.hidden, 2)
        else:
            self.embedding(rows, model.vocabulary, model.hidden)
        self._positions(rows, model.encoder_positions, model.source, model.encoder_heads)

    def target_ends(self) -> None:
        """Add what stands before the decoder; its words are those of the source."""
        model, rows = self.model, self.batch * self.model.target
        # The encoder's output, which every layer of the decoder reads.
        self.keep(self.tally.element * self.batch * model.source * model.hidden)
        self.embedding(rows, model.vocabulary, model.hidden, is_owned=bool(model.audio_channels))
        self._positions(rows, model.decoder_positions, model.target, model.decoder_heads)

    def _positions(self, rows: float, table: int, tokens: int, heads: int) -> None:
        model = self.model
        if table:
            self.own(table * model.hidden)
            self.residual(rows, model.hidden)
        if model.relative_buckets:
            # One table for the whole stack, looked up once and added to the scores of every layer.
            self.embedding(float(tokens) ** 2, model.relative_buckets, heads)
        if model.has_embedding_norms:
            self.norm(rows, model.hidden)

    def _convolution(self, frames: int, channels: int, stride: int) -> None:
        width, rows = self.model.hidden, self.batch * frames
        self.along_time(rows, channels, width, 3, stride=stride)
        self.keep(self.tally.element * rows / stride * width)
        self.pointwise("activation", "elementwise", rows / stride * width, *ACTIVATION)

    def encoder_layer(self, index: int) -> None:
        """Add attention in both directions and the feed-forward block."""
        model, since, rows = self.model, self.mark(), self.batch * self.model.source
        self._attention(model.source, model.source, model.encoder_heads)
        self._feed_forward(rows, model.encoder_ffn)
        self.close_layer(f"encoder.{index}.block", since, rows * model.hidden)

    def decoder_layer(self, index: int) -> None:
        """Add attention to the target so far, to the source, and the feed-forward block."""
        model, since, rows = self.model, self.mark(), self.batch * self.model.target
        self._attention(
            model.target, model.target, model.decoder_heads, is_cut=not model.relative_buckets
        )
        self._attention(model.target, model.source, model.decoder_heads, source=model.hidden)
        self._feed_forward(rows, model.decoder_ffn)
        # A later stage needs the encoder's output too.
        handed = (rows + self.batch * model.source) * model.hidden
        self.close_layer(f"decoder.{index}.block", since, handed)

    def _attention(
        self, queries: int, keys: int, heads: int, *, source: int | None = None,
        is_cut: bool = False,
    ) -> None:  # fmt: skip
        model = self.model
        self.attention(
            queries, keys, hidden=model.hidden, heads=heads,
            width=heads * (model.head_width or model.hidden // heads), source_width=source,
            has_bias=model.has_bias, has_key_bias=model.has_key_bias, is_cut=is_cut,
        )  # fmt: skip

    def _feed_forward(self, rows: float, ffn: int) -> None:
        model = self.model
        self.feed_forward(
            rows, model.hidden, ffn, activation=model.activation, has_bias=model.has_bias
        )

    def head(self) -> None:
        """Add the last normalisation, the projection onto the vocabulary, and the loss."""
        model, rows = self.model, self.batch * self.model.target
        if model.has_final_norms:
            self.norm(rows, model.hidden)
        self.linear(
            "head", rows, model.hidden, model.vocabulary, has_bias=False,
            is_shared=model.has_tied_head,
        )  # fmt: skip
        self.add(self.tally.loss(rows * model.vocabulary))
        self.keep(rows * model.vocabulary * FP32_BYTES)  # logarithms of the probabilities


# ------------------------------------------------------------------------------------------
# The work of a training step of a conditional diffusion U-Net described in a few numbers.
#
# Levels of residual convolution blocks, each level at half the side of the one before, some with
# transformer blocks that look at the picture and at a text; the way back up takes in what each
# block of the way down gave. Stable Diffusion 1.x, 2.x and XL are of this form. The text encoder
# and the autoencoder are frozen and not counted: their outputs are usually stored.
#
# Sources: R. Rombach et al., CVPR 2022; D. Podell et al., SDXL, 2023; the blocks as diffusers'
# class ``UNet2DConditionModel`` has them. Parameters and operations are held to it by
# ``tests/test_describe_unet.py``.


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
    model: DiffusionUNet,
    *,
    micro_batch: int,
    precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:
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


# ------------------------------------------------------------------------------------------
# A diffusion U-Net's dimensions from the configuration that diffusers writes, as a mapping.


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


# ------------------------------------------------------------------------------------------
# An encoder-decoder's dimensions from a Hugging Face configuration, given as a mapping.
#
# | family                    | biases | normalisation       | positions                        |
# |---------------------------|--------|---------------------|----------------------------------|
# | t5, mt5                   | none   | root mean square    | relative, a table for each stack |
# | bart, plbart              | all    | and of embeddings   | learned, two rows more           |
# | mbart                     | all    | embeddings and ends | learned, two rows more           |
# | marian                    | all    | blocks only         | computed, stored as a table      |
# | pegasus                   | all    | and at the ends     | computed, stored as a table      |
# | m2m_100 (NLLB)            | all    | and at the ends     | computed                         |
# | whisper                   | no key | and at the ends     | computed and learned             |
#
# Source: the modelling files of transformers 5.23.


_T5: Final = frozenset({"t5", "mt5"})
_BART: Final = frozenset({"bart", "mbart", "plbart", "marian", "pegasus", "m2m_100", "whisper"})
FAMILIES_OF_TWO: Final = _T5 | _BART
# Rows that BART's tables of positions have before the first position.
_OFFSET: Final = {"bart": 2, "mbart": 2, "plbart": 2}
# What T5 was trained on, and transformers' default where a configuration says nothing.
_T5_TOKENS: Final = 512
_T5_BUCKETS: Final = 32


def read_encoder_decoder(
    config: Mapping[str, Any], *, sequence: int | None = None
) -> EncoderDecoder:
    """Return the encoder-decoder that a configuration describes.

    ``sequence``: tokens of source and target; the longest that the model allows where not given. A
    model that hears always reads its whole window (Whisper: 30 s, 1,500 frames).

    Raises PlanningError if a dimension is not stated.
    """
    kind = str(config.get("model_type", ""))
    try:
        return _t5(config, sequence) if kind in _T5 else _bart(config, kind, sequence)
    except (KeyError, TypeError, ValueError) as error:
        raise refused(
            f"the configuration of the {kind} model does not state {error}",
            "give the config.json as it was published",
        ) from error


def _t5(config: Mapping[str, Any], sequence: int | None) -> EncoderDecoder:
    tokens = sequence or int(config.get("n_positions") or _T5_TOKENS)
    is_gated = "gated" in str(config.get("feed_forward_proj", "relu"))
    layers, heads, ffn = int(config["num_layers"]), int(config["num_heads"]), int(config["d_ff"])
    return EncoderDecoder(
        encoder_layers=layers,
        decoder_layers=int(config.get("num_decoder_layers") or layers),
        hidden=int(config["d_model"]),
        encoder_heads=heads,
        decoder_heads=heads,
        head_width=int(config["d_kv"]),
        encoder_ffn=ffn,
        decoder_ffn=ffn,
        vocabulary=int(config["vocab_size"]),
        source=tokens,
        target=tokens,
        activation="gated, written out" if is_gated else "relu",
        has_bias=False,
        has_root_mean_square=True,
        has_tied_head=bool(config.get("tie_word_embeddings", True)),
        relative_buckets=int(config.get("relative_attention_num_buckets", _T5_BUCKETS)),
    )


def _bart(config: Mapping[str, Any], kind: str, sequence: int | None) -> EncoderDecoder:
    is_whisper = kind == "whisper"
    name = "max_target_positions" if is_whisper else "max_position_embeddings"
    longest = int(config.get(name, 448) if is_whisper else config[name])
    source = int(config.get("max_source_positions", 1500)) if is_whisper else sequence or longest
    # M2M computes positions and stores none.
    rows = 0 if kind == "m2m_100" else longest + _OFFSET.get(kind, 0)
    return EncoderDecoder(
        encoder_layers=int(config["encoder_layers"]),
        decoder_layers=int(config["decoder_layers"]),
        hidden=int(config["d_model"]),
        encoder_heads=int(config["encoder_attention_heads"]),
        decoder_heads=int(config["decoder_attention_heads"]),
        encoder_ffn=int(config["encoder_ffn_dim"]),
        decoder_ffn=int(config["decoder_ffn_dim"]),
        vocabulary=int(config["vocab_size"]),
        source=source,
        target=sequence or longest,
        activation="relu" if config.get("activation_function") == "relu" else "gelu",
        has_key_bias=not is_whisper,
        has_embedding_norms=kind in {"bart", "mbart", "plbart"},
        has_final_norms=kind not in {"bart", "plbart", "marian"},
        has_tied_head=bool(config.get("tie_word_embeddings", True)),
        encoder_positions=source if is_whisper else rows,
        decoder_positions=rows,
        audio_channels=int(config.get("num_mel_bins", 80)) if is_whisper else 0,
    )
