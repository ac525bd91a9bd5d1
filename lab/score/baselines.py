"""Simpler rules: what somebody would say who has the same measurements and a pencil.

A rule takes the rows of a protocol and which of them are answered, and says the same quantity: nan
where it has no answer, or ``Answers`` where it answers rows several times. Every rule leaves out
of what it fits whatever the protocol leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.lab.fit.described_columns import DescribedRows
from advisor.lab.fit.layout_rows import LayoutRows
from advisor.lab.score.cells import Cells, CellTable
from advisor.lab.score.harness import Answers, Bools, Floats, Questions, Rule
from advisor.lab.score.raw import RawColumns
from advisor.planners.core.arrays import layer_parameters
from advisor.planners.core.errors import GIB

Rate = Literal["nothing", "peak", "bandwidth", "both"]


def same_as(column: str) -> Rule:
    """Return the rule that says what a column of the facts says."""

    def rule(rows: Questions, _answered: Bools) -> Floats:
        return np.asarray(rows.facts[column], float)

    return rule


# Raw columns of rows that several protocols have (``raw``).


def layout_columns(rows: LayoutRows, fold: Iterable[Any]) -> RawColumns:
    """Return what a table of layouts states, and the datasheets of its devices."""
    shapes, layouts, machines = rows.shapes, rows.layouts, rows.machines
    size = np.ones(len(rows))
    attention, ffn = layer_parameters(shapes)
    amounts = {
        "parameters": size * (attention + ffn) * shapes.layers, "layers": size * shapes.layers,
        "hidden": size * shapes.hidden, "sequence": size * shapes.sequence,
        "vocabulary": size * shapes.vocabulary, "devices": size * rows.devices,
        "batch": size * rows.global_batch, "tp": size * layouts.tp, "pp": size * layouts.pp,
        "micro_batch": size * layouts.micro_batch, "peak": size * machines.flop_per_s,
        "bandwidth": size * machines.memory_bytes_per_s,
        "network": size * machines.network_bytes_per_s,
    }  # fmt: skip
    recomputes = np.broadcast_to(np.asarray(layouts.recompute), size.shape)
    return RawColumns.of(amounts, fold, {"recompute": recomputes})


def described_columns(d: DescribedRows, fold: Iterable[Any]) -> RawColumns:
    """Return the sums of described steps' operators, and the datasheets of their devices."""
    flop, moved, count = (np.bincount(d.row, c, d.log_s.size) for c in (d.flop, d.bytes, d.count))
    amounts = {"flop": flop, "bytes": moved, "count": count, "peak": d.peak,
               "single": d.single_peak, "bandwidth": d.bandwidth}  # fmt: skip
    return RawColumns.of(amounts, fold, {"half": d.is_half, "suite": d.suite})


# Cells: a job on devices, scored with the device left out.


def _log_rate(peak: Floats, bandwidth: Floats, rate: Rate) -> Floats:
    rates = {
        "nothing": np.zeros_like(peak), "peak": np.log(peak), "bandwidth": np.log(bandwidth),
        "both": 0.5 * np.log(peak * bandwidth),
    }  # fmt: skip
    return rates[rate]


def each_other_device(rate: Rate) -> Rule:
    """Take every other device's throughput of the job times the ratio of rates, one by one."""

    def rule(rows: Questions, _answered: Bools) -> Answers:
        cells = rows.facts.cells
        log_rate = _log_rate(cells.peak, cells.bandwidth, rate)
        place, value = [], []
        for output in np.unique(cells.output):
            here = np.flatnonzero(cells.output == output)
            y, r, device = cells.log_throughput[here], log_rate[here], cells.device[here]
            a, b = np.nonzero(device[:, None] != device)
            value.append(y[a] + r[b] - r[a])
            place.append(here[b])
        return Answers(value=np.exp(np.concatenate(value)), rows=np.concatenate(place))

    return rule


