"""Which processes of a recording are hooked: those that may train, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import ROOT, record, record_command

from advisor.collectors.derive.read import read_events
from advisor.collectors.format.recording import Recording
from advisor.collectors.hooks import lineage
from advisor.collectors.run import child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

_STEP = f"import sys; sys.path.insert(0, {ROOT!r}); from advisor.collectors.marker import step\n"
_WORKER = "import os, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"


def hooked_pids(seen: Recording) -> set[int]:
    """Return the processes that left an event file."""
    return {read_events(path).header["pid"] for path in seen.path.glob("ev-*.bin")}


def pid_in(path: Path) -> int:
    """Return the pid that a child wrote down."""
    return int(path.read_text())


def test_programs_run_from_a_training_loop_are_not_hooked_those_before_are(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(_WORKER)
    body = f"""
import subprocess
def run(name):
    subprocess.run([sys.executable, {str(tmp_path / "tool.py")!r}, {str(tmp_path)!r} + "/" + name])
run("before")
for _ in range(6): step()
run("after")
for _ in range(6): step()
"""
    seen = record(tmp_path, _STEP + body)
    assert seen.step_time is not None
    assert pid_in(tmp_path / "before") in hooked_pids(seen)
    assert pid_in(tmp_path / "after") not in hooked_pids(seen)
    assert len(hooked_pids(seen)) == 2


def test_workers_of_a_trainer_are_hooked_their_resource_tracker_is_not(tmp_path: Path) -> None:
    body = f"""
import multiprocessing, os
def work(name):
    open(name, "w").write(str(os.getpid()))
if __name__ == "__main__":
    for _ in range(6): step()
    spawned = multiprocessing.get_context("spawn")
    lock = spawned.Lock()  # starts the tracker
    worker = spawned.Process(target=work, args=({str(tmp_path / "spawned")!r},))
    worker.start(); worker.join()
    for _ in range(6): step()
"""
    seen = record(tmp_path, _STEP + body)
    assert pid_in(tmp_path / "spawned") in hooked_pids(seen)
    assert len(hooked_pids(seen)) == 2


def test_a_shell_and_a_launcher_of_ones_own_pass_the_hooks_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_STEP + "for _ in range(6): step()\n")
    launcher = tmp_path / "launch.py"
    launcher.write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, {str(tmp_path / 'train.py')!r}], check=True)\n"
    )
    seen = record_command(tmp_path, ["sh", "-c", f"{sys.executable} {launcher}; true"])
    assert seen.step_time is not None
    assert not [text for text in seen.warnings if "without hooks" in text]


@pytest.mark.parametrize("words", [["-m", "pip", "--version"], ["-m", "compileall", "-q", "x.py"]])
def test_tools_that_never_train_are_not_hooked(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "x.py").write_text("")
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, *{words!r}], check=True)\n"
    seen = record(tmp_path, code)
    assert seen.status == "finished"
    assert len(hooked_pids(seen)) == 1


def test_who_is_no_descendant_of_the_profiler_is_not_hooked(tmp_path: Path) -> None:
    """A daemon that was given the environment, started by somebody else."""
    run = tmp_path / "run"
    run.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(child._INJECT),
        lineage.RUN: str(run),
        lineage.PROFILER: f"{2**22 - 1} {lineage._namespace()}",
    }
    environment.pop(lineage.TRAINER, None)  # of a session in this process
    code = "import os; print([n for n in os.environ if n.startswith(('ADVISOR', 'PYTHONPATH'))])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert list(run.iterdir()) == []
    environment[lineage.PROFILER] = lineage.this_profiler()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert len(list(run.glob("ev-*.bin"))) == 1


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "-m", "pip", "install"], "pip"),
        (["python", "-u", "-X", "dev", "/usr/bin/pip3", "list"], "pip3"),
        (["python", "-m", "torch._inductor.compile_worker"], "compile_worker"),
        (["python", "/x/torch/_inductor/compile_worker/__main__.py"], "compile_worker"),
        (["python", "train.py", "-m", "pip"], "train.py"),
        (["python", "-c", "print(1)", "pip"], ""),
        (["python"], ""),
    ],
)
def test_what_an_interpreter_runs_is_told_by_its_command_line(
    words: list[str], program: str
) -> None:
    assert lineage._program(words) == program


def test_a_fork_of_a_fork_is_not_taken_for_a_process_without_hooks(tmp_path: Path) -> None:
    """It writes no record of its own, and its parent, who did, is gone."""
    seen = record(
        tmp_path,
        """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(3)
    os._exit(0)
os.wait()
time.sleep(3)
""",
    )
    assert seen.status == "finished"
    assert not [text for text in seen.warnings if "without hooks" in text]


@pytest.mark.parametrize(
    ("flags", "is_cleaned", "accepts"),
    [
        ([], False, True),
        (["-u", "-Wignore::ImportWarning", "-X", "dev"], False, True),
        (["-I"], False, False),
        (["-uE"], False, False),
        (["-S"], False, False),
        ([], True, False),
    ],
)
def test_whether_hooks_can_come_up_is_read_from_the_process_not_waited_for(
    flags: list[str], is_cleaned: bool, accepts: bool
) -> None:
    """However long an interpreter takes to start: a busy machine gives no false warning."""
    environment = {"PATH": os.environ["PATH"]}
    if not is_cleaned:
        environment["PYTHONPATH"] = f"/somewhere{os.pathsep}{child._INJECT}"
    with subprocess.Popen(
        [sys.executable, *flags, "-c", "print(flush=True); input()"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()  # from here on it is what it was started as
        assert child.accepts_hooks(process.pid) is accepts
        process.communicate(b"\n")
    assert child.accepts_hooks(process.pid)  # gone: nothing to warn of
