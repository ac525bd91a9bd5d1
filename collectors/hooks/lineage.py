"""The choice of hooked Python processes: those that may train, and no others.

Hooked are the command, whatever it starts by way of shells, launchers and scripts, and the workers
of ``multiprocessing`` and ``loky`` at any time. Not hooked are

* tools that never train (``pip``, ``venv``, resource trackers, compile workers, TensorBoard),
* other programs that a process runs once it has begun to train: ``subprocess`` from a training
  loop is an evaluation, an upload, ``git``,
* whatever is no descendant of the profiler: a daemon or a batch job that got the environment.

In doubt a process is hooked: that costs it some milliseconds, a launcher that is missed would cost
the recording. Who is not hooked passes nothing on. Python 3.8, nothing beyond what every
interpreter has loaded.
"""

from __future__ import annotations

import os
import sys

RUN = "ADVISOR_RUN_DIR"
PROFILER = "ADVISOR_PROFILER"  # pid and pid namespace
TRAINER = "ADVISOR_TRAINER"  # pid of the process above this one that trains
_REHEARSAL = "ADVISOR_REHEARSAL"  # ``format.REHEARSAL``

# Modules that ``-m`` runs and scripts, by name.
_TOOLS = frozenset(["pip", "pip3", "ensurepip", "venv", "virtualenv", "compileall", "tensorboard",
                    "compile_worker"])  # fmt: skip
_TRACKERS = ("resource_tracker", "semaphore_tracker")
_MOST_ANCESTORS = 100


def belongs() -> bool:
    """Whether this process, which has just started, is to be hooked."""
    words = _command_line()
    code = _code(words)
    if any(tracker in code for tracker in _TRACKERS) or _program(words) in _TOOLS:
        return False
    trainer = os.environ.get(TRAINER, "")
    if trainer not in ("", str(os.getpid())) and not _is_worker(words, code):
        return False
    return _is_below_profiler()


def begin_training() -> None:
    """Let programs that this process starts from now on know that it trains, not they."""
    os.environ[TRAINER] = str(os.getpid())


def leave() -> None:
    """Take the recording out of what this process passes on to those it starts."""
    for name in (RUN, PROFILER, TRAINER, _REHEARSAL):
        os.environ.pop(name, None)
    inject = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if path != inject]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)


def this_profiler() -> str:
    """Return the value of ``PROFILER`` for a profiler that is this process."""
    return "%d %s" % (os.getpid(), _namespace())


def _is_worker(words: list[str], code: str) -> bool:
    """Whether a process was started by ``multiprocessing``, a copy of it, or loky."""
    is_loky = any("popen_loky" in word for word in words)
    return is_loky or "--multiprocessing-fork" in words or "forkserver" in code


def _command_line() -> list[str]:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "orig_argv", ()))


def _code(words: list[str]) -> str:
    """Return what ``-c`` gives the interpreter to run, else nothing."""
    at = words.index("-c") if "-c" in words else len(words)
    return words[at + 1] if at + 1 < len(words) else ""


def _program(words: list[str]) -> str:
    """Return the last part of the name of the module or script that is run."""
    pending = iter(words[1:])
    for word in pending:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(pending, None)
        elif word == "-m":
            return next(pending, "").rpartition(".")[2]
        elif not word.startswith("-"):
            name = os.path.basename(word)
            folder = os.path.basename(os.path.dirname(word))
            return folder if name == "__main__.py" else name
        elif word == "-c":
            return ""
    return ""


def _is_below_profiler() -> bool:
    """Whether the profiler is an ancestor; True where that cannot be seen."""
    told = os.environ.get(PROFILER, "").split()
    if len(told) != 2 or told[1] != _namespace():
        return True
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        pid = stat_of(pid, 1)
        if pid == int(told[0]) or pid < 0:
            return True
        if pid <= 1:
            return False
    return True


def stat_of(pid: int, number: int, proc: str = "/proc") -> int:
    """Return a number of ``/proc/PID/stat``, the state's is 0; -1 where it is not to be seen."""
    try:
        with open("%s/%d/stat" % (proc, pid), "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[number])
    except (OSError, IndexError, ValueError):
        return -1


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "?"
