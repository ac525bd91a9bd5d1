"""Plans of recorded runs: laws over the catalogue's clusters, and what is refused."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from collecting import record_command
from recorded_models import convolutions, transformer
from typer.testing import CliRunner

from advisor.ask import LayoutRequest
from advisor.catalogue import Catalogue
from advisor.cli.program import app
from advisor.errors import RunError, UsageError
from advisor.estimate.case import SPACE
from advisor.estimate.launch.recorded_script import script_of
from advisor.estimate.plan import Plan, burden
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job, Program
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.rank.given import PlanQuestion, plan
from advisor.words.ways import show

MakeJob = Callable[..., Job]
MIXED = "a2-highgpu-4g + 2x g2-standard-48"
COMMAND = ("python", "train.py", "--epochs", "4")


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False))


def job_of(make_job: MakeJob, work: Work, batch: int = 64) -> Job:
    return make_job(
        work=work, global_batch=batch, recorded_batch=work.micro_batch, step_s=0.5, workers=4
    )


def planned(job: Job, cluster: str, **more: Any) -> Plan:
    return plan(
        PlanQuestion(
            job=job,
            cluster=parse_cluster(cluster, predictor().catalogue),
            command=COMMAND,
            predictor=predictor(),
            **more,
        )
    )


@pytest.fixture(scope="module")
def on_unlike(make_job: MakeJob) -> Plan:
    """The recorded transformer's plan on unlike machines."""
    return planned(job_of(make_job, transformer()), MIXED)


@pytest.fixture(scope="module")
def on_four(make_job: MakeJob) -> Plan:
    """Its plan on a machine of four cards, where nothing of the layout is fixed."""
    return planned(job_of(make_job, transformer()), "a2-highgpu-4g")


@pytest.mark.parametrize("make", [transformer, convolutions])
def test_equal_machines_get_a_layout_a_price_and_a_command(
    make_job: MakeJob, make: Callable[[], Work]
) -> None:
    best = planned(job_of(make_job, make()), "2x g2-standard-48").best
    (layout,) = best.layouts.values()
    assert 64 <= layout.global_batch < 64 + layout.dp * layout.accumulation_steps
    assert best.step_time_s.low < best.step_time_s.value < best.step_time_s.high
    assert best.configuration.price_usd_per_h > 0
    assert "train.py --epochs 4" in best.commands[0].text
    assert sum(best.shares.values()) == pytest.approx(1.0)


def test_one_device_takes_what_the_predictor_says(make_job: MakeJob) -> None:
    """The plan and ``advisor recommend`` are the same model where there is nothing to plan."""
    job = job_of(make_job, transformer(), batch=8)
    candidate = predictor().predict(job, "g2-standard-4", provider="gcp")
    best = planned(job, "g2-standard-4").best
    assert best.step_time_s.value == pytest.approx(candidate.step_time_s.value, rel=0.01)


def test_a_slower_recorded_step_makes_every_way_slower(make_job: MakeJob, on_unlike: Plan) -> None:
    job = job_of(make_job, transformer())
    assert job.measured is not None
    slow = replace(job, measured=replace(job.measured, step_s=4 * job.measured.step_s))
    for fast_way, slow_way in zip(
        sorted(on_unlike.choices, key=lambda c: c.name),
        sorted(planned(slow, MIXED).choices, key=lambda c: c.name),
        strict=True,
    ):
        assert fast_way.name == slow_way.name
        # What a processor's step says of a GPU no data show: nothing carries over.
        assert fast_way.step_time_s.value <= slow_way.step_time_s.value


def test_unlike_machines_get_every_way(on_unlike: Plan) -> None:
    found = on_unlike
    assert {c.name for c in found.choices} | set(found.left_out) == {
        "equal shares",
        "uneven batches",
        "uneven batches and state",
        "pipeline over groups",
        "asymmetric pipeline",
        "a2-highgpu-4g alone",
        "g2-standard-48 alone",
    }
    runs = [c for c in found.choices if c.commands]
    assert found.best is runs[0]
    assert found.best.step_time_s.value == min(c.step_time_s.value for c in runs)


def test_unlike_layers_say_why_something_is_not_planned(make_job: MakeJob) -> None:
    found = planned(job_of(make_job, convolutions()), MIXED)
    assert "repeated" in found.left_out["tensor parallel"]
    assert "repeated" in found.left_out["asymmetric pipeline"]
    assert all(layout.tp == 1 for c in found.choices for layout in c.layouts.values())
    assert "no block of layers is repeated" in show(found.to_record())


def test_uneven_batches_add_up_and_beat_even_ones(make_job: MakeJob) -> None:
    found = planned(job_of(make_job, transformer(), 256), MIXED)
    uneven = next(c for c in found.choices if c.name == "uneven batches")
    split = uneven.details["samples_by_device"]
    devices = {g.label: g.devices for g in found.cluster.groups}
    assert sum(split[g] * n for g, n in devices.items()) >= 256
    assert split["a2-highgpu-4g"] > split["g2-standard-48"]
    assert uneven.step_time_s.value <= uneven.details["even_step_s"]


