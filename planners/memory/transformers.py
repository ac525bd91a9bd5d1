"""Equations of training memory: state by ZeRO stage, activations of a layer, all of a device.

| here           | papers  | meaning                                                              |
|----------------|---------|----------------------------------------------------------------------|
| ``dp``         | d, N_d  | ranks that share one copy of the state                               |
| ``tp``         | t       | tensor-parallel ranks                                                |
| ``tokens``     | s b     | tokens of one micro-batch on one device                              |
| ``h, f, a``    | h, -, a | width of the residual stream, of the feed-forward block, heads       |

``model_state`` is the one equation of weights, gradients and optimizer state: how much of them
lies on a device and how much on its host, by ZeRO stage and offload. All sums of them are read
from it; what a parameter takes by precision is ``TrainingSetup``'s. Transformers in a framework
(``needed_bytes``) and recorded or described work (``recorded_steps``) hand in different constants,
each where it says why.

References
----------
.. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models,"
   MLSys 2023, arXiv:2205.05198. Section 4: activations per layer, equations (1) to (6).
.. [2] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
   Models," SC'20. Section 5: states by stage.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    FUSIONS,
    GB,
    MIB,
    RECOMPUTES,
    Column,
    Floats,
    Layouts,
    Machines,
    Shapes,
    Software,
    expert_group,
    held_parameters,
    layer_expert_parameters,
    layer_parameters,
    met_columns,
    partial_share,
    passed_layers_share,
    query_columns,
    stage_tables,
)

# What a term is made of: what is known of it is known of all of its kind.
Kind = Literal[
    "states", "activations", "logits", "communication", "workspace", "context", "fragmentation"
]
Term = Literal[
    "parameters", "gradients", "optimizer", "masters", "adapters", "gathered", "buckets",
    "activations", "recomputed", "logits", "workspace", "context", "fragmentation", "rounding",
    "host_state", "host_activations",
]  # fmt: skip
# Bytes of one device by what they are for; what lies on the host under ``HOST_TERMS``.
Ledger = dict[Term, Floats]
# Kind, equation of a device's share and where it is from, of every term in the order shown.
_ROWS: Final = csv.reader(Path(__file__).with_name("terms.csv").read_text("utf-8").splitlines())
TERMS: Final = {
    cast("Term", term): (cast("Kind", kind), equation, source)
    for term, kind, equation, source in [*_ROWS][1:]
}
HOST_TERMS: Final[tuple[Term, ...]] = ("host_state", "host_activations")
# What of a device each way to read its memory does not see: ``torch.cuda.max_memory_allocated``
# (torchtune's peak active is the same but for blocks that are not used any more),
# ``max_memory_reserved``, ``nvidia-smi``; and what must have room.
Definition = Literal["allocated", "reserved", "monitor", "needed"]
UNSEEN: Final[Mapping[Definition, tuple[Term, ...]]] = {
    "allocated": ("context", "fragmentation", "rounding"),
    "reserved": ("context",),
    "monitor": (),
    "needed": ("fragmentation",),
}
_FULL: Final = RECOMPUTES.index("full")
# Of what was there at the loss, what blocks of one stream leave unused at the update: a monitor
# read 75.9 GiB of full fine-tuning where 68.0 were allocated and 10.8 had been at the loss, 1.5 of
# context apart (fms-acceleration's a100_80gb.csv, Mistral 7B on one A100).
_CACHED_SHARE: Final = 0.5
_EAGER, _COMPILED = FUSIONS.index("eager"), FUSIONS.index("compiled")
_LEAN: Final = FUSIONS.index("lean")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """What a run takes besides its tensors, and how far each kind of term is to be trusted.

    Context and slack are fitted on printed nvidia-smi readings; deviations of ln(term) on whole
    sources left out.
    """

    context_bytes: float = 3.0 * GB  # CUDA context, libraries, communication buffers [bytes]
    # allocated over needed: fragmentation and buffers, over all tensors; on a device that trains
    # alone over those that come and go: nothing is flattened, padded or received there
    slack: float = 1.11
    # context of a device that trains alone, without communicators. BigScience's reading of an A100
    # that computed nothing, 1,573 MiB (V100: 1,113) [bytes]
    alone_context_bytes: float = 1573.0 * MIB
    # per token and vocabulary entry on the last stage, by Megatron's loss [bytes]
    logit_bytes: float = 8.0
    gathered_layers: float = 2.0  # layers whose parameters ZeRO-3 holds gathered
    # ``slack`` is a job's own, of blocks that were replayed: what lasts loses nothing
    is_replayed: bool = False
    # by ``Kind``; states are counted, and err by padding and by what a stack keeps beside them
    states_log_sd: float = 0.03
    activations_log_sd: float = 0.10
    logits_log_sd: float = 0.25
    communication_log_sd: float = 0.30
    workspace_log_sd: float = 0.50
    context_log_sd: float = 0.25
    fragmentation_log_sd: float = 0.40
    # times as wide: activations where nobody named the software that keeps them, logits where
    # nobody said how the loss is computed either
    unsaid_spread: float = 1.5
    # all terms: loose_spread, where every operator is a kernel of its own, or adapters are trained
    # (what is kept is as the release writes the model, and lengths that vary fragment it);
    # unnamed_spread, quantised_spread: as many times again where nobody named that software, or
    # beside a base of fewer than 16 bits: the wider of both
    loose_spread: float = 2.0
    unnamed_spread: float = 1.5
    quantised_spread: float = 1.2


# Deviations of ``MemoryConstants``, one a kind.
WIDTHS: Final = tuple(f"{kind}_log_sd" for kind in get_args(Kind))


def context_bytes(constants: MemoryConstants, is_alone: ArrayLike) -> Floats:
    """Return what CUDA and its libraries take of a device, alone or among others [bytes]."""
    alone = min(constants.alone_context_bytes, constants.context_bytes)
    return np.where(is_alone, alone, constants.context_bytes)


def without_terms(terms: Ledger, unseen: tuple[Term, ...] = ()) -> Floats:
    """Return the sum of a device's terms but for some [bytes]."""
    left = [t for name, t in terms.items() if name not in unseen and name not in HOST_TERMS]
    return np.asarray(reduce(np.add, left))


