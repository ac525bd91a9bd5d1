"""PROFET: step times of CNNs on AWS GPU instances, with an operator profile on an anchor.

A folder with ``anchor_<id>.parquet`` files (ddps-lab/profet, MIT, re-encoded). A row is one
repeat of one job that ran on the anchor, profiled, and on other instances: one record a target.
Operator times are microseconds over two profiled steps, target columns microseconds, the
anchor's own ``batch_latency`` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.errors import RunError
from advisor.records import AnchorRun, JobFacts, RunRecord
from advisor.records.importers.aws import Price, aws_machines, read_prices
from advisor.records.importers.rows import located, read_parquet

_S_PER_PROFILED_US: Final = 1e-6 / 2  # two steps were profiled: the sum is near 2 x batch_latency

# Class of our records -> TensorFlow's operators. The three convolutions are kept apart: another
# device runs each at another share of its speed.
OPERATOR_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "convolution_forward": frozenset({"Conv2D", "_FusedConv2D", "DepthwiseConv2dNative"}),
    "convolution_weights": frozenset(
        {"Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"}
    ),
    "convolution_inputs": frozenset({"Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"}),
    "matmul": frozenset({"MatMul"}),
    "normalisation": frozenset({"FusedBatchNormV3", "FusedBatchNormGradV3"}),
    "pooling": frozenset({"MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad"}),
    "copy": frozenset({"_Recv", "_Send", "_HostRecv"}),
    "optimizer": frozenset({"ResourceApplyGradientDescent"}),
    "activation": frozenset({"Relu", "Relu6", "ReluGrad", "Relu6Grad", "BiasAdd"}),
    "reduction": frozenset({"BiasAddGrad", "Sum", "Mean"}),
}
_DEPTHWISE: Final = "Device_Depthwise"
_JOB_COLUMNS: Final = ("exp_name", "instance_name", "dataset", "model", "batchsize")
_TARGET: Final = "target_us__"


def read(path: Path) -> list[RunRecord]:
    """Read every ``anchor_*.parquet`` of a folder, or one of them.

    Raises RunError naming the file, and the row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob("anchor_*.parquet"))
    if not files:
        raise RunError(f"no anchor_*.parquet in {path}", hint="name PROFET's folder")
    prices = read_prices(path)
    return [record for file in files for record in _read_anchor(file, prices)]


def _read_anchor(path: Path, prices: Mapping[str, Price]) -> list[RunRecord]:
    frame = read_parquet(path, (*_JOB_COLUMNS, "batch_latency", "Device_IDLE"))
    targets = [c for c in frame.columns if c.startswith(_TARGET)]
    if not targets:
        raise RunError(f"{path}: no column {_TARGET}*", hint="is this an anchor file?")
    rows: list[dict[str, Any]] = frame.to_dict("records")
    records = []
    for number, row in enumerate(rows, start=1):
        with located(path, number):
            anchor, job = _anchor(row, prices), _job(row)
            records += [_record(row, t, anchor, job, prices) for t in targets if row[t] == row[t]]
    return records


def _job(row: Mapping[str, Any]) -> JobFacts:
    pixels = float(str(row["dataset"]).removesuffix("dataset"))
    batch = int(row["batchsize"])
    return JobFacts(
        job_id=f"{row['model']}-{pixels:g}px-b{batch}",
        family=str(row["model"]),
        facts={"batch": float(batch), "image_pixels": pixels},
    )


def _anchor(row: Mapping[str, Any], prices: Mapping[str, Price]) -> AnchorRun:
    return AnchorRun(
        machines=aws_machines(str(row["instance_name"]), prices),
        time_s=float(row["batch_latency"]),
        facts=_operator_times(row),
    )


def _operator_times(row: Mapping[str, Any]) -> dict[str, float | str]:
    """Seconds of one step by operator class, and idle, of the device."""
    times = dict.fromkeys((*OPERATOR_CLASSES, "other"), 0.0)
    for column, value in row.items():
        if column.startswith("Device_") and column != "Device_IDLE":
            name = column.removeprefix("Device_")
            kind = next((k for k, names in OPERATOR_CLASSES.items() if name in names), "other")
            times[kind] += float(value) * _S_PER_PROFILED_US
    facts: dict[str, float | str] = {f"operator_{kind}_s": t for kind, t in times.items()}
    # Its share of the convolutions: bound by memory where they are bound by arithmetic.
    facts["depthwise_s"] = _S_PER_PROFILED_US * sum(
        float(value) for name, value in row.items() if name.startswith(_DEPTHWISE)
    )
    facts["idle_s"] = float(row["Device_IDLE"]) * _S_PER_PROFILED_US
    return facts


def _record(
    row: Mapping[str, Any],
    target: str,
    anchor: AnchorRun,
    job: JobFacts,
    prices: Mapping[str, Price],
) -> RunRecord:
    instance = target.removeprefix(_TARGET)
    repeat = str(row["exp_name"])
    return RunRecord(
        record_id=f"profet/{anchor.machines.instance_type}/{job.job_id}/{instance}/{repeat}",
        source="profet",
        job=job,
        configuration=(aws_machines(instance, prices),),
        time_s=float(row[target]) * 1e-6,
        time_kind="step",
        replicate=int(repeat.removeprefix("exp")) - 1,
        anchor=anchor,
    )
