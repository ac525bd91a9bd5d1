"""What the training software does: bytes of a parameter, adapters, and contradictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from advisor.estimate.knowledge.layout_model import software_of
from advisor.jobs.describe import described_job, model_work
from advisor.jobs.load import read_job, write_job
from advisor.planners.core.arrays import shapes_of
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layout, Work
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    Optimizer,
    Precision,
    TrainingSetup,
    Transformer,
)
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.memory.recorded_steps import MemoryParameters, training_memory_bytes
from advisor.planners.memory.transformers import memory_bytes
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.ledger import update

MEMORY = MemoryParameters(
    context_bytes=0.5e9, alone_context_bytes=0.4e9, process_bytes=0.0, slack=1.1, cpu_slack=1.0,
    logit_bytes=6.0, bucket_fraction=0.0, log_sd=0.1,
)  # fmt: skip

LLAMA_2_7B = Transformer(
    layers=32, hidden=4096, heads=32, sequence=4096, vocabulary=32000, ffn=11008, is_gated=True,
    has_tied_embeddings=False,
)  # fmt: skip
LLAMA_3_8B = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, sequence=8192, vocabulary=128256, ffn=14336,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip


def _total(setup: TrainingSetup, precision: Precision) -> float:
    return (
        setup.weight_bytes(precision)
        + setup.gradient_bytes(precision)
        + setup.optimizer_bytes(precision)
    )


@pytest.mark.parametrize(
    ("setup", "precision", "published"),
    [
        # ZeRO (SC'20), section 3.1: 2 + 2 + 12; Megatron-LM keeps the gradient in fp32: 18.
        (TrainingSetup(gradients="bf16"), "bf16", 16.0),
        (TrainingSetup(), "bf16", 18.0),
        (TrainingSetup(), "fp8", 18.0),
        (TrainingSetup(), "fp32", 16.0),
        (TrainingSetup(), "tf32", 16.0),
        (TrainingSetup(), "fp64", 32.0),
        (TrainingSetup(weights="bf16"), "bf16", 8.0),
        (TrainingSetup(optimizer="sgd"), "fp32", 8.0),
        (TrainingSetup(optimizer="sgd-momentum"), "fp32", 12.0),
        # DeepSeek-V3 (section 3.3.2): fp32 master weights and gradients, bf16 moments.
        (TrainingSetup(optimizer="adamw-bf16"), "fp8", 14.0),
    ],
)
def test_states_of_a_parameter_are_the_published_bytes(
    setup: TrainingSetup, precision: Precision, published: float
) -> None:
    assert _total(setup, precision) == published


def test_eight_bit_states_take_a_quarter_and_adafactor_next_to_nothing() -> None:
    full, eight, factored = (
        TrainingSetup(optimizer=name).moment_bytes("bf16")
        for name in ("adamw", "adamw-8bit", "adafactor")
    )
    assert eight == pytest.approx(full / 4, rel=0.02)
    assert factored < 0.01


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
@pytest.mark.parametrize("precision", get_args(Precision))
def test_narrower_storage_never_takes_more(optimizer: Optimizer, precision: Precision) -> None:
    wide = TrainingSetup(optimizer=optimizer)
    narrow = TrainingSetup(optimizer=optimizer, weights="bf16")
    assert _total(narrow, precision) <= _total(wide, precision)


@pytest.mark.parametrize(
    ("model", "setup", "published"),
    [
        # peft's print_trainable_parameters, quoted in its documentation and in model cards.
        (LLAMA_3_8B, TrainingSetup(adapter_rank=16), 41_943_040),
        (LLAMA_2_7B, TrainingSetup(adapter_rank=8, adapter_targets="query-value"), 4_194_304),
        (LLAMA_2_7B, TrainingSetup(adapter_rank=64), 159_907_840),
    ],
)
def test_adapters_have_the_published_parameters(
    model: Transformer, setup: TrainingSetup, published: int
) -> None:
    assert setup.adapter_parameters(model) == published


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"adapter_rank": 0}, "adapter of rank 0"),
        ({"frozen_fraction": 1.0}, "frozen share of 1.0"),
        ({"base_bits": 4}, "weights of 4 bits cannot be trained"),
        ({"base_bits": 5, "adapter_rank": 8}, "base of 5 bits"),
        ({"adapter_rank": 8, "frozen_fraction": 0.5}, "adapters freeze the whole base"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanningError, match=says) as caught:
        TrainingSetup(**changes)
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_job_files_keep_the_setup_and_old_ones_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    setup = TrainingSetup(kernels="compiled", adapter_rank=16, base_bits=4)
    work = model_work(LLAMA_3_8B, micro_batch=1, precision="bf16", setup=setup)
    write_job(described_job(work, name="qlora"), path)
    assert read_job(path).work == work

    record = json.loads(path.read_text())
    del record["job"]["work"]["setup"]
    record["job"]["work"]["is_compiled"] = True
    path.write_text(json.dumps(record))
    old = read_job(path).work
    assert old is not None
    assert old.setup == TrainingSetup(kernels="compiled")
    assert old.is_compiled


def _flop(work: Work, phase: str) -> float:
    return sum(o.flop for o in work.operators if o.phase == phase and o.kind == "matmul")


def _described(setup: TrainingSetup = DEFAULT_SETUP, **changes: Any) -> Work:
    return transformer_work(replace(LLAMA_3_8B, **changes), micro_batch=1, setup=setup)


def test_full_fine_tuning_of_8b_fits_one_80_gb_card_in_pure_bf16_with_8_bit_adam() -> None:
    """What torchtune's full_finetune_single_device recipes do; 18 bytes a parameter do not fit."""
    slim = _described(TrainingSetup(weights="bf16", optimizer="adamw-8bit"))
    layouts = layout_columns(Layout(recompute="full"))
    for work, fits in ((slim, True), (_described(), False)):
        states = work.parameter_bytes + work.gradient_bytes + work.optimizer_state_bytes
        memory = memory_bytes(shapes_of(LLAMA_3_8B), layouts, software_of(work), MEMORY)
        assert states < memory
        assert (float(memory) < 80e9) == fits


