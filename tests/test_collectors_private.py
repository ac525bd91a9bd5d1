"""What a recording keeps to itself: secrets, files, and what a terminal would obey."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import MARKED, ROOT, advisor, record_command
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.atomic import private_folder
from advisor.collectors.derive.store import new_run, read_recording
from advisor.collectors.errors import printable, printable_json, shell_line
from advisor.collectors.format.record_files import PROFILER_FILE, parse_json
from advisor.collectors.hooks import format as fmt
from advisor.collectors.run import RecordingPlan

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SECRET = "HUNTER2SECRET"


@linux
def test_secrets_of_the_command_line_reach_the_script_and_no_file(tmp_path: Path) -> None:
    """Not the recording, not the listing, not the argv of any process of ours."""
    script = tmp_path / "train.py"
    script.write_text(f"""
import argparse, glob, os, sys
sys.path.insert(0, {ROOT!r})
from advisor.collectors.marker import step
parser = argparse.ArgumentParser()
for name in ("--password", "--db", "--epochs"): parser.add_argument(name)
parser.parse_args()
above = open(f"/proc/{{os.getppid()}}/cmdline").read()
print(sys.argv[1:], "{SECRET}" in above)
for _ in range(20): step()
raise SystemExit(1)
""")
    words = ["--password", SECRET, "--db", "postgres://u:URLSECRET@host/db", "--epochs", "3"]
    done = advisor(tmp_path, "profile", "--name", f"token={SECRET}", "train.py", *words)
    assert done.stdout == f"{words} False\n"
    listed = (
        advisor(tmp_path, "runs", "list").stdout
        + advisor(tmp_path, "runs", "list", "--json").stdout
    )
    (run,) = (tmp_path / "data" / "advisor" / "runs").glob("2*")
    told = listed + done.stderr + advisor(tmp_path, "runs", "show", run.name).stdout
    stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p != script)
    for secret in (SECRET, "URLSECRET"):
        assert secret not in told
        assert secret.encode() not in stored
        assert secret not in run.name
    assert "--epochs 3" in listed
    assert "--db hidden:" in listed


@linux
@pytest.mark.parametrize("umask", [0o000, pytest.param(0o277, marks=pytest.mark.slow)])
def test_nobody_else_can_read_a_run_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "train.py").write_text(MARKED)
    done = advisor(tmp_path, "profile", "-q", "train.py", "5", umask=umask)
    assert done.returncode == 0, done.stderr
    assert advisor(tmp_path, "runs", "list", umask=umask).returncode == 0
    found = list((tmp_path / "data" / "advisor").rglob("*"))
    assert {"profiler.bin", "control", "index.json"} <= {path.name for path in found}
    assert any(path.name.startswith("ev-") for path in found)
    for path in [tmp_path / "data" / "advisor", *found]:
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.stat().st_mode & 0o600 == 0o600 or umask & 0o200, path


def test_folders_that_were_there_keep_their_permissions(tmp_path: Path) -> None:
    shared = tmp_path / "team"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    made = private_folder(shared / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (shared, made.parent, made)] == [
        0o755, 0o700, 0o700,
    ]  # fmt: skip


@linux
def test_a_command_of_any_length_is_recorded(tmp_path: Path) -> None:
    """The plan with it does not fit into an argument, which may have 128 KiB."""
    script = tmp_path / "count.py"
    script.write_text("import sys; print(len(sys.argv))")
    many = [str(number) for number in range(30_000)]
    done = advisor(tmp_path, "profile", "-q", "count.py", *many)
    assert (done.returncode, done.stdout, done.stderr) == (0, "30001\n", "")
    seen = record_command(tmp_path, [sys.executable, str(script), *many])  # without exec
    assert seen.command[:2] == (sys.executable, str(script))
    assert len(set(seen.command[2:])) == len(many)  # a hash each


@linux
def test_a_command_too_long_for_the_system_is_refused_in_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = record_command(tmp_path, ["true", "x" * 200_000])
    assert (seen.status, seen.exit_code) == ("failed", 126)
    error, hint = capfd.readouterr().err.splitlines()
    assert error == "error: 'true' cannot be started: Argument list too long"
    assert "put the arguments into a file" in hint


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=5), st.integers())
def test_a_plan_arrives_as_it_was_made(words: list[str], steps: int) -> None:
    plan = RecordingPlan(run="/r", command=tuple(words), limit_steps=steps, options={"a": [1]})
    assert RecordingPlan.from_file(plan.open_copy()) == plan


# What a terminal would obey: controls (C0, C1), line ends, directions of text.
OBEYED = "\x1b\x07\r\n\t\x00\x7f\x85\x9b\x9d\u2028\u2029\u202a\u202e\u2066\u2069\u200f\ufeff"
HOSTILE = st.text(st.sampled_from(OBEYED + "ab[31m];é漢 \\'\"") | st.characters(), max_size=30)


@given(HOSTILE)
def test_printable_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert not set(shown) & set(OBEYED)
    assert shown.isprintable()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text
    shown.encode()  # no lone surrogates


@given(
    st.dictionaries(HOSTILE, HOSTILE | st.lists(HOSTILE | st.integers(), max_size=3), max_size=3)
)
def test_whatever_a_record_holds_is_printable_when_read(fact: dict[str, object]) -> None:
    for payload in (json.dumps(fact), json.dumps(fact, ensure_ascii=False)):
        try:
            read = parse_json(payload.encode())
        except UnicodeEncodeError:  # surrogates have no UTF-8
            continue
        assert read == printable_json(fact)
        assert not set(json.dumps(read, ensure_ascii=False)) & set(OBEYED)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), max_size=5))
def test_a_shell_line_reads_back_as_the_same_words(words: list[str]) -> None:
    line = shell_line(words)
    assert line.isprintable()
    if all(word.isprintable() for word in words):
        assert shlex.split(line) == words


@linux
@pytest.mark.parametrize("word", ["a\nb", "\x1b[31m'\\x", "é\u202e", "\udcff\t"])
def test_a_shell_runs_what_a_shell_line_says(word: str) -> None:
    line = shell_line(["printf", "%s", word])
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout == os.fsencode(word)


@linux
def test_names_with_escape_sequences_never_reach_a_terminal(tmp_path: Path) -> None:
    """Through `profile`, `runs list`, `runs show`, `predict`, and errors."""
    odd = "new\nline\x1b[31mred\u202e.py"
    (tmp_path / odd).write_text(MARKED)
    outputs = [advisor(tmp_path, "profile", odd, "12", "\x1b]0;title\x07")]
    (run,) = (tmp_path / "data" / "advisor" / "runs").glob("2*")
    hostile = run.with_name("zz\x1b[2Jname\n")
    hostile.mkdir()
    fact = {"fact": "warning", "text": "first\nsecond \x1b[31m \x9b1m"}
    with (run / PROFILER_FILE).open("ab") as log:
        log.write(fmt.framed(fmt.FACT, json.dumps(fact).encode()))
    (hostile / PROFILER_FILE).write_bytes((run / PROFILER_FILE).read_bytes())
    outputs += [
        advisor(tmp_path, *words)
        for words in (
            ("runs", "list"), ("runs", "show", run.name), ("runs", "show", hostile.name),
            ("runs", "show", "zz\x1b[2J"), ("profile", "no\x1b[31m.py"), ("runs", "rm", "\x1b[1m"),
            ("predict", "--run", hostile.name), ("recommend", hostile.name),
        )
    ]  # fmt: skip
    for done in outputs:
        text = done.stdout + done.stderr
        assert "Traceback" not in text
        assert not set(text) & set(OBEYED.replace("\n", "")), text
    listed = outputs[1].stdout
    assert len(listed.splitlines()) == 2
    assert "python new\\" in listed  # cut where the line ends
    assert r"warning: first\nsecond \x1b[31m \x9b1m" in outputs[2].stdout
    assert read_recording(run).command[1] == odd


def test_the_names_of_runs_are_free_of_secrets(tmp_path: Path) -> None:
    assert SECRET not in new_run(f"password={SECRET}", tmp_path).name
