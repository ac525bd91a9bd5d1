"""Columns of the layout model: transformers, machines, software and layouts as arrays.

Every field is a number or an array; the fields of all four records broadcast against one another.
A table of measured runs is columns of one length; a search is a few axes, and what depends on two
of them is computed on two of them only. ``select``, ``put`` and ``concatenate`` take the records
as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.setup import Transformer, head_width, model_matrices, scored_width

Floats = NDArray[np.float64]


Column = Floats | NDArray[np.int64] | NDArray[np.bool_] | float | int

# Codes of what has a name elsewhere.
GENERATIONS: Final = ("volta", "ampere", "hopper", "blackwell", "cdna")
PRECISIONS: Final = ("16-bit", "fp8", "fp4", "tf32")
FUSIONS: Final = ("eager", "fused", "compiled", "lean")
# Bytes a logit at the peak of the loss, over Megatron's 8: its vocabulary-parallel loss keeps them
# in 16 bits (2), exponentials in fp32 (4) that the gradient overwrites, and that in 16 bits (2).
# PyTorch's keeps logits (2), log-probabilities (4) and two fp32 gradients (8); compiled, the last
# two are one. Counted, by ``FUSIONS``.
LOGIT_SCALES: Final = (14 / 8, 1.0, 10 / 8, 14 / 8)
ATTENTIONS: Final = ("unfused", "flash1", "flash2", "flash3")
RECOMPUTES: Final = ("none", "selective", "full")
BACKWARDS: Final = ("whole", "zb", "dualpipe")
Offload = Literal["optimizer", "gradients", "parameters", "activations"]
OFFLOADS: Final[tuple[Offload, ...]] = ("optimizer", "gradients", "parameters", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Transformers, symbols as in ``nouns.Transformer``."""

    # layers, hidden, heads, kv_heads, ffn, sequence, vocabulary: [l, h, a, -, f, s, V]
    layers: Column
    hidden: Column
    heads: Column
    kv_heads: Column
    ffn: Column
    matrices: Column  # feed-forward matrices: 2, or 3 where gated
    sequence: Column
    vocabulary: Column
    experts: Column = 1
    experts_per_token: Column = 1
    # share of the parameters that is trained: 0 where only low-rank adapters are, so that no
    # weight gradients are computed, reduced or kept
    trained_share: Column = 1.0
    # share of the layers that have a backward pass: the others are frozen, from the input on
    passed_share: Column = 1.0
    # columns of all heads' queries, and what their scores cost (``setup.scored_width``); 0 means
    # the width of the stream
    query_columns: Column = 0.0
    scored_columns: Column = 0.0
    attention: Column = 0.0  # parameters of attention in a layer; 0 means h^2 (2 + 2 kv/a)
    # of the mean layer: share of the layers that have experts, and inner width of what every token
    # meets beside them
    routed_share: Column = 1.0
    dense_ffn: Column = 0.0
    # neither of a layer's products nor of tables: a tower in front, positions
    other_parameters: Column = 0.0
    # embedding and head matrices of the whole model: 2, or 1 where they are tied or it has no
    # head. Of several stages the first and the last hold one each.
    tables: Column = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Devices and links."""

    flop_per_s: Column  # measured rate of large 16-bit matrix products on one device [flop/s]
    memory_bytes_per_s: Column
    memory_bytes: Column
    intra_bytes_per_s: Column  # between devices of a node, per device and direction
    network_bytes_per_s: Column  # network interface of a node, per direction
    devices_per_node: Column
    # nodes among which the intra-node link joins all devices: 1, or 18 in an NVL72 rack
    domain_machines: Column = 1
    host_bytes_per_s: Column = 12e9  # between a device and host memory, per direction
    host_memory_bytes: Column = np.inf
    kept_free_bytes: Column = 0.0  # of one device's memory, what a layout may not fill
    generation: Column = 1  # index into ``GENERATIONS``: which tuned kernels there are
    precision: Column = 0  # index into ``PRECISIONS``: what the large products run in
    elementwise_flop_per_s: Column = np.inf  # arithmetic outside of products
    # 1 for Blackwell Ultra: half as much again in fp4, exponentials twice as fast
    is_ultra: Column = 0
    # what its board may draw for every flop/s of a burst, over a B200's
    relative_power: Column = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the training framework does; facts read from its release, not fitted."""

    fusion: Column = 1  # index into ``FUSIONS``: how elementwise operators are run
    attention: Column = 2
    is_launch_heavy: Column = 0  # 1 for the Python-heavy Megatron-DeepSpeed stacks of 2020-2022
    # 1 where Hugging Face's Trainer runs eager kernels: hooks around every layer, and updates,
    # norms and logs that Python starts tensor by tensor
    is_trainer: Column = 0
    # 1 where kernels were not yet tuned for a new GPU (Hopper in early 2023)
    is_untuned: Column = 0
    # overlaps_tp, overlaps_pp, overlaps_dp: 1 where that communication runs behind computing
    overlaps_tp: Column = 0
    overlaps_pp: Column = 0
    overlaps_dp: Column = 1
    gradient_bytes: Column = 4  # per parameter in the gradient's reduction: 2 or 4 [bytes]
    # weight_bytes, optimizer_state_bytes: per parameter as products read it, and per trained
    # parameter of the optimizer, master copy included [bytes]
    weight_bytes: Column = 2.0
    optimizer_state_bytes: Column = 12.0
    # master_bytes: of those, an fp32 copy of the weights [bytes/trained parameter]; adapter_bytes:
    # of ``weight_bytes``, adapters with their gradients and state [bytes/parameter]
    master_bytes: Column = 4.0
    adapter_bytes: Column = 0.0
    # of a layer for a token: what is not kept of the products' inputs: frozen weights have no
    # gradient, and those cast to fewer bits are kept so [bytes/token]
    spared_input_bytes: Column = 0.0
    # share of the moments that the update copies: the second of Adam's two, all parameters at once
    # (``foreach`` of ``torch.optim``); 0 where it is one kernel
    update_share: Column = 0.0
    # what the loss keeps of the logits over what Megatron's does (``LOGIT_SCALES``)
    logit_scale: Column = 1.0
    # logit_share, logit_tokens: of a micro-batch's tokens, those whose logits exist at once: a
    # share of them, and no more than so many
    logit_share: Column = 1.0
    logit_tokens: Column = np.inf
    # 1 where the optimizer's state lies in managed memory: what does not fit is in host memory
    # until the update on the device touches it (``bitsandbytes``' paged optimizers)
    pages_optimizer: Column = 0
    # products of the update itself (Muon's Newton-Schulz iteration) [flop/parameter]
    update_flop: Column = 0.0
    # activations kept over those that the formula counts: what a recording showed
    activation_scale: Column = 1.0
    # of an element between two layers, where no rank has a shard of the weights only [bytes]
    residual_bytes: Column = 2.0
    # 1 where gradients have memory of their own all the time (Megatron's and DeepSpeed's flat
    # buffers, DDP's buckets); 0 where they are freed after the update (``set_to_none``), so that
    # they are not there yet when the loss of the only micro-batch peaks
    keeps_gradients: Column = 1
    # 1 where what recomputation starts from is shared out over the tensor-parallel ranks
    # (DeepSpeed's ``partition_activations``)
    splits_inputs: Column = 0
    # 1 where ZeRO-3 gathers the whole model at once, because nothing wraps its layers
    gathers_whole: Column = 0
    # gradient_shard_bytes, reduce_bucket_elements: what DeepSpeed's ZeRO 1 keeps besides: an fp32
    # gradient that is sharded with the optimizer [bytes/parameter], and a bucket of fp32 elements
    # that gradients are reduced through
    gradient_shard_bytes: Column = 0.0
    reduce_bucket_elements: Column = 0.0
    # whether what offloads its optimizer is DeepSpeed, which takes gradients as they come
    offload_takes_gradients: Column = 0
    # 1 where context parallel ranks take equal shares of causal attention (zigzag order)
    is_ring_balanced: Column = 1
    # 1 where recomputation ends with the last tensor that backward needs, so that a layer's last
    # product is not repeated (PyTorch's non-reentrant checkpoint)
    stops_early: Column = 0
    # overlaps_ep: 1 where exchanges between experts run behind another micro-batch's products;
    # sends_once: 1 where a token crosses the network once for each node that has experts of it
    # (DeepEP, HybridEP), 0 where once for each of its experts; evens_tokens: 1 where tokens are
    # forced evenly over the experts, as benchmarks do
    overlaps_ep: Column = 0
    sends_once: Column = 0
    evens_tokens: Column = 0
    # share of the matrix products that "selective" recomputes: 0 for Megatron (attention only),
    # 0.5 for torchtitan's every second product
    selective_gemm: Column = 0.0
    # 1 where products' operands are scaled and cast to fp8 or fp4 by kernels of their own, each of
    # which reads what it casts; 0 where norms, activations and optimizer write them (Transformer
    # Engine)
    casts_apart: Column = 0
    # adapter_flop, adapter_product_bytes, adapter_sum_bytes: of a layer's adapters for a token,
    # forward (``planners.step.transformer``); 0 without. [flop/token], [bytes/token]
    adapter_flop: Column = 0.0
    adapter_product_bytes: Column = 0.0
    adapter_sum_bytes: Column = 0.0
    # what products with quantised weights take besides (``planners.step.quantised``); 0 without:
    # requantised_bytes: of a layer for a token, forward [bytes/token]; decoded_flop: wherever
    # weights are written out [flop/parameter]; dequantised_bytes, dequantised_forward_bytes: for
    # every parameter of a backward and a forward pass [bytes/parameter]
    requantised_bytes: Column = 0.0
    decoded_flop: Column = 0.0
    dequantised_bytes: Column = 0.0
    dequantised_forward_bytes: Column = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts, fields as in ``nouns.Layout``."""

    dp: Column
    tp: Column
    pp: Column
    micro_batch: Column
    accumulation_steps: Column
    # data-parallel ranks that share one copy of the sharded state: dp, or fewer where ZeRO is
    # hierarchical
    shard_group: Column
    cp: Column = 1
    ep: Column = 1
    etp: Column = 0  # ranks that share one expert's products; 0 means tp
    virtual_stages: Column = 1
    zero_stage: Column = 0
    recompute: Column = 0
    # of a chunk's layers, those that full recomputation repeats, or whose activations are
    # offloaded; 0 for all
    partial_layers: Column = 0
    is_sequence_parallel: Column = 0
    reshards: Column = 1  # 1 where ZeRO-3 frees gathered parameters after the forward pass
    holds_all: Column = 0  # 1 for GPipe: every micro-batch in flight
    # index into ``BACKWARDS``: whether gradients of weights fill what stages would wait
    backward: Column = 0
    offloads_optimizer: Column = 0
    # gradients go to host memory as they come, beside the optimizer that is there
    offloads_gradients: Column = 0
    offloads_parameters: Column = 0
    offloads_activations: Column = 0
    # 1 where every layer is updated in the backward pass as soon as its gradient is there, which
    # is then freed: there are never those of two layers
    updates_in_backward: Column = 0
    # steps between two averagings of the data-parallel ranks: 1 is synchronous SGD
    average_every: Column = 1


def shapes_of(
    transformer: Transformer, *, trained_share: float = 1.0, passed_share: float = 1.0
) -> Shapes:
    """Return a transformer as (scalar) columns."""
    blocks = ("query", "key", "value", "projection", "mixer")
    attention = sum(m.parameters for m in model_matrices(transformer) if m.name in blocks)
    layers, dense = transformer.layers, transformer.dense_layers
    is_mixture = transformer.experts > 1
    beside = transformer.shared_ffn * (layers - dense) + transformer.dense_ffn * dense
    return Shapes(
        layers=transformer.layers,
        hidden=transformer.hidden,
        heads=transformer.heads,
        kv_heads=transformer.kv_heads or transformer.heads,
        ffn=transformer.ffn or 4 * transformer.hidden,
        matrices=3 if transformer.is_gated else 2,
        sequence=transformer.sequence,
        vocabulary=transformer.vocabulary,
        experts=transformer.experts,
        experts_per_token=transformer.experts_per_token,
        trained_share=trained_share,
        passed_share=passed_share,
        query_columns=head_width(transformer) * transformer.heads,
        scored_columns=scored_width(transformer),
        attention=attention / layers,
        routed_share=1 - dense / layers if is_mixture else 1.0,
        dense_ffn=beside / layers if is_mixture else 0.0,
        other_parameters=transformer.other_parameters or 0,
        tables=2 if transformer.has_head and not transformer.has_tied_embeddings else 1,
    )


def domain_devices(machines: Machines) -> Floats:
    """Return the devices that the link inside a node joins, across the nodes of its domain."""
    found: Floats = np.asarray(machines.devices_per_node, float) * machines.domain_machines
    return found


def domain_network_bytes_per_s(machines: Machines) -> Floats:
    """Return what all nodes of a link's domain together send over the network [bytes/s]."""
    found: Floats = np.asarray(machines.network_bytes_per_s, float) * machines.domain_machines
    return found


