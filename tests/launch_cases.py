"""Layouts, models and software that the tests of launch commands share."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.estimate.launch.frameworks import command, framework_of
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import Framework
from advisor.planners.layouts.problem import (
    SearchSpace,
    axis_part,
    block,
    layout_at,
    recomputes,
    shards,
    splits,
)

DENSE = Transformer(
    layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=32000, ffn=11008, is_gated=True,
    kv_heads=8, has_tied_embeddings=False,
)  # fmt: skip
MODELS = {
    "dense": DENSE,
    "wide": Transformer(layers=18, hidden=1024, heads=16, sequence=512, vocabulary=50257),
    "mixture": replace(DENSE, experts=8, experts_per_token=2),
    "switch": replace(DENSE, experts=16, experts_per_token=1, is_gated=False, kv_heads=None),
}
SETUPS: list[tuple[TrainingSetup, Precision]] = [
    (TrainingSetup(), "bf16"),
    (TrainingSetup(), "fp16"),
    (TrainingSetup(), "fp8"),
    (TrainingSetup(), "tf32"),
    (TrainingSetup(kernels="compiled", overlaps=False), "bf16"),
    (TrainingSetup(adapter_rank=8, base_bits=8), "bf16"),
    (TrainingSetup(weights="bf16", gradients="bf16"), "bf16"),
    (TrainingSetup(optimizer="adamw-bf16", gradients="bf16"), "bf16"),
    (TrainingSetup(optimizer="sgd"), "bf16"),
    (TrainingSetup(optimizer="adamw-8bit"), "bf16"),
    (TrainingSetup(optimizer="adafactor"), "fp32"),
    (TrainingSetup(optimizer="lion-8bit", weights="bf16", stack="trainer"), "bf16"),
    (TrainingSetup(optimizer="paged-adamw", weights="bf16", adapter_rank=8), "bf16"),
    (TrainingSetup(kernels="fused", stack="megatron-deepspeed"), "bf16"),
]


def random_layouts(
    transformer: Transformer, seed: int, count: int, devices: int = 32
) -> Iterator[Layout]:
    """Yield layouts of the search's grid, GPipe and hierarchical sharding among them."""
    chosen = random.Random(seed)
    space = SearchSpace()
    axis = splits(transformer, devices, 64, space)
    recompute, shard = recomputes(space), shards(space)
    layouts, valid = block(axis_part(axis, slice(None)), recompute, shard, devices_per_node=8)
    shape = np.broadcast_shapes(valid.shape, np.shape(layouts.recompute))
    places = np.argwhere(np.broadcast_to(valid, shape))
    for _ in range(count):
        place = tuple(int(i) for i in places[chosen.randrange(len(places))])
        yield layout_at(layouts, place, shape)


CASES = [
    (name, transformer, setup, precision)
    for name, transformer in MODELS.items()
    for setup, precision in SETUPS
]


def odd_layouts() -> list[Layout]:
    """Layouts that the grid leaves out, or seldom makes."""
    return [
        Layout(dp=8),
        Layout(dp=8, is_sequence_parallel=True),
        Layout(dp=4, virtual_stages=2),
        Layout(dp=2, pp=4, virtual_stages=2, accumulation_steps=6, schedule="interleaved"),
        Layout(dp=2, pp=4, virtual_stages=3, accumulation_steps=8, schedule="interleaved"),
        Layout(dp=2, pp=4, accumulation_steps=8, schedule="gpipe"),
        Layout(dp=6, zero_stage=1, shard_group=4),
        Layout(dp=6, zero_stage=3, shard_group=4),
        Layout(dp=8, ep=4, zero_stage=1, shard_group=2),
        Layout(dp=8, ep=4, zero_stage=3, shard_group=4),
        Layout(dp=8, ep=3),
        Layout(dp=6, ep=4),
        Layout(dp=2, tp=4, ep=8, etp=1, is_sequence_parallel=True),
        Layout(dp=8, cp=4, ep=2, zero_stage=3),
        Layout(dp=2, pp=4, virtual_stages=2, accumulation_steps=8, schedule="zb"),
        Layout(dp=2, pp=4, virtual_stages=2, accumulation_steps=7, schedule="dualpipe"),
        Layout(dp=8, cp=4),
        Layout(tp=4),
        Layout(tp=4, is_sequence_parallel=True),
        Layout(tp=3),
        Layout(tp=3, cp=2, is_sequence_parallel=True),
        Layout(tp=7),
        Layout(pp=2, accumulation_steps=4),
        Layout(dp=2, pp=2, tp=2, accumulation_steps=4),
        Layout(dp=2, tp=2, zero_stage=1),
        Layout(dp=8, zero_stage=2),
        Layout(dp=8, recompute="selective"),
        *(
            Layout(dp=8, zero_stage=zero, offload=frozenset(what), recompute=recompute)  # type: ignore[arg-type]
            for zero in range(4)
            for what in (["activations"], ["optimizer"], ["parameters"], ["gradients"])
            for recompute in ("none", "full")
        ),
        Layout(pp=2, accumulation_steps=4, offload=frozenset({"activations"})),
        Layout(recompute="selective"),
        Layout(updates_in_backward=True),
        Layout(pp=2, accumulation_steps=4, updates_in_backward=True, zero_stage=3),
        Layout(tp=2, offload=frozenset({"activations"}), recompute="full"),
    ]


def options_of(text: str) -> dict[str, str]:
    """Return arguments after the script, environment under its own names."""
    words = shlex.split(text.replace("${TRAINING_ARGS:-", " ").replace("}", " "), comments=True)
    found = {w.split("=")[0]: w.split("=")[1] for w in words if "=" in w and w[0].isupper()}
    start = next(i for i, w in enumerate(words) if w.endswith(".py"))
    arguments = words[start + 1 :]
    for here, after in zip(arguments, [*arguments[1:], "--"], strict=True):
        if here.startswith("--"):
            found[here] = "" if after.startswith("--") else after
    return found


def megatron_cases(seed: int, count: int = 60) -> Iterator[tuple[Transformer, Layout, str]]:
    for _, transformer, setup, precision in CASES:
        for layout in random_layouts(transformer, seed, count):
            keywords: dict[str, Any] = {"setup": setup, "precision": precision}
            if framework_of(layout, transformer, **keywords) == "megatron":
                made = command(layout, transformer, group="a", nodes=4, per_node=8, **keywords)
                yield transformer, layout, made.text


def data_parallel(framework: Framework, seed: int) -> Iterator[tuple[Layout, Any]]:
    """Yield data-parallel layouts that a framework runs, with their commands."""
    chosen = random.Random(seed)
    for setup, precision in SETUPS:
        for _ in range(60):
            zero = chosen.randrange(4)
            names = [
                n for n in ("optimizer", "parameters", "activations") if chosen.random() < 0.4
            ]
            layout = Layout(
                dp=32,
                micro_batch=chosen.choice([1, 2, 8]),
                accumulation_steps=chosen.choice([1, 4]),
                zero_stage=zero,
                recompute=chosen.choice(["none", "full"]),
                shard_group=chosen.choice([None, 8]) if zero else None,
                offload=frozenset(names),  # type: ignore[arg-type]
            )
            keywords: dict[str, Any] = {"setup": setup, "precision": precision}
            if framework_of(layout, DENSE, **keywords) == framework:
                yield layout, command(layout, DENSE, group="a", nodes=4, per_node=8, **keywords)
