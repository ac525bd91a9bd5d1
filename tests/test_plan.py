from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.ask import LayoutRequest
from advisor.catalogue import Catalogue
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.case import SPACE
from advisor.estimate.knowledge.laws import ModelOn, model_on
from advisor.estimate.launch.megatron import megatron_arguments, pipeline_layout
from advisor.estimate.launch.trainer import deepspeed_config
from advisor.estimate.plan import Objective, Plan, burden
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job, read_model
from advisor.machines.cluster import parse_cluster
from advisor.machines.fleet import own_fleet
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import DEFAULT_SETUP, STACKS, TrainingSetup, Transformer
from advisor.planners.layouts import INDISTINGUISHABLE
from advisor.planners.step.describe import transformer_work
from advisor.planners.systems.atom import AVERAGE_EVERY
from advisor.rank.given import PlanQuestion, plan
from advisor.words.ways import show

LLAMA_8B = Transformer(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    sequence=4096,
    vocabulary=128256,
    is_gated=True,
)
SMALL = Transformer(layers=24, hidden=2048, heads=16, sequence=1024, vocabulary=50304)


@cache
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


@cache
def predictor() -> Predictor:
    return Predictor(catalogue(), learned=None)


def planned(
    cluster: str, transformer: Transformer = SMALL, batch: int = 64, *,
    setup: TrainingSetup = DEFAULT_SETUP, **more: Any,
) -> Plan:  # fmt: skip
    work = transformer_work(transformer, micro_batch=1, setup=setup)
    return plan(
        PlanQuestion(
            job=described_job(work, name="described", global_batch=batch),
            cluster=parse_cluster(cluster, catalogue()),
            predictor=predictor(),
            **more,
        )
    )


def test_equal_machines_get_a_layout_an_interval_a_price_and_a_command() -> None:
    found = planned("2x a2-highgpu-8g", LLAMA_8B, 128)
    best = found.best
    layout = best.layouts["a2-highgpu-8g"]
    assert layout.devices == 16
    assert layout.global_batch == 128
    assert best.step_time_s.low < best.step_time_s.value < best.step_time_s.high
    # Six flop a parameter and token are the least; the datasheet's peak the most: 0.9-fold to 4.
    ideal = 6 * 8.0e9 * 128 * 4096 / (16 * 312e12)
    assert 0.9 * ideal < best.step_time_s.value < 4 * ideal
    # Settings of the environment may stand before it.
    assert "torchrun --nnodes 2 --nproc-per-node 8" in best.commands[0].text


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_choices_use_all_machines_and_are_ranked_by_the_objective(objective: Objective) -> None:
    found = planned("4x g2-standard-48", objective=objective)
    assert {sum(c.machines.values()) for c in found.choices} == {4}
    burdens = [burden(c, objective) for c in found.choices if c.commands]
    assert burdens == sorted(burdens)
    names = [c.name for c in found.choices]
    assert len(names) == len(set(names)) > 1


def test_the_front_over_fewer_machines_trades_time_for_rent() -> None:
    found = planned("4x g2-standard-48")
    steps = [c.step_time_s.value for c in found.front]
    rents = [burden(c, "cost") for c in found.front]
    assert steps == sorted(steps)
    assert rents == sorted(rents, reverse=True)
    assert len(found.front) > 1
    # A front holds the best of all: no choice on all machines is faster.
    assert steps[0] <= min(c.step_time_s.value for c in found.choices)


@pytest.mark.parametrize(
    "degrees", [{"tp": 1, "pp": 1, "cp": 1}, {"tp": 2, "pp": 1}, {"pp": 2, "tp": 1}]
)
def test_the_best_way_is_no_slower_than_any_that_is_demanded(degrees: dict[str, Any]) -> None:
    """Of one stack: degrees that split a model say that Megatron runs it."""
    is_split = max(degrees.values()) > 1
    setup = TrainingSetup(**STACKS["nemo"].setup, stack="nemo") if is_split else TrainingSetup()
    free = planned("a2-highgpu-8g", LLAMA_8B, 128, setup=setup)
    fixed = planned("a2-highgpu-8g", LLAMA_8B, 128, space=replace(SPACE, **degrees))
    # What nobody asked to move to the host moves only where measurements would tell.
    moves = any(layout.offload for layout in fixed.best.layouts.values())
    room = INDISTINGUISHABLE if moves else 1 + 1e-12
    assert free.best.step_time_s.value <= fixed.best.step_time_s.value * room
    for choice in fixed.choices:
        (layout,) = choice.layouts.values()
        assert {name: getattr(layout, name) for name in degrees} == degrees


