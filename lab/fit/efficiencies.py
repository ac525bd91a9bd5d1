"""Fit the step-time equation of ``planners.step.device`` on described jobs (``described_rows``).

    t = sum over phases of max(sum_k max(C, M) + rho min(C, M) + n l, n h)
    R = ((e peak)^-n + (kappa tdp)^-n)^(-1/n) x (deviations of chip and board)

Maximum a posteriori by robust least squares of ln(seconds). Beside the constants that are kept
there are deviations that are not: of the traffic of a family of models (its software fuses more or
less), and of the rate of a chip and of a board. A device that was left out has none of its own.

| here                   | meaning                                                   | prior   |
|------------------------|-----------------------------------------------------------|---------|
| ``tensor`` ...         | e: share of the peak, by kind of unit                     | 15-20 % |
| ``kappa`` ...          | flop a joule buys, tensor and vector; doubling            | 25-30 % |
| ``product_memory``     | share of the bandwidth that products reach                | 30 %    |
| ``stream``             | the same of pointwise classes                             | 30 %    |
| ``attention``          | share of R that fused attention reaches                   | 40 %    |
| ``convolution``        | share of R that convolutions reach; of the bandwidth      | 30 %    |
| ``winograd``           | the same of 3 x 3 ones of stride one on vector units      | 30 %    |
| ``winograd_fill``      | F_0: 13 to 80 multiprocessors, each with a tile of 64 x   | x 2     |
|                        | 64 over 2,304 products                                    |         |
| ``matrix_convolution`` | the same of all convolutions on matrix units              | 30 %    |
| ``unhidden``           | rho                                                       | x 2     |
| ``kepler``             | share of both rates that Kepler reaches                   | 30 %    |
| ``latency, dispatch``  | l, h                                                      | x 1.6   |
| ``fed``                | f: a batch of loading processes is handed over in 1.2 ms  | x 1.6   |
|                        | on idle cores, 2 to 11 on busy ones                       |         |
|                        | (``experiments.handed_over``)                             |         |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.fit.described_columns import CONVOLUTIONS, PHASES, UNITS, Array, DescribedRows
from advisor.planners.step.device import KINDS, PRODUCTS

Mask = NDArray[np.bool_]
SHARPNESS: Final = 4.0
# Name -> (prior median, prior standard deviation of the logarithm).
PRIORS: Final = {
    "tensor": (0.78, 0.15), "single": (0.70, 0.2), "shared": (0.55, 0.2), "separate": (0.88, 0.15),
    "kappa": (9e11, 0.3), "kappa_ratio": (7.5, 0.25), "doubling": (3.0, 0.25),
    "product_memory": (0.8, 0.3), "stream": (0.72, 0.3), "attention": (0.5, 0.4),
    "convolution": (0.75, 0.3), "convolution_memory": (0.75, 0.3), "winograd": (1.5, 0.3),
    "winograd_fill": (6e8, 0.7), "matrix_convolution": (0.75, 0.3),
    "unhidden": (0.2, 0.7), "latency": (3e-6, 0.5), "dispatch": (8e-6, 0.5),
    "depthwise": (0.1, 0.5), "engine": (0.33, 0.2), "fed": (4e-3, 0.5), "widened": (0.8, 0.3),
    "widened_depthwise": (0.5, 0.7),
    "kepler": (0.7, 0.3),
}  # fmt: skip
# What recorded scripts tell, and no described job.
RECORDED: Final = (
    "matrix_convolution", "depthwise", "engine", "fed", "widened", "widened_depthwise",
)  # fmt: skip
STAYS: Final = 0.01  # deviation of the logarithms of the others while those are fitted
# Deviations: of a family's traffic, a chip's and a board's rate, by precision.
SPREADS: Final = (0.4, 0.12, 0.12, 0.25, 0.7)
DEVIATIONS: Final = ("family", "chip", "board", "host", "loop")
# What ln(seconds) is made of: earlier pieces, and parameters and deviations of its own.
OF: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "rate": ((), (*UNITS, "kappa", "kappa_ratio", "doubling", "kepler", "chip", "board")),
    "compute": (("rate",), ("attention", "convolution", "winograd", "winograd_fill",
                            "matrix_convolution", "widened", "depthwise", "widened_depthwise")),
    "memory": ((), ("kepler", "product_memory", "stream", "convolution_memory", "family")),
    "busy": (("compute", "memory"), ("unhidden",)),
    "log_s": (("busy",), ("latency", "dispatch", "engine", "fed", "host", "loop")),
}  # fmt: skip
Pieces = dict[str, tuple[bytes, Array]]  # by name, with the parameters that it is of
NOISE: Final = 0.12  # of one row, in ln(seconds)
NINE_AS_ONE: Final = 3.0  # rows of a sweep are not independent
SWEEPS: Final = ("layers", "gavel", "profet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was fitted: the constants by name, and all parameters for a later start."""

    constants: dict[str, float]
    parameters: Array


