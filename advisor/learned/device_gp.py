"""Throughput of known jobs on an unseen device: rooflines with a Gaussian process of errors.

The mean of ln(throughput) of job j on device g is a non-negative roofline with the cost of a step
shared by the samples of the batch that fits (b, from the device's memory):

    1/x = a_j / P + d_j / W + c_j + (e_j + f_j / W) / b

Its error is a Gaussian process over (job, device): smooth in the specifications at two lengths,
alike within a chip generation, with a part per device. Two readings of the consumer boards'
tensor peak (half rate with fp32 accumulation, or full) and two rooflines (with and without the
cost per step) make four members that are averaged. Rooflines alone have a third reading: what
arithmetic and power let a board sustain (MLPerf, accelerators left out: median 9.8 to 8.4 %). The
process learns as much from the errors; beside it the third was tried and left out (Lambda: mean
14.2 to 16.2 %).

| here           | paper | meaning, unit                                             |
|----------------|-------|-----------------------------------------------------------|
| ``peak``       | P     | dense peak in the job's precision [flop/s]                |
| ``bandwidth``  | W     | memory bandwidth [bytes/s]                                |
| ``batch``      | b     | samples of a step, from memory by the other devices [1]   |
| ``output``     |       | a job in a precision                                      |

Sources: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", 2006,
eqs. 2.23-2.24, 5.8-5.9; coregionalisation as in E. Bonilla et al., NIPS 2007. Lengths, prior
scales and members were chosen on the Lambda table by whole GPUs left out, that is, after seeing
its residuals; the amplitudes are fitted by evidence on the training devices alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LENGTHS: Final = (0.36, 1.5)  # in standard deviations of the features
CROSS_PRECISION: Final = 0.84  # correlation of a job's error between two precisions
SHRINKAGE: Final = 0.6  # of a job's roofline towards the mean job's shares
ROBUST_LOG: Final = 0.15  # beyond this residual a cell counts less
BATCH_SLOPE: Final = (1.2, 0.3)  # prior d ln(batch) / d ln(memory), and its weight in cells
ITERATIONS: Final = 12  # of the evidence's maximisation; the amplitudes move little after
# Name -> prior standard deviation in ln(throughput).
AMPLITUDES: Final = {
    "job": 0.1, "all": 0.1, "near": 0.08, "near job": 0.1, "far": 0.08, "far job": 0.1,
    "generation": 0.08, "generation job": 0.05, "device": 0.05, "device precision": 0.03,
    "noise": 0.05,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Measured (device, job, precision) cells as columns of shape (n,).

    ``log_throughput`` and ``batch`` are NaN where unknown; ``weight`` in (0, 1] says how well a
    cell was measured.
    """

    log_throughput: Array
    batch: Array
    weight: Array
    device: Ints
    generation: Ints
    job: Ints
    precision: Ints
    peak: Array
    full_peak: Array
    sustained_peak: Array
    vector_peak: Array
    bandwidth: Array
    memory: Array

    @property
    def output(self) -> Ints:
        """A number for each (job, precision)."""
        return self.job * (int(self.precision.max()) + 1) + self.precision


