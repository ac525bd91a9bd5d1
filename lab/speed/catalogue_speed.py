"""How fast the catalogue answers: load, filter and sort of the whole table; size of the bundle.

    python -m advisor.lab.speed.catalogue_speed [--repeats 7]

Warm is the second and later load in one process; cold is a fresh process, from the interpreter's
start to the sorted offers, once with and once without the parsed copy in the cache. Medians of
wall time, and of CPU time, which other tenants of the machine disturb less. Budgets: 0.1 s warm,
0.6 s cold, 2 MB.
"""

from __future__ import annotations

import os
import sys
import tempfile

from advisor.lab import frame

COLD = (
    "from advisor.catalogue import Catalogue, OfferFilter\n"
    "offers = Catalogue.load().select(OfferFilter(pricing=['on-demand', 'spot']))\n"
    "assert len(offers) > 90_000\n"
)


def main() -> None:
    repeats = frame.options(__doc__, {"--repeats": 7}).repeats
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME"), cache)
        parts = warm(repeats)
        show("cold process", [cold(cache) for _ in range(repeats)])
    show("cold process, no cache", [cold("/dev/null/none") for _ in range(repeats)])
    for name, times in parts.items():
        show(f"warm {name}", times)
    size = sum(path.stat().st_size for path in (frame.ROOT / "datasets" / "catalogue").iterdir())
    print(f"{'bundle':28}{size / 1e6:8.2f} MB")


def warm(repeats: int) -> dict[str, list[frame.Spent]]:
    """Return what loading takes, filtering and sorting, and both."""
    from advisor.catalogue import Catalogue, OfferFilter, parse_gpus

    def sort_all(catalogue: Catalogue) -> None:
        assert len(catalogue.select(OfferFilter())) > 90_000

    def by_gpu(catalogue: Catalogue) -> None:
        assert len(catalogue.select(OfferFilter(gpus=parse_gpus("A100:8")))) > 100

    loaded = Catalogue.load()
    times: dict[str, list[frame.Spent]] = {}
    for _ in range(repeats):
        load = frame.spent(Catalogue.load)
        sort = frame.spent(lambda: sort_all(loaded))
        parts = {"load": load, "sort of all": sort, "load + sort of all": load + sort,
                 "filter by GPU": frame.spent(lambda: by_gpu(loaded))}  # fmt: skip
        for name, took in parts.items():
            times.setdefault(name, []).append(took)
    return times


def cold(cache: str) -> frame.Spent:
    """Return what a fresh process takes that loads and sorts the whole table."""
    return frame.run_s([sys.executable, "-c", COLD], XDG_CACHE_HOME=cache)


def show(name: str, times: list[frame.Spent]) -> None:
    wall, cpu = frame.medians([(one.wall_s, one.cpu_s) for one in times])
    print(f"{name:28}{1000 * wall:8.0f} ms wall{1000 * cpu:8.0f} ms CPU")


if __name__ == "__main__":
    main()
