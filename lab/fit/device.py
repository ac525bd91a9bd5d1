"""``advisor train device-model``: fit the constants of ``planners.step.device`` and write them.

The step-time equation is fitted on described jobs (``described_rows``: transformer layers,
NeuSight's and Lambda's suites); its intervals come from what was left out
(``residuals_of``). ``parameters.json`` keeps the constants, ``residuals.csv`` the errors by
group. How far a job's factor carries from GPU to GPU is read off the same residuals, the width on
processors off MLPerf's Xeon systems (``processor_rows``). What no public measurement tells (TPUs,
compiled steps) stays as it is.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor import data as folders
from advisor.answer import from_record
from advisor.collectors import bounded
from advisor.lab.data import MLPERF
from advisor.lab.fit.described import (
    NETWORKS,
    Folds,
    fitted_correlations,
    fitted_spreads,
    has_convolutions,
    known_steps,
    left_out_fits,
    residuals_of,
)
from advisor.lab.fit.described_columns import Array, DescribedRows, MeasuredStep, chip_of, columns
from advisor.lab.fit.efficiencies import StepModel
from advisor.lab.fit.verbs import FittedFolder
from advisor.machines import devices
from advisor.machines.devices import cpu_device
from advisor.planners.core.arrays import select
from advisor.planners.core.errors import GIB
from advisor.planners.core.nouns import Device, Work
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.step.calibrate import (
    AMPLITUDES,
    ASKED,
    CLOCK_LOG_SD,
    ResidualParameters,
    SeenErrors,
    covariance,
    error_points,
    measured_covariance,
    of_hosts,
    prior,
    shapes,
)
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters, unmeasured
from advisor.quantities import REACH_90

# MLPerf's Xeon submissions as described jobs: how wrong the step-time equation is on processors.
#
# Nothing is fitted on them (they are six numbers of three generations, ResNet-50 and BERT, by one
# organisation); the spread of their errors is the width that an estimate on a processor gets. The
# same jobs on GPUs err by as much in the other direction (BERT) or in the same one (ResNet-50), so
# that no correction carries over from processor to GPU.


# MLPerf's BERT pre-trains the large model on 512 tokens.
_BERT: Final = Transformer(
    layers=24, hidden=1024, heads=16, sequence=512, vocabulary=30522, is_causal=False
)
# System -> (processor, sockets and cores of a node, nodes, precision), as the entries describe it.
SYSTEMS: Final[dict[str, tuple[str, int, int, int, Precision]]] = {
    "skx_8180_2s_1x": ("INTEL XEON PLATINUM 8180", 2, 28, 1, "fp32"),
    "1-node-8s-8380H-tensorflow": ("INTEL XEON PLATINUM 8380H", 8, 28, 1, "bf16"),
    "2-nodes-16s-8376H-tensorflow": ("INTEL XEON PLATINUM 8376H", 8, 28, 2, "bf16"),
    "8-nodes-SPR-pytorch": ("INTEL XEON PLATINUM 8480+", 2, 56, 8, "bf16"),
    "16-nodes-SPR-pytorch": ("INTEL XEON PLATINUM 8480+", 2, 56, 16, "bf16"),
}


def processor_rows(data: Path) -> pd.DataFrame:
    """Return one row a Xeon system and benchmark; none without the table.

    A system submitted again in a later round counts once. Columns: system, benchmark,
    samples_per_s, global_batch.
    """
    if not MLPERF.has("entries", data):
        return pd.DataFrame()
    frame = MLPERF.read("entries", data)
    frame = frame[
        frame["system"].isin(list(SYSTEMS))
        & frame["benchmark"].isin(["resnet", "bert"])
        & (frame["samples_per_s"] > 0)
    ]
    cells = frame.groupby(["system", "benchmark"])[["samples_per_s", "global_batch"]].median()
    return cells.reset_index()


def processor_residuals(cells: pd.DataFrame, parameters: DeviceParameters) -> NDArray[np.float64]:
    """Return ln(predicted / measured) of every row; reductions between nodes count as hidden."""
    return np.array(
        [
            _residual(
                str(cell["system"]), str(cell["benchmark"]), cell["samples_per_s"],
                cell["global_batch"], parameters,
            )
            for cell in cells.to_dict("records")
        ]
    )  # fmt: skip


def processor_log_sd(residuals: NDArray[np.float64], known_log_sd: float) -> float | None:
    """Return what a processor adds to an error, in squares; None where nothing was measured.

    ``known_log_sd``: what a GPU's estimate has already, its rate not measured.
    """
    if not residuals.size:
        return None
    return float(np.sqrt(max(float(np.mean(residuals**2)) - known_log_sd**2, 0.0)))


def _residual(
    system: str, benchmark: str, samples_per_s: float, batch: float, parameters: DeviceParameters
) -> float:
    model, sockets, cores, nodes, precision = SYSTEMS[system]
    device = cpu_device(
        name=system, vcpus=2 * sockets * cores, memory_bytes=512 * GIB, cpu_model=model
    )
    work = _work(benchmark, round(batch / nodes), precision)
    columns = step_time(work, [device], [float(work.micro_batch)], parameters)
    step_s = float(columns.micro_batch_s[0, 0] + columns.optimizer_s[0])
    return float(np.log(step_s * samples_per_s / batch))


def _work(benchmark: str, batch: int, precision: Precision) -> Work:
    if benchmark == "bert":
        return transformer_work(
            _BERT, micro_batch=batch, precision=precision, setup=TrainingSetup(attention="unfused")
        )
    return convolutional_work(
        parse_network(NETWORKS["ResNet50"].format(224)), micro_batch=batch, precision=precision,
        setup=TrainingSetup(optimizer="sgd-momentum"),
    )  # fmt: skip


# Fit the process of the device model's errors (``planners.step.calibrate``) on measured steps.
#
# Amplitudes maximise evidence times a wide prior, on one row of every sweep; what a job that is
# asked for has to itself is read off sources left out. The length over jobs is chosen on families
# of models and sources left out, whose rows have no siblings on other cards; the correlation
# between precisions is set. The spreads of intervals are read off the errors of devices left out
# in turn. Rows of models that are doubted, and those that only their own card hears of, are told
# before (``credible``).


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# What is tried: lengths over ``job_features``.
JOB_LENGTHS: Final = (0.4, 0.25, 0.6)
DEVICE_LENGTH: Final = 1.5
OTHER_PRECISION: Final = 0.5
# No less than the first: all recorded rows are image networks, and other scripts may differ more.
RECORDED_SHARES: Final = (0.3, 0.5, 1.0)
MACHINES: Final = (0.06, 0.09, 0.12, 0.18)  # deviations between machines of one card
# What is left out to choose a length by: nothing else of it is on the other cards.
UNLIKE: Final = ("family of models", "source")
KEPT_OF_A_SWEEP: Final = 3  # batches of one model on one device: the others say little more
PRIOR: Final = 0.1  # median of an amplitude; a factor of e either way is one deviation
ITERATIONS: Final = 12  # of the evidence's maximisation; the amplitudes move little after


def equation_s(step: MeasuredStep, device: Device, parameters: DeviceParameters) -> float:
    """Return what the step-time equation says of a measured step on a device [s]."""
    columns = step_time(step.work, [device], [float(step.work.micro_batch)], parameters)
    update_s = float(columns.optimizer_s[0]) if step.has_update else 0.0
    return float(columns.micro_batch_s[0, 0]) + update_s


def _host_log_sd(step: MeasuredStep, parameters: DeviceParameters) -> float:
    """Return what not knowing the host adds to ln(step); 0 where no host is named."""
    if not step.host:
        return 0.0
    at = [float(step.work.micro_batch)]
    return float(step_time(step.work, [step.device], at, parameters).host_log_sd[0, 0])


def fit_residual(
    steps: Sequence[MeasuredStep], parameters: DeviceParameters
) -> ResidualParameters:
    """Return the process fitted on measured steps of GPUs."""
    kept = seen_steps(steps)
    return fit_errors(seen_errors(kept, parameters), thinned(kept, 1), left_out_labels(kept))


def seen_errors(steps: Sequence[MeasuredStep], parameters: DeviceParameters) -> SeenErrors:
    """Return the errors of the equation on measured steps."""
    points = error_points(
        [s.work for s in steps], [s.device for s in steps], [s.host for s in steps],
        [_host_log_sd(s, parameters) for s in steps], [f"{s.suite}, {s.model}" for s in steps],
    )  # fmt: skip
    measured = np.log([s.seconds for s in steps])
    by_peaks, by_rates = (
        np.array([np.log(equation_s(s, d, parameters)) for s, d in zip(steps, on, strict=True)])
        for on in ([unmeasured(s.device) for s in steps], [s.device for s in steps])
    )
    return credible(
        SeenErrors(points=points, of_peaks=measured - by_peaks, of_rates=measured - by_rates)
    )


def credible(seen: SeenErrors) -> SeenErrors:
    """Return errors with what no other card or job should hear of said of each row.

    A job in a precision that errs by more than a factor of e in the median of its chips is
    described wrongly: that says nothing of cards, nor of other jobs. Nor does a row that lies as
    far from its job's median. Both count as if measured with an error as large. Of all others
    another card hears where at least ``_CHIPS`` chips err with one sign: boards of one chip are
    often one suite's machines with more memory, and no second witness.
    """
    chips = np.array([chip_of(name) for name in seen.points.device.tolist()])
    jobs = np.char.add(seen.points.name, seen.points.precision)
    heard, scatter = np.ones(jobs.size), np.broadcast_to(seen.scatter, jobs.size).copy()
    for job in np.unique(jobs):
        rows = np.flatnonzero(jobs == job)
        errors, on = seen.of_peaks[rows], chips[rows]
        of_chips = np.array([np.median(errors[on == chip]) for chip in np.unique(on)])
        usual = float(np.median(of_chips))
        off = np.maximum(np.abs(errors - usual), abs(usual))
        alike = max(int((of_chips > 0).sum()), int((of_chips < 0).sum()))
        heard[rows] = (alike >= _CHIPS) & (off <= 1.0)
        scatter[rows] = np.where(off > 1.0, np.maximum(off, scatter[rows]), scatter[rows])
    return replace(seen, points=replace(seen.points, heard=heard), scatter=scatter)


_CHIPS: Final = 3


def seen_steps(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return the steps whose errors the process sees, in the order of ``SeenErrors``."""
    return [steps[i] for i in thinned(steps, KEPT_OF_A_SWEEP) if steps[i].device.kind == "gpu"]


