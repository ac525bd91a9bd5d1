"""A stack that its user names has the degrees, the sharding and the command that it has."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

from advisor.catalogue import Catalogue
from advisor.errors import UsageError
from advisor.estimate.plan import Plan
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.model_facts import restacked, stack_notes
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.setup import DEFAULT_SETUP, STACKS, Stack, Transformer
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.step.describe import transformer_work
from advisor.rank.given import PlanQuestion, plan

SMALL: Final = Transformer(
    layers=24, hidden=1024, heads=16, sequence=1024, vocabulary=50304, is_gated=True
)
LLAMA_70B: Final = Transformer(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, is_gated=True, sequence=4096,
    vocabulary=128256, has_tied_embeddings=False,
)  # fmt: skip
# What starts a job of each framework, and of no other.
PROGRAMS: Final = {
    "megatron": "pretrain_gpt.py", "torchtitan": "torchtitan.train", "deepspeed": "--deepspeed",
    "trainer": "--per_device_train_batch_size", "torchtune": "tune run",
}  # fmt: skip
EQUAL: Final = "2x8xA100-80GB@400Gbps"
UNLIKE: Final = "8xA100-80GB@200Gbps,8xH100@400Gbps"
DEGREES: Final = ("tp", "pp", "cp", "ep")


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def planned(
    stack: Stack, cluster: str, transformer: Transformer = SMALL, batch: int = 64, **space: Any
) -> Plan:
    setup = restacked(DEFAULT_SETUP, {"stack": stack})
    work = transformer_work(transformer, micro_batch=1, setup=setup)
    return plan(
        PlanQuestion(
            job=described_job(work, name="described", global_batch=batch),
            cluster=parse_cluster(cluster, predictor().catalogue),
            predictor=predictor(),
            space=SearchSpace(**space),
        )
    )


@pytest.mark.parametrize("cluster", [EQUAL, UNLIKE])
@pytest.mark.parametrize("stack", STACKS)
def test_a_named_stack_splits_and_shards_as_it_does_on_equal_and_unlike_machines(
    stack: Stack, cluster: str
) -> None:
    facts = STACKS[stack]
    found = [choice for choice in planned(stack, cluster).choices if choice.commands]
    assert found
    for choice in found:
        for layout in choice.layouts.values():
            split = {name for name in DEGREES if getattr(layout, name) > 1}
            assert split <= set(facts.degrees)
            assert layout.zero_stage in facts.zero_stages
            if facts.always_shards and layout.dp > 1:
                assert layout.zero_stage > 0


@pytest.mark.parametrize("stack", STACKS)
def test_the_command_is_that_of_the_stack(stack: Stack) -> None:
    best = planned(stack, EQUAL).best
    text = " ".join(command.text for command in best.commands)
    assert PROGRAMS[STACKS[stack].framework] in text


@pytest.mark.parametrize("name", DEGREES)
@pytest.mark.parametrize("stack", STACKS)
def test_a_degree_that_a_named_stack_lacks_is_refused_in_a_line(stack: Stack, name: str) -> None:
    if name in STACKS[stack].degrees:
        return
    with pytest.raises(UsageError, match=f"--stack {stack} has no --{name}") as refused:
        planned(stack, EQUAL, SMALL, 64, **{name: 2})
    assert stack not in (refused.value.hint or "").partition(": ")[2].split(", ")


def test_torchtitan_shards_alone_where_that_fits_and_splits_where_nothing_else_does() -> None:
    alone = planned("torchtitan", "8xH100", SMALL).best.layouts["8xH100-SXM5-80GB"]
    assert (alone.dp, alone.tp, alone.pp, alone.cp, alone.zero_stage) == (8, 1, 1, 1, 3)
    split = planned("torchtitan", "8x8xH100", LLAMA_70B, 16)
    layout = split.best.layouts["8xH100-SXM5-80GB"]
    assert layout.devices == 64
    assert layout.tp * layout.pp * layout.cp > 1  # 16 samples have no 64 ranks


def test_fsdp_with_tensor_and_pipeline_parallelism_is_torchtitans() -> None:
    best = planned("torchtitan", "8x8xH100", LLAMA_70B, 64, tp=8, pp=2, zero_stages=(3,)).best
    words = best.commands[0].text.split()
    assert words[words.index("--parallelism.data_parallel_shard_degree") + 1] == "4"
    assert words[words.index("--parallelism.tensor_parallel_degree") + 1] == "8"
    assert words[words.index("--parallelism.pipeline_parallel_degree") + 1] == "2"


def test_an_unnamed_stack_leaves_the_degrees_open() -> None:
    work = transformer_work(LLAMA_70B, micro_batch=1)
    job = described_job(work, name="described", global_batch=64)
    cluster = parse_cluster("4x8xH100", predictor().catalogue)
    best = plan(PlanQuestion(job=job, cluster=cluster, predictor=predictor())).best
    assert best.layouts["8xH100-SXM5-80GB"].tp > 1


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_assumed_of_the_software_is_one_line(stack: Stack) -> None:
    setup = restacked(DEFAULT_SETUP, {"stack": stack})
    (line,) = stack_notes(transformer_work(SMALL, micro_batch=1, setup=setup))
    assert stack in line
    assert f"{setup.kernels} kernels" in line
    assert "\n" not in line
