"""Described diffusion U-Nets against the sizes and operations of diffusers' own."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.jobs.describe import model_work
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import TrainingSetup
from advisor.planners.step.describe_configs import read_config
from advisor.planners.step.describe_unets import DiffusionUNet

SD_15 = {
    "_class_name": "UNet2DConditionModel", "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280], "cross_attention_dim": 768,
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"], "in_channels": 4,
    "layers_per_block": 2, "out_channels": 4, "sample_size": 64,
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
}  # fmt: skip
SD_21 = SD_15 | {
    "attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "sample_size": 96,
    "use_linear_projection": True,
}  # fmt: skip
SDXL = SD_15 | {
    "attention_head_dim": [5, 10, 20], "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048, "sample_size": 128, "transformer_layers_per_block": [1, 2, 10],
    "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
    "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"], "use_linear_projection": True,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip


def _work(config: dict[str, Any], **changes: Any) -> Work:
    model = read_config(config)
    assert isinstance(model, DiffusionUNet)
    setup = TrainingSetup(attention="unfused", **changes)
    return model_work(model, micro_batch=1, precision="fp32", setup=setup)


def _products(work: Work, phase: str) -> float:
    kinds = ("matmul", "convolution", "winograd", "attention")
    return sum(o.flop for o in work.operators if o.kind in kinds and o.phase == phase)


@pytest.mark.parametrize(
    ("config", "parameters", "forward", "backward"),
    [
        # diffusers 0.42.1 on PyTorch's meta device, unfused attention, torch.utils.flop_counter.
        (SD_15, 859_520_964, 803.27344128e9, 1603.49962236e9),
        (SD_21, 865_910_724, 2149.10574592e9, 4294.06224384e9),
        (SDXL, 2_567_463_684, 6761.23639808e9, 13469.60604417e9),
    ],
)
def test_sizes_and_operations_are_those_of_diffusers(
    config: dict[str, Any], parameters: int, forward: float, backward: float
) -> None:
    work = _work(config)
    assert work.parameters == parameters
    assert _products(work, "forward") == pytest.approx(forward, rel=1e-9)
    # Text embeddings need no gradient, which the description computes all the same.
    assert _products(work, "backward") == pytest.approx(backward, rel=0.005)


def test_the_same_where_diffusers_is_installed() -> None:
    diffusers = pytest.importorskip("diffusers")
    import torch

    with torch.device("meta"):
        model = diffusers.UNet2DConditionModel(
            **{name: value for name, value in SD_21.items() if not name.startswith("_")}
        )
    assert _work(SD_21).parameters == sum(p.numel() for p in model.parameters())


def test_operations_grow_with_the_picture_and_the_batch() -> None:
    small, large = (read_config(SD_15, image=side) for side in (256, 512))
    works = [model_work(m, micro_batch=2, precision="bf16") for m in (small, large)]
    assert works[0].parameters == works[1].parameters
    # Four times the cells: convolutions as many times, attention sixteen times.
    assert 4 < _products(works[1], "forward") / _products(works[0], "forward") < 6
    doubled = model_work(large, micro_batch=4, precision="bf16")
    assert _products(doubled, "forward") == pytest.approx(2 * _products(works[1], "forward"))
    assert doubled.saved_bytes_per_sample == pytest.approx(works[1].saved_bytes_per_sample)


def test_repeated_blocks_are_joined() -> None:
    assert len(_work(SDXL).operators) < 400


def test_adapters_train_the_attention_of_a_unet() -> None:
    work = _work(SD_15, adapter_rank=4, adapter_targets="attention")
    # kohya and diffusers: a rank-4 adapter of Stable Diffusion 1.5 is 0.8 M parameters, 3.2 MB.
    assert work.trainable_parameters == 797_184
    assert _products(work, "backward") < 0.6 * _products(_work(SD_15), "backward")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoder_hid_dim": 4096}, "encoder_hid_dim 4096"),
        ({"down_block_types": ["AttnDownBlock2D"] * 4}, "AttnDownBlock2D"),
        ({"attention_head_dim": [5, 10]}, r"\[5, 10\] for 4 levels"),
        ({"sample_size": None}, "not the configuration"),
    ],
)
def test_other_unets_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanningError, match=says) as caught:
        read_config(SD_15 | changes)
    assert caught.value.hint


def test_a_picture_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(PlanningError, match="a side of 62 is halved 3 times") as caught:
        model_work(read_config(SD_15, image=500), micro_batch=1, precision="bf16")
    assert "multiple of 64 pixels" in caught.value.hint