def left_out_labels(steps: Sequence[MeasuredStep]) -> dict[str, NDArray[np.str_]]:
    """Return what is left out in turn to choose the process by, and the source of every step."""
    of: dict[str, Callable[[MeasuredStep], str]] = {
        "device": lambda s: s.device.name, "chip family": lambda s: s.device.architecture,
        "model": lambda s: s.model, "family of models": model_family,
        "source": lambda s: s.suite.partition(",")[0],
    }  # fmt: skip
    return {way: np.array([label(s) for s in steps], dtype=np.str_) for way, label in of.items()}


def model_family(step: MeasuredStep) -> str:
    """Return which models are variations of one another, whatever source they are from."""
    name = step.model if step.suite == "neusight" else step.family.split(" ")[-1]
    return next((known for start, known in _FAMILIES if name.startswith(start)), name)


_FAMILIES: Final = (("res", "resnet"), ("bert", "bert"), ("gpt", "gpt"), ("opt", "gpt"))


def fit_errors(
    seen: SeenErrors, rows: Ints, labels: Mapping[str, NDArray[np.str_]] | None = None
) -> ResidualParameters:
    """Return the process fitted on errors; the amplitudes on some of the rows without hosts.

    The length over which jobs are alike is the one that errs least on what is left out: families
    of models and sources in turn, all sources of equal weight. Without labels the first.
    """
    tried: list[tuple[float, int, ResidualParameters]] = []
    for length in JOB_LENGTHS if labels else JOB_LENGTHS[:1]:
        fitted, _ = _of_length(seen, rows, length)
        error = _blind_error(fitted, labels) if labels else 0.0
        tried.append((error, len(tried), fitted))
    fitted = min(tried, key=lambda one: one[:2])[2]
    if labels:
        fitted = replace(fitted, unknown_log_sd=_unknown_log_sd(fitted, labels["source"]))
    mean, log_sd = left_out(fitted, seen.points.device)
    ratio = np.abs(seen.of_peaks - mean) / log_sd
    is_recorded = seen.points.recorded > 0
    spread, recorded = (
        float(np.quantile(ratio[rows] if rows.any() else ratio, 0.9) / REACH_90)
        for rows in (~is_recorded, is_recorded)
    )
    return replace(fitted, spread=spread, recorded_spread=recorded)


