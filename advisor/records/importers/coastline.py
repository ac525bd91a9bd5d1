"""Coastline's run database: LLM fine-tuning on A100, H100 and L40S (atlarge-research, MIT)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from advisor.records import Instances, JobFacts, RunRecord
from advisor.records.importers.rows import Repeats, Row, inside, located_records, read_rows

FILE: Final = "run_database.csv"
_COLUMNS: Final = (
    "model_name", "method", "gpu_model", "number_nodes", "number_gpus", "tokens_per_sample",
    "batch_size", "dataset_tokens_per_second", "train_runtime", "is_valid",
)  # fmt: skip


def read(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file; a run that is not valid is ``failed``.

    Raises RunError naming file, row and column of a bad value.
    """
    repeats = Repeats()
    rows = read_rows(inside(path, FILE), _COLUMNS)
    return located_records(rows, lambda row: _record(row, repeats))


def _record(row: Row, repeats: Repeats) -> RunRecord:
    job_columns = ("model_name", "method", "tokens_per_sample", "batch_size")
    job_id = "-".join(row.text(c) for c in job_columns)
    cell = f"coastline/{job_id}/{row.text('gpu_model')}/{row.text('number_gpus')}"
    replicate = repeats.next(cell)
    nodes, gpus = row.count("number_nodes"), row.count("number_gpus")
    if gpus % nodes:
        raise row.error("number_gpus", f"{gpus} do not divide by {nodes} nodes")
    return RunRecord(
        record_id=f"{cell}/{replicate}",
        source="coastline",
        job=JobFacts(
            job_id=job_id,
            family=row.text("model_name"),
            facts={
                "method": row.text("method"),
                "batch": row.positive("batch_size"),
                "sequence_tokens": row.positive("tokens_per_sample"),
            },
        ),
        configuration=(
            Instances(
                provider="",
                instance_type=row.text("gpu_model"),
                count=nodes,
                accelerator=row.text("gpu_model"),
                accelerators=gpus // nodes,
            ),
        ),
        layout={"dp": float(gpus)},
        time_s=row.positive("train_runtime"),
        time_kind="job",
        status="ok" if row.real("is_valid") == 1 else "failed",
        replicate=replicate,
        facts={"tokens_per_s": row.positive("dataset_tokens_per_second")},
    )