class StepModel:
    """The equation over some rows."""

    def __init__(self, rows: DescribedRows) -> None:
        self.rows = rows
        groups = (rows.family, rows.chip, rows.device, rows.host, rows.host)
        self._labels = [np.unique(g, return_inverse=True)[1] for g in groups]
        self._sizes = [int(labels.max()) + 1 for labels in self._labels]
        median, sd = np.array(list(PRIORS.values())).T
        deviations = np.repeat(SPREADS, [2 * size for size in self._sizes])
        self._mean = np.r_[np.log(median), np.zeros(deviations.size)]
        self._sd = np.r_[sd, deviations]
        self._is_product = np.isin(rows.kind, [KINDS.index(k) for k in PRODUCTS])
        self._is = {
            name: rows.kind == KINDS.index(name) for name in ("attention", "winograd", "depthwise")
        }
        # On matrix units a 3 x 3 convolution is a product like any other.
        self._is_convolution = np.isin(rows.kind, [KINDS.index(k) for k in CONVOLUTIONS])
        self._is["matrix_convolution"] = self._is_convolution & rows.is_matrix
        self._is["winograd"] &= ~self._is["matrix_convolution"]
        self._is["widened"] = (rows.is_half & (rows.vector_unit == 0))[rows.row]
        self._place = rows.row * len(PHASES) + rows.phase
        self._calls = np.bincount(self._place, rows.count, rows.log_s.size * len(PHASES))
        self._places = self._where()

    def _where(self) -> dict[str, NDArray[np.intp]]:
        """Return the places of the parameters that each piece is of."""
        place = {name: [i] for i, name in enumerate(PRIORS)}
        at = len(PRIORS)
        for name, size in zip(DEVIATIONS, self._sizes, strict=True):
            place[name], at = list(range(at, at + 2 * size)), at + 2 * size
        of: dict[str, list[str]] = {}
        for name, (pieces, own) in OF.items():
            of[name] = [*own, *(one for piece in pieces for one in of[piece])]
        return {
            name: np.array([i for one in dict.fromkeys(names) for i in place[one]], np.intp)
            for name, names in of.items()
        }

    def fit(self, known: Mask, start: Array | None = None) -> Fitted:
        """Fit on the known rows; a device's rows of a suite count as sixty at most.

        First on described jobs; then on recorded scripts besides, whose constants (``RECORDED``)
        no described job tells. The others stay: what a script's host adds is no share of them.
        """
        is_described = known & (self.rows.host == "")
        if not is_described.any() or not (known & ~is_described).any():
            return self._fit(known, start, self._mean, self._sd)
        first = self._fit(is_described, start, self._mean, self._sd).parameters
        mean, sd = self._mean.copy(), self._sd.copy()
        shared = [i for i, name in enumerate(PRIORS) if name not in RECORDED]
        mean[shared], sd[shared] = first[shared], STAYS
        return self._fit(known, first if start is None else start, mean, sd)

    def _fit(self, known: Mask, start: Array | None, prior: Array, prior_sd: Array) -> Fitted:
        from scipy.optimize import least_squares

        rows = self.rows
        label = np.char.add(np.char.add(rows.device, rows.suite), rows.is_half.astype(str))
        codes = np.unique(label, return_inverse=True)[1]
        count = np.bincount(codes[known], minlength=int(codes.max()) + 1)
        weight = np.sqrt(np.minimum(1.0, 60.0 / np.maximum(count[codes], 1)))[known]
        # Rows of a sweep are not independent; the other suites have one row a model.
        is_sweep = np.isin(rows.suite[known], SWEEPS)
        weight = weight / np.where(is_sweep, NINE_AS_ONE, 1.0)
        few = self._restricted(known)

        def residuals(p: Array) -> Array:
            robust = _robust((few._log_s(p) - few.rows.log_s) / NOISE)[0]
            return np.asarray(np.r_[robust * weight, (p - prior) / prior_sd], float)

        def slopes(p: Array) -> Array:
            log_s = few._log_s(p)
            slope = _robust((log_s - few.rows.log_s) / NOISE)[1] * weight / NOISE
            return np.vstack([few._slopes(p, log_s) * slope[:, None], np.diag(1.0 / prior_sd)])

        begin = prior if start is None else start
        # From another fit's solution a few steps are enough.
        found = least_squares(
            residuals, begin, slopes, max_nfev=20 if start is None else 5, x_scale=prior_sd
        )
        values = np.exp(found.x[: len(PRIORS)])
        return Fitted(
            constants=dict(zip(PRIORS, values.tolist(), strict=True)),
            parameters=np.asarray(found.x, float),
        )

    def _slopes(self, p: Array, log_s: Array) -> Array:
        """Return the derivatives of ln(seconds) by the parameters, shape (n, parameters).

        A row has one label of each group, so that all deviations of a group move at once.
        """
        found, near = np.zeros((log_s.size, p.size)), self._pieces(p)
        for i in range(len(PRIORS)):
            found[:, i] = (self._log_s(_moved(p, i), near) - log_s) / _STEP
        at, rows = len(PRIORS), np.arange(log_s.size)
        for label, size in zip(self._labels, self._sizes, strict=True):
            column = at + label + np.where(self.rows.is_half, 0, size)
            found[rows, column] = (
                self._log_s(_moved(p, slice(at, at + 2 * size)), near) - log_s
            ) / _STEP
            at += 2 * size
        return found

    def log_s(self, fitted: Fitted, *, has_deviations: bool = True) -> Array:
        """Return ln(seconds) of every row, with the deviations or as the planner has it."""
        parameters = fitted.parameters.copy()
        if not has_deviations:
            parameters[len(PRIORS) :] = 0.0
        return self._log_s(parameters)

    def _restricted(self, known: Mask) -> StepModel:
        """Return the model over the known rows, its labels numbered as over all."""
        few = StepModel(self.rows.take(known))
        few._labels = [labels[known] for labels in self._labels]
        few._sizes = self._sizes
        few._places = self._places
        return few

    def _log_s(self, p: Array, near: Pieces | None = None) -> Array:
        return self._pieces(p, near)["log_s"][1]

    def _pieces(self, p: Array, near: Pieces | None = None) -> Pieces:
        """Return ln(seconds) and what it is made of, each beside the parameters that it is of.

        ``near``: of other parameters; of its pieces those stay that nothing changes.
        """
        c = dict(zip(PRIORS, np.exp(p[: len(PRIORS)]), strict=True))
        deviations, found = self._deviations(p[len(PRIORS) :]), dict[str, tuple[bytes, Array]]()
        for name, make in _MADE_BY.items():
            key = p[self._places[name]].tobytes()
            if near is not None and near[name][0] == key:
                found[name] = near[name]
            else:
                found[name] = key, make(self, c, deviations, found)
        return found

    def _rate(self, c: dict[str, float], deviations: list[Array], _: Pieces) -> Array:
        """Return what the units of every operator reach, its kind aside [flop/s]."""
        rows, (_family, chip, board, *_others) = self.rows, deviations
        kappa = c["kappa"] * 2.0 ** (rows.years / c["doubling"])
        share = np.array([c[name] for name in UNITS[1:]])[rows.vector_unit]
        # Kepler reaches less of both its rates.
        old = c["kepler"] ** rows.age
        matrix, vector_rate = (
            old * np.exp(-np.logaddexp(-SHARPNESS * a, -SHARPNESS * b) / SHARPNESS + chip + board)
            for a, b in (
                (
                    np.log(np.minimum(c["tensor"] * rows.matrix_peak, rows.best)),
                    np.log(kappa * rows.tdp),
                ),
                (np.log(share * rows.single_peak), np.log(kappa / c["kappa_ratio"] * rows.tdp)),
            )
        )
        return np.where(rows.is_matrix, matrix[rows.row], vector_rate[rows.row])

    def _compute(self, c: dict[str, float], _: list[Array], found: Pieces) -> Array:
        """Return what the arithmetic of every operator takes [s]."""
        rows, rate = self.rows, found["rate"][1]
        of_rate = np.where(self._is["attention"], c["attention"], 1.0)
        of_rate = np.where(self._is_convolution, c["convolution"], of_rate)
        for name in ("winograd", "matrix_convolution"):
            of_rate = np.where(self._is[name], c[name], of_rate)
        is_widened = self._is["widened"]
        rate = np.where(is_widened, c["widened"] * rate, rate)
        # Pointwise classes never come near the vector units' peak.
        of_peak = np.where(self._is["depthwise"], c["depthwise"], 0.2)
        of_peak = np.where(is_widened & self._is["depthwise"], c["widened_depthwise"], 1) * of_peak
        rates = np.where(self._is_product, rate * of_rate, of_peak * rows.single_peak[rows.row])
        filling = np.where(self._is["winograd"], rows.count * c["winograd_fill"], 0.0)
        return np.asarray((rows.flop + filling) / rates, float)

    def _memory(self, c: dict[str, float], deviations: list[Array], _: Pieces) -> Array:
        """Return what the traffic of every operator takes [s]."""
        rows, family = self.rows, deviations[0]
        bandwidth = rows.bandwidth * c["kepler"] ** rows.age
        of_memory = np.where(self._is_product, c["product_memory"], c["stream"])
        of_memory = np.where(self._is_convolution, c["convolution_memory"], of_memory)
        memory = rows.bytes / (of_memory * bandwidth[rows.row])
        return np.where(self._is_product, memory, memory * np.exp(family)[rows.row])

    def _busy(self, c: dict[str, float], _: list[Array], found: Pieces) -> Array:
        """Return the operators' time by row and phase [s]."""
        compute, memory = found["compute"][1], found["memory"][1]
        busy = np.maximum(compute, memory) + c["unhidden"] * np.minimum(compute, memory)
        return np.asarray(np.bincount(self._place, busy, self._calls.size), float)

    def _total(self, c: dict[str, float], deviations: list[Array], found: Pieces) -> Array:
        rows, (*_, host, loop) = self.rows, deviations
        device = found["busy"][1] + self._calls * c["latency"]
        size = (rows.log_s.size, len(PHASES))
        total = np.maximum(device, self._calls * self._call_s(c, host)).reshape(size).sum(axis=1)
        is_fed = rows.copied_s > 0
        total = total + rows.copied_s + is_fed * c["fed"] * np.exp(loop)
        return np.asarray(np.log(total), float)

    def _call_s(self, c: dict[str, float], host: Array) -> Array:
        """Return what starting a call takes on the host, by row and phase [s]."""
        rows = self.rows
        has_host = (rows.call_s > 0)[:, None]
        of_phase = np.array([1.0, c["engine"], c["engine"]])
        unseen = (rows.call_s * np.exp(host))[:, None] * of_phase
        return np.where(has_host, unseen, c["dispatch"]).ravel()

    def _deviations(self, p: Array) -> list[Array]:
        """Return those of family, chip and board of every row."""
        found, at = [], 0
        for label, size in zip(self._labels, self._sizes, strict=True):
            half, single = p[at : at + size], p[at + size : at + 2 * size]
            found.append(np.where(self.rows.is_half, half[label], single[label]))
            at += 2 * size
        return found


_MADE_BY: Final = {
    "rate": StepModel._rate, "compute": StepModel._compute, "memory": StepModel._memory,
    "busy": StepModel._busy, "log_s": StepModel._total,
}  # fmt: skip
_STEP: Final = 1e-6  # of a logarithm, for differences


def _moved(p: Array, place: int | slice) -> Array:
    found = p.copy()
    found[place] += _STEP
    return found


def _robust(r: Array) -> tuple[Array, Array]:
    """Return residuals whose squares grow like |r| where r is large, and their derivative."""
    root = np.sqrt(1 + r**2)
    robust = np.sign(r) * np.sqrt(2 * (root - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(np.abs(r) > _STEP, r / (root * robust), 1.0)
    return robust, slope
