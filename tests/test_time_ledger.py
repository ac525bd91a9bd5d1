"""One ledger of a whole job's time: its parts are the total, in every verb and completion."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.answer import Candidate, CompletionWay
from advisor.estimate import Predictor
from advisor.jobs import Job

Record = dict[str, Any]
Ask = Callable[..., Record]

RUN = "run-schema-1"
JOB = ("--layers", "12", "--hidden", "768", "--heads", "12", "--tokens", "1B", "--batch", "256")
MACHINE = "g2-standard-4"
PARTS = {
    "start_up", "data_in", "steps", "epoch_ends", "whole_run", "checkpoints", "interruptions",
    "shortest_bill", "cpu_surplus", "storage", "results_out",
}  # fmt: skip


@pytest.fixture
def ask(in_process: Callable[..., Any], tmp_path: Path) -> Ask:
    """Ask the command, outside the checkout, for its record."""

    def asked(*arguments: str) -> Record:
        done = in_process(*arguments, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        record: Record = json.loads(done.stdout)
        return record

    return asked


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A recorded run in a folder of its own, so that its notes are."""
    shutil.copytree(Path(__file__).parent / "golden" / RUN, tmp_path / "runs" / RUN)
    return str(tmp_path / "runs" / RUN)


def hours(answer: Record) -> dict[str, float]:
    return {name: part["time_h"] for name, part in answer["breakdown"].items()}


def check_sums(answer: Record) -> None:
    """The parts have their names, none is negative, and they sum to time and cost."""
    parts = answer["breakdown"]
    assert set(parts) == PARTS
    assert min(hours(answer).values()) >= -1e-12
    assert sum(hours(answer).values()) == pytest.approx(answer["training_time_h"]["value"])
    if answer["cost_usd"] is not None:
        paid = sum(part["cost_usd"] or 0.0 for part in parts.values())
        assert paid == pytest.approx(answer["cost_usd"]["value"])


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--on", f"gcp:{MACHINE}", *JOB),
        ("predict", "--on", "aws:g5.48xlarge", "--count", "4", *JOB),
        ("predict", "--gpu", "L4", *JOB),
        ("plan", "--cluster", "2x4xL4@50Gbps", *JOB),
        ("plan", "--cluster", "1x1xA100-80GB@50Gbps,2x1xA10G@25Gbps", *JOB),
        ("plan", "--cluster", f"2 x {MACHINE}", *JOB),
        ("recommend", "--gpus", "L4", "--max-nodes", "2", *JOB),
        ("recommend", "--gpus", "L4", "--max-nodes", "2", "--spot", "--deadline", "30h", *JOB),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_the_parts_are_the_total_in_every_verb(ask: Ask, words: tuple[str, ...]) -> None:
    found = ask(*words)
    answers = found.get("plans") or found.get("front") or [found]
    for answer in answers:
        check_sums(answer)


@pytest.mark.parametrize(
    "way", ["on-demand", "spot", "spot-with-fallback", "elastic-spot"]
)  # the plan by a deadline is among the rows of ``recommend``
def test_the_parts_are_the_total_however_the_job_is_completed(
    way: CompletionWay, make_job: Callable[..., Job], predictor: Predictor
) -> None:
    found = predictor.predict(
        make_job(total_steps=2e5), "p4d.24xlarge", count=2, completion=way,
        pricing="on-demand" if way == "on-demand" else "spot",
    )  # fmt: skip
    assert isinstance(found, Candidate)
    assert found.completion == way
    check_sums(found.to_record())


def test_predict_plan_and_recommend_tell_one_row_by_the_same_parts(ask: Ask) -> None:
    told = ask("predict", "--on", f"gcp:{MACHINE}", *JOB)
    planned = ask("plan", "--cluster", f"1 x {MACHINE}", *JOB)["plans"][0]
    ranked = next(
        row for row in ask("recommend", "--gpus", "L4", "--max-nodes", "1", *JOB)["front"]
        if row["configuration"][0]["instance_type"] == MACHINE
    )  # fmt: skip
    for other in (planned, ranked):
        assert hours(other) == pytest.approx(hours(told), rel=1e-9, abs=1e-12)
    paid = {name: part["cost_usd"] for name, part in told["breakdown"].items()}
    assert {n: p["cost_usd"] for n, p in ranked["breakdown"].items()} == pytest.approx(paid)


