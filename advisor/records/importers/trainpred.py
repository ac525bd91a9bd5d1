"""cloud-hw-trainpred: epoch times of CNNs on GPU instances, with nvidia-smi statistics.

``nvidiasmi_devicequery_all.csv`` (ddps-lab, Apache-2.0/MIT): one row a run. The g5 run of a job is
the anchor of its runs on the other instances; runs without one have no anchor. The instance size
within a family is not stated: the smallest with one GPU is assumed for the price.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.records import AnchorRun, Fact, Instances, JobFacts, RunRecord
from advisor.records.importers.aws import Price, aws_machines, read_prices
from advisor.records.importers.rows import Row, inside, located_records, read_rows

FILE: Final = "nvidiasmi_devicequery_all.csv"
ANCHOR: Final = "g5"
INSTANCE_TYPES: Final = {"g5": "g5.xlarge", "g4dn": "g4dn.xlarge", "p3": "p3.2xlarge"}
# The machine that is not AWS's: P100, with PCIe or SXM unknown.
_OTHERS: Final[dict[str, Any]] = {
    "p100": {"accelerator": "P100-PCIe-16GB", "accelerators": 1},
}
_STATISTICS: Final = ("mean", "std", "min", "25", "50", "75", "max")
# nvidia-smi's name -> (ours, factor to our unit)
_READINGS: Final = {
    "utilization_gpu": ("gpu_fraction", 0.01),
    "utilization_memory": ("gpu_memory_busy_fraction", 0.01),
    "power_drawW": ("gpu_power_w", 1.0),
    "memory_usedMiB": ("gpu_memory_bytes", 2.0**20),
    "clocks_current_smMHz": ("gpu_clock_hz", 1e6),
    "temperature_gpu": ("gpu_temperature_c", 1.0),
}
_COLUMNS: Final = (
    "Instances", "model", "batchsize", "datasize", "totaldata", "one_epoch_average_second",
    *(f"{reading}_{s}" for reading in _READINGS for s in _STATISTICS),
)  # fmt: skip


def read(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file.

    Raises RunError naming file, row and column of a bad value.
    """
    rows = read_rows(inside(path, FILE), _COLUMNS)
    prices = read_prices(path)
    anchors = {
        _job_id(row): AnchorRun(
            machines=_machines(ANCHOR, prices),
            time_s=row.positive("one_epoch_average_second"),
            facts=_statistics(row),
        )
        for row in rows
        if row.text("Instances") == ANCHOR
    }
    return located_records(rows, lambda row: _record(row, anchors, prices))


def _job_id(row: Row) -> str:
    return "-".join(row.text(c) for c in ("model", "batchsize", "datasize", "totaldata"))


def _record(row: Row, anchors: Mapping[str, AnchorRun], prices: Mapping[str, Price]) -> RunRecord:
    instance, job_id = row.text("Instances"), _job_id(row)
    return RunRecord(
        record_id=f"trainpred/{job_id}/{instance}",
        source="cloud-hw-trainpred",
        job=JobFacts(
            job_id=job_id,
            family=row.text("model"),
            facts={
                "batch": row.positive("batchsize"),
                "image_pixels": row.positive("datasize"),
                "epoch_samples": row.positive("totaldata"),
            },
        ),
        configuration=(_machines(instance, prices),),
        time_s=row.positive("one_epoch_average_second"),
        time_kind="epoch",
        anchor=anchors.get(job_id),
        facts=_statistics(row),
    )


def _statistics(row: Row) -> dict[str, Fact]:
    """nvidia-smi readings over the run as ``<reading>_<statistic>``; empty cells are left out."""
    facts: dict[str, Fact] = {}
    for reading, (name, factor) in _READINGS.items():
        for statistic in _STATISTICS:
            value = row.known(f"{reading}_{statistic}")
            if value is not None:
                facts[f"{name}_{'p' if statistic.isdigit() else ''}{statistic}"] = value * factor
    return facts


def _machines(instance: str, prices: Mapping[str, Price]) -> Instances:
    if instance in INSTANCE_TYPES:
        return aws_machines(INSTANCE_TYPES[instance], prices)
    return Instances(provider="other", instance_type=instance, **_OTHERS.get(instance, {}))