def mean_of_other_devices(rate: Rate) -> Rule:
    """Take the mean of ln(throughput / rate) over the other devices, times the device's rate."""

    def rule(rows: Questions, answered: Bools) -> Floats:
        cells = rows.facts.cells
        log_rate = _log_rate(cells.peak, cells.bandwidth, rate)
        found = np.full(answered.size, np.nan)
        for i in np.flatnonzero(answered):
            known = _elsewhere(cells, int(i))
            found[i] = log_rate[i] + np.mean(cells.log_throughput[known] - log_rate[known])
        return np.asarray(np.exp(found), float)

    return rule


def cell_roofline(rows: Questions, answered: Bools) -> Floats:
    """Fit a non-negative a / peak + b / bandwidth to relative errors, job by job."""
    from scipy.optimize import nnls

    cells = rows.facts.cells
    found = np.full(answered.size, np.nan)
    for i in np.flatnonzero(answered):
        known = _elsewhere(cells, int(i))
        rates = np.stack([cells.peak, cells.bandwidth], axis=1)
        design = np.exp(cells.log_throughput[known])[:, None] / rates[known]
        scale = design.mean(axis=0)
        weights, _ = nnls(design / scale, np.ones(len(design)))
        found[i] = 1.0 / np.sum(weights / scale / rates[i])
    return found


def _elsewhere(cells: Cells, row: int) -> Bools:
    return np.asarray((cells.output == cells.output[row]) & (cells.device != cells.device[row]))


def log_linear(*, is_per_job: bool) -> Rule:
    """Fit ln(throughput) by peak and bandwidth with a level a job, exponents shared or a job's."""

    def rule(rows: Questions, _answered: Bools) -> Floats:
        cells = rows.facts.cells
        features = np.log(np.stack([cells.peak, cells.bandwidth], axis=1))
        features = features - features.mean(axis=0)
        outputs = np.unique(cells.output)
        offsets = (cells.output[:, None] == outputs).astype(float)
        slopes = features
        if is_per_job:
            slopes = (offsets[:, :, None] * features[:, None]).reshape(len(features), -1)
        design = np.c_[offsets, slopes]
        mean = np.full(len(features), np.nan)
        for device in np.unique(cells.device):
            out = cells.device == device
            gram = design[~out].T @ design[~out] + 1e-3 * np.eye(design.shape[1])
            found = np.linalg.solve(gram, design[~out].T @ cells.log_throughput[~out])
            seen = np.isin(cells.output, cells.output[~out])
            mean[out & seen] = (design @ found)[out & seen]
        return np.asarray(np.exp(mean), float)

    return rule


def of_the_jobs_runs(how: str) -> Rule:
    """Judge by the job's runs at the same batch on other devices, and by other jobs' there.

    ``nearest``: the run on the device most alike; ``mean``; ``slope``: their mean moved along a
    slope in ln(rate) that all jobs share; ``carried``: each times the mean ratio that jobs of
    other families have between the two devices.
    """

    def rule(rows: Questions, _answered: Bools) -> Floats:
        table: CellTable = rows.facts
        frame, cells = table.frame, table.cells
        families = frame["family"].to_numpy(str)
        jobs = np.unique(frame["model"] + " " + frame["batch"].astype(str), return_inverse=True)[1]
        log_rate, speed = cells.log_throughput, 0.5 * np.log(cells.peak * cells.bandwidth)
        ratio = _mean_ratio(jobs, cells.device, log_rate, families)
        found = np.full(len(frame), np.nan)
        for device in np.unique(cells.device):
            out = cells.device == device
            slope = _slope(jobs[~out], speed[~out], log_rate[~out])
            for i in np.flatnonzero(out):
                others = np.flatnonzero(~out & (jobs == jobs[i]))
                if not others.size:
                    continue
                if how == "nearest":
                    found[i] = log_rate[others[np.argmin(np.abs(speed[others] - speed[i]))]]
                elif how == "carried":
                    ratios = [ratio(int(i), int(o)) for o in others]
                    found[i] = np.mean(log_rate[others] + ratios)
                else:
                    step = slope * (speed[i] - speed[others].mean()) if how == "slope" else 0.0
                    found[i] = log_rate[others].mean() + step
        return np.asarray(np.exp(found), float)

    return rule


