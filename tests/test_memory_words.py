"""Words for what a step keeps: each moves memory as it says, and a stack refuses what it lacks.

Through the command, as people type it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import advisor
from advisor.ask import OPTIMIZERS, STACK_NAMES, Question
from advisor.ask.entries import PARTS
from advisor.ask.forms import command_words, project_file
from advisor.cli.program import app
from advisor.cli.terminal import with_values
from advisor.errors import UsageError
from advisor.estimate.knowledge.layout_model import software_of
from advisor.estimate.ways.model_parallel import stack_words
from advisor.jobs.model_facts import restacked
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    LOSSES,
    STACKS,
    Stack,
    TrainingSetup,
    Transformer,
)
from advisor.planners.step.describe import transformer_work

LLAMA_8B = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, is_gated=True, sequence=2048,
    vocabulary=128256, has_tied_embeddings=False,
)  # fmt: skip
MODEL = (
    "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --gated --vocabulary 128256 "
    "--sequence 2048 --batch 2 --micro-batch 2 --weights bf16 --recompute full --total-steps 10"
)


def predict(more: str, gpu: str = "A100-80GB") -> Any:
    return CliRunner().invoke(
        app, ["predict", *MODEL.split(), *more.split(), "--gpu", gpu, "--json"]
    )


def answer(more: str, gpu: str = "A100-80GB") -> dict[str, Any]:
    found = predict(more, gpu)
    assert found.exit_code == 0, found.output
    record: dict[str, Any] = json.loads(found.stdout)
    return record


def memory(more: str) -> float:
    return float(answer(more)["memory_gib"])


def refusal(more: str) -> UsageError:
    found = predict(more)
    assert isinstance(found.exception, UsageError), found.output
    assert "\n" not in str(found.exception)
    assert found.exception.hint
    return found.exception


# Each word changes memory in the direction that it states.


def test_a_loss_keeps_the_less_the_less_it_writes_down() -> None:
    eager, fused, chunked = (memory(f"--lora 8 --loss {loss}") for loss in LOSSES)
    assert eager > fused
    assert eager > chunked
    logits = 2 * 2048 * 128256 / 2**30
    assert eager - chunked == pytest.approx(14 * (1 - 1 / 8) * logits, rel=0.25)


def test_the_answer_says_which_loss_it_assumes() -> None:
    for more, loss in (
        ("--lora 8", "chunked"), ("--stack trainer", "eager"), ("--loss fused", "fused"),
        ("--stack torchtitan --weights fp32", "fused"),
    ):  # fmt: skip
        facts = {one["what"]: one["value"] for one in answer(more)["sources"]}
        assert f"{loss} loss" in facts["training software"], more


MODULES = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


@pytest.mark.parametrize(
    ("word", "modules"),
    [
        ("query-value", "q_proj,v_proj"), ("attention", "c_attn, o_proj"),
        ("all-linear", MODULES), ("all-linear", "c_attn,c_proj,c_fc"),
    ],
)  # fmt: skip
def test_adapters_stand_beside_what_a_word_or_its_modules_name(word: str, modules: str) -> None:
    named, listed = (TrainingSetup(adapter_rank=8, adapter_targets=one) for one in (word, modules))
    assert named.adapter_parameters(LLAMA_8B) == listed.adapter_parameters(LLAMA_8B)


@pytest.mark.parametrize("stack", ["trainer", "trl", "unsloth", "torchtune", "ddp"])
def test_more_adapters_take_more_memory_and_time(stack: str) -> None:
    asked = f"--stack {stack} --lora 8 --no-offload --recompute "
    recompute = "none" if "none" in STACKS[stack].recomputes else "full"  # type: ignore[index]
    found = [
        answer(f"{asked}{recompute} --lora-targets {targets}")
        for targets in ("query-value", "attention", "all-linear")
    ]
    assert [one["memory_gib"] for one in found] == sorted(one["memory_gib"] for one in found)
    seconds = [one["step_time_s"]["value"] for one in found]
    assert seconds == sorted(set(seconds))


def test_a_stack_adapts_what_its_documentation_says_unless_its_user_says_otherwise() -> None:
    usual = {
        stack: restacked(DEFAULT_SETUP, {"stack": stack, "adapter_rank": 8}).targets
        for stack in ("trainer", "trl", "unsloth", "torchtune")
    }
    assert usual["trainer"] == usual["trl"] == "query-value"
    assert usual["unsloth"] == "all-linear"
    said = {"stack": "trl", "adapter_rank": 8, "adapter_targets": "attention"}
    assert restacked(DEFAULT_SETUP, said).targets == "attention"
    facts = {one["what"]: one["value"] for one in answer("--stack trl --lora 8")["sources"]}
    assert "on query and value" in facts["training software"]


def test_torchtune_is_told_what_its_adapters_stand_beside() -> None:
    asked = "--stack torchtune --lora 8 --lora-targets q_proj,v_proj --cluster 1xA100-80GB"
    found = CliRunner().invoke(app, ["plan", *MODEL.split(), *asked.split()])
    assert found.exit_code == 0, found.output
    words = found.output.replace("\\\n", " ").split()
    assert {"'model.lora_attn_modules=[q_proj,v_proj]'", "model.apply_lora_to_mlp=False"} <= {
        *words
    }


def test_targets_that_no_model_has_or_nobody_trains_are_refused() -> None:
    assert "q_proj" in str(refusal_hint("--lora 8 --lora-targets q_prj"))
    assert "rank" in str(refusal_hint("--lora-targets attention"))


def refusal_hint(more: str) -> str | None:
    found = predict(more).exception
    assert isinstance(found, PlanningError), found
    return found.hint


def test_peft_s_adapters_are_fp32_and_cast_what_they_read() -> None:
    """torchtune's are as the model: 2 + 2 + 4 bytes a parameter against 4 + 4 + 8."""
    rank = {"adapter_rank": 64, "adapter_targets": "query-value", "weights": "bf16"}
    columns = {
        stack: software_of(
            transformer_work(
                LLAMA_8B, micro_batch=1, precision="bf16",
                setup=restacked(DEFAULT_SETUP, {"stack": stack, **rank}),
            )
        )
        for stack in ("trainer", "torchtune")
    }  # fmt: skip
    wide, narrow = (columns[stack].adapter_bytes for stack in ("trainer", "torchtune"))
    assert float(wide) == pytest.approx(2 * float(narrow))
    h = LLAMA_8B.hidden
    kept = [columns[stack].spared_input_bytes for stack in ("torchtune", "trainer")]
    # One input of h in 16 bits, or a copy in fp32 for each of the two.
    assert float(kept[0]) - float(kept[1]) == pytest.approx(2 * 4 * h - 2 * h)


