"""What goes wrong around a recording, and what is left of it then."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from collecting import MARKED, ROOT, record, record_command, remember_benchmark

from advisor.collectors.derive.profiler_log import read_profiler_log
from advisor.collectors.derive.read import read_events
from advisor.collectors.derive.store import (
    latest_run,
    list_runs,
    read_recording,
    recover_run,
    remove_run,
)
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.record_files import PROFILER_FILE
from advisor.collectors.hooks import format as fmt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture(autouse=True)
def _find_advisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)


def marked(body: str) -> str:
    """Return a script that imports the marker and then runs ``body``."""
    return f"import os, signal, sys, time\nfrom advisor.collectors.marker import step\n{body}\n"


def start(
    folder: Path, source: str, *options: str, without_script: bool = False
) -> subprocess.Popen[bytes]:
    """Start ``advisor profile`` on a script, or on what the options name."""
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "advisor.cli", "profile", "--runs", str(folder / "runs")]
    return subprocess.Popen(
        [*command, *options, *([] if without_script else [str(script)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )


LIMIT_BYTES = 300 << 20


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group that may hold 300 MiB, where the test may make one."""
    legacy = Path("/sys/fs/cgroup/memory")
    group = (legacy if legacy.is_dir() else Path("/sys/fs/cgroup")) / f"advisor-{os.getpid()}"
    limit = "memory.limit_in_bytes" if legacy.is_dir() else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT_BYTES))
        with suppress(OSError):  # a system without swap has no such file
            (group / "memory.swap.max").write_text("0")
    except OSError:
        pytest.skip("control groups cannot be made here")
    yield group
    group.rmdir()


@pytest.fixture(autouse=True)
def _no_benchmark(tmp_path: Path) -> None:
    remember_benchmark(tmp_path)


def until(condition: object, limit_s: float = 30.0) -> None:
    """Wait for something to become true."""
    assert callable(condition)
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def events_of(root: Path) -> Iterator[Path]:
    return root.glob("*/ev-*.bin")


def steps_in(root: Path) -> int:
    return max((read_events(path).completed for path in events_of(root)), default=0)


def readings_in(run: Path) -> int:
    try:
        return len(read_profiler_log(run / PROFILER_FILE).readings)
    except RecordingError:  # not begun yet
        return 0


def test_a_killed_script_leaves_every_step(tmp_path: Path) -> None:
    body = "for _ in range(25): time.sleep(0.02); step()\nos.kill(os.getpid(), 9)"
    seen = record(tmp_path, marked(body))
    assert (seen.status, seen.exit_code) == ("killed", 137)
    assert seen.step_time is not None
    assert seen.step_time.steps + seen.step_time.warmup_steps == 24


def test_a_killed_script_loses_the_steps_of_20_ms_at_most(tmp_path: Path) -> None:
    body = (
        "for number in range(2000):\n"
        "    time.sleep(1e-3); step(); print(time.monotonic_ns())\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)\n"
    )
    script = marked(f"sys.stdout = open({str(tmp_path / 'times')!r}, 'w')\n{body}")
    record(tmp_path, script)
    (path,) = events_of(tmp_path / "runs")
    steps = read_events(path)
    times_ns = [int(line) for line in (tmp_path / "times").read_text().splitlines()]
    lost = times_ns[steps.completed :]
    assert not lost or times_ns[-1] - steps.steps.last_ns < 20e6 + (times_ns[-1] - times_ns[-2])


def test_a_killed_profiler_leaves_the_script_running_and_a_run_to_recover(tmp_path: Path) -> None:
    body = "for _ in range(150): time.sleep(0.01); step()\nopen('done', 'w').close()"
    profiler = start(tmp_path, marked(f"os.chdir({str(tmp_path)!r})\n{body}"))
    until(lambda: steps_in(tmp_path / "runs") > 20)
    profiler.kill()
    profiler.wait()
    until((tmp_path / "done").exists)
    run = latest_run(tmp_path / "runs")
    assert read_recording(run).status == "killed"
    recovered = recover_run(run)
    assert (recovered.status, recovered.stop_reason) == ("killed", "the profiler was killed")
    assert recovered.step_time is not None
    assert recovered.step_time.steps + recovered.step_time.warmup_steps == 149
    assert recovered.readings
    assert recover_run(run) == recovered
    remove_run(run)
    assert list_runs(tmp_path / "runs") == []


