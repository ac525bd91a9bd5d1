"""Protocol ``instance``: a job profiled on g4dn.xlarge, on an instance type never seen (PROFET).

Nothing measured on the left-out type is used: each class of the anchor's operators is scaled by
facts of the two devices, and the anchor's own measured step sets the level:

    t' = t_anchor x sum_c s_c f_c / sum_c s_c
    f = R / R' (products),  W / W' (the others),  v / v' (device idle: the host hands over kernels)

R is the sustained fp32 rate: measured on the anchor, by the power law on the target, of which only
specifications are known; W is the memory bandwidth, v the speed of one core. The figures "with the
target's own rate" take R as the device sheet has it, from runs on the target: Gavel's ResNets on
the K80, transformer layers on the V100. That is what a card in the sheet gets, not an unseen one.
That idle time scales with the core was decided after seeing residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.errors import ModelError
from advisor.machines.devices import device_parameters, suite_device
from advisor.measurements import PROFET
from advisor.planners.core.nouns import Device
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.device_rates import share_of_rates, sustained_flop_per_s
from advisor.records import AnchorRun
from advisor.train.described_columns import chip_of
from advisor.train.described_rows import read_described
from advisor.train.device_fit import parameters_of
from advisor.train.efficiencies import StepModel
from advisor.validation.scores import Blind, Group, Validation, score

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
SEEN: Final = (
    "that idle time scales with the core: decided after seeing residuals",
    "the law of sustained rates: layers measured on the V100 are among its rows",
)


def run(data: Path) -> Validation:
    """Score class ratios on the anchor profiles under ``data``.

    Raises
    ------
    ModelError
        If the table cannot be read or has no known target.
    """
    return _validation(data, lambda _target: device_parameters())


def blind(data: Path, shipped: Validation) -> Blind:
    """Score them with the law of sustained rates fitted without the target's chip.

    Raises
    ------
    ModelError
        If the measurements that the law is fitted on are not there.
    """
    found = _validation(data, _fitted_without(data))
    return Blind(
        overall=found.overall,
        groups=found.groups,
        changed=("the law of sustained rates, fitted without the target's chip",),
        still_seen=(SEEN[0], "the form and the priors of the law of sustained rates"),
    )


def _fitted_without(data: Path) -> Callable[[str], DeviceParameters]:
    rows = read_described(data)

    @cache
    def parameters(target: str) -> DeviceParameters:
        known = rows.chip != chip_of(_device(target).name)
        fitted = StepModel(rows.take(known)).fit(np.ones(int(known.sum()), bool))
        return parameters_of(fitted.constants, {}, rows.take(known))

    return parameters


def _validation(data: Path, parameters: Callable[[str], DeviceParameters]) -> Validation:
    """Score class ratios, every target by the constants that ``parameters`` has for it."""
    jobs = _read(data)
    targets = [name for name in map(str, jobs) if name in TYPES]
    if not targets:
        raise ModelError(f"no known target in {PROFET.title}", hint=f"known: {', '.join(TYPES)}")
    groups, columns, figures = [], [], dict[str, float]()
    for name in targets:
        rows = jobs[jobs[name] > 0]
        measured = rows[name].to_numpy(float)
        predicted = _by_class(rows, name, parameters(name))
        simple = _baselines(rows, name)
        columns.append([measured, predicted, *simple.values()])
        beside = {rule: score(value, measured) for rule, value in simple.items()}
        groups.append(Group(group=name, scores=score(predicted, measured), baselines=beside))
        figures |= _with_own_rate(rows, name, measured)
    measured, predicted, *others = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Validation(
        protocol="instance",
        description=f"step time of a job profiled on {ANCHOR}, on instance types never seen",
        form="chosen with these rows in sight",
        scores="ratios of operator classes, which no verb asks",
        seen=SEEN,
        overall=score(predicted, measured),
        groups=groups,
        baselines={
            name: score(p, measured)
            for name, p in zip(_baselines(jobs.iloc[:1], ANCHOR), others, strict=True)
        },
        figures=figures,
        notes=(
            "of the target only specifications are used; 'with the target's own rate' takes what "
            "large products were measured to sustain on it (K80: Gavel's, V100: layers)",
            "no interval: ratios of classes have none",
        ),
    )


def _with_own_rate(rows: pd.DataFrame, name: str, measured: np.ndarray) -> dict[str, float]:
    """Score the same with the target's sustained rate as the sheet has it, where it has one."""
    if _device(name).sustained_fp32_flop_per_s is None:
        return {}
    scores = score(_by_class(rows, name, device_parameters(), has_own_rate=True), measured)
    return {
        f"{name}, with the target's own rate, MAPE": scores.mape_fraction,
        f"{name}, with the target's own rate, median APE": scores.median_ape_fraction,
        f"{name}, with the target's own rate, p90 APE": scores.p90_ape_fraction,
    }


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


def _by_class(
    rows: pd.DataFrame, target: str, parameters: DeviceParameters, *, has_own_rate: bool = False
) -> np.ndarray:
    here, there = _device(ANCHOR), _device(target)
    if not has_own_rate:
        there = replace(there, sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None)
    rates = [sustained_flop_per_s(d, "fp32", parameters) for d in (here, there)]
    product, other, idle = _classes(rows)
    bandwidth = here.memory_bytes_per_s / there.memory_bytes_per_s
    bandwidth *= share_of_rates(here, parameters) / share_of_rates(there, parameters)
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