def test_what_a_whole_run_adds_is_said_where_a_plan_adds_it(
    in_process: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("plan", "--cluster", "16x8xH100:nvlink@400Gbps", "--layers", "32", "--hidden", "4096",
             "--heads", "32", "--tokens", "1T")  # fmt: skip
    said = in_process(*words, cwd=tmp_path).stdout
    (best, *_) = json.loads(in_process(*words, "--json", cwd=tmp_path).stdout)["plans"]
    steps_h = 1e12 / (512 * 2048) * best["step_time_s"]["value"] / 3600
    share = 100 * steps_h / best["training_time_h"]["value"]
    assert 50 < share < 99  # most of it, and not all
    line = f"whole job: training steps {share:.0f} %, evaluation, stalls and manual stops"
    assert line in said


def elastic(ask: Ask, *words: str) -> Record:
    return ask("simulate", "elastic", *JOB, "--on", f"gcp:{MACHINE}", "--workers", "1", *words)


def test_the_total_does_not_depend_on_the_phases(ask: Ask) -> None:
    """Nor on saying the noise of one point or of several; it is what ``predict`` tells."""
    told = ask("predict", "--on", f"gcp:{MACHINE}", *JOB)
    beside = sum(told["breakdown"][name]["cost_usd"] for name in ("storage", "results_out"))
    asked = [("--phases", str(n)) for n in (1, 2, 4, 7)]
    for words in (*asked, (), ("--noise", "500:20000"), ("--noise", "500", "--phases", "3")):
        fixed = elastic(ask, *words)["fixed"]
        assert fixed["time_h"] == pytest.approx(told["training_time_h"]["value"], rel=1e-9)
        assert fixed["cost_usd"] == pytest.approx(
            told["cost_usd"]["value"] - beside, rel=1e-4
        )  # whole seconds


def test_a_noise_that_grows_is_seen_phase_by_phase(ask: Ask) -> None:
    """Unasked, a described job has as many phases as its noise has doublings, and one."""
    assert elastic(ask, "--noise", "500:4000")["noise_scale_samples"] == pytest.approx(
        [500, 1000, 2000, 4000]
    )
    assert elastic(ask, "--noise", "500")["phases"] == 1
    assert elastic(ask, "--noise", "500:4000", "--phases", "2")["phases"] == 2


def predicted(ask: Ask, run: str, *words: str) -> Record:
    return ask("predict", "--run", run, "--on", "aws:t3.medium", *words)


def noted(ask: Ask, run: str, *words: str) -> Record:
    return ask("runs", "actual", run, "t3.medium", *words)


@pytest.mark.parametrize("unit", ["--time", "--step-time"])
def test_a_note_equal_to_the_prediction_changes_nothing(ask: Ask, run: str, unit: str) -> None:
    before = predicted(ask, run)
    said = {"--time": f"{before['training_time_h']['value']!r}h",
            "--step-time": f"{before['step_time_s']['value']!r}s"}  # fmt: skip
    found = noted(ask, run, unit, said[unit])
    assert found["error_fraction"] == pytest.approx(0.0, abs=1e-9)
    assert found["actual"]["step_time_s"] == pytest.approx(before["step_time_s"]["value"])
    after = predicted(ask, run)
    for name in ("step_time_s", "training_time_h"):
        assert after[name]["value"] == pytest.approx(before[name]["value"], rel=0.02)


def test_a_note_of_a_job_that_is_mostly_no_steps_moves_no_step(ask: Ask, run: str) -> None:
    """Two minutes of booting that took six say nothing of steps of milliseconds."""
    before = predicted(ask, run)
    assert hours(before)["steps"] < 0.2 * before["training_time_h"]["value"]
    noted(ask, run, "--time", f"{3 * before['training_time_h']['value']!r}h")
    assert predicted(ask, run)["step_time_s"] == before["step_time_s"]


@pytest.mark.parametrize(
    "name", ["uneven batches", "uneven batches and state", "asymmetric pipeline"]
)
def test_the_networks_part_falls_as_the_network_gets_faster(ask: Ask, name: str) -> None:
    """Of every way over unlike machines, Cephalo's and Zorse's too."""
    shares = []
    for rate in (2, 10, 200):
        cluster = f"2x1xA100-80GB@{rate}Gbps,4x1xA10G@{rate}Gbps"
        plans = ask("plan", "--cluster", cluster, "--layers", "24", "--hidden", "1024",
                    "--heads", "16", "--batch", "64", "--sequence", "1024")["plans"]  # fmt: skip
        (one,) = (plan for plan in plans if plan["name"] == name)
        assert sum(one["shares"].values()) == pytest.approx(1.0)
        shares.append(one["shares"]["network"])
    assert shares[0] > shares[1] > 2 * shares[2] > 0.0
