"""Processes read through psutil alone, as on macOS and Windows: the same figures and runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import MARKED, record

from advisor.collectors.format.recording import Reading, read_reading
from advisor.collectors.run import runner
from advisor.collectors.watch.host import Groups
from advisor.collectors.watch.portable import PortableTree
from advisor.collectors.watch.processes import Processes, ProcessTree
from advisor.collectors.watch.sampler import Sampler

MIB = 2**20
TREE = """
import subprocess, sys, time
block = bytearray(b"x") * (64 << 20)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
with open(sys.argv[1], "wb") as file:
    file.write(block[: 4 << 20])
end = time.process_time() + 0.6
while time.process_time() < end: pass
print("ready", flush=True)
time.sleep(120)
"""


@pytest.fixture
def busy_tree(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two processes that have computed, written and allocated, and now stand still."""
    command = [sys.executable, "-c", TREE, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def reading_of(tree: Processes) -> Reading:
    """Return a reading of a tree's figures."""
    start_ns = time.monotonic_ns()
    return read_reading(Sampler(tree, Groups()).read(), start_ns)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to compare with")
def test_psutil_alone_reads_what_proc_does(busy_tree: subprocess.Popen[bytes]) -> None:
    portable, proc = PortableTree(busy_tree.pid), ProcessTree(busy_tree.pid)
    there, here = reading_of(portable), reading_of(proc)
    assert there.processes == here.processes == 2
    assert portable.processes.keys() == proc.processes.keys()
    assert there.cpu_s == pytest.approx(here.cpu_s, abs=0.05)  # counted in ticks of 10 ms
    assert here.cpu_s >= 0.6
    assert there.rss_bytes == pytest.approx(here.rss_bytes, rel=0.02)
    assert there.pss_bytes == pytest.approx(here.pss_bytes, rel=0.02)
    assert there.disk_write_bytes == here.disk_write_bytes
    starts = {pid: one.start_ticks for pid, one in proc.processes.items()}
    found = {pid: one.start_ticks for pid, one in portable.processes.items()}
    assert starts.keys() == found.keys()
    proc.close()


def test_the_dead_keep_what_they_used_and_the_new_are_found() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", burn]) as process:
        tree = PortableTree()
        end = time.monotonic() + 60
        while tree.read().cpu_ns < 0.25e9 and time.monotonic() < end:
            tree.refresh()
            time.sleep(0.05)
        alive = tree.read()
        assert process.pid in tree.processes
        assert tree.is_alive(process.pid)
        process.kill()
        process.wait()
        gone = tree.read()
    assert not tree.is_alive(process.pid)
    assert gone.processes == alive.processes - 1
    assert gone.cpu_ns >= alive.cpu_ns >= 0.25e9


# What macOS lacks of what the profiler uses.
_WITHOUT = """
import os, signal
del os.memfd_create, os.fdatasync, os.posix_fallocate, signal.sigtimedwait
import sys; sys.platform = "darwin"
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's process finds a system without what only Linux has; psutil is as here."""
    original = runner._agent_command

    def command(plan_fd: int, reader: str) -> list[str]:
        found = original(plan_fd, reader)
        at = found.index("-c") + 1
        # psutil's own look at the system comes first: it has no other files here.
        found[at] = (
            "import sys; sys.path.insert(0, sys.argv[1]); sys.path += sys.argv[3:]; import psutil"
            f"\n{_WITHOUT}\n{found[at]}"
        )
        return found

    monkeypatch.setattr(runner, "_agent_command", command)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(sys, "platform", "darwin")


@pytest.mark.usefixtures("elsewhere")
def test_a_recording_is_made_without_proc_sigtimedwait_and_memfd(tmp_path: Path) -> None:
    seen = record(tmp_path, MARKED, "60")
    assert (seen.status, seen.exit_code) == ("finished", 0)
    assert seen.step_time is not None
    assert seen.step_time.steps + seen.step_time.warmup_steps == 59
    assert seen.readings[-1].run_delay_s == 0
    assert max(reading.processes for reading in seen.readings) == 1
    assert max(reading.rss_bytes for reading in seen.readings) > 4 * MIB


@pytest.mark.usefixtures("elsewhere")
def test_there_a_script_is_stopped_after_its_steps_too(tmp_path: Path) -> None:
    seen = record(tmp_path, MARKED, "100000", limit_steps=30)
    assert (seen.status, seen.stop_reason) == ("stopped", "30 steps")


def test_on_linux_psutil_may_be_asked_for(tmp_path: Path) -> None:
    seen = record(tmp_path, MARKED, "60", reader="psutil")
    assert seen.status == "finished"
    assert max(reading.cpu_s for reading in seen.readings) > 0


WAITING = """
import os, signal, sys
{without}
from advisor.collectors.run.signals import SignalWait
signals = SignalWait()
assert signals.wait(0.01) is None
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
    os.kill(os.getpid(), number)
    received = signals.wait(30)
    assert received == (number, False), received
assert signals.wait(0.01) is None
pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], dict(os.environ), setsigmask=())
received = signals.wait(60)
assert received[0] == signal.SIGCHLD
print("all came")
"""


@pytest.mark.parametrize("without", ["", "del signal.sigtimedwait"])
def test_signals_are_waited_for_with_and_without_sigtimedwait(without: str) -> None:
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(without=without)],
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "all came\n", done.stderr


def test_psutil_is_not_imported_where_proc_is_read() -> None:
    """Starting beside the script takes 20 ms; psutil would add as much again."""
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    code = "import sys; import advisor.collectors.run.agent; print('psutil' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