def test_weights_that_are_said_to_be_fp32_stay_so_beside_adapters() -> None:
    asked = "--stack ddp --lora 8 --no-offload --weights"
    wide, narrow = (memory(f"{asked} {kind}") for kind in ("fp32", "bf16"))
    assert wide - narrow == pytest.approx(2 * 8.03e9 / 2**30, rel=0.1)


def test_fsdp_of_2023_held_what_is_frozen_beside_adapters() -> None:
    old, new = (
        software_of(
            transformer_work(
                LLAMA_8B, micro_batch=1, setup=restacked(DEFAULT_SETUP, {"stack": stack, **more})
            )
        ).gathers_whole
        for stack, more in (("fsdp@2023-12", {"adapter_rank": 8}), ("fsdp", {"adapter_rank": 8}))
    )
    assert (old, new) == (1, 0)


@pytest.mark.parametrize(
    ("lighter", "heavier"),
    [
        ("adamw-4bit", "adamw-8bit"), ("adamw-8bit", "adamw"), ("lion-8bit", "adamw-8bit"),
        ("adamw", "paged-adamw"), ("sgd", "lion-8bit"), ("adafactor", "adamw-4bit"),
        ("muon", "adamw"), ("galore", "adamw"), ("sgd", "galore"), ("lion", "paged-adamw"),
    ],
)  # fmt: skip
def test_an_optimizer_keeps_what_its_moments_take(lighter: str, heavier: str) -> None:
    few, many = (
        TrainingSetup(optimizer=name, weights="bf16").moment_bytes("bf16", LLAMA_8B)  # type: ignore[arg-type]
        for name in (lighter, heavier)
    )
    assert few < many


def test_lighter_optimizers_leave_room_on_the_device() -> None:
    found = [
        memory(f"--stack fsdp --no-offload --optimizer {name}")
        for name in ("sgd", "adamw-8bit", "adamw")
    ]
    assert found == sorted(found)
    assert found[2] - found[1] > 8  # 4 bytes a parameter against 2


def test_layers_updated_in_the_backward_pass_keep_no_gradients() -> None:
    kept, freed = (
        memory(f"--stack fsdp --no-offload {word}") for word in ("", "--optimizer-in-backward")
    )
    assert kept - freed > 4  # 16 GB of gradients, but for those that come when activations go
    accumulated = "--batch 8 --stack fsdp"
    assert answer(accumulated)["layout"]["accumulation_steps"] == 4
    assert predict(f"{accumulated} --optimizer-in-backward").exit_code == 1


PARTS_MOVED = {
    "optimizer": 14.0, "optimizer,gradients": 20.0, "activations": -0.1,
    "optimizer,gradients,parameters": 30.0,
}  # fmt: skip


@pytest.mark.parametrize("parts", PARTS_MOVED)
def test_what_is_offloaded_by_name_leaves_one_device_and_takes_time(parts: str) -> None:
    stays = answer("--no-offload")
    zero = " --zero 3" if "parameters" in parts else ""
    moved = answer(f"--offload {parts}{zero}")
    assert moved["layout"]["offload"] == sorted(parts.split(","))
    assert stays["memory_gib"] - moved["memory_gib"] > PARTS_MOVED[parts]
    assert moved["step_time_s"]["value"] >= stays["step_time_s"]["value"]


