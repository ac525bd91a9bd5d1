"""Jobs that are known by their runs: read, fitted, carried to other devices, refused."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.ask import Constraints, JobSpec
from advisor.cli.program import app
from advisor.collectors.format.record_files import PROFILER_FILE
from advisor.errors import UsageError
from advisor.estimate.knowledge.known import find_job, job_from_runs, job_of, measured_runs
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import STATUSES
from advisor.jobs import load
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.load import step_of
from advisor.jobs.runs import Actual, read_runs
from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import MeasuredRun, steps_s, work_from_runs
from advisor.rank.ranking import recommend

RUN = CliRunner()
SHEET = accelerator_devices()
CARDS = ("T4", "V100-SXM2-16GB", "A100-SXM4-40GB", "RTX-3090", "H100-SXM5-80GB", "RTX-A6000")
PARAMETERS = device_parameters()
TRUTH = transformer_work(
    Transformer(layers=12, hidden=768, heads=12, sequence=256, vocabulary=30000), micro_batch=16,
    precision="fp16",
)  # fmt: skip


def made_up(cards: tuple[str, ...], factor: float = 1.0) -> tuple[Actual, ...]:
    """Steps of ``TRUTH`` by the equation itself (synthetic), times a factor."""
    runs = [MeasuredRun(device=unmeasured(SHEET[card]), batch=16, step_s=1.0) for card in cards]
    return tuple(
        Actual(run="made up", provider="", instance_type=card, count=1, batch=16,
               step_s=factor * float(step_s))
        for card, step_s in zip(cards, steps_s(TRUTH, runs, PARAMETERS), strict=True)
    )  # fmt: skip


def on_card(asking: Predictor, job: object, card: str) -> tuple[float, float]:
    columns = asking.step_columns(
        job,  # type: ignore[arg-type]
        np.array([0]), np.array([1]),
        fleet=lone_fleet(SHEET[card], 1, asking.catalogue.accelerators.get(card)),
    )  # fmt: skip
    assert columns.status[0] == 0, STATUSES[int(columns.status[0])]
    return float(columns.step_s[0]), float(columns.log_sd[0])


@given(st.permutations(range(5)), st.floats(0.1, 10.0))
def test_a_step_fitted_to_runs_takes_as_long_as_they_did(order: list[int], factor: float) -> None:
    """In any order; runs that all take longer make a step that takes as much longer."""
    known = made_up(CARDS[:5], factor)
    runs = [
        MeasuredRun(device=unmeasured(SHEET[known[i].instance_type]), batch=16,
                    step_s=known[i].step_s)
        for i in order
    ]  # fmt: skip
    work = work_from_runs(runs, PARAMETERS, precision="fp16")
    error = np.log(steps_s(work, runs, PARAMETERS) / [run.step_s for run in runs])
    assert np.max(np.abs(error)) < 0.15
    assert np.median(error) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("left_out", CARDS)
def test_a_job_known_by_its_runs_is_known_on_a_card_it_was_never_on(
    asking: Predictor, left_out: str
) -> None:
    known = [one for one in made_up(CARDS) if one.instance_type != left_out]
    job = job_from_runs(
        tuple(known), asking.catalogue, PARAMETERS, name="made up", precision="fp16"
    )
    (truth,) = made_up((left_out,))
    step_s, _ = on_card(asking, job, left_out)
    assert abs(math.log(step_s / truth.step_s)) < 0.2


def test_more_runs_narrow_the_answer(asking: Predictor) -> None:
    widths = []
    for count in (1, 3, 5):
        job = job_from_runs(
            made_up(CARDS[:count]), asking.catalogue, PARAMETERS, name="j", precision="fp16"
        )
        widths.append(on_card(asking, job, CARDS[-1])[1])
    assert widths == sorted(widths, reverse=True)


def test_runs_of_a_described_job_move_its_answer_on_other_cards(asking: Predictor) -> None:
    """Runs that took twice as long as expected say so of a card that they were not on."""
    bare = described_job(TRUTH, name="bert")
    expected = {card: on_card(asking, bare, card) for card in CARDS}
    runs = tuple(
        Actual(run="bert", provider="", instance_type=card, count=1, step_s=2 * expected[card][0])
        for card in CARDS[:3]
    )
    step_s, log_sd = on_card(asking, replace(bare, actuals=runs), CARDS[-1])
    assert step_s > 1.4 * expected[CARDS[-1]][0]
    assert log_sd < expected[CARDS[-1]][1]


def test_what_was_run_on_one_card_says_nothing_of_several(asking: Predictor) -> None:
    job = job_from_runs(made_up(CARDS), asking.catalogue, PARAMETERS, name="j", precision="fp16")
    two = lone_fleet(SHEET["T4"], 2, asking.catalogue.accelerators["T4"])
    columns = asking.step_columns(job, np.array([0]), np.array([1]), fleet=two)
    assert STATUSES[int(columns.status[0])] == "runs_on_one_machine"
    job = replace(job, total_steps=1e5, total_source="given: --total-steps")
    front = recommend(job, Constraints(top=5), predictor=asking).front
    assert front
    assert all(c.configuration.parts[0][1] == 1 for c in front)
    assert all(c.layout.dp == 1 for c in front if c.layout is not None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no run"),
        ("machine,step\n", "no run"),
        ("machine,batch\nT4,3\n", "no column 'step'"),
        ("machine,step\nT4,0.3\n", "line 2"),  # no unit
        ("machine,step\nT4,300ms\n,1s\n", "line 3"),
        ("machine,step,batch\nT4,300ms,many\n", "line 2"),
        ("machine,step,batch\nT4,300ms,0\n", "line 2"),
        ("machine,step\nT4,-3s\n", "line 2"),
        ("machine,step\nT4\n", "line 2"),
    ],
)
def test_a_table_of_runs_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as raised:
        read_runs(path)
    assert raised.value.hint


@given(st.lists(st.tuples(st.sampled_from(CARDS), st.integers(1, 10**6), st.integers(1, 512)),
                min_size=1, max_size=5))  # fmt: skip
def test_what_a_table_says_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    lines = [f"{card},{micro}us,{batch}" for card, micro, batch in rows]
    path.write_text("\n".join(["machine,step,batch", *lines]))
    found = read_runs(path)
    assert [(one.instance_type, one.batch) for one in found] == [(c, b) for c, _, b in rows]
    assert [one.step_s for one in found] == pytest.approx([m * 1e-6 for _, m, _ in rows])


def test_unknown_machines_and_fewer_samples_than_cards_are_refused(asking: Predictor) -> None:
    for name, why in (("Z9000", "is called"), ("p4d.24xlarge", "fewer samples")):
        one = Actual(run="x", provider="", instance_type=name, count=1, step_s=1.0, batch=4)
        with pytest.raises(UsageError, match=why):
            job_from_runs((one,), asking.catalogue, PARAMETERS, name="x", precision="fp16")


def test_a_recording_of_the_job_on_a_gpu_is_a_run_of_it(make_job: Callable[..., Job]) -> None:
    here = make_job()
    assert here.measured is not None
    host = replace(here.measured.host, gpus=("NVIDIA A10G",))
    there = make_job(host=host, device="cuda", step_s=0.25)
    noted = step_of(there, here)
    assert noted is not None
    assert (noted.instance_type, noted.step_s, noted.count) == ("NVIDIA A10G", 0.25, 1)
    assert step_of(here, here) is None  # on a processor
    assert step_of(there, there) is None  # its own anchor
    assert step_of(replace(there, work=TRUTH), here) is None  # another job


def test_recordings_of_one_script_move_each_others_answers(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    asking: Predictor,
) -> None:  # fmt: skip
    """Only those of the same script and arguments, that can be read, on cards that are known."""
    here = make_job()
    assert here.measured is not None
    host = here.measured.host
    card = asking.predict(here, "g5.xlarge").step_time_s
    jobs = {
        "20261121-0-train-a": here,
        "20261121-1-train-b": make_job(
            host=replace(host, gpus=("NVIDIA A10G",)), device="cuda", step_s=2 * card.value
        ),
        "20261121-2-train-c": make_job(
            host=replace(host, gpus=("Nobody's",)), device="cuda", step_s=9.0
        ),
        "20261121-3-other-d": make_job(
            host=replace(host, gpus=("NVIDIA A10G",)), device="cuda", step_s=7.0
        ),
    }
    for name in jobs:
        (tmp_path / name).mkdir()
        (tmp_path / name / PROFILER_FILE).touch()
    monkeypatch.setattr(load, "_read", lambda path, command: jobs[path.name])
    found = load.recorded_elsewhere(tmp_path / "20261121-0-train-a", ("python", "t.py"), here)
    assert sorted(one.instance_type for one in found) == ["NVIDIA A10G", "Nobody's"]
    after = asking.predict(replace(here, actuals=found), "g5.xlarge").step_time_s
    assert after.value > 1.5 * card.value
    assert after.high / after.low < card.high / card.low


def test_a_recording_that_cannot_be_read_is_no_run(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    for name in ("20261121-0-train-a", "20261121-1-train-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / PROFILER_FILE).write_bytes(b"torn")
    path = tmp_path / "20261121-0-train-a"
    assert load.recorded_elsewhere(path, ("python", "t.py"), make_job()) == ()


def test_no_run_makes_no_job() -> None:
    with pytest.raises(PlanningError):
        work_from_runs([], PARAMETERS, precision="fp16")


def test_the_verb_answers_from_a_table_alone_and_beside_a_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("machine,step,batch\ng5.xlarge,310ms,32\nV100-SXM2-16GB,220ms,32\n")
    alone = RUN.invoke(app, ["predict", "--runs", str(path), "--gpu", "T4"])
    assert alone.exit_code == 0, alone.output
    assert "step on 1 x g5.xlarge" in alone.output
    model = ["--layers", "12", "--hidden", "768", "--heads", "12", "--sequence", "256"]
    with_runs, without = (
        RUN.invoke(app, ["predict", *model, "--batch", "32", *more, "--gpu", "T4", "--json"])
        for more in (["--runs", str(path)], [])
    )
    assert with_runs.exit_code == without.exit_code == 0, with_runs.output
    assert with_runs.stdout != without.stdout


def test_a_job_of_runs_has_the_length_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("machine,step,batch\nT4,310ms,32\n")
    job = job_of(JobSpec(runs=str(path), total_steps=1000.0, precision="fp16"))
    assert (job.total_steps, job.global_batch, job.name) == (1000.0, 32, "mine")
    assert [one.instance_type for one in job.actuals] == ["T4"]


OWN_MACHINE = (
    "rule,provider,instance_type,region,pricing,value,unit,service,count,vcpus,memory_gib,"
    "accelerator,accelerator_count,network_gbps,note\n"
    "machine,lab,under-my-desk,,,0.5,,,1,32,128,t4,1,10,\n"
)
MODEL = (
    "--layers",
    "12",
    "--hidden",
    "768",
    "--heads",
    "12",
    "--sequence",
    "256",
    "--batch",
    "32",
)


@pytest.mark.parametrize("model", [(), MODEL])
def test_a_run_may_be_on_a_machine_that_only_the_users_catalogue_has(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    """It says what the same run on the accelerator says that the machine has."""
    rules, own, card = (tmp_path / name for name in ("rules.csv", "own.csv", "card.csv"))
    rules.write_text(OWN_MACHINE)
    steps = {}
    for path, machine in ((own, "under-my-desk"), (card, "T4")):
        path.write_text(f"machine,step,batch\n{machine},310ms,32\n")
        words = ["predict", *model, "--runs", str(path), "--gpu", "A10G", "--json"]
        answer = RUN.invoke(app, [*words, "--overrides", str(rules)])
        assert answer.exit_code == 0, answer.exception
        steps[machine] = json.loads(answer.stdout)["step_time_s"]["value"]
    assert steps["under-my-desk"] == pytest.approx(steps["T4"], rel=0.02)
    refused = RUN.invoke(app, ["predict", *model, "--runs", str(own), "--gpu", "A10G"])
    assert isinstance(refused.exception, UsageError)
    assert "'under-my-desk'" in str(refused.exception)


def test_a_machine_of_one_card_is_the_card(asking: Predictor) -> None:
    """Written as for ``--cluster``, by the catalogue's name of the type, or by the card's."""
    steps = []
    for name in ("1xT4", "T4"):
        one = Actual(run="x", provider="", instance_type=name, count=1, step_s=0.31, batch=32)
        job = job_from_runs((one,), asking.catalogue, PARAMETERS, name="x", precision="fp16")
        steps.append(on_card(asking, job, "V100-SXM2-16GB"))
    assert steps[0] == steps[1]
    several = [
        Actual(run="x", provider="", instance_type=name, count=count, step_s=0.31, batch=32)
        for name, count in (("2x4xT4", 1), ("4xT4", 2), ("T4", 8))
    ]
    runs = [measured_runs((one,), asking.catalogue) for one in several]
    assert runs[0] == runs[1] == runs[2]
    assert (runs[0][0].workers, runs[0][0].batch) == (8, 4)


def test_a_table_of_runs_alone_names_a_job_in_python_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("machine,step,batch\nT4,310ms,32\n")
    assert find_job(runs=str(path), total_steps=10).name == "mine"
