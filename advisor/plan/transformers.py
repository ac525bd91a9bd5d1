"""A transformer's dimensions from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from advisor.errors import UsageError
from advisor.planners.nouns import Transformer

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
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk"),
}
# Families whose feed-forward block has a gate though their activation's name does not say so.
_GATED: Final = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma",
        "gemma2", "phi3", "olmo", "granite", "deepseek", "deepseek_v2", "deepseek_v3", "internlm",
        "internlm2", "baichuan", "yi", "stablelm", "cohere",
    }
)  # fmt: skip
# Encoders look both ways.
_BIDIRECTIONAL: Final = frozenset({"bert", "roberta", "deberta", "deberta-v2", "electra", "vit"})


def read_transformer(path: Path, *, sequence: int | None = None) -> Transformer:
    """Read a model's dimensions.

    Parameters
    ----------
    path : Path
        A ``config.json``, or the folder that has one.
    sequence : int, optional
        Tokens of a sample; the longest the model allows where not given.

    Raises
    ------
    UsageError
        If the file cannot be read or lacks a dimension.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the model {file}: {error}",
            hint="name the config.json of a Hugging Face model, or give --layers, --hidden, ...",
        ) from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not the configuration of a model")
    # Models that see and read nest the language model's dimensions.
    config = {**config, **config.get("text_config", {})}
    found = {name: _first(config, names) for name, names in _NAMES.items()}
    if sequence is not None:
        found["sequence"] = sequence
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise UsageError(
            f"{file} does not state {', '.join(missing)}",
            hint=f"it is called {' or '.join(_NAMES[missing[0]])} there",
        )
    optional = {name: _first(config, names) for name, names in _OPTIONAL.items()}
    kind = str(config.get("model_type", ""))
    sizes: dict[str, Any] = {k: v for k, v in {**found, **optional}.items() if v is not None}
    return Transformer(
        **sizes,
        is_gated=kind in _GATED or "glu" in str(config.get("hidden_act", "")).lower(),
        is_causal=kind not in _BIDIRECTIONAL,
        has_tied_embeddings=bool(config.get("tie_word_embeddings", True)),
    )


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if isinstance(value := config.get(name), int):
            return value
    return None
