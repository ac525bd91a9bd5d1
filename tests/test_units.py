"""Tokens, model flop utilisation and GPU-hours against published pairs of time and utilisation."""

from __future__ import annotations

import pytest

from advisor.jobs.describe import described_job, model_work
from advisor.jobs.job import Job
from advisor.jobs.model_facts import (
    model_flop_per_step,
    tokens_per_s,
    tokens_per_sample,
    training_units,
    utilisation,
)
from advisor.planners.core.nouns import Device
from advisor.planners.core.setup import TrainingSetup, Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import parse_network
from advisor.planners.step.transformer import model_flop_per_token

A100 = Device(
    name="A100", kind="gpu", memory_bytes=80e9, memory_bytes_per_s=2e12, fp16_flop_per_s=312e12,
    bf16_flop_per_s=312e12,
)  # fmt: skip
H100 = Device(
    name="H100", kind="gpu", memory_bytes=80e9, memory_bytes_per_s=3.35e12,
    bf16_flop_per_s=989e12, fp16_flop_per_s=989e12, fp8_flop_per_s=1979e12,
)  # fmt: skip


def _gpt(layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200)


LLAMA_3_405B = Transformer(
    layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, sequence=8192, vocabulary=128256,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip
TINY_LLAMA = Transformer(
    layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632, sequence=2048, vocabulary=32000,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip


def _job(model: Transformer, batch: int, setup: TrainingSetup | None = None) -> Job:
    work = model_work(model, micro_batch=1, precision="bf16", setup=setup or TrainingSetup())
    return described_job(work, name="job", global_batch=batch, steps=100)


@pytest.mark.parametrize(
    ("model", "batch", "devices", "step_s", "published"),
    [
        # Korthikanti et al., 2022, table 5: measured seconds and model flop utilisation.
        (_gpt(48, 6144, 64), 4, 8, 1.10, 0.415),
        (_gpt(96, 12288, 96), 64, 64, 13.75, 0.514),
        (_gpt(105, 20480, 128), 280, 280, 37.83, 0.560),
        (_gpt(128, 25600, 160), 512, 512, 71.49, 0.563),
        # TinyLlama's authors: 24,000 tokens a second and A100.
        (TINY_LLAMA, 8, 1, 8 * 2048 / 24_000, 0.56),
    ],
)
def test_utilisation_is_the_published_one(
    model: Transformer, batch: int, devices: int, step_s: float, published: float
) -> None:
    found = utilisation(_job(model, batch), step_s, devices, A100)
    assert found is not None
    assert found.fraction == pytest.approx(published, rel=0.01)
    assert (found.precision, found.peak_flop_per_s) == ("bf16", 312e12)


def test_llama_3_405b_keeps_the_published_utilisation_over_its_campaign() -> None:
    """38 to 43 % in steps (table 4); 30.84 M hours (model card) hold its interruptions too."""
    job = _job(LLAMA_3_405B, 2048)
    step_s = 30.84e6 * 3600 / (15.6e12 / (2048 * 8192)) / 16384
    found = utilisation(job, step_s, 16384, H100)
    assert found is not None
    assert 0.9 * 0.38 < found.fraction < 0.43


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "devices", "step_s", "teraflop_per_s"),
    [
        # MT-NLG 530B (Smith et al., 2022): seconds and rate with recomputation.
        (105, 20480, 128, 1920, 2240, 60.1, 126),
        (105, 20480, 128, 1920, 2800, 50.2, 121),
        (105, 20480, 128, 1920, 3360, 44.4, 113),
    ],
)
def test_model_flop_and_one_more_forward_pass_are_the_published_rate(
    layers: int, hidden: int, heads: int, batch: int, devices: int, step_s: float,
    teraflop_per_s: float,
) -> None:  # fmt: skip
    model = _gpt(layers, hidden, heads)
    needed = model_flop_per_step(_job(model, batch))
    assert needed is not None
    head = 6.0 * batch * model.sequence * hidden * model.vocabulary
    again = (needed - head) / 3
    rate = (needed + again) / (devices * step_s) / 1e12
    assert rate == pytest.approx(teraflop_per_s, rel=0.01)
    # Narayanan et al., SC'21, section 5.1: 96 B s l h^2 (1 + s / 6h + V / 16 l h).
    s, v = model.sequence, model.vocabulary
    closed = 96.0 * batch * s * layers * hidden**2
    closed *= 1 + s / (6 * hidden) + v / (16 * layers * hidden)
    assert needed + again == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    "setup",
    [
        TrainingSetup(attention="unfused"),
        TrainingSetup(attention="unfused", adapter_rank=16),
        TrainingSetup(attention="unfused", frozen_fraction=0.5),
    ],
)
def test_model_flop_are_those_of_the_described_products(setup: TrainingSetup) -> None:
    work = transformer_work(TINY_LLAMA, micro_batch=1, setup=setup)
    products = sum(o.flop for o in work.operators if o.kind == "matmul")
    needed = TINY_LLAMA.sequence * model_flop_per_token(TINY_LLAMA, setup)
    assert needed == pytest.approx(products, rel=1e-9)


def test_a_faster_precision_is_measured_against_its_own_peak() -> None:
    work = model_work(TINY_LLAMA, micro_batch=1, precision="fp8")
    job = described_job(work, name="job", global_batch=8)
    on_h100, on_a100 = (utilisation(job, 1.0, 1, device) for device in (H100, A100))
    assert on_h100 is not None
    assert on_a100 is not None
    assert (on_h100.precision, on_h100.peak_flop_per_s) == ("fp8", 1979e12)
    # An A100 runs it in 16 bits.
    assert on_a100.peak_flop_per_s == 312e12


def test_tokens_and_hours_are_products() -> None:
    job = _job(TINY_LLAMA, 8)
    assert tokens_per_sample(job) == 2048
    assert tokens_per_s(job, 2.0) == 8 * 2048 / 2.0
    units = training_units(job, 36.0, 16, A100)
    assert units.accelerator_hours == 16 * 100 * 36 / 3600
    assert units.total_tokens == 100 * 8 * 2048
    assert training_units(job, 36.0, 16, None, hours=5.0).accelerator_hours == 80
    assert training_units(job, 36.0, 16, None).utilisation is None


def test_other_jobs_have_hours_alone() -> None:
    work = model_work(parse_network("64:8:1x16,1x32:basic"), micro_batch=4, precision="fp16")
    units = training_units(described_job(work, name="cnn", steps=10), 1.0, 2, A100)
    assert (units.tokens_per_s, units.utilisation, units.total_tokens) == (None, None, None)
    assert (units.accelerator_hours or 0) > 0
