"""An encoder-decoder's dimensions from a Hugging Face configuration, given as a mapping.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.planners.core.errors import PlanningError
from advisor.planners.step.encoder_decoder import EncoderDecoder

_T5: Final = frozenset({"t5", "mt5"})
_BART: Final = frozenset({"bart", "mbart", "plbart", "marian", "pegasus", "m2m_100", "whisper"})
FAMILIES: Final = _T5 | _BART
# Rows that BART's tables of positions have before the first position.
_OFFSET: Final = {"bart": 2, "mbart": 2, "plbart": 2}
# What T5 was trained on, and transformers' default where a configuration says nothing.
_T5_TOKENS: Final = 512
_T5_BUCKETS: Final = 32


def read_encoder_decoder(
    config: Mapping[str, Any], *, sequence: int | None = None
) -> EncoderDecoder:
    """Return the encoder-decoder that a configuration describes.

    Parameters
    ----------
    sequence : int, optional
        Tokens of source and target; the longest that the model allows where not given. A model
        that hears always reads its whole window (Whisper: 30 s, 1,500 frames).

    Raises
    ------
    PlanningError
        If a dimension is not stated.
    """
    kind = str(config.get("model_type", ""))
    try:
        return _t5(config, sequence) if kind in _T5 else _bart(config, kind, sequence)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanningError(
            f"the configuration of the {kind} model does not state {error}",
            hint="give the config.json as it was published",
            exit_code=2,
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
    longest = int(config["max_target_positions" if is_whisper else "max_position_embeddings"])
    source = int(config["max_source_positions"]) if is_whisper else sequence or longest
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
