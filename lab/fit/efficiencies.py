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
| ``unhidden``           | rho                                                       | x 2     |
| ``kepler``             | share of both rates that Kepler reaches                   | 30 %    |
| ``latency, dispatch``  | l, h                                                      | x 1.6   |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.fit.described_columns import PHASES, Array, DescribedRows
from advisor.planners.step.device import KINDS, PRODUCTS

Mask = NDArray[np.bool_]
CONVOLUTIONS: Final = ("convolution", "winograd")
SHARPNESS: Final = 4.0
# Name -> (prior median, prior standard deviation of the logarithm).
PRIORS: Final = {
    "tensor": (0.78, 0.15), "single": (0.70, 0.2), "shared": (0.55, 0.2), "separate": (0.88, 0.15),
    "kappa": (9e11, 0.3), "kappa_ratio": (7.5, 0.25), "doubling": (3.0, 0.25),
    "product_memory": (0.8, 0.3), "stream": (0.72, 0.3), "attention": (0.5, 0.4),
    "convolution": (0.75, 0.3), "convolution_memory": (0.75, 0.3), "winograd": (1.5, 0.3),
    "unhidden": (0.2, 0.7), "latency": (3e-6, 0.5), "dispatch": (8e-6, 0.5),
    "kepler": (0.7, 0.3),
}  # fmt: skip
# Deviations: of a family's traffic, a chip's and a board's rate, by precision.
SPREADS: Final = (0.4, 0.12, 0.12)
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
        groups = (rows.family, rows.chip, rows.device)
        self._labels = [np.unique(g, return_inverse=True)[1] for g in groups]
        self._sizes = [int(labels.max()) + 1 for labels in self._labels]
        median, sd = np.array(list(PRIORS.values())).T
        deviations = np.repeat(SPREADS, [2 * size for size in self._sizes])
        self._mean = np.r_[np.log(median), np.zeros(deviations.size)]
        self._sd = np.r_[sd, deviations]
        self._is_product = np.isin(rows.kind, [KINDS.index(k) for k in PRODUCTS])
        self._is = {name: rows.kind == KINDS.index(name) for name in ("attention", "winograd")}
        # On matrix units a 3 x 3 convolution is a product like any other.
        self._is_convolution = np.isin(rows.kind, [KINDS.index(k) for k in CONVOLUTIONS])
        self._is["winograd"] &= (rows.unit != 0)[rows.row]

    def fit(self, known: Mask, start: Array | None = None) -> Fitted:
        """Fit on the known rows; a device's rows of a suite count as sixty at most."""
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
            r = (few._log_s(p) - few.rows.log_s) / NOISE
            robust = np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r**2) - 1))
            return np.asarray(np.r_[robust * weight, (p - self._mean) / self._sd], float)

        begin = self._mean if start is None else start
        # From another fit's solution a few steps are enough.
        found = least_squares(
            residuals, begin, max_nfev=20 if start is None else 5, x_scale=self._sd
        )
        values = np.exp(found.x[: len(PRIORS)])
        return Fitted(
            constants=dict(zip(PRIORS, values.tolist(), strict=True)),
            parameters=np.asarray(found.x, float),
        )

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
        return few

    def _log_s(self, p: Array) -> Array:
        rows = self.rows
        c = dict(zip(PRIORS, np.exp(p[: len(PRIORS)]), strict=True))
        family, chip, board = self._deviations(p[len(PRIORS) :])
        is_tensor = rows.unit == 0
        share = np.array([c["tensor"], c["single"], c["shared"], c["separate"]])[rows.unit]
        kappa = c["kappa"] * 2.0 ** (rows.years / c["doubling"])
        kappa = np.where(is_tensor, kappa, kappa / c["kappa_ratio"])
        arithmetic = np.log(np.minimum(share * rows.peak, rows.best))
        power = np.log(kappa * rows.tdp)
        rate = np.exp(
            -np.logaddexp(-SHARPNESS * arithmetic, -SHARPNESS * power) / SHARPNESS + chip + board
        )
        # Kepler reaches less of both its rates.
        old = c["kepler"] ** rows.age
        rate, bandwidth = rate * old, rows.bandwidth * old
        of_rate = np.where(self._is["attention"], c["attention"], 1.0)
        of_rate = np.where(self._is_convolution, c["convolution"], of_rate)
        of_rate = np.where(self._is["winograd"], c["winograd"], of_rate)
        vector = 0.2 * rows.single_peak  # pointwise classes never come near it
        rates = np.where(self._is_product, rate[rows.row] * of_rate, vector[rows.row])
        compute = rows.flop / rates
        of_memory = np.where(self._is_product, c["product_memory"], c["stream"])
        of_memory = np.where(self._is_convolution, c["convolution_memory"], of_memory)
        memory = rows.bytes / (of_memory * bandwidth[rows.row])
        memory = np.where(self._is_product, memory, memory * np.exp(family)[rows.row])
        busy = np.maximum(compute, memory) + c["unhidden"] * np.minimum(compute, memory)
        size = (rows.log_s.size, len(PHASES))
        place = rows.row * len(PHASES) + rows.phase
        calls = np.bincount(place, rows.count, size[0] * size[1])
        device = np.bincount(place, busy, size[0] * size[1]) + calls * c["latency"]
        total = np.maximum(device, calls * c["dispatch"]).reshape(size).sum(axis=1)
        return np.asarray(np.log(total), float)

    def _deviations(self, p: Array) -> list[Array]:
        """Return those of family, chip and board of every row."""
        found, at = [], 0
        for label, size in zip(self._labels, self._sizes, strict=True):
            half, single = p[at : at + size], p[at + size : at + 2 * size]
            found.append(np.where(self.rows.is_half, half[label], single[label]))
            at += 2 * size
        return found