def test_quantised_8b_takes_the_published_5_7_gb() -> None:
    """The NF4 checkpoint of Llama-3-8B with 16-bit embeddings and head is 5.7 GB."""
    work = _described(TrainingSetup(adapter_rank=16, base_bits=4))
    adapters = 4 * 41_943_040
    assert work.parameter_bytes - adapters == pytest.approx(5.7e9, rel=0.01)
    assert work.trainable_parameters == 41_943_040
    assert work.optimizer_state_bytes == 8 * 41_943_040


def test_adapters_halve_the_backward_products_but_for_their_own() -> None:
    full, adapted = _described(), _described(TrainingSetup(adapter_rank=16))
    own = {p: sum(o.flop for o in adapted.operators if o.name == "adapter" and o.phase == p
                  and o.kind == "matmul") for p in ("forward", "backward")}  # fmt: skip
    assert _flop(adapted, "forward") - own["forward"] == pytest.approx(_flop(full, "forward"))
    assert _flop(adapted, "backward") - own["backward"] == pytest.approx(
        _flop(full, "backward") / 2
    )
    tokens = LLAMA_3_8B.sequence
    assert own["forward"] == pytest.approx(2 * tokens * 41_943_040)
    assert own["backward"] == pytest.approx(4 * tokens * 41_943_040)


def test_a_quantised_base_adds_traffic_and_no_products() -> None:
    lora, qlora = (_described(TrainingSetup(adapter_rank=16, base_bits=b)) for b in (16, 4))
    for phase in ("forward", "backward"):
        assert _flop(qlora, phase) == _flop(lora, phase)
    assert sum(o.bytes for o in qlora.operators) > sum(o.bytes for o in lora.operators)


def test_frozen_layers_have_no_backward_pass_and_keep_nothing() -> None:
    work, frozen = _described(), _described(TrainingSetup(frozen_fraction=0.5))
    assert frozen.trainable_parameters == pytest.approx(work.parameters / 2)
    assert _flop(frozen, "forward") == _flop(work, "forward")
    layers = TrainingSetup(frozen_fraction=0.5).frozen_layers(LLAMA_3_8B)
    # Embeddings freeze first and the equally large head last: half of the layers.
    assert layers == pytest.approx(16)
    head = 2 * 2 * LLAMA_3_8B.sequence * LLAMA_3_8B.hidden * LLAMA_3_8B.vocabulary
    assert _flop(frozen, "backward") - head == pytest.approx(
        (_flop(work, "backward") - head) * (1 - layers / 32)
    )
    memory = [float(training_memory_bytes(w, 8, parameters=MEMORY)) for w in (work, frozen)]
    assert memory[1] < memory[0]


def test_unfused_attention_writes_its_scores() -> None:
    flash, unfused = _described(), _described(TrainingSetup(attention="unfused"))
    assert {o.kind for o in flash.operators} - {o.kind for o in unfused.operators} == {"attention"}
    scores = 2.0 * LLAMA_3_8B.heads * LLAMA_3_8B.sequence**2 * LLAMA_3_8B.layers
    assert sum(o.bytes for o in unfused.operators) > 2 * scores


def test_a_frozen_convolutional_network_trains_its_top() -> None:
    resnet = parse_network("224:64:2x64,2x128,2x256,2x512:basic")
    whole, top = (
        convolutional_work(resnet, micro_batch=8, setup=TrainingSetup(frozen_fraction=f))
        for f in (0.0, 0.5)
    )
    assert top.trainable_parameters == pytest.approx(whole.parameters / 2)
    assert top.saved_bytes_per_sample < whole.saved_bytes_per_sample / 2
    calls = [sum(o.count for o in w.operators if o.phase == "backward") for w in (whole, top)]
    # The first stages have few parameters and most of the layers.
    assert calls[1] < calls[0] / 3
    with pytest.raises(PlanningError, match="no matrices for adapters"):
        convolutional_work(resnet, micro_batch=8, setup=TrainingSetup(adapter_rank=8))


def test_updates_move_what_traced_ones_do(tmp_path: Path) -> None:
    """PyTorch's own optimizers over lists of tensors, as the collector counts their traffic."""
    import torch
    from collecting import hooked

    made: tuple[tuple[Optimizer, Any], ...] = (
        ("adamw", lambda p: torch.optim.AdamW(p, foreach=True)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)),
        ("sgd-momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
    )
    for name, make in made:
        (tmp_path / name).mkdir()
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
        optimizer = make(model.parameters())
        with hooked(tmp_path / name) as hooks:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, 512)).sum().backward()
                optimizer.step()
            facts = hooks.deep()
        moved = sum(o["bytes"] for o in facts["operators"] if o["phase"] == "optimizer")
        setup = TrainingSetup(optimizer=name)
        described = update(facts["parameters"], setup, "fp32", tensors=8)
        assert described.bytes == pytest.approx(moved, rel=0.1), name