def _mean_ratio(
    jobs: NDArray[np.int64], device: NDArray[np.int64], log_rate: Floats,
    families: NDArray[np.str_],
) -> Callable[[int, int], float]:  # fmt: skip
    """Return what gives ln(rate on row i's device / on row o's), of jobs of other families.

    Of those in the table of row i that ran on both at one batch; nan where none did.
    """
    rate = np.full((jobs.max() + 1, device.max() + 1), np.nan)
    rate[jobs, device] = log_rate
    family = np.empty(len(rate), families.dtype)
    family[jobs] = families
    table = np.char.partition(family, ":")[:, 0]

    def ratio(i: int, o: int) -> float:
        heard = (table == families[i].partition(":")[0]) & (family != families[i])
        found = rate[heard, device[i]] - rate[heard, device[o]]
        found = found[np.isfinite(found)]
        return float(found.mean()) if found.size else float("nan")

    return ratio


def _slope(jobs: NDArray[np.int64], x: Floats, y: Floats) -> float:
    """Return the slope of y over x that is common to all jobs, each with its own level."""
    count = np.bincount(jobs)[jobs].astype(float)
    within = [values - (np.bincount(jobs, values)[jobs] / count) for values in (x, y)]
    return float(within[0] @ within[1] / max(within[0] @ within[0], 1e-12))


# Described steps: operators with their arithmetic and traffic, scored with the device left out.


def constant_share(of: Literal["peak", "bandwidth"]) -> Rule:
    """Take the median share of the peak (MFU), or bandwidth, of the suite on other devices."""

    def rule(rows: Questions, answered: Bools) -> Floats:
        d: DescribedRows = rows.facts.columns
        amount, rate = (d.flop, d.peak) if of == "peak" else (d.bytes, d.bandwidth)
        log_s = np.log(np.bincount(d.row, amount, d.log_s.size) / rate)
        found = np.full(d.log_s.size, np.nan)
        for device in np.unique(d.device[answered]):
            for suite in np.unique(d.suite[answered & (d.device == device)]):
                of_suite = answered & (d.suite == suite)
                others, here = of_suite & (d.device != device), of_suite & (d.device == device)
                if others.any():
                    found[here] = log_s[here] + np.median((d.log_s - log_s)[others])
        return np.asarray(np.exp(found), float)

    return rule


def roofline(rows: Questions, _answered: Bools) -> Floats:
    """Take the larger of arithmetic and traffic of each operator, at the datasheet's rates."""
    d: DescribedRows = rows.facts.columns
    larger = np.maximum(d.flop / d.peak[d.row], d.bytes / d.bandwidth[d.row])
    return np.asarray(np.bincount(d.row, larger, d.log_s.size), float)


DESCRIBED: Mapping[str, Rule] = {
    "constant MFU": constant_share("peak"),
    "constant share of bandwidth": constant_share("bandwidth"),
    "plain roofline": roofline,
}


def same_row_elsewhere(rate: Rate) -> Rule:
    """Carry the same row over from the other devices by the ratio of rates."""

    def rule(rows: Questions, answered: Bools) -> Floats:
        d: DescribedRows = rows.facts.columns
        flop = np.bincount(d.row, d.flop, d.log_s.size).round(-3)
        keys = pd.DataFrame({"model": d.model, "is_half": d.is_half, "flop": flop})
        log_rate = _log_rate(d.peak, d.bandwidth, rate)
        found = np.full(d.log_s.size, np.nan)
        for alike in keys.groupby(["model", "is_half", "flop"]).indices.values():
            same = np.asarray(alike, dtype=np.intp)
            for i in same[answered[same]]:
                others = same[d.device[same] != d.device[i]]
                if others.size:
                    found[i] = np.exp(np.mean((d.log_s + log_rate)[others]) - log_rate[i])
        return found

    return rule