def test_paged_state_waits_for_the_host_where_it_does_not_fit() -> None:
    def waits(name: str) -> float:
        found = answer(f"--stack trainer --optimizer {name} --no-offload")
        return float(found["step_time_s"]["value"])

    # 16 + 16 + 64 GB on a card of 85: some 20 GB come and go at 25 GB/s or less.
    assert waits("paged-adamw") - waits("paged-adamw-8bit") > 2 * 10 / 25
    assert waits("paged-adamw-8bit") == pytest.approx(waits("adamw-8bit"), rel=0.02)
    assert predict("--stack trainer --optimizer paged-adamw --no-offload", "T4").exit_code == 1


def test_muon_costs_products_and_paging_costs_traffic() -> None:
    def update(name: str) -> float:
        setup = TrainingSetup(optimizer=name, weights="bf16")  # type: ignore[arg-type]
        return float(
            software_of(transformer_work(LLAMA_8B, micro_batch=1, setup=setup)).update_flop
        )

    # Five iterations of 4 m^2 n + 2 m^3 each: tens of thousands of operations a parameter.
    assert 5 * 4 * 1024 * 0.8 < update("muon") < 5 * 6 * 4096
    assert update("adamw") == 0


# What a stack lacks is refused in a line.


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("--stack torchtune --loss fused", "--stack torchtune has no --loss fused"),
        ("--stack trainer --optimizer muon", "--stack trainer has no --optimizer muon"),
        ("--stack nemo --optimizer-in-backward", "--stack nemo has no --optimizer-in-backward"),
        ("--stack nemo --offload parameters", "--stack nemo has no --offload parameters"),
        ("--optimizer-in-backward --accumulate 2", "none can be accumulated"),
        ("--offload gradients", "only beside the optimizer"),
        ("--offload optimizer --optimizer-in-backward", "not in host memory"),
    ],
)
def test_what_a_stack_lacks_is_refused_in_one_line(more: str, what: str) -> None:
    assert what in str(refusal(more))


@pytest.mark.parametrize("stack", [None, *STACKS])
def test_the_words_of_a_stack_are_those_that_it_takes(stack: Stack | None) -> None:
    words = stack_words(stack)
    assert len({(option, value) for option, value, _ in words}) == len(words)
    assert {value for option, value, _ in words if option == "--optimizer"} == set(OPTIMIZERS)
    assert {value for option, value, _ in words if option == "--offload"} == set(PARTS)
    if stack is None:
        assert all(is_known for *_, is_known in words)
        return
    facts = STACKS[stack]
    assert facts.sources
    assert facts.loss in facts.losses
    assert TrainingSetup(**facts.setup).optimizer in facts.optimizers
    setup = restacked(DEFAULT_SETUP, {"stack": stack})
    asked = restacked(setup, {"loss": facts.loss})
    plain, said = (
        software_of(transformer_work(LLAMA_8B, micro_batch=1, setup=one)) for one in (setup, asked)
    )
    assert plain == said  # the default's own word changes nothing


# One question in all its forms.


@pytest.mark.parametrize("value", [True, False, ["optimizer"], ["gradients", "optimizer"]])
def test_an_offload_is_the_same_in_every_form(value: Any) -> None:
    question = Question.read({"tokens": "1B", "offload": value, "loss": "chunked"})
    record = json.loads(json.dumps(question.to_record()))
    assert Question.read(record) == question
    words = command_words(record)
    at = next(i for i, word in enumerate(words) if "offload" in word)
    bare = {True: ["--offload=yes"], False: ["--offload=no"]}.get(str(value) == "True")
    if isinstance(value, bool):
        assert words[at] == ("--offload" if value else "--no-offload")
        assert with_values(words[at : at + 1]) == bare
    else:
        assert words[at + 1] == "optimizer" if len(value) == 1 else "optimizer,gradients"
        assert with_values(words) == words
    assert "offload = " in project_file(record)


def test_a_bare_offload_stands_before_any_word() -> None:
    plain = answer("--stack deepspeed --weights fp32 --offload", "A100-40GB")
    before = CliRunner().invoke(
        app, ["predict", "--offload", *MODEL.split(), "--stack", "deepspeed", "--weights", "fp32",
              "--gpu", "A100-40GB", "--json"])  # fmt: skip
    assert json.loads(before.stdout)["layout"] == plain["layout"]
    assert "optimizer" in plain["layout"]["offload"]


def test_python_takes_a_list() -> None:
    asked: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "batch": 8, "top": 1}
    found = advisor.recommend(
        **asked, gpus="L4", total_steps=1e6, weights="bf16", offload=["optimizer", "gradients"],
        max_nodes=1,
    )  # fmt: skip
    layout = found.front[0].layout
    assert layout is not None
    assert layout.offload == {"optimizer", "gradients"}


def test_stacks_are_named_alike_everywhere() -> None:
    assert set(STACK_NAMES) == set(STACKS)
