"""Questions in the words that people type: what ran is not refused, and software has names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.ask import ENTRIES, Constraints, JobSpec, SetupRequest
from advisor.ask.requests import STACK_NAMES
from advisor.catalogue import parse_gpus
from advisor.estimate import case
from advisor.estimate.knowledge import layout_model
from advisor.estimate.knowledge.layout_model import load, software_of, usual_stack
from advisor.estimate.ways import data_parallel
from advisor.jobs import job_from_spec
from advisor.jobs.describe import described_job
from advisor.jobs.model_facts import as_commonly_run, restacked
from advisor.lab.fit.layout_rows import LayoutRows, read
from advisor.lab.fit.memory import read_memory
from advisor.lab.score.asked import Typed, answers, ask_rows, predictor
from advisor.machines.cluster import one_group
from advisor.machines.fleet import own_fleet
from advisor.planners.core.arrays import Layouts, Software, shapes_of
from advisor.planners.core.setup import DEFAULT_SETUP, STACKS, Stack, TrainingSetup, Transformer
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.memory.transformers import (
    MemoryConstants,
    memory_bytes,
    needed_bytes,
    state_terms,
    without_terms,
)
from advisor.planners.step.describe import transformer_work
from advisor.rank.ranking import recommend

LLAMA_8B = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence=2048, vocabulary=128256,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip
LLAMA_70B = replace(LLAMA_8B, layers=80, hidden=8192, heads=64, ffn=28672, sequence=4096)
GIB = 2**30


def asked(
    cluster: str, model: Transformer = LLAMA_8B, *, batch: int = 64, per_node: int | None = None,
    space: SearchSpace | None = None, **setup: Any,
) -> Any:  # fmt: skip
    """Return what the product says of a described model on a cluster in words."""
    asking = predictor()
    group = one_group(cluster, asking.catalogue)
    fleet, _ = own_fleet(group, asking.fleet, per_node=per_node or 1)
    typed = Typed(
        name="plain", transformer=model, precision="bf16", global_batch=batch, setup=setup,
        space=space, fleet=fleet, machines=group.count,
    )  # fmt: skip
    return answers(asking, [typed])


# Memory does not refuse what ran.


@pytest.fixture(scope="module")
def ran() -> LayoutRows:
    """Every published run, but of the largest table one in twenty."""
    rows = read(data.measurements(None))
    number = np.arange(len(rows))
    return rows.take(np.flatnonzero((rows.table != "vtrain_single") | (number % 20 == 0)))


def refused(rows: LayoutRows) -> np.ndarray:
    """Which rows are refused for their memory, asked as a user asks."""
    return np.asarray(ask_rows(rows, load(), how="plain").status == "does_not_fit_in_memory")


def test_the_margin_refuses_at_most_two_in_a_hundred_that_ran_and_the_card_none(
    ran: LayoutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_margin = refused(ran)
    assert by_margin.mean() <= 0.02
    replace_everywhere(
        monkeypatch, data_parallel, "kept_free_bytes", lambda memory, _: np.zeros_like(memory)
    )
    # What fits beside the margin fits without one.
    of_those = ran.take(np.flatnonzero(by_margin))
    assert not of_those.row_id[refused(of_those)].tolist()


def test_the_margin_refuses_four_of_five_that_ran_out_of_memory() -> None:
    """Of the sources that say which runs failed: one in eight more than without a margin."""
    known = read_memory(data.measurements(None))
    failed = known.is_out_of_memory
    assert failed.sum() >= 40
    rows, constants = known.rows, case.constants().memory
    used = needed_bytes(rows.shapes, rows.layouts, rows.software, constants)[failed]
    capacity = known.capacity_bytes[failed]
    kept = data_parallel.kept_free_bytes(capacity, np.ones(failed.sum(), bool))
    assert (used + kept > capacity).mean() >= 4 / 5
    assert (used > capacity).mean() < (used + kept > capacity).mean() - 1 / 10


@pytest.mark.parametrize("gib", [16, 32, 64, 256, 1024])
def test_of_main_memory_as_much_is_left_as_kubernetes_engine_keeps(gib: int) -> None:
    """GKE's reserve: a quarter of 4 GiB, a fifth of 4 more, 10 % of 8, 6 % of 112, 2 % beyond."""
    parts = [(4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (10**6, 0.02)]
    left, reserved = float(gib), 0.0
    for size, share in parts:
        reserved += min(left, size) * share
        left -= min(left, size)
    free = data_parallel.kept_free_bytes(np.array([gib * GIB]), np.array([False]))
    assert reserved * GIB <= float(free[0]) < 0.5 * gib * GIB


@given(memory=st.floats(4e9, 400e9))
def test_the_margin_follows_the_card(memory: float) -> None:
    free = float(data_parallel.kept_free_bytes(np.array([memory]), np.array([True]))[0])
    assert 0 < free <= min(0.07 * memory, 5 * GIB) * (1 + 1e-9)


def test_adapters_of_8b_train_on_a_card_of_24_gib() -> None:
    # The fastest moves activations to host memory, as TRL can; it fits without that, too.
    assert asked("1xRTX-4090", batch=8, adapter_rank=16).is_answered.all()
    kept = asked("1xRTX-4090", batch=8, adapter_rank=16, space=SearchSpace(offloads=()))
    assert kept.status[0] == "ok"
    whole = asked("1xRTX-4090", batch=8, stack="trainer", space=SearchSpace(offloads=()))
    assert whole.status[0] == "does_not_fit_in_memory"


SMALL: Any = st.integers(1, 4)


@given(micro=SMALL, steps=SMALL, dp=st.sampled_from([1, 2, 8]), zero=st.integers(0, 3),
       recompute=st.integers(0, 2), keeps=st.integers(0, 1))  # fmt: skip
def test_what_is_needed_is_no_more_than_what_is_shown(
    micro: int, steps: int, dp: int, zero: int, recompute: int, keeps: int
) -> None:
    layouts = Layouts(
        dp=dp, tp=1, pp=1, micro_batch=micro, accumulation_steps=steps, shard_group=dp,
        zero_stage=zero, recompute=recompute,
    )  # fmt: skip
    shapes, software = shapes_of(LLAMA_8B), Software(keeps_gradients=keeps)
    needed = float(needed_bytes(shapes, layouts, software))
    assert needed <= float(memory_bytes(shapes, layouts, software)) * (1 + 1e-12)
    always = float(needed_bytes(shapes, layouts, Software(keeps_gradients=1)))
    assert needed <= always
    # With several micro-batches the gradients of those before are there at every peak.
    assert steps == 1 or needed == always


def test_an_experts_state_is_shared_by_the_ranks_that_hold_it() -> None:
    """All devices together hold every expert once for each rank of its data-parallel group."""
    mixture = replace(LLAMA_8B, experts=8, experts_per_token=2)
    shapes, nothing = shapes_of(mixture), MemoryConstants(context_bytes=0.0, slack=1.0)
    of_experts = 32 * 8 * 3 * 4096 * 14336

    def held(ep: int, zero: int, experts: int = 8) -> float:
        layouts = Layouts(
            dp=8, tp=1, pp=1, ep=ep, micro_batch=1, accumulation_steps=1, shard_group=8,
            zero_stage=zero,
        )  # fmt: skip
        return float(without_terms(state_terms(
            replace(shapes, experts=experts), layouts, Software(), replace(
                nothing, gathered_layers=0.0
            ), layers=np.asarray(32.0), embeddings=2.0,
        )))  # fmt: skip

    for zero in (0, 1, 2, 3):
        # A dense model of the same attention: what the experts add, over all eight devices.
        dense = held(1, zero, experts=1) - _one_block(zero)
        added = 8 * (held(8, zero) - dense)
        assert added == pytest.approx(18 * of_experts, rel=1e-9)


def _one_block(zero: int) -> float:
    """State of the dense model's feed-forward blocks on one of eight ranks [bytes]."""
    block = 32 * 3 * 4096 * 14336
    weight, gradient, rest = 2.0, 4.0, 12.0
    return block * (
        weight / (8 if zero >= 3 else 1)
        + gradient / (8 if zero >= 2 else 1)
        + rest / (8 if zero >= 1 else 1)
    )


# Software has names.


def test_every_stack_can_be_named_and_says_what_a_setup_and_software_have() -> None:
    assert tuple(STACKS) == get_args(Stack) == STACK_NAMES
    words = {one.name for one in fields(TrainingSetup)}
    columns = {one.name for one in fields(Software)}
    for name, facts in STACKS.items():
        assert set(facts.setup) <= words
        assert set(facts.software) <= columns
        assert ENTRIES["stack"].kind.read(name, "--stack") == name
        setup = restacked(DEFAULT_SETUP, {"stack": name})
        work = transformer_work(LLAMA_8B, micro_batch=1, setup=setup)
        software = software_of(work)
        for column, value in facts.software.items():
            assert getattr(software, column) == value
        job = job_from_spec(JobSpec(layers=2, hidden=64, heads=2), SetupRequest(stack=name))
        assert job.work is not None
        assert job.work.setup.stack == name


def test_what_is_said_beside_a_stack_wins() -> None:
    setup = restacked(DEFAULT_SETUP, {"stack": "torchtitan", "kernels": "eager"})
    assert (setup.kernels, setup.gradients) == ("eager", "fp32")
    assert restacked(setup, {"overlaps": False}).stack == "torchtitan"


@pytest.mark.parametrize(
    "typed", [{"gradients": "fp32"}, {"overlaps": True}, {"kernels": "eager"}]
)
def test_what_is_typed_wins_over_an_assumed_stack_be_it_the_default(typed: dict[str, Any]) -> None:
    """``--gradients fp32`` in a Megatron nobody named reduces in fp32; unsaid, its own width."""
    spec, (name, value) = JobSpec(layers=2, hidden=64, heads=2), *typed.items()
    assumed = []
    for request in (SetupRequest(**typed), SetupRequest()):
        work = job_from_spec(spec, request).work
        assert work is not None
        assumed.append(getattr(as_commonly_run(work, "megatron-lm").setup, name))
    assert assumed == [value, STACKS["megatron-lm"].setup[name]]
    assert value == getattr(DEFAULT_SETUP, name) != assumed[1]


def test_a_split_model_runs_in_megatron_and_adapters_on_the_trainer_where_nobody_says() -> None:
    def usual(precision: Any = "bf16", is_split: bool = False, **setup: Any) -> Stack | None:
        work = transformer_work(
            LLAMA_8B, micro_batch=1, precision=precision, setup=TrainingSetup(**setup)
        )
        return usual_stack(work, is_split=is_split)

    assert usual() is None
    assert usual(is_split=True) == "nemo"
    assert usual("fp16", is_split=True) == "megatron-lm"
    assert usual("fp16") is None  # Llama is younger than Megatron's fp16
    assert usual(adapter_rank=8) == "trl"
    assert usual(weights="bf16") == "trl"
    # Only NeMo divides what has adapters, or has its products in 8 bits; none of 4-bit weights.
    assert usual(adapter_rank=8, is_split=True) == "nemo"
    assert usual("fp8", adapter_rank=8) == "nemo"
    assert usual(adapter_rank=8, base_bits=4, is_split=True) == "trl"


def test_gpt_in_fp16_is_of_the_time_before_flash_attention() -> None:
    """Half precision dates GPT's kind, unless what its user says is younger."""
    gpt = Transformer(layers=24, hidden=1024, heads=16, sequence=1024, vocabulary=50257)

    def usual(model: Transformer = gpt, precision: Any = "fp16", **setup: Any) -> Stack | None:
        work = transformer_work(
            model, micro_batch=1, precision=precision, setup=TrainingSetup(**setup)
        )
        return usual_stack(work, is_split=False)

    assert usual() == "megatron-lm"
    assert usual(precision="bf16") is None
    assert usual(kernels="compiled") is None
    assert usual(replace(gpt, is_causal=False)) is None


def test_a_named_stack_narrows_the_interval() -> None:
    split = replace(case.SPACE, tp=8, pp=4)
    plain, named = (
        asked("8x8xH100-SXM5-80GB@400Gbps", LLAMA_70B, batch=256, per_node=8, space=split, **said)
        for said in ({}, {"stack": "nemo"})
    )
    assert plain.step_s[0] == pytest.approx(named.step_s[0])
    assert named.high_s[0] / named.low_s[0] < plain.high_s[0] / plain.low_s[0]


def test_older_software_is_slower_and_fine_tuning_recomputes() -> None:
    split = replace(case.SPACE, tp=8, pp=4)
    new, old = (
        asked("8x8xA100-SXM4-80GB@1600Gbps", LLAMA_70B, batch=256, per_node=8, space=split,
              stack=stack).step_s[0]
        for stack in ("nemo", "megatron-lm")
    )  # fmt: skip
    assert old > 1.2 * new
    tuned = asked("8xA100-SXM4-80GB", batch=16, per_node=8, stack="trainer").step_s[0]
    kept = asked("8xA100-SXM4-80GB", batch=16, per_node=8, stack="trainer",
                 space=SearchSpace(recomputes=("none",))).step_s[0]  # fmt: skip
    # What keeps its activations has smaller micro-batches, for eager kernels keep more.
    assert tuned > 1.05 * kept


def test_a_table_left_out_says_nothing_of_any_way_to_ask() -> None:
    model = load()
    table = model.asked["plain"][0].table
    without = model.left_out(table, table)
    assert without.parameters == model.without(table)
    for errors in (without.errors, *without.asked.values()):
        assert table not in {e.table for e in errors}
    assert set(without.asked) == set(get_args(layout_model.Asked))


def test_an_answer_says_which_stack_it_assumed() -> None:
    """``recommend`` as ``plan`` does; whoever names a stack is told nothing."""
    model = Transformer(layers=4, hidden=512, heads=8, sequence=512, vocabulary=1000)
    for setup, said in ((DEFAULT_SETUP, True), (TrainingSetup(stack="nemo"), False)):
        work = transformer_work(model, micro_batch=1, precision="fp8", setup=setup)
        job = described_job(work, name="a model", global_batch=8, steps=10)
        request = Constraints(gpus=parse_gpus("H100-SXM5-80GB"), max_nodes=1)
        found = recommend(job, request, predictor=predictor())
        assert (any("no stack was named: as nemo runs it" in note for note in found.notes)) is said