def _unknown_log_sd(fitted: ResidualParameters, source: NDArray[np.str_]) -> float:
    """Return what jobs of a source that nobody knows have to themselves on all cards.

    What remains of their mean error with the whole source left out, of the source that is known
    worst: a user's job is of one that neither the equation nor the process has seen. The more, the
    nearer an answer is to the job's own run.
    """
    off, names = fitted.seen.of_peaks - left_out(fitted, source)[0], fitted.seen.points.name
    of_jobs = {name: float(off[names == name].mean()) for name in np.unique(names).tolist()}
    return max(
        math.sqrt(
            np.mean([of_jobs[name] ** 2 for name in np.unique(names[source == one]).tolist()])
        )
        for one in np.unique(source)
    )


def _of_length(seen: SeenErrors, rows: Ints, length: float) -> tuple[ResidualParameters, Floats]:
    """Return the process with amplitudes by evidence for a length over jobs, and its kernels."""
    scale = seen.points.rates.std(axis=0)
    bare = ResidualParameters(
        amplitudes=dict.fromkeys(AMPLITUDES, PRIOR),
        job_length=length,
        device_length=DEVICE_LENGTH,
        other_precision=OTHER_PRECISION,
        recorded_share=1.0,
        machine_log_sd=0.0,
        unknown_log_sd=0.0,
        rate_scales=tuple(np.where(scale > 0, scale, 1.0).tolist()),
        spread=1.0,
        recorded_spread=1.0,
        seen=seen,
    )
    # What a machine adds to all scripts that it started is no share of jobs and devices.
    told = rows[seen.points.host[rows] == ""]
    rows = told if told.size else rows
    whole, few = shapes(seen.points, seen.points, bare), select(seen.points, rows)
    fixed = of_hosts(few, few, bare)
    scatter = np.broadcast_to(seen.scatter, len(seen.points))[rows]
    fixed = fixed + np.diag(np.square(scatter) - CLOCK_LOG_SD**2)
    found = _by_evidence(whole[:, rows[:, None], rows], seen.of_peaks[rows], fixed)
    bare = replace(bare, amplitudes=dict(zip(AMPLITUDES, found.tolist(), strict=True)))
    return _of_recorded(bare, whole), whole