# Layouts of transformers.


def hardware_flop(rows: LayoutRows) -> Floats:
    """Return floating-point operations of a step on one device, recomputation included."""
    shapes, layouts = rows.shapes, rows.layouts
    attention, ffn = layer_parameters(shapes)
    tokens = rows.global_batch * np.asarray(shapes.sequence, float)
    passes = 3 + (np.asarray(layouts.recompute) == 2)
    causal = np.where(np.asarray(rows.software.attention) > 0, 0.5, 1.0)
    layer = 2 * tokens * (attention + ffn)
    layer = layer + 4 * tokens * causal * shapes.sequence * np.asarray(shapes.hidden)
    head = 6 * tokens * np.asarray(shapes.hidden) * shapes.vocabulary
    return np.asarray((passes * layer * shapes.layers + head) / rows.devices)


def bound_s(rows: LayoutRows) -> Floats:
    """Return the step at the peak of arithmetic [s]."""
    return np.asarray(hardware_flop(rows) / np.asarray(rows.machines.flop_per_s), float)


def efficiency_of_other_tables(rows: LayoutRows, family: NDArray[np.str_]) -> Floats:
    """Return the step by one efficiency a family: the mean of the other tables' means [s]."""
    bound = bound_s(rows)
    log_ratio = np.log(rows.measured_s / bound)
    predicted = bound.copy()
    for f, table in set(zip(family, rows.table, strict=True)):
        of_family = [
            float(log_ratio[(family == f) & (rows.table == t)].mean())
            for t in dict.fromkeys(rows.table[family == f])
            if t != table
        ]
        if not of_family:
            out = rows.table != table
            of_family = [float(log_ratio[out].mean()) if out.any() else 0.0]
        here = (family == f) & (rows.table == table)
        predicted[here] = bound[here] * np.exp(np.mean(of_family))
    return predicted


def efficiency_of_other_models(rows: LayoutRows) -> Floats:
    """Return the step by one efficiency: the geometric mean of the other models' [s]."""
    peak = np.asarray(rows.machines.flop_per_s)
    log_ratio = np.log(rows.measured_s * peak / hardware_flop(rows))
    predicted = np.zeros(len(rows))
    for name in dict.fromkeys(rows.model):
        here = rows.model == name
        rest = log_ratio[~here] if (~here).any() else np.zeros(1)
        predicted[here] = rows.measured_s[here] * np.exp(rest.mean() - log_ratio[here])
    return predicted


def megatron_bytes(rows: LayoutRows) -> Floats:
    """Return 18 bytes a parameter and 34 s b h a layer, over tp (and pp): no context, no slack."""
    shapes, layouts = rows.shapes, rows.layouts
    hidden, layers = np.asarray(shapes.hidden, float), np.asarray(shapes.layers, float)
    total = 12.0 * layers * hidden**2 + np.asarray(shapes.vocabulary, float) * hidden
    tokens = np.asarray(shapes.sequence, float) * layouts.micro_batch
    ways = np.asarray(layouts.tp, float)
    return np.asarray(18.0 * total / (ways * layouts.pp) + 34.0 * tokens * hidden * layers / ways)