def test_a_choice_is_what_recommend_says_of_the_same_machines() -> None:
    job = described_job(transformer_work(SMALL, micro_batch=1), name="x", global_batch=64)
    row = catalogue().instance_type("a2-highgpu-8g").index
    columns = predictor().step_columns(job, np.array([row]), np.array([2]))
    best = planned("2x a2-highgpu-8g").best
    assert best.step_time_s.value == pytest.approx(float(columns.step_s[0]), rel=1e-12)
    assert best.layouts["a2-highgpu-8g"] == columns.layout(0)


@pytest.mark.parametrize(("name", "count"), [("a2-highgpu-8g", 2), ("g2-standard-48", 1)])
def test_the_whole_job_costs_what_predict_says(name: str, count: int) -> None:
    work = transformer_work(SMALL, micro_batch=1)
    job = described_job(work, name="x", global_batch=64, steps=1e5)
    theirs = predictor().predict(job, name, count=count)
    cluster = parse_cluster(f"{count}x {name}", catalogue())
    ours = plan(PlanQuestion(job=job, cluster=cluster, predictor=predictor()))
    same = min(ours.choices, key=lambda c: c.step_time_s.value)
    assert same.machines == {name: count}
    for mine, other in (
        (same.step_time_s, theirs.step_time_s),
        (same.training_time_h, theirs.training_time_h),
        (same.cost_usd, theirs.cost_usd),
    ):
        assert mine is not None
        for field in ("low", "value", "high"):
            assert getattr(mine, field) == pytest.approx(getattr(other, field), rel=1e-9)


def test_equal_machines_are_given_what_a_released_framework_runs() -> None:
    for cluster in ("8xA100-80GB@200Gbps", "2x8xL4@25Gbps"):
        assert all(choice.commands for choice in planned(cluster, LLAMA_8B, 64).choices)


def test_a_way_without_a_command_says_why() -> None:
    found = planned("a2-highgpu-8g + 2x g2-standard-48").choices
    silent = [choice for choice in found if not choice.commands]
    assert silent
    for choice in silent:
        assert any("framework" in note for note in choice.notes), choice.name


@pytest.mark.parametrize(("rate", "is_rdma"), [("50Gbps", False), ("100Gbps", True)])
def test_a_stated_network_bypasses_the_kernel_from_100_gbit_on(rate: str, is_rdma: bool) -> None:
    (group,) = parse_cluster(f"2x8xA100-80GB@{rate}", catalogue())
    machines, row = own_fleet(group, predictor().fleet, per_node=8)
    assert bool(machines.is_rdma[row]) is is_rdma
    assert machines.network_bytes_per_s[row] == float(rate[:-4]) * 1e9 / 8
    assert not machines.is_network_assumed[row]
    assert not any("network assumed" in n for n in planned(f"2x8xA100-80GB@{rate}").best.notes)


def test_faster_networks_never_make_it_slower() -> None:
    rates = [10, 25, 50, 100, 200, 400]
    steps = [planned(f"4x8xA100-80GB@{r}Gbps").best.step_time_s.value for r in rates]
    assert steps == sorted(steps, reverse=True)
    # One TCP stream is what limits below: 100 Gbit/s past the kernel are more than twice 50.
    assert steps[2] / steps[3] > 1.2


def test_a_network_that_nobody_states_is_said_to_be_assumed_and_widens_the_interval() -> None:
    stated, assumed = planned("2x8xA100-80GB@1600Gbps"), planned("2x8xA100-80GB")
    alone = planned("8xA100-80GB")
    assert any("network assumed: 1,600 Gbit/s" in note for note in assumed.best.notes)
    for found in (stated, alone):
        assert not any("network assumed" in note for note in found.best.notes)
    assert assumed.best.step_time_s.value == pytest.approx(stated.best.step_time_s.value)
    by_name = {c.name: c.step_time_s.high for c in stated.choices}
    for choice in assumed.choices:
        if len(choice.machines) == 1 and choice.devices == 16:
            assert choice.step_time_s.high > by_name[choice.name]
    unlike = planned("8xA100-80GB, 4xL4@25Gbps")
    joined = [c for c in unlike.choices if len(c.machines) > 1]
    assert joined
    assert all(any("network assumed" in n for n in c.notes) for c in joined)