def _of_recorded(fitted: ResidualParameters, whole: Floats) -> ResidualParameters:
    """Return the process with what recorded scripts and their machines have to themselves.

    By the evidence of recorded rows alone, the other amplitudes given.
    """
    seen, rows = fitted.seen, np.flatnonzero(fitted.seen.points.recorded)
    if not rows.size:
        return fitted
    tried, few = [], select(seen, seen.points.recorded > 0)
    kernels, errors = whole[:, rows[:, None], rows], few.of_peaks
    for share, machine in itertools.product(RECORDED_SHARES, MACHINES):
        one = replace(fitted, recorded_share=share, machine_log_sd=machine)
        lower = np.linalg.cholesky(measured_covariance(replace(one, seen=few), kernels))
        solved = np.linalg.solve(lower, errors)
        evidence = -0.5 * float(solved @ solved) - float(np.log(np.diagonal(lower)).sum())
        tried.append((evidence, one))
    return max(tried, key=lambda one: one[0])[1]


def _blind_error(fitted: ResidualParameters, labels: Mapping[str, NDArray[np.str_]]) -> float:
    """Return the mean error of ln(seconds) over ways of leaving out and sources."""
    source, found = labels["source"], []
    for groups in (labels[way] for way in UNLIKE):
        off = np.abs(fitted.seen.of_peaks - left_out(fitted, groups)[0])
        found += [float(off[source == one].mean()) for one in np.unique(source)]
    return float(np.mean(found))