def query_columns(shapes: Shapes) -> Floats:
    """Return the columns of the queries of all heads."""
    return _known(shapes.query_columns, shapes.hidden)


def scored_columns(shapes: Shapes) -> Floats:
    """Return what a token and one it looks at cost in the mean layer, in columns of queries."""
    return _known(shapes.scored_columns, shapes.hidden)


def _known(known: Column, otherwise: Column) -> Floats:
    return np.where(np.asarray(known) > 0, known, np.asarray(otherwise, float))


def layer_parameters(shapes: Shapes) -> tuple[Column, Column]:
    """Return parameters of the mean layer: what every token meets, and one expert's block."""
    h = np.asarray(shapes.hidden, float)
    kv = np.asarray(shapes.kv_heads, float) / shapes.heads
    attention = _known(shapes.attention, h * h * (2 + 2 * kv))
    expert = h * shapes.ffn * shapes.matrices * shapes.routed_share
    return attention + h * shapes.dense_ffn * shapes.matrices, expert


def met_columns(shapes: Shapes, *, per_token: Column, busiest: Column = 1.0) -> Floats:
    """Return the inner columns of feed-forward blocks that a token meets in the mean layer.

    ``per_token``: experts that it meets; ``busiest``: of whose columns so many times as many.
    """
    routed = np.asarray(shapes.ffn, float) * shapes.routed_share * per_token * busiest
    return np.asarray(routed + shapes.dense_ffn)


