"""Every way to start a training, unchanged: each recorded by running it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from collecting import MARKED, ROOT, record, record_command

from advisor.collectors.derive.resources import advised_memory_bytes
from advisor.collectors.format.recording import Recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture(autouse=True)
def _find_advisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)


WORKERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        total = 0
        for number in range(60000):
            total += number * index
        return torch.full((10,), float(total % 7))
if __name__ == "__main__":
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x in DataLoader(Slow(), batch_size=8, num_workers=2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
"""

RANKS = """
import os, sys, time, torch
from pathlib import Path
sys.path.insert(0, {root!r})
from advisor.collectors.derive.profiler_log import read_profiler_log
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
def train(rank, world):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "{port}")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).sum().backward()
        optimizer.step()
    # What a socket sends between two looks of the sampler and its end is not seen, and these
    # steps pass within one look: leave only when it has been seen.
    log, end = Path(os.environ["ADVISOR_RUN_DIR"]) / "profiler.bin", time.monotonic() + 60
    while read_profiler_log(log).readings[-1].network_sent_bytes < 1e5 and time.monotonic() < end:
        time.sleep(0.1)
    dist.barrier()  # a rank that leaves while another still sends makes gloo abort that one
    dist.destroy_process_group()
if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        mp.spawn(train, args=(2,), nprocs=2)
"""


ACCUMULATION = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(320, 16)), batch_size=4)
for epoch in range(3):
    for number, (x,) in enumerate(loader):
        model(x).square().mean().backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

BY_HAND = """
import torch
weight = torch.randn(20, 5, requires_grad=True)
for step in range(50):
    loss = (torch.randn(12, 20) @ weight).square().mean()
    loss.backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
    weight.grad = None
"""


@pytest.mark.parametrize(
    ("source", "clock", "steps", "accumulation", "parameters"),
    [
        pytest.param(ACCUMULATION, "optimizer", 60, 4, 34, id="accumulation"),
        pytest.param(BY_HAND, "backward", 50, 1, 100, id="no optimizer and no loader"),
    ],
)
def test_plain_loops_of_every_kind(
    tmp_path: Path, source: str, clock: str, steps: int, accumulation: int, parameters: int
) -> None:
    seen = record(tmp_path, source)
    assert seen.exit_code == 0
    assert seen.step_time is not None
    assert seen.step_time.clock == clock
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (steps, "likely")
    assert seen.accumulation_steps == accumulation
    assert seen.deep_step is not None
    assert seen.deep_step.parameters == parameters


def test_a_stopped_script_finds_its_folders_as_it_left_them(tmp_path: Path) -> None:
    """What it wrote until then is there, whole; nothing but the run is added."""
    work = tmp_path / "work"
    work.mkdir()
    source = """
import sys, time
from advisor.collectors.marker import step
for number in range(100000):
    with open("checkpoint.bin", "ab") as file:
        file.write(b"x" * 1000)
    open("log.txt", "a").write(f"{number}\\n")
    time.sleep(0.005)
    step()
"""
    (tmp_path / "train.py").write_text(source)
    command = ["sh", "-c", f"cd {work} && exec {sys.executable} ../train.py"]
    seen = record_command(tmp_path, command, limit_steps=40)
    assert seen.status == "stopped"
    assert sorted(path.name for path in work.iterdir()) == ["checkpoint.bin", "log.txt"]
    assert (work / "checkpoint.bin").stat().st_size == 40 * 1000
    assert (work / "log.txt").read_text().splitlines() == [str(number) for number in range(40)]


def free_port() -> int:
    """Return a port that nobody listens on now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_loader_workers_are_counted(tmp_path: Path) -> None:
    seen = record(tmp_path, WORKERS)
    assert seen.exit_code == 0
    assert seen.loading is not None
    assert (seen.loading.workers, seen.loading.batch) == (2, 8)
    assert max(reading.processes for reading in seen.readings) == 3
    # What the workers used together, by the clocks of their processes, read from outside.
    assert seen.loading.cpu_s_per_sample is not None
    loading_s = 192 * seen.loading.cpu_s_per_sample
    assert 0.2 < loading_s < max(reading.cpu_s for reading in seen.readings)
    assert seen.total_work is not None
    assert seen.total_work.steps == 24
    # Stopped within the first second: what is not counted by then would be taken for waiting.
    few = record(tmp_path, WORKERS, limit_steps=6)
    assert few.loading is not None
    assert few.loading.cpu_s_per_sample is not None


def check_ranks(seen: Recording) -> None:
    """Two ranks, merged into one recording."""
    assert seen.exit_code == 0
    assert seen.world_size == 2
    assert seen.step_time is not None
    assert seen.step_samples == 32
    assert seen.communication is not None
    assert seen.communication["total_parameter_size_bytes"] == 4 * (64 * 256 + 256 + 256 + 1)
    # Every rank sends its gradients over the loopback interface.
    assert seen.readings[-1].network_sent_bytes > 1e5


@pytest.mark.slow
def test_spawned_ranks_are_merged_and_leave_after_the_same_step(tmp_path: Path) -> None:
    """Else one would wait for the other's gradients and fail."""
    script = tmp_path / "ddp.py"
    script.write_text(RANKS.format(root=ROOT, port=free_port(), steps=1_000_000))
    seen = record_command(tmp_path, [sys.executable, str(script)], limit_s=2.0)
    assert seen.status == "stopped"
    check_ranks(seen)
    assert seen.total_work is not None
    assert seen.total_work.steps == 1_000_000