def test_pipelines_hold_all_units_once(make_job: MakeJob, on_unlike: Plan) -> None:
    for found, count in ((on_unlike, 9), (planned(job_of(make_job, convolutions()), MIXED), 5)):
        pipe = next(c for c in found.choices if c.name == "pipeline over groups")
        assert sum(pipe.details["layers_by_stage"]) == count
        assert len(pipe.details["first_layer_by_stage"]) == len(pipe.details["layers_by_stage"])


def test_tensor_parallel_names_the_scripts_own_modules(make_job: MakeJob) -> None:
    best = planned(
        job_of(make_job, transformer()), "a2-highgpu-4g", space=replace(SPACE, tp=2)
    ).best
    (layout,) = best.layouts.values()
    assert layout.tp == 2
    text = best.commands[0].files["parallel.py"]
    assert '"blocks.*.qkv": ColwiseParallel()' in text
    assert '"blocks.*.proj": RowwiseParallel()' in text
    assert '"blocks.*.fc2": RowwiseParallel()' in text
    compile(text, "parallel.py", "exec")


def test_pipelines_are_split_at_the_scripts_own_modules(make_job: MakeJob) -> None:
    best = planned(
        job_of(make_job, transformer()), "a2-highgpu-4g", space=replace(SPACE, pp=2, tp=1)
    ).best
    (layout,) = best.layouts.values()
    assert (layout.tp, layout.pp) == (1, 2)
    text = best.commands[0].files["parallel.py"]
    assert text.count("SplitPoint.BEGINNING") == 1
    compile(text, "parallel.py", "exec")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_text_fits_the_terminal(on_unlike: Plan, columns: int) -> None:
    text = show(on_unlike.to_record(), width=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "run:" in text


def test_cost_over_unlike_machines_needs_prices(make_job: MakeJob) -> None:
    with pytest.raises(UsageError, match="without a price"):
        planned(job_of(make_job, transformer()), "8xA100-80GB,4xL4", objective="cost")


def test_ways_on_all_machines_are_ranked_and_the_front_trades_time_for_rent(
    make_job: MakeJob,
) -> None:
    found = planned(job_of(make_job, transformer()), "4x g2-standard-48")
    assert {sum(c.machines.values()) for c in found.choices} == {4}
    assert len({c.name for c in found.choices}) == len(found.choices) > 1
    steps = [c.step_time_s.value for c in found.choices if c.commands]
    assert steps == sorted(steps)
    rents = [burden(c, "cost") for c in found.front]
    assert rents == sorted(rents, reverse=True)
    assert found.front[0].step_time_s.value <= steps[0]


@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 1, "pp": 1}, {"tp": 2}, {"pp": 2}, {"micro_batch": 2}, {"accumulation_steps": 4},
        {"tp": 2, "micro_batch": 4}, {"pp": 2, "accumulation_steps": 8},
    ],
)  # fmt: skip
def test_what_is_fixed_is_what_is_answered_and_never_faster(
    make_job: MakeJob, on_four: Plan, fixed: dict[str, Any]
) -> None:
    found = planned(
        job_of(make_job, transformer()), "a2-highgpu-4g", space=replace(SPACE, **fixed)
    )
    for choice in found.choices:
        (layout,) = choice.layouts.values()
        assert {name: getattr(layout, name) for name in fixed} == fixed
    # Layouts that cannot be told apart by measurements count as equal: 3 %.
    fastest = min(c.step_time_s.value for c in found.choices)
    assert min(c.step_time_s.value for c in on_four.choices) <= 1.03 * fastest


def test_a_layout_without_a_command_says_why(on_four: Plan, on_unlike: Plan) -> None:
    for choice in (*on_four.choices, *on_unlike.choices):
        assert choice.commands or any("framework" in note for note in choice.notes)


def test_heads_bound_the_tensor_parallel_degree(make_job: MakeJob) -> None:
    job = job_of(make_job, transformer(hidden=1024))
    free = planned(job, "a2-highgpu-4g", space=replace(SPACE, tp=4)).best
    (layout,) = free.layouts.values()
    assert layout.tp == 4
    with pytest.raises(PlanningError, match="nothing divides"):
        planned(replace(job, heads=2), "a2-highgpu-4g", space=replace(SPACE, tp=4))


def test_what_fits_nowhere_says_the_nearest_miss(make_job: MakeJob) -> None:
    huge = transformer(blocks=4, hidden=16384)
    with pytest.raises(PlanningError, match="misses by") as caught:
        planned(job_of(make_job, huge, 2), "1x2xT4")
    assert caught.value.exit_code == 3
    with pytest.raises(PlanningError, match="no way of training") as caught:
        planned(job_of(make_job, huge, 4), "2xT4,2xL4")
    assert caught.value.exit_code == 3


