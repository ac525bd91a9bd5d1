"""How fast the catalogue answers: load, filter and sort of the whole table; size of the bundle.

    python -m advisor.lab.speed.catalogue_speed [--repeats 7]

Warm is the second and later load in one process; cold is a fresh process, from the interpreter's
start to the sorted offers, once with and once without the parsed copy in the cache. Medians of
wall time, and of CPU time, which other tenants of the machine disturb less. Budgets: 0.1 s warm,
0.6 s cold, 2 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLD = (
    "from advisor.catalogue import Catalogue, OfferFilter\n"
    "offers = Catalogue.load().select(OfferFilter(pricing=['on-demand', 'spot']))\n"
    "assert len(offers) > 90_000\n"
)


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        os.environ["XDG_CONFIG_HOME"] = cache
        parts = warm(repeats)
        show("cold process", [cold(cache) for _ in range(repeats)])
    show("cold process, no cache", [cold("/dev/null/none") for _ in range(repeats)])
    for name, times in parts.items():
        show(f"warm {name}", times)
    size = sum(path.stat().st_size for path in (ROOT / "datasets" / "catalogue").iterdir())
    print(f"{'bundle':28}{size / 1e6:8.2f} MB")


def warm(repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return (wall, CPU) seconds of loading, of filtering and sorting, and of both."""
    from advisor.catalogue import Catalogue, OfferFilter, parse_gpus

    Catalogue.load()
    times: dict[str, list[tuple[float, float]]] = {
        "load": [], "sort of all": [], "load + sort of all": [], "filter by GPU": [],
    }  # fmt: skip
    for _ in range(repeats):
        marks = [(time.perf_counter(), time.process_time())]
        catalogue = Catalogue.load()
        marks.append((time.perf_counter(), time.process_time()))
        assert len(catalogue.select(OfferFilter())) > 90_000
        marks.append((time.perf_counter(), time.process_time()))
        assert len(catalogue.select(OfferFilter(gpus=parse_gpus("A100:8")))) > 100
        marks.append((time.perf_counter(), time.process_time()))
        spans = {"load": (0, 1), "sort of all": (1, 2), "load + sort of all": (0, 2),
                 "filter by GPU": (2, 3)}  # fmt: skip
        for name, (start, end) in spans.items():
            wall, cpu = (marks[end][k] - marks[start][k] for k in (0, 1))
            times[name].append((wall, cpu))
    return times


def cold(cache: str) -> tuple[float, float]:
    """Return (wall, CPU) seconds of a fresh process that loads and sorts the whole table."""
    before = os.times()
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COLD],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache},
    )
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user
    return wall, cpu - before.children_system


def show(name: str, times: list[tuple[float, float]]) -> None:
    """Print the medians."""
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:28}{1000 * wall:8.0f} ms wall{1000 * cpu:8.0f} ms CPU")


if __name__ == "__main__":
    main()
