"""Schedules that compute gradients of weights apart: what stages wait and hold, who runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.planners.core.arrays import BACKWARDS, Layouts, Machines, Shapes
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.setup import STACKS
from advisor.planners.layouts.time import stage_times, step_times
from advisor.planners.memory.transformers import in_flight

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
TORCH = {"zb": "ScheduleZBVZeroBubble", "dualpipe": "ScheduleDualPipeV"}
RUN = CliRunner()


def torch_orders(
    schedule: str, stages: int, micro_batches: int
) -> list[list[tuple[str, int, int]]]:
    """PyTorch's own tables: (computation, micro-batch, chunk of the model) by device."""
    table: Any = object.__new__(getattr(schedules, TORCH[schedule]))
    table.pp_group_size, table.num_stages = stages, 2 * stages
    table.n_local_stages, table._n_microbatches = 2, micro_batches
    return [
        [
            (one.computation_type.name, one.microbatch_index, one.stage_index)
            for action in table._calculate_single_rank_operations(rank) if action is not None
            for one in action.sub_actions or (action,)
        ]
        for rank in range(stages)
    ]  # fmt: skip


def replayed(
    schedule: str, stages: int, micro_batches: int, times: dict[str, float]
) -> tuple[float, float]:
    """Run the tables pass by pass; return when the last ends, and what a device holds at most.

    ``times``: of a stage's two chunks together, by the names of PyTorch's computations.
    """
    orders, last = torch_orders(schedule, stages, micro_batches), 2 * stages - 1
    ended: dict[tuple[bool, int, int], float] = {}
    free, held, most = [0.0] * stages, [0] * stages, 0
    while any(orders):
        before = sum(map(len, orders))
        for rank, order in enumerate(orders):
            while order:
                what, micro, chunk = order[0]
                needs = None
                if what == "FORWARD" and chunk:
                    needs = (False, micro, chunk - 1)
                elif what in ("BACKWARD_INPUT", "FULL_BACKWARD"):
                    needs = (True, micro, chunk + 1) if chunk < last else (False, micro, chunk)
                if needs is not None and needs not in ended:
                    break
                start = max(free[rank], ended.get(needs, 0.0) if needs else 0.0)
                free[rank] = start + times[what] / 2
                if what == "FORWARD":
                    ended[False, micro, chunk] = free[rank]
                    held[rank] += 1
                    most = max(most, held[rank])
                elif what != "BACKWARD_WEIGHT":
                    ended[True, micro, chunk] = free[rank]
                if what in ("BACKWARD_WEIGHT", "FULL_BACKWARD"):
                    held[rank] -= 1
                order.pop(0)
        assert sum(map(len, orders)) < before, "the tables wait for one another"
    return max(free), most / 2


SHAPE = Shapes(
    layers=64, hidden=4096, heads=32, kv_heads=8, ffn=14336, matrices=3, sequence=4096,
    vocabulary=1,
)  # fmt: skip
# Links that take no time.
H100 = Machines(
    flop_per_s=6e14, memory_bytes_per_s=3e12, memory_bytes=8e10, intra_bytes_per_s=1e18,
    network_bytes_per_s=1e18, devices_per_node=8, generation=2,
)  # fmt: skip
PARAMETERS = replace(LayoutParameters(), straggler=0.0, pp_latency_s=0.0, dp_latency_s=0.0)


def asked(pp: int, m: int, schedule: str, **more: Any) -> LayoutCase:
    code = BACKWARDS.index(schedule) if schedule in BACKWARDS else 0
    layouts = Layouts(
        dp=1, tp=1, pp=pp, micro_batch=1, accumulation_steps=m, shard_group=1, backward=code,
        virtual_stages=1 if schedule == "1f1b" else 2, **more,
    )  # fmt: skip
    return LayoutCase(shapes=SHAPE, layouts=layouts, machines=H100, parameters=PARAMETERS)


@pytest.mark.parametrize("schedule", TORCH)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("recompute", [0, 2])
def test_what_stages_wait_is_what_pytorchs_tables_make_them_wait(
    schedule: str, pp: int, m: int, recompute: int
) -> None:
    case = asked(pp, m, schedule, recompute=recompute)
    one, found = stage_times(case), step_times(case)
    layers = SHAPE.layers / pp
    weights = float(layers * one.weights_s)
    inputs = float(layers * one.backward_s) - weights
    forward = float(layers * one.busy_s) - inputs - weights
    times = {
        "FORWARD": forward, "BACKWARD_INPUT": inputs, "BACKWARD_WEIGHT": weights,
        "FULL_BACKWARD": inputs + weights,
    }  # fmt: skip
    ended, _ = replayed(schedule, pp, m, times)
    computing = m * sum(times[name] for name in ("FORWARD", "FULL_BACKWARD"))
    waited = float(found.pipeline_s)
    if schedule == "zb":
        assert waited == pytest.approx(ended - computing, rel=1e-6)
    else:
        # Paired passes wait for each other a little more, the more stages there are.
        assert waited <= (ended - computing) * (1 + 1e-6)
        assert computing + waited == pytest.approx(ended, rel=0.06)


