"""The first trial of ``collect``: single-process runs of twelve workloads on two cores, 2 s each.

A ``.jsonl`` of 102 runs. The label is the mean step without waiting for a core. The run of the
same job with the smallest batch is its anchor: what is asked is the step at other batch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records.nouns import AnchorRun, Fact, Instances, JobFacts, RunRecord
from advisor.records.rows import located
from advisor.records.tracked import resource_series

_MACHINES: Final = Instances(provider="minicloud", instance_type="cores-2", vcpus=2.0)


def read_first_trial(path: Path) -> list[RunRecord]:
    """Read the file.

    Raises RunError naming file, row and column of a bad value.
    """
    rows = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            rows.append((number, bounded.parse_json(line)))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}", hint="give the .jsonl file") from error
    smallest: dict[tuple[str, int], Mapping[str, Any]] = {}
    records = []
    for number, row in rows:
        with located(path, number):
            try:
                key = (row["workload"], row["width"])
                if key not in smallest or row["batch"] < smallest[key]["batch"]:
                    smallest[key] = row
            except (KeyError, TypeError) as error:
                raise RunError(f"{error}: missing", hint="is this the trial's file?") from error
    for number, row in rows:
        with located(path, number):
            try:
                records.append(_record(number, row, smallest[row["workload"], row["width"]]))
            except (KeyError, TypeError) as error:
                raise RunError(f"{error}: missing", hint="is this the trial's file?") from error
    return records


def _record(number: int, row: Mapping[str, Any], anchor: Mapping[str, Any]) -> RunRecord:
    facts: dict[str, Fact] = {
        "batch": float(row["batch"]),
        "width": float(row["width"]),
        "parameters": float(row["params"]),
        "saved_bytes": float(row["saved_bytes"]),
        "flop_per_step": float(row["flops"]),
        "bytes_per_step": float(row["bytes"]),
        "operators_per_step": float(row["ops"]),
        "matmuls_per_step": float(row["n_mm"]),
        "convolutions_per_step": float(row["n_conv"]),
        "recurrences_per_step": float(row["n_rnn"]),
    }
    return RunRecord(
        record_id=f"minicloud-sample/{number}",
        source="minicloud-sample",
        job=JobFacts(
            job_id=f"{row['workload']}-w{row['width']}-b{row['batch']}",
            family=str(row["workload"]),
            facts=facts,
        ),
        configuration=(_MACHINES,),
        time_s=float(row["step_mean"]),
        time_kind="step",
        anchor=None if row is anchor else _anchor(anchor),
    )


def _anchor(row: Mapping[str, Any]) -> AnchorRun:
    step_s = np.asarray(row["series_ms"], float) / 1e3
    return AnchorRun(
        machines=_MACHINES,
        time_s=float(row["step_mean"]),
        facts={
            "batch": float(row["batch"]),
            "flop_per_step": float(row["flops"]),
            "bytes_per_step": float(row["bytes"]),
            "step_time_s": float(row["step_mean"]),
            "step_time_cv": float(row["step_cv"]),
            "cpu_s_per_step": float(row["cpu_s"]) / float(row["n_steps"]),
            "loading_fraction": float(row["loader_wait_mean"]) / float(row["step_wall_mean"]),
            "memory_peak_bytes": float(row["maxrss_mb"]) * 2.0**20,
        },
        series=(resource_series({"steps_per_s": 1.0 / step_s}, float(np.mean(step_s))),),
    )
