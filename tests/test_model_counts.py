"""Configurations of published models: every parameter counted, and nothing dropped in silence.

The oracle is ``datasets/models``, and ``tests/data/model_counts`` for further families and forms:
counts of transformers on the meta device, most of them the published ones to the parameter.
``pytest -s -k figures`` prints how many rows agree.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documentation import ROOT
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.estimate.launch.megatron import megatron_arguments
from advisor.jobs.describe import model_work
from advisor.planners.core import (
    Layout,
    Layouts,
    PlanningError,
    Transformer,
    device_parameters,
    layer_parameters,
    model_matrices,
    scored_width,
    shapes_of,
    transformer_parameters,
)
from advisor.planners.layouts.described_units import transformer_layers
from advisor.planners.step import config_notes, model_flop_per_token, read_config, transformer_work
from advisor.planners.step.describe_families import FAMILIES

FOLDERS = (ROOT / "datasets" / "models", ROOT / "tests" / "data" / "model_counts")
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000,
    "max_position_embeddings": 2048, "hidden_act": "silu",
}  # fmt: skip
ONE_DEVICE = Layouts(dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=1)


def config_of(row: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(row["config"])
    if row["model_type"]:
        name = "_class_name" if row["model_type"].endswith("Model") else "model_type"
        config[name] = row["model_type"]
    if row.get("architecture"):
        config["architectures"] = [row["architecture"]]
    return config


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "models.csv").open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


ROWS = [row for folder in FOLDERS for row in rows(folder)]
BY_NAME = {
    name: config_of(row)
    for row in ROWS
    for name in (row["id"], *row.get("other_names", "").split())
}


def read(config: Mapping[str, Any]) -> Any:
    try:
        return read_config(config, sequence=512)
    except PlanningError:  # what reads no text has its own number of tokens
        return read_config(config)


def is_described(row: Mapping[str, str]) -> bool:
    try:
        read(config_of(row))
    except PlanningError:
        return False
    return True


COUNTED = [row for row in ROWS if is_described(row)]
REFUSED = [row for row in ROWS if row not in COUNTED]


def of_name(name: str) -> Transformer:
    model = read(BY_NAME[name])
    assert isinstance(model, Transformer)
    return model


TRANSFORMERS = [row["id"] for row in COUNTED if isinstance(read(BY_NAME[row["id"]]), Transformer)]


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row["id"])
def test_a_published_model_has_its_parameters(row: dict[str, str]) -> None:
    work = model_work(read(config_of(row)), micro_batch=1, precision="bf16")
    assert work.parameters == pytest.approx(int(row["parameters"]), rel=1e-3)
    if row.get("published"):
        assert work.parameters == pytest.approx(int(row["published"]), rel=1e-3)


def test_the_figures_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Many rows and families, and few of them not to the parameter."""
    errors = []
    for row in COUNTED:
        work = model_work(read(config_of(row)), micro_batch=1, precision="bf16")
        errors.append(abs(work.parameters / int(row["parameters"]) - 1))
    families, exact = {row["model_type"] for row in COUNTED}, sum(error == 0 for error in errors)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(ROWS)} models of {len(families)} families: {exact} counted to the parameter, "
            f"the others within {100 * max(errors):.3f} %; {len(ROWS) - len(COUNTED)} refused\n"
        )
    assert len(COUNTED) > 0.9 * len(ROWS) > 300
    assert len(families) > 50
    assert exact > 0.9 * len(COUNTED)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["id"])
def test_another_form_is_refused_in_a_line(row: dict[str, str]) -> None:
    with pytest.raises(PlanningError, match="is of a form that cannot be described") as it:
        read_config(config_of(row))
    assert "\n" not in f"{it.value}{it.value.hint}"


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_planners_hold_what_was_counted(name: str) -> None:
    """The layouts' columns and the list of layers have the parameters of the count."""
    model = of_name(name)
    whole = transformer_parameters(model)
    held = float(device_parameters(shapes_of(model), ONE_DEVICE))
    tables = 2 if model.has_head and not model.has_tied_embeddings else 1
    assert held == pytest.approx(whole, rel=2e-3), tables
    assert sum(one.parameters for one in transformer_layers(model)) == whole


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_token_meets_two_operations_for_every_weight(name: str) -> None:
    """Forward: of the experts only those that it is sent to."""
    model = of_name(name)
    work = transformer_work(model, micro_batch=1)
    done = sum(
        o.flop for o in work.operators
        if o.kind == "matmul" and o.phase == "forward" and o.name != "scores"
    )  # fmt: skip
    experts = [m for m in model_matrices(model) if m.copies > 1]
    idle = sum(m.parameters * (1 - m.met / m.copies) for m in experts)
    weights = sum(m.parameters for m in model_matrices(model)) - idle
    weights += model.vocabulary * model.hidden * model.has_head
    assert done == pytest.approx(2 * model.sequence * weights, rel=1e-9)
    attention, expert = layer_parameters(shapes_of(model))
    of_layers = model.layers * (float(attention) + float(expert) * model.experts_per_token)
    of_layers += sum(m.parameters for m in model_matrices(model) if m.name == "router")
    of_layers += model.vocabulary * model.hidden * model.has_head
    assert of_layers == pytest.approx(weights, rel=1e-6)