def thinned(steps: Sequence[MeasuredStep], most: int) -> Ints:
    """Return at most so many rows of every (suite, model, precision, device), evenly apart."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, s in enumerate(steps):
        groups.setdefault((s.suite, s.model, s.is_half, s.device.name), []).append(i)
    kept: list[int] = []
    for rows in groups.values():
        if most == 1:
            kept.append(rows[len(rows) // 2])
        elif len(rows) <= most:
            kept += rows
        else:
            kept += [rows[round(i)] for i in np.linspace(0, len(rows) - 1, most)]
    return np.array(sorted(kept), dtype=np.int64)


def left_out(parameters: ResidualParameters, groups: NDArray[np.str_]) -> tuple[Floats, Floats]:
    """Return mean and deviation of every error by specifications, its group left out.

    As a user asks: of a job that nobody has under its name. By the inverse of the whole
    covariance, block by block: with P = (K + N)^-1, a group o and the others k, the inverse of
    those is P_kk - P_ko P_oo^-1 P_ok (Rasmussen and Williams, eq. A.12).
    """
    seen, points = parameters.seen, parameters.seen.points
    inverse = np.asarray(np.linalg.inv(measured_covariance(parameters)), np.float64)
    asked = replace(points, name=np.full(len(points), ASKED), heard=np.ones(len(points)))
    told = covariance(asked, points, parameters)
    mean, variance = np.zeros(len(points)), np.diagonal(prior(asked, parameters)).copy()
    for group in np.unique(groups):
        out, kept = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        cross, between = told[np.ix_(out, kept)], inverse[np.ix_(kept, out)]
        solved = cross @ inverse[np.ix_(kept, kept)]
        solved -= (cross @ between) @ np.linalg.solve(inverse[np.ix_(out, out)], between.T)
        mean[out] = solved @ seen.of_peaks[kept]
        variance[out] -= np.sum(solved * cross, axis=1)
    return mean, np.sqrt(np.maximum(variance, 1e-9))


def without(parameters: ResidualParameters, out: NDArray[np.bool_]) -> ResidualParameters:
    """Return the process with some of its errors not seen."""
    return replace(parameters, seen=select(parameters.seen, ~out))


def _by_evidence(kernels: Floats, errors: Floats, fixed: Floats) -> Floats:
    """Return amplitudes that maximise evidence x prior.

    Kernels of shape (5, n, n), and what is known of the covariance without them.
    """
    from scipy.linalg import cho_solve, cholesky
    from scipy.optimize import minimize

    size = errors.size
    flat = kernels.reshape(len(kernels), -1)
    prior = np.log(PRIOR)

    def negative(log_amplitude: Floats) -> tuple[float, Floats]:
        variance = np.exp(2 * log_amplitude)
        whole = (variance @ flat).reshape(size, size) + fixed
        whole[np.diag_indices(size)] += CLOCK_LOG_SD**2
        lower = cholesky(whole, lower=True, check_finite=False)
        solved = cho_solve((lower, True), errors, check_finite=False)
        inverse = cho_solve((lower, True), np.eye(size), check_finite=False)
        excess = (inverse - np.outer(solved, solved)).ravel()
        pull = log_amplitude - prior
        value = 0.5 * errors @ solved + np.log(np.diag(lower)).sum() + 0.5 * pull @ pull
        return float(value), np.asarray((flat @ excess) * variance + pull)

    found = minimize(
        negative, np.full(len(kernels), prior), jac=True, method="L-BFGS-B",
        options={"maxiter": ITERATIONS},
    )  # fmt: skip
    return np.asarray(np.exp(found.x), float)


# Classes that stream over memory alone and share one efficiency; the fit cannot tell them apart.
STREAMS: Final = ("normalisation", "elementwise", "reduction", "optimizer", "copy")
FITTED_KINDS: Final = (
    "matmul", "attention", "convolution", "winograd", "normalisation", "elementwise", "reduction",
    "optimizer",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """The device model fitted on some steps: what the files of its folder say."""

    record: dict[str, Any]  # of ``parameters.json``
    process: ResidualParameters
    rows: DescribedRows
    folds: Folds

    @property
    def parameters(self) -> DeviceParameters:
        return from_record(DeviceParameters, self.record["parameters"])


def fit_steps(
    steps: list[MeasuredStep], processors: pd.DataFrame, *, parts: int | None = None
) -> DeviceFit:
    """Fit constants, spreads, correlations and the process of errors; all from their priors.

    ``processors``: as ``processor_rows``; ``parts``: as ``left_out_fits``.
    """
    rows = columns(steps)
    whole = StepModel(rows).fit(np.ones(rows.log_s.size, bool))
    folds = left_out_fits(rows, whole, parts=parts)
    plain = residuals_of(rows, folds, has_deviations=False)
    record: dict[str, Any] = bounded.read_json(_packaged())
    update(record, whole.constants, fitted_spreads(rows, plain), rows)
    _update_uncertainty(record, rows, plain["device"], processors)
    process = fit_residual(steps, from_record(DeviceParameters, record["parameters"]))
    return DeviceFit(record=record, process=process, rows=rows, folds=folds)


def fitted(given: Path | None, day: str) -> FittedFolder:
    measurements = folders.measurements(given)
    measured = known_steps(measurements)
    found = fit_steps(measured, processor_rows(measurements))
    rows, process = found.rows, found.process
    errors = residuals_of(rows, found.folds)
    return FittedFolder(
        files={
            "parameters.json": json.dumps({**found.record, "as_of": day}, indent=1) + "\n",
            devices.FILE: json.dumps(devices.errors_record(process)) + "\n",
            "residuals.csv": residual_table(rows, errors).to_csv(index=False, lineterminator="\n"),
        },
        metrics={
            "rows": int(rows.log_s.size),
            "left_out": _by_suite(rows, errors),
            "corrected": _corrected(process, seen_steps(measured)),
        },
    )


def _update_uncertainty(
    record: dict[str, Any], rows: DescribedRows, residual: Array, processors: pd.DataFrame
) -> None:
    """Put how far a job's factor carries, and the width on processors, into the record."""
    is_described = rows.host == ""
    found = fitted_correlations(rows.take(is_described), residual[is_described])
    record["calibration"] |= {name: round(value, 3) for name, value in found.items()}
    values = record["parameters"]
    errors = processor_residuals(processors, from_record(DeviceParameters, record["parameters"]))
    known = math.hypot(values["log_sd"], values["unmeasured_rate_log_sd"])
    spread = processor_log_sd(errors, known)
    if spread is not None:
        values["unfitted_device_log_sd"] = round(spread, 4)


