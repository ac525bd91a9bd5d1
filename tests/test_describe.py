"""Described models against published sizes and against traced steps of the real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.jobs.describe import model_work, read_model
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import Transformer, transformer_parameters
from advisor.planners.step.describe import in_precision, transformer_work
from advisor.planners.step.describe_configs import read_config, transformer_of
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network

BERT = Transformer(
    layers=4, hidden=128, heads=4, sequence=64, vocabulary=3000, is_causal=False
)  # fmt: skip
LLAMA = Transformer(
    layers=4, hidden=128, heads=4, kv_heads=2, ffn=344, sequence=64, vocabulary=3000,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip
RESNET = "64:64:2x256,2x512,2x1024,2x2048:bottleneck"


@pytest.mark.parametrize(
    ("network", "parameters", "forward_gmac"),
    [
        # torchvision's table of models: parameters exactly, GFLOPS (multiply-accumulates).
        ("224:64:2x64,2x128,2x256,2x512:basic", 11_689_512, 1.81),
        ("224:64:3x256,4x512,6x1024,3x2048:bottleneck", 25_557_032, 4.09),
        ("224:64:3x256,8x512,36x1024,3x2048:bottleneck", 60_192_808, 11.51),
        ("224:0:2x64,2x128,3x256,3x512,3x512:plain:4096,4096", 138_357_544, 15.47),
    ],
)
def test_convolutional_networks_have_the_published_sizes(
    network: str, parameters: int, forward_gmac: float
) -> None:
    work = convolutional_work(parse_network(network), micro_batch=1)
    assert work.parameters == parameters
    products = [o for o in work.operators if o.kind in ("convolution", "winograd", "matmul")]
    forward = sum(o.flop for o in products if o.phase == "forward")
    assert forward / 2e9 == pytest.approx(forward_gmac, rel=0.01)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
          "vocab_size": 50257}, 124_439_808),
        ({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
          "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
          "max_position_embeddings": 4096, "tie_word_embeddings": False}, 6_738_415_616),
        ({"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "vocab_size": 32000, "max_position_embeddings": 32768, "num_local_experts": 8,
          "num_experts_per_tok": 2, "tie_word_embeddings": False}, 46_702_792_704),
        ({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "head_dim": 128,
          "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
          "vocab_size": 151936, "max_position_embeddings": 40960,
          "tie_word_embeddings": True}, 596_049_920),
        # Qwen3-30B-A3B: its experts are an eighth as wide as the dense block it states beside.
        ({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
          "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
          "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
          "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
          "tie_word_embeddings": False}, 30_532_122_624),
        ({"model_type": "vit", "num_hidden_layers": 12, "hidden_size": 768, "image_size": 224,
          "num_attention_heads": 12, "intermediate_size": 3072, "patch_size": 16,
          "architectures": ["ViTForImageClassification"]}, 86_567_656),
    ],
)  # fmt: skip
def test_transformers_have_the_published_sizes(config: dict[str, Any], published: int) -> None:
    model = read_config(config)
    assert isinstance(model, Transformer)
    assert transformer_parameters(model) == pytest.approx(published, rel=0.02)


def test_a_sequence_that_is_not_given_stays_within_what_models_are_trained_on() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
              "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    for longest, taken in ((131_072, 8192), (8192, 8192), (2048, 2048)):
        model = transformer_of(config | {"max_position_embeddings": longest})
        assert model.sequence == taken
    assert transformer_of(config, sequence=131_072).sequence == 131_072


def test_products_of_a_transformer_are_six_flop_a_parameter_and_token() -> None:
    """Narayanan et al.: 6 T P without attention, as the sequence gets short."""
    model = Transformer(layers=24, hidden=2048, heads=16, sequence=8, vocabulary=0)
    work = transformer_work(model, micro_batch=16)
    products = sum(o.flop for o in work.operators if o.kind == "matmul")
    layers = 24 * 12 * 2048**2
    assert products == pytest.approx(6 * 16 * 8 * layers, rel=1e-9)


def test_work_is_a_constant_part_and_one_in_proportion_of_the_batch() -> None:
    one, four = (transformer_work(LLAMA, micro_batch=n) for n in (1, 4))
    for a, b in zip(one.operators, four.operators, strict=True):
        assert b.fixed_bytes == a.fixed_bytes
        assert b.count == a.count
        if a.phase != "optimizer":
            assert b.flop == pytest.approx(4 * a.flop)
            assert b.bytes - b.fixed_bytes == pytest.approx(4 * (a.bytes - a.fixed_bytes))


def test_experts_add_memory_but_only_those_that_are_met_add_work() -> None:
    dense, sparse = (
        transformer_work(
            Transformer(layers=2, hidden=512, heads=8, sequence=128, vocabulary=100, experts=n),
            micro_batch=2,
        )
        for n in (1, 8)
    )
    assert sparse.parameters > 4 * dense.parameters
    met = [sum(o.flop for o in w.operators if o.name == "up") for w in (dense, sparse)]
    assert met[0] == met[1]


def test_half_precision_halves_what_grows_and_nothing_else() -> None:
    single = transformer_work(BERT, micro_batch=2, precision="fp32")
    half = in_precision(single, "bf16")
    for a, b in zip(single.operators, half.operators, strict=True):
        assert (b.flop, b.fixed_bytes) == (a.flop, a.fixed_bytes)
        ratio = 1.0 if a.phase == "optimizer" else 0.5
        assert b.bytes - b.fixed_bytes == pytest.approx(ratio * (a.bytes - a.fixed_bytes))
    assert in_precision(half, "fp32").operators == single.operators


def _traced(tmp_path: Path, model: Any, loss: Callable[[], Any]) -> tuple[float, float, float]:
    """Return flop, bytes and kept activations of one traced training step."""
    import torch
    from collecting import hooked

    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        facts = hooks.deep()
    flop, moved = (sum(o[key] for o in facts["operators"]) for key in ("flop", "bytes"))
    return flop, moved, facts["saved_bytes"]


def _totals(work: Work) -> tuple[float, float]:
    return sum(o.flop for o in work.operators), sum(o.bytes for o in work.operators)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_described_transformer_is_the_traced_one(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    ids = torch.randint(0, 3000, (4, 64))
    sizes = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4,
             "vocab_size": 3000, "max_position_embeddings": 64}  # fmt: skip
    if name == "bert":
        config = transformers.BertConfig(
            **sizes, intermediate_size=512, hidden_dropout_prob=0, attention_probs_dropout_prob=0
        )
        model, described = transformers.BertForMaskedLM(config), BERT
    else:
        config = transformers.LlamaConfig(**sizes, intermediate_size=344, num_key_value_heads=2)
        model, described = transformers.LlamaForCausalLM(config), LLAMA
    flop, moved, _ = _traced(tmp_path, model, lambda: model(input_ids=ids, labels=ids).loss)
    work = transformer_work(described, micro_batch=4, precision="fp32")
    assert work.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.05)
    # BERT's masked-word head has a dense layer more than the description knows of.
    assert _totals(work) == pytest.approx((flop, moved), rel=0.1)


@pytest.mark.frameworks
def test_a_described_resnet_is_the_traced_one(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[256, 512, 1024, 2048], num_labels=1000
    )
    model = transformers.ResNetForImageClassification(config)
    x, y = torch.randn(2, 3, 64, 64), torch.randint(0, 1000, (2,))
    flop, moved, kept = _traced(tmp_path, model, lambda: model(pixel_values=x, labels=y).loss)
    work = convolutional_work(parse_network(RESNET), micro_batch=2, precision="fp32")
    assert work.parameters == sum(p.numel() for p in model.parameters())
    assert _totals(work) == pytest.approx((flop, moved), rel=0.03)
    assert 2 * work.saved_bytes_per_sample == pytest.approx(kept, rel=0.15)
    read = read_config(config.to_dict() | {"model_type": "resnet"}, image=64)
    assert read == parse_network(RESNET + "::1000")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layers": 0}, "layers of 0 is out of range"),
        ({"hidden": -8}, "hidden of -8 is out of range"),
        ({"heads": 3}, "over 3 heads"),
        ({"ffn": 0}, "ffn of 0 is out of range"),
        ({"vocabulary": -1}, "vocabulary of -1 is out of range"),
    ],
)
def test_impossible_transformers_are_refused(changes: dict[str, int], says: str) -> None:
    from dataclasses import replace

    with pytest.raises(PlanningError, match=says) as caught:
        transformer_work(replace(BERT, **changes), micro_batch=1)  # type: ignore[arg-type]
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("resnet50", "not a convolutional network"),
        ("224:64:3x256:square", "not a convolutional network"),
        ("224:64:3x256,x:basic", "not a convolutional network"),
        ("224:64:0x256:basic", "blocks of stage 1 must be positive"),
        ("4:64:1x8,1x8:basic", "image of 4 pixels is halved 3 times"),
    ],
)
def test_impossible_networks_are_refused(text: str, says: str) -> None:
    with pytest.raises(PlanningError, match=says) as caught:
        convolutional_work(parse_network(text), micro_batch=1)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "led", "d_model": 512}, "led is of a form that cannot be described"),
        ({"is_encoder_decoder": True}, "the model is of a form"),
        ({"_class_name": "FluxTransformer2DModel"}, "FluxTransformer2DModel is of a form"),
        ({"model_type": "t5", "d_model": 512}, "does not state 'num_layers'"),
        ({"model_type": "gpt2", "n_layer": 2}, "does not state hidden, heads"),
        ({"model_type": "resnet", "depths": [1], "hidden_sizes": [8, 8]}, "not the configuration"),
    ],
)
def test_configurations_of_other_forms_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanningError, match=says):
        read_config(config)


def test_an_unknown_precision_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(PlanningError, match="fp7") as caught:
        transformer_work(BERT, micro_batch=1, precision="fp7")  # type: ignore[arg-type]
    assert "bf16" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "gflop"),  # Ultralytics' table of models: two operations a multiply-accumulate
    [("yolov8n", 8.9), ("yolov8m", 79.3), ("yolov8x", 258.5), ("yolo11n", 6.6),
     ("yolo11m", 68.5), ("yolo11x", 196.0), ("yolov5nu", 7.7), ("yolov5xu", 246.4)],
)  # fmt: skip
def test_detectors_have_the_published_operations(name: str, gflop: float) -> None:
    network = read_model(Path(name))
    work = model_work(network, micro_batch=2, precision="fp16")
    products = ("convolution", "winograd", "depthwise", "matmul")
    forward = sum(o.flop for o in work.operators if o.phase == "forward" and o.kind in products)
    assert forward / 2e9 == pytest.approx(gflop, rel=0.02)


def test_a_detectors_work_grows_with_the_area_and_its_image_has_to_divide() -> None:
    small, large = (read_model(Path("yolo11s"), image=side) for side in (320, 640))
    works = [model_work(one, micro_batch=1, precision="fp16") for one in (small, large)]
    assert works[0].parameters == works[1].parameters == 9_458_736
    kept = [one.saved_bytes_per_sample for one in works]
    assert 3.9 < kept[1] / kept[0] < 4.5  # attention grows with its square
    with pytest.raises(PlanningError, match="divided by"):
        model_work(read_model(Path("yolov8n"), image=500), micro_batch=1, precision="fp16")
