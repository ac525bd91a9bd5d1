"""Protocol ``instance``: a job profiled on g4dn.xlarge, on an instance type never seen (PROFET).

Nothing measured on the left-out type is used: each class of the anchor's operators is scaled by
facts of the two devices, and the anchor's own measured step sets the level:

    t' = t_anchor x sum_c s_c f_c / sum_c s_c
    f = R / R' (products),  W / W' (the others),  v / v' (device idle: the host hands over kernels)

R is the device sheet's or the power law's sustained fp32 rate, W the memory bandwidth, v the speed
of one core. That idle time scales with the core was decided after seeing residuals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.errors import ModelError
from advisor.machines.devices import device_parameters, suite_device
from advisor.measurements import PROFET
from advisor.planners.core.nouns import Device
from advisor.planners.step.device_rates import sustained_flop_per_s
from advisor.records import AnchorRun
from advisor.validation.scores import Group, Scores, Validation, score

PRODUCTS: Final = ("convolution_forward", "convolution_weights", "convolution_inputs", "matmul")
ANCHOR: Final = "g4dn.xlarge"
# Instance type -> (device, speed of one core): geometric mean of Geekbench 6 single-core and
# stress-ng single-core bogo-operations (SpareCores sc-inspector-data, 2024-07).
TYPES: Final = {
    "g4dn.xlarge": ("T4", 1180.8),
    "p3.2xlarge": ("V100-SXM2-16GB", 895.9),
    "p2.xlarge": ("K80", 886.5),
    "g3s.xlarge": ("M60", 884.1),
    "g5.xlarge": ("A10G", 1010.9),
}


def run(data: Path) -> Validation:
    """Score class ratios on the anchor profiles under ``data``.

    Raises
    ------
    ModelError
        If the table is not there, or no target instance type is known.
    """
    jobs = _read(data)
    targets = [name for name in map(str, jobs) if name in TYPES]
    if not targets:
        raise ModelError(f"no known target in {PROFET.title}", hint=f"known: {', '.join(TYPES)}")
    groups, columns = [], []
    for name in targets:
        rows = jobs[jobs[name] > 0]
        measured = rows[name].to_numpy(float)
        columns.append([measured, _by_class(rows, name), *_baselines(rows, name).values()])
        groups.append(Group(group=name, scores=score(columns[-1][1], measured)))
    measured, predicted, *others = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Validation(
        protocol="instance",
        description=f"step time of a job profiled on {ANCHOR}, on instance types never seen",
        overall=score(predicted, measured),
        groups=groups,
        baselines={
            name: _score(p, measured)
            for name, p in zip(_baselines(jobs.iloc[:1], ANCHOR), others, strict=True)
        },
        notes=("K80's sustained rate is Gavel's; M60's comes from the power law",),
    )


def _score(predicted: np.ndarray, measured: np.ndarray) -> Scores:
    return score(predicted, measured)


def _read(data: Path) -> pd.DataFrame:
    """Return a row a job: seconds of the step and of its classes, and of each target's step."""
    jobs: dict[str, dict[str, float]] = {}
    for record in PROFET.read_runs("jobs", data):
        anchor = record.anchor
        if anchor is None or record.time_s is None:
            continue
        row = jobs.setdefault(record.job.job_id, _anchor_row(anchor))
        row[record.configuration[0].instance_type] = record.time_s
    if not jobs:
        raise ModelError(f"{PROFET.title} hold no job", hint="name the measurements with --data")
    return pd.DataFrame(jobs.values())


def _anchor_row(anchor: AnchorRun) -> dict[str, float]:
    seconds = {n: v for n, v in anchor.facts.items() if isinstance(v, float)}
    product_s = sum(seconds[f"operator_{kind}_s"] for kind in PRODUCTS) - seconds["depthwise_s"]
    device_s = sum(v for name, v in seconds.items() if name.startswith("operator_"))
    return {
        "step_s": anchor.time_s,
        "product_s": product_s,
        "other_s": device_s - product_s,
        "idle_s": seconds["idle_s"],
    }


def _classes(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seconds in products, in other operators and idle, scaled to the measured step."""
    columns = ("product_s", "other_s", "idle_s", "step_s")
    product, other, idle, step = (rows[c].to_numpy(float) for c in columns)
    level = step / (product + other + idle)
    return product * level, other * level, idle * level


def _by_class(rows: pd.DataFrame, target: str) -> np.ndarray:
    here, there = _device(ANCHOR), _device(target)
    parameters = device_parameters()
    rates = [sustained_flop_per_s(d, "fp32", parameters) for d in (here, there)]
    product, other, idle = _classes(rows)
    bandwidth = here.memory_bytes_per_s / there.memory_bytes_per_s
    core = TYPES[ANCHOR][1] / TYPES[target][1]
    return np.asarray(product * rates[0] / rates[1] + other * bandwidth + idle * core)


def _baselines(rows: pd.DataFrame, target: str) -> dict[str, np.ndarray]:
    here, there = _device(ANCHOR), _device(target)
    peak = (here.fp32_flop_per_s or 1.0) / (there.fp32_flop_per_s or 1.0)
    bandwidth = here.memory_bytes_per_s / there.memory_bytes_per_s
    product, other, idle = _classes(rows)
    step = product + other + idle
    return {
        "anchor x ratio of peak FLOP/s": step * peak,
        "anchor x ratio of bandwidth": step * bandwidth,
        "anchor x roofline by datasheet": product * peak + other * bandwidth + idle,
    }


def _device(instance: str) -> Device:
    device = suite_device(TYPES[instance][0])
    if device is None:
        raise ModelError(f"no {TYPES[instance][0]} in the device sheet", hint="add its row")
    return device
