"""Families of transformers: what a configuration leaves to the code that reads it.

A configuration states widths and numbers; whether the feed-forward block has a gate, what carries
a bias, how often and by what a layer normalises, stands in the family's published code. The
facts below are those of the modelling files of transformers 5.24 (Apache-2.0), and of the makers'
own files for ``baichuan``, ``chatglm``, ``deepseek``, ``exaone``, ``grok-1``, ``internlm``,
``internlm2``, ``internlm3``, ``qwen`` and ``yi``. Published counts hold them to it
(``tests/test_model_counts.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from advisor.planners.core import BlockStyle, Transformer, head_width, model_matrices

Config = Mapping[str, Any]
# Root mean square; layer normalisation with scale and shift, or scale alone, or neither.
Norm = Literal["rms", "layer", "scale", "none"]
_NORM_SIZES: Final[dict[Norm, int]] = {"rms": 1, "layer": 2, "scale": 1, "none": 0}
# Products by letter, for biases.
_LETTERS: Final = {
    "q": "query", "k": "key", "v": "value", "o": "projection", "u": "up", "d": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """What a layer has that mixes tokens by a state or a convolution in place of attention."""

    products: tuple[tuple[int, int], ...]  # (inner, columns) of each
    other_parameters: int  # convolution, states, gates and normalisations


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the code of a family adds to a configuration."""

    is_gated: bool | None = True  # None: as the activation's name says
    norm: Norm = "rms"
    norms: int = 2  # of a layer
    last_norms: int = 1  # outside the layers
    # (key of the configuration, what it is where absent, products that then have a bias)
    biases: Sequence[tuple[str, bool, str]] = ()
    # of queries and keys: one for all heads, of all columns, or none; and the key, with what it is
    # where absent, that turns them on
    head_norms: Literal["head", "columns", ""] = ""
    head_norms_key: tuple[str, bool] = ("", True)
    is_causal: bool = True
    is_tied: bool = False  # where the configuration does not say
    is_rotated: bool = True
    # rows of the learned table of positions beside those that the configuration says
    positions: int | None = None
    # of so many layers one looks at all tokens, the others through a window; 0: none does
    windows: int = 0
    mixer: Callable[[Config, int], Mixer] | None = None  # by the width of the stream
    extra: Callable[[Config, Transformer], int] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def style(self, config: Config, norms: int | None = None) -> BlockStyle:
        """Return what surrounds the products of a layer."""
        letters = "".join(
            letters for key, default, letters in self.biases if config.get(key, default)
        )
        return BlockStyle(
            biased=tuple(_LETTERS[letter] for letter in dict.fromkeys(letters)),
            norms=self.norms if norms is None else norms,
            has_root_mean_square=self.norm == "rms",
            is_rotated=self.is_rotated,
        )

    def other_parameters(self, config: Config, model: Transformer) -> int:
        """Return what belongs neither to a product of the layers nor to a table of words."""
        h, style, size = model.hidden, model.surroundings, _NORM_SIZES[self.norm]
        found = (model.layers * style.norms + self.last_norms) * size * h
        found += sum(
            m.count * m.copies * m.columns for m in model_matrices(model) if m.name in style.biased
        )
        if model.latent:
            found += model.layers * (model.latent.query_rank + model.latent.rank)
        if self.head_norms and config.get(*self.head_norms_key):
            width, kv = head_width(model), model.kv_heads or model.heads
            normed = 2 if self.head_norms == "head" else model.heads + kv
            found += (model.layers - model.mixer_layers) * normed * width * size
        if self.positions is not None:
            found += ((stated(config, _POSITIONS) or 0) + self.positions) * h
        if self.mixer:
            found += model.mixer_layers * self.mixer(config, h).other_parameters
        return found + (self.extra(config, model) if self.extra else 0)


_POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx")


def stated(config: Config, names: Sequence[str]) -> int | None:
    """Return the first of these that a configuration states as a whole number."""
    for name in names:
        if isinstance(value := config.get(name), int) and not isinstance(value, bool):
            return value
    return None


def head_of(config: Config) -> str:
    """Return the class that a model is built with, where its configuration says so.

    Raises TypeError if it names none in the way of configurations.
    """
    names = config.get("architectures") or [""]
    if not isinstance(names, list):
        raise TypeError("architectures must be a list of names")
    return str(names[0])


def labels(config: Config, otherwise: int) -> int:
    """Return the classes that a model tells apart."""
    return len(config.get("id2label") or {}) or int(config.get("num_labels") or otherwise)


