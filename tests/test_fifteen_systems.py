"""The fifteen systems: what a person types, as the page has it, says what the page says."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
from conftest import InProcess

from advisor.collectors.errors import RecordingError
from advisor.lab.minicloud.limits import can_limit_cpu, cpu_group
from advisor.lab.score import load

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "systems.md"
GOLDEN = ROOT / "tests" / "golden"
_ROW = re.compile(
    r"^\| \[(?P<system>[^\]]+)\]\((?P<page>[^)]+)\) \| `advisor (?P<line>[^`]+)` "
    r"\| (?P<says>`.+`) \| (?P<published>[^|]+) \| (?P<ours>[^|]+) \| (?P<day>[^|]+) "
    r"\| `(?P<check>[^`]+)` \|$"
)
ROWS = [found for line in PAGE.read_text("utf-8").splitlines() if (found := _ROW.match(line))]
NAMES: Final = [row["system"].split()[0].strip(",") for row in ROWS]

PAIR = """
import torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
matrix = torch.randn(256, 256)
for step in range(100_000):
    for _ in range(60 if rank else 15):
        matrix = (matrix @ matrix).clamp(-1, 1)
    x = torch.randn(64, 256)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
SLOW = """
import time
import torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(64), i % 10
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Slow(), batch_size=16, num_workers=1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""
PREP = """
import time
held, hot = bytearray(300 << 20), bytearray(20 << 20)
for part in (held, hot):
    part[::4096] = b"x" * len(part[::4096])
end = time.time() + 60
while time.time() < end:
    hot[::4096] = b"y" * len(hot[::4096])
    time.sleep(0.02)
"""


# What makes the longer checks short.
SHORT: Final[Mapping[str, str]] = MappingProxyType({
    "rightsizing": "--rounds 1", "aggregation": "--seconds 0.5 --rounds 1",
    "harvesting": "--rounds 1 --seconds 1", "stragglers": "--rounds 1",
    "echo": "--rounds 1 --seeds 1 --seconds 0.5 --budget-s 0.5",
    "experts": "--steps 30 --tokens 256 --rounds 1",
})  # fmt: skip
CHECK_S: Final = 1500.0


@contextlib.contextmanager
def outranking() -> Iterator[Callable[[], None] | None]:
    """Give what puts a child before its neighbours; None where no control group can be made."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(cpu_group("fifteen", quota=None))
            group.outrank_others()
        except (RecordingError, OSError):
            yield None
        else:
            yield group.join


def run(
    folder: Path, *words: str, begin: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True,
        timeout=CHECK_S, check=False, preexec_fn=begin,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200",
             "ADVISOR_RUNS": str(folder / "runs")},
    )  # fmt: skip


def record(folder: Path) -> None:
    """Record the five jobs that commands of the page name, into ``folder/runs``."""
    (folder / "pair.py").write_text(PAIR)
    (folder / "prep.py").write_text(PREP)
    (folder / "slow.py").write_text(SLOW)
    examples = ROOT / "examples"
    sets = (
        ("--for", "4s", str(examples / "digits_cnn.py"), "--epochs", "200"),
        ("--for", "5s", str(examples / "stdlib_moe.py")),
        ("--workers", "2", "--for", "6s", "pair.py"),
        ("--working-set", "--for", "10s", "prep.py"),
        ("--for", "4s", "slow.py"),
    )
    # What a job uses and touches cannot be told where neighbours hold it back.
    with outranking() as begin:
        for words in sets:
            run(folder, "advisor.cli", "profile", "--quiet", *words, begin=begin)


@pytest.fixture(scope="module", params=["kept", pytest.param("now", marks=pytest.mark.slow)])
def recordings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the five recordings, kept or made now, and a cluster's history."""
    folder = tmp_path_factory.mktemp("systems")
    if request.param == "now":
        record(folder)
    else:
        shutil.copytree(GOLDEN / "systems", folder / "runs")
    assert len(list((folder / "runs").glob("[!.]*"))) == 5
    lines = (GOLDEN / "tiresias" / "syn240_n10g4.csv").read_text().splitlines()
    rows = [",".join(line.split(",")[:4]) for line in lines[1:]]
    table = "\n".join(["job_id,num_gpu,submit_time,duration", *rows])
    (folder / "jobs.csv").write_text(table + "\n")
    return folder


def test_there_are_fifteen_each_with_a_page_and_a_check_that_is_there() -> None:
    assert len(set(NAMES)) == len(ROWS) == 15
    for row in ROWS:
        page, _, anchor = row["page"].partition("#")
        titles = re.findall(r"^#+ (.+)$", (PAGE.parent / page).read_text("utf-8"), re.MULTILINE)
        kept = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles]
        assert not anchor or anchor in kept, row["page"]
        assert re.fullmatch(r"2026-\d\d-\d\d", row["day"])
        check = row["check"]
        if check.startswith("tests/"):
            assert (ROOT / check).is_file()
        elif check.startswith("python -m advisor."):
            module = check.removeprefix("python -m advisor.").split()[0]
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        else:
            protocol = check.removeprefix("advisor validate ")
            assert (ROOT / "datasets" / "accuracy" / f"{protocol}.json").is_file()


def test_a_person_need_not_know_the_system() -> None:
    """No line names its system, and all but two ask what is asked of every job."""
    verbs = [row["line"].split()[0] for row in ROWS]
    for row in ROWS:
        names = re.findall(r"[A-Za-z]{3,}", row["system"])
        assert not any(name.lower() in row["line"].lower() for name in names), row["line"]
        assert "--swap" not in row["line"]
    assert sorted(set(verbs)) == ["advise", "recommend", "simulate"]
    assert verbs.count("simulate") == 2


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_its_line_says_what_the_page_says(
    row: re.Match[str], recordings: Path, tmp_path: Path, in_process: InProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In a fresh folder, with nothing but what the line names."""
    monkeypatch.setenv("ADVISOR_RUNS", str(recordings / "runs"))
    monkeypatch.setenv("COLUMNS", "200")
    words = shlex.split(row["line"])
    for word in words:
        if (recordings / word).is_file():
            shutil.copy(recordings / word, tmp_path)
    done = in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = " ".join(done.stdout.split())
    for said in re.findall(r"`([^`]+)`", row["says"]):
        assert said in answer, said


def checks() -> Iterator[Any]:
    for name, check in zip(NAMES, (row["check"] for row in ROWS), strict=True):
        is_slow = check.startswith("python ")
        yield pytest.param(check, id=name, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.timeout(CHECK_S + 60.0)
@pytest.mark.parametrize("check", list(checks()))
def test_its_check_runs(check: str, tmp_path: Path) -> None:
    if check.startswith("tests/"):  # run by itself, beside this one
        assert len(re.findall(r"^def test_", (ROOT / check).read_text("utf-8"), re.MULTILINE)) > 3
        return
    words = shlex.split(check)
    if words[0] == "advisor":  # `make accuracy-quick` runs it and compares its figures
        assert load(words[-1]).name == words[-1]
        return
    if words[2].endswith(("rightsizing", "stragglers")) and not can_limit_cpu():
        pytest.skip("needs a control group")
    done = run(tmp_path, *words[2:], *SHORT[words[2].rpartition(".")[2]].split())
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d ?%", done.stdout), done.stdout  # an experiment's figures are shares