def at_row(terms: Ledger, row: int, shape: tuple[int, ...]) -> Ledger:
    """Return one row of columns."""
    return {name: np.asarray(np.broadcast_to(one, shape)[row]) for name, one in terms.items()}


def needed_of(terms: Ledger) -> Floats:
    """Return what a device must have room for [bytes]."""
    return without_terms(terms, UNSEEN["needed"])


def deviation_bytes(
    terms: Ledger, constants: MemoryConstants, unseen: tuple[Term, ...] = UNSEEN["needed"]
) -> Floats:
    """Return one standard deviation of the sum of the terms but for some [bytes].

    Terms of one kind err alike (one formula, one allocator), kinds on their own.
    """
    kinds: dict[Kind, Floats] = {}
    for name, term in terms.items():
        if name not in unseen and name not in HOST_TERMS:
            kind = TERMS[name][0]
            kinds[kind] = kinds[kind] + term if kind in kinds else term
    squares = [
        np.square(getattr(constants, f"{kind}_log_sd") * term) for kind, term in kinds.items()
    ]
    return np.asarray(np.sqrt(reduce(np.add, squares)))


def spread(
    constants: MemoryConstants, *, is_loose: ArrayLike, is_named: ArrayLike,
    is_quantised: ArrayLike,
) -> Floats:  # fmt: skip
    """Return how many times as wide as of fused kernels a job's deviations are.

    ``is_loose``: every operator is a kernel of its own, or adapters are trained; ``is_named``: the
    user named the software, as its releases are known here; ``is_quantised``: the frozen weights.
    """
    unnamed = np.where(is_named, 1.0, constants.unnamed_spread)
    again = np.maximum(unnamed, np.where(is_quantised, constants.quantised_spread, 1.0))
    return np.where(is_loose, constants.loose_spread * again, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What weights, gradients and optimizer state take for one device: there, and on its host."""

    device_bytes: Floats
    host_bytes: Floats
    # the device's, by what they are
    weights: Floats
    gradients: Floats
    optimizer: Floats


def model_state(
    weights: ArrayLike, gradients: ArrayLike, optimizer: ArrayLike, *, dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0, keeps_gradients: ArrayLike = False,
    moves_weights: ArrayLike = False, moves_optimizer: ArrayLike = False,
    moves_gradients: ArrayLike = False, pages_optimizer: ArrayLike = False,
) -> ModelState:  # fmt: skip
    """Return where so many bytes of weights, gradients and optimizer state lie.

    Stage 1 shards the optimizer state over ``dp`` workers, 2 the gradients too, 3 also the
    weights ([2]_, section 5). ``keeps_gradients`` says where gradients stay whole whatever the
    stage, because they are added up over several micro-batches before they are reduced. A host
    that has the optimizer's state keeps the gradients that it updates with, too; on the device
    they stay but for ``moves_gradients``. Where its state is paged (``pages_optimizer``), the
    device updates, and the host needs no gradients.

    Examples
    --------
    >>> [float(model_state(2, 2, 12, dp=4, zero_stage=z).device_bytes) for z in range(4)]
    [16.0, 7.0, 5.5, 4.0]
    >>> moved = model_state(2, 2, 12, dp=4, zero_stage=1, moves_optimizer=True)
    >>> float(moved.device_bytes), float(moved.host_bytes)
    (4.0, 3.5)
    """
    d, stage = np.asarray(dp, float), np.asarray(zero_stage)
    if not (np.all(d >= 1) and np.all((stage >= 0) & (stage <= 3))):
        raise ValueError(f"need dp >= 1 and a ZeRO stage of 0 to 3, got {dp!r} and {zero_stage!r}")
    weights, gradients = np.asarray(weights, float), np.asarray(gradients, float)
    optimizer, updates = np.asarray(optimizer, float), np.asarray(moves_optimizer, bool)
    passes = np.asarray(moves_weights, bool)
    scatters = (stage >= 2) & ~np.asarray(keeps_gradients, bool)
    on_device = gradients * ~np.asarray(moves_gradients, bool) / np.where(scatters, d, 1.0)
    weights, shards = weights / np.where(stage >= 3, d, 1.0), np.where(stage >= 1, d, 1.0)
    # The host updates with gradients, whether they stay on the device too or not.
    updated = gradients * (updates | np.asarray(moves_gradients, bool)) / shards
    away = updates | np.asarray(pages_optimizer, bool)
    there = weights * ~passes, on_device, optimizer * ~away / shards
    return ModelState(
        device_bytes=np.asarray(there[0] + there[1] + there[2]),
        host_bytes=np.asarray(weights * passes + optimizer * away / shards + updated),
        weights=np.asarray(there[0]),
        gradients=np.asarray(there[1]),
        optimizer=np.asarray(there[2]),
    )


def token_activation_bytes(
    shapes: Shapes, *, tp: ArrayLike = 1, is_sequence_parallel: ArrayLike = False,
    keeps_scores: ArrayLike = False, element_bytes: ArrayLike = 2.0, mask_bytes: ArrayLike = 2.0,
    keeps_joint_product: ArrayLike = False,
) -> Floats:  # fmt: skip
    r"""Return what one layer keeps of one token for its backward pass [bytes].

    .. math:: h \left(10 + \frac{24}{t} + \frac{5 a s}{h t}\right)

    for two-byte elements ([1]_, equations 2 and 4), generalised to any ``ffn``, gated blocks,
    grouped key/value heads and experts. The ten unsharded bytes (inputs of two norms and two
    products, two dropout masks) are divided by ``tp`` under sequence parallelism.

    ``keeps_scores``: the quadratic term: gone with flash attention and selective recomputation;
    ``mask_bytes``: of both dropout masks; 0 where nothing is dropped; ``keeps_joint_product``: the
    product of queries, keys and values is kept beside rotated queries and keys.
    """
    e, t = np.asarray(element_bytes, float), np.asarray(tp, float)
    h, a = np.asarray(shapes.hidden, float), np.asarray(shapes.heads, float)
    kv = np.asarray(shapes.kv_heads) / shapes.heads
    outside = (4 * e + mask_bytes) * h / np.where(is_sequence_parallel, t, 1.0)
    joint = np.where(keeps_joint_product, e * (1 + kv), 0.0)
    inner = met_columns(shapes, per_token=np.asarray(shapes.experts_per_token))
    wide = e * np.asarray(shapes.matrices) * inner
    inside = (e * (2 + 2 * kv) + joint) * query_columns(shapes) + wide
    scores = np.where(keeps_scores, (2 * e + 1) * a * shapes.sequence, 0.0)
    return np.asarray(outside + (inside + scores) / t)


# Whose memory is asked for: the device's that has most, or that of an end of the pipeline.
StageAsked = Literal["fullest", "first", "last"]


def layer_activation_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch without recomputation [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    recompute, skipped = np.asarray(layouts.recompute), np.asarray(software.selective_gemm)
    per_token = token_activation_bytes(
        shapes,
        tp=layouts.tp,
        is_sequence_parallel=np.asarray(layouts.is_sequence_parallel, bool),
        # Selective recomputation keeps no scores.
        keeps_scores=(np.asarray(software.attention) == 0) & (recompute == 0),
        # The stacks of 2020-2022 keep two dropout masks; today's models drop nothing.
        mask_bytes=np.where(np.asarray(software.is_launch_heavy), 2.0, 0.0),
        # Values are a view of the joint product's output, which Megatron keeps whole for them.
        keeps_joint_product=is_megatron_core(software) & (np.asarray(shapes.matrices) == 3),
    )
    # torchtitan's selective recomputation keeps every second product's output.
    kept = np.where((recompute == 1) & (skipped > 0), 1 - skipped, 1.0)
    per_token = per_token * kept + np.where(
        kept < 1, 0.0, _elementwise_bytes(shapes, layouts, software)
    )
    return np.asarray(tokens * per_token * software.activation_scale)


def _elementwise_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer of Llama's kind keeps of a token beside the formula's [bytes].

    The formula is of kernels fused by hand. One kernel an operator (transformers' ``LlamaRMSNorm``
    and ``LlamaMLP``): each of two norms keeps its input in fp32, which the formula counts in 16
    bits (4 h - 2 h), and the product with its weight (2 h) unless that is frozen; the gate's
    activation is kept beside the gate (2 f). Compiled, the backward pass computes elementwise
    results again from what is there anyway (``torch._functorch.partitioners``): of 8 h outside
    products 4 h stay, of 6 f the gate's and the other product's output.
    """
    fusion, tp = np.asarray(software.fusion), np.asarray(layouts.tp, float)
    inner = met_columns(shapes, per_token=np.asarray(shapes.experts_per_token)) / tp
    outside = np.asarray(shapes.hidden) / np.where(layouts.is_sequence_parallel, tp, 1.0)
    norms = np.where(np.asarray(shapes.trained_share, float) > 0, 8.0, 4.0)
    eager, compiled = norms * outside + 2 * inner, -4 * outside - 2 * inner
    more = np.where(fusion == _EAGER, eager, np.where(fusion == _COMPILED, compiled, 0.0))
    more = np.where(np.asarray(shapes.matrices) == 3, more, 0.0)
    # Compiled, the backward pass makes them again, frozen or not.
    return np.asarray(more - np.where(fusion == _COMPILED, 0.0, software.spared_input_bytes / tp))


def _passed_back_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return the gradients that exist at once in a layer's backward pass [bytes].

    A gated block has those of three inner tensors beside its output's and input's, as one kernel
    an operator makes them (Liger-Kernel's tables: 7 f + 4 h where 4 f + 2 h are kept).
    """
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    inner = met_columns(shapes, per_token=np.asarray(shapes.experts_per_token))
    inner = inner / np.asarray(layouts.tp, float)
    width = 2.0 * (3 * inner + 2 * np.asarray(shapes.hidden)) * software.activation_scale
    is_apart = np.isin(software.fusion, (_EAGER, _LEAN)) & (np.asarray(shapes.matrices) == 3)
    return np.where(is_apart, tokens * width, 0.0)


def in_flight(layouts: Layouts) -> Floats:
    """Return micro-batches whose activations the first stage holds.

    GPipe m, 1F1B min(p, m), interleaved 1F1B times 1 + (p-1)/(p v), zero bubble in a V as 1F1B,
    DualPipe half a stage more (Qi et al., 2024, table 1; DeepSeek-V3, 2024, table 2).
    """
    p, m = np.asarray(layouts.pp, float), np.asarray(layouts.accumulation_steps, float)
    v = np.asarray(layouts.virtual_stages, float)
    ahead = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    backward = np.asarray(layouts.backward)
    ahead = np.where(backward > 0, np.where(backward == 2, 1 + 1 / (2 * p), 1.0), ahead)
    one_f_one_b = np.minimum(p * ahead, m)
    return np.asarray(np.where(np.asarray(layouts.holds_all), np.where(p > 1, m, 1), one_f_one_b))


def state_terms(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants, *,
    layers: Floats, embeddings: Floats | float,
) -> Ledger:  # fmt: skip
    """Return parameters, gradients, optimizer and what travels of them, of one device.

    ``layers``, ``embeddings``: layers of the stage, and its embedding or head matrices.
    """
    held = held_parameters(shapes, layouts, layers=layers, tables=embeddings)
    routed = expert_parameters(shapes, layouts, layers=layers)
    d = shard_ranks(layouts)
    copies = expert_copies(layouts, d)
    dense = parameter_state(layouts, software, shapes, d)
    expert = dense if np.all(np.asarray(shapes.experts) == 1) else (
        parameter_state(layouts, software, shapes, copies)
    )  # fmt: skip

    def of(name: str) -> Floats:
        each, of_expert = getattr(dense, name), getattr(expert, name)
        return np.asarray((held - routed) * each + routed * of_expert)

    weights, gradients, optimizer = of("weights"), of("gradients"), of("optimizer")
    in_backward = np.asarray(layouts.updates_in_backward)
    if np.any(in_backward):
        largest = _largest_unit(shapes, layouts) * shapes.trained_share * software.gradient_bytes
        gradients = np.where(in_backward > 0, np.minimum(largest, gradients), gradients)
    of_masters = _share(software.master_bytes, software.optimizer_state_bytes)
    of_adapters = _share(software.adapter_bytes, software.weight_bytes)
    gathered, buckets = _travelling(shapes, layouts, software, constants, held)
    terms: Ledger = {
        "parameters": weights * (1 - of_adapters), "gradients": gradients,
        "optimizer": optimizer * (1 - of_masters), "masters": optimizer * of_masters,
        "adapters": weights * of_adapters, "gathered": gathered, "buckets": buckets,
    }  # fmt: skip
    moves = (layouts.offloads_optimizer, layouts.offloads_gradients, layouts.offloads_parameters,
             software.pages_optimizer)  # fmt: skip
    if any(np.any(column) for column in moves):
        terms["host_state"] = of("host_bytes")
    return terms


def _share(part: Column, whole: Column) -> Floats:
    share = np.asarray(part, float) / np.maximum(np.asarray(whole, float), 1e-9)
    return np.asarray(np.minimum(share, 1.0))


def parameter_state(
    layouts: Layouts, software: Software, shapes: Shapes, ranks: Floats
) -> ModelState:
    """Return the state of a parameter that so many ranks share copies of."""
    # What is frozen has neither gradient nor optimizer state.
    trained = np.asarray(shapes.trained_share, float)
    return model_state(
        software.weight_bytes, trained * software.gradient_bytes,
        trained * software.optimizer_state_bytes, dp=ranks, zero_stage=layouts.zero_stage,
        keeps_gradients=accumulates_whole(layouts), moves_weights=layouts.offloads_parameters,
        moves_optimizer=layouts.offloads_optimizer,
        moves_gradients=_moves_gradients(layouts, software, ranks),
        # What is paged lies on the host where it does not fit; nothing must have room for it.
        pages_optimizer=software.pages_optimizer,
    )  # fmt: skip


def _largest_unit(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the parameters of a device's largest layer or table."""
    attention, _ = layer_parameters(shapes)
    tp = np.asarray(layouts.tp, float)
    layer = attention / tp + layer_expert_parameters(shapes, layouts)
    table = np.asarray(shapes.vocabulary, float) * shapes.hidden / tp
    return np.asarray(np.maximum(layer, table))


def expert_parameters(shapes: Shapes, layouts: Layouts, *, layers: Floats) -> Floats:
    """Return the parameters of a device's experts; 0 of a model with one block a layer."""
    routed = np.asarray(layers) * layer_expert_parameters(shapes, layouts)
    return np.where(np.asarray(shapes.experts) > 1, routed, 0.0)


def expert_copies(layouts: Layouts, ranks: Floats) -> Floats:
    """Return the ranks among ``ranks`` data-parallel ones, and their tp, that share an expert."""
    return np.asarray(np.maximum(ranks * layouts.tp / expert_group(layouts), 1.0))


def _travelling(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants, held: Floats
) -> tuple[Floats, Floats]:
    """Return what is gathered of the parameters, and buckets of their gradients [bytes].

    ZeRO-3 has two layers gathered at a time, as has a lone device that fetches its layers from
    the host.
    """
    attention, _ = layer_parameters(shapes)
    one_layer = attention / np.asarray(layouts.tp, float) + layer_expert_parameters(
        shapes, layouts
    )
    layer = np.minimum(constants.gathered_layers * one_layer, held)
    pp, d = np.asarray(layouts.pp), shard_ranks(layouts)
    whole = np.where((pp > 1) | (np.asarray(software.gathers_whole) > 0), held, layer)
    is_lone = (np.asarray(layouts.offloads_parameters) > 0) & (pp == 1)
    is_gathered = (np.asarray(layouts.zero_stage) >= 3) & ((d > 1) | is_lone)
    gathered = np.where(is_gathered, software.weight_bytes * whole, 0.0)
    trained = held * np.asarray(shapes.trained_share, float)
    return gathered, _kept_by_deepspeed(trained, layouts, d, software)


def shard_ranks(layouts: Layouts) -> Floats:
    """Return the ranks that share one copy of the sharded state."""
    ranks = np.asarray(layouts.dp, float) * np.asarray(layouts.cp)
    return np.asarray(np.minimum(np.asarray(layouts.shard_group, float), ranks))


def accumulates_whole(layouts: Layouts) -> NDArray[np.bool_]:
    """Return where sharded gradients are added up whole and scattered once a step.

    Stages of a pipeline with several micro-batches: whatever the ZeRO stage, they are reduced
    after the last one.
    """
    steps = np.asarray(layouts.accumulation_steps)
    return np.asarray((np.asarray(layouts.pp) > 1) & (steps > 1))


# ``reduce_bucket_size`` of DeepSpeed's ZeroConfig, through which gradients go to the host.
BUCKET_ELEMENTS: Final = 5e8


def _kept_by_deepspeed(
    held: Floats, layouts: Layouts, ranks: Floats, software: Software
) -> Floats:
    """Return the fp32 gradient and the reduction's bucket that it adds without ZeRO 2 [bytes].

    Its optimizer casts the gradients that it updates with: all of them, or its shard's. Gradients
    that lie on the host pass through the bucket.
    """
    columns = (layouts.offloads_optimizer, layouts.offloads_gradients,
               software.gradient_shard_bytes, software.reduce_bucket_elements)  # fmt: skip
    if not any(np.any(one) for one in columns):
        return np.zeros(())
    zero, moves = np.asarray(layouts.zero_stage), _moves_gradients(layouts, software, ranks)
    cast = model_state(0, 0, software.gradient_shard_bytes * held, dp=ranks, zero_stage=zero)
    passes = moves & (np.asarray(software.offload_takes_gradients) > 0)
    elements = np.where(passes, BUCKET_ELEMENTS, software.reduce_bucket_elements)
    bucket = 4.0 * np.minimum(held, elements)
    kept = np.where((zero < 2) & ~moves, cast.device_bytes, 0.0)
    return np.asarray(kept + np.where((zero == 1) | moves, bucket, 0.0))


def _moves_gradients(layouts: Layouts, software: Software, ranks: Floats) -> NDArray[np.bool_]:
    """Return where gradients go to the host as they come, as DeepSpeed's offload has it.

    From ZeRO 2 on, and on one rank, where stages differ in nothing else: two bytes a parameter
    stay on the device (Ren et al., ZeRO-Offload, 2021, section 4).
    """
    is_offload = np.asarray(layouts.offloads_optimizer) > 0
    takes = np.asarray(software.offload_takes_gradients) > 0
    is_usual = is_offload & takes & ((layouts.zero_stage >= 2) | (ranks == 1))
    return np.asarray(is_usual | (np.asarray(layouts.offloads_gradients) > 0))


def ledger(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants | None = None,
    *, stage: StageAsked = "fullest", held: Floats | None = None,
) -> Ledger:  # fmt: skip
    """Return the memory of the fullest device of every row, or of one of its first stage, by term.

    Memory of transformer layouts on the fullest device, as columns; ``TERMS`` has the equations.

    | here       | papers | meaning                                                      |
    |------------|--------|--------------------------------------------------------------|
    | ``states`` | -      | parameters, gradients and optimizer [bytes]                  |
    | ``kept``   | -      | activations that one layer keeps for one micro-batch [bytes] |
    | ``held``   | -      | micro-batches in flight on the first stage                   |
    | ``d``      | d      | ranks that share one copy of the state                       |

    States per parameter: 2 weight + g gradient + 12 optimizer; ZeRO 1 divides the 12, ZeRO 2 the
    gradient too, ZeRO 3 everything and gathers two layers at a time. Stages of a pipeline keep
    what they gathered, and gradients whole, until their last micro-batch: gathering for each would
    cost a reduction and two gathers a micro-batch (FSDP under a schedule:
    ``reshard_after_forward=False``, ``set_requires_gradient_sync(False)``). Activations per layer
    and token: 8 h (10 h with dropout) outside the tensor-parallel part, (4 + 4 kv/a) h + 4 f (or 6
    f where gated) inside, 2 + 2 kv/a more where Megatron rotates queries and keys, 5 a s for
    unfused attention scores; sequence parallelism divides the outside too; full recomputation
    keeps 2 h and one live layer. A stage keeps what it sent until that micro-batch's backward pass
    (DeepSpeed's ``pipe_buffers``, PyTorch's ``fwd_cache``), but in Megatron Core, which frees it
    (``deallocate_pipeline_outputs``). Either the first stage (most in flight) or the last (logits)
    is fullest. Sources: Korthikanti et al. (2022, equations 1-6), Rajbhandari et al. (ZeRO, 2020).

    What ran on a cluster's first machine was often all that somebody looked at. The terms are of
    one moment, the fullest: where gradients are not there yet, theirs is 0.

    ``held``: micro-batches whose activations the stage holds; ``in_flight`` by default.
    """
    fixed = constants or MemoryConstants()
    layers = np.ceil(np.asarray(shapes.layers) / np.asarray(layouts.pp, float))
    terms = state_terms(
        shapes, layouts, software, fixed, layers=layers, embeddings=stage_tables(shapes, layouts)
    )
    lasting = list(terms)
    held = in_flight(layouts) if held is None else held
    terms |= _passing_terms(shapes, layouts, software, fixed, layers, held, stage)
    terms = _at_peak(terms, shapes, layouts, software)
    is_alone = np.asarray(layouts.tp, float) * layouts.pp * layouts.cp * layouts.dp == 1
    terms["context"] = context_bytes(fixed, is_alone)
    lost = without_terms(terms, ("context", "fragmentation", *lasting))
    lasts = 0.0 if fixed.is_replayed else without_terms({name: terms[name] for name in lasting})
    lost = (fixed.slack - 1) * (lost + np.where(is_alone, 0.0, lasts))
    terms["fragmentation"] = terms.get("fragmentation", 0.0) + lost
    return terms


def memory_bytes(
    shapes: Shapes, layouts: Layouts, software: Software,
    constants: MemoryConstants | None = None, *, stage: StageAsked = "fullest",
) -> Floats:  # fmt: skip
    """Return what a monitor shows of the fullest device, or of one of the first stage [bytes]."""
    return without_terms(ledger(shapes, layouts, software, constants, stage=stage))


def needed_bytes(
    shapes: Shapes, layouts: Layouts, software: Software,
    constants: MemoryConstants | None = None, *, stage: StageAsked = "fullest",
    held: Floats | None = None,
) -> Floats:  # fmt: skip
    """Return what the fullest device, or one of the first stage, must have room for [bytes].

    Less than ``memory_bytes``, which is what a monitor shows: PyTorch's allocator keeps what was
    freed as long as there is room, and gives it back where an allocation would fail otherwise
    (``torch.cuda.memory``). What it cannot give back is the margin's (``kept_free_bytes``).

    ``held``: micro-batches whose activations the stage holds; ``in_flight`` by default.
    """
    return needed_of(ledger(shapes, layouts, software, constants, stage=stage, held=held))


def _at_peak(terms: Ledger, shapes: Shapes, layouts: Layouts, software: Software) -> Ledger:
    """Return the terms of the fullest moment: at the loss, or when all gradients are there.

    Those of the only micro-batch, where they are freed after every update, come one layer after
    the other, as activations go: at the loss there are none, and in the end the last layer to go
    backward holds what it keeps beside all of them. Where the update is not one kernel, it has a
    copy of a moment. PyTorch's allocator keeps what was there at the loss: blocks of a stream are
    used again by that stream alone, and gradients that are sharded come on another.
    """
    is_lone = (np.asarray(layouts.accumulation_steps) == 1) & (np.asarray(layouts.pp) == 1)
    is_absent = is_lone & (np.asarray(software.keeps_gradients) == 0)
    is_absent &= np.asarray(layouts.updates_in_backward) == 0
    copied = np.asarray(software.update_share, float)
    if not np.any(is_absent) and not np.any(copied):
        return terms
    layer = layer_activation_bytes(shapes, layouts, software)
    updated = copied * terms["optimizer"]
    later = np.maximum(layer, updated)
    passing: tuple[Term, ...] = ("activations", "recomputed", "logits")
    at_loss = terms["activations"] + terms["recomputed"] + terms["logits"]
    arriving = np.where(is_absent, terms["gradients"], 0.0)
    is_later = arriving + later > at_loss
    found: Ledger = {**terms, **{name: np.where(is_later, 0.0, terms[name]) for name in passing}}
    found["gradients"] = terms["gradients"] - np.where(is_later, 0.0, arriving)
    is_sharded = (np.asarray(layouts.zero_stage) >= 3) & (shard_ranks(layouts) > 1)
    cached = np.where(is_sharded, 1.0, _CACHED_SHARE) * np.maximum(at_loss - layer, 0.0)
    found["fragmentation"] = np.where(is_later, cached, 0.0)
    found["activations"] = found["activations"] + np.where(
        is_later & (layer >= updated), layer, 0.0
    )
    found["workspace"] = terms["workspace"] + np.where(is_later & (layer < updated), updated, 0.0)
    return found


def _passing_terms(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants,
    layers: Floats, held: Floats, stage: StageAsked,
) -> Ledger:  # fmt: skip
    """Return activations and logits of a pass, on the first or the last stage.

    Logits and their gradient are gone before the first layer is computed again.
    """
    # Offloaded activations leave only the layer at work on the device; so does recomputation.
    offloads = np.asarray(layouts.offloads_activations) * partial_share(shapes, layouts)
    # Frozen layers keep nothing; they lie in the first stages.
    whole_kept = kept_bytes(shapes, layouts, software) * passed_layers_share(shapes, layouts)
    kept = layers * whole_kept * (1 - offloads)
    whole = layer_activation_bytes(shapes, layouts, software)
    whole = whole + _passed_back_bytes(shapes, layouts, software)
    live = np.where((np.asarray(layouts.recompute) == _FULL) | (offloads != 0), whole, 0.0)
    logits = _logit_bytes(shapes, layouts, software, constants)
    is_split = np.asarray(layouts.pp) > 1
    sent = np.where(is_split, sent_bytes(shapes, layouts, software), 0.0)
    first = held * (kept + sent)
    loss = np.maximum(live, logits)
    is_last = (~is_split | (stage == "fullest")) & (kept + loss >= first + live)
    is_last |= stage == "last"
    is_loss = is_last & (logits > live)
    terms: Ledger = {
        "activations": np.where(is_last, kept, first),
        "recomputed": np.where(is_loss, 0.0, live),
        "logits": np.where(is_loss, logits, 0.0),
        "workspace": _workspace_bytes(shapes, layouts, software),
    }
    if np.any(offloads):
        terms["host_activations"] = layers * in_flight(layouts) * whole_kept * offloads
    return terms


def _logit_bytes(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants
) -> Floats:
    """Return the logits that exist at once, with what their loss keeps of them [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    at_once = np.minimum(tokens * software.logit_share, software.logit_tokens)
    logits = constants.logit_bytes * software.logit_scale * at_once * shapes.vocabulary
    return np.asarray(logits / np.asarray(layouts.tp, float))


def _workspace_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return the matrix that products have written out of fewer bits [bytes]."""
    matrix = 2.0 * np.asarray(shapes.hidden, float) * np.maximum(shapes.ffn, shapes.hidden)
    is_decoded = np.asarray(software.dequantised_bytes, float) > 0
    return np.where(is_decoded, matrix / np.asarray(layouts.tp, float), 0.0)


def is_megatron_core(software: Software) -> NDArray[np.bool_]:
    """Return where kernels are fused by hand and the stack is not one of 2020-2022."""
    is_fused = np.asarray(software.fusion) == 1
    return np.asarray(is_fused & ~np.asarray(software.is_launch_heavy, bool))


def sent_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what a stage keeps of one micro-batch after it sent it on [bytes]."""
    return np.where(is_megatron_core(software), 0.0, boundary_bytes(shapes, layouts))


def boundary_bytes(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return one micro-batch between two layers on a device [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    ranks = np.where(np.asarray(layouts.is_sequence_parallel), layouts.tp, 1)
    return np.asarray(2 * tokens * shapes.hidden / ranks)


def kept_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch, on the device or on the host [bytes]."""
    whole = layer_activation_bytes(shapes, layouts, software)
    # Sharded weights are not prepared in fp32 (TRL's and fms-acceleration's ``is_sharded_qlora``).
    element = np.where(np.asarray(layouts.zero_stage) >= 3, 2.0, software.residual_bytes)
    boundary = boundary_bytes(shapes, layouts) * element / 2
    if not np.any(software.splits_inputs):
        return _repeated_bytes(shapes, layouts, boundary, whole)
    # Under sequence parallelism they are shared out already.
    is_split = np.asarray(software.splits_inputs, bool) & ~np.asarray(
        layouts.is_sequence_parallel, bool
    )
    boundary = boundary / np.where(is_split, np.asarray(layouts.tp, float), 1.0)
    return _repeated_bytes(shapes, layouts, boundary, whole)


def _repeated_bytes(shapes: Shapes, layouts: Layouts, boundary: Floats, whole: Floats) -> Floats:
    """Return the mean over a stage's layers, of which some or all are recomputed in full."""
    share = partial_share(shapes, layouts)
    repeated = share * boundary + (1 - share) * whole
    return np.where(np.asarray(layouts.recompute) == 2, repeated, whole)


def host_bytes(shapes: Shapes, layouts: Layouts, machines: Machines, software: Software) -> Floats:
    """Return the host memory that offloading takes on one node [bytes]."""
    terms = ledger(shapes, layouts, software)
    found = [terms[name] for name in HOST_TERMS if name in terms] or [np.zeros(())]
    return np.asarray(reduce(np.add, found) * machines.devices_per_node)