def _by_suite(rows: DescribedRows, residuals: dict[str, Array]) -> list[dict[str, Any]]:
    """Return the errors by what was left out and suite, devices and precisions pooled."""
    found = []
    for way, residual in residuals.items():
        for suite in np.unique(rows.suite):
            error = residual[(rows.suite == suite) & np.isfinite(residual)]
            if error.size:
                ape = np.abs(np.expm1(error))
                found.append({
                    "left_out": way, "suite": str(suite), "rows": int(error.size),
                    "mape": round(float(ape.mean()), 4),
                    "median_ape": round(float(np.median(ape)), 4),
                })  # fmt: skip
    return found


def _corrected(process: ResidualParameters, steps: list[MeasuredStep]) -> list[dict[str, Any]]:
    """Return the errors of the equation alone and with its process, by what was left out."""
    labels = left_out_labels(steps)
    alone = process.seen.of_peaks
    found = []
    for way, groups in labels.items():
        corrected = alone - left_out(process, groups)[0]
        found.append({
            "left_out": way, "rows": len(steps),
            "median_ape_of_the_equation": round(float(np.median(np.abs(np.expm1(-alone)))), 4),
            "median_ape_corrected": round(float(np.median(np.abs(np.expm1(-corrected)))), 4),
            "mape_of_the_equation": round(float(np.mean(np.abs(np.expm1(-alone)))), 4),
            "mape_corrected": round(float(np.mean(np.abs(np.expm1(-corrected)))), 4),
        })  # fmt: skip
    return found


def parameters_of(
    constants: dict[str, float], spreads: dict[str, float], rows: DescribedRows
) -> DeviceParameters:
    """Return a fit on ``rows`` as the device model takes it; what was not fitted as packaged."""
    record: dict[str, Any] = bounded.read_json(_packaged())
    update(record, constants, spreads, rows)
    return from_record(DeviceParameters, record["parameters"])


