"""Training setup of a job: kernels, optimizer, stored weights, adapters, frozen layers.

What a parameter takes is ``TrainingSetup``'s, what a training stack does by default ``STACKS``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from advisor.planners.core.errors import check_counts, check_not_negative, refused

# In which order a device of a pipeline runs its passes.
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb", "dualpipe"]
_QKVO: Final = ("query", "key", "value", "projection")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStyle:
    """What surrounds the products of a transformer's layer."""

    biased: tuple[str, ...] = ()  # names of the products that add a bias
    norms: int = 2  # normalisations of a layer
    has_root_mean_square: bool = True  # they have neither mean nor bias
    is_rotated: bool = True  # queries and keys are rotated by position


LLAMA_STYLE: Final = BlockStyle()
GPT_STYLE: Final = BlockStyle(
    biased=(*_QKVO, "up", "down"), has_root_mean_square=False, is_rotated=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention whose keys and values pass through a narrow stream (DeepSeek-V2, 2024)."""

    query_rank: int = 0  # of the queries' own narrow stream; 0 where they have none
    rank: int  # of the stream of keys and values
    rotated: int  # columns of a key that have positions, the same for all heads
    value_width: int  # of one head's values

    def __post_init__(self) -> None:
        names = ("rank", "rotated", "value_width")
        check_counts("attention", **{name: getattr(self, name) for name in names})
        check_not_negative("attention", query_rank=self.query_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A transformer in a few numbers (symbols of Narayanan et al., SC'21, in brackets)."""

    # layers, hidden, heads, sequence, vocabulary: [l, h, a, s, V]
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int | None = None  # key/value heads of grouped-query attention; None means ``heads``
    ffn: int | None = None  # inner width of the feed-forward block; None means 4 h
    is_gated: bool = False  # three feed-forward matrices (SwiGLU) instead of two
    is_causal: bool = True
    has_flash_attention: bool = True
    has_tied_embeddings: bool = True
    # experts, experts_per_token: mixture of experts; 1 and 1 for a dense model
    experts: int = 1
    experts_per_token: int = 1
    # width of one attention head; None means ``hidden / heads``
    head_width: int | None = None
    # every token is projected onto the vocabulary; ``vocabulary`` 0 has no embedding either
    has_head: bool = True
    # of a mixture: inner width of the experts that every token meets; layers that have one block
    # instead of experts, and its inner width
    shared_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    latent: Latent | None = None
    # layers in which a token looks at no more than so many tokens before it
    windowed_layers: int = 0
    window: int = 0
    # layers that mix tokens by a state or a convolution in place of attention, and (inner,
    # columns) of the products of one
    mixer_layers: int = 0
    mixer: tuple[tuple[int, int], ...] = ()
    style: BlockStyle | None = None  # None means Llama's where gated, else GPT's
    # what belongs neither to a product nor to a table of words: normalisations, biases, positions;
    # None means normalisations and positions as ``style`` has them
    other_parameters: int | None = None

    def __post_init__(self) -> None:
        names = ("layers", "hidden", "heads", "sequence", "kv_heads", "ffn", "experts",
                 "experts_per_token", "head_width")  # fmt: skip
        check_counts("transformer", **{name: getattr(self, name) for name in names})
        rest = ("vocabulary", "shared_ffn", "dense_layers", "dense_ffn", "windowed_layers",
                "window", "mixer_layers", "other_parameters")  # fmt: skip
        check_not_negative("transformer", **{name: getattr(self, name) for name in rest})
        for inner, columns in self.mixer:
            check_counts("mixer", inner=inner, columns=columns)
        if max(self.dense_layers, self.mixer_layers, self.windowed_layers) > self.layers:
            raise refused(
                f"more layers of one kind than the {self.layers} of the model",
                "give the model's configuration as it was published",
            )

    @property
    def surroundings(self) -> BlockStyle:
        """What surrounds the products of a layer."""
        return self.style or (LLAMA_STYLE if self.is_gated else GPT_STYLE)


def head_width(model: Transformer) -> int:
    """Return the width of one attention head."""
    return model.head_width or model.hidden // model.heads


def key_value_width(model: Transformer) -> int:
    """Return the width of all key heads, or value heads, of a layer together."""
    return (model.kv_heads or model.heads) * head_width(model)


def scored_width(model: Transformer) -> float:
    """Return what a token and one it looks at cost in the mean layer, in columns of queries.

    Half the width of queries and values together; of a window the share of the pairs in it, and
    nothing of layers without attention.

    Examples
    --------
    >>> gpt2 = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    >>> scored_width(gpt2)
    768.0
    """
    values = model.latent.value_width if model.latent else head_width(model)
    near = min(model.window / model.sequence, 1.0)
    # Of the pairs behind a causal mask, those no more than a window apart.
    far = model.windowed_layers * (1.0 - near * (2.0 - near if model.is_causal else 1.0))
    share = (model.layers - model.mixer_layers - far) / model.layers
    return model.heads * (head_width(model) + values) / 2.0 * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix of ``inner`` x ``columns``, ``count`` of them in all layers together.

    ``copies``: experts that have one each; ``met``: those of them that a token meets.
    """

    name: str
    inner: int
    columns: int
    count: int
    copies: int = 1
    met: int = 1

    @property
    def parameters(self) -> int:
        """Parameters of all of them."""
        return self.count * self.copies * self.inner * self.columns


def model_matrices(model: Transformer) -> tuple[Matrix, ...]:
    """Return the weight matrices of all layers, in the order of a layer."""
    h, up, mixed = model.hidden, 2 if model.is_gated else 1, model.experts > 1
    routed = model.layers - model.dense_layers if mixed else model.layers
    wide, routed_ffn, e, k = "up", model.ffn or 4 * h, model.experts, model.experts_per_token
    found = [
        *_attention_matrices(model, model.layers - model.mixer_layers),
        *(Matrix(name="mixer", inner=i, columns=c, count=model.mixer_layers)
          for i, c in model.mixer),
        Matrix(name=wide, inner=h, columns=routed_ffn, count=up * routed, copies=e, met=k),
        Matrix(name="down", inner=routed_ffn, columns=h, count=routed, copies=e, met=k),
    ]  # fmt: skip
    if mixed:
        found.append(Matrix(name="router", inner=h, columns=e, count=routed))
        for ffn, layers in ((model.shared_ffn, routed), (model.dense_ffn, model.dense_layers)):
            found.append(Matrix(name=wide, inner=h, columns=ffn, count=up * layers))
            found.append(Matrix(name="down", inner=ffn, columns=h, count=layers))
    return tuple(m for m in found if m.count and m.inner and m.columns)


def _attention_matrices(model: Transformer, layers: int) -> list[Matrix]:
    h, width, kv = model.hidden, head_width(model) * model.heads, key_value_width(model)
    if model.latent is None:
        sides = [("query", h, width), ("key", h, kv), ("value", h, kv), ("projection", width, h)]
    else:
        latent, heads = model.latent, model.heads
        plain, values = width - heads * latent.rotated, heads * latent.value_width
        queries = [("query", latent.query_rank or h, width)]
        if latent.query_rank:
            queries.insert(0, ("query", h, latent.query_rank))
        sides = [
            *queries, ("key", h, latent.rank + latent.rotated),
            ("value", latent.rank, plain + values), ("projection", values, h),
        ]  # fmt: skip
    return [Matrix(name=name, inner=i, columns=c, count=layers) for name, i, c in sides]


def transformer_parameters(model: Transformer) -> int:
    """Return the parameters: products, normalisations and embeddings, biases where known.

    Examples
    --------
    >>> transformer_parameters(Transformer(
    ...     layers=32, hidden=4096, heads=32, sequence=4096, vocabulary=32000, ffn=11008,
    ...     is_gated=True, has_tied_embeddings=False))  # Llama-2-7B: 6,738,415,616
    6738415616
    """
    h, style = model.hidden, model.surroundings
    matrices = sum(m.parameters for m in model_matrices(model))
    tables = model.vocabulary * h * (1 if model.has_tied_embeddings or not model.has_head else 2)
    other = model.other_parameters
    if other is None:
        norm = (1 if style.has_root_mean_square else 2) * h
        other = (model.layers * style.norms + 1) * norm + position_parameters(model)
    return matrices + tables + other


def position_parameters(model: Transformer) -> int:
    """Return the parameters of a learned table of positions, where nothing else is known."""
    is_counted = model.surroundings.is_rotated or model.other_parameters is not None
    return 0 if is_counted else model.sequence * model.hidden


Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]
# fp4 is two to a byte, and never stored: what is kept of a step takes a byte or more.
PRECISION_BYTES: Final[dict[str, int]] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 1,
}  # fmt: skip
Kernels = Literal["eager", "fused", "compiled"]
Attention = Literal["flash", "unfused"]
Optimizer = Literal[
    "adamw", "adamw-8bit", "adamw-4bit", "adamw-bf16", "paged-adamw", "paged-adamw-8bit", "sgd",
    "sgd-momentum", "adafactor", "lion", "lion-8bit", "muon", "galore",
]  # fmt: skip
StoredWeights = Literal["fp32", "bf16"]
Loss = Literal["eager", "fused", "chunked"]

# What each keeps of a parameter, and what tools call it, as ``optimizers.toml`` says.
OPTIMIZERS: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("optimizers.toml").read_text("utf-8")
)
# Rank of GaLore's projections (``transformers.Trainer``: ``galore_optim_kwargs``).
_GALORE_RANK: Final = 128
# Muon's Newton-Schulz iterations (K. Jordan, 2024; ``torch.optim.Muon``: ``ns_steps``).
_MUON_STEPS: Final = 5
# Scales of 4-bit blocks of 64, themselves quantised: 0.127 bits a parameter (QLoRA, section 3).
_DOUBLE_QUANTISATION_BYTES: Final = 0.127 / 8
# What adapters stand beside, by one word or the names that models give their modules: peft's and
# NeMo's ``target_modules``, torchtune's ``lora_attn_modules``; GPT-2 and Qwen call two ``c_proj``.
_TARGETS: Final[dict[str, frozenset[str]]] = {
    word: frozenset(matrices.split())
    for matrices, words in {
        "query key value projection mixer up down": "all-linear",
        "query key value projection": "attention",
        "query key value": "c_attn query_key_value qkv_proj W_pack Wqkv linear_qkv",
        "query value": "query-value", "query": "q_proj", "key": "k_proj", "value": "v_proj",
        "projection": "o_proj output_proj out_proj linear_proj", "projection down": "c_proj",
        "up": "gate_proj up_proj gate_up_proj linear_fc1 c_fc", "down": "down_proj linear_fc2",
    }.items()
    for word in words.split()
}  # fmt: skip


@cache
def _targets_of(said: str) -> frozenset[str]:
    """Return the matrices of a layer that comma-separated words name.

    Raises PlanningError if a word is not known.
    """
    words = [word.strip() for word in said.split(",")]
    if unknown := [word for word in words if word not in _TARGETS]:
        raise refused(
            f"adapters on {unknown[0][:40]!r}",
            "all-linear, attention, query-value, or modules: q_proj,v_proj,o_proj,up_proj",
        )
    return frozenset().union(*(_TARGETS[word] for word in words))


Stack = Literal[
    "nemo", "megatron-core", "megatron-lm", "megatron-deepspeed", "deepspeed", "torchtitan",
    "llm-foundry", "trainer", "fsdp", "ddp", "ddp-compiled", "trl", "unsloth", "torchtune",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """What the training software does with a job; the precision of products is the work's own.

    Bytes of a parameter that is trained, by what is stored and computed in:

    | weights | precision   | weight | gradient | AdamW          | together             |
    |---------|-------------|--------|----------|----------------|----------------------|
    | fp32    | fp32, tf32  | 4      | 4        | 8              | 16                   |
    | fp32    | 16-bit, fp8 | 2      | 4 (or 2) | 4 (master) + 8 | 18 (or 16)           |
    | bf16    | 16-bit, fp8 | 2      | 2        | 4              | 8                    |

    Sources: S. Rajbhandari et al., ZeRO, SC'20, section 3.1 (2 + 2 + 12); D. Narayanan et al.,
    SC'21 (fp32 gradients); T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
    ICLR 2022; E. Hu et al., LoRA, 2021; T. Dettmers et al., QLoRA, NeurIPS 2023; N. Shazeer and M.
    Stern, Adafactor, ICML 2018.

    Raises PlanningError if the settings contradict one another.
    """

    # how pointwise operators run: one kernel each; fused by hand (Megatron, Liger); or through
    # ``torch.compile``
    kernels: Kernels = "eager"
    attention: Attention = "flash"  # unfused attention writes its scores to memory
    optimizer: Optimizer = "adamw"
    # as stored: fp32 master weights (with low-precision copies for the products), or bf16 alone
    weights: StoredWeights = "fp32"
    # as accumulated and reduced; never wider than the stored weights
    gradients: StoredWeights = "fp32"
    adapter_rank: int | None = None  # rank of LoRA's adapters; None trains the weights themselves
    # what adapters stand beside: words of ``_TARGETS``; None: as the stack has it
    adapter_targets: str | None = None
    base_bits: Literal[16, 8, 4] = 16  # bits of a frozen weight beside adapters (QLoRA: 4)
    # how the loss is computed (``LOSSES``); None: as the stack, or such kernels, have it
    loss: Loss | None = None
    # share of the parameters that is frozen, from the input upwards: no gradients are computed for
    # these layers, neither of weights nor of activations
    frozen_fraction: float = 0.0
    overlaps: bool = True  # gradients are reduced behind the backward pass
    # tensor-parallel exchanges run behind products (Megatron's ``--tp-comm-overlap``, PyTorch's
    # asynchronous tensor parallelism); None: as the stack has it
    overlaps_tensor: bool | None = None
    # the software by name, whose facts are ``STACKS``, and whether its user named it or it is what
    # such a job commonly runs with
    stack: Stack | None = None
    is_stack_assumed: bool = False
    release: str = ""  # of the stack, one of ``RELEASES``; empty where its user names none
    # names of the fields that its user typed, with the default's value too: no assumption changes
    # them
    said: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.adapter_rank is not None and self.adapter_rank < 1:
            raise refused(f"an adapter of rank {self.adapter_rank}", "give a rank of 1 or more")
        if self.adapter_targets is not None:
            _targets_of(self.adapter_targets)
            if self.adapter_rank is None:
                raise refused("targets of adapters that nobody trains", "give their rank too")
        if not 0 <= self.frozen_fraction < 1:
            raise refused(
                f"a frozen share of {self.frozen_fraction}", "give 0 or more, and less than 1"
            )
        if self.base_bits not in (16, 8, 4):
            raise refused(f"a base of {self.base_bits} bits", "one of 16, 8 and 4")
        if self.base_bits != 16 and self.adapter_rank is None:
            raise refused(
                f"weights of {self.base_bits} bits cannot be trained themselves",
                "give adapters too (QLoRA), or a base of 16 bits",
            )
        if self.adapter_rank is not None and self.frozen_fraction > 0:
            raise refused(
                "adapters freeze the whole base",
                "leave out either the adapters or the frozen share",
            )

    @property
    def named_stack(self) -> Stack | None:
        """The stack that its user named; None where there is none, or it is assumed."""
        return None if self.is_stack_assumed else self.stack

    @property
    def facts(self) -> StackFacts | None:
        """What its stack does by default in its release; None without a stack."""
        return None if self.stack is None else stack_facts(self.stack, self.release)

    @property
    def computed_loss(self) -> Loss:
        """How the loss is computed: as asked, as the stack has it, or as is usual.

        Whoever tunes a model has a loss in parts, unless it is said: torchtune, TRL, Unsloth.
        """
        usual: Loss = "chunked" if self.is_tuned_finely else "eager"
        return self.loss or (usual if self.facts is None else self.facts.loss)

    @property
    def is_tuned_finely(self) -> bool:
        """Whether it is that of fine-tuning with Hugging Face's Trainer, as far as it says.

        Weights in 16 bits without an fp32 copy, or adapters, are what its runs have and no others
        among those that the constants were fitted on: InternEvo's, torchtitan's and VectorLM's
        eager steps are nearer without the Trainer's costs (errors of 2.7, 3.3 and 4.0 against
        2.2, 1.2 and 2.4 %, `advisor train layout-model`'s rows), its own are not (3 and 4 against
        11 and 7).
        """
        return self.has_adapters or self.weights == "bf16"

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank adapters are trained instead of the weights."""
        return self.adapter_rank is not None

    def adapts(self, name: str) -> bool:
        """Whether a layer's matrix of that name has an adapter."""
        return self.has_adapters and name in _targets_of(self.targets)

    @property
    def targets(self) -> str:
        """What adapters stand beside: as said, or as a named stack has it; else all linear layers.

        Those are QLoRA's (Dettmers et al., 2023, section 4), and most tools' own choice.
        """
        facts = None if self.is_stack_assumed else self.facts
        return self.adapter_targets or ("all-linear" if facts is None else facts.adapter_targets)

    def is_quantised(self, name: str) -> bool:
        """Whether a layer's matrix of that name is stored in fewer than 16 bits."""
        return self.base_bits < 16 and name in _TARGETS["all-linear"]

    def stored_bytes(self, precision: Precision) -> float:
        """Return what a trained weight takes as the framework stores it [bytes/parameter]."""
        if precision == "fp64":
            return 8.0
        return 2.0 if self.weights == "bf16" else 4.0

    def weight_bytes(self, precision: Precision) -> float:
        """Return what the copy of a trained weight that computes takes [bytes/parameter]."""
        return min(self.stored_bytes(precision), float(max(PRECISION_BYTES[precision], 2)))

    def gradient_bytes(self, precision: Precision) -> float:
        """Return what the gradient of a trained parameter takes [bytes/parameter].

        Stacks that reduce in 16 bits do so where they compute in 16 bits or fewer.
        """
        stored = self.stored_bytes(precision)
        is_narrow = self.stack is None or PRECISION_BYTES[precision] <= 2
        return min(stored, 2.0) if self.gradients == "bf16" and is_narrow else stored

    def master_bytes(self, precision: Precision) -> float:
        """Return what a master copy beside the weight that computes takes [bytes/parameter]."""
        stored = self.stored_bytes(precision)
        return stored if stored > self.weight_bytes(precision) else 0.0

    @property
    def pages_optimizer(self) -> bool:
        """Whether the optimizer's state moves to the host where it does not fit."""
        return "is_paged" in OPTIMIZERS[self.optimizer]

    def moment_bytes(self, precision: Precision, model: Transformer | None = None) -> float:
        """Return what the optimizer itself keeps [bytes/trainable parameter].

        ``model``: whose matrices Muon and GaLore treat unlike its tables and norms, which have
        AdamW's moments; of unknown ones all parameters are in matrices of 4,096 x 4,096.
        """
        stored = self.stored_bytes(precision)
        follows = stored / 4 if "follows" in OPTIMIZERS[self.optimizer] else 1.0
        if model is None or self.has_adapters or self.optimizer not in ("muon", "galore"):
            return float(OPTIMIZERS[self.optimizer]["moment_bytes"]) * follows
        whole = transformer_parameters(model)
        kept = 8.0 * (whole - sum(m.parameters for m in model_matrices(model)))
        for m in model_matrices(model):
            rank = min(_GALORE_RANK, m.inner, m.columns)
            # Two moments of rank x the longer side, and the projection (J. Zhao et al., 2024).
            projected = rank * (2 * max(m.inner, m.columns) + min(m.inner, m.columns))
            each = projected if self.optimizer == "galore" else m.inner * m.columns
            kept += 4.0 * each * m.count * m.copies
        return kept / whole * follows

    def optimizer_bytes(self, precision: Precision, model: Transformer | None = None) -> float:
        """Return moments and master copy, what ZeRO 1 shards [bytes/trainable parameter]."""
        return self.moment_bytes(precision, model) + self.master_bytes(precision)

    def update_flop(self, model: Transformer) -> float:
        """Return the products of the optimizer's own update [flop/parameter of the model].

        Muon's five iterations of X <- a X + (b A + c A A) X with A = X X^T: of a matrix of m rows
        and n >= m columns 4 m^2 n + 2 m^3 each.
        """
        if self.optimizer != "muon" or self.has_adapters:
            return 0.0
        flop = 0.0
        for matrix in model_matrices(model):
            m, n = sorted((matrix.inner, matrix.columns))
            flop += _MUON_STEPS * (4.0 * m * m * n + 2.0 * m**3) * matrix.count * matrix.copies
        return flop / transformer_parameters(model)

    def frozen_bytes(self, precision: Precision) -> float:
        """Return what a frozen matrix of a layer takes [bytes/parameter].

        Beside adapters it is loaded in 16 bits or fewer, unless its user says how it is stored;
        frozen layers stay as they are stored.
        """
        if self.base_bits == 8:
            return 1.0
        if self.base_bits == 4:
            return 0.5 + _DOUBLE_QUANTISATION_BYTES
        return self._unquantised_bytes(precision)

    def _unquantised_bytes(self, precision: Precision) -> float:
        """Return what a frozen parameter takes that nothing quantises [bytes].

        Autocast casts a frozen weight anew for every product and keeps no copy of it.
        """
        is_loaded_narrow = self.has_adapters and "weights" not in self.said
        return self.weight_bytes(precision) if is_loaded_narrow else self.stored_bytes(precision)

    def parameter_bytes(self, model: Transformer, precision: Precision) -> float:
        """Return what all weights take as stored: trained, adapters and frozen [bytes].

        Embeddings, output head and normalisations are never quantised.
        """
        parameters = transformer_parameters(model)
        trained = self.trainable_parameters(model) * self.stored_bytes(precision)
        if not self.has_adapters:
            frozen = parameters - self.trainable_parameters(model)
            return trained + frozen * self.frozen_bytes(precision)
        quantised = _TARGETS["all-linear"]
        matrices = sum(m.parameters for m in model_matrices(model) if m.name in quantised)
        rest = (parameters - matrices) * self._unquantised_bytes(precision)
        return trained + matrices * self.frozen_bytes(precision) + rest

    def mean_weight_bytes(self, model: Transformer, precision: Precision) -> float:
        """Return what the weights that compute take, a mean over the model's parameters.

        Master copies count as the optimizer's.
        """
        share, master = self.trainable_fraction(model), self.master_bytes(precision)
        stored = self.parameter_bytes(model, precision) / transformer_parameters(model)
        cast = self.weight_bytes(precision) if master else 0.0  # beside the master
        return stored - share * master + share * cast

    def adapter_parameters(self, model: Transformer) -> int:
        """Return the parameters of the adapters: r (inner + columns) for every matrix.

        Examples
        --------
        >>> llama = Transformer(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=32000,
        ...                     ffn=11008, is_gated=True)
        >>> TrainingSetup(adapter_rank=8, adapter_targets="query-value").adapter_parameters(llama)
        4194304
        """
        if self.adapter_rank is None:
            return 0
        return self.adapter_rank * sum(
            m.count * m.copies * (m.inner + m.columns)
            for m in model_matrices(model)
            if self.adapts(m.name)
        )

    def trainable_parameters(self, model: Transformer) -> int:
        """Return the parameters that are trained: the adapters', or what is not frozen."""
        if self.has_adapters:
            return self.adapter_parameters(model)
        return round((1.0 - self.frozen_fraction) * transformer_parameters(model))

    def trainable_fraction(self, model: Transformer) -> float:
        """Return trained parameters, adapters included, over those of the model itself."""
        return self.trainable_parameters(model) / transformer_parameters(model)

    def frozen_layers(self, model: Transformer) -> float:
        """Return the layers without a backward pass: embeddings freeze first, then layers."""
        table = model.vocabulary * model.hidden + position_parameters(model)
        whole = transformer_parameters(model)
        heads = 0 if model.has_tied_embeddings or not model.has_head else 1
        layers = whole - table - heads * model.vocabulary * model.hidden
        return model.layers * min(max(self.frozen_fraction * whole - table, 0.0) / layers, 1.0)