def test_a_mixture_meets_what_its_makers_say() -> None:
    """Active parameters of the model cards, which they round."""
    active = {
        "openai/gpt-oss-120b": 5.1e9, "Qwen/Qwen3-235B-A22B": 22e9, "zai-org/GLM-4.5": 32e9,
        "deepseek-ai/DeepSeek-V3": 37e9, "deepseek-ai/DeepSeek-V2": 21e9,
        "mistralai/Mixtral-8x7B-v0.1": 12.9e9,
        "meta-llama/Llama-4-Maverick-17B-128E text": 17e9,
    }  # fmt: skip
    for name, said in active.items():
        model = of_name(name)
        flop = model_flop_per_token(replace(model, sequence=1), transformer_work(
            model, micro_batch=1
        ).setup)  # fmt: skip
        assert flop / 6 == pytest.approx(said, rel=0.08), name


# Gates, and families that nobody knows.


def test_a_family_of_no_known_name_is_told_with_its_gate_and_size() -> None:
    known, other = read_config(LLAMA), LLAMA | {"model_type": "zebra"}
    found = read_config(other | {"tie_word_embeddings": False})
    assert config_notes(LLAMA, known) == ()
    assert isinstance(known, Transformer)
    assert isinstance(found, Transformer)
    assert transformer_parameters(found) == transformer_parameters(known)
    (note,) = config_notes(other, found)
    assert "zebra is of no known family" in note
    assert "with a gate" in note
    assert "silu" in note
    plain = read_config(other | {"hidden_act": "gelu"})
    (note,) = config_notes(other | {"hidden_act": "gelu"}, plain)
    assert "without a gate" in note
    assert isinstance(plain, Transformer)
    assert not plain.is_gated


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) & {row["model_type"] for row in COUNTED}))
def test_a_known_family_is_not_told_as_unknown(kind: str) -> None:
    row = next(row for row in COUNTED if row["model_type"] == kind)
    config = config_of(row)
    assert not any("no known family" in note for note in config_notes(config, read(config)))


def test_the_gate_is_the_familys_whatever_the_activation_is_called() -> None:
    """Gemma's gelu has a gate; relu squared of Nemotron has none."""
    for name, is_gated in (
        ("google/gemma-7b", True), ("nvidia/Minitron-4B-Base", False),
        ("EleutherAI/pythia-1b", False), ("facebook/dinov2-giant", True),
        ("answerdotai/ModernBERT-base", True), ("openai/gpt-oss-20b", True),
    ):  # fmt: skip
        assert of_name(name).is_gated is is_gated, name


# What stands beside a language model, and layers of other kinds.


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llava-hf/llava-1.5-7b-hf", "the vision tower of about 324 M parameters"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "the vision tower of"),
        ("ai21labs/Jamba-v0.1", "28 of the 32 layers mix tokens by a state"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "36 of the 48 layers"),
        ("LiquidAI/LFM2-1.2B", "10 of the 16 layers"),
        ("deepseek-ai/DeepSeek-V3", "num_nextn_predict_layers"),
        ("microsoft/deberta-v3-large", "relative positions"),
    ],
)
def test_what_is_not_described_is_told(name: str, said: str) -> None:
    (note,) = config_notes(BY_NAME[name], read(BY_NAME[name]))
    assert said in note


def test_a_tower_without_dimensions_is_left_out_and_told() -> None:
    config = LLAMA | {"audio_config": {"model_type": "whale"}}
    model = read_config(config)
    assert model == read_config(LLAMA)
    (note,) = config_notes(config, model)
    assert "the audio tower is left out" in note


