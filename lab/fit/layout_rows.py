"""Published runs of transformer layouts (``lab.data.LAYOUTS``) as columns.

What a table does not state is filled here and nowhere else; every rule is a fact about the release
that made the run, or marked as a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Accelerator, Catalogue
from advisor.errors import CatalogueError, ModelError, UsageError
from advisor.lab.data import LAYOUTS
from advisor.planners.core.arrays import (
    LOGIT_SCALES,
    Floats,
    Layouts,
    Machines,
    Shapes,
    Software,
    pick,
)

# Names in the tables that the catalogue does not know by themselves.
_GPUS: Final = {
    "A100": "A100-SXM4-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A800-80GB": "A800-SXM4-80GB",
    "H100-80GB-SXM": "H100-SXM5-80GB",
    "NVIDIA H100-SXM-80GB": "H100-SXM5-80GB",
    "NVIDIA H100-SXM5-80GB": "H100-SXM5-80GB",
    "H100-96GB-HBM2e-500W": "H100-SXM5-96GB",
    "H200-141GB": "H200-SXM-141GB",
    "GH-96": "GH200-96GB",
    "GB200": "GB200-186GB",
    "GB300": "GB300-279GB",
    "B200": "B200-SXM-180GB",
    "B300": "B300-SXM-270GB",
    "V100": "V100-SXM2-16GB",
    "V100-16GB": "V100-SXM2-16GB",
    "V100-32GB": "V100-SXM2-32GB",
}
# What the owners of these machines know of their boards: a limit of their power. [W]
_POWER_LIMITS: Final = {"H100-96GB-HBM2e-500W": 500.0}
# torchtitan's row-wise fp8 of early 2025 ran no faster than bf16.
_PRECISION: Final = {"fp8": 1, "fp8-cs": 1, "mxfp8": 1, "nvfp4": 2, "fp32": 3}
_DEEPSPEED_BUCKET: Final = 5e8  # elements; ``reduce_bucket_size`` of DeepSpeed's defaults
# Columns without which a run is no transformer with a layout.
STATED: Final = ("layers", "hidden", "tp", "pp", "dp", "sequence", "global_batch")
_RECOMPUTE: Final = {"none": 0, "selective": 1, "full": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRows:
    """Measured runs as columns."""

    row_id: NDArray[np.str_]
    table: NDArray[np.str_]
    gpu: NDArray[np.str_]
    model: NDArray[np.str_]
    measured_s: Floats  # step time [s]
    devices: NDArray[np.int64]
    global_batch: NDArray[np.int64]
    precision: NDArray[np.str_]
    # where not, ``layouts`` has a guess
    is_recompute_stated: NDArray[np.bool_]
    is_micro_batch_stated: NDArray[np.bool_]
    is_zero_stated: NDArray[np.bool_]
    is_chunks_stated: NDArray[np.bool_]
    # the nearest of ``planners.core.setup.STACKS``, what a user of that software would name
    stack: NDArray[np.str_]
    is_tuned: NDArray[np.bool_]  # fine-tuning, which its user knows whatever the software
    shapes: Shapes
    layouts: Layouts
    machines: Machines
    software: Software
    # successful runs of the file that are not transformers with a stated layout and step time, on
    # one kind of known accelerator
    left_out: int = 0

    def __len__(self) -> int:
        return self.measured_s.size

    def take(self, index: NDArray[Any]) -> LayoutRows:
        kept: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                kept[f.name] = value[index]
            else:
                kept[f.name] = value if isinstance(value, int) else take_columns(value, index)
        return LayoutRows(**kept)

    def without_framework_buffers(self) -> LayoutRows:
        """Return the rows as asked where nothing is known of the framework's buffers."""
        bare = replace(self.software, gradient_shard_bytes=0.0, reduce_bucket_elements=0.0)
        return replace(self, software=bare)


Columns = TypeVar("Columns", Shapes, Layouts, Machines, Software)


def take_columns(columns: Columns, index: NDArray[Any]) -> Columns:
    """Return the rows of a record of columns that an index selects; scalars stay."""
    taken = {
        f.name: value[index]
        if isinstance(value := getattr(columns, f.name), np.ndarray)
        else value
        for f in fields(columns)
    }
    return type(columns)(**taken)