def five_terms(rows: LayoutRows) -> Floats:
    """Return what a spreadsheet adds up for the fullest device [bytes].

    Weights, gradients and AdamW's state by ZeRO stage, Korthikanti et al.'s activations of a layer
    (34 h a token, 2 h where they are recomputed) with fp32 logits, and a CUDA context of 1 GiB:
    nothing of what a loss, quantisation or the allocator keep.
    """
    shapes, layouts, software = rows.shapes, rows.layouts, rows.software
    attention, ffn = layer_parameters(shapes)
    hidden, layers = np.asarray(shapes.hidden, float), np.asarray(shapes.layers, float)
    vocabulary = np.asarray(shapes.vocabulary, float)
    total = layers * (attention + ffn * shapes.experts) + 2 * vocabulary * hidden
    total = total / (np.asarray(layouts.tp, float) * layouts.pp)
    zero, ranks = np.asarray(layouts.zero_stage), np.asarray(layouts.dp, float)
    trained = total * shapes.trained_share
    weights = total * software.weight_bytes / np.where(zero >= 3, ranks, 1.0)
    gradients = trained * software.gradient_bytes / np.where(zero >= 2, ranks, 1.0)
    optimizer = trained * software.optimizer_state_bytes / np.where(zero >= 1, ranks, 1.0)
    tokens = np.asarray(layouts.micro_batch, float) * shapes.sequence
    kept = np.where(np.asarray(layouts.recompute) == 2, 2.0, 34.0) * hidden * layers / layouts.pp
    activations = tokens * (kept + 4.0 * vocabulary) / layouts.tp
    return np.asarray(weights + gradients + optimizer + activations + GIB)


# Few machines known, more asked: facts are ``small`` (rate there), ``growth`` (times as many).


def linear_growth(rows: Questions, _answered: Bools) -> Floats:
    """Take the rate to grow as the machines do."""
    return np.asarray(rows.facts["small"] * rows.facts["growth"])


def power_of_growth(rows: Questions, _answered: Bools) -> Floats:
    """Take the rate to grow by one power of the machines, fitted on the other names."""
    small, names = rows.facts["small"], rows.facts["name"]
    growth, gained = np.log(rows.facts["growth"]), np.log(rows.truth) - np.log(small)
    power = np.full(small.size, np.nan)
    for name in np.unique(names):
        out = names == name
        if not out.all():
            power[out] = growth[~out] @ gained[~out] / (growth[~out] @ growth[~out])
    return np.asarray(small * np.exp(power * growth))


def powers_of_growth_and_share(rows: Questions, _answered: Bools) -> Floats:
    """Take one power of the machines and one of a device's share of the batch, as above."""
    small, names = rows.facts["small"], rows.facts["name"]
    moved = np.log(np.column_stack([rows.facts["growth"], rows.facts["share"]]))
    gained = np.log(rows.truth) - np.log(small)
    found = np.full(small.size, np.nan)
    for name in np.unique(names):
        out = names == name
        if np.count_nonzero(~out) > moved.shape[1]:
            powers = np.linalg.lstsq(moved[~out], gained[~out], rcond=None)[0]
            found[out] = moved[out] @ powers
    return np.asarray(small * np.exp(found))


def from_small_runs(how: Literal["linear", "log-linear", "nearest"]) -> Rule:
    """Judge a (dp, pp) from the model's small runs: facts are pairs of frames, few and many."""

    def rule(rows: Questions, _answered: Bools) -> Floats:
        return np.concatenate([_of_small(few, many, how) for few, many in rows.facts.values()])

    return rule


def _of_small(few: pd.DataFrame, many: pd.DataFrame, how: str) -> Any:
    from scipy.spatial.distance import cdist

    seconds = few.step_s.to_numpy(float)
    known, wanted = (np.log(rows[["dp", "pp"]].to_numpy(float)) for rows in (few, many))
    if how == "nearest":
        return seconds[np.argmin(cdist(wanted, known), axis=1)]
    if how == "log-linear":
        design = [np.c_[np.ones(len(rows)), rows] for rows in (known, wanted)]
        slopes, *_ = np.linalg.lstsq(design[0], np.log(seconds), rcond=None)
        return np.exp(design[1] @ slopes)
    # Perfect scaling of the largest small run of the same depth, else of any.
    values = []
    for row in many.itertuples():
        same = few[few.pp == row.pp]
        largest = (same if len(same) else few).sort_values("accelerators").iloc[-1]
        values.append(largest.step_s * largest.accelerators / row.accelerators)
    return np.array(values)