def stage_tables(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the embedding and head matrices of the fullest stage."""
    return np.where(np.asarray(layouts.pp) == 1, np.asarray(shapes.tables, float), 1.0)


def held_parameters(shapes: Shapes, layouts: Layouts, *, layers: Column, tables: Column) -> Floats:
    """Return the parameters of so many layers and tables on one device, before sharding."""
    attention, _ = layer_parameters(shapes)
    table = np.asarray(shapes.vocabulary, float) * shapes.hidden
    # What stands in front of the layers lies with the embedding.
    other = np.minimum(np.asarray(tables), 1.0) * shapes.other_parameters
    held = np.asarray(layers) * attention + np.asarray(tables) * table + other
    routed = np.asarray(layers) * layer_expert_parameters(shapes, layouts)
    return np.asarray(held / np.asarray(layouts.tp, float) + routed)


def expert_tensor_ranks(layouts: Layouts) -> Floats:
    """Return the ranks that share one expert's products: tp, unless said otherwise."""
    etp = np.asarray(layouts.etp, float)
    return np.where(etp > 0, etp, np.asarray(layouts.tp, float))


def expert_group(layouts: Layouts) -> Floats:
    """Return the ranks that hold all experts of a layer once: ep x etp.

    Copies of an expert are on ``dp cp tp / (ep etp)`` ranks, as Megatron Core spreads experts over
    all ranks of a stage (``parallel_state.initialize_model_parallel``).
    """
    return np.asarray(np.asarray(layouts.ep, float) * expert_tensor_ranks(layouts))


def layer_expert_parameters(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the parameters of a layer's experts (or of its one block) on one device."""
    _, ffn = layer_parameters(shapes)
    return np.asarray(ffn * np.asarray(shapes.experts, float) / expert_group(layouts))


def device_parameters(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the parameters that the fullest device holds, before any sharding over ranks."""
    layers = np.ceil(np.asarray(shapes.layers) / np.asarray(layouts.pp, float))
    return held_parameters(shapes, layouts, layers=layers, tables=stage_tables(shapes, layouts))


def chunk_layers(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the layers of a chunk of the fullest stage."""
    chunks = np.asarray(layouts.pp, float) * layouts.virtual_stages
    return np.asarray(np.ceil(np.asarray(shapes.layers) / chunks))


def partial_share(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the share of the layers that is recomputed in full, or whose activations move."""
    some = np.asarray(layouts.partial_layers, float)
    return np.where(some > 0, np.minimum(some / chunk_layers(shapes, layouts), 1.0), 1.0)


def passed_layers_share(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the share of the layers of the fullest stage that have a backward pass."""
    share = np.asarray(shapes.passed_share, float) * np.asarray(layouts.pp, float)
    return np.asarray(np.minimum(share, 1.0))


# Deviation of an expert's share of the tokens, over what drawing experts at random would leave of
# one token's: routers under a balancing loss load the fullest of 64 experts, 6 a token, 1.5 to 1.7
# times the mean (Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024, table 2, as two of us
# remember it: nowhere here to look it up).
_EXPERT_SPREAD: Final = 0.08
# Expected largest of 1, 2, 4, ... normal numbers.
_LARGEST: Final = (0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594, 2.827)


def busiest_rank(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the tokens that the busiest expert-parallel rank computes, over the mean.

    All ranks wait for it in every exchange. A rank of several experts evens them out; one that
    has all of them computes its own tokens, whichever experts they meet.
    """
    experts, ep = np.asarray(shapes.experts, float), np.asarray(layouts.ep, float)
    met = np.minimum(np.asarray(shapes.experts_per_token) / experts, 1.0)
    of_rank = _EXPERT_SPREAD * np.sqrt((1 - met) / met / np.maximum(experts / ep, 1.0))
    return np.asarray(1 + of_rank * np.interp(np.log2(ep), range(len(_LARGEST)), _LARGEST))


# Width of activations and of what is sent of them, against 16 bits, by precision of the products
# (``PRECISIONS``): single precision stays so between products.
_WIDTH: Final = (1.0, 1.0, 1.0, 2.0)


def activation_width(precision: Column) -> Floats:
    """Return the width of activations in a precision, over 16 bits."""
    return pick(_WIDTH, precision)


def pick(values: Sequence[Column], code: Column) -> Floats:
    """Return the value that each code names."""
    if np.ndim(code) == 0:  # the values may then be columns themselves
        return np.asarray(values[int(code)], float)
    return np.asarray(values, float)[np.asarray(code, np.int64)]


Record = TypeVar("Record")


def select(record: Record, rows: NDArray[Any] | tuple[slice | NDArray[Any] | None, ...]) -> Record:
    """Return some rows of a record.

    Records of arrays as tables: some rows of one, one put into another, one behind another.

    A record is a frozen dataclass whose fields are arrays with one entry a row, tuples or mappings
    of such arrays, or further records; everything else (names, scalars, None) belongs to all rows.

    ``record``: shape (n, ...); ``rows``: places among the n, in the order wanted; or any other
    index of an array.
    """
    some: Record = _mapped(lambda parts: parts[0][rows], [record])
    return some


def put(record: Record, rows: NDArray[Any], part: Record, *, is_own: bool = False) -> Record:
    """Return a record with ``part`` in place of the rows at ``rows``.

    Raises ValueError if ``part`` has not one row for each of ``rows``. ``is_own``: the arrays are
    the caller's, each of one field only, and are written to; False by default.
    """

    def placed(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        whole = parts[0] if is_own else parts[0].copy()
        whole[rows] = parts[1]
        return whole

    changed: Record = _mapped(placed, [record, part])
    return changed


def concatenate(records: Sequence[Record]) -> Record:
    """Return the rows of all records, one record behind the other.

    Raises ValueError if there is no record.
    """
    if not records:
        raise ValueError("nothing to concatenate")
    whole: Record = _mapped(lambda parts: np.concatenate(list(parts)), records)
    return whole


def _mapped(
    function: Callable[[Sequence[NDArray[Any]]], NDArray[Any]], records: Sequence[Any]
) -> Any:
    first = records[0]
    changes = {
        field.name: _value(function, [getattr(record, field.name) for record in records])
        for field in fields(first)
    }
    return replace(first, **changes)


def _value(
    function: Callable[[Sequence[NDArray[Any]]], NDArray[Any]], values: Sequence[Any]
) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and first.ndim:
        return function(values)
    if isinstance(first, tuple) and all(isinstance(part, np.ndarray) for part in first):
        return tuple(function(parts) for parts in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {key: _value(function, [value[key] for value in values]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        return _mapped(function, values)
    return first