def read(data: Path) -> LayoutRows:
    """Read the transformer runs that state their dimensions and layout.

    Left out: failed runs, quality "low", mixed clusters, models without dimensions (CNNs, BERT
    reports) and rows without a step time or a layout. Raises ModelError if the file cannot be read
    or has no such row.
    """
    frame = LAYOUTS.read("runs", data)
    known = frame[list(STATED)].notna().all(axis=1)
    usable = (frame.status == "ok") & (frame.quality != "low") & (frame.is_mixed == 0)
    usable &= frame.arch.isin(["gpt", "llama"]) & known & frame.step_s.notna()
    usable &= frame.accelerator.map(lambda name: known_part(str(name)) is not None)
    left_out = int((frame.status == "ok").sum() - usable.sum())
    frame = frame[usable].reset_index(drop=True)
    if frame.empty:
        raise ModelError(f"{data} holds no transformer run with a step time and a layout")
    return _columns(frame, left_out)


def from_frame(frame: Any) -> tuple[Any, LayoutRows]:
    """Turn rows of the file into columns, those with a known accelerator; returns both alike."""
    known = frame[frame.accelerator.map(lambda name: known_part(str(name)) is not None)]
    known = known.reset_index(drop=True)
    return known, _columns(known, len(frame) - len(known))


@cache
def _catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


@cache
def known_part(name: str) -> Accelerator | None:
    """Return an accelerator of the tables as the catalogue has it; None if unknown."""
    try:
        found = _catalogue().canonical_gpu(_GPUS.get(name, name))
        known = _catalogue().accelerators[found].laid_out()
    except (CatalogueError, UsageError):
        return None
    return known.limited(_POWER_LIMITS[name]) if name in _POWER_LIMITS else known


def _columns(frame: Any, left_out: int) -> LayoutRows:
    text = {c: frame[c].astype(object).fillna("").astype(str).to_numpy(str) for c in _TEXT}
    number = {c: frame[c].to_numpy(float) for c in _NUMBER}
    layouts = _layouts(text, number)
    return LayoutRows(
        row_id=text["row_id"],
        table=text["table"],
        gpu=text["accelerator"],
        model=text["model"],
        measured_s=number["step_s"],
        devices=number["accelerators"].astype(int),
        global_batch=number["global_batch"].astype(int),
        precision=text["precision"],
        is_recompute_stated=np.array([r in _RECOMPUTE for r in text["recompute"]]),
        is_micro_batch_stated=~np.isnan(number["micro_batch"]),
        is_zero_stated=~np.isnan(number["zero_stage"]),
        is_chunks_stated=~np.isnan(number["vpp"]),
        stack=_stacks(text),
        is_tuned=_has(text["framework"], "VectorLM"),
        shapes=_shapes(text, number),
        layouts=layouts,
        machines=_machines(text, number),
        software=_software(text),
        left_out=left_out,
    )


# fmt: off
_TEXT: Final = (
    "row_id", "table", "model", "arch", "accelerator", "precision", "framework", "recompute",
    "notes", "intra_link", "source",
)
_NUMBER: Final = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence", "global_batch",
    "micro_batch", "tp", "pp", "dp", "cp", "ep", "vpp", "zero_stage", "seq_parallel",
    "accelerators", "accelerators_per_node", "network_gbit_per_s_per_accelerator", "step_s",
)
# fmt: on
Text = dict[str, NDArray[np.str_]]
Number = dict[str, Floats]


def _filled(column: Floats, value: Any) -> Floats:
    return np.where(np.isnan(column), value, column)


def _has(column: NDArray[np.str_], *words: str) -> NDArray[np.bool_]:
    return np.array([any(w in cell for w in words) for cell in column])