@pytest.mark.parametrize("schedule", TORCH)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_a_stage_holds_what_pytorchs_tables_make_it_hold(schedule: str, pp: int, m: int) -> None:
    times = dict.fromkeys(("FORWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"), 1.0)
    _, most = replayed(schedule, pp, m, {**times, "FULL_BACKWARD": 2.0})
    assert float(in_flight(asked(pp, m, schedule).layouts)) == most


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_less_is_waited_the_more_a_backward_pass_is_taken_apart(pp: int) -> None:
    waits = [float(step_times(asked(pp, 2 * pp, one)).pipeline_s)
             for one in ("1f1b", "interleaved", "dualpipe", "zb")]  # fmt: skip
    assert waits == sorted(waits, reverse=True)
    held = [float(in_flight(asked(pp, 2 * pp, one).layouts))
            for one in ("1f1b", "zb", "dualpipe", "interleaved")]  # fmt: skip
    assert held == sorted(held)
    assert np.all(np.asarray(held) <= 2 * pp)


MODEL = ("--layers", "32", "--hidden", "2048", "--heads", "16", "--sequence", "2048")
PLAN = ("plan", "--cluster", "8xH100-80GB", *MODEL, "--batch", "64", "--pp", "4")


def said(*arguments: str) -> str:
    done = RUN.invoke(app, [*PLAN, *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.exception
    return done.output


def test_chunks_interleave_and_one_chunk_does_not() -> None:
    named = ("--tp", "2", "--stack", "megatron-core")
    assert "interleaved" not in said(*named)  # Megatron's default
    four = said(*named, "--chunks", "4")
    assert "4 chunks" in four
    assert "--num-layers-per-virtual-pipeline-stage 2" in four
    recipes = ("--tp", "2", "--stack", "nemo", "--micro-batch", "1")
    assert "interleaved" in said(*recipes)
    for off in (("--chunks", "1"), ("--schedule", "1f1b")):
        assert "interleaved" not in said(*recipes, *off)


@pytest.mark.parametrize(
    ("schedule", "word"), [("zb", "ZBVZeroBubble"), ("dualpipe", "DualPipeV"), ("gpipe", "GPipe")]
)
def test_torchtitan_is_told_the_schedule(schedule: str, word: str) -> None:
    found = said("--stack", "torchtitan", "--kernels", "eager", "--schedule", schedule)
    assert f"--parallelism.pipeline_parallel_schedule {word}" in found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--schedule", "zb"), "software that nobody names has no --schedule zb"),
        (("--schedule", "gpipe", "--stack", "nemo"), "--stack nemo has no --schedule gpipe"),
        (("--chunks", "2", "--stack", "megatron-deepspeed"), "has no --chunks 2"),
        (("--schedule", "zb", "--stack", "torchtitan"), "compiled models cannot"),
        (("--schedule", "1f1b", "--chunks", "2", "--stack", "nemo"), "chunks of a stage of 2"),
    ],
)
def test_what_a_stack_cannot_do_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = RUN.invoke(app, [*PLAN, *arguments])
    assert says in str(done.exception)
    assert getattr(done.exception, "hint", "")


def test_stacks_run_what_they_choose() -> None:
    for facts in STACKS.values():
        if "pp" in facts.degrees:
            assert set(facts.schedules) <= set(facts.able_schedules)


GPT_3 = "--layers 96 --hidden 12288 --heads 96 --sequence 2048 --batch 512"
GPT_7B = "--layers 32 --hidden 4096 --heads 32 --sequence 2048 --batch 512"


def planned(*words: str) -> dict[str, Any]:
    done = RUN.invoke(app, ["plan", "--cluster", "16x8xH100@3200Gbps", *words, "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    best: dict[str, Any] = (record["front"] or record["plans"])[0]
    return best


def test_stages_that_nobody_names_interleave_where_recipes_do_and_not_where_that_is_asked() -> (
    None
):
    open_, asked = planned(*GPT_3.split()), planned(*GPT_3.split(), "--schedule", "1f1b")
    assert open_["layout"]["pp"] > 1
    assert open_["layout"]["schedule"] == "interleaved"
    assert asked["layout"]["virtual_stages"] == 1
    assert open_["step_time_s"]["value"] < asked["step_time_s"]["value"]
    # No recipe has stages for a model that sharded data parallelism holds.
    assert planned(*GPT_7B.split())["layout"]["virtual_stages"] == 1
