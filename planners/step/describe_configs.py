"""A model's dimensions from a Hugging Face configuration, given as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.planners.core import PlanningError, Transformer, check_counts
from advisor.planners.step.describe import ConvolutionalNetwork
from advisor.planners.step.describe_networks import DiffusionUNet, EncoderDecoder

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
            raise _diffusion_config_refused(
                f"a U-Net with {name} {config[name]!r} cannot be described"
            )
    try:
        widths = tuple(int(width) for width in config["block_out_channels"])
        channels = int(config["in_channels"])
        pixels = 1 if channels == 3 else _PIXELS
        down = config["down_block_types"]
        if unknown := set(down) - {_PLAIN[0], _WITH_TEXT[0]}:
            raise _diffusion_config_refused(
                f"a U-Net with {', '.join(sorted(unknown))} cannot be described"
            )
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
        raise _diffusion_config_refused(f"not the configuration of a {CLASS}: {error}") from error


def _by_level(value: Any, levels: int) -> tuple[int, ...]:
    """Return one number a level: of a list, or the same for all."""
    if isinstance(value, int):
        return (value,) * levels
    found = tuple(int(each) for each in value)
    if len(found) != levels:
        raise ValueError(f"{list(value)} for {levels} levels")
    return found


def _diffusion_config_refused(message: str) -> PlanningError:
    return PlanningError(
        message, hint="profile one step of it instead: advisor profile train.py", exit_code=2
    )


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

    Raises PlanningError if a dimension is not stated.

    Parameters
    ----------
    sequence : int, optional
        Tokens of source and target; the longest that the model allows where not given. A model
        that hears always reads its whole window (Whisper: 30 s, 1,500 frames).
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


DescribedModel = Transformer | ConvolutionalNetwork | EncoderDecoder | DiffusionUNet
# Models that allow more are trained on less: Llama 3 on 8,192 tokens before its context was
# stretched to 131,072 (Grattafiori et al., 2024, section 3.4).
LONGEST_DEFAULT: Final = 8192

# What a dimension is called by the model families; the first name that is there counts.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
}
_OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk"),
    "head_width": ("head_dim",),
}
# Width of one expert, where a dense layer's is stated beside it (Qwen's and DeepSeek's mixtures).
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size")
# Families whose feed-forward block has a gate though their activation's name does not say so.
_GATED: Final = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma",
        "gemma2", "gemma3", "gemma3_text", "phi3", "olmo", "olmo2", "granite", "deepseek",
        "deepseek_v2", "deepseek_v3", "internlm", "internlm2", "baichuan", "yi", "stablelm",
        "cohere", "smollm3",
    }
)  # fmt: skip
# Encoders look both ways.
_BIDIRECTIONAL: Final = frozenset(
    {
        "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "albert", "deberta",
        "deberta-v2", "electra", "mpnet", "vit", "deit", "modernbert",
    }
)  # fmt: skip
# Written by these heads alone: one prediction a sample, not one a token.
_WITHOUT_HEAD: Final = ("Classification", "Answering", "Choice", "Model")
# Two towers, recurrence or windows: not of a form that is described.
_OTHER_FORMS: Final = frozenset(
    {
        "clip", "swin", "swinv2", "convnext", "convnextv2", "efficientnet", "mobilenet_v2",
        "mobilenet_v3", "mamba", "mamba2", "rwkv", "wav2vec2", "unet", "longformer", "reformer",
        "umt5", "longt5", "switch_transformers", "blenderbot", "led", "bigbird_pegasus",
        "prophetnet", "fsmt", "seamless_m4t", "speecht5",
    }
)  # fmt: skip
# transformers' default where a resnet configuration does not say: ImageNet's side.
_IMAGE: Final = 224


def read_config(
    config: Mapping[str, Any], *, sequence: int | None = None, image: int | None = None
) -> DescribedModel:
    """Return the model that a configuration describes.

    ``sequence``: tokens of a sample (of source and target for an encoder-decoder); as long as the
    model allows where not given, at most 8,192 for a single stack; ``image``: side of an image;
    the configuration's, or 224.

    Raises PlanningError if the model is of another form, or a dimension is not stated.
    """
    try:
        return _read(config, sequence, image)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise _refused(str(error)) from error


def _refused(why: str) -> PlanningError:
    return PlanningError(
        f"not the configuration of a model: {why}",
        hint="give the config.json of a Hugging Face model, unchanged",
        exit_code=2,
    )


def _read(config: Mapping[str, Any], sequence: int | None, image: int | None) -> DescribedModel:
    kind = str(config.get("model_type", ""))
    if config.get("_class_name") == CLASS:
        return read_unet(config, image=image)
    if kind in FAMILIES:
        return read_encoder_decoder(config, sequence=sequence)
    if kind in _OTHER_FORMS or config.get("is_encoder_decoder") or "_class_name" in config:
        raise PlanningError(
            f"{config.get('_class_name') or kind or 'the model'} is of a form that cannot be "
            "described",
            hint="profile one step of it instead: advisor profile train.py",
            exit_code=2,
        )
    if kind == "resnet":
        return _network(config, image)
    return transformer_of(config, sequence=sequence, image=image)


def transformer_of(
    config: Mapping[str, Any], *, sequence: int | None = None, image: int | None = None
) -> Transformer:
    """Return the transformer that a configuration describes.

    Raises PlanningError if a dimension is not stated.
    """
    # Models that see and read nest the language model's dimensions.
    config = _with_text(config)
    kind = str(config.get("model_type", ""))
    found = {name: _first(config, names) for name, names in _NAMES.items()}
    if found["sequence"] is not None:
        found["sequence"] = min(found["sequence"], LONGEST_DEFAULT)
    if patch := config.get("patch_size"):
        check_counts("configuration", patch_size=int(patch))
        found["sequence"] = (int(image or config.get("image_size", _IMAGE)) // int(patch)) ** 2 + 1
        found["vocabulary"] = found["vocabulary"] or 0
    if sequence is not None:
        found["sequence"] = sequence
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise PlanningError(
            f"the configuration does not state {', '.join(missing)}",
            hint=f"it is called {' or '.join(_NAMES[missing[0]])} there",
            exit_code=2,
        )
    optional = {name: _first(config, names) for name, names in _OPTIONAL.items()}
    if (optional["experts"] or 1) > 1:
        optional["ffn"] = _first(config, _EXPERT_WIDTH) or optional["ffn"]
    sizes: dict[str, Any] = {k: v for k, v in {**found, **optional}.items() if v is not None}
    return Transformer(
        **sizes,
        is_gated=kind in _GATED or "glu" in str(config.get("hidden_act", "")).lower(),
        is_causal=kind not in _BIDIRECTIONAL,
        has_tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        has_head=_has_head(config),
    )


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the model of a configuration allows, where it says so."""
    return _first(_with_text(config), _NAMES["sequence"])


def _with_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise _refused("text_config must be an object")
    return {**config, **text}


def _has_head(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise TypeError("architectures must be a list of names")
    return not (names and str(names[0]).endswith(_WITHOUT_HEAD) and "LMHead" not in str(names[0]))


def _network(config: Mapping[str, Any], image: int | None) -> ConvolutionalNetwork:
    try:
        depths, widths = config["depths"], config["hidden_sizes"]
        return ConvolutionalNetwork(
            image=int(image or config.get("image_size") or _IMAGE),
            stem=int(config.get("embedding_size", 64)),
            stages=tuple((int(d), int(w)) for d, w in zip(depths, widths, strict=True)),
            kind="basic" if config.get("layer_type") == "basic" else "bottleneck",
            classes=len(config.get("id2label") or {}) or int(config.get("num_labels") or 1000),
            channels=int(config.get("num_channels", 3)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanningError(
            f"not the configuration of a ResNet: {error}",
            hint="depths and hidden_sizes are lists of equal length",
            exit_code=2,
        ) from error


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if isinstance(value := config.get(name), int) and not isinstance(value, bool):
            return value
    return None
