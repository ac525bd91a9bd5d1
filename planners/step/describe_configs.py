"""A model's dimensions from a Hugging Face configuration, given as a mapping."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.planners.core import (
    Latent,
    PlanningError,
    Transformer,
    check_counts,
    check_dimensions,
    refused,
    transformer_parameters,
)
from advisor.planners.step.describe_convolutions import (
    BlockKind,
    ConvolutionalNetwork,
    ListedNetwork,
    read_listed,
)
from advisor.planners.step.describe_encoder_decoders import (
    FAMILIES_OF_TWO,
    EncoderDecoder,
    read_encoder_decoder,
)
from advisor.planners.step.describe_families import (
    FAMILIES,
    LINEAR,
    Family,
    head_of,
    labels,
    stated,
)
from advisor.planners.step.describe_towers import OF_SOUND, PAIRS, VISION, Towers, read_towers
from advisor.planners.step.describe_unets import CLASS, DiffusionUNet, read_unet

DescribedModel = (
    Transformer | ConvolutionalNetwork | ListedNetwork | EncoderDecoder | DiffusionUNet | Towers
)
# Models that allow more are trained on less: Llama 3 on 8,192 tokens before its context was
# stretched to 131,072 (Grattafiori et al., 2024, section 3.4).
LONGEST_DEFAULT: Final = 8192

_TABLE: Final = tomllib.loads(Path(__file__).with_name("configs.toml").read_text("utf-8"))
# What a dimension is called by the model families; the first name that is there counts.
_NAMES: Final[Mapping[str, Sequence[str]]] = _TABLE["names"]
_OPTIONAL: Final[Mapping[str, Sequence[str]]] = _TABLE["optional"]
# Width of one expert, where a dense layer's is stated beside it (Qwen's and DeepSeek's mixtures).
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size")
# Written by these heads alone: one prediction a sample, not one a token.
_WITHOUT_HEAD: Final = ("Classification", "Answering", "Choice", "Model")
# What is not of a form that is described, and why.
_OTHER_FORMS: Final[Mapping[str, str]] = {
    kind: one["why"] for one in _TABLE["other_forms"] for kind in one["kinds"].split()
}
# transformers' default where a resnet configuration does not say: ImageNet's side.
_IMAGE: Final = 224
# Depths and widths where none are stated.
_RESNET: Final = ((3, 4, 6, 3), (256, 512, 1024, 2048))
_CONVNEXT: Final = ((3, 3, 9, 3), (96, 192, 384, 768))


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
        raise _unread(str(error)) from error


def _unread(why: str) -> PlanningError:
    return refused(
        f"not the configuration of a model: {why}",
        "give the config.json of a Hugging Face model, unchanged",
    )


def _read(config: Mapping[str, Any], sequence: int | None, image: int | None) -> DescribedModel:
    kind = str(config.get("model_type", ""))
    if config.get("_class_name") == CLASS:
        return read_unet(config, image=image)
    if "calls" in config:
        return read_listed(config, image)
    why = _refusal(config, kind)
    if kind in FAMILIES_OF_TWO and not why:
        return read_encoder_decoder(config, sequence=sequence)
    if why or config.get("is_encoder_decoder") or "_class_name" in config:
        raise refused(
            f"{config.get('_class_name') or kind or 'the model'} is of a form that cannot be "
            f"described{': ' if why else ''}{why or ''}",
            "profile one step of it instead: advisor profile train.py",
        )
    if kind in PAIRS or kind in OF_SOUND:
        return read_towers(config, sequence=sequence, image=image)
    if kind in ("resnet", "convnext"):
        return _network(config, image)
    return transformer_of(config, sequence=sequence, image=image)


def _refusal(config: Mapping[str, Any], kind: str) -> str:
    """Return what a configuration has that no description knows; nothing of one that is known."""
    head, text = head_of(config), _with_text(config)
    if kind in FAMILIES_OF_TWO and head.endswith("ForCausalLM"):
        return "a decoder without its encoder"
    if kind in PAIRS and head and not head.endswith("Model"):
        return "one tower of two"
    width = stated(text, _NAMES["hidden"])
    if width and stated(text, ("embedding_size", "word_embed_proj_dim")) not in (None, width):
        return "words in another width than its layers"
    return _OTHER_FORMS.get(str(text.get("model_type", "")), _OTHER_FORMS.get(kind, ""))


def transformer_of(
    config: Mapping[str, Any], *, sequence: int | None = None, image: int | None = None
) -> Transformer:
    """Return the transformer that a configuration describes.

    Raises PlanningError if a dimension is not stated.
    """
    config = _with_text(config)
    family, head = _family(config), head_of(config)
    found: dict[str, Any] = {name: stated(config, names) for name, names in _NAMES.items()}
    if found["sequence"] is not None:
        found["sequence"] = min(found["sequence"], LONGEST_DEFAULT)
    if "patch_size" in config and not family.is_causal:  # it reads no words
        found["sequence"] = _cells(config, image or int(config.get("image_size", _IMAGE))) + 1
        found["vocabulary"] = 0
    if sequence is not None:
        found["sequence"] = sequence
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise refused(
            f"the configuration does not state {', '.join(missing)}",
            f"it is called {' or '.join(_NAMES[missing[0]])} there",
        )
    # Before layers are looked at one by one.
    check_dimensions({"layers": found["layers"], "hidden": found["hidden"]})
    model = Transformer(
        **found,
        **_attention(config, family, found["layers"]),
        **_feed_forward(config, found["layers"], found["hidden"]),
        is_gated=_is_gated(config, family),
        is_causal=family.is_causal,
        has_tied_embeddings=bool(config.get("tie_word_embeddings", family.is_tied)),
        has_head=not head.endswith(_WITHOUT_HEAD) or "LMHead" in head,
        style=family.style(config, _norms(config)),
        other_parameters=0,
    )
    other = family.other_parameters(config, model)
    return replace(model, other_parameters=other + sum(n for _, n in _towers(config, model)))


def _family(config: Mapping[str, Any]) -> Family:
    """Return the family; of an unknown one what most are, as ``config_notes`` tells."""
    is_text = "patch_size" not in config or "text_config" in config
    unknown = Family(is_gated=None, is_tied=True, is_causal=is_text)
    return FAMILIES.get(str(config.get("model_type", "")), unknown)


def _is_gated(config: Mapping[str, Any], family: Family) -> bool:
    """Return whether the feed-forward block has a gate."""
    if config.get("use_swiglu_ffn") or config.get("hidden_act") == "geglu":
        return True
    if family.is_gated is not None:
        return family.is_gated
    activation = _activation(config)
    return any(word in activation for word in ("glu", "silu", "swish"))


def _activation(config: Mapping[str, Any]) -> str:
    names = ("hidden_act", "hidden_activation", "activation_function", "activation")
    return next((str(config[name]).lower() for name in names if config.get(name)), "")


def _norms(config: Mapping[str, Any]) -> int | None:
    """Return how often a layer normalises, where the configuration decides it."""
    if config.get("model_type") == "falcon":
        if config.get("new_decoder_architecture"):
            return int(config.get("num_ln_in_parallel_attn") or 2)
        return 1 if config.get("parallel_attn", True) else 2
    if config.get("model_type") == "stablelm" and config.get("use_parallel_residual"):
        return 1
    return None


def _attention(config: Mapping[str, Any], family: Family, layers: int) -> dict[str, Any]:
    """Return heads, latent streams, windows and the layers without attention."""
    found: dict[str, Any] = {
        name: stated(config, _OPTIONAL[name]) for name in ("kv_heads", "head_width")
    }
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        found["kv_heads"] = 1
    if rank := stated(config, ("kv_lora_rank",)):
        rotated = int(config["qk_rope_head_dim"])
        found["head_width"] = int(config["qk_nope_head_dim"]) + rotated
        found["latent"] = Latent(
            query_rank=int(config.get("q_lora_rank") or 0), rank=rank, rotated=rotated,
            value_width=int(config["v_head_dim"]),
        )  # fmt: skip
    window = stated(config, ("sliding_window", "attention_chunk_size")) or 0
    window = window or int(config.get("local_attention") or 0) // 2
    if window and config.get("use_sliding_window", True):
        found["window"] = window
        found["windowed_layers"] = min(_windowed(config, layers, family.windows), layers)
    if family.mixer and (mixed := _mixed(config, layers)):
        h = stated(config, _NAMES["hidden"]) or 0
        found |= {"mixer_layers": mixed, "mixer": family.mixer(config, h).products}
    return found


def _windowed(config: Mapping[str, Any], layers: int, every: int) -> int:
    """Return the layers that look through a window: as listed, or all but one of ``every``."""
    if isinstance(kinds := config.get("layer_types"), list):
        return sum(str(kind).startswith(("sliding", "chunked")) for kind in kinds)
    every = stated(config, ("sliding_window_pattern", "global_attn_every_n_layers")) or every
    if every < 2:
        return layers * every
    return layers - layers // every


def _mixed(config: Mapping[str, Any], layers: int) -> int:
    """Return the layers that have a state or a convolution, of a family that has such."""
    kind = config.get("model_type")
    if kind == "jamba":
        period, offset = (int(config.get(f"attn_layer_{name}", default))
                          for name, default in (("period", 8), ("offset", 4)))  # fmt: skip
        return sum(i % period != offset for i in range(layers))
    kinds = config.get("layer_types") or config.get("layers_block_type")
    listed = sum(str(one) in _MIXERS for one in kinds) if isinstance(kinds, list) else 0
    if kind in LINEAR:
        return listed or layers - layers // int(config.get("full_attention_interval", 4))
    attending = {
        "bamba": config.get("attn_layer_indices") or (),
        "lfm2": config.get("full_attn_idxs") or range(layers),
    }.get(str(kind), range(layers))
    return listed or layers - len(attending)


# Kinds of layers, as configurations list them, that mix tokens by a state or a convolution.
_MIXERS: Final = ("mamba", "linear_attention", "conv")


def _feed_forward(config: Mapping[str, Any], layers: int, hidden: int) -> dict[str, Any]:
    """Return widths of the feed-forward block, and the experts of a mixture."""
    ffn, kind = stated(config, _OPTIONAL["ffn"]), config.get("model_type")
    if ratio := config.get("expansion_ratio") or config.get("mlp_ratio"):
        ffn = ffn or round(float(ratio) * hidden)
    if kind == "qwen":
        ffn = ffn and ffn // 2  # both halves of the gated width
    if kind == "lfm2" and config.get("block_auto_adjust_ff_dim", True) and ffn:
        of, step = (
            float(config.get("block_ffn_dim_multiplier") or 1),
            int(config.get("block_multiple_of") or 256),
        )
        ffn = step * -(-int(of * (2 * ffn // 3)) // step)
    if config.get("use_swiglu_ffn") and ffn:
        ffn = (int(ffn * 2 / 3) + 7) // 8 * 8
    experts = stated(config, _OPTIONAL["experts"]) or 1
    if experts == 1:
        dense = stated(config, ("shared_intermediate_size",))  # Granite 4 without experts
        return {"ffn": dense if kind == "granitemoehybrid" and dense else ffn}
    expert = stated(config, _EXPERT_WIDTH) or ffn or 4 * hidden
    many = stated(config, ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert")) or 0
    one = ("shared_expert_intermediate_size", "shared_intermediate_size")
    shared = stated(config, one) or many * expert
    if kind == "llama4_text":
        shared = expert
    dense = layers - sum(_is_mixture(config, kind, i) for i in range(layers))
    return {
        "ffn": expert,
        "experts": experts,
        "experts_per_token": min(stated(config, _OPTIONAL["experts_per_token"]) or 2, experts),
        "shared_ffn": shared,
        "dense_layers": dense,
        "dense_ffn": (stated(config, ("intermediate_size_mlp",)) or ffn or 0) if dense else 0,
    }


def _is_mixture(config: Mapping[str, Any], kind: object, index: int) -> bool:
    """Return whether a layer of a mixture has experts."""
    first = stated(config, ("first_k_dense_replace", "moe_layer_start_index")) or 0
    last = stated(config, ("moe_layer_end_index",))
    if index < first or (last is not None and 0 <= last < index):
        return False
    if index in (config.get("mlp_only_layers") or ()):
        return False
    if isinstance(listed := config.get("moe_layers"), list) and listed:
        return index in listed
    step = stated(config, ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq",
                           "moe_layer_interval", "expert_layer_period")) or 1  # fmt: skip
    offset = int(config.get("expert_layer_offset", 1)) if kind == "jamba" else step - 1
    if stated(config, ("moe_layer_freq",)):
        offset = 0
    return index % step == offset % step


def _cells(config: Mapping[str, Any], image: int) -> int:
    size = int(config["patch_size"])
    check_counts("configuration", patch_size=size)
    return (image // size) ** 2


def _towers(config: Mapping[str, Any], model: Transformer) -> list[tuple[str, int]]:
    """Return what hands pictures or sound to a language model, and its parameters.

    Patches, encoder and the projection onto the model's width, by the dimensions that the
    configuration states; an audio tower's front is left out.
    """
    found = []
    for name in ("vision", "audio"):
        tower = config.get(f"{name}_config")
        if not isinstance(tower, Mapping):
            continue
        tower = {**_TOWER_DEFAULTS.get(str(tower.get("model_type", "")), {}), **tower}
        layers = stated(tower, ("depth", "encoder_layers", *_NAMES["layers"]))
        width = stated(tower, ("embed_dim", *_NAMES["hidden"]))
        if not (layers and width):
            found.append((name, 0))
            continue
        ffn = stated(tower, ("encoder_ffn_dim", *_OPTIONAL["ffn"]))
        ffn = ffn or round(float(tower.get("mlp_ratio", 4)) * width)
        is_gated = any(w in _activation(tower) for w in ("silu", "swish"))
        weights = layers * (4 * width**2 + (3 if is_gated else 2) * width * ffn)
        biases = 0 if is_gated else layers * (9 * width + ffn)
        found.append((name, weights + biases + _front(tower, width, model.hidden)))
    return found


_TOWER_DEFAULTS: Final[dict[str, Mapping[str, Any]]] = {
    "clip_vision_model": VISION["clip"],
    "siglip_vision_model": VISION["siglip"],
    "pixtral": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 16,
        "hidden_act": "silu",
    },
}  # fmt: skip


def _front(tower: Mapping[str, Any], width: int, hidden: int) -> int:
    """Return patches, positions and the projection behind a tower."""
    size = stated(tower, ("patch_size",)) or 0
    channels = stated(tower, ("num_channels", "in_channels", "in_chans")) or 3
    found = channels * size**2 * width * int(tower.get("temporal_patch_size") or 1)
    side = stated(tower, ("image_size",)) or 0
    found += (side // size) ** 2 * width if size and "depth" not in tower else 0
    found += (stated(tower, ("num_position_embeddings",)) or 0) * width
    merged = int(tower.get("spatial_merge_size") or 1) ** 2 * width
    kind = str(tower.get("model_type", ""))
    if merged > width:
        mergers = 1 + len(tower.get("deepstack_visual_indexes") or ())
        return found + mergers * (merged**2 + merged * hidden)
    return found + (width * hidden if "siglip" in kind else width * hidden + hidden**2)


def config_notes(config: Mapping[str, Any], model: DescribedModel) -> tuple[str, ...]:
    """Return what of a configuration is not in the model as it was read, or was guessed.

    ``config``, ``model``: as ``read_config`` took and returned them.
    """
    if not isinstance(model, Transformer):
        return ()
    config = _with_text(config)
    kind, said = str(config.get("model_type", "")), []
    if kind not in FAMILIES:
        activation = _activation(config)
        why = f"as its activation, {activation}, says" if activation else "as it states none"
        said.append(
            f"{kind or 'the model'} is of no known family: its blocks are read with"
            f"{'' if model.is_gated else 'out'} a gate, {why}, which makes "
            f"{transformer_parameters(model) / 1e9:.3g} B parameters"
        )
    for name, parameters in _towers(config, model):
        said.append(
            f"the {name} tower of about {parameters / 1e6:,.0f} M parameters takes memory here, "
            "but no time"
            if parameters
            else f"the {name} tower is left out: its configuration states no dimensions"
        )
    if "text_config" in config and not _towers(config, model):
        said.append("what the model has beside its language model is left out")
    if model.mixer_layers:
        said.append(
            f"{model.mixer_layers} of the {model.layers} layers mix tokens by a state or a "
            "convolution: their products are counted, their scan is not"
        )
    if chosen := stated(config, ("index_topk",)):
        said.append(f"attention to all tokens is counted, not to the {chosen:,} that it chooses")
    if number := stated(config, ("num_nextn_predict_layers", "num_mtp_modules")):
        layers = "layer that predicts a token" if number == 1 else f"{number} layers for tokens"
        verb = "is" if number == 1 else "are"
        said.append(f"the {layers} further on (num_nextn_predict_layers) {verb} left out")
    if config.get("relative_attention") and "p2c" in str(config.get("pos_att_type")):
        said.append("scores of relative positions are not counted")
    return tuple(said)


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the model of a configuration allows, where it says so."""
    return stated(_with_text(config), _NAMES["sequence"])


