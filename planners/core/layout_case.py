"""The global constants of the layout model, each named for the term that it stands in.

The defaults are the priors that ``advisor train layout-model`` starts from; where each comes from
stands beside it. Fitted values are handed in by ``advisor``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.arrays import (
    Column,
    Floats,
    Layouts,
    Machines,
    Shapes,
    Software,
    busiest_rank,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutParameters:
    """Constants of ``planners.layouts.time``; dimensionless unless a unit is named."""

    gemm_efficiency: float = 0.90  # matrix products of a layer against one large product
    # gemm_volta, gemm_hopper, gemm_blackwell, gemm_untuned: the same relative to Ampere, and for
    # software older than its GPU
    gemm_volta: float = 0.95
    gemm_hopper: float = 0.97
    # (on a B200 16-bit products 16,384 wide keep up 0.49 of the peak, where bursts reach 0.78:
    # mean over forward and both backward passes, SimuMax's ``b200_bf16_ceperm.json``)
    gemm_blackwell: float = 0.69
    gemm_untuned: float = 0.92
    # The same of CDNA 3, whose fastest product (the catalogue's rate) is one that was tuned for:
    # of a model's shapes hipBLASLt reaches three to four fifths, as cuBLAS of bursts on B200s
    gemm_cdna: float = 0.75
    # fp8_gain, fp4_gain, tf32_gain: rate of products against 16-bit
    fp8_gain: float = 1.9
    fp4_gain: float = 2.6
    tf32_gain: float = 0.5
    # what fp8 and fp4 gain more on Blackwell, where power bounds 16-bit products in training
    # (measured bursts of 1,745 Tflop/s are not kept up). Set with B200 and GB200 runs in sight.
    low_blackwell: float = 1.15
    # how the sustained rate of Blackwell's products follows the power of its board: a B200 keeps
    # up half of its peak, far down its curve of voltages, where power is nearly the clock (1);
    # near the top it is its cube (1/3)
    blackwell_power: float = 0.9
    low_width: float = 150.0  # products in fp8 and fp4 lose 1 + low_width tp/h besides
    # and with every halving of the bits their rate grows by so much of ln h: casts, scales and the
    # ends of a product are a smaller part of wider ones
    low_wide: float = 0.10
    cast_bytes: float = 2.0  # traffic per operand entry cast to fp8 or fp4 [bytes]
    # the same where kernels of their own cast, over that: reading for the largest, reading and
    # writing to cast, a second copy with columns in the place of rows (5 and 3 bytes, beside 2
    # and a second that is written at once), of which PyTorch's compiler fuses some
    cast_apart: float = 2.5
    # saturation_tokens, saturation_tp: products lose 1 + tokens/T and 1 + saturation_tp tp/h
    saturation_tokens: float = 55.0
    saturation_tp: float = 45.0
    misaligned_gemm: float = 1.29  # slowdown where h/tp is no multiple of 64
    # grouped_efficiency, expert_width: products of the experts, many in one kernel, run at that
    # share of a large product's rate, and lose 1 + expert_width over the width of a rank's share
    # of an expert besides: loops over it are short, and their ends are as long
    grouped_efficiency: float = 0.85
    expert_width: float = 300.0
    # how much of a product's unfilled tiles and waves is lost: 0 nothing, 1 all of it
    wave_exponent: float = 0.2
    # unfused_efficiency, misaligned_heads: unfused attention: rate of its products, slowdown where
    # the head's width is no multiple of 8
    unfused_efficiency: float = 0.76
    misaligned_heads: float = 3.65
    # score_bytes, eager_score_bytes: its memory traffic per attention score: one kernel for scale,
    # mask and softmax, or one each. Counted [bytes]
    score_bytes: float = 11.0
    eager_score_bytes: float = 21.0
    # flash1_ampere, flash1_hopper, flash2_ampere, flash2_hopper, flash3_hopper: share of the
    # measured product rate that (causal) flash attention reaches
    flash1_ampere: float = 0.36
    flash1_hopper: float = 0.28
    flash2_ampere: float = 0.62
    flash2_hopper: float = 0.45
    flash3_hopper: float = 0.66
    # flash_blackwell, ultra_attention: the same on Blackwell, from what longer sequences add to
    # NeMo's steps on B200 (``nemo_longseq``, 8k to 16k: 977 Tflop/s, forward and backward), and
    # what Blackwell Ultra's exponentials, twice as fast, gain of it (a guess between 1 and 2)
    flash_blackwell: float = 0.56
    ultra_attention: float = 1.35
    # flash_cdna, flash_cdna_tuned: the same on CDNA 3, of PyTorch (AOTriton: a guess between flash
    # 1 and 2 on Hopper), and of AMD's kernels in assembly (as flash 2 on Ampere)
    flash_cdna: float = 0.33
    flash_cdna_tuned: float = 0.60
    # eager_bytes, lean_bytes, fused_bytes, compiled_bytes: elementwise traffic of a layer's
    # forward, per token and hidden unit; eager as counted for transformers' Llama: two norms in
    # fp32 (72), rotation (25), residuals (12) [bytes]
    eager_bytes: float = 109.0
    lean_bytes: float = 32.0
    fused_bytes: float = 17.0
    compiled_bytes: float = 14.0
    # the same per token and inner unit of the feed-forward block [bytes]
    activation_bytes: float = 9.3
    elementwise_backward: float = 1.7  # backward over forward traffic
    # permuted: what sorting tokens by expert moves, over what is counted (``permuted_bytes``):
    # maps, probabilities and padding are not
    permuted: float = 2.0
    # logit_bytes, head_share: traffic per token and vocabulary entry [bytes]; share of the head
    # that counts where a pipeline's last stage has it
    logit_bytes: float = 16.5
    head_share: float = 0.46
    # launch_heavy_s, launch_tp_s, launch_light_s, launch_eager_s: host time per layer and pass:
    # base and what 8-way tensor parallelism adds; stacks of today; Hugging Face's Trainer with
    # eager kernels (about 45 forward in its Llama, at the 10-20 us that PyTorch takes for one, and
    # hooks around each layer) [s]
    launch_heavy_s: float = 0.87e-3
    launch_tp_s: float = 0.275e-3
    launch_light_s: float = 0.30e-3
    launch_eager_s: float = 0.80e-3
    # the same that experts add to a layer and pass: router, maps, exchanges; the host waits for
    # the number of tokens that every expert gets [s]
    launch_expert_s: float = 2.0e-3
    # host time of a send and receive between stages in the heavy stacks [s]
    launch_send_s: float = 0.3e-3
    # tp_efficiency, tp_latency_s, tp_exposed: share of the intra-node link that an all-reduce
    # reaches; per doubling of the ranks [s]; what is left of it in stacks that overlap
    tp_efficiency: float = 0.74
    tp_latency_s: float = 23e-6
    tp_exposed: float = 0.55
    # share of its links that an exchange between experts reaches
    ep_efficiency: float = 0.6
    # of a message that passes a host's memory: pieces are copied in before others are copied out
    # (set with AMP's trials on T4s in sight: what 24 layers take longer in eight micro-batches
    # than in one of the same samples) [s]
    host_message_s: float = 0.6e-3
    # pp_efficiency, pp_latency_s, pp_exposed: constants of sends between stages
    pp_efficiency: float = 1.0
    pp_latency_s: float = 48e-6
    pp_exposed: float = 0.47
    # dp_intra_efficiency, dp_network_efficiency, dp_overlap, fsdp_overlap, fsdp_exposed: rings
    # over NVLink and over the network; how much of a backward pass hides the reduction; how much
    # computing hides gathering; what of it is never hidden
    dp_intra_efficiency: float = 0.70
    dp_network_efficiency: float = 0.78
    # of a step of a ring between nodes: NCCL on 2 to 128 of them (``collective_busbw_ratio.csv``,
    # as fitted in ``links.collectives``) [s]
    dp_latency_s: float = 9.3e-6
    # of these what no computing hides: the first layer's gather and the last one's reduction, and
    # ranks that come late to others
    latency_exposed: float = 0.2
    dp_overlap: float = 0.73
    fsdp_overlap: float = 0.80
    fsdp_exposed: float = 0.4
    # the same of Megatron-FSDP, which gathers into buffers that stay and are known to the network
    # (``fsdp_double_buffer``, ``nccl_ub``)
    fsdp_exposed_core: float = 0.15
    cp_exposed: float = 0.2  # share of the ring attention's exchange that is not hidden
    # optimizer_bytes, step_s, step_eager_s: traffic per parameter updated [bytes]; fixed per step,
    # and the same where every tensor's update, norm and logging is started from Python (Hugging
    # Face's trainer) [s]
    optimizer_bytes: float = 23.0
    step_s: float = 0.010
    step_eager_s: float = 0.060
    straggler: float = 0.0076  # slowdown per doubling of the nodes
    # offload_overlap, host_update_bytes_per_s: hidden share of what moves to the host; rate at
    # which host CPUs update the optimizer's bytes
    offload_overlap: float = 0.5
    host_update_bytes_per_s: float = 20e9


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Times of a model's units on one device.

    Times of one layer on one device by micro-batch, by another law than that of its shape.
    """

    micro_batches: Floats  # (n_batches,); they rise [samples]
    # forward_s, backward_s: (n_batches, n_units); times of one micro-batch [s]
    forward_s: Floats
    backward_s: Floats
    optimizer_s: float  # the update of all units
    log_sd: float  # one standard deviation of ln(error) of the whole step, calibrated
    # the part of forward and backward that does not grow with the batch, of each unit [s]
    launch_s: tuple[float, float] = (0.0, 0.0)

    def at(self, micro_batch: ArrayLike) -> tuple[Floats, Floats]:
        """Return forward and backward of every unit, shape (..., n_units), between the points.

        Beyond them the last line goes on; below the first, what is not launching shrinks with the
        micro-batch.
        """
        b = np.asarray(micro_batch, float)[..., None]
        return (
            self._line(b, self.forward_s, self.launch_s[0]),
            self._line(b, self.backward_s, self.launch_s[1]),
        )

    def _line(self, b: Floats, values: Floats, launch_s: float) -> Floats:
        known = self.micro_batches
        below = launch_s + (values[0] - launch_s) * b / known[0]
        if known.size == 1:
            return np.asarray(below)
        i = np.clip(np.searchsorted(known, b, side="right") - 1, 0, known.size - 2)
        share, i = (b - known[i]) / (known[i + 1] - known[i]), i[..., 0]
        inside = values[i] * (1 - share) + values[i + 1] * share
        return np.where(b < known[0], below, inside)


