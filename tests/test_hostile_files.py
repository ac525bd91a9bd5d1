"""Files that nobody wrote on purpose: one line of what is wrong, one of what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import AdvisorError

QUEUE = ["simulate", "queue", "--nodes", "2", "--devices-per-node", "4", "--devices", "1",
         "--hours", "2h", "--trace"]  # fmt: skip
SPOT = ["simulate", "spot", "--hours", "10", "--trace"]
NODES = ["simulate", "availability", "--workers", "1", "--hours", "1h", "--trace"]
DESCRIBED = ["recommend", "--layers", "2", "--hidden", "64", "--heads", "2", "--total-steps", "9",
             "--gpus", "T4", "--max-nodes", "1"]  # fmt: skip
JOBS = "submit_time,num_gpu,duration\n"


@pytest.mark.parametrize(
    ("asked", "name", "text"),
    [
        (QUEUE, "jobs.csv", JOBS + "0,99999999999999999999,20\n5,1,10\n"),
        (QUEUE, "jobs.csv", JOBS + "0,1,1e308\n1,1,1e308\n"),
        (QUEUE, "jobs.csv", JOBS + "0,nan,1\n"),
        (QUEUE, "jobs.csv", JOBS + ",,1\n"),
        (QUEUE, "jobs.csv", JOBS + "0,1,20,30\n"),
        (SPOT, "spot.csv", "trace,t,available\na,0,1e308\na,10,2\n"),
        (SPOT, "spot.csv", "trace,t,available\na,0,3\na,1e308,2\n"),
        (SPOT, "spot.csv", "trace,t,available\na,0,3\na,nan,2\n"),
        (NODES, "nodes.csv", "time,node,free_fraction\nnan,a,.5\nnan,b,.5\n"),
        (["runs", "import", "csv"], "runs.csv", "time_s,run,program\n10,a,b,EXTRA\n"),
        (["runs", "import", "huggingface"], "trainer_state.json", '{"log_history": 1.5}'),
        (["runs", "import", "huggingface"], "trainer_state.json", '{"log_history": [1, "a"]}'),
        (["gate", "--slurm-options"], "options.json", '{"argv": 5}'),
        ([*DESCRIBED, "--overrides"], "overrides.csv", "rule,provider\n"),
    ],
)
def test_a_file_of_nonsense_is_refused_in_words(
    tmp_path: Path, asked: list[str], name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    ended = CliRunner().invoke(app, [*asked, str(path)])
    # Rows without a date are left out, a table of rules may be empty: these are no errors.
    assert ended.exception is None or isinstance(ended.exception, (AdvisorError, SystemExit))
    if ended.exception is None:
        assert ended.exit_code == 0
        assert "nan" not in ended.output


def run(arguments: list[str], folder: Path, *, is_closed: bool = False) -> tuple[int, str]:
    """Return the exit code and what was said of errors."""
    ended = subprocess.run(
        [sys.executable, "-m", "advisor.cli", *arguments], cwd=folder, text=True, timeout=120,
        capture_output=True, check=False, preexec_fn=(lambda: os.close(1)) if is_closed else None,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_a_project_file_whose_tools_are_a_number(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("tool = 5\n")
    code, said = run(DESCRIBED, tmp_path)
    assert code == 2
    assert "cannot read tool.advisor as a table" in said
    assert "Traceback" not in said


def test_an_output_that_is_closed(tmp_path: Path) -> None:
    _, said = run(["--version"], tmp_path, is_closed=True)
    assert "Traceback" not in said
