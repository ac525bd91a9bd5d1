"""Tests of a changed tree from one warm process: imported once, forked for every change.

Run inside a copy of the tree (``python -m advisor.lab.speed.warm_tests``), it collects all tests,
which imports what they need, and reads orders, a JSON line each: a place of a file, what stands
there instead, the tests to run, seconds. For each order the file is changed on disk, where other
programs read it, and a fork takes the changed functions into the modules that it holds. Where a
change is outside functions' bodies (a default), the fork imports the product again. Test modules
are imported anew in every fork, and caches of calls are empty: nothing that was computed before
the change is looked at.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

OPTIONS: Final = (
    "-q", "-x", "-rfE", "--tb=no", "-p", "no:randomly", "-p", "no:cacheprovider",
    "--only-rerun", "nothing is tried again", "--timeout", "0",
    "-m", "not slow and not frameworks and not browser and not exports",
)  # fmt: skip
POLL_S: Final = 0.01
# Seconds of the processor, so that a busy machine changes no verdict: of one test, of all.
TEST_CPU_S: Final = 20
ALL_CPU_S: Final = 150


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a piece of code and what is defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes(one)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _itself(code: CodeType) -> tuple[object, ...]:
    """Return what a piece of code does, without lines and without what is defined in it."""
    consts = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, code.co_names, tuple(consts)


class Bounded:
    """A plugin of pytest: a test that computes for too long, as in an endless loop, fails."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S, TEST_CPU_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    @staticmethod
    def _stop(*_: object) -> None:
        raise TimeoutError(f"no end after {TEST_CPU_S} s of the processor")


class Warm:
    """The modules of a tree in memory, and forks of them that run tests of a changed file."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree.resolve()
        self.said = self.tree / "said.txt"
        self.at_s = int(time.time())
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main(["--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"])
        self._forget("tests/")
        gc.unfreeze()  # what tests/conftest.py put out of sight
        self.functions: defaultdict[str, list[FunctionType]] = defaultdict(list)
        self.remembered: list[functools._lru_cache_wrapper[Any]] = []
        for one in gc.get_objects():
            if type(one) is FunctionType and str(self.tree) in one.__code__.co_filename:
                self.functions[os.path.realpath(one.__code__.co_filename)].append(one)
            elif type(one) is functools._lru_cache_wrapper:
                self.remembered.append(one)
        gc.freeze()

    def answer(self, order: dict[str, Any]) -> tuple[int, str]:
        """Change a file, run tests in a fork, restore it: pytest's exit code (-1: no time)."""
        path = self.tree / order["file"]
        kept, times = path.read_bytes(), path.stat()
        changed = kept[: order["start"]] + order["after"].encode() + kept[order["end"] :]
        if changed != kept:
            path.write_bytes(changed)
            # Compiled files are told by a second and a size: no order may find another's.
            self.at_s += 1
            os.utime(path, (self.at_s, self.at_s))
        try:
            return self._forked(path, kept, changed, order["tests"], order["limit_s"])
        finally:
            if changed != kept:
                path.write_bytes(kept)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _forked(
        self, path: Path, kept: bytes, changed: bytes, tests: Sequence[str], limit_s: float
    ) -> tuple[int, str]:
        child = os.fork()
        if child == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (ALL_CPU_S, ALL_CPU_S))
            with self.said.open("wb") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            self._take(path, kept, changed)
            words = [*OPTIONS, "--basetemp", str(self.tree / "tmp"), *tests]
            code = pytest.main(words, plugins=[Bounded()])
            sys.stdout.flush()
            os._exit(int(code))
        until, done = time.monotonic() + limit_s, 0
        while time.monotonic() < until and not done:
            time.sleep(POLL_S)
            done, status = os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # the fork, or what it left behind
        if not done:
            os.waitpid(child, 0)
            return -1, ""
        return os.waitstatus_to_exitcode(status), self.said.read_text(errors="replace")

    def _take(self, path: Path, kept: bytes, changed: bytes) -> None:
        """Bring a change into the modules in memory, and forget what was computed."""
        for calls in self.remembered:
            calls.cache_clear()
        mine = self.functions[str(path)]
        if changed == kept or not mine:
            return
        old, new = (
            {_place(one): one for one in codes(compile(text, str(path), "exec"))}
            for text in (kept, changed)
        )
        in_memory = {_place(one.__code__) for one in mine}
        around = tuple(f"{name}.<locals>" for name, _ in in_memory)
        elsewhere = [
            place for place, code in new.items()
            if place not in in_memory and not place[0].startswith(around)
            and (place not in old or _itself(old[place]) != _itself(code))
        ]  # fmt: skip
        if elsewhere:
            self._forget("")
        for one in mine:
            one.__code__ = new.get(_place(one.__code__), one.__code__)

    def _forget(self, below: str) -> None:
        """Have what lies in a folder of the tree imported again."""
        start = str(self.tree / below)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if name != "__main__" and os.path.realpath(file).startswith(start):
                del sys.modules[name]


def main() -> None:
    """Answer orders until there are none: a JSON line each way."""
    orders, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warm = Warm(Path.cwd())
    print("ready", file=answers, flush=True)
    for line in orders:
        print(json.dumps(warm.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