def _with_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration in one level, with what its family takes where it is silent.

    Models that see and read nest the language model's dimensions; DBRX those of its blocks.
    """
    nested: dict[str, Any] = {}
    for name in ("attn_config", "ffn_config", "llm_config", "text_config"):
        part = config.get(name) or {}
        if not isinstance(part, Mapping):
            raise _unread(f"{name} must be an object")
        nested |= {key: value for key, value in part.items() if key != "architectures"}
    whole = {**config, **nested}
    kind = str(whole.get("model_type", ""))
    return {**(FAMILIES[kind].defaults if kind in FAMILIES else {}), **whole}


def _network(config: Mapping[str, Any], image: int | None) -> ConvolutionalNetwork:
    kind: BlockKind = "basic" if config.get("layer_type") == "basic" else "bottleneck"
    known = _RESNET
    if config["model_type"] == "convnext":
        kind, known = "convnext", _CONVNEXT
    try:
        depths = config.get("depths") or known[0]
        widths = config.get("hidden_sizes") or known[1]
        stem = widths[0] if kind == "convnext" else config.get("embedding_size", 64)
        return ConvolutionalNetwork(
            image=int(image or config.get("image_size") or _IMAGE),
            stem=int(stem),
            stages=tuple((int(d), int(w)) for d, w in zip(depths, widths, strict=True)),
            kind=kind,
            classes=labels(config, 1000),
            channels=int(config.get("num_channels", 3)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise refused(
            f"not the configuration of a convolutional network: {error}",
            "depths and hidden_sizes are lists of equal length",
        ) from error