DEFAULT_SETUP: Final = TrainingSetup()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """What a stack does by default.

    Training stacks by name: what each does where its user changes nothing.

    | stack                | is                                                                 |
    |----------------------|--------------------------------------------------------------------|
    | ``nemo``             | NeMo, Megatron-Bridge: Megatron Core with NVIDIA's recipes         |
    | ``megatron-core``    | Megatron-LM since 2023 (Megatron Core, Transformer Engine)         |
    | ``megatron-lm``      | Megatron-LM of 2020 to 2022: unfused attention, nothing overlapped |
    | ``megatron-deepspeed`` | the same in DeepSpeed's 3D parallelism                           |
    | ``deepspeed``        | DeepSpeed's ZeRO around a Hugging Face model                       |
    | ``torchtitan``       | FSDP2, ``torch.compile``, selective recomputation                  |
    | ``llm-foundry``      | MosaicML's Composer with FSDP                                      |
    | ``trainer``          | Hugging Face's Trainer: DDP, or FSDP over several                  |
    | ``trl``              | the same with TRL's SFTTrainer (1.7 and later)                     |
    | ``unsloth``          | Unsloth's kernels in TRL's SFTTrainer                              |
    | ``torchtune``        | its fine-tuning recipes: one device, or FSDP2 over several         |
    | ``fsdp``             | a loop of one's own around FSDP, eager                             |
    | ``ddp``, ``ddp-compiled`` | a loop of one's own around DistributedDataParallel            |
    """

    # setup, software: fields of a ``TrainingSetup``, and columns of ``arrays.Software`` that no
    # setup says
    setup: Mapping[str, Any]
    software: Mapping[str, float] = field(default_factory=dict)
    # degrees, usual_degrees: what it splits a model by besides data parallelism, and what of that
    # it does where the user leaves it open and the model fits so; None: all that it can
    degrees: tuple[str, ...] = ("tp", "pp", "cp", "ep")
    usual_degrees: tuple[str, ...] | None = None
    # whose rules its layouts keep, and whose command starts them (``layouts.frameworks``)
    framework: str = "megatron"
    # what it may choose among where the user leaves it open, the fastest that fits; stage 0 is
    # what one rank has, which shards nothing, and of a stack that always shards nobody else
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    always_shards: bool = False
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    schedules: tuple[Schedule, ...] = ("1f1b",)
    # what it runs where its user asks for it; nothing where it has no stages
    able_schedules: tuple[Schedule, ...] = ()
    # it recomputes in full, or offloads the activations of, as many layers as its user says
    parts_layers: bool = False
    # whoever trains adapters beside weights of 8 and fewer bits keeps the rest of the model in
    # fp32, and so what runs between its layers (``peft.prepare_model_for_kbit_training``)
    upcasts_base: bool = False
    # all frozen weights beside adapters stay gathered: litgpt of 2023 reads as much more than its
    # shards, of four models and at every micro-batch
    holds_frozen: bool = False
    # fp32_adapters: bits of a base whose adapters are fp32, as peft makes them
    # (``autocast_adapter_dtype``); adapter_input_bytes: of an element of the copy that each of
    # them then keeps of its input: fp32, or what autocast makes of it; 0 where none is cast
    fp32_adapters: tuple[int, ...] = ()
    adapter_input_bytes: float = 0.0
    # what adapters stand beside; peft's own choice for models of Llama's kind is queries and
    # values (``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``)
    adapter_targets: str = "all-linear"
    # loss, losses: how it computes the loss, and how it can
    loss: Loss = "eager"
    losses: tuple[Loss, ...] = ("eager", "fused", "chunked")
    # optimizers, offloads, updates_in_backward: what its own switches can do
    optimizers: tuple[Optimizer, ...] = get_args(Optimizer)
    offloads: tuple[str, ...] = ("optimizer", "gradients", "parameters", "activations")
    updates_in_backward: bool = False
    sources: str = ""  # where its releases say so: of loss, recomputation, optimizer, gradients


