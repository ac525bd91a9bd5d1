"""A script's descriptors are its own: the recorder neither writes into its files nor closes them.

Every script runs alone and under ``advisor profile``: output, exit code and the bytes of its files
are the same, whatever it closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import ROOT, advisor

from advisor.collectors.derive.store import list_runs, read_recording
from advisor.collectors.hooks.kept import OwnFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

# Files that take the numbers that were closed, written to between steps.
START = """
import os, sys, threading, time
from advisor.collectors.marker import step
run = os.environ.get("ADVISOR_RUN_DIR")

def recorders():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink("/proc/self/fd/" + number)
        except OSError:
            continue
        if run and (name.startswith(run) or name.endswith("schedstat")):
            found.append(int(number))
    return found

def train(name="mine", steps=25):
    files = [open("%s-%d.txt" % (name, n), "w") for n in range(20)]
    for number in range(steps):
        for file in files:
            file.write("%s %d\\n" % (name, number))
            file.flush()
        time.sleep(0.025)
        step()
    for file in files:
        file.close()

for _ in range(10):
    time.sleep(0.025)
    step()
"""
END = """
print("trained", flush=True)
sys.exit(4)
"""
WAYS = {
    "closes a few dozens": "os.closerange(3, 64)\ntrain()",
    "closes all": "os.closerange(3, 4096)\ntrain()",
    "closes them in every step": """
for number in range(20):
    os.closerange(3, 4096)
    train("part-%d" % number, 1)
""",
    "puts its own in place": """
mine = os.open("own.txt", os.O_RDWR | os.O_CREAT, 0o644)
for number in recorders():
    os.dup2(mine, number)
train()
os.write(mine, b"end\\n")
""",
    "closes them in a child": """
child = os.fork()
if child == 0:
    for _ in range(20):
        time.sleep(0.025)
        step()
    os.closerange(3, 4096)
    train("child")
    os._exit(3)
train("parent")
print(os.waitpid(child, 0)[1])
""",
    "allows itself fewer": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
os.closerange(3, 4096)
train()
""",
    "goes elsewhere": "os.closerange(3, 4096)\ntrain()\nos.chdir('/')\ntime.sleep(0.05)\nstep()",
    "in threads": """
os.closerange(3, 4096)
threads = [threading.Thread(target=train, args=("thread-%d" % n,)) for n in range(3)]
for one in threads: one.start()
for one in threads: one.join()
""",
}
GONE = {
    "deletes the run": "import shutil\nif run: shutil.rmtree(run)\n",
    "moves the run": "if run: os.rename(run, run + '-moved')\n",
    "puts another file there": """
if run:
    import glob
    for path in glob.glob(run + "/ev-*"):
        os.rename(path, path + ".old")
        with open(path, "w") as file:
            file.write("mine")
""",
}


def alone_and_recorded(folder: Path, source: str) -> Path:
    """Run a script both ways, compare all that is seen of it, return the folder of runs."""
    outcomes = []
    for name in ("alone", "recorded"):
        own = folder / name
        own.mkdir()
        (own / "train.py").write_text(source)
        if name == "alone":
            done = subprocess.run(
                [sys.executable, "train.py"], cwd=own, capture_output=True, text=True,
                check=False, env={**os.environ, "PYTHONPATH": ROOT},
            )  # fmt: skip
        else:
            done = advisor(own, "profile", "-q", "train.py")
        files = {p.name: p.read_bytes() for p in own.glob("*.txt")}
        outcomes.append((done.returncode, done.stdout, done.stderr, files))
    (code, said, complained, files), (its_code, its_said, its_complained, its_files) = outcomes
    assert its_files == files
    assert (its_code, its_said) == (code, said), its_complained
    assert complained in its_complained
    assert "Traceback" not in its_complained
    assert "Exception ignored" not in its_complained
    return folder / "recorded" / "data" / "advisor" / "runs"


@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_closes_what_is_not_its_own_finds_only_what_it_wrote(
    way: str, tmp_path: Path
) -> None:
    runs = alone_and_recorded(tmp_path, START + WAYS[way] + END)
    (run,) = list_runs(runs)
    seen = read_recording(run)
    assert seen.exit_code == 4
    assert seen.step_time is not None
    assert seen.step_time.steps >= 15
    noticed = any("closed files that it had not opened" in text for text in seen.warnings)
    assert noticed == (way != "closes a few dozens")


@pytest.mark.parametrize("how", GONE)
def test_a_recording_that_cannot_be_opened_again_ends_quietly(how: str, tmp_path: Path) -> None:
    source = f"{START}{GONE[how]}os.closerange(3, 4096)\ntrain(){END}"
    runs = alone_and_recorded(tmp_path, source)
    taken = [p for p in runs.glob("*/ev-*.bin") if p.read_bytes() == b"mine"]
    assert bool(taken) == (how == "puts another file there")


def test_neither_is_a_traced_training_loop_of_torch(tmp_path: Path) -> None:
    source = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
for epoch in range(4):
    os.closerange(3, 4096)
    files = [open("own-%d-%d.txt" % (epoch, n), "w") for n in range(20)]
    for x, y in DataLoader(data, batch_size=8, num_workers=0):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        for file in files: file.write("%r\\n" % loss.item())
    for file in files: file.close()
print(loss.item())
sys.exit(4)
"""
    (run,) = list_runs(alone_and_recorded(tmp_path, source))
    seen = read_recording(run)
    assert seen.step_time is not None
    assert seen.step_time.steps + seen.step_time.warmup_steps >= 100
    assert not [text for text in seen.warnings if "failed" in text]


def test_a_number_that_is_anothers_by_now_is_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = OwnFile(str(path), os.O_RDWR | os.O_CREAT)
    first = kept.number(is_same=True)
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    os.dup2(own, first)
    again = kept.number(is_same=True)
    assert again not in (-1, first)
    assert os.path.sameopenfile(again, os.open(path, os.O_RDONLY))
    os.dup2(own, again)
    path.rename(tmp_path / "moved")
    path.write_text("another")
    assert kept.number(is_same=True) == -1
    kept.close()
    for number in (first, again):
        assert os.path.sameopenfile(number, own)
        os.close(number)
    os.close(own)
    assert path.read_text() == "another"