def test_swapping_is_compared_on_consumer_cards(make_job: MakeJob) -> None:
    job = job_of(make_job, transformer())
    names = {c.name for c in planned(job, "4x1xRTX-3090@1Gbps").choices}
    assert "layer swapping" in names
    assert "layer swapping" not in {c.name for c in planned(job, "g2-standard-48").choices}
    asked = planned(job, "g2-standard-48", asked=LayoutRequest(swap=True))
    assert "layer swapping" in {c.name for c in asked.choices}
    assert asked.best.name != "layer swapping"  # nothing released runs it


def test_programs_without_steps_are_refused(make_job: MakeJob) -> None:
    program = Program(duration_s=60.0, cpu_s=60.0, parallelism=1.0)
    with pytest.raises(RunError, match="no training steps"):
        planned(make_job(work=None, program=program), "g2-standard-4")


def test_the_script_is_what_was_recorded() -> None:
    assert script_of(["/opt/v/bin/python3.12", "a b.py", "-x"]) == "'a b.py' -x"
    assert script_of(["python", "-m", "pkg.train"]) == "-m pkg.train"
    assert script_of([]) == "train.py"


SCRIPT = Path(__file__).parents[1] / "examples" / "stdlib_transformer.py"
RUN = CliRunner()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one real, short recording of the example transformer."""
    folder = tmp_path_factory.mktemp("recorded")
    arguments = ["--steps", "400", "--layers", "3", "--hidden", "64", "--context", "32"]
    seen = record_command(folder, [sys.executable, str(SCRIPT), *arguments], limit_steps=120)
    assert seen.status == "stopped"
    return folder / "runs"


def cli(runs: Path, *arguments: str) -> Any:
    return RUN.invoke(app, ["plan", *arguments], env={"ADVISOR_RUNS": str(runs)})


def test_a_recorded_example_is_planned_from_the_command_line(runs: Path) -> None:
    done = cli(
        runs, "--run", "latest", "--cluster", "8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps",
        "--batch", "96", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["predictor"]["name"] == predictor().name
    assert record["model"]["transformer"] == {"blocks": 3, "hidden": 64, "tokens": 32}
    assert record["global_batch"] == 96
    assert "uneven batches" in {p["name"] for p in record["plans"]}
    # Equal machines would not be cut into stages for so short a job, either.
    assert "waiting" in record["left_out"]["pipeline over groups"]
    words = shlex.split(record["plans"][0]["commands"][0]["command"], comments=True)
    assert "torchrun" in words
    assert "--context" in words
    # The recording stopped early, but its script says how long the whole job is.
    for one in record["plans"]:
        assert one["training_time_h"]["value"] > one["step_time_s"]["value"] / 3600


def test_the_latest_runs_command_is_printed_where_no_job_is_named(runs: Path) -> None:
    done = cli(runs, "--cluster", "g2-standard-4", "--json")
    assert done.exit_code == 0, done.output
    assert "stdlib_transformer.py" in json.loads(done.output)["plans"][0]["commands"][0]["command"]


def test_the_recorded_batch_is_the_default(runs: Path) -> None:
    done = cli(runs, "--run", "latest", "--cluster", "g2-standard-4", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["global_batch"] == 16


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--layers", "4"], "more than one job is given: --run, --layers", 2),
        (["--model", "config.json"], "more than one job is given: --run, --model", 2),
        (["--sequence", "64"], "--sequence goes with", 2),
        (["--lora", "8"], "--lora changes what a recorded step computes", 2),
        (["--cp", "2"], "--cp is not for a recorded run", 2),
        (["--batch", "0"], "out of range", 2),
        (["--batch", "100000000"], "out of range", 2),
        (["--tp", "0"], "out of range", 2),
        (["--pp", "-2"], "out of range", 2),
        (["--pp", "64"], "nothing divides", 3),
        (["--tp", "3"], "nothing divides", 3),
        (["--heads", "0"], "out of range", 2),
        (["--heads", "5"], "do not divide", 2),
        (["--recompute", "selective"], "whole units", 2),
        (["--zero", "4"], "out of range", 2),
        (["--objective", "fun"], "unknown", 2),
    ],
)
def test_contradictions_and_nonsense_are_refused(
    runs: Path, arguments: list[str], says: str, code: int
) -> None:
    done = cli(runs, "--run", "latest", "--cluster", "4x8xL4", *arguments)
    assert says in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == code
    assert getattr(done.exception, "hint", "")


@pytest.mark.parametrize(
    ("cluster", "says"),
    [("8xNOPE", "neither"), ("0x8xL4", "out of range"), ("1x99xL4", "cannot have 99"), ("", "")],
)
def test_clusters_that_are_none_are_refused(runs: Path, cluster: str, says: str) -> None:
    done = cli(runs, "--run", "latest", "--cluster", cluster)
    assert done.exit_code != 0
    assert says in str(done.exception)
    assert getattr(done.exception, "hint", "")


def test_unknown_runs_are_refused(runs: Path) -> None:
    done = cli(runs, "--run", "nothing-like-it", "--cluster", "g2-standard-48")
    assert done.exit_code != 0
    assert "nothing-like-it" in str(done.exception)
