"""Which machine is cheapest for the jobs of ``datasets/runs``: by a formula, and as sold.

    python -m advisor.lab.experiments.closest_prices

The times are the measured ones. Prices are those of the formula that the rows carry (synthetic),
then those of the catalogue's closest machines, which the models learn (``prices.json``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from advisor import data
from advisor.lab.minicloud.plan import (
    NOMINAL_BASE_USD_PER_H,
    NOMINAL_CORE_USD_PER_H,
    NOMINAL_GBIT_USD_PER_H,
)
from advisor.records import RunRecord
from advisor.records.importers import minicloud

Price = Callable[[RunRecord], float]


def main() -> None:
    """Print, for both kinds of prices, how often each configuration is a job's cheapest."""
    runs = [
        r for r in minicloud.read_minicloud(data.root("datasets") / "runs") if r.status == "ok"
    ]
    prices: dict[str, Price] = {
        "by a formula": _by_formula,
        "closest sold": lambda r: r.price_usd_per_h or 0.0,
    }
    for name, price in prices.items():
        costs = _costs(runs, price)
        wins = Counter(min(by, key=by.__getitem__) for by in costs.values())
        print(f"{name}: {len(costs)} jobs")
        for where, count in wins.most_common():
            over = [by[where] / min(by.values()) for by in costs.values() if where in by]
            print(f"  {where}: cheapest for {count}; {np.mean(over):.2f} of the best on average")


def _by_formula(run: RunRecord) -> float:
    """Return the price of all machines by the formula that the rows carry [USD/h]."""
    machine = run.configuration[0]
    each = (
        NOMINAL_BASE_USD_PER_H
        + NOMINAL_CORE_USD_PER_H * float(machine.vcpus or 0.0)
        + NOMINAL_GBIT_USD_PER_H * (machine.network_gbit_per_s or 0.0)
    )
    return run.instances * each


def _costs(runs: list[RunRecord], price: Price) -> dict[str, dict[str, float]]:
    """Return the mean cost of each job on each configuration [USD]."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        machine = run.configuration[0]
        where = (
            f"{run.instance_key} {run.layout['kind']} {machine.network_gbit_per_s or ''}".strip()
        )
        found[run.job.job_id][where].append(price(run) * (run.time_s or 0.0) / 3600.0)
    return {job: {w: float(np.mean(v)) for w, v in by.items()} for job, by in found.items()}


if __name__ == "__main__":
    main()
