"""Laws of adapters, quantised weights and frozen layers in the law of the transformer's shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.catalogue.accelerators import ELEMENTWISE_SHARE
from advisor.estimate.knowledge.layout_model import passed_share, software_of, trained_share
from advisor.machines.devices import device_parameters as stated
from advisor.planners.core.arrays import Layouts, Machines, device_parameters, shapes_of
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import TrainingSetup, Transformer, transformer_parameters
from advisor.planners.layouts.time import step_times
from advisor.planners.memory.transformers import MemoryConstants, host_bytes, memory_bytes
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.transformer import adapter_work, block_times

LLAMA = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence=2048, vocabulary=128256,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip
H100 = Machines(
    flop_per_s=700e12, memory_bytes_per_s=3.35e12, memory_bytes=80e9, intra_bytes_per_s=450e9,
    network_bytes_per_s=400e9, devices_per_node=8, generation=2,
)  # fmt: skip
ONE = Layouts(dp=1, tp=1, pp=1, micro_batch=2, accumulation_steps=4, shard_group=1)


def _work(**setup: object) -> Work:
    return transformer_work(LLAMA, micro_batch=1, precision="bf16", setup=TrainingSetup(**setup))  # type: ignore[arg-type]


def _case(work: Work, layouts: Layouts = ONE) -> LayoutCase:
    assert work.transformer is not None
    shapes = shapes_of(
        work.transformer, trained_share=trained_share(work), passed_share=passed_share(work)
    )
    return LayoutCase(
        shapes=shapes, layouts=layouts, machines=H100, software=software_of(work),
        parameters=LayoutParameters(),
    )  # fmt: skip


def _step_s(work: Work, layouts: Layouts = ONE) -> float:
    return float(step_times(_case(work, layouts)).step_s)


@pytest.mark.parametrize("layouts", [ONE, replace(ONE, tp=4), replace(ONE, pp=4, recompute=2)])
def test_adapters_cost_more_than_their_frozen_base_and_quantised_ones_more_still(
    layouts: Layouts,
) -> None:
    lora = _work(adapter_rank=16)
    bare = replace(_case(lora, layouts).software, adapter_flop=0.0, adapter_product_bytes=0.0,
                   adapter_sum_bytes=0.0)  # fmt: skip
    base = float(step_times(replace(_case(lora, layouts), software=bare)).step_s)
    qlora = _work(adapter_rank=16, base_bits=4)
    assert base < _step_s(lora, layouts) < _step_s(qlora, layouts)
    assert _step_s(lora, layouts) < _step_s(_work(adapter_rank=256), layouts)
    assert _step_s(_work(adapter_rank=16, adapter_targets="query-value"), layouts) < _step_s(
        lora, layouts
    )


def test_the_adapters_arithmetic_is_that_of_the_operators() -> None:
    for targets in ("all-linear", "attention", "query-value"):
        setup = TrainingSetup(adapter_rank=16, adapter_targets=targets)
        found = adapter_work(setup, LLAMA)
        assert found["adapter_flop"] * LLAMA.layers == 2 * setup.adapter_parameters(LLAMA)
        work = transformer_work(LLAMA, micro_batch=1, precision="bf16", setup=setup)
        named = [o for o in work.operators if o.name == "adapter" and o.phase == "forward"]
        tokens = work.micro_batch * LLAMA.sequence
        flop = sum(o.flop for o in named if o.kind == "matmul")
        assert flop / tokens == pytest.approx(found["adapter_flop"] * LLAMA.layers)
        streamed = sum(o.bytes for o in named if o.kind == "elementwise")
        assert streamed / tokens == pytest.approx(found["adapter_sum_bytes"] * LLAMA.layers)


def test_an_expert_meets_its_share_of_the_tokens() -> None:
    setup = TrainingSetup(adapter_rank=16)
    mixture = replace(LLAMA, experts=8, experts_per_token=2)
    of_experts, of_one = (adapter_work(setup, m)["adapter_flop"] for m in (mixture, LLAMA))
    twice = of_experts - of_one
    assert twice == pytest.approx(2 * 16 * 3 * (LLAMA.hidden + 14336))


def test_quantised_weights_are_written_out_in_every_pass() -> None:
    """NF4's decoding hides the writing where arithmetic is slow, and is hidden where it is not."""
    held = 218_103_808
    for arithmetic in (float("inf"), 13.4e12):
        machines = replace(H100, elementwise_flop_per_s=arithmetic)
        for layouts in (ONE, replace(ONE, recompute=2)):
            lora, qlora = (
                block_times(replace(_case(_work(adapter_rank=16, base_bits=b), layouts),
                                    machines=machines))
                for b in (16, 4)
            )  # fmt: skip
            once = held * max(2.5 / (0.856 * 3.35e12), 31.6 / arithmetic)
            assert float(qlora.forward_s - lora.forward_s) == pytest.approx(once)
            assert float(qlora.backward_s - lora.backward_s) == pytest.approx(once)
            again = once if layouts.recompute else 0.0
            assert float(qlora.recompute_s - lora.recompute_s) == pytest.approx(again)