# Stacks, their releases and what losses keep: ``stacks.toml`` says each with its source.
_TABLE: Final = tomllib.loads(Path(__file__).with_name("stacks.toml").read_text("utf-8"))
LOSSES: Final[Mapping[Loss, Mapping[str, float]]] = _TABLE["losses"]


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``StackFacts`` in a row, arrays as tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
        if name != "releases"
    }


# Releases of a stack, oldest first: name, day, and the fields of ``StackFacts`` that were not yet
# what ``STACKS`` says.
Release = tuple[str, str, Mapping[str, Any]]
RELEASES: Final[Mapping[Stack, tuple[Release, ...]]] = {
    name: tuple((release, day, _facts(changed)) for release, day, changed in facts["releases"])
    for name, facts in _TABLE["stacks"].items()
    if "releases" in facts
}
STACKS: Final[Mapping[Stack, StackFacts]] = {
    name: StackFacts(**_facts(facts)) for name, facts in _TABLE["stacks"].items()
}


@cache
def stack_facts(stack: Stack, release: str = "") -> StackFacts:
    """Return what a stack does by default in one of its releases; as today where none is said."""
    released = {name: facts for name, _, facts in RELEASES.get(stack, ())}
    changed = dict(released.get(release, {}))
    return replace(STACKS[changed.pop("as", stack)], **changed)


def read_stack(text: str) -> tuple[Stack, str]:
    """Return stack and release of a name as typed: NAME, NAME@VERSION or NAME@YEAR-MONTH.

    A month is the newest release of its last day.

    Raises PlanningError if no such release is known.

    Examples
    --------
    >>> read_stack("torchtitan@2025-11"), read_stack("nemo@25.09"), read_stack("fsdp")
    (('torchtitan', '0.2.0'), ('nemo', '25.09'), ('fsdp', ''))
    """
    name, _, said = text.partition("@")
    stack = cast("Stack", name)
    known = RELEASES.get(stack, ())
    if not said and "@" not in text:
        return stack, ""
    if said in (one for one, _, _ in known):
        return stack, said
    by_then = [one for one, day, _ in known if day[:7] <= said] if _MONTH.match(said) else []
    if by_then:
        return stack, by_then[-1]
    raise refused(
        f"no release {said[:20]!r} of {name} is known",
        f"name one of {', '.join(one for one, _, _ in known)}, or a month from {known[0][1][:7]}"
        if known
        else f"leave the release out: --stack {name}",
    )


_MONTH: Final = re.compile(r"20\d\d-(0[1-9]|1[0-2])$")