def _classifier(config: Config, width: int) -> int:
    return (width + 1) * labels(config, 2)


def _bert(config: Config, model: Transformer) -> int:
    """Return types of segments, and what stands between an encoder and its loss."""
    h, name = model.hidden, head_of(config)
    dense = h * h + h
    found = int(config.get("type_vocab_size", 2)) * h
    if "Classification" in name and "Token" not in name:
        return found + dense + _classifier(config, h)
    if name.endswith(("Classification", "Answering")):
        return found + _classifier(config, h)
    if name.endswith("Model"):
        return found + dense
    return found + dense + 2 * h + model.vocabulary


def _distilbert(config: Config, model: Transformer) -> int:
    found = _bert({**config, "type_vocab_size": 0}, model)
    # Nothing is pooled.
    return 0 if head_of(config).endswith("Model") else found


def _mpnet(config: Config, model: Transformer) -> int:
    buckets = int(config.get("relative_attention_num_buckets", 32)) * model.heads
    return buckets + _bert({**config, "type_vocab_size": 0}, model)


def _deberta_2(config: Config, model: Transformer) -> int:
    """Return tables of relative positions, which queries and keys project as they do tokens."""
    h = model.hidden
    longest = stated(config, ("max_position_embeddings",)) or 512
    span = int(config.get("max_relative_positions", -1))
    span = longest if span < 1 else span
    buckets = int(config.get("position_buckets", -1))
    rows = 2 * (buckets if buckets > 0 else span) if config.get("relative_attention") else 0
    found = rows * h + int(config.get("type_vocab_size", 0)) * h
    found += 2 * h if "layer_norm" in str(config.get("norm_rel_ebd", "none")) else 0
    if not config.get("share_att_key"):
        kinds = config.get("pos_att_type") or []
        found += model.layers * len(kinds) * (h * h + h)
    if config.get("position_biased_input", True):
        found += longest * h
    if kernel := int(config.get("conv_kernel_size") or 0):
        found += kernel * h * h + 3 * h
    name = head_of(config)
    if name.endswith("Model"):
        return found
    if "Classification" in name:
        pooled = 0 if "Token" in name else h * h + h
        return found + pooled + _classifier(config, h)
    return found + h * h + 3 * h + model.vocabulary


def _esm(config: Config, model: Transformer) -> int:
    """Return an encoder's head, and what reads contacts of residues off its attention."""
    found = _bert({**config, "type_vocab_size": 0}, model)
    return found + model.layers * model.heads + 1


def _modernbert(config: Config, model: Transformer) -> int:
    h, name = model.hidden, head_of(config)
    # The first layer's attention reads the embedding's normalisation.
    found = -h
    if name.endswith("Model"):
        return found
    is_classifier = "Classification" in name
    return found + h * h + h + (_classifier(config, h) if is_classifier else model.vocabulary)


def _patches(config: Config, h: int) -> tuple[int, int]:
    """Return the patches of a picture's side, and the parameters of their projection."""
    size = int(config["patch_size"])
    side = int(config["image_size"]) // size
    return side, int(config.get("num_channels", 3)) * size**2 * h + h


def _picture(config: Config, model: Transformer) -> int:
    """Return patches, class token, positions and classifier of a vision transformer."""
    h = model.hidden
    side, found = _patches(config, h)
    special = 2 if config.get("model_type") == "deit" else 1
    found += (side**2 + 2 * special) * h
    return found + (h * h + h if head_of(config).endswith("Model") else _classifier(config, h))


def _dino(config: Config, model: Transformer) -> int:
    h = model.hidden
    side, found = _patches(config, h)
    # Class and mask token, registers, and two scales of a layer.
    tokens = 2 + int(config.get("num_register_tokens") or 0)
    found += (tokens + side**2 + 1 + 2 * model.layers) * h
    # Class token and the mean of the others, side by side.
    return found + ("Classification" in head_of(config)) * _classifier(config, 2 * h)


def _beit(config: Config, model: Transformer) -> int:
    h = model.hidden
    side, found = _patches(config, h)
    table = ((2 * side - 1) ** 2 + 3) * model.heads
    found += h + int(bool(config.get("use_mask_token"))) * h
    found += (side**2 + 1) * h * bool(config.get("use_absolute_position_embeddings"))
    found += table * bool(config.get("use_shared_relative_position_bias"))
    found += model.layers * table * bool(config.get("use_relative_position_bias"))
    found += 2 * model.layers * h * (float(config.get("layer_scale_init_value", 0.1)) > 0)
    return found + (0 if head_of(config).endswith("Model") else _classifier(config, h))


