"""scout: Spark and Hadoop jobs on 69 AWS clusters (oxhead/scout, MIT), failures kept.

``runs.csv``: one run a cell. A run that did not complete is ``failed``: its time is when it died.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from advisor.records import Fact, JobFacts, RunRecord
from advisor.records.importers.aws import Price, aws_machines, read_prices
from advisor.records.importers.rows import Row, inside, located_records, read_rows

FILE: Final = "runs.csv"
_COLUMNS: Final = (
    "workload_dir", "n_nodes", "instance_type", "completed", "datasize", "elapsed_time",
    "framework", "input_size", "workload",
)  # fmt: skip


def read(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file.

    Raises RunError naming file, row and column of a bad value.
    """
    prices = read_prices(path)
    return located_records(
        read_rows(inside(path, FILE), _COLUMNS), lambda row: _record(row, prices)
    )


def _record(row: Row, prices: Mapping[str, Price]) -> RunRecord:
    job_id, instance, count = (
        row.text("workload_dir"),
        row.text("instance_type"),
        row.count("n_nodes"),
    )
    completed = row.text("completed").lower()
    if completed not in ("true", "false"):
        raise row.error("completed", f"{completed!r} is neither True nor False")
    price = prices.get(instance)
    time_s = row.positive("elapsed_time")
    facts: dict[str, Fact] = {"framework": row.text("framework"), "size": row.text("datasize")}
    if (size := row.known("input_size")) is not None and size > 0:  # -1 stands for unknown
        facts["input_bytes"] = size
    return RunRecord(
        record_id=f"scout/{job_id}/{instance}/{count}",
        source="scout",
        job=JobFacts(job_id=job_id, family=row.text("workload"), facts=facts),
        configuration=(aws_machines(instance, prices, count=count),),
        time_s=time_s,
        time_kind="job",
        cost_usd=count * price.price_usd_per_h * time_s / 3600.0 if price else None,
        status="ok" if completed == "true" else "failed",
    )
