"""Columns of the layout model: transformers, machines, software and layouts as arrays.

Every field is a number or an array; the fields of all four records broadcast against one another.
A table of measured runs is columns of one length; a search is a few axes, and what depends on two
of them is computed on two of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.transformer import Transformer

Column = Floats | NDArray[np.int64] | NDArray[np.bool_] | float | int

# Codes of what has a name elsewhere.
GENERATIONS: Final = ("volta", "ampere", "hopper", "blackwell")
PRECISIONS: Final = ("16-bit", "fp8", "fp4", "tf32")
FUSIONS: Final = ("eager", "fused", "compiled", "lean")
# Bytes a logit at the peak of the loss, over Megatron's 8: its vocabulary-parallel loss keeps them
# in 16 bits (2), exponentials in fp32 (4) that the gradient overwrites, and that in 16 bits (2).
# PyTorch's keeps logits (2), log-probabilities (4) and two fp32 gradients (8); compiled, the last
# two are one. Counted, by ``FUSIONS``.
LOGIT_SCALES: Final = (14 / 8, 1.0, 10 / 8, 14 / 8)
ATTENTIONS: Final = ("unfused", "flash1", "flash2", "flash3")
RECOMPUTES: Final = ("none", "selective", "full")
Offload = Literal["optimizer", "parameters", "activations"]
OFFLOADS: Final[tuple[Offload, ...]] = ("optimizer", "parameters", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Transformers, symbols as in ``nouns.Transformer``.

    Attributes
    ----------
    layers, hidden, heads, kv_heads, ffn, sequence, vocabulary : Column
        [l, h, a, -, f, s, V]
    matrices : Column
        Feed-forward matrices: 2, or 3 where gated.
    trained_share : Column
        Share of the parameters that is trained: 0 where only low-rank adapters are, so that no
        weight gradients are computed, reduced or kept.
    passed_share : Column
        Share of the layers that have a backward pass: the others are frozen, from the input on.
    tables : Column
        Embedding and head matrices of the whole model: 2, or 1 where they are tied or it has no
        head. Of several stages the first and the last hold one each.
    """

    layers: Column
    hidden: Column
    heads: Column
    kv_heads: Column
    ffn: Column
    matrices: Column
    sequence: Column
    vocabulary: Column
    experts: Column = 1
    experts_per_token: Column = 1
    trained_share: Column = 1.0
    passed_share: Column = 1.0
    tables: Column = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Devices and links.

    Attributes
    ----------
    flop_per_s : Column
        Measured rate of large 16-bit matrix products on one device. [flop/s]
    intra_bytes_per_s : Column
        Between devices of a node, per device and direction.
    network_bytes_per_s : Column
        Network interface of a node, per direction.
    domain_machines : Column
        Nodes among which the intra-node link joins all devices: 1, or 18 in an NVL72 rack.
    host_bytes_per_s : Column
        Between a device and host memory, per direction.
    kept_free_bytes : Column
        Of one device's memory, what a layout may not fill.
    generation : Column
        Index into ``GENERATIONS``: which tuned kernels there are.
    precision : Column
        Index into ``PRECISIONS``: what the large products run in.
    """

    flop_per_s: Column
    memory_bytes_per_s: Column
    memory_bytes: Column
    intra_bytes_per_s: Column
    network_bytes_per_s: Column
    devices_per_node: Column
    domain_machines: Column = 1
    host_bytes_per_s: Column = 12e9
    host_memory_bytes: Column = np.inf
    kept_free_bytes: Column = 0.0
    generation: Column = 1
    precision: Column = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the training framework does; facts read from its release, not fitted.

    Attributes
    ----------
    fusion : Column
        Index into ``FUSIONS``: how elementwise operators are run.
    attention : Column
        Index into ``ATTENTIONS``.
    is_launch_heavy : Column
        1 for the Python-heavy Megatron-DeepSpeed stacks of 2020-2022.
    is_trainer : Column
        1 where Hugging Face's Trainer runs eager kernels: hooks around every layer, and updates,
        norms and logs that Python starts tensor by tensor.
    is_untuned : Column
        1 where kernels were not yet tuned for a new GPU (Hopper in early 2023).
    overlaps_tp, overlaps_pp, overlaps_dp : Column
        1 where that communication runs behind computing.
    gradient_bytes : Column
        Per parameter in the gradient's reduction: 2 or 4. [bytes]
    weight_bytes, optimizer_state_bytes : Column
        Per parameter as products read it, and per trained parameter of the optimizer, master copy
        included. [bytes]
    logit_scale : Column
        What the loss keeps of the logits over what Megatron's does (``LOGIT_SCALES``).
    activation_scale : Column
        Activations kept over those that the formula counts: what a recording showed.
    gradient_shard_bytes, reduce_bucket_elements : Column
        What DeepSpeed's ZeRO 1 keeps besides: an fp32 gradient that is sharded with the optimizer
        [bytes/parameter], and a bucket of fp32 elements that gradients are reduced through.
    is_ring_balanced : Column
        1 where context parallel ranks take equal shares of causal attention (zigzag order).
    stops_early : Column
        1 where recomputation ends with the last tensor that backward needs, so that a layer's last
        product is not repeated (PyTorch's non-reentrant checkpoint).
    selective_gemm : Column
        Share of the matrix products that "selective" recomputes: 0 for Megatron (attention only),
        0.5 for torchtitan's every second product.
    adapter_flop, adapter_product_bytes, adapter_sum_bytes : Column
        Of a layer's adapters for a token, forward (``step.adapters``); 0 without.
        [flop/token], [bytes/token]
    dequantised_bytes : Column
        Moved for every quantised parameter in every pass; 0 without. [bytes]
    """

    fusion: Column = 1
    attention: Column = 2
    is_launch_heavy: Column = 0
    is_trainer: Column = 0
    is_untuned: Column = 0
    overlaps_tp: Column = 0
    overlaps_pp: Column = 0
    overlaps_dp: Column = 1
    gradient_bytes: Column = 4
    weight_bytes: Column = 2.0
    optimizer_state_bytes: Column = 12.0
    logit_scale: Column = 1.0
    activation_scale: Column = 1.0
    gradient_shard_bytes: Column = 0.0
    reduce_bucket_elements: Column = 0.0
    is_ring_balanced: Column = 1
    stops_early: Column = 0
    selective_gemm: Column = 0.0
    adapter_flop: Column = 0.0
    adapter_product_bytes: Column = 0.0
    adapter_sum_bytes: Column = 0.0
    dequantised_bytes: Column = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts, fields as in ``nouns.Layout``.

    Attributes
    ----------
    recompute : Column
        Index into ``RECOMPUTES``.
    shard_group : Column
        Data-parallel ranks that share one copy of the sharded state: dp, or fewer where ZeRO is
        hierarchical.
    reshards : Column
        1 where ZeRO-3 frees gathered parameters after the forward pass.
    holds_all : Column
        1 for GPipe: every micro-batch in flight.
    average_every : Column
        Steps between two averagings of the data-parallel ranks: 1 is synchronous SGD.
    """

    dp: Column
    tp: Column
    pp: Column
    micro_batch: Column
    accumulation_steps: Column
    shard_group: Column
    cp: Column = 1
    ep: Column = 1
    virtual_stages: Column = 1
    zero_stage: Column = 0
    recompute: Column = 0
    is_sequence_parallel: Column = 0
    reshards: Column = 1
    holds_all: Column = 0
    offloads_optimizer: Column = 0
    offloads_parameters: Column = 0
    offloads_activations: Column = 0
    average_every: Column = 1


def shapes_of(
    transformer: Transformer, *, trained_share: float = 1.0, passed_share: float = 1.0
) -> Shapes:
    """Return a transformer as (scalar) columns."""
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


def layer_parameters(shapes: Shapes) -> tuple[Column, Column]:
    """Return parameters of one layer: attention, and one expert's feed-forward block."""
    h = np.asarray(shapes.hidden, float)
    kv = np.asarray(shapes.kv_heads, float) / shapes.heads
    return h * h * (2 + 2 * kv), h * shapes.ffn * shapes.matrices


