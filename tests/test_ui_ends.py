"""``advisor ui --serve`` as a process: whatever ends it, none stays; new prices are noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
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
    places = {"ADVISOR_RUNS": folder, "HOME": folder, "XDG_CONFIG_HOME": folder / ".config"}
    environ = os.environ | {name: str(place) for name, place in places.items()}
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


def test_a_price_that_is_replaced_is_in_the_next_answer(tmp_path: Path) -> None:
    rules = tmp_path / ".config" / "advisor" / "overrides.csv"
    with serving(tmp_path) as server:
        try:
            assert server.stdout is not None
            address = f"{server.stdout.readline().strip()}api/recommend?cloud=lambda"

            def cheapest() -> float:
                with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
                    rows = json.load(reply)["front"]
                return min(float(row["cost_usd"]["value"]) for row in rows)

            before = cheapest()
            assert cheapest() == before
            rules.parent.mkdir(parents=True)
            rules.write_text("rule,provider,value\nfactor,lambda,0.5\n")
            wait_for(lambda: 0.4 < cheapest() / before < 0.6, "the old price is still in answers")
        finally:
            for left in in_session(server.pid):
                os.kill(left, signal.SIGKILL)