def test_groups_that_differ_only_in_the_card_keep_their_own_times() -> None:
    """What was found of one group's machines is not taken for another's."""
    job = described_job(transformer_work(SMALL, micro_batch=1), name="x", global_batch=64)

    def model_of(cluster: str) -> ModelOn:
        groups = parse_cluster(cluster, catalogue())
        return model_on(predictor().case(job), groups)

    both = model_of("2x1xL4@25Gbps, 2x1xA10@25Gbps")
    for group in both.groups:
        alone = model_of(f"2x1x{group.part.name}@25Gbps")
        assert both.times(group).forward_s == pytest.approx(alone.times(group).forward_s)


def test_the_whole_job_is_told_of_every_way() -> None:
    work = transformer_work(SMALL, micro_batch=1)
    for cluster in ("2x a2-highgpu-8g", "a2-highgpu-8g + 2x g2-standard-48"):
        long, longer = (
            plan(
                PlanQuestion(
                    job=described_job(work, name="x", global_batch=64, steps=steps),
                    cluster=parse_cluster(cluster, catalogue()),
                    predictor=predictor(),
                )
            )
            for steps in (1e5, 2e5)
        )
        for one, other in zip(long.choices, longer.choices, strict=True):
            assert one.training_time_h is not None
            assert other.training_time_h is not None
            steps_h = 1e5 * one.step_time_s.value / 3600
            assert one.goodput_fraction is not None
            work_h = steps_h / one.goodput_fraction
            assert work_h <= one.training_time_h.value * (1 + 1e-9)
            assert one.training_time_h.value < 2 * steps_h
            assert other.training_time_h.value > 1.9 * one.training_time_h.value
            assert one.cost_usd is not None
            assert not math.isnan(one.configuration.price_usd_per_h)
            # Machines, and a little for storage and for taking the results out.
            rent = one.training_time_h.value * one.configuration.price_usd_per_h
            assert rent < one.cost_usd.value < 1.02 * rent + 2
    assert planned("a2-highgpu-8g").best.training_time_h is None  # no length was given


def test_unlike_machines_get_every_way_and_the_best_that_runs_first() -> None:
    found = planned("a2-highgpu-8g + 2x g2-standard-48")
    names = {c.name for c in found.choices} | set(found.left_out)
    assert names == {
        "equal shares",
        "pipeline over groups",
        "uneven batches",
        "uneven batches and state",
        "asymmetric pipeline",
        "a2-highgpu-8g alone",
        "g2-standard-48 alone",
    }
    runs = [c for c in found.choices if c.commands]
    assert found.best is runs[0]
    assert found.best.step_time_s.value == min(c.step_time_s.value for c in runs)


def test_uneven_batches_add_up_and_beat_even_ones() -> None:
    found = planned("a2-highgpu-4g + g2-standard-48")
    by_name = {c.name: c for c in found.choices}
    uneven = by_name["uneven batches"]
    split = [b for b in uneven.details["samples_by_device"].values() for _ in range(4)]
    assert 64 <= sum(split) < 64 + 4
    assert "--batches " + ",".join(map(str, split)) in uneven.commands[0].text
    state = by_name["uneven batches and state"]
    assert sum(state.details["batches"]) == 64
    assert sum(state.details["state_share"]) == pytest.approx(1.0)
    for way in (uneven, state):
        even_s = way.details["even_step_s"]
        assert even_s is None or way.step_time_s.value <= even_s * (1 + 1e-9)


def test_a_pipeline_over_groups_holds_all_layers() -> None:
    found = planned("a2-highgpu-8g + 2x g2-standard-48")
    pipe = next(c for c in found.choices if c.name == "pipeline over groups")
    assert sum(pipe.details["layers_by_stage"]) == 24
    assert pipeline_layout(pipe.details["layers_by_stage"]) in pipe.commands[0].text


def test_cost_over_unlike_machines_needs_prices() -> None:
    with pytest.raises(UsageError, match="without a price"):
        planned("8xA100-80GB,4xL4", objective="cost")