def _head_bias(config: Config, model: Transformer) -> int:
    return model.vocabulary * bool(config.get("lm_head_bias", True))


def _stated_head_bias(config: Config, model: Transformer) -> int:
    return model.vocabulary * bool(config.get("lm_head_bias"))


def _shared_gate(config: Config, model: Transformer) -> int:
    """Return the gate of the expert that every token meets (Qwen2-MoE)."""
    return (model.layers - model.dense_layers) * model.hidden if model.shared_ffn else 0


def _bitnet(config: Config, model: Transformer) -> int:
    """Return normalisations inside attention and feed-forward block."""
    return model.layers * (model.hidden + (model.ffn or 0))


def _indexer(config: Config, model: Transformer) -> int:
    """Return what chooses the tokens that are looked at (DeepSeek-V3.2)."""
    heads, width = (int(config[f"index_{name}"]) for name in ("n_heads", "head_dim"))
    rank = model.latent.query_rank if model.latent else model.hidden
    return model.layers * (rank * heads * width + model.hidden * (width + heads) + 2 * width)


def _gpt_oss(config: Config, model: Transformer) -> int:
    """Return biases of experts and router, and a learned score of nothing for every head."""
    return model.layers * (model.experts + model.heads)


def _linear(config: Config, model: Transformer) -> int:
    """Return the gates beside attention's queries, of as many columns (Qwen3-Next, Qwen3.5)."""
    gates = (model.layers - model.mixer_layers) * model.hidden * model.heads * head_width(model)
    return gates + _shared_gate(config, model)


def _mamba(config: Config, h: int) -> Mixer:
    inner, state = int(config.get("mamba_expand", 2)) * h, int(config.get("mamba_d_state", 16))
    said, kernel = config.get("mamba_dt_rank", "auto"), int(config.get("mamba_d_conv", 4))
    rank = -(-h // 16) if said == "auto" else int(said)
    return Mixer(
        products=((h, 2 * inner), (inner, rank + 2 * state), (rank, inner), (inner, h)),
        # Convolution and step with their biases, state, skip, and normalised step, inputs and
        # outputs.
        other_parameters=inner * (kernel + 1 + 1 + state + 1) + rank + 2 * state,
    )


def _mamba_2(config: Config, h: int) -> Mixer:
    """Return a Mamba-2 block (Bamba, Granite 4)."""
    inner, heads = int(config.get("mamba_expand", 2)) * h, int(config["mamba_n_heads"])
    groups = 2 * int(config.get("mamba_n_groups", 1)) * int(config.get("mamba_d_state", 256))
    kernel = int(config.get("mamba_d_conv", 4))
    return Mixer(
        products=((h, 2 * inner + groups + heads), (inner, h)),
        other_parameters=(inner + groups) * (kernel + 1) + 3 * heads + inner,
    )


def _gated_delta(config: Config, h: int) -> Mixer:
    """Return gated linear attention (Qwen3-Next, Qwen3.5)."""
    heads = int(config["linear_num_value_heads"])
    keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
    values = heads * int(config["linear_value_head_dim"])
    kernel = int(config.get("linear_conv_kernel_dim", 4))
    return Mixer(
        products=((h, 2 * keys + 2 * values), (h, 2 * heads), (values, h)),
        other_parameters=(2 * keys + values) * kernel + 2 * heads + values // heads,
    )


def _short_convolution(config: Config, h: int) -> Mixer:
    kernel = int(config.get("conv_L_cache", 3))
    return Mixer(products=((h, 3 * h), (h, h)), other_parameters=h * kernel)


# Linear attention in most layers.
LINEAR: Final = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

# What ``families.toml`` calls by name.
_NAMED: Final[dict[str, Callable[..., Any]]] = {
    rule.__name__.removeprefix("_"): rule
    for rule in (
        _beit, _bert, _bitnet, _deberta_2, _dino, _distilbert, _esm, _gpt_oss, _head_bias,
        _indexer, _linear, _modernbert, _mpnet, _picture, _shared_gate, _stated_head_bias,
        _mamba, _mamba_2, _gated_delta, _short_convolution,
    )
}  # fmt: skip


def _families() -> Iterator[tuple[str, Family]]:
    text = Path(__file__).with_name("families.toml").read_text("utf-8")
    for facts in tomllib.loads(text)["families"]:
        names = facts.pop("names").split()
        called = {role: _NAMED[facts[role]] for role in ("extra", "mixer") if role in facts}
        family = Family(**{**facts, **called})
        yield from ((name, family) for name in names)


FAMILIES: Final = dict(_families())