class DeviceProcess:
    """Roofline and Gaussian process, averaged over members.

    Parameters
    ----------
    has_process : bool
        False leaves the rooflines alone.
    has_step_cost : tuple of bool
        Which rooflines are members.
    lengths : tuple of float
        Over which errors are alike, in standard deviations of the features.
    shrinkage : float
        Of a job's roofline towards the mean job's shares.

    Attributes
    ----------
    amplitudes_ : dict
        Fitted log-amplitudes by member; kept as a warm start of the next fit.
    """

    def __init__(
        self,
        *,
        has_process: bool = True,
        has_step_cost: tuple[bool, ...] = (True, False),
        lengths: tuple[float, float] = LENGTHS,
        shrinkage: float = SHRINKAGE,
    ) -> None:
        self.has_process = has_process
        self.has_step_cost = has_step_cost
        self.lengths = lengths
        self.shrinkage = shrinkage
        self.amplitudes_: dict[tuple[bool, int], Array] = {}

    def fit_predict(self, cells: Cells, is_known: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Fit on the known cells and return mean and deviation of ln(throughput) of every cell.

        Nothing of the other cells but their devices' specifications is used. NaN where a job was
        seen on no known device.
        """
        batch = _batches(cells, is_known)
        means, variances = [], []
        for has_cost in self.has_step_cost:
            readings = [cells.peak, cells.full_peak]
            if not self.has_process:
                readings.append(cells.sustained_peak)
            for reading, peak in enumerate(readings):
                mean = _roofline(cells, is_known, peak, batch, has_cost, self.shrinkage)
                variance = np.full_like(mean, np.nan)
                if self.has_process:
                    shift, variance = self._process(
                        cells, is_known, peak, mean, (has_cost, reading)
                    )
                    mean = mean + shift
                means.append(mean)
                variances.append(variance)
        spread = np.var(means, axis=0)
        return np.mean(means, axis=0), np.sqrt(np.mean(variances, axis=0) + spread)

    def _process(
        self, cells: Cells, is_known: NDArray[np.bool_], peak: Array, mean: Array, member: Any
    ) -> tuple[Array, Array]:
        known = np.flatnonzero(is_known & np.isfinite(mean) & np.isfinite(cells.log_throughput))
        kernels = _kernels(cells, peak, self.lengths)  # (n_kernels, n, n)
        residual = (cells.log_throughput - mean)[known]
        noise = 1.0 / cells.weight[known]
        among = kernels[:, known[:, None], known]
        start = self.amplitudes_.get(member)
        log_amplitude = _evidence_fit(among, residual, noise, start)
        self.amplitudes_[member] = log_amplitude
        variance = np.exp(2 * log_amplitude)
        whole = np.tensordot(variance[:-1], kernels, 1)
        covariance, cross = whole[np.ix_(known, known)], whole[:, known]
        covariance[np.diag_indices_from(covariance)] += variance[-1] * noise + 1e-8
        gain = np.linalg.solve(covariance, cross.T).T
        left = np.diagonal(whole) + variance[-1] - np.sum(gain * cross, axis=1)
        return gain @ residual, np.maximum(left, 1e-9)


def _batches(cells: Cells, is_known: NDArray[np.bool_]) -> Array:
    """Return the batch of every cell from memory, by a log-linear law per output."""
    memory = np.log(cells.memory / np.median(cells.memory))
    batch = np.ones_like(cells.batch)
    slope, weight = BATCH_SLOPE
    for output in np.unique(cells.output):
        rows = cells.output == output
        known = rows & is_known & np.isfinite(cells.batch)
        if known.sum() < 2:
            continue
        design = np.c_[np.ones(known.sum()), memory[known]]
        gram = design.T @ design + np.diag([1e-9, weight])
        rhs = design.T @ np.log(cells.batch[known]) + np.array([0.0, weight * slope])
        constant, exponent = np.linalg.solve(gram, rhs)
        batch[rows] = np.exp(constant + exponent * memory[rows])
    return batch


def _roofline(
    cells: Cells,
    is_known: NDArray[np.bool_],
    peak: Array,
    batch: Array,
    has_cost: bool,
    shrinkage: float,
) -> Array:
    """Return ln(throughput) by each output's non-negative roofline, shrunk to the mean shares."""
    terms = [1 / peak, 1 / cells.bandwidth, np.ones_like(peak)]
    if has_cost:
        terms += [1 / batch, 1 / batch / cells.bandwidth]
    design = np.stack(terms, axis=1)
    shares = np.full(len(terms), 1.0 / len(terms))
    mean = np.full_like(peak, np.nan)
    for _ in range(3):  # The shares settle in three rounds.
        found, counts = [], []
        for output in np.unique(cells.output):
            rows = cells.output == output
            known = np.flatnonzero(rows & is_known & np.isfinite(cells.log_throughput))
            if known.size == 0:
                continue
            mean[rows], share = _one_roofline(cells, design, rows, known, shares, shrinkage)
            found.append(share)
            counts.append(known.size)
        shares = np.average(found, axis=0, weights=counts)
    return mean


def _one_roofline(
    cells: Cells,
    design: Array,
    rows: NDArray[np.bool_],
    known: Ints,
    shares: Array,
    shrinkage: float,
) -> tuple[Array, Array]:
    from scipy.optimize import nnls

    relative = design[known] * np.exp(cells.log_throughput[known])[:, None]
    scale = relative.mean(axis=0)
    relative = relative / scale
    weight = cells.weight[known]
    pull = shrinkage * np.sqrt(weight.sum()) * ROBUST_LOG
    w = np.sqrt(weight)
    residual = np.zeros(known.size)
    for _ in range(5):
        stacked = np.r_[relative * w[:, None], np.eye(len(shares)) * pull]
        coefficients, _ = nnls(stacked, np.r_[w, shares * pull])
        residual = np.log(np.maximum(relative @ coefficients, 1e-12))
        centred = residual - _weighted_median(residual, weight)
        w = np.sqrt(weight) / np.sqrt(1 + (centred / ROBUST_LOG) ** 2)
    mean = _weighted_median(residual, weight) - np.log(design[rows] / scale @ coefficients)
    return mean, coefficients / coefficients.sum()


def _weighted_median(values: Array, weight: Array) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def _kernels(cells: Cells, peak: Array, lengths: tuple[float, float]) -> Array:
    """Return the covariance shapes in the order of ``AMPLITUDES``, noise left out."""
    logs = np.log(np.stack([peak, cells.bandwidth, cells.memory, cells.vector_peak], axis=1))
    spread = np.where(logs.std(axis=0) > 0, logs.std(axis=0), 1.0)
    features = (logs - logs.mean(axis=0)) / spread
    squared = np.sum((features[:, None] - features) ** 2, axis=-1)
    same_precision = _same(cells.precision)
    job = _same(cells.job) * (CROSS_PRECISION + (1 - CROSS_PRECISION) * same_precision)
    generation, device = _same(cells.generation), _same(cells.device)
    near, far = (np.exp(-0.5 * squared / length**2) for length in lengths)
    shapes = [job, np.ones_like(job), near, near * job, far, far * job, generation]
    return np.array([*shapes, generation * job, device, device * same_precision])


def _same(labels: Ints) -> Array:
    return np.asarray(labels[:, None] == labels, float)


def _evidence_fit(kernels: Array, residual: Array, noise: Array, start: Array | None) -> Array:
    """Return log-amplitudes that maximise evidence x prior (unit deviation around the prior).

    Kernels are symmetric: their lower triangles are enough.
    """
    from scipy.linalg import cho_solve, cholesky
    from scipy.linalg.lapack import dpotri
    from scipy.optimize import minimize

    n = residual.size
    rows, columns = np.tril_indices(n)
    packed = np.ascontiguousarray(kernels[:, rows, columns])  # (n_kernels, n (n + 1) / 2)
    times = np.where(rows == columns, 1.0, 2.0)
    prior = np.log(np.array(list(AMPLITUDES.values())))
    diagonal = np.arange(n)

    def negative(log_amplitude: Array) -> tuple[float, Array]:
        variance = np.exp(2 * log_amplitude)
        covariance = np.zeros((n, n))
        covariance[rows, columns] = variance[:-1] @ packed
        covariance[diagonal, diagonal] += variance[-1] * noise + 1e-8
        lower = cholesky(covariance, lower=True, check_finite=False)
        alpha = cho_solve((lower, True), residual, check_finite=False)
        inverse, _ = dpotri(lower, lower=1)  # its lower triangle
        excess = inverse[rows, columns] - alpha[rows] * alpha[columns]
        slope = np.r_[
            (packed @ (times * excess)) * variance[:-1],
            np.sum((np.diag(inverse) - alpha**2) * noise) * variance[-1],
        ]
        pull = log_amplitude - prior
        value = 0.5 * residual @ alpha + np.log(np.diag(lower)).sum() + 0.5 * pull @ pull
        return float(value), slope + pull

    begin = prior if start is None else start
    options = {"maxiter": ITERATIONS}
    found = minimize(negative, begin, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, float)