def test_a_model_that_fits_nowhere_says_what_would() -> None:
    huge = Transformer(layers=96, hidden=12288, heads=96, sequence=4096, vocabulary=51200)
    with pytest.raises(PlanningError, match="misses by") as caught:
        planned("2xT4", huge, 8)
    assert caught.value.exit_code == 3
    with pytest.raises(PlanningError, match="no way of training") as caught:
        planned("2xT4,2xL4", huge, 8)
    assert caught.value.exit_code == 3


def test_the_text_shows_the_layout_and_what_to_run() -> None:
    text = show(planned("a2-highgpu-8g + 2x g2-standard-48").to_record())
    assert "s a step" in text
    assert "torchrun" in text
    assert "also:" in text


def test_megatron_arguments_are_the_layouts() -> None:
    layout = Layout(
        dp=2,
        tp=4,
        pp=2,
        micro_batch=2,
        accumulation_steps=8,
        virtual_stages=4,
        schedule="interleaved",
        zero_stage=1,
        recompute="full",
        is_sequence_parallel=True,
    )
    words = shlex.split(" ".join(megatron_arguments(layout, LLAMA_8B)))
    options = {a: b for a, b in zip(words, [*words[1:], ""], strict=True) if a.startswith("--")}
    assert options["--tensor-model-parallel-size"] == "4"
    assert options["--pipeline-model-parallel-size"] == "2"
    assert options["--global-batch-size"] == "32"
    assert options["--num-layers-per-virtual-pipeline-stage"] == "4"
    assert options["--num-query-groups"] == "8"
    assert options["--recompute-granularity"] == "full"
    assert "--sequence-parallel" in options
    assert "--use-distributed-optimizer" in options
    assert "--swiglu" in options


def test_uneven_stages_are_written_out() -> None:
    layout = Layout(dp=1, tp=1, pp=3, micro_batch=1, accumulation_steps=4)
    words = " ".join(megatron_arguments(layout, SMALL, layers=[9, 8, 7]))
    assert "'Et*9|t*8|t*7L'" in words
    # 32 layers on 5 stages: 7 each and 4 on the last.
    odd = Layout(dp=1, tp=1, pp=5, micro_batch=1, accumulation_steps=4)
    assert "'Et*7|t*7|t*7|t*7|t*4L'" in " ".join(megatron_arguments(odd, LLAMA_8B))


def test_deepspeed_configuration_is_the_layouts() -> None:
    layout = Layout(
        dp=8, micro_batch=4, accumulation_steps=2, zero_stage=2, offload=frozenset({"optimizer"})
    )
    config = deepspeed_config(layout)
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 2
    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


