"""Laws of a user's own runs: what was measured is what is answered there."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.ask import JobSpec
from advisor.errors import AdvisorError
from advisor.estimate.estimate import estimate_on_type
from advisor.estimate.knowledge.known import job_of
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError

MACHINES = {
    "p3.2xlarge": 1, "g4dn.xlarge": 1, "g5.xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8,
    "g4dn.12xlarge": 4,
}  # fmt: skip
Run = tuple[str, int, int, float]  # machine, number of them, samples of a device, seconds
# Repeated runs of one job on one machine scatter by some 3 % (``case.ACTUAL_LOG_SD``).
SCATTER = 0.03
RUNS = st.lists(
    st.tuples(
        st.sampled_from(sorted(MACHINES)), st.sampled_from([1, 1, 1, 2]),
        st.sampled_from([8, 16, 32, 64, 128]), st.floats(0.05, 5.0),
    ),
    min_size=1, max_size=8, unique_by=lambda one: one[:3],
)  # fmt: skip
slowly = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def known_by(folder: Path, runs: list[Run], asked: Run) -> Job:
    """Return a job that is known by a file of runs alone, in the batch of one of them."""
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["machine", "count", "batch", "step"])
        for machine, count, each, seconds in runs:
            batch = each * MACHINES[machine] * count
            writer.writerow([machine, count, batch, f"{1e3 * seconds:.6f}ms"])
    machine, count, each, _ = asked
    return job_of(JobSpec(runs=str(path), batch=each * MACHINES[machine] * count))


def answer(physics: Predictor, folder: Path, runs: list[Run], asked: Run) -> float:
    job = known_by(folder, runs, asked)
    found = estimate_on_type(physics, job, asked[0], provider="aws", count=asked[1])
    return found.step_time_s.value


def law_s(machine: str, count: int, each: int, speed: float, sync_s: float) -> float:
    """A made job: a line in the samples of a device, and an exchange between devices."""
    devices = MACHINES[machine] * count
    card = {"p3": 1.0, "g4": 2.7, "g5": 0.9}[machine[:2]]
    return card * speed * (0.01 + 0.004 * each) + sync_s * 2 * (devices - 1) / devices


@slowly
@given(runs=RUNS, index=st.integers(0, 7))
def test_asked_for_exactly_a_run_the_answer_is_that_run(
    physics: Predictor, tmp_path: Path, runs: list[Run], index: int
) -> None:
    """Whatever the others say: they are of other machines, numbers or batches."""
    # Steps that jump between neighbouring batches by more than a machine can are no runs.
    smooth = [(m, n, b, law_s(m, n, b, 1.0, 0.05) * s**0.2) for m, n, b, s in runs]
    asked = smooth[index % len(runs)]
    found = answer(physics, tmp_path, smooth, asked)
    assert abs(math.log(found / asked[3])) < SCATTER


@slowly
@given(runs=RUNS, index=st.integers(0, 7))
def test_no_file_of_runs_ends_in_a_traceback(
    physics: Predictor, tmp_path: Path, runs: list[Run], index: int
) -> None:
    try:
        found = answer(physics, tmp_path, runs, runs[index % len(runs)])
    except (AdvisorError, PlanningError):
        return
    assert math.isfinite(found)
    assert found > 0


@pytest.mark.parametrize("seed", range(3))
def test_more_runs_do_not_worsen_what_is_said_of_the_others(
    physics: Predictor, tmp_path: Path, seed: int
) -> None:
    """The mean error of runs left out falls as runs are added, to within their scatter."""
    chance = np.random.default_rng(seed)
    places = [(m, 1, b) for m in ("p3.2xlarge", "g4dn.xlarge", "g5.xlarge") for b in (16, 32, 64)]
    errors: dict[int, list[float]] = {2: [], 4: [], 8: []}
    for _ in range(4):
        speed, sync_s = float(np.exp(chance.normal(0, 0.7))), float(chance.uniform(0.0, 0.1))
        runs = [
            (m, n, b, law_s(m, n, b, speed, sync_s) * float(np.exp(chance.normal(0, 0.02))))
            for m, n, b in (places[i] for i in chance.permutation(len(places)))
        ]
        for size, seen in errors.items():
            found = answer(physics, tmp_path, runs[:size], runs[-1])
            seen.append(abs(math.log(found / runs[-1][3])))
    means = [float(np.mean(seen)) for seen in errors.values()]
    assert means[2] <= means[1] + SCATTER <= means[0] + 2 * SCATTER


def test_a_run_is_believed_beside_a_description_too(physics: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("machine,step,batch\np3.2xlarge,900ms,64\np3.2xlarge,1500ms,128\n")
    resnet = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
    for batch, seconds in ((64, 0.9), (128, 1.5)):
        job = job_of(JobSpec(cnn=resnet, runs=str(path), batch=batch, precision="fp32"))
        found = estimate_on_type(physics, job, "p3.2xlarge", provider="aws").step_time_s
        assert found.value == pytest.approx(seconds, rel=SCATTER)
        assert found.low < seconds < found.high
