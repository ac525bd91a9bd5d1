"""Described encoder-decoders against the models of transformers, and against published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.jobs.describe import model_work, read_model
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import TrainingSetup
from advisor.planners.step.describe_configs import read_config
from advisor.planners.step.describe_encoder_decoders import EncoderDecoder, encoder_decoder_work

T5_SMALL = {
    "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
    "num_heads": 8, "vocab_size": 32128, "n_positions": 512, "is_encoder_decoder": True,
}  # fmt: skip
BART_BASE = {
    "model_type": "bart", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
    "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072, "vocab_size": 50265, "max_position_embeddings": 1024,
}  # fmt: skip
WHISPER_TINY = {
    "model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536, "vocab_size": 51865, "num_mel_bins": 80,
    "max_source_positions": 1500, "max_target_positions": 448,
}  # fmt: skip
UNFUSED = TrainingSetup(attention="unfused")


def _whisper(width: int, layers: int, heads: int) -> dict[str, Any]:
    return WHISPER_TINY | {
        "d_model": width, "encoder_layers": layers, "decoder_layers": layers,
        "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (T5_SMALL, 60_506_624),
        (T5_SMALL | {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
         222_903_552),
        (T5_SMALL | {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
         737_668_096),
        # mT5-small: a gate, a head of its own, six heads.
        (T5_SMALL | {"model_type": "mt5", "d_ff": 1024, "num_layers": 8, "num_heads": 6,
                     "vocab_size": 250112, "feed_forward_proj": "gated-gelu",
                     "tie_word_embeddings": False}, 300_176_768),
        (BART_BASE, 139_420_416),
        (WHISPER_TINY, 37_760_640),
        (_whisper(768, 12, 12), 241_734_912),
        (_whisper(1280, 32, 20), 1_543_304_960),
    ],
)  # fmt: skip
def test_encoder_decoders_have_the_published_parameters(
    config: dict[str, Any], published: int
) -> None:
    model = read_config(config)
    assert isinstance(model, EncoderDecoder)
    assert encoder_decoder_work(model, micro_batch=1).parameters == published


CASES = ("t5", "t5-gated", "bart", "mbart", "marian", "pegasus", "m2m_100", "whisper")
_SIZES = {
    "d_model": 64, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 160,
    "vocab_size": 300, "max_position_embeddings": 48, "dropout": 0.0,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip


def _real(name: str, attention: str) -> tuple[Any, dict[str, Any]]:
    """Return a small model of transformers, and its configuration as written to a file."""
    transformers = pytest.importorskip("transformers")
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "bart": ("BartForConditionalGeneration", {}),
        "mbart": ("MBartForConditionalGeneration", {}),
        "marian": ("MarianMTModel", {"pad_token_id": 299}),
        "pegasus": ("PegasusForConditionalGeneration", {}),
        "m2m_100": ("M2M100ForConditionalGeneration", {}),
        "whisper": ("WhisperForConditionalGeneration", {
            "max_source_positions": 60, "max_target_positions": 48, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
    }  # fmt: skip
    if name.startswith("t5"):
        head = transformers.T5ForConditionalGeneration
        config = transformers.T5Config(
            d_model=64, d_kv=24, d_ff=96, num_layers=3, num_decoder_layers=2, num_heads=4,
            vocab_size=300, dropout_rate=0.0,
            feed_forward_proj="gated-gelu" if name == "t5-gated" else "relu",
            tie_word_embeddings=name == "t5",
        )  # fmt: skip
    else:
        head = getattr(transformers, made[name][0])
        config = head.config_class(**(_SIZES | made[name][1]))
    config._attn_implementation = attention
    model = head(config).train()
    return model, json.loads(config.to_json_string(use_diff=False))


def _loss(model: Any, name: str, tokens: int = 40) -> Any:
    import torch

    ids = torch.randint(3, 290, (2, tokens))
    read = {"input_features": torch.randn(2, 80, 120)} if name == "whisper" else {"input_ids": ids}
    logits = model(**read, decoder_input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _products(work: Work, phase: str) -> float:
    kinds = ("matmul", "convolution", "winograd", "attention")
    return sum(o.flop for o in work.operators if o.kind in kinds and o.phase == phase)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", CASES)
def test_sizes_and_operations_are_those_of_the_real_model(name: str) -> None:
    pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    model, config = _real(name, "eager")
    described = read_config(config, sequence=40)
    assert isinstance(described, EncoderDecoder)
    work = encoder_decoder_work(described, micro_batch=2, precision="fp32", setup=UNFUSED)
    assert work.parameters == sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counter:
        loss = _loss(model, name)
        forward = counter.get_total_flops()
        loss.backward()
        whole = counter.get_total_flops()
    assert _products(work, "forward") == pytest.approx(forward, rel=1e-9)
    assert _products(work, "backward") == pytest.approx(whole - forward, rel=1e-9)


@pytest.mark.parametrize("name", ["t5", "t5-gated", "bart", "whisper"])
def test_kept_activations_are_those_of_the_real_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    model, config = _real(name, "eager")
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, tuple[int, Any]] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(model, name)
    found = sum(size for size, _ in kept.values())
    assert loss.requires_grad
    described = read_config(config, sequence=40)
    assert isinstance(described, EncoderDecoder)
    work = encoder_decoder_work(described, micro_batch=2, precision="fp32", setup=UNFUSED)
    # Indices and masks are kept besides; they weigh in models as small as these.
    assert 2 * work.saved_bytes_per_sample == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_traffic_is_that_of_a_traced_step(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    from collecting import hooked

    model, config = _real(name, "eager")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            _loss(model, name).backward()
            optimizer.step()
        facts = hooks.deep()
    described = read_config(config, sequence=40)
    assert isinstance(described, EncoderDecoder)
    work = encoder_decoder_work(described, micro_batch=2, precision="fp32", setup=UNFUSED)
    moved = sum(o["bytes"] for o in facts["operators"])
    assert sum(o.bytes for o in work.operators) == pytest.approx(moved, rel=0.15)


def test_a_whole_model_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(T5_SMALL))
    work = model_work(read_model(tmp_path), micro_batch=4, precision="bf16")
    assert work.transformer is None
    assert [layer.name for layer in work.layers[:2]] == ["encoder.0.block", "encoder.1.block"]
    assert len(work.layers) == 12
    assert sum(layer.parameters for layer in work.layers) < work.parameters
    saved = sum(layer.saved_bytes_per_sample for layer in work.layers)
    assert 0.5 * work.saved_bytes_per_sample < saved < work.saved_bytes_per_sample


def test_adapters_of_an_encoder_decoder_are_counted_by_its_matrices() -> None:
    model = read_config(BART_BASE)
    assert isinstance(model, EncoderDecoder)
    work = encoder_decoder_work(
        model, micro_batch=1, setup=TrainingSetup(adapter_rank=8, adapter_targets="query-value")
    )
    # 6 attentions of encoders and 12 of decoders, two matrices each, of 768 x 768.
    assert work.trainable_parameters == 8 * 18 * 2 * (768 + 768)
    assert work.parameters == 139_420_416 + work.trainable_parameters


def test_impossible_sizes_are_refused() -> None:
    model = read_config(BART_BASE | {"encoder_attention_heads": 7})
    assert isinstance(model, EncoderDecoder)
    with pytest.raises(PlanningError, match="a width of 768 over 7 heads") as caught:
        encoder_decoder_work(model, micro_batch=1)
    assert caught.value.exit_code == 2
