"""Times of a transformer's units on one device, as columns: its blocks, all alike, and its head.

| here           | papers | meaning                                                              |
|----------------|--------|----------------------------------------------------------------------|
| ``tokens``     | T      | tokens of a micro-batch on one rank: b s / cp                        |
| ``w``          | W      | parameters that a token meets in a layer                             |
| ``rate``       | -      | sustained flop/s of the layer's matrix products                      |
| ``memory``     | -      | memory bandwidth in use, 0.856 of the datasheet [bytes/s]            |

Forward of a layer = products + attention + elementwise. Products: 2TW/tp at ``rate``, slowed at
few tokens and narrow shards, plus their operands' memory traffic. Attention: either unfused
(products on scores plus traffic of the s x s scores) or flash (half the products where causal, at
the kernel's own rate). Elementwise: bytes counted per token, by how the framework fuses.
Sources: Narayanan et al. (SC'21) for the counts; Korthikanti et al. (2022) for sequence
parallelism and selective recomputation; Dao (2022, 2023) for the flash kernels' rates. What
adapters and quantised weights add is counted by ``adapter_work``, at the same rates; what
training needs, whatever a machine makes of it, by ``model_flop_per_token``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    Floats,
    LayoutCase,
    TrainingSetup,
    Transformer,
    UnitTimes,
    activation_width,
    expert_group,
    expert_tensor_ranks,
    held_parameters,
    layer_parameters,
    met_columns,
    model_matrices,
    partial_share,
    passed_layers_share,
    pick,
    query_columns,
    scored_columns,
    scored_width,
)
from advisor.planners.step.ledger import Tally

# Output tile of large 16-bit products, and processors (SMs) of the generation's large part.
_TILE: Final = (128, 256)
_PROCESSORS: Final = (80.0, 108.0, 132.0, 148.0, 304.0)
_BLACKWELL: Final = 3
_CDNA: Final = 4
_FLASH_3: Final = 3  # index into ``ATTENTIONS``
_FP4: Final = 2  # index into ``PRECISIONS``
_WIDTH: Final = 8192  # of the models that the gains of fp8 and fp4 are of
# What a cast to NVFP4 moves over one to fp8, counted: a tensor has a scale of its own beside those
# of its blocks (NVIDIA, "Pretraining LLMs with NVFP4", 2025), so that it is read for its largest
# entry before it is read to be cast: 2 + 2 + two halves of a byte, where fp8 writes two.
_CAST_TWICE: Final = 5.0 / 2.0
_ZERO_3: Final = 3
# 15 dense Pflop/s in fp4 beside 10 of Blackwell, the same in wider formats (datasheets).
_ULTRA_FP4: Final = 1.5
# The embedding's look-up and the last normalisation beside the blocks and the head. [s]
_NOTHING_S: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Times of a transformer's units for one micro-batch: of a block, and of the head [s].

    ``streamed_s`` is what both passes wait for memory with no product beside: elementwise
    operators, scaled sums of adapters, quantised weights written out; ``launch_s`` is the host's
    time to start a block's kernels; ``weights_s`` the part of backward that no other block waits
    for: gradients of weights.
    """

    streamed_s: Floats
    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    launch_s: Floats
    head_s: Floats
    weights_s: Floats

    @property
    def computed_s(self) -> Floats:
        """All passes of a block on the device [s]."""
        return self.forward_s + self.backward_s + self.recompute_s

    def busy_s(self, inside_s: Floats | float = 0.0) -> Floats:
        """Return a block's passes, and what its kernels take longer to start [s].

        Launches run ahead of computing and of communication alike (``inside_s``): whichever is
        longer rules.
        """
        computed_s = self.computed_s
        return computed_s + np.maximum(self.launch_s - computed_s - inside_s, 0.0)

    def by_unit(
        self, is_block: NDArray[np.bool_], layers: float, inside_s: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """Return forward and backward of every unit, shape (..., n_units) [s].

        The blocks share the time of so many layers alike, and the last unit, where it is none, has
        the head's; what else there is takes next to nothing. A third of what is waited for, and of
        the head, is forward.
        """
        waiting = (self.busy_s(inside_s) - self.computed_s) / 3
        blocks = layers / max(int(np.count_nonzero(is_block)), 1) * is_block
        heads = np.where(np.arange(is_block.size) == is_block.size - 1, ~is_block, False)

        def units(block_s: Floats, head_s: Floats) -> Floats:
            found = np.asarray(block_s)[..., None] * blocks + np.asarray(head_s)[..., None] * heads
            return np.asarray(found + _NOTHING_S * ~is_block)

        return (
            units(self.forward_s + waiting, self.head_s / 3),
            units(self.backward_s + self.recompute_s + 2 * waiting, 2 * self.head_s / 3),
        )


def product_rate(case: LayoutCase) -> Floats:
    """Return the rate of a layer's large products [flop/s]."""
    machines, software, parameters = case.machines, case.software, case.parameters
    by_generation = (parameters.gemm_volta, 1.0, parameters.gemm_hopper,
                     parameters.gemm_blackwell, parameters.gemm_cdna)  # fmt: skip
    by_precision = (1.0, parameters.fp8_gain, parameters.fp4_gain, parameters.tf32_gain)
    is_ultra_fp4 = (np.asarray(machines.precision) == _FP4) & (np.asarray(machines.is_ultra) > 0)
    ultra = np.where(is_ultra_fp4, _ULTRA_FP4, 1.0)
    untuned = np.where(np.asarray(software.is_untuned), parameters.gemm_untuned, 1.0)
    # Blackwell's 16-bit products are bound by power in training, which narrower ones need less of.
    is_cool = (np.asarray(machines.generation) == _BLACKWELL) & (
        np.asarray(machines.precision) > 0
    )
    cool = np.where(is_cool, parameters.low_blackwell, 1.0)
    # How much of a burst is kept up is the board's power, where that binds.
    power = np.asarray(machines.relative_power, float) ** parameters.blackwell_power
    return np.asarray(
        machines.flop_per_s
        * parameters.gemm_efficiency
        * pick(by_generation, machines.generation)
        * pick(by_precision, machines.precision)
        * untuned
        * cool
        * ultra
        * power
    )


def products_s(case: LayoutCase) -> Floats:
    """Return the forward time of a layer's matrix products [s]."""
    shapes, layouts = case.shapes, case.layouts
    machines, parameters = case.machines, case.parameters
    attention, ffn = layer_parameters(shapes)
    tp, h = np.asarray(layouts.tp), np.asarray(shapes.hidden)
    tokens = case.tokens
    q, k = query_columns(shapes), shapes.experts_per_token
    met = attention * (1 + parameters.saturation_tokens / tokens)
    of_experts = ffn * np.asarray(k) * case.busiest * _of_experts(case)
    slow = 1 + parameters.saturation_tp * tp / h
    # Casts and scales cost a product's edges, so that low precision gains more from wide ones.
    narrow = pick((0.0, parameters.low_width, parameters.low_width, 0.0), machines.precision)
    slow = slow * (1 + narrow * tp / h)
    wide = parameters.low_wide * pick((0.0, 1.0, 2.0, 0.0), machines.precision)
    slow = slow * (h / _WIDTH) ** -wide
    slow = slow * np.where(h // tp % 64 != 0, parameters.misaligned_gemm, 1.0)
    slow = slow * _quantised(case)
    kv = np.asarray(shapes.kv_heads) / shapes.heads
    whole = h * (2 + np.asarray(shapes.matrices))
    inner = met_columns(shapes, per_token=1)
    split = (q * (2 + 2 * kv) + np.asarray(shapes.matrices) * inner) / tp
    # Weights of all experts on this rank are read, whichever tokens they meet.
    resident = held_parameters(shapes, layouts, layers=1, tables=0)
    traffic = 2 * (resident + tokens * (whole + split))
    is_apart = np.asarray(case.software.casts_apart) > 0
    cast = parameters.cast_bytes * pick((0.0, 1.0, _CAST_TWICE, 0.0), machines.precision)
    cast = cast * np.where(is_apart, parameters.cast_apart, 1.0)
    # Transformer Engine casts weights for the first micro-batch of a step and keeps them
    # (``is_first_microbatch``), but for those that are gathered anew.
    again = is_apart | (np.asarray(layouts.zero_stage) == _ZERO_3)
    weights = resident / np.where(again, 1, layouts.accumulation_steps)
    inputs = tokens * (h + q + h * k + met_columns(shapes, per_token=k)) / tp
    bytes_ = activation_width(machines.precision) * traffic + cast * (inputs + weights)
    memory = case.stream_bytes_per_s
    met = met + of_experts
    return np.asarray(2 * tokens * met / tp / product_rate(case) * slow + bytes_ / memory)


def summed_s(case: LayoutCase) -> Floats:
    """Return what adding a micro-batch's gradients of a layer to the step's takes [s].

    The sum is read and written, where a product's traffic has one writing as wide as its operands
    (Megatron's ``gradient_accumulation_fusion``; FSDP makes what it reduces in fp32 from them).
    """
    held = held_parameters(case.shapes, case.layouts, layers=1, tables=0)
    # Weights are read and gradients written in 16 bits, twice that in single precision.
    written = 2 * activation_width(case.machines.precision)
    moved = np.maximum(2 * np.asarray(case.software.gradient_bytes, float) - written, 0.0)
    return np.asarray(held * moved / case.stream_bytes_per_s)


def _of_experts(case: LayoutCase) -> Floats:
    """Return what the products of a layer's experts lose, over large products of the layer.

    A rank's kernel computes all its experts' products: each over the tokens that meet the expert
    from all ranks that it serves, as wide as the rank's share of the expert. A layer with one
    block loses only by its tokens.
    """
    shapes, layouts, parameters = case.shapes, case.layouts, case.parameters
    etp = expert_tensor_ranks(layouts)
    met = case.tokens * shapes.experts_per_token * (etp / layouts.tp) * np.asarray(layouts.ep)
    few = 1 + parameters.saturation_tokens * np.asarray(shapes.experts) / met
    low = pick((0.0, parameters.low_width, parameters.low_width, 0.0), case.machines.precision)
    width = np.asarray(shapes.ffn, float) / etp
    grouped = (1 + parameters.expert_width / width) * (1 + low / width)
    is_mixture = np.asarray(shapes.experts) > 1
    return np.asarray(few * np.where(is_mixture, grouped / parameters.grouped_efficiency, 1.0))


def _quantised(case: LayoutCase) -> Floats:
    """Return the slowdown of a layer's products by tiles and waves that are not full.

    A product's output is cut into tiles, which the processors compute in waves; the last wave is
    as long as the others however few tiles it has. ``wave_exponent`` is how much of that the
    library's choice of tiles leaves.
    """
    shapes, tp, tokens = case.shapes, np.asarray(case.layouts.tp), case.tokens
    h, kv = np.asarray(shapes.hidden), np.asarray(shapes.kv_heads) / shapes.heads
    f, matrices = np.asarray(shapes.ffn), np.asarray(shapes.matrices)
    q = query_columns(shapes)
    # (output columns, flop per token over 2): query-key-value, projection, up (and gate), down.
    products = (
        (q * (1 + 2 * kv) / tp, h * q * (1 + 2 * kv)),
        (h, q * h),
        (f * (matrices - 1) / tp, h * f * (matrices - 1)),
        (h, h * f),
    )
    processors = pick(_PROCESSORS, case.machines.generation)
    whole = sum(flop for _, flop in products)
    slowed = np.zeros(())
    for columns, flop in products:
        tiles = np.ceil(tokens / _TILE[0]) * np.ceil(columns / _TILE[1])
        full = tokens * columns / (_TILE[0] * _TILE[1])
        waves = np.ceil(tiles / processors) * processors
        slowed = slowed + flop * (waves / full) ** case.parameters.wave_exponent
    return np.asarray(slowed / whole)


def attention_s(case: LayoutCase) -> Floats:
    """Return the forward time of the attention between queries and keys [s]."""
    shapes, layouts, machines = case.shapes, case.layouts, case.machines
    software, parameters = case.software, case.parameters
    tokens = case.tokens
    flop = 4 * tokens * shapes.sequence * (scored_columns(shapes) / layouts.tp)
    width = query_columns(shapes) / shapes.heads
    misaligned = np.where(width % 8 != 0, parameters.misaligned_heads, 1.0)
    scores = tokens * shapes.sequence * (np.asarray(shapes.heads) / layouts.tp)
    memory = case.stream_bytes_per_s
    peak = np.asarray(machines.flop_per_s)
    per_score = np.where(
        np.asarray(software.fusion) == 0, parameters.eager_score_bytes, parameters.score_bytes
    )
    unfused = (
        flop * misaligned / (peak * parameters.unfused_efficiency)
        + activation_width(machines.precision) * per_score * scores / memory
    )
    code, generation = software.attention, np.asarray(machines.generation)
    p = parameters
    share = np.where(
        generation >= 2,
        pick((1.0, p.flash1_hopper, p.flash2_hopper, p.flash3_hopper), code),
        pick((1.0, p.flash1_ampere, p.flash2_ampere, p.flash2_ampere), code),
    )
    # cuDNN's kernels on Blackwell, whose exponentials grew less than its products.
    blackwell = parameters.flash_blackwell * np.where(
        np.asarray(machines.is_ultra) > 0, parameters.ultra_attention, 1.0
    )
    is_tuned = (np.asarray(code) == _FLASH_3) & (generation == _BLACKWELL)
    share = np.where(is_tuned, blackwell, share)
    # Megatron's on CDNA are AMD's own kernels (Transformer Engine for ROCm), others' PyTorch's.
    cdna = pick((p.flash_cdna, p.flash_cdna_tuned, p.flash_cdna, p.flash_cdna), software.fusion)
    share = np.where(generation == _CDNA, cdna, share)
    # Without zigzag order the last rank of a ring sees 2 cp / (cp + 1) of the mean.
    cp = np.asarray(layouts.cp, float)
    uneven = np.where(np.asarray(software.is_ring_balanced), 1.0, 2 * cp / (cp + 1))
    flash = 0.5 * flop * uneven / (peak * share)
    return np.where(np.asarray(code) == 0, unfused, flash)


def elementwise_s(case: LayoutCase) -> Floats:
    """Return the forward time of normalisation, dropout, residuals and activations [s]."""
    shapes, layouts, machines = case.shapes, case.layouts, case.machines
    software, parameters = case.software, case.parameters
    tokens = case.tokens
    by_fusion = (
        parameters.eager_bytes,
        parameters.fused_bytes,
        parameters.compiled_bytes,
        parameters.lean_bytes,
    )
    ranks = np.where(np.asarray(layouts.is_sequence_parallel), layouts.tp, 1)
    wide = pick(by_fusion, software.fusion) * shapes.hidden / ranks
    inner = met_columns(shapes, per_token=shapes.experts_per_token, busiest=case.busiest)
    inner = parameters.activation_bytes * inner * (np.asarray(shapes.matrices) - 1) / layouts.tp
    moved = wide + inner + permuted_bytes(case) / ranks
    memory = case.stream_bytes_per_s
    return np.asarray(activation_width(machines.precision) * tokens * moved / memory)


def permuted_bytes(case: LayoutCase) -> Floats:
    """Return what a mixture of experts moves of a token to sort it by expert, and back [bytes].

    Counted in Megatron Core's all-to-all dispatcher: a token is read once and written for each of
    its experts, and the reverse; ranks of an expert-parallel group sort what they received by
    their own experts, and the reverse.
    """
    shapes, k = case.shapes, np.asarray(case.shapes.experts_per_token, float)
    again = np.where(expert_group(case.layouts) > case.layouts.tp, 4 * k, 0.0)
    moved = 2 * np.asarray(shapes.hidden, float) * (2 * (1 + k) + again)
    moved = moved * shapes.routed_share * case.parameters.permuted
    return np.where(np.asarray(shapes.experts) > 1, moved, 0.0)


def adapters_s(case: LayoutCase) -> tuple[Floats, Floats]:
    """Return the forward times of the adapters' products and of their scaled sums [s].

    Products of a small rank wait for memory; counted like the layer's own, both terms add.
    """
    software, tp, tokens = case.software, np.asarray(case.layouts.tp, float), case.tokens
    width = activation_width(case.machines.precision)
    flop = tokens * np.asarray(software.adapter_flop, float) / tp
    moved = tokens * np.asarray(software.adapter_product_bytes, float) * width / tp
    summed = tokens * np.asarray(software.adapter_sum_bytes, float) * width / tp
    memory = case.stream_bytes_per_s
    return np.asarray(flop / product_rate(case) + moved / memory), np.asarray(summed / memory)


def quantised_s(case: LayoutCase) -> tuple[Floats, Floats]:
    """Return what a layer's quantised weights take besides products, forward and backward [s].

    Decoding hides behind the writing, or the writing behind it.
    """
    layouts, software = case.layouts, case.software
    held = held_parameters(case.shapes, layouts, layers=1, tables=0)
    memory = case.stream_bytes_per_s
    decoded = held * np.asarray(software.decoded_flop) / case.machines.elementwise_flop_per_s
    forward, backward = (
        np.maximum(held * np.asarray(moved, float) / memory, np.where(moved, decoded, 0.0))
        for moved in (software.dequantised_forward_bytes, software.dequantised_bytes)
    )
    activations = case.tokens * np.asarray(software.requantised_bytes, float) / layouts.tp
    return np.asarray(forward + activations / memory), np.asarray(backward)


def block_times(case: LayoutCase) -> BlockTimes:
    """Return the times of a transformer's units on one device, calibrated [s]."""
    bare = _shaped(case) if case.block_table is None else _tabulated(case, case.block_table)
    return BlockTimes(
        **{f.name: getattr(bare, f.name) * case.device_factor for f in fields(BlockTimes)}
    )


def _shaped(case: LayoutCase) -> BlockTimes:
    """Return the units' times by their shapes."""
    shapes, layouts = case.shapes, case.layouts
    software, parameters = case.software, case.parameters
    products = products_s(case)
    attention = attention_s(case)
    elementwise = elementwise_s(case)
    (adapters, sums), (unpacked, unpacked_again) = adapters_s(case), quantised_s(case)
    forward = products + attention + elementwise + adapters + sums + unpacked
    of_attention = np.where(np.asarray(software.attention) == 0, 2.0, 2.5)
    # By input, and by weight where the layers' own weights are trained.
    is_trained = np.asarray(shapes.trained_share, float) > 0
    of_weights = np.where(is_trained, products + summed_s(case), 0.0)
    passed = passed_layers_share(shapes, layouts)
    backward = passed * (
        products
        + of_weights
        + of_attention * attention
        + parameters.elementwise_backward * elementwise
        + 2.0 * adapters
        + sums
        + unpacked_again
    )
    recompute = np.asarray(layouts.recompute)
    selective = _selective_s(case, products, attention, elementwise)
    weights, ffn = layer_parameters(shapes)
    last = ffn / shapes.matrices / (weights + ffn)
    full = forward - np.where(np.asarray(software.stops_early), last * products, 0.0)
    full = full * partial_share(shapes, layouts)
    again = passed * np.where(recompute == 2, full, np.where(recompute == 1, selective, 0.0))
    streamed = (1.0 + passed * parameters.elementwise_backward) * elementwise
    streamed = streamed + (1.0 + passed) * sums + unpacked + passed * unpacked_again
    return BlockTimes(
        streamed_s=streamed,
        forward_s=forward,
        backward_s=backward,
        recompute_s=again,
        launch_s=_launch_s(case),
        head_s=_head_s(case),
        weights_s=passed * of_weights,
    )


def _selective_s(
    case: LayoutCase, products: Floats, attention: Floats, elementwise: Floats
) -> Floats:
    """Return what selective recomputation does again of a layer's forward pass [s]."""
    kept = np.asarray(case.software.selective_gemm)
    return np.where(kept > 0, kept * products + elementwise, attention)


def _tabulated(case: LayoutCase, table: UnitTimes) -> BlockTimes:
    """Return a block's times from a table of them, which has launches and a share of the head.

    Ranks of a tensor-parallel group share the layer's work, less efficiently as shards narrow
    (``saturation_tp``); each starts all its kernels. Context-parallel ranks have that share of the
    micro-batch.
    """
    shapes, layouts, parameters = case.shapes, case.layouts, case.parameters
    passes = table.at(layouts.micro_batch / np.asarray(layouts.cp, float))
    (forward, backward), launch = (one[..., 0] for one in passes), table.launch_s
    tp, h = np.asarray(layouts.tp, float), np.asarray(shapes.hidden, float)
    narrow = (1 + parameters.saturation_tp * tp / h) / (1 + parameters.saturation_tp / h) / tp
    forward = (forward - launch[0]) * narrow + launch[0]
    backward = (backward - launch[1]) * narrow + launch[1]
    recompute, selective = np.asarray(layouts.recompute), np.zeros(())
    if np.any(recompute == 1):
        parts = products_s(case), attention_s(case), elementwise_s(case)
        selective = _selective_s(case, *parts) / sum(parts)
    again = np.where(recompute == 2, forward, np.where(recompute == 1, selective * forward, 0.0))
    again = again * partial_share(shapes, layouts) * passed_layers_share(shapes, layouts)
    nothing = np.zeros(())
    return BlockTimes(
        streamed_s=np.zeros_like(forward),
        forward_s=forward,
        backward_s=backward,
        recompute_s=again,
        launch_s=nothing,
        head_s=nothing,
        weights_s=backward / 2,
    )


def _launch_s(case: LayoutCase) -> Floats:
    """Return the host's time to launch one layer's kernels, forward and backward [s]."""
    layouts, software, parameters = case.layouts, case.software, case.parameters
    passes = 3 + (np.asarray(layouts.recompute) == 2)
    heavy = parameters.launch_heavy_s + parameters.launch_tp_s * (np.asarray(layouts.tp) - 1) / 7
    is_trainer = np.asarray(software.is_trainer) > 0
    light = np.where(is_trainer, parameters.launch_eager_s, parameters.launch_light_s)
    per_pass = np.where(np.asarray(software.is_launch_heavy), heavy, light)
    is_mixture = np.asarray(case.shapes.experts) > 1
    # Half of it is the exchange between ranks: counts, splits, and sorting again (a guess).
    half = np.where(expert_group(layouts) > layouts.tp, 1.0, 0.5)
    routed = parameters.launch_expert_s * case.shapes.routed_share * half
    return np.asarray(passes * (per_pass + np.where(is_mixture, routed, 0.0)))


def _head_s(case: LayoutCase) -> Floats:
    """Return forward and backward of the output head and loss for one micro-batch [s]."""
    shapes, layouts, parameters = case.shapes, case.layouts, case.parameters
    tokens = case.tokens
    logits = tokens * shapes.vocabulary / layouts.tp
    # The head stays in 16 bits where the layers run in fp8.
    rate = product_rate(replace(case, machines=replace(case.machines, precision=0)))
    memory = case.stream_bytes_per_s
    # A frozen head has no weight gradient.
    flop = np.where(np.asarray(shapes.trained_share) > 0, 6, 4) * logits * shapes.hidden
    whole = flop / rate + parameters.logit_bytes * logits / memory
    return np.asarray(whole * np.where(np.asarray(layouts.pp) > 1, parameters.head_share, 1.0))


def adapter_work(setup: TrainingSetup, model: Transformer) -> dict[str, float]:
    """Return what adapters and quantised weights add to one layer, by columns of ``Software``.

    Work that low-rank adapters and quantised weights add to a transformer layer.

    | here                   | papers | meaning                                             |
    |------------------------|--------|-----------------------------------------------------|
    | ``rank``               | r      | of the adapter: y = W x + s B (A x), A of r x inner |
    | ``inner``, ``columns`` | k, d   | of the adapted matrix                               |

    Forward, per token: 2 r (k + d) flop, and traffic over x, A x twice and B A x; backward as much
    for each of two gradients (of input and of weight). The scaled sum streams over y: as the
    ledger of operators counts them. Source: E. Hu et al., "LoRA", 2021, section 4.1.

    ``requantised_bytes`` is what LLM.int8 moves over inputs and outputs of the frozen products.
    Nothing without adapters.

    Examples
    --------
    >>> model = Transformer(layers=1, hidden=1024, heads=8, sequence=128, vocabulary=0)
    >>> setup = TrainingSetup(adapter_rank=8, adapter_targets="query-value")
    >>> adapter_work(setup, model)["adapter_flop"] == 2 * 8 * 2 * (1024 + 1024)
    True
    """
    if setup.adapter_rank is None:
        return {}
    tally = Tally.of("bf16", setup)
    made = [
        operator
        for m in model_matrices(model)
        for operator in tally.product(
            m.name, m.met / model.layers, m.inner, m.columns, count=m.count
        )
        if operator.phase == "forward"
    ]
    products = [o for o in made if o.name == "adapter" and o.kind == "matmul"]
    return {
        "adapter_flop": sum(o.flop for o in products),
        "adapter_product_bytes": sum(o.bytes - o.fixed_bytes for o in products),
        "adapter_sum_bytes": sum(
            o.bytes for o in made if o.name == "adapter" and o.kind != "matmul"
        ),
        "requantised_bytes": sum(o.bytes - o.fixed_bytes for o in made if o.name == "quantised"),
    }


def model_flop_per_token(model: Transformer, setup: TrainingSetup) -> float:
    """Return the operations that a token of training needs [flop].

    Operations that a transformer's training needs, whatever a machine makes of them.

    A token meets every weight once forward, and twice backward (gradient of the input and of the
    weight); attention multiplies it with all tokens of its sample, twice, in each layer:

    .. math:: F = 6 N + 12 l s a w

    with N the weights of products (output head included, look-up tables not), l layers, s tokens
    of a sample and a heads of width w. Attention counts in full though a causal mask hides half,
    as both sources do; recomputation does not count. Weights that are frozen have no gradient of
    their own, and layers below the first trained one no backward pass.

    Sources: A. Chowdhery et al., PaLM, 2022, appendix B; D. Narayanan et al., SC'21, section 5.1.

    Examples
    --------
    >>> tiny_llama = Transformer(layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632,
    ...                          sequence=2048, vocabulary=32000, is_gated=True)
    >>> round(model_flop_per_token(tiny_llama, TrainingSetup()) / 1e9, 1)
    7.3
    """
    met = sum(m.count * m.met * m.inner * m.columns for m in model_matrices(model))
    scores = 2.0 * model.layers * model.sequence * scored_width(model)
    passed = 1.0 - setup.frozen_layers(model) / model.layers
    weights = 0.0 if setup.has_adapters else passed
    layers = met * (1 + passed + weights) + scores * (1 + 2 * passed)
    is_frozen = setup.has_adapters or (setup.frozen_fraction > 0 and model.has_tied_embeddings)
    head = model.vocabulary * model.hidden if model.has_head else 0
    adapters = 3.0 * setup.adapter_parameters(model)
    return 2.0 * (layers + head * (2 if is_frozen else 3) + adapters)
