"""Checkpoints that a script writes are timed and weighed, and priced as they were seen."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advisor.collectors.format.facts import saves_of
from advisor.collectors.format.recording import Recording
from advisor.collectors.run.runner import profile
from advisor.estimate.completion import checkpoint_s
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import VOLUME_BYTES_PER_S

SCRIPT = """
import io, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(640, 64), torch.randn(640, 1)), batch_size=32)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1])
    torch.save({"epoch": epoch}, io.BytesIO())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves") / "checkpoint.pt"


@pytest.fixture(scope="module")
def recorded(checkpoint: Path) -> Recording:
    script = checkpoint.with_name("train.py")
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(checkpoint)]
    seen = profile(command, run_root=checkpoint.with_name("runs"), measure_host=False)
    assert seen.step_time is not None
    # How well so short a step is known beside neighbours is not what is asked here.
    known = replace(
        seen.step_time, low_s=seen.step_time.corrected_s, high_s=seen.step_time.corrected_s
    )
    return replace(seen, step_time=known)


def test_checkpoints_are_counted_timed_and_weighed(recorded: Recording, checkpoint: Path) -> None:
    assert recorded.saves is not None
    assert recorded.saves.count == 6
    assert recorded.saves.size_bytes == checkpoint.stat().st_size
    assert 0 < recorded.saves.seconds < recorded.duration_s


def test_a_job_saves_what_its_recording_saved(recorded: Recording, checkpoint: Path) -> None:
    job = job_from_recording(recorded)
    assert job.state_bytes == checkpoint.stat().st_size
    assert job.facts()["checkpoint"]["source"] == "recorded"
    assert checkpoint_s(job) >= job.state_bytes / VOLUME_BYTES_PER_S
    assert checkpoint_s(job) >= (job.checkpoint_s or 0.0) > 0
    assert job.work is not None
    # Adam keeps two numbers a parameter: what is saved is what the step was seen to hold.
    state = job.work.parameter_bytes + job.work.optimizer_state_bytes
    assert job.state_bytes == pytest.approx(state, rel=0.1)


def test_what_is_saved_beside_checkpoints_is_none(recorded: Recording) -> None:
    facts: list[dict[str, Any]] = [
        {"seconds": 2.0, "bytes": 1000}, {"seconds": 0.1, "bytes": 10},
        {"seconds": 4.0, "bytes": 990}, {"seconds": 0.1, "bytes": None},
    ]  # fmt: skip
    seen = saves_of(facts)
    assert seen is not None
    assert (seen.count, seen.seconds, seen.size_bytes) == (2, 3.0, 1000)
    assert saves_of([]) is None


def test_the_estimate_uses_it(recorded: Recording) -> None:
    job = job_from_recording(recorded, total_steps=1e7)
    slow = replace(job, checkpoint_s=30.0)
    predictor = Predictor()
    fast, late = (
        predictor.predict(each, "g5.xlarge").breakdown["checkpoints"] for each in (job, slow)
    )
    assert late.time_h > fast.time_h
