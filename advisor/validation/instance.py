"""Protocol ``instance``: a job profiled on g4dn.xlarge, on an instance type never seen (PROFET).

Nothing measured on the left-out type is used: each class of the anchor's operators is scaled by
facts of the two devices, and the anchor's own measured step sets the level:

    t' = t_anchor x sum_c s_c f_c / sum_c s_c
    f = R / R' (products),  W / W' (the others),  v / v' (device idle: the host hands over kernels)

R is the sustained fp32 rate: measured on the anchor, by the power law on the target, of which only
specifications are known (the law is fitted without its chip); W is the memory bandwidth, v the
speed of one core. The figures name what knows more: constants as shipped, which know other runs on
the target, and "with the target's own rate", R as the device sheet has it (K80: Gavel's ResNets,
V100: transformer layers). That is what a card in the sheet gets, not an unseen one. That idle time
scales with the core was decided after seeing residuals.
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
from advisor.validation.scores import Group, Validation, score

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
    "the form and the priors of the law of sustained rates",
)


def run(data: Path) -> Validation:
    """Score class ratios on the anchor profiles under ``data``.

    The law of sustained rates is fitted without the target's chip.

    Raises
    ------
    ModelError
        If a table cannot be read, or none has a known target.
    """
    return _validation(data, _fitted_without(data))


def _fitted_without(data: Path) -> Callable[[str], DeviceParameters]:
    """Return what gives the device model's constants, fitted without a target's chip."""
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
        figures |= _knowing_more(rows, name, measured)
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


def _knowing_more(rows: pd.DataFrame, name: str, measured: np.ndarray) -> dict[str, float]:
    """Score the same with what else is known of the target: runs in the fit, a measured rate."""
    shipped = device_parameters()
    ways = {"constants as shipped, which know other runs on the target": False}
    if _device(name).sustained_fp32_flop_per_s is not None:
        ways["with the target's own rate"] = True
    figures = {}
    for way, has_own_rate in ways.items():
        scores = score(_by_class(rows, name, shipped, has_own_rate=has_own_rate), measured)
        figures[f"{name}, {way}, MAPE"] = scores.mape_fraction
        figures[f"{name}, {way}, median APE"] = scores.median_ape_fraction
        figures[f"{name}, {way}, p90 APE"] = scores.p90_ape_fraction
    return figures


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