def _packaged() -> Path:
    return folders.root("trained_models") / "device_model" / "parameters.json"


def update(
    record: dict[str, Any], constants: dict[str, float], spreads: dict[str, float],
    rows: DescribedRows,
) -> None:  # fmt: skip
    """Put the fitted constants and spreads into the record of ``parameters.json``."""
    values, c = record["parameters"], constants
    gpu = values["efficiencies"]["gpu"]
    for kind in ("matmul", "recurrent", "attention"):
        gpu[kind]["memory"] = round(c["product_memory"], 4)
    gpu["attention"]["compute"] = round(c["attention"], 4)
    gpu["convolution"] = {
        "compute": round(c["convolution"], 4), "memory": round(c["convolution_memory"], 4)
    }  # fmt: skip
    gpu["winograd"] = {
        "compute": round(c["winograd"], 4), "memory": round(c["convolution_memory"], 4)
    }  # fmt: skip
    values["winograd_fill_flop"] = float(f"{c['winograd_fill']:.4g}")
    gpu["matrix_convolution"] = {
        "compute": round(c["matrix_convolution"], 4), "memory": round(c["convolution_memory"], 4)
    }  # fmt: skip
    gpu["depthwise"] = {"compute": round(c["depthwise"], 4), "memory": round(c["stream"], 4)}
    for kind in STREAMS:
        gpu[kind]["memory"] = round(c["stream"], 4)
    values["vector_fraction"] = {
        name: round(c[name], 4) for name in ("single", "shared", "separate")
    }
    for precision in ("tf32", "bf16", "fp16"):
        values["sustained_fraction"]["gpu"][precision] = round(c["tensor"], 4)
    values["tensor_flop_per_j"] = float(f"{c['kappa']:.4g}")
    values["vector_flop_per_j"] = float(f"{c['kappa'] / c['kappa_ratio']:.4g}")
    values["flop_per_j_doubling_years"] = round(c["doubling"], 3)
    values["kepler_fraction"] = round(c["kepler"], 4)
    values["unhidden_fraction"] = round(c["unhidden"], 4)
    values["latency_s"]["gpu"] = float(f"{c['latency']:.3g}")
    values["dispatch_s"]["gpu"] = float(f"{c['dispatch']:.3g}")
    values["engine_call_fraction"] = round(c["engine"], 4)
    values["fed_step_s"] = float(f"{c['fed']:.3g}")
    values["widened_fraction"] = round(c["widened"], 4)
    values["widened_depthwise_fraction"] = round(c["widened_depthwise"], 4)
    values["fitted_kinds"] = list(FITTED_KINDS)
    for name, seen in (
        ("fitted_rates", rows.log_rates),
        ("convolved_rates", rows.log_rates[has_convolutions(rows)]),
    ):
        values[name] = np.round(np.unique(seen, axis=0), 3).tolist()
    values["fitted_architectures"] = sorted(set(rows.architecture.tolist()))
    values |= {name: round(value, 4) for name, value in spreads.items()}


def residual_table(rows: DescribedRows, residuals: dict[str, Array]) -> pd.DataFrame:
    """Return errors by way of leaving out, suite, precision and device.

    Columns: left_out, suite, precision, device, rows, median_ape, mape, bias (geometric mean of
    predicted / measured).
    """
    found = []
    precision = np.where(rows.is_half, "fp16", "fp32")
    for way, residual in residuals.items():
        frame = pd.DataFrame(
            {"suite": rows.suite, "precision": precision, "device": rows.device, "r": residual}
        ).dropna()
        for (suite, kind, device), group in frame.groupby(["suite", "precision", "device"]):
            r = group["r"].to_numpy(float)
            ape = np.abs(np.expm1(r))
            found.append(
                {"left_out": way, "suite": suite, "precision": kind, "device": device,
                 "rows": r.size, "median_ape": round(float(np.median(ape)), 4),
                 "mape": round(float(ape.mean()), 4),
                 "bias": round(float(np.exp(r.mean())), 4)}
            )  # fmt: skip
    return pd.DataFrame(found)