# Share of the datasheet's bandwidth that streaming kernels reach (measured, A100 and H100).
STREAM_SHARE: Final = 0.856


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutConditions:
    """Machines, the software on them, and the constants of the layout model."""

    machines: Machines
    software: Software = field(default_factory=Software)
    parameters: LayoutParameters = field(default_factory=LayoutParameters)
    # times of a block by micro-batch, where another law than that of the shapes gives them
    block_table: UnitTimes | None = None
    # what measured steps of the job say of the model's times on the device: a factor
    device_factor: Column = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCase(LayoutConditions):
    """Columns of a question to the model; all of them broadcast.

    One question to the layout model: which transformers, how laid out, on what, run by what.
    """

    shapes: Shapes
    layouts: Layouts

    @property
    def tokens(self) -> Floats:
        """Tokens of a micro-batch on one rank: b s / cp."""
        samples = self.layouts.micro_batch * np.asarray(self.shapes.sequence, float)
        return np.asarray(samples / self.layouts.cp)

    @property
    def busiest(self) -> Floats:
        """Tokens of the busiest rank of experts, over the mean: 1 where they are forced even."""
        busiest = busiest_rank(self.shapes, self.layouts)
        return np.where(np.asarray(self.software.evens_tokens, bool), 1.0, busiest)

    @property
    def stream_bytes_per_s(self) -> Floats:
        """Memory bandwidth that elementwise kernels reach [bytes/s]."""
        return STREAM_SHARE * np.asarray(self.machines.memory_bytes_per_s, float)
