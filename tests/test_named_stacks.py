"""A stack that its user names has the degrees, the sharding and the command that it has."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any, Final, cast

import pytest
from typer.testing import CliRunner

from advisor.answer import Estimate
from advisor.catalogue import Catalogue
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.knowledge.layout_model import load
from advisor.estimate.plan import Plan
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.model_facts import restacked, stack_notes
from advisor.lab.fit.layout_rows import known_part
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.arrays import Machines, Software, shapes_of
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layout_case import LayoutCase
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    RELEASES,
    STACKS,
    Precision,
    Stack,
    Transformer,
    read_stack,
)
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.layouts.time import step_times
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
    found = plan(PlanQuestion(job=job, cluster=cluster, predictor=predictor())).plans
    layouts = [one.layouts["8xH100-SXM5-80GB"] for one in found]
    # FSDP, and a split model within a node: which of them is faster is a matter of a few percent.
    assert {layout.tp > 1 for layout in layouts} == {True, False}


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_assumed_of_the_software_is_one_line(stack: Stack) -> None:
    setup = restacked(DEFAULT_SETUP, {"stack": stack})
    (line,) = stack_notes(transformer_work(SMALL, micro_batch=1, setup=setup))
    assert stack in line
    assert f"{setup.kernels} kernels" in line
    assert "\n" not in line


def asked(stack: str, transformer: Transformer = SMALL, precision: Precision = "bf16",
          cluster: str = "1x8xH100-80GB") -> Estimate:  # fmt: skip
    setup = restacked(DEFAULT_SETUP, {"stack": stack})
    work = transformer_work(transformer, micro_batch=1, precision=precision, setup=setup)
    question = PlanQuestion(
        job=described_job(work, name="described", global_batch=64),
        cluster=parse_cluster(cluster, predictor().catalogue),
        predictor=predictor(),
        space=SearchSpace(tp=1, pp=1, cp=1, ep=1, micro_batch=8, zero_stages=(0, 3)),
    )
    return plan(question).best.step_time_s


@pytest.mark.parametrize("stack", ["torchtitan", "llm-foundry", "nemo"])
def test_without_a_release_the_interval_holds_its_oldest_and_newest(stack: Stack) -> None:
    bare = asked(stack)
    (oldest, *_), *_, (newest, *_) = RELEASES[stack]
    for release in (oldest, newest):
        one = asked(f"{stack}@{release}")
        assert bare.low <= one.value <= bare.high
        assert one.high / one.low <= bare.high / bare.low * (1 + 1e-9)
    # As today where none is said.
    assert bare.value == asked(f"{stack}@{newest}").value


@pytest.mark.parametrize("stack", RELEASES)
def test_a_month_is_the_newest_release_of_then(stack: Stack) -> None:
    days = [day for _, day, _ in RELEASES[stack]]
    assert days == sorted(days)
    for name, day, _ in RELEASES[stack]:
        of_month = [one for one, then, _ in RELEASES[stack] if then[:7] == day[:7]]
        assert read_stack(f"{stack}@{name}") == (stack, name)
        assert read_stack(f"{stack}@{day[:7]}") == (stack, of_month[-1])
    # Later than all that are known is the newest.
    assert read_stack(f"{stack}@2099-12")[1] == RELEASES[stack][-1][0]


@pytest.mark.parametrize("typed", ["torchtitan@9.9", "torchtitan@2001-01", "nemo@", "ddp@1.0"])
def test_an_unknown_release_is_refused_with_the_known_ones(typed: str) -> None:
    with pytest.raises(PlanningError, match="no release") as error:
        restacked(DEFAULT_SETUP, {"stack": typed})
    stack = typed.partition("@")[0]
    known = [name for name, _, _ in RELEASES.get(cast("Stack", stack), ())]
    assert all(name in error.value.hint for name in known or [f"--stack {stack}"])


def test_megatron_of_2024_recomputes_as_megatron_core_and_that_of_2021_in_full() -> None:
    old, new = (
        restacked(DEFAULT_SETUP, {"stack": f"megatron-lm@{year}"}).facts
        for year in ("2021-12", "2024-12")
    )
    assert old is not None
    assert old.recomputes == ("full",)
    assert new == STACKS["megatron-core"]


@pytest.mark.parametrize("card", ["H100-SXM5-80GB", "B200-SXM-180GB", "MI300X"])
def test_casts_of_their_own_never_make_low_precision_faster(card: str) -> None:
    part = known_part(card)
    assert part is not None
    machines = Machines(
        flop_per_s=part.flop_per_s, memory_bytes_per_s=part.memory_bytes_per_s,
        memory_bytes=part.memory_bytes, intra_bytes_per_s=4e11, network_bytes_per_s=4e11,
        devices_per_node=8, generation=part.kernels,
    )  # fmt: skip

    def step_s(precision: int, apart: int) -> float:
        case = LayoutCase(
            shapes=shapes_of(LLAMA_70B),
            layouts=layout_columns(Layout(dp=8, micro_batch=1, zero_stage=3)),
            machines=replace(machines, precision=precision),
            software=Software(casts_apart=apart),
            parameters=load().parameters,
        )
        return float(step_times(case).step_s)

    assert step_s(1, 0) < step_s(1, 1) < step_s(0, 1)
    assert step_s(0, 0) == step_s(0, 1)  # in 16 bits nothing is cast


def test_adapters_over_several_ranks_are_started_by_nemos_recipe_as_they_are_planned() -> None:
    job = "--layers 80 --hidden 8192 --heads 64 --sequence 4096 --batch 8 --lora 16"
    line = ["plan", "--cluster", "4x8xH200", *job.split(), "--precision", "fp8"]
    done = CliRunner().invoke(app, [*line, "--json"])
    assert done.exit_code == 0, done.output
    best = json.loads(done.stdout)["plans"][0]
    layout, text = best["layout"], best["commands"][0]["command"]
    assert layout["tp"] * layout["pp"] * layout["cp"] > 1  # 8 samples have no 32 ranks
    assert layout["zero_stage"] < 2
    words = dict(word.split("=") for word in text.split() if word.startswith(("model.", "peft.")))
    assert words["peft.dim"] == "16"
    for of_recipe, name in (("tensor_model", "tp"), ("pipeline_model", "pp"), ("context", "cp")):
        assert int(words.get(f"model.{of_recipe}_parallel_size", 1)) == layout[name]
    for more in (["--base-bits", "4"], ["--stack", "megatron-core"]):
        refused = CliRunner().invoke(app, [*line, *more])
        assert isinstance(refused.exception, PlanningError)


def test_megatron_recomputes_in_part_since_its_third_release() -> None:
    found = {
        release: planned(
            cast(Stack, f"megatron-lm@{release}"), "8x8xA100-80GB@1600Gbps", LLAMA_70B, 64
        )
        for release in ("2.5", "3.0.2")
    }
    assert found["2.5"].best.layout.recompute == "full"
    assert found["3.0.2"].best.layout.recompute == "selective"
    assert found["3.0.2"].best.step_time_s.value < found["2.5"].best.step_time_s.value
