"""Runs whose profiler was killed: closed, or taken away where nothing was ever recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from collecting import ROOT
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive import store
from advisor.collectors.derive.store import clean_runs, never_recorded, recover_all
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.record_files import (
    PROFILER_FILE,
    identity,
    is_alive,
    machine,
    mark,
    parse,
)
from advisor.collectors.hooks import format as fmt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
NOBODY = {"fact": "made", "pid": 2**22 - 1, "start_ticks": 7, "t_ns": 1, "machine": machine()}


def framed(kind: int, value: dict[str, Any]) -> bytes:
    """Return a JSON record."""
    return fmt.framed(kind, json.dumps(value).encode())


def header(**changes: Any) -> dict[str, Any]:
    """Return a header of a profiler that is gone."""
    return {**NOBODY, "schema_version": 1, "command": ["x"], "host": {}, **changes}


def made(root: Path, name: str, content: bytes, **beside: bytes) -> Path:
    """Make a run's folder with the profiler's file, and others."""
    run = root / name
    run.mkdir(parents=True)
    (run / PROFILER_FILE).write_bytes(content)
    for file, data in beside.items():
        (run / file.replace("_", "-").replace("-bin", ".bin")).write_bytes(data)
    return run


def golden(root: Path, name: str) -> Path:
    """Copy a run that ended long ago."""
    return Path(shutil.copytree(GOLDEN, root / name))


STEP = fmt.framed(fmt.STEP, bytes(fmt.STEP_PAYLOAD.size))
READING = fmt.framed(fmt.READING, bytes(fmt.READING_PAYLOAD.size))


def test_killed_start_ups_are_taken_away_and_nothing_else(tmp_path: Path) -> None:
    gone = [
        made(tmp_path, "0-mark", framed(fmt.FACT, NOBODY)),
        made(tmp_path, "1-header", framed(fmt.FACT, NOBODY) + framed(fmt.HEADER, header())),
        made(tmp_path, "2-torn", framed(fmt.FACT, NOBODY) + framed(fmt.HEADER, header())[:-3]),
        made(
            tmp_path, "3-hooks", framed(fmt.HEADER, header()),
            ev_1_2_bin=framed(fmt.HEADER, {"pid": 1}), control=b"0" * 24,
        ),
    ]  # fmt: skip
    old = made(tmp_path, "4-version-before", b"")
    os.utime(old / PROFILER_FILE, (0, 0))
    kept = [
        made(tmp_path, "5-reading", framed(fmt.HEADER, header()) + READING),
        made(tmp_path, "6-step", framed(fmt.HEADER, header()), ev_1_2_bin=STEP),
        made(tmp_path, "7-notes", framed(fmt.FACT, NOBODY), **{"mine.txt": b"keep"}),
        made(tmp_path, "8-living", framed(fmt.FACT, mark())),
        made(tmp_path, "9-empty-now", b""),
        made(tmp_path, "a-damaged", b"what is this"),
        made(tmp_path, "b-elsewhere", framed(fmt.FACT, {**NOBODY, "machine": "other"})),
        golden(tmp_path, "c-golden"),
    ]
    assert clean_runs(tmp_path) == len(gone) + 1
    assert store.list_runs(tmp_path) == kept
    assert not any(run.exists() for run in [*gone, old])
    assert clean_runs(tmp_path) == 0


def test_somebody_elses_run_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    run = made(tmp_path, "theirs", framed(fmt.FACT, NOBODY))
    os.chown(run / PROFILER_FILE, 12345, 12345)
    assert clean_runs(tmp_path) == 0
    assert not never_recorded(run)


def test_a_profiler_on_another_machine_lives_as_long_as_it_writes() -> None:
    elsewhere = {**NOBODY, "machine": "node7 0000"}
    assert is_alive(elsewhere, silent_s=5.0)
    assert not is_alive(elsewhere, silent_s=600.0)


@given(st.dictionaries(st.sampled_from(["pid", "start_ticks", "t_ns"]), st.integers() | st.text()))
def test_no_other_process_is_taken_for_the_profiler(found: dict[str, Any]) -> None:
    """Only pid, start and boot together make a process: one differing, it is another."""
    me = identity(framed(fmt.FACT, mark()))
    assert is_alive(me, 0.0)
    forged = {**me, **found}
    if any(forged[name] != me[name] for name in ("pid", "start_ticks")):
        assert not is_alive(forged, 0.0)


def test_recover_all_closes_what_holds_something_and_reports_the_rest(tmp_path: Path) -> None:
    made(tmp_path, "0-nothing", framed(fmt.FACT, NOBODY))
    killed = golden(tmp_path, "1-killed")
    log = killed / PROFILER_FILE
    *_, end = [at for kind, _, at in parse(log.read_bytes()) if kind == fmt.READING]
    log.write_bytes(log.read_bytes()[:end])
    golden(tmp_path, "2-ended")
    made(tmp_path, "3-living", framed(fmt.HEADER, {**header(), **mark()}) + READING)
    made(tmp_path, "4-bad", framed(fmt.HEADER, header(schema_version=99)) + READING)
    found = {run: what for run, what, _ in recover_all(tmp_path)}
    assert found == {
        "0-nothing": "deleted", "1-killed": "closed", "3-living": "recording",
        "4-bad": "unreadable",
    }  # fmt: skip
    assert store.read_recording(killed).status == "killed"
    assert not (tmp_path / "0-nothing").exists()
    assert "1-killed" not in {run for run, *_ in recover_all(tmp_path)}


def test_a_full_disk_is_said_when_a_run_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = golden(tmp_path, "run")
    log = run / PROFILER_FILE
    *_, end = [at for kind, _, at in parse(log.read_bytes()) if kind == fmt.READING]
    log.write_bytes(log.read_bytes()[:end])

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("advisor.collectors.format.record_files.os.write", full)
    with pytest.raises(RecordingError, match="cannot close the run"):
        store.recover_run(run)


def test_a_profile_that_is_killed_before_its_first_reading_leaves_nothing_for_long(
    tmp_path: Path,
) -> None:
    """Killed while the machine is measured: the next profile takes its folder away."""
    cache = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": ROOT, "XDG_CACHE_HOME": str(cache),
                   "XDG_DATA_HOME": str(tmp_path / "data")}  # fmt: skip
    environment.pop("ADVISOR_RUNS", None)
    command = [sys.executable, "-m", "advisor.cli", "profile", "-q", "--", "true"]
    runs = tmp_path / "data" / "advisor" / "runs"
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        while not any(identity(one.read_bytes()) for one in runs.glob(f"*/{PROFILER_FILE}")):
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)  # however long it takes to look, nothing is recorded
        (run,) = runs.glob("[!.]*")
        assert clean_runs(runs) == 0  # it lives, and nothing is recorded yet
        process.send_signal(signal.SIGKILL)
    assert clean_runs(runs) == 1
    assert not run.exists()