def test_a_run_in_progress_is_neither_recovered_nor_removed(tmp_path: Path) -> None:
    profiler = start(tmp_path, marked("for _ in range(500): time.sleep(0.02); step()"))
    until(lambda: any(events_of(tmp_path / "runs")))
    run = latest_run(tmp_path / "runs")
    try:
        assert read_recording(run).status == "running"
        with pytest.raises(RecordingError, match="still being recorded"):
            recover_run(run)
        with pytest.raises(RecordingError, match="still being recorded"):
            remove_run(run)
    finally:
        profiler.terminate()
        profiler.communicate()
    assert profiler.returncode == 128 + signal.SIGTERM
    assert read_recording(run).status == "interrupted"


def test_control_c_on_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    body = """
got = 0
try:
    print("ready", flush=True)
    while True: time.sleep(0.01); step()
except KeyboardInterrupt:
    got += 1
    time.sleep(0.5)
print("interrupts", got, flush=True)
sys.exit(5)
"""
    script = tmp_path / "train.py"
    script.write_text(marked(body))
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell runs behind itself
        os.environ["XDG_CACHE_HOME"] = str(tmp_path)
        words = ["-m", "advisor.cli", "profile", "--runs", str(tmp_path / "runs"), str(script)]
        os.execv(sys.executable, [sys.executable, *words])
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 1024):
            output += chunk
    except OSError:  # the terminal is gone with its last process
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"interrupts 1" in output
    assert os.waitstatus_to_exitcode(status) == 5
    assert read_recording(latest_run(tmp_path / "runs")).status == "interrupted"


def test_an_interrupted_caller_passes_it_on_and_waits(tmp_path: Path) -> None:
    """A notebook's or a URL's profile runs beside its caller, who alone may get the signal."""
    body = """
try:
    while True: time.sleep(0.01); step()
except KeyboardInterrupt:
    sys.exit(6)
"""
    (tmp_path / "train.py").write_text(marked(body))
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from advisor.collectors.run.runner import profile\n"
        "seen = profile([sys.executable, sys.argv[2]], run_root=sys.argv[1], measure_host=False)\n"
        "print(seen.status, seen.exit_code)"
    )
    words = [str(tmp_path / "runs"), str(tmp_path / "train.py")]
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE) as caller:
        until(lambda: steps_in(tmp_path / "runs") > 20)
        caller.send_signal(signal.SIGINT)
        out, _ = caller.communicate(timeout=60)
    assert out.split() == [b"interrupted", b"6"]


def test_an_interrupted_watch_leaves_the_watched_process_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        profiler = start(tmp_path, "", "-q", "--pid", str(process.pid), without_script=True)
        until(lambda: any((tmp_path / "runs").glob("*/profiler.bin")))
        run = latest_run(tmp_path / "runs")
        until(lambda: readings_in(run) > 0)
        profiler.send_signal(signal.SIGINT)
        profiler.communicate(timeout=60)
        assert process.poll() is None
        process.kill()
    assert read_recording(run).status == "interrupted"