def stage_tables(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the embedding and head matrices of the fullest stage."""
    return np.where(np.asarray(layouts.pp) == 1, np.asarray(shapes.tables, float), 1.0)


def held_parameters(shapes: Shapes, layouts: Layouts, *, layers: Column, tables: Column) -> Floats:
    """Return the parameters of so many layers and tables on one device, before sharding."""
    attention, ffn = layer_parameters(shapes)
    one_layer = attention + ffn * np.asarray(shapes.experts) / layouts.ep
    table = np.asarray(shapes.vocabulary, float) * shapes.hidden
    held = np.asarray(layers) * one_layer + np.asarray(tables) * table
    return np.asarray(held / np.asarray(layouts.tp, float))


def device_parameters(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the parameters that the fullest device holds, before any sharding over ranks."""
    layers = np.ceil(np.asarray(shapes.layers) / np.asarray(layouts.pp, float))
    return held_parameters(shapes, layouts, layers=layers, tables=stage_tables(shapes, layouts))


def passed_layers_share(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return the share of the layers of the fullest stage that have a backward pass."""
    share = np.asarray(shapes.passed_share, float) * np.asarray(layouts.pp, float)
    return np.asarray(np.minimum(share, 1.0))


def pick(values: Sequence[Column], code: Column) -> Floats:
    """Return the value that each code names."""
    if np.ndim(code) == 0:  # the values may then be columns themselves
        return np.asarray(values[int(code)], float)
    return np.asarray(values, float)[np.asarray(code, np.int64)]
