"""What the programs that measure share: options, clocks, neighbours that burn, records."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic

ROOT: Final = Path(__file__).resolve().parents[1]
ADVISOR: Final = [sys.executable, "-m", "advisor.cli"]


def options(
    doc: str | None, words: Mapping[str, Any], argv: Sequence[str] | None = None
) -> argparse.Namespace:
    """Read a program's options: name -> default, (default, help), or what ``add_argument`` takes.

    A default of False is a flag, a list takes several values, a type stands for nothing given.

    >>> asked = options("Measure.", {"--rounds": 3, "--json": Path, "--again": False}, [])
    >>> asked.rounds, asked.json, asked.again
    (3, None, False)
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    for name, given in words.items():
        default, told = given if isinstance(given, tuple) else (given, None)
        parser.add_argument(name, **{"help": told, **_kind(default)})
    return parser.parse_args(argv)


def _kind(default: Any) -> dict[str, Any]:
    if isinstance(default, dict):
        return default
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, type):
        return {"type": default}
    if isinstance(default, list):
        return {"type": type(default[0]), "nargs": "+", "default": default}
    kind = Path if isinstance(default, Path) else type(default)
    return {"type": kind, "default": default}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the clock and of processors; those of processes that ended meanwhile included."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} ({self.cpu_s:.2f})"


def spent(what: Callable[[], object]) -> Spent:
    """Return what a call takes."""
    began, cpu = time.perf_counter(), _cpu_s()
    what()
    return Spent(time.perf_counter() - began, _cpu_s() - cpu)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run_s(command: list[str], **environment: str) -> Spent:
    """Return what a command takes, its output thrown away.

    Raises CalledProcessError if it fails.
    """
    return spent(
        lambda: subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
    )  # fmt: skip


def torchrun(workers: int, script: Path, *words: object) -> list[str]:
    """Return the command of so many ranks of a script on this machine."""
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    return [sys.executable, *ranks, str(script), *map(str, words)]


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """Have so many processes burn a core each meanwhile."""
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(count)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


def in_turns(number: int) -> tuple[bool, bool]:
    """Return off and on in the order of a round: the first of each pair in turn."""
    return number % 2 == 1, number % 2 == 0


def medians(rows: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def load() -> str:
    """Return the machine's load, its cores and the day: they belong to every figure."""
    day = datetime.now(UTC).date().isoformat()
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {day}"


def write_json(path: Path | None, record: Any) -> None:
    if path is not None:
        atomic.write_text(path, json.dumps(record, indent=1) + "\n")
