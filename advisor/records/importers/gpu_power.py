"""gpu_power_benchmark: training steps of small LLMs on six GPUs (dos-group, MIT).

``mfu_aggregated_per_config_<GPU>.csv``: means over the samples of a setting. Sequences of 11
tokens: not a realistic throughput. A setting without tokens per second did not run: ``failed``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from advisor.errors import RunError
from advisor.records import Fact, Instances, JobFacts, RunRecord
from advisor.records.importers.rows import Repeats, Row, located_records, read_rows

_PREFIX: Final = "mfu_aggregated_per_config_"
_COLUMNS: Final = (
    "model_name", "batch_size", "dtype", "sequence_length", "tokens_per_second_mean",
    "gpu_utilization_mean", "memory_used_mb_mean", "power_draw_watts_mean",
)  # fmt: skip


def read(path: Path) -> list[RunRecord]:
    """Read the tables of a folder, or one of them.

    Raises RunError naming file, row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"{_PREFIX}*.csv"))
    if not files:
        raise RunError(f"no {_PREFIX}*.csv in {path}", hint="name the benchmark's folder")
    repeats = Repeats()
    rows = [row for file in files for row in read_rows(file, _COLUMNS)]
    return located_records(rows, lambda row: _record(row, repeats))


def _record(row: Row, repeats: Repeats) -> RunRecord:
    gpu = row.path.stem.removeprefix(_PREFIX)
    job_id = f"{row.text('model_name')}-b{row.text('batch_size')}-{row.text('dtype')}"
    cell = f"gpu-power/{job_id}/{gpu}"
    replicate = repeats.next(cell)
    batch, tokens_per_s = row.real("batch_size"), row.real("tokens_per_second_mean")
    tokens = batch * row.real("sequence_length")
    has_run = tokens_per_s > 0 and tokens > 0
    facts: dict[str, Fact] = {
        "gpu_fraction_mean": row.real("gpu_utilization_mean") / 100.0,
        "gpu_memory_bytes_mean": row.real("memory_used_mb_mean") * 2.0**20,
        "gpu_power_w_mean": row.real("power_draw_watts_mean"),
    }
    return RunRecord(
        record_id=f"{cell}/{replicate}",
        source="gpu-power-benchmark",
        job=JobFacts(
            job_id=job_id,
            family=row.text("model_name"),
            facts={"batch": batch, "precision": row.text("dtype"), "step_tokens": tokens},
        ),
        configuration=(
            Instances(provider="", instance_type=gpu, accelerator=gpu, accelerators=1),
        ),
        time_s=tokens / tokens_per_s if has_run else None,
        time_kind="step",
        status="ok" if has_run else "failed",
        replicate=replicate,
        facts=facts,
    )