def test_attention_through_a_window_costs_the_pairs_inside_it() -> None:
    """All of a short sequence, and in the limit the window for every token."""
    model = of_name("mistralai/Ministral-8B-Instruct-2410")
    assert scored_width(model) == model.heads * 128
    for sequence in (2**12, 2**16, 2**22):
        near = min(model.window / sequence, 1.0)
        seen = scored_width(replace(model, sequence=sequence)) / (model.heads * 128)
        # Of a triangle of pairs the small one of those too far apart is missing.
        assert seen == pytest.approx(1 - (1 - near) ** 2)
    gemma = of_name("google/gemma-3-27b-pt text")
    assert gemma.windowed_layers == 62 - 62 // 6
    assert scored_width(replace(gemma, sequence=2**17)) < 0.2 * scored_width(gemma)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"vision_config": 3}, LLAMA | {"text_config": [1]}, LLAMA | {"layer_types": 5},
        LLAMA | {"num_experts": 4, "moe_layers": "all"}, LLAMA | {"kv_lora_rank": 64},
        LLAMA | {"first_k_dense_replace": 99, "num_experts": 4},
        LLAMA | {"num_hidden_layers": 10**12, "num_experts": 4},
        {"model_type": "clip", "text_config": {"hidden_size": "wide"}},
        {"model_type": "wav2vec2", "conv_dim": [512]}, {"model_type": "hubert", "conv_dim": []},
        {"model_type": "qwen3_next", **{k: v for k, v in LLAMA.items() if k != "model_type"}},
    ],
)  # fmt: skip
def test_a_broken_configuration_is_no_traceback(config: dict[str, Any]) -> None:
    try:
        model_work(read_config(config), micro_batch=1, precision="bf16")
    except PlanningError as error:
        assert error.exit_code == 2  # noqa: PT017


def test_the_command_tells_what_a_description_lacks(tmp_path: Path) -> None:
    config = BY_NAME["llava-hf/llava-1.5-7b-hf"] | {"max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {
        "predict": ("--gpu", "H100", "--count", "8", "--batch", "8"),
        "recommend": ("--tokens", "1B", "--gpus", "H100"),
    }
    for verb, words in asked.items():
        done = CliRunner().invoke(app, [verb, "--model", str(tmp_path), *words])
        assert done.exit_code == 0
        assert "he vision tower of about 324 M parameters" in " ".join(done.stdout.split())


def test_megatron_is_told_a_mixtures_other_layers() -> None:
    """Its first dense layer, the experts that all tokens meet, and latent attention."""
    layout = Layout(micro_batch=1, dp=8, tp=1, pp=1, accumulation_steps=1)
    said = " ".join(megatron_arguments(layout, of_name("deepseek-ai/DeepSeek-V2-Lite")))
    for flag in (
        "--moe-layer-freq '([0]*1+[1]*26)'", "--ffn-hidden-size 10944",
        "--moe-ffn-hidden-size 1408", "--moe-shared-expert-intermediate-size 2816",
        "--multi-latent-attention --kv-lora-rank 512 --qk-pos-emb-head-dim 64 --qk-head-dim 128",
    ):  # fmt: skip
        assert flag in said, flag
    assert "--add-qkv-bias" in " ".join(megatron_arguments(layout, of_name("Qwen/Qwen2.5-7B")))


def test_a_convnext_computes_what_was_published() -> None:
    """Billions of multiplications and additions of a picture (Liu et al., 2022, table 1)."""
    for name, billions in (("tiny", 4.5), ("base", 15.4)):
        work = model_work(read(BY_NAME[f"facebook/convnext-{name}-224"]), micro_batch=2,
                          precision="bf16")  # fmt: skip
        kinds = ("matmul", "convolution", "depthwise")
        forward = (o for o in work.operators if o.phase == "forward" and o.kind in kinds)
        assert sum(o.flop for o in forward) / 2 == pytest.approx(2e9 * billions, rel=0.02)


def test_towers_meet_every_weight_for_every_token_of_their_own() -> None:
    clip: Any = read_config(BY_NAME["openai/clip-vit-large-patch14"])
    work = model_work(clip, micro_batch=2, precision="bf16")
    forward = (o for o in work.operators if o.phase == "forward" and o.kind == "matmul")
    of_layers = {tower: 12 * tower.layers * tower.hidden**2 for tower in clip.towers}
    met = sum(tower.tokens * weights for tower, weights in of_layers.items())
    assert [tower.tokens for tower in clip.towers] == [77, 257]
    met += 256 * 3 * 14**2 * 1024 + 768 * (768 + 1024)  # patches, and what both are compared in
    assert sum(o.flop for o in forward) == pytest.approx(2 * 2 * met, rel=1e-3)


def test_sound_comes_in_frames_of_a_fiftieth_of_a_second() -> None:
    """The convolutions in front take 16,000 numbers a second, and halve them six times."""
    name = "facebook/wav2vec2-base-960h"
    work = model_work(read_config(BY_NAME[name], sequence=50), micro_batch=1, precision="bf16")
    (forward,) = (sum(o.flop for o in work.operators
                      if o.kind == "convolution" and o.phase == "forward"),)  # fmt: skip
    frames, met, channels = 16_000.0, 0.0, 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        frames /= stride
        met += frames * kernel * channels * 512
        channels = 512
    met += frames * 128 * 768 * 768 / 16
    assert forward == pytest.approx(2 * met)
    assert work.input_bytes_per_sample == 4 * 16_000