def test_a_command_that_cannot_be_started_is_said_and_recorded(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF is not what this is")
    broken.chmod(0o755)
    profiler = start(tmp_path, "", "-q", "--", str(broken), without_script=True)
    _, err = profiler.communicate(timeout=60)
    assert profiler.returncode == 126
    first, second = err.decode().splitlines()
    assert first.startswith("error: ")
    assert "cannot be started" in first
    assert second.startswith("hint: ")
    assert read_recording(latest_run(tmp_path / "runs")).status == "failed"


def test_names_that_are_no_text_are_recorded_and_listed(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/tr\xffain.py"
    Path(os.fsdecode(odd)).write_text(marked("for _ in range(9): time.sleep(0.01); step()"))
    command = [sys.executable, os.fsdecode(odd)]
    seen = record_command(tmp_path, command)
    assert (seen.exit_code, seen.command) == (0, tuple(command))
    listed = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "runs", "list"],
        env={**os.environ, "ADVISOR_RUNS": str(tmp_path / "runs")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert r"\udcff" in listed.stdout


@pytest.mark.needs_root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_without_proc_the_steps_are_recorded_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED)
    code = (
        "import sys; from advisor.collectors.run.runner import profile\n"
        "seen = profile([sys.executable, sys.argv[2]], run_root=sys.argv[1], measure_host=False)\n"
        "print(seen.status, seen.step_time.steps + seen.step_time.warmup_steps)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "runs"), str(tmp_path / "train.py")]
    inner = 'umount -l /proc && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", inner, "sh", *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if b"unshare" in done.stderr or b"umount" in done.stderr:
        pytest.skip("cannot unmount here")
    assert done.stdout.split()[-2:] == [b"finished", b"39"], done.stderr


@pytest.mark.needs_root
def test_a_memory_limit_is_named_where_it_kills(tmp_path: Path, memory_group: Path) -> None:
    """The kernel kills in a real cgroup; what was stepped is kept, and the peak is called none."""
    body = """
kept = []
for number in range(400):
    kept.append(bytearray(8 << 20))
    time.sleep(0.005)
    step(samples=4)
"""
    (tmp_path / "train.py").write_text(marked(body))
    profile = [sys.executable, "-m", "advisor.cli", "profile", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(memory_group / "cgroup.procs"),
         *profile, str(tmp_path / "train.py")],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    said = done.stderr.replace("[advisor]   ", "").replace("\n", " ")
    assert "allowed when it was killed, most likely for memory" in said
    assert "rent at least" not in said
    seen = read_recording(latest_run(tmp_path / "runs"))
    assert seen.status == "killed"
    assert seen.host.memory_limit_bytes == LIMIT_BYTES
    assert seen.step_time is not None
    assert seen.step_time.steps > 10


def test_a_signal_to_the_profiler_is_passed_on(tmp_path: Path) -> None:
    body = """
def leave(*_):
    print("asked to leave", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
while True: time.sleep(0.01); step()
"""
    profiler = start(tmp_path, marked(body))
    until(lambda: steps_in(tmp_path / "runs") > 20)
    profiler.terminate()
    out, _ = profiler.communicate(timeout=30)
    assert profiler.returncode == 7
    assert b"asked to leave" in out


def test_a_daemonised_child_stays_in_the_tree(tmp_path: Path) -> None:
    """It stays until it has been looked at: of what has ended, only its last reading is known."""
    body = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        end = time.process_time() + 1.0
        while time.process_time() < end: pass
        open('done', 'w').close()
        while not os.path.exists('seen'): time.sleep(0.05)
    os._exit(0)
os.wait()
while not os.path.exists('done'): time.sleep(0.05)
time.sleep(2.5)
open('seen', 'w').close()
"""
    seen = record(tmp_path, marked(f"os.chdir({str(tmp_path)!r})\n{body}"))
    assert seen.exit_code == 0
    assert max(reading.processes for reading in seen.readings) >= 2
    assert max(reading.cpu_s for reading in seen.readings) > 0.9


@pytest.mark.parametrize("ignored", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_loop_that_swallows_everything_is_ended_by_force(tmp_path: Path, ignored: str) -> None:
    body = f"""
{ignored}
while True:
    try:
        time.sleep(0.01)
        step()
    except BaseException:
        pass
"""
    seen = record(tmp_path, marked(body), limit_steps=20, patience_s=0.2)
    assert seen.status == "stopped"
    assert seen.step_time is not None
    assert 18 <= seen.step_time.steps + seen.step_time.warmup_steps <= 20


@pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-S"]])
def test_an_isolated_interpreter_gives_resources_and_a_warning(
    tmp_path: Path, flags: list[str]
) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import time\nt = time.time()\nwhile time.time() < t + 2.6: pass")
    seen = record_command(tmp_path, [sys.executable, *flags, str(script)])
    assert seen.status == "finished"
    assert seen.step_time is None
    assert len(seen.readings) > 5
    assert any("without hooks" in text for text in seen.warnings)


def test_a_cleaned_environment_gives_resources_and_a_warning(tmp_path: Path) -> None:
    command = ["env", "-i", sys.executable, "-c", "import time; time.sleep(2.6)"]
    seen = record_command(tmp_path, command)
    assert seen.status == "finished"
    assert any("without hooks" in text for text in seen.warnings)


def test_a_marker_brings_hooks_up_that_the_interpreter_kept_out(tmp_path: Path) -> None:
    script = tmp_path / "isolated.py"
    script.write_text(f"import sys; sys.path.insert(0, {ROOT!r})\n" + MARKED)
    seen = record_command(tmp_path, [sys.executable, "-I", str(script), "30"])
    assert seen.step_time is not None
    assert seen.step_time.clock == "marker"


def test_the_users_own_sitecustomize_runs_and_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['OWN'] = 'here'")
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{ROOT}")
    seen = record(
        tmp_path, marked("assert os.environ['OWN'] == 'here'\nfor _ in range(9): step()")
    )
    assert (seen.exit_code, seen.step_time is not None) == (0, True)
    (own / "sitecustomize.py").write_text("raise ValueError('broken')")
    seen = record(tmp_path, marked("for _ in range(9): step()"))
    assert (seen.exit_code, seen.step_time is not None) == (0, True)


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    body = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (81920, 81920))
for _ in range(5000): step()
print("done", flush=True)
"""
    seen = record(tmp_path, marked(body))
    assert seen.exit_code == 0
    assert seen.step_time is not None
    (path,) = events_of(tmp_path / "runs")
    assert path.stat().st_size <= 81920
    assert 1000 < seen.step_time.steps < 81920 // fmt.STEP_PAYLOAD.size


@pytest.mark.needs_root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system_under_both_sides(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(marked("for _ in range(5000): step()\nprint('done')"))
    code = (
        "import sys; from advisor.collectors.run.runner import profile\n"
        "seen = profile([sys.executable, 'train.py'], run_root='runs', measure_host=False)\n"
        "print(seen.exit_code in (0, None), seen.step_time.steps)"
    )
    inner = 'mkdir runs && mount -t tmpfs -o size=64k tmpfs runs && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", inner, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    if b"unshare" in done.stderr or b"mount" in done.stderr:
        pytest.skip("cannot mount here")
    ended, steps = done.stdout.split()[-2:]
    assert ended == b"True", done.stderr
    assert int(steps) > 100


def test_a_run_folder_that_vanishes_does_not_reach_the_script(tmp_path: Path) -> None:
    body = """
import shutil
for number in range(60):
    if number == 20: shutil.rmtree(os.environ["ADVISOR_RUN_DIR"])
    time.sleep(0.01)
    step()
open('done', 'w').close()
"""
    with pytest.raises(RecordingError, match="no recording at"):
        record(tmp_path, marked(f"os.chdir({str(tmp_path)!r})\n{body}"))
    assert (tmp_path / "done").exists()


def test_two_profilers_at_once_keep_apart(tmp_path: Path) -> None:
    both = [start(tmp_path, MARKED) for _ in range(2)]
    for profiler in both:
        profiler.communicate(timeout=60)
    assert [profiler.returncode for profiler in both] == [0, 0]
    runs = [read_recording(run) for run in list_runs(tmp_path / "runs")]
    assert len(runs) == 2
    for seen in runs:
        assert seen.step_time is not None
        assert seen.step_time.steps + seen.step_time.warmup_steps == 39


def test_a_profiler_under_a_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(MARKED)
    inner = [sys.executable, "-m", "advisor.cli", "profile", "-q", "--runs", str(tmp_path / "in")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    outer = record_command(tmp_path, [*inner, str(script)])
    assert outer.exit_code == 0
    seen = read_recording(latest_run(tmp_path / "in"))
    assert seen.step_time is not None


def test_an_unwritable_run_folder_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profiler = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", "--runs", str(tmp_path / "file" / "runs"),
         "--", "touch", str(tmp_path / "started")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert profiler.returncode == 1
    assert profiler.stderr.startswith("error: cannot write a run into")
    assert "hint:" in profiler.stderr
    assert not (tmp_path / "started").exists()


def test_output_that_is_no_text_passes_through_unchanged(tmp_path: Path) -> None:
    noise = bytes(range(256))
    body = f"sys.stdout.buffer.write({noise!r})\nsys.stderr.buffer.write({noise!r})"
    out, err = start(tmp_path, marked(body), "-q").communicate(timeout=30)
    assert out == noise
    assert noise in err


def test_the_profiler_stays_small(tmp_path: Path) -> None:
    profiler = start(tmp_path, marked("for _ in range(600): time.sleep(0.01); step()"))
    until(lambda: steps_in(tmp_path / "runs") > 200)
    pages = int(Path(f"/proc/{profiler.pid}/statm").read_text().split()[1])
    profiler.terminate()
    profiler.communicate()
    assert pages * resource.getpagesize() <= 25 * 2**20
