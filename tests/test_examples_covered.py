"""What ships learned answers for what ships as examples, asked nothing that no recording tells."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor import data
from advisor.collectors.derive.resources import Resources
from advisor.collectors.derive.store import read_recording
from advisor.estimate.knowledge.learned import Learned, candidate_runs
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job
from advisor.learned import RunColumns, features, registry
from advisor.learned.quick import QuickModel
from advisor.records.profiled import profile

ROOT = Path(__file__).parents[1]
MODELS = data.root("trained_models")
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


def asked_on(job: Job, physics: Predictor, name: str, count: int = 1) -> RunColumns:
    """The run that a model is asked about for a job on some of AWS's machines."""
    index = physics.catalogue.instance_type(name, provider="aws").index
    columns = physics.step_columns(job, np.array([index]), np.array([count]))
    return candidate_runs(job, physics.catalogue, columns, np.array([0]))


def features_used(model: str) -> set[str]:
    """What the trees of a shipped model split on."""
    quick, *_ = registry.load(MODELS / model)
    assert isinstance(quick, QuickModel)
    return {features.NAMES[i] for _, t in quick.trees for i in t.feature[t.left >= 0]}


def told_by(runs: list[RunColumns]) -> set[str]:
    rows = features.as_asked(np.concatenate([one.features for one in runs]))
    return {features.NAMES[i] for i in np.flatnonzero(np.isfinite(rows).any(axis=0))}


def recorded(script: str, arguments: list[str], folder: Path) -> Job:
    """A script's own recording, made now."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "advisor.cli", "profile", "--quiet", "--steps", "30",
               "--runs", str(folder)]  # fmt: skip
    done = subprocess.run(
        [*command, f"examples/{script}.py", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    runs = sorted(folder.glob(f"*{script}*"))
    assert runs, done.stderr
    return job_from_recording(read_recording(runs[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["digits_cnn", "stdlib_transformer", "stdlib_moe"])
def test_a_real_recording_of_an_example_tells_what_is_learned_from_and_is_covered(
    script: str, tmp_path: Path, physics: Predictor
) -> None:
    job = recorded(script, [], tmp_path)
    several = [asked_on(job, physics, "t3.medium", count) for count in (1, 3)]
    for model in ("runs", "runs_cost"):
        assert features_used(model) <= told_by(several)
        assert Learned.open(MODELS / model).covers(several[0]).all()
    known = profile(job)
    assert known is not None
    # Measured, not said: a step's processor time is near its time, and not the very same number.
    assert known.anchor.facts["cpu_s_per_step"] != known.anchor.facts["step_time_s"]


@pytest.mark.parametrize(("bytes_per_s", "is_told"), [(0.0, False), (900.0, False), (5e6, True)])
def test_an_idle_network_tells_nothing_of_a_job(
    physics: Predictor, bytes_per_s: float, is_told: bool
) -> None:
    job = _with_network(job_from_recording(read_recording(GOLDEN)), bytes_per_s)
    told = told_by([asked_on(job, physics, "t3.medium")])
    network = {n for n in features.NAMES if n.startswith("network_") and "_bytes_" in n}
    assert (told & network) == (network if is_told else set())


def test_what_libraries_a_process_imports_does_not_decide_what_is_covered(
    physics: Predictor,
) -> None:
    job = job_from_recording(read_recording(GOLDEN))
    learned = Learned.open(MODELS / "runs")
    for factor in (1.0, 2.0, 3.0):
        larger = replace(job, peak_rss_bytes=int(job.peak_rss_bytes * factor))
        assert learned.covers(asked_on(larger, physics, "m5.large")).all()
    # The job itself is bound to what was seen.
    assert job.work is not None
    heavy = replace(job.work, saved_bytes_per_sample=job.work.saved_bytes_per_sample * 1000)
    assert not learned.covers(asked_on(replace(job, work=heavy), physics, "m5.large")).any()


def test_one_thread_has_the_processor_time_that_was_measured_and_several_their_step() -> None:
    job = job_from_recording(read_recording(GOLDEN))
    assert job.measured is not None
    used = Resources(interval_s=0.5, channels={}, busy_cores=0.9,
                     cpu_s_per_step=0.9 * job.measured.step_s)  # fmt: skip
    for threads, share in ((1, 0.9), (2, 1.0)):
        measured = replace(job.measured, threads=threads, exchange_s=0.0)
        known = profile(replace(job, resources=used, measured=measured))
        assert known is not None
        step_s = known.anchor.facts["step_time_s"]
        assert isinstance(step_s, float)
        spent = known.anchor.facts["cpu_s_per_step"]
        assert isinstance(spent, float)
        assert math.isclose(spent, share * step_s)


def _with_network(job: Job, bytes_per_s: float) -> Job:
    rates = (0.9 * bytes_per_s, bytes_per_s, 1.1 * bytes_per_s)
    channels = {
        "cpu_cores": (1.0,) * 3,
        "memory_bytes": (4e8,) * 3,
        "network_received_bytes_per_s": rates,
        "network_sent_bytes_per_s": rates,
    }
    used = Resources(interval_s=0.5, channels=channels, busy_cores=1.0, cpu_s_per_step=None)
    return replace(job, resources=used)
