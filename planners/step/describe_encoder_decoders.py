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
from dataclasses import dataclass
from typing import Any, Final

from advisor.planners.core import (
    DEFAULT_SETUP,
    Precision,
    TrainingSetup,
    Work,
    check_counts,
    check_dimensions,
    check_not_negative,
    refused,
)
from advisor.planners.step.ledger import ACTIVATION, FP32_BYTES, ActivationKind, BlockLedger, Tally


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
    model: EncoderDecoder, *, micro_batch: int, precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
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

    An encoder-decoder's dimensions from a Hugging Face configuration, given as a mapping.

    | family                    | biases | normalisation       | positions                        |
    |---------------------------|--------|---------------------|----------------------------------|
    | t5, mt5                   | none   | root mean square    | relative, a table for each stack |
    | bart, plbart              | all    | and of embeddings   | learned, two rows more           |
    | mbart                     | all    | embeddings and ends | learned, two rows more           |
    | marian                    | all    | blocks only         | computed, stored as a table      |
    | pegasus                   | all    | and at the ends     | computed, stored as a table      |
    | m2m_100 (NLLB)            | all    | and at the ends     | computed                         |
    | whisper                   | no key | and at the ends     | computed and learned             |

    Source: the modelling files of transformers 5.23.

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