HF: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {
            "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "vocab_size": 128256, "max_position_embeddings": 8192, "hidden_act": "silu",
        },
        {"layers": 32, "kv_heads": 8, "ffn": 14336, "is_gated": True, "sequence": 8192},
    ),
    "gpt2": (
        {
            "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
            "vocab_size": 50257, "n_positions": 1024, "n_inner": None,
        },
        {"layers": 12, "hidden": 768, "ffn": None, "is_gated": False, "sequence": 1024},
    ),
    "mixtral": (
        {
            "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 32768,
            "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
        },
        {"experts": 8, "experts_per_token": 2, "is_gated": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HF)
def test_configurations_of_model_families_are_read(tmp_path: Path, name: str) -> None:
    config, expected = HF[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_model(tmp_path)
    assert {key: getattr(found, key) for key in expected} == expected
    assert getattr(read_model(tmp_path, sequence=512), "sequence") == 512  # noqa: B009


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": 8}'])
def test_configurations_without_dimensions_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises((UsageError, PlanningError)):
        read_model(tmp_path)


RUN = CliRunner()
MODEL = ["--layers", "24", "--hidden", "2048", "--heads", "16", "--sequence", "1024"]


def test_the_command_line_prints_one_json_record() -> None:
    done = RUN.invoke(
        app, ["plan", "--cluster", "8xA100-80GB@200Gbps", "--batch", "64", *MODEL, "--json"]
    )
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["schema_version"] == 2
    assert record["model"]["transformer"]["hidden"] == 2048
    for one in record["plans"]:
        assert set(one["step_time_s"]) == {"value", "low", "high", "coverage"}
        assert one["layouts"]
        assert one["commands"][0]["command"]
    steps = [one["step_time_s"]["value"] for one in record["plans"]]
    assert steps == sorted(steps)


def test_the_record_holds_the_whole_job_and_the_ways_beside() -> None:
    arguments = ["--cluster", "2x a2-highgpu-8g", "--batch", "64", "--total-samples", "2M"]
    done = RUN.invoke(app, ["plan", *arguments, *MODEL, "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["model"]["total_steps"] == 2e6 / 64
    assert len({one["name"] for one in record["plans"]}) == len(record["plans"]) > 2
    for one in record["plans"]:
        hours, usd = one["training_time_h"]["value"], one["cost_usd"]["value"]
        assert hours >= 2e6 / 64 * one["step_time_s"]["value"] / 3600
        rent = hours * sum(p["price_usd_per_h"] * p["count"] for p in one["configuration"])
        assert rent < usd < 1.02 * rent + 2  # storage and results out
        assert 0.5 < one["goodput_fraction"] < 1
    shown = RUN.invoke(app, ["plan", *arguments, *MODEL])
    assert "whole job" in shown.output


def test_a_model_without_a_batch_gets_a_usual_one_and_says_so() -> None:
    done = RUN.invoke(app, ["plan", "--cluster", GPUS, *MODEL])
    assert done.exit_code == 0, done.output
    assert "--batch" in done.output


def test_without_a_model_the_latest_run_is_meant(tmp_path: Path) -> None:
    done = RUN.invoke(
        app, ["plan", "--cluster", GPUS, "--batch", "64"], env={"ADVISOR_RUNS": str(tmp_path)}
    )
    assert "no run in" in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == 1
    assert getattr(done.exception, "hint", "")


GPUS = "8xL4"


@pytest.mark.parametrize(
    ("cluster", "arguments", "says", "code"),
    [
        (GPUS, ["--batch", "0", *MODEL], "out of range", 2),
        (GPUS, ["--batch", "-8", *MODEL], "out of range", 2),
        (GPUS, ["--batch", "100000000", *MODEL], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--layers", "0"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--layers", "99999"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--hidden", "0"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--hidden", "10000000"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--sequence", "0"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--vocabulary", "-1"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--heads", "17"], "17 heads do not divide", 2),
        (GPUS, ["--batch", "64", *MODEL, "--objective", "fun"], "unknown", 2),
        (GPUS, ["--batch", "64", *MODEL, "--precision", "fp1"], "unknown", 2),
        (GPUS, ["--batch", "64", *MODEL, "--recompute", "some"], "unknown", 2),
        (GPUS, ["--batch", "64", *MODEL, "--zero", "7"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--coverage", "2"], "is not available", 2),
        (GPUS, ["--batch", "64", *MODEL, "--tp", "16"], "does not divide", 2),
        (GPUS, ["--batch", "64", *MODEL, "--tp", "0"], "out of range", 2),
        (GPUS, ["--batch", "64", *MODEL, "--pp", "64"], "does not divide", 2),
        ("6xL4", ["--batch", "64", *MODEL, "--tp", "3"], "heads do not divide", 2),
        ("32x8xL4", ["--batch", "64", *MODEL, "--pp", "32"], "layers do not fill", 2),
        ("5xL4", ["--batch", "7", *MODEL, "--pp", "1"], "pp 1 leaves no layout on 5 devices", 3),
        ("7xL4", ["--batch", "5", *MODEL], "nothing divides", 3),
        (GPUS, ["--batch", "64", *MODEL, "--tp", "8", "--zero", "1"], "no data parallelism", 3),
        (GPUS, ["--batch", "64", *MODEL, "--tp", "2", "--pp", "2", "--zero", "3"],
         "no released framework runs tp 2 with pp 2 with ZeRO stage 3", 3),
        (GPUS, ["--batch", "64", *MODEL, "--micro-batch", "7"], "a micro-batch of 7 leaves", 3),
        (GPUS, ["--batch", "64", *MODEL, "--ep", "2"], "ep 2 leaves no layout", 3),
        ("2xT4", ["--batch", "2", *MODEL, "--hidden", "32768", "--heads", "256"], "misses by", 3),
        ("8xNOPE", ["--batch", "64", *MODEL], "neither", 1),
        ("nope.large", ["--batch", "64", *MODEL], "nope.large", 1),
        ("0x8xL4", ["--batch", "64", *MODEL], "out of range", 2),
        ("1x64xL4", ["--batch", "64", *MODEL], "cannot have 64", 2),
        ("8xL4@0Gbps", ["--batch", "64", *MODEL], "out of range", 2),
        ("8xL4:warp", ["--batch", "64", *MODEL], "unknown link", 2),
        ("8xL4:nvlink", ["--batch", "64", *MODEL], "has no nvlink", 2),
        ("nowhere.toml", ["--batch", "64", *MODEL], "cannot read the cluster", 2),
        ("8xA100-80GB,4xL4", ["--batch", "64", *MODEL, "--objective", "cost"], "a price", 2),
    ],
)  # fmt: skip
def test_contradictions_and_nonsense_are_refused(
    cluster: str, arguments: list[str], says: str, code: int
) -> None:
    done = RUN.invoke(app, ["plan", "--cluster", cluster, *arguments])
    assert says in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == code
    if code == 3:
        assert getattr(done.exception, "hint", "")


def test_swapping_stands_beside_the_pipeline_on_the_same_network() -> None:
    done = RUN.invoke(
        app, ["plan", "--cluster", "8x1xRTX-3090@1Gbps", "--batch", "256", *MODEL, "--json"]
    )
    assert done.exit_code == 0, done.output
    plans = {p["name"]: p for p in json.loads(done.output)["plans"]}
    swap = plans["layer swapping"]
    assert swap["commands"] == []
    said = swap["details"]
    assert sum(said["layers_by_piece"]) == 24 + 2  # embedding and head
    assert said["gain_over_pipeline"] == pytest.approx(
        said["pipeline_step_s"] / swap["step_time_s"]["value"]
    )
    # 64 GiB of host memory is the default of such a machine.
    assert 16 * 1.2e9 < said["host_gib"] * 2**30 < 64 * 2**30


def test_the_averaging_interval_is_a_flag_with_a_stated_default() -> None:
    arguments = ["plan", "--cluster", "4x1xRTX-3090@1Gbps", "--batch", "64", *MODEL, "--json"]

    def swapped(*more: str) -> dict[str, Any]:
        done = RUN.invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.output
        plans = json.loads(done.output)["plans"]
        found: dict[str, Any] = next(p for p in plans if p["name"] == "layer swapping")["details"]
        return found

    assert swapped() == swapped("--average-every", str(AVERAGE_EVERY))
    assert swapped("--average-every", "1")["averaging_s"] > swapped()["averaging_s"]
    refused = RUN.invoke(app, [*arguments, "--swap", "--average-every", "0"])
    assert isinstance(refused.exception, UsageError)


def test_swapping_is_left_out_where_nobody_asks_for_it() -> None:
    names = {c.name for c in planned("8xA100-80GB@200Gbps").choices}
    assert "layer swapping" not in names
    refused = planned("8x1xRTX-3090@1Gbps", asked=LayoutRequest(swap=False))
    assert "layer swapping" not in {c.name for c in refused.choices}
    asked = planned("8xA100-80GB@200Gbps", asked=LayoutRequest(swap=True))
    assert "layer swapping" in {c.name for c in asked.choices}


def test_what_no_framework_runs_says_its_split_of_every_machine() -> None:
    done = RUN.invoke(
        app, ["plan", "--cluster", "2xA100-40GB,4xA10G", "--batch", "64", *MODEL, "--json"]
    )
    assert done.exit_code == 0, done.output
    plans = [one for one in json.loads(done.output)["plans"] if not one["commands"]]
    assert {one["name"] for one in plans} >= {"asymmetric pipeline", "uneven batches and state"}
    for one in plans:
        assert "A100" in one["details"]["split"]
        assert "A10G" in one["details"]["split"]


def test_swapping_is_compared_with_the_pipeline_that_is_printed() -> None:
    done = RUN.invoke(
        app, ["plan", "--cluster", "8x1xRTX-3090@0.1Gbps", "--batch", "16", *MODEL, "--json"]
    )
    assert done.exit_code == 0, done.output
    plans = json.loads(done.output)["plans"]
    piped = [
        one["step_time_s"]["value"] for one in plans
        if any(each["pp"] > 1 for each in one["layouts"].values())
    ]  # fmt: skip
    swap = next(one for one in plans if one["name"] == "layer swapping")
    gain = min(piped) / swap["step_time_s"]["value"]
    assert swap["details"]["gain_over_pipeline"] == pytest.approx(gain)
