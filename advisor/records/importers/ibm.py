"""IBM multi-cloud: Dask jobs on three anonymised clouds (Apache-2.0), failures and timeouts kept.

``multi-cloud-configuration.csv``. Provider, family and size are codes; the price of a machine is
recovered exactly from cost, time and count of a completed run. A run that timed out is censored,
its time a lower bound; any other failure is ``failed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

from advisor.records import Fact, Instances, JobFacts, RunRecord
from advisor.records.importers.rows import Repeats, Row, inside, located_records, read_rows

FILE: Final = "multi-cloud-configuration.csv"
_CODES: Final = ("A_family", "A_vcpu", "B_family", "B_vcpu", "C_family", "C_type", "C_vcpu")
_COLUMNS: Final = (
    "provider", *_CODES, "nodes", "workload", "target_cost", "target_runtime", "status",
)  # fmt: skip
_TIMEOUT: Final = "Timed out."


def read(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file; repeats of a cell count up.

    Raises RunError naming file, row and column of a bad value.
    """
    rows = read_rows(inside(path, FILE), _COLUMNS)
    prices = _prices(rows)
    repeats = Repeats()
    return located_records(rows, lambda row: _record(row, repeats, prices))


def _instance(row: Row) -> str:
    """Name a machine by its codes, e.g. ``"A-2.0-0.0"``."""
    provider = row.text("provider")
    own = [row.label(c) for c in _CODES if c.startswith(provider)]
    return "-".join([provider, *own])


def _prices(rows: list[Row]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.text("status") == "ok":
            hours = row.count("nodes") * row.positive("target_runtime") / 3600.0
            found.setdefault(_instance(row), []).append(row.positive("target_cost") / hours)
    return {name: median(values) for name, values in found.items()}


def _record(row: Row, repeats: Repeats, prices: Mapping[str, float]) -> RunRecord:
    job_id, instance, count = row.text("workload"), _instance(row), row.count("nodes")
    dataset, _, task = job_id.partition("-")
    outcome = row.text("status")
    time_s, cost_usd = row.known("target_runtime"), row.known("target_cost")
    is_timeout = outcome == _TIMEOUT and time_s is not None
    facts: dict[str, Fact] = {"dataset": dataset}
    cell = f"ibm/{job_id}/{instance}/{count}"
    replicate = repeats.next(cell)
    return RunRecord(
        record_id=f"{cell}/{replicate}",
        source="ibm-multi-cloud",
        job=JobFacts(job_id=job_id, family=task or job_id, facts=facts),
        configuration=(
            Instances(
                provider=row.text("provider"),
                instance_type=instance,
                count=count,
                price_usd_per_h=prices.get(instance),
            ),
        ),
        time_s=time_s if time_s and time_s > 0 else None,
        time_kind="job",
        cost_usd=cost_usd,
        status="ok" if outcome == "ok" else "censored" if is_timeout else "failed",
        replicate=replicate,
    )
