"""``advisor profile`` and ``doctor`` as a user meets them: exit codes, output, bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from collecting import MARKED, advisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_a_scripts_own_options_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = advisor(tmp_path, "profile", "--name", "mine", "train.py", "--for", "3", "--lr", "0.1")
    assert done.returncode == 0
    assert done.stdout == "['--for', '3', '--lr', '0.1']\n"
    (run,) = (tmp_path / "data" / "advisor" / "runs").glob("[!.]*")
    assert "-mine-" in run.name


def test_a_command_after_two_dashes(tmp_path: Path) -> None:
    done = advisor(tmp_path, "profile", "-q", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.splitlines()[0] == "err"


def test_signals_become_128_plus_their_number(tmp_path: Path) -> None:
    assert advisor(tmp_path, "profile", "-q", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_the_summary_goes_to_stderr_and_says_what_was_learned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED)
    done = advisor(tmp_path, "profile", "--total-samples", "4000", "train.py", "60")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert re.search(r"^\[advisor\] step [\d.]+ ms ±", done.stderr, re.MULTILINE)
    assert "4 samples per step" in done.stderr
    assert "whole job: 1,000 steps" in done.stderr
    assert "--total-samples, given" in done.stderr
    assert "rent at least 0.5 GiB" in done.stderr


def test_json_is_one_record_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED.replace('print("done", flush=True)', ""))
    done = advisor(tmp_path, "profile", "--json", "--steps", "20", "train.py", "500")
    record = json.loads(done.stdout)
    assert done.returncode == 0
    assert (record["schema_version"], record["status"]) == (1, "stopped")
    assert record["stop_reason"] == "20 steps"
    assert record["step_time"]["clock"] == "marker"
    assert record["step_time"]["steps"] + record["step_time"]["warmup_steps"] == 19
    assert record["total_work"]["steps"] == 500
    assert record["host"]["benchmark"]["scalar_score"] == 1e9
    assert record["advised_memory_bytes"] >= record["peak_rss_bytes"]


def test_continue_lets_the_training_end_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED + "\nsys.exit(4)")
    done = advisor(tmp_path, "profile", "--json", "--continue", "--steps", "20", "train.py", "150")
    assert done.returncode == 4
    assert done.stdout.startswith("done\n")
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["status"], record["exit_code"]) == ("stopped", 4)
    assert record["step_time"]["steps"] < 25


@pytest.mark.parametrize(
    ("words", "code", "what", "hint"),
    [
        (["profile"], 2, "nothing to profile", "train.py"),
        (["profile", "missing.py"], 2, "no script at missing.py", "path"),
        (["profile", "--", "no-such-command"], 2, "'no-such-command' is not a command", "--"),
        (["profile", "--for", "soon", "--", "true"], 2, "cannot read 'soon' as a duration", "90m"),
        (["profile", "--for", "0", "--", "true"], 2, "--for 0 records nothing", "60s"),
        (["profile", "--pid", "999999999"], 2, "no process 999999999", "ps"),
        (["profile", "--pid", "1", "x.py"], 2, "--pid cannot be combined with a command", "one"),
        (["profile", "--runs", "/dev/null/x", "--", "true"], 1, "cannot write a run", "--runs"),
    ],
)
def test_bad_input_is_two_lines(
    tmp_path: Path, words: list[str], code: int, what: str, hint: str
) -> None:
    done = advisor(tmp_path, *words)
    error, advice = done.stderr.splitlines()
    assert done.returncode == code
    assert error.startswith("error: ")
    assert what in error
    assert advice.startswith("hint: ")
    assert hint in advice


def test_a_script_that_dies_at_once_says_so_and_keeps_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import nothing_of_that_name")
    done = advisor(tmp_path, "profile", "train.py")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    error, advice = done.stderr.splitlines()[-2:]
    assert error.startswith("error: the command ended with exit code 1 after")
    assert "before its first step" in error
    assert advice.startswith("hint: ")
    assert len(list((tmp_path / "data" / "advisor" / "runs").glob("[!.]*"))) == 1


def test_a_script_without_steps_is_a_recording_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing learned')")
    done = advisor(tmp_path, "profile", "train.py")
    assert (done.returncode, done.stdout) == (0, "nothing learned\n")
    note, advice = done.stderr.splitlines()[-2:]
    assert note == "note: no training step was seen, so only resources were recorded"
    assert "advisor.step()" in advice


def test_doctor_says_what_can_be_recorded(tmp_path: Path) -> None:
    done = advisor(tmp_path, "doctor", "--json")
    record = json.loads(done.stdout)
    abilities = {ability["what"]: ability["is_there"] for ability in record["abilities"]}
    assert abilities["process tree"]
    assert record["host"]["benchmark"]["measured_at"] == "2026-11-21T00:00:00+00:00"
    lines = advisor(tmp_path, "doctor").stdout.splitlines()
    assert any(line.startswith("products (fp32): 1 Gflop/s") for line in lines)


@pytest.mark.parametrize("limit", ["90", "-3s", "soon", "0", "0s"])
def test_a_limit_that_is_no_duration_is_refused(tmp_path: Path, limit: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    done = advisor(tmp_path, "profile", f"--for={limit}", str(script))
    assert done.returncode == 2
    assert "--for" in done.stderr
    assert "hint: " in done.stderr
