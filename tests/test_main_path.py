"""The main job as a user does it: profile a real script, then rank, from shell and from Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import InProcess

ROOT = Path(__file__).parents[1]

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 64)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(int(sys.argv[1])):
    for inputs, targets in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""


def advisor(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "advisor.cli", *arguments],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "XDG_DATA_HOME": str(cwd / "data"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a script that was profiled for a while."""
    where = tmp_path_factory.mktemp("user")
    (where / "train.py").write_text(SCRIPT)
    done = advisor("profile", "--steps", "2000", "train.py", "500", cwd=where)
    assert done.returncode == 0, done.stderr
    return where


@pytest.fixture(scope="module")
def record(folder: Path) -> dict[str, Any]:
    done = advisor("recommend", "--budget", "50", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def ask(folder: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Ask in the user's folder, or in another one."""

    def asked(*arguments: str, cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("XDG_DATA_HOME", str(cwd / "data"))
        return in_process(*arguments, cwd=cwd)

    return asked


def test_the_profile_found_the_batch_the_length_and_the_model(record: dict[str, Any]) -> None:
    job = record["job"]
    assert job["global_batch"] == 32
    assert job["total_steps"] == 500 * 16
    assert job["parameters"] == 64 * 256 + 256 + 256 + 1
    # Two products forward, and backward one each for the weights and one for the inner layer's
    # input; the script's data needs no gradient.
    forward = 2 * (64 * 256 + 256)
    assert job["flop_per_sample"] == pytest.approx(2 * forward + 2 * 256, rel=0.5)


def test_the_list_is_within_the_budget(record: dict[str, Any]) -> None:
    assert record["front"]
    assert all(c["cost_usd"]["value"] <= 50 for c in record["front"])
    hidden = sum(int(note.split()[0]) for note in record["notes"] if "not shown" in note)
    counted = len(record["front"]) + hidden + sum(record["rejected"].values())
    assert counted == record["considered"]


def test_python_gives_the_numbers_of_the_command_line(
    folder: Path, record: dict[str, Any]
) -> None:
    code = (
        "import json, predictor\n"
        "from advisor import recommend\n"
        "assert predictor.recommend is recommend\n"
        "print(json.dumps(recommend(budget=50).to_record()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(folder / "data")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == record


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_table_fits_the_terminal(
    ask: InProcess, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = ask("recommend", "--budget", "50")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "\x1b" not in done.stdout


def test_nothing_within_the_deadline_is_exit_code_3_with_the_nearest(ask: InProcess) -> None:
    # No budget is too small for this machine, which costs nothing.
    done = ask("recommend", "--deadline", "1s", "--json")
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["front"] == []
    assert answer["nearest"]


BAD = {
    "nonsense budget": (["recommend", "--budget", "-1"], 2),
    "not a number": (["recommend", "--budget", "plenty"], 2),
    "nonsense deadline": (["recommend", "--deadline", "soon"], 2),
    "unknown GPU": (["recommend", "--gpus", "A1000000"], 2),
    "nonsense GPU": (["recommend", "--gpus", "A100:many"], 2),
    "unknown provider": (["recommend", "--cloud", "cumulus"], 2),
    "unknown instance": (["catalogue", "show", "p99.huge"], 1),
    "no such run": (["recommend", "--run", "nowhere"], 1),
    "two lengths": (["recommend", "--epochs", "3", "--total-steps", "9"], 2),
    "no snapshot": (["recommend", "--catalogue", "nowhere"], 1),
    "missing script": (["profile", "nowhere.py"], 2),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_what_is_wrong_and_what_to_do(
    folder: Path, ask: InProcess, case: str
) -> None:
    arguments, code = BAD[case]
    before = sorted(path.name for path in (folder / "data" / "advisor" / "runs").glob("[!.]*"))
    done = ask(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) in (2, 3, 4)
    assert (
        sorted(p.name for p in (folder / "data" / "advisor" / "runs").glob("[!.]*"))[: len(before)]
        == before
    )


def test_a_corrupt_run_is_named_and_kept(folder: Path, ask: InProcess, tmp_path: Path) -> None:
    broken = tmp_path / "data" / "advisor" / "runs" / "broken"
    broken.mkdir(parents=True)
    for file in next((folder / "data" / "advisor" / "runs").glob("[!.]*")).iterdir():
        (broken / file.name).write_bytes(b"\x00" * 64)
    done = ask("recommend", "--run", str(broken), cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert broken.exists()


def test_an_unreadable_catalogue_is_named(ask: InProcess, tmp_path: Path) -> None:
    (tmp_path / "types.csv.gz").write_bytes(b"not a gzip file")
    done = ask("recommend", "--catalogue", str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "code"), [("raise SystemExit(7)", 7), ("print('no training here')", 0)]
)
def test_a_script_without_steps_keeps_its_code_and_says_what_is_missing(
    tmp_path: Path, script: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(script)
    done = advisor("profile", "train.py", cwd=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    runs = list((tmp_path / "data" / "advisor" / "runs").glob("[!.]*"))
    assert len(runs) == 1
