"""``advisor ui --serve`` leaves no process behind, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
JOB = ["--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "2B", "--cloud", "lambda"]
PATIENCE_S = 30.0


def in_session(leader: int) -> list[int]:
    """Return the processes of a session, but for what has ended and was not waited for."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (
                folder.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
            )
        except OSError:  # it ended meanwhile
            continue
        if int(session) == leader and state != "Z":
            found.append(int(folder.name))
    return found


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def serving(folder: Path) -> subprocess.Popen[str]:
    """Start the verb with two processes that answer, in a session of its own."""
    environ = {**os.environ, "ADVISOR_RUNS": str(folder), "HOME": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "advisor.cli", "ui", "--serve", "--workers", "2", *JOB],
        cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_starting"),
    [("SIGTERM", False), ("SIGINT", False), ("SIGHUP", False), ("SIGKILL", False),
     ("SIGTERM", True), ("SIGKILL", True)],
)  # fmt: skip
def test_no_process_stays(tmp_path: Path, name: str, is_starting: bool) -> None:
    with serving(tmp_path) as server:
        try:
            if not is_starting:
                assert server.stdout is not None
                assert server.stdout.readline().startswith("http")
            wait_for(lambda: len(in_session(server.pid)) > 2, "no process answers")
            os.kill(server.pid, getattr(signal, name))
            wait_for(lambda: not in_session(server.pid), f"processes stay after {name}")
            if name == "SIGTERM":
                assert server.wait() == 128 + signal.SIGTERM
        finally:
            for left in in_session(server.pid):
                os.kill(left, signal.SIGKILL)


def test_what_ignores_a_hang_up_goes_on_serving(tmp_path: Path) -> None:
    """As ``nohup advisor ui --serve`` does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = serving(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http")
        os.kill(server.pid, signal.SIGHUP)
        time.sleep(0.5)
        assert server.poll() is None
        os.kill(server.pid, signal.SIGTERM)
        wait_for(lambda: not in_session(server.pid), "processes stay")
