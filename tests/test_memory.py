"""The memory model against published anchors, a scan, and the laws of sharding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data as packaged
from advisor.estimate.case import constants
from advisor.estimate.knowledge.layout_model import software_of
from advisor.estimate.ways.data_parallel import kept_free_bytes
from advisor.lab.fit.memory import read_memory
from advisor.planners.core import Layer, Operators, Work
from advisor.planners.core.arrays import Layouts, Shapes, Software, shapes_of
from advisor.planners.core.errors import GIB
from advisor.planners.core.setup import TrainingSetup, Transformer
from advisor.planners.memory.recorded_steps import (
    MemoryParameters,
    largest_micro_batch,
    training_memory_bytes,
)
from advisor.planners.memory.transformers import (
    MemoryConstants,
    StageAsked,
    memory_bytes,
    model_state,
    token_activation_bytes,
)
from advisor.planners.step.describe import transformer_work

PARAMETERS = MemoryParameters(
    context_bytes=1.5 * GIB,
    alone_context_bytes=1.0 * GIB,
    process_bytes=0.5 * GIB,
    slack=1.1,
    cpu_slack=1.05,
    logit_bytes=6.0,
    bucket_fraction=1.0,
    log_sd=0.1,
)
CNN = Work(
    operators=Operators.of(()),
    micro_batch=8,
    parameters=25_000_000,
    trainable_parameters=25_000_000,
    parameter_bytes=1e8,
    optimizer_state_bytes=2e8,
    saved_bytes_per_sample=9e7,
    input_bytes_per_sample=6e5,
    layers=tuple(Layer(name=str(i), parameters=500_000) for i in range(50)),
)
GPT = Work(
    operators=Operators.of(()),
    micro_batch=1,
    parameters=1_300_000_000,
    trainable_parameters=1_300_000_000,
    parameter_bytes=2.6e9,
    optimizer_state_bytes=15.6e9,
    saved_bytes_per_sample=0.0,
    precision="bf16",
    transformer=Transformer(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50_304),
)


def needed(work: Work, micro_batch: Any, **changes: Any) -> np.ndarray:
    return training_memory_bytes(work, micro_batch, parameters=PARAMETERS, **changes)


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "keeps_scores", "per_hidden"),
    [
        (1, False, False, 34.0),  # Korthikanti et al., table 2: sbh 34 without the quadratic term
        (8, False, False, 10.0 + 24.0 / 8),
        (8, True, False, 34.0 / 8),
        (8, False, True, 10.0 + 24.0 / 8 + 5 * 96 * 2048 / (12288 * 8)),
    ],
)
def test_layer_activations_are_the_published_formula(
    tp: int, sequence_parallel: bool, keeps_scores: bool, per_hidden: float
) -> None:
    gpt3 = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    kept = token_activation_bytes(
        shapes_of(gpt3), tp=tp, is_sequence_parallel=sequence_parallel, keeps_scores=keeps_scores
    )
    assert float(kept) == pytest.approx(12288 * per_hidden)


@given(p=st.floats(1, 1e12), g=st.floats(1, 1e12), o=st.floats(1, 1e12), d=st.integers(1, 4096))
def test_states_fall_with_zero_stage_and_workers(p: float, g: float, o: float, d: int) -> None:
    stages = model_state(p, g, o, dp=d, zero_stage=np.arange(4)).device_bytes
    assert np.all(np.diff(stages) <= 0)
    twice = model_state(p, g, o, dp=2 * d, zero_stage=np.arange(4))
    assert np.all(twice.device_bytes <= stages)


@pytest.mark.parametrize("work", [CNN, GPT])
def test_memory_grows_with_the_batch(work: Work) -> None:
    assert np.all(np.diff(needed(work, np.arange(1, 64))) > 0)


@pytest.mark.parametrize("work", [CNN, GPT])
def test_memory_falls_with_zero_stage(work: Work) -> None:
    by_stage = needed(work, 4, dp=16, zero_stage=np.arange(4))
    assert np.all(np.diff(by_stage) <= 0)


@pytest.mark.parametrize("work", [CNN, GPT])
def test_memory_falls_with_workers_once_sharded(work: Work) -> None:
    by_workers = needed(work, 4, dp=np.array([2, 4, 8, 64]), zero_stage=3)
    assert np.all(np.diff(by_workers) < 0)


@pytest.mark.parametrize("work", [CNN, GPT])
@pytest.mark.parametrize("part", ["optimizer", "parameters"])
def test_offload_takes_less(work: Work, part: str) -> None:
    assert needed(work, 8, offload={part}) < needed(work, 8)


@given(
    memory=st.floats(1.0, 200.0),
    dp=st.integers(1, 64),
    zero_stage=st.integers(0, 3),
    is_cpu=st.booleans(),
    transformer=st.booleans(),
)
def test_largest_micro_batch_is_the_last_of_a_scan(
    memory: float, dp: int, zero_stage: int, is_cpu: bool, transformer: bool
) -> None:
    work = GPT if transformer else CNN
    settings: dict[str, Any] = {
        "dp": dp,
        "zero_stage": zero_stage,
        "is_cpu": is_cpu,
        "parameters": PARAMETERS,
    }
    batches = np.arange(1, 3001)
    fitting = batches[training_memory_bytes(work, batches, **settings) <= memory * GIB]
    oracle = int(fitting.max()) if fitting.size else 0
    assert int(largest_micro_batch(work, memory * GIB, largest=3000, **settings)) == oracle


def test_margin_keeps_memory_free() -> None:
    tight = largest_micro_batch(CNN, 16 * GIB, parameters=PARAMETERS)
    roomy = largest_micro_batch(CNN, 16 * GIB, margin_fraction=0.5, parameters=PARAMETERS)
    assert 0 < roomy < tight
    assert needed(CNN, roomy) <= 8 * GIB


def test_cpu_counts_the_process_instead_of_a_context() -> None:
    gap = needed(CNN, 1, is_cpu=np.array([False, True]), is_alone=False)
    tensors = (gap[0] - PARAMETERS.context_bytes) / PARAMETERS.slack
    assert gap[1] == pytest.approx(PARAMETERS.process_bytes + PARAMETERS.cpu_slack * tensors)


def test_autocast_keeps_a_low_precision_copy() -> None:
    half = replace(CNN, precision="bf16")
    extra = needed(half, 1, is_alone=False) - needed(CNN, 1, is_alone=False)
    assert float(extra) == pytest.approx(PARAMETERS.slack * 2 * CNN.parameters)


def test_low_precision_copies_are_sharded_but_for_two_layers() -> None:
    # fp32 weights, gradients and two moments in 16 bytes over 8 ranks; bf16 copies of two layers.
    adam = replace(GPT, parameter_bytes=5.2e9, optimizer_state_bytes=10.4e9, precision="bf16")
    used = needed(adam, 1, dp=8, zero_stage=3) - needed(replace(adam, precision="fp32"), 1, dp=8)
    cut = replace(adam, transformer=None, saved_bytes_per_sample=1.0, layers=CNN.layers)
    states = needed(cut, 1, dp=8, zero_stage=3) - PARAMETERS.context_bytes - 1.1
    assert float(states) == pytest.approx(1.1 * 1.3e9 * (16 / 8 + 2 * 2 / 50), rel=1e-6)
    assert float(used) < 0


@pytest.mark.parametrize("work", [CNN, GPT])
def test_fragments_of_a_device_alone_are_of_what_comes_and_goes(work: Work) -> None:
    alone, shared = needed(work, 4), needed(work, 4, is_alone=False)
    states = work.parameter_bytes + work.gradient_bytes + work.optimizer_state_bytes
    context = PARAMETERS.context_bytes - PARAMETERS.alone_context_bytes
    assert float(shared - alone) == pytest.approx(context + 0.1 * states)
    assert needed(work, 4, dp=2) > alone


def test_an_8b_model_in_bf16_throughout_trains_on_80_gb() -> None:
    """Weights, gradients and two moments of 2 bytes: 60 GiB, and a sample of 2,048 tokens."""
    llama = Transformer(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, is_gated=True, sequence=2048,
        vocabulary=128_256, has_tied_embeddings=False,
    )  # fmt: skip
    bf16 = TrainingSetup(kernels="eager", weights="bf16", gradients="bf16")
    work = transformer_work(llama, micro_batch=1, precision="bf16", setup=bf16)
    layouts = Layouts(
        dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, recompute=2, shard_group=1
    )
    fitted = constants().memory
    used = float(memory_bytes(shapes_of(llama), layouts, software_of(work), fitted))
    capacity = 79.25 * GIB
    free = float(kept_free_bytes(np.array([capacity]), np.array([True]))[0])
    assert 64e9 < used < capacity - free


@pytest.mark.parametrize("wrong", [{"zero_stage": 4}, {"dp": 0}])
def test_impossible_layouts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ZeRO"):
        needed(CNN, 1, **wrong)


# Layouts --------------------------------------------------------------------------------------

SHAPES = Shapes(
    layers=24, hidden=2048, heads=16, kv_heads=16, ffn=8192, matrices=2, sequence=1024,
    vocabulary=50_304,
)  # fmt: skip
NOTHING_ELSE = MemoryConstants(context_bytes=0.0, slack=1.0, logit_bytes=8.0)


def on_device(software: Software, stage: StageAsked = "fullest", **layout: Any) -> float:
    degrees = {"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "accumulation_steps": 1} | layout
    layouts = Layouts(shard_group=degrees["dp"], **degrees)
    return float(memory_bytes(SHAPES, layouts, software, NOTHING_ELSE, stage=stage))


@given(st.sampled_from([2, 4, 8]), st.integers(1, 16), st.integers(1, 8))
def test_a_stage_keeps_what_it_sent_but_in_megatron_core(p: int, m: int, u: int) -> None:
    same: dict[str, Any] = {"pp": p, "accumulation_steps": m, "micro_batch": u}
    eager, core = (on_device(Software(fusion=f), "first", **same) for f in (0, 1))
    sent = 2.0 * u * 1024 * 2048
    assert eager - core == pytest.approx(min(p, m) * sent)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 16), st.integers(1, 8))
def test_no_stage_is_fuller_than_the_fullest(p: int, m: int, u: int) -> None:
    same: dict[str, Any] = {"pp": p, "accumulation_steps": m, "micro_batch": u}
    first, fullest = (on_device(Software(), stage, **same) for stage in ("first", "fullest"))
    assert first <= fullest
    assert p > 1 or first == fullest


def test_deepspeed_casts_the_gradients_that_it_updates_with() -> None:
    plain, cast = Software(), Software(gradient_shard_bytes=4.0)
    whole = on_device(cast) - on_device(plain)
    assert whole == pytest.approx(
        4.0 * (24 * (4 * 2048**2 + 2 * 2048 * 8192) + 2 * 50_304 * 2048), rel=0.01
    )
    shard = on_device(cast, dp=8, zero_stage=1) - on_device(plain, dp=8, zero_stage=1)
    assert shard == pytest.approx(whole / 8)
    assert on_device(cast, dp=8, zero_stage=2) == on_device(plain, dp=8, zero_stage=2)


def test_bigsciences_v100_readings_are_not_of_the_fullest_device() -> None:
    """A pipeline that is read as less than 14 GB runs out of 16: somebody looked elsewhere."""
    known = read_memory(packaged.measurements(None))
    small = known.is_out_of_memory & (known.capacity_bytes < 16 * GIB) & known.is_of_first_stage
    assert small.any()
    read = []
    for row in np.flatnonzero(small):
        alike = known.is_reading & (known.rows.table == "bigscience_v100")
        for name in ("dp", "tp", "pp", "micro_batch", "recompute"):
            column = np.asarray(getattr(known.rows.layouts, name))
            alike &= column == column[row]
        read += [float(known.measured_bytes[i]) / GIB for i in np.flatnonzero(alike)]
    assert min(read) < 14 < 15.78