@pytest.mark.slow
def test_ranks_of_torchrun_are_merged(tmp_path: Path) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(RANKS.format(root=ROOT, port=free_port(), steps=300))
    options = ["--nproc-per-node=2", f"--master-port={free_port()}"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    seen = record_command(tmp_path, [*launcher, str(script)])
    assert seen.status == "finished"
    check_ranks(seen)
    assert seen.total_work is not None
    assert seen.total_work.steps == 300


@pytest.mark.slow
def test_a_compiled_model_warms_up_and_is_flagged(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    compiled(torch.randn(16, 64)).sum().backward()
    optimizer.step()
import torch._dynamo.utils as utils
print("compiled", utils.counters["stats"]["unique_graphs"])
"""
    seen = record(tmp_path, source)
    assert seen.exit_code == 0
    assert seen.step_time is not None
    assert seen.deep_step is not None
    assert seen.deep_step.is_compiled
    assert seen.deep_step.parameters == 64 * 64 + 64 + 64 * 8 + 8
    # The first step compiles, for seconds; the mean is of the ones after it.
    assert seen.step_time.raw_s < 0.1
    assert seen.startup_s is not None
    assert seen.startup_s > 1.0


def test_a_module_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(MARKED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    seen = record_command(tmp_path, [sys.executable, "-m", "package", "12"])
    assert seen.exit_code == 0
    assert seen.total_work is not None
    assert seen.total_work.steps == 12


def test_a_shell_script_with_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED)
    (tmp_path / "run.sh").write_text(f"{sys.executable} {tmp_path}/train.py 15 | cat\nexit 3\n")
    seen = record_command(tmp_path, ["sh", str(tmp_path / "run.sh")])
    assert (seen.status, seen.exit_code) == ("failed", 3)
    assert seen.step_time is not None
    assert seen.step_samples == 4


def test_a_running_process_is_watched_from_outside(tmp_path: Path) -> None:
    source = "import time\nend = time.process_time() + 1.2\nwhile time.process_time() < end: pass"
    source += "\ntime.sleep(1)"  # until it has been seen
    with subprocess.Popen([sys.executable, "-c", source]) as process:
        before = time.clock_gettime((~process.pid << 3) | 2)
        seen = record_command(tmp_path, [], attached=process.pid, limit_s=20.0)
        assert process.wait() == 0
    assert (seen.status, seen.stop_reason) == ("finished", "the process ended")
    assert seen.step_time is None
    assert max(reading.cpu_s for reading in seen.readings) == pytest.approx(1.2, abs=0.3)
    assert before < 1.2


def test_watching_ends_at_the_limit_and_leaves_the_process_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        seen = record_command(tmp_path, [], attached=process.pid, limit_s=1.0)
        assert seen.status == "stopped"
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("library", ["sklearn", "xgboost"])
def test_programs_without_torch_give_resources(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    source = {
        "sklearn": "from sklearn.ensemble import RandomForestClassifier as Model",
        "xgboost": "from xgboost import XGBClassifier as Model",
    }[library]
    source += "\nfrom sklearn.datasets import load_digits\nModel(n_estimators=20, n_jobs=1)"
    seen = record(tmp_path, source + ".fit(*load_digits(return_X_y=True))")
    assert seen.exit_code == 0
    assert seen.deep_step is None
    assert seen.total_work is not None
    assert seen.total_work.steps == 20  # trees, rounds
    assert seen.peak_rss_bytes > 50 * 2**20


def test_programs_that_are_not_python_give_resources(tmp_path: Path) -> None:
    seen = record_command(tmp_path, ["sh", "-c", "sleep 0.3; head -c 300000000 /dev/zero | wc -c"])
    assert seen.exit_code == 0
    assert seen.readings
    assert seen.warnings == ()


def test_a_large_process_is_told_the_memory_it_needs(tmp_path: Path) -> None:
    """A peer tells a process of 800 MiB to rent 128."""
    source = "import time\nblock = bytearray(b'x') * (790 * 2**20)\ntime.sleep(0.5)"
    seen = record(tmp_path, source)
    assert 790 * 2**20 < seen.peak_rss_bytes < 840 * 2**20
    assert advised_memory_bytes(seen.peak_rss_bytes) == 2**30