def _shapes(text: Text, number: Number) -> Shapes:
    heads = _filled(number["heads"], _borrowed_heads(text, number))
    return Shapes(
        layers=number["layers"],
        hidden=number["hidden"],
        heads=heads,
        kv_heads=_filled(number["kv_heads"], heads),
        ffn=_filled(number["ffn"], 4 * number["hidden"]),
        matrices=np.where(text["arch"] == "llama", 3, 2),
        sequence=number["sequence"],
        vocabulary=_filled(number["vocabulary"], 50257),
        trained_share=np.where(_is_adapter(text), 0.0, 1.0),
        # GPT models tie the embedding to the head; the Llama family does not.
        tables=np.where(text["arch"] == "llama", 2, 1),
    )


def _is_adapter(text: Text) -> NDArray[np.bool_]:
    return np.asarray(
        (_has(text["notes"], "LoRA") & ~_has(text["framework"], "VectorLM"))
        | _has(text["framework"], "lora")
        | _has(text["model"], "lora")
    )


def _borrowed_heads(text: Text, number: Number) -> Floats:
    """Return heads where none are stated: the most frequent of that table and width, or h/128."""
    key = list(zip(text["table"], number["hidden"], strict=True))
    stated: dict[tuple[str, float], list[float]] = {}
    for k, heads in zip(key, number["heads"], strict=True):
        if not np.isnan(heads):
            stated.setdefault(k, []).append(heads)
    return np.array(
        [
            max(sorted(set(found)), key=found.count)
            if (found := stated.get(k, []))
            else max(k[1] // 128, 1)
            for k in key
        ]
    )


def _layouts(text: Text, number: Number) -> Layouts:
    dp, cp = number["dp"], _filled(number["cp"], 1)
    # Where tp x pp x dp is not the number of GPUs, the GPUs and the batch are what was counted.
    pp = number["accelerators"] / (number["tp"] * dp * cp)
    pp = np.where(pp == np.floor(pp), np.maximum(pp, 1), number["pp"])
    micro = _filled(number["micro_batch"], _borrowed_micro_batch(text, number))
    steps = np.maximum(np.round(number["global_batch"] / (dp * micro)), 1)
    zero = _filled(number["zero_stage"], 0)
    is_foundry = text["table"] == "llm_foundry_mpt"
    # Composer's SHARD_GRAD_OP keeps gathered parameters: ZeRO-3 that does not reshard.
    keeps = is_foundry & (zero == 2)
    recompute = np.array([_RECOMPUTE.get(r, -1) for r in text["recompute"]])
    # Unstated: full where a launch script of its time had it on (AMP's Megatron 1.1.5) or where
    # nothing else fits (8B in 80 GB); none elsewhere (full would cost the vendors' rows a third).
    full = _has(text["framework"], "VectorLM", "DeepSpeed 3D")
    recompute = np.where(recompute >= 0, recompute, np.where(full, 2, 0))
    # SC'21 interleaved; two chunks is a guess. NeMo's recipes put one layer into a chunk.
    chunks = np.where((text["table"] == "megatron_sc21") & (pp > 1), 2.0, 1.0)
    chunks = np.where(_is_nemo(text), np.maximum(number["layers"] // pp, 1), chunks)
    v = np.where(pp > 1, _filled(number["vpp"], chunks), 1)
    group = dp * cp
    for width in (4, 8):
        group = np.where(_has(text["notes"], f"zero1={width}"), width, group)
    # Megatron's sequence parallelism came with selective recomputation and is on in NeMo.
    modern = _is_nemo(text) | _has(text["framework"], "torchtitan")
    parallel = _filled(
        number["seq_parallel"],
        (modern | ((text["table"] == "megatron_seqsel") & (recompute == 1))).astype(float),
    )
    return Layouts(
        dp=dp,
        tp=number["tp"],
        pp=pp,
        cp=cp,
        ep=_filled(number["ep"], 1),
        micro_batch=micro,
        accumulation_steps=steps,
        virtual_stages=v,
        zero_stage=np.where(keeps, 3, zero),
        recompute=recompute,
        is_sequence_parallel=parallel,
        shard_group=group,
        reshards=~keeps,
        offloads_optimizer=_has(text["notes"], "opt offload=Y", "full cpu offload")
        | _has(text["framework"], "Full Offload"),
        offloads_parameters=_has(text["notes"], "param offload=Y", "full cpu offload"),
    )


def _borrowed_micro_batch(text: Text, number: Number) -> Floats:
    """Return a guess where none is stated: of the same model and layout elsewhere, else 1.

    Without accumulation (a report of the global batch only) it is the share of a rank.
    """
    key = list(zip(*(number[c] for c in ("layers", "hidden", "tp", "pp")), strict=True))
    stated = {k: m for k, m in zip(key, number["micro_batch"], strict=True) if not np.isnan(m)}
    share = number["global_batch"] / number["dp"]
    is_report = text["table"] == "dlperf_gpt"
    guess = np.array([stated.get(k, 1.0) for k in key])
    # Stages need several micro-batches: a rank's whole share at once would be all bubble.
    return np.where(is_report & (number["pp"] == 1), share, np.minimum(guess, share))


def _is_nemo(text: Text) -> NDArray[np.bool_]:
    named = _has(text["framework"], "NeMo", "Megatron-Bridge")
    return np.asarray(named | (text["table"] == "megatron_core_h100"))


def _machines(text: Text, number: Number) -> Machines:
    known = [p for name in text["accelerator"] if (p := known_part(str(name))) is not None]
    rate = np.array([a.flop_per_s for a in known])
    generation = np.array([a.kernels for a in known])
    intra = np.array([a.peer_bytes_per_s for a in known])
    # Jean Zay's A100 nodes: four links of 25 GB/s a GPU.
    intra = np.where(_has(text["intra_link"], "NVLink3 4 links"), 100e9, intra)
    # AMP's T4s: nvbandwidth measured 6.27 GB/s to the host on this type and no direct transfers
    # (datasets/catalogue/links.cc-by-sa-4.0.csv), so that a message crosses it twice.
    intra = np.where(_has(text["notes"], "g4dn.12xlarge"), 6.27e9 / 2, intra)
    per_node = number["accelerators_per_node"]
    is_rack = _has(text["intra_link"], "NVL72")
    nominal = _filled(
        number["network_gbit_per_s_per_accelerator"],
        np.array([25, 200, 400, 400, 400])[generation],
    )
    network = nominal * number["accelerators_per_node"] / 8 * 1e9
    # The authors' own all-reduce on that cluster: 44-135 Gb/s a node, geometric mean 77.
    network = np.where(_has(text["notes"], "44-135 Gb/s per node"), 77e9 / 8, network)
    return Machines(
        flop_per_s=rate,
        memory_bytes_per_s=np.array([a.memory_bytes_per_s for a in known]),
        memory_bytes=np.array([a.memory_bytes for a in known]),
        intra_bytes_per_s=intra,
        network_bytes_per_s=network,
        devices_per_node=np.minimum(per_node, number["accelerators"]),
        domain_machines=np.where(is_rack, np.maximum(72 // per_node, 1), 1),
        generation=generation,
        precision=np.array([_PRECISION.get(p, 0) for p in text["precision"]]),
        is_ultra=np.array([a.is_ultra for a in known], dtype=np.int64),
        relative_power=np.array([a.relative_power for a in known]),
    )


def _stacks(text: Text) -> NDArray[np.str_]:
    """Return the stack that each row's user would name, in its release where it is known.

    torchtitan's tables are of its README and blogs of 2024 and early 2025, llm-foundry's of July
    2023.
    """
    framework, table = text["framework"], text["table"]
    old = table == "megatron_jan2021"
    for one in ("megatron_sc21", "megatron_seqsel", "dlperf_gpt", "sailor_validation"):
        old = old | (table == one)
    named = (
        (_is_nemo(text) | (table == "mlperf_v4_llm"), "nemo"),
        (_has(framework, "torchtitan"), "torchtitan@0.0.2"),
        (table == "llm_foundry_mpt", "llm-foundry@0.2.0"),
        (_has(framework, "VectorLM", "InternEvo"), "fsdp"),
        (_has(framework, "HF + Deepspeed"), "deepspeed"),
        (old | (framework == "Megatron"), "megatron-lm"),
    )
    return np.select(
        [is_so for is_so, _ in named], [name for _, name in named], "megatron-deepspeed"
    )


def _titan_logits(text: Text) -> Floats:
    """Return what torchtitan's loss keeps of the logits over Megatron's eight bytes.

    It drops the 16-bit logits before the backward pass; log-probabilities and two gradients in
    fp32 are left: 12 bytes. Until 2025 ``--training.compile`` left the loss eager ("compiling loss
    function causes CUDA errors"); compiled, 16-bit logits and their gradient are all.
    """
    is_loss_compiled = _has(text["framework"], "compile") & _has(text["source"], "_2025")
    return np.where(is_loss_compiled, 4.0, 12.0) / 8.0


# Both call flash-attention's cross entropy, whose gradient takes the place of the 16-bit logits
# (llm-foundry: ``loss_fn: fused_crossentropy``; InternEvo: ``FlashGPTLMLoss`` with
# ``inplace_backward``). [bytes a logit over Megatron's eight]
_FUSED_LOSS: Final = 2.0 / 8.0
# Megatron of version 1, which DeepSpeed's pipelines of 2020 and 2021 are around, casts, copies and
# exponentiates ("Copy so the input remains unchanged", ``mpu/cross_entropy.py``).
_COPIED_LOSS: Final = 12.0 / 8.0


def _software(text: Text) -> Software:
    framework, table = text["framework"], text["table"]
    nemo = _is_nemo(text)
    titan = _has(framework, "torchtitan")
    foundry = table == "llm_foundry_mpt"
    interne = _has(framework, "InternEvo")
    vector = _has(framework, "VectorLM")
    huggingface = _has(framework, "HF + Deepspeed")
    # No Apex kernels for the GH200's processor: Sailor's Megatron falls back to PyTorch's.
    sailor = table == "sailor_validation"
    eager = vector | huggingface | interne | sailor | (titan & ~_has(framework, "compile"))
    compiled = titan & _has(framework, "compile")
    hopper = _has(text["accelerator"], "H100", "H200", "GB", "B200", "B300")
    flash = np.select([foundry, interne | vector | titan, nemo], [1, 2, 3], 0)
    modern = nemo | titan | foundry | interne | vector
    deepspeed = _has(framework, "DeepSpeed")
    bf16_accumulates = (table == "bigscience_a100") & (text["precision"] == "bf16")
    fusion = np.select([eager, compiled, foundry], [0, 2, 3], 1)
    is_first_trial = (table == "amp_trials") | (table == "bigscience_v100")
    copies_logits = is_first_trial & (deepspeed | _has(framework, "Deepspeed 3D"))
    return Software(
        fusion=fusion,
        logit_scale=np.select(
            [foundry | interne, titan, copies_logits],
            [_FUSED_LOSS, _titan_logits(text), _COPIED_LOSS],
            pick(LOGIT_SCALES, fusion),
        ),
        keeps_gradients=~(titan | foundry | vector),
        splits_inputs=_has(framework, "Deepspeed ZeRO"),
        attention=flash,
        is_launch_heavy=~modern,
        is_untuned=foundry & hopper,
        casts_apart=titan,  # Composer casts by Transformer Engine, as NeMo does
        overlaps_tp=nemo | _has(text["notes"], "async TP"),
        overlaps_pp=nemo,
        overlaps_dp=modern | _has(framework, "OneFlow"),
        # torchtitan reduces in fp32 (``mixed_precision_reduce``), NeMo's recipes in 16 bits
        # (``grad_reduce_in_fp32=False``).
        gradient_bytes=np.where(bf16_accumulates | titan, 4, 2),
        # InternEvo's step flattens the gradients (2), casts them to fp32 (4), and AdamW's grouped
        # kernels keep a square root of the second moments (4).
        # VectorLM casts model and optimizer to bf16: 8B in full trains on one card of 80 GB.
        optimizer_state_bytes=np.select([interne, vector], [22.0, 4.0], 12.0),
        gradient_shard_bytes=np.where(deepspeed, 4.0, 0.0),
        reduce_bucket_elements=np.where(deepspeed, _DEEPSPEED_BUCKET, 0.0),
        offload_takes_gradients=np.where(deepspeed, 1, 0),
        is_ring_balanced=~titan,
        stops_early=foundry | vector | titan,
        selective_gemm=np.where(titan, 0.5, 0.0),
    )