def test_elementwise_arithmetic_has_the_share_that_the_device_model_states() -> None:
    assert stated().efficiencies["gpu"]["elementwise"].compute == ELEMENTWISE_SHARE


@pytest.mark.parametrize("bits", [4, 8])
def test_what_quantised_weights_take_grows_with_tokens_in_8_bits_alone(bits: int) -> None:
    def added(micro_batch: int) -> tuple[float, float]:
        layouts = replace(ONE, micro_batch=micro_batch)
        lora, held = (
            block_times(_case(_work(adapter_rank=16, base_bits=b), layouts)) for b in (16, bits)
        )
        return float(held.forward_s - lora.forward_s), float(held.backward_s - lora.backward_s)

    few, many = added(1), added(8)
    assert many[0] == pytest.approx(few[0] * (8 if bits == 8 else 1))
    assert many[1] == pytest.approx(few[1])  # the weights', in either


@given(st.floats(0.0, 0.95), st.sampled_from([0, 1, 2]))
def test_backward_and_activations_follow_the_layers_that_are_not_frozen(
    fraction: float, recompute: int
) -> None:
    layouts = replace(ONE, recompute=recompute)
    whole, frozen = _case(_work(), layouts), _case(_work(frozen_fraction=fraction), layouts)
    share = 1 - TrainingSetup(frozen_fraction=fraction).frozen_layers(LLAMA) / LLAMA.layers
    of_whole, of_frozen = block_times(whole), block_times(frozen)
    assert float(of_frozen.forward_s) == float(of_whole.forward_s)
    assert float(of_frozen.backward_s) == pytest.approx(share * float(of_whole.backward_s))
    assert float(of_frozen.recompute_s) == pytest.approx(share * float(of_whole.recompute_s))


def test_a_pipeline_of_frozen_layers_waits_for_its_last_stages() -> None:
    """The last of four stages trains all its layers though half of the model is frozen."""
    layouts = replace(ONE, pp=4)
    half = block_times(_case(_work(frozen_fraction=0.5), layouts))
    assert float(half.backward_s) == float(block_times(_case(_work(), layouts)).backward_s)


def test_frozen_layers_keep_no_activations() -> None:
    fixed = MemoryConstants(context_bytes=0, slack=1, logit_bytes=0, gathered_layers=0)

    def kept(work: Work) -> float:
        case = _case(work)
        bare = replace(case.software, gradient_bytes=0, optimizer_state_bytes=0, weight_bytes=0)
        return float(memory_bytes(case.shapes, case.layouts, bare, fixed))

    assert kept(_work(frozen_fraction=0.5)) == pytest.approx(kept(_work()) / 2)


@pytest.mark.parametrize(("tied", "tables"), [(False, 2), (True, 1)])
@pytest.mark.parametrize("dp", [1, 8])
def test_device_host_and_time_count_the_same_parameters(tied: bool, tables: int, dp: int) -> None:
    model = replace(LLAMA, has_tied_embeddings=tied)
    shapes = shapes_of(model)
    layouts = replace(ONE, dp=dp, shard_group=dp)
    held = float(device_parameters(shapes, layouts))
    assert held == 32 * 218_103_808 + tables * 128256 * 4096
    norms = transformer_parameters(model) - held
    assert 0 <= norms < 1e-3 * held
    fixed = MemoryConstants(context_bytes=0, slack=1, logit_bytes=0, gathered_layers=0)
    software = _case(_work()).software
    alone = replace(software, activation_scale=0)
    used = memory_bytes(shapes, layouts, alone, fixed)
    assert float(used) == pytest.approx(18 * held)
    off = replace(layouts, offloads_optimizer=1, offloads_parameters=1)
    lies = host_bytes(shapes, off, H100, alone) / np.asarray(H100.devices_per_node)
    assert float(lies) == pytest.approx((2 + 4 + 12) * held)
