"""The main path on a real training script: run it, record it, read it back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from advisor.collectors.derive.store import latest_run, list_runs, read_recording
from advisor.collectors.format import Recording, rows_of
from advisor.collectors.run.runner import profile

SCRIPT = """
import argparse, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
loader = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters())
loss_function = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("profile")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "--epochs", "7"]
    return profile(command, run_root=folder / "runs", measure_host=False)


def test_every_step_of_the_script_is_recorded(recorded: Recording) -> None:
    assert recorded.status == "finished"
    assert recorded.exit_code == 0
    assert recorded.step_time is not None
    assert recorded.step_time.clock == "optimizer"
    assert recorded.total_work is not None
    assert (recorded.total_work.steps, recorded.total_work.epochs) == (140, 7)


def test_the_model_is_measured_by_closed_forms(recorded: Recording) -> None:
    deep = recorded.deep_step
    assert deep is not None
    assert deep.parameters == deep.trainable_parameters == 64 * 128 + 128 + 128 * 10 + 10
    assert deep.samples == 32
    rows = list(rows_of(deep.operators, "name", "flop"))
    forward = sum(flop for name, flop in rows if name == "aten::addmm")
    assert forward == 2 * 32 * (64 * 128 + 128 * 10)
    backward = sum(flop for name, flop in rows if name == "aten::mm")
    # The first layer's input wants no gradient.
    assert backward == 2 * 32 * (64 * 128 + 2 * 128 * 10)
    assert deep.flags == ()
    assert deep.optimizer_state_bytes == pytest.approx(2 * deep.parameter_bytes, rel=0.01)


def test_the_layers_add_up_to_the_operators(recorded: Recording) -> None:
    deep = recorded.deep_step
    assert deep is not None
    assert deep.layers["kind"] == ("Linear", "ReLU", "Linear", "CrossEntropyLoss")
    rows = rows_of(deep.operators, "phase", "flop")
    by_operator = sum(flop for phase, flop in rows if phase == "forward")
    assert sum(deep.layers["forward_flop"]) == by_operator


def test_the_loader_is_known(recorded: Recording) -> None:
    loading = recorded.loading
    assert loading is not None
    assert (loading.batch, loading.dataset_samples, loading.batches_per_epoch) == (32, 640, 20)
    assert loading.sample_bytes == 64 * 4 + 8


def test_runs_are_found_again(recorded: Recording) -> None:
    root = Path(recorded.path).parent
    assert list_runs(root) == [recorded.path]
    assert read_recording(latest_run(root)).step_time == recorded.step_time
