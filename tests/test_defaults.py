"""Batch and sequence that are taken where nobody says them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor import api
from advisor.estimate.knowledge.known import find_job
from advisor.jobs.describe import default_batch, described_job, sequence_notes
from advisor.jobs.model_facts import setup_words
from advisor.planners.core.setup import TrainingSetup, Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_configs import longest_sequence, read_config
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network


def _decoder(layers: int, hidden: int, sequence: int = 2048) -> Transformer:
    return Transformer(
        layers=layers, hidden=hidden, heads=hidden // 128, sequence=sequence, vocabulary=50257
    )


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        # Brown et al., 2020, table 2.1, in tokens; Llama 2 70B: 4 M.
        (_decoder(24, 2048), 2**19),
        (_decoder(32, 4096), 2**20),
        (_decoder(40, 5120), 2**21),
        (_decoder(80, 8192, 4096), 2**22),
    ],
)
def test_decoders_take_the_tokens_of_models_of_their_size(model: Transformer, tokens: int) -> None:
    samples, why = default_batch(model, TrainingSetup())
    assert tokens / 2 < samples * model.sequence <= tokens
    assert samples & (samples - 1) == 0
    assert f"about {tokens / 2**20:g} M tokens" in why


def test_no_default_batch_is_empty_however_long_the_sample() -> None:
    model = _decoder(2, 256, sequence=10_000_000)
    assert default_batch(model, TrainingSetup())[0] == 1


def test_adapters_are_trained_with_small_batches() -> None:
    model = _decoder(32, 4096)
    assert default_batch(model, TrainingSetup(adapter_rank=8))[0] == 128
    assert default_batch(model, TrainingSetup(frozen_fraction=0.5))[0] == 128


def test_other_models_take_the_batches_of_their_papers() -> None:
    resnet = parse_network("224:64:2x64,2x128,2x256,2x512:basic")
    bert = Transformer(
        layers=12, hidden=768, heads=12, sequence=512, vocabulary=30522, is_causal=False
    )
    taken = [default_batch(model, TrainingSetup())[0] for model in (resnet, bert)]
    assert taken == [256, 256]


def test_a_sequence_shorter_than_the_longest_is_said() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
              "num_attention_heads": 4, "vocab_size": 100,
              "max_position_embeddings": 131_072}  # fmt: skip
    (note,) = sequence_notes(read_config(config), longest_sequence(config))
    assert "8,192" in note
    assert "131,072" in note
    short = config | {"max_position_embeddings": 2048}
    assert sequence_notes(read_config(short), longest_sequence(short)) == ()


def test_what_was_taken_is_said_and_what_was_given_is_not(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
              "num_attention_heads": 4, "vocab_size": 100,
              "max_position_embeddings": 131_072}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    taken = find_job(model=tmp_path)
    assert taken.global_batch == 64
    assert [note.split(":")[0] for note in taken.assumptions] == [
        "no batch was given", "no sequence was given",
    ]  # fmt: skip
    given = find_job(model=tmp_path, batch=7, sequence=512)
    assert (given.global_batch, given.assumptions) == (7, ())
    numbers = find_job(layers=2, hidden=64, heads=2)
    assert any("2,048 tokens a sample" in note for note in numbers.assumptions)


def test_the_software_is_said_in_words() -> None:
    model = _decoder(2, 256)
    setup = TrainingSetup(
        kernels="compiled", optimizer="adamw-8bit", weights="bf16", adapter_rank=8, base_bits=4,
        overlaps=False,
    )  # fmt: skip
    assert setup_words(transformer_work(model, micro_batch=1, setup=setup)) == (
        "compiled kernels, flash attention, 8-bit AdamW, bf16 weights, bf16 gradients, "
        "chunked loss, adapters of rank 8 on all linear layers, 4-bit base (NF4), "
        "gradients reduced after the backward pass"
    )
    cnn = convolutional_work(parse_network("64:8:1x16,1x32:basic"), micro_batch=1)
    assert "attention" not in setup_words(cnn)


def test_predict_and_json_show_the_software_and_the_defaults() -> None:
    work = transformer_work(_decoder(2, 256), micro_batch=4, setup=TrainingSetup(weights="bf16"))
    job = described_job(work, name="tiny", assumptions=("no batch was given: 4",))
    found = api.estimate(job, gpu="A100")
    (fact,) = (fact for fact in found.sources if fact.what == "training software")
    assert "bf16 weights" in fact.value
    assert fact.note == "no batch was given: 4"
    assert job.facts()["setup"]["weights"] == "bf16"
    assert job.facts()["assumptions"] == ["no batch was given: 4"]
