"""How much wider a doubling of the devices makes the interval of a job known by one run.

    python -m advisor.lab.experiments.doublings [--data shared/data]

On the pairs of ``advisor validate series-mlperf``: errors in log step time, the deviation that the
product states where a doubling adds nothing, and what a doubling has to add for the errors to be
likeliest, every benchmark counting the same. Coverage is with each benchmark left out of that.
The constant is ``advisor.estimate.case._OF_A_DOUBLING``.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.estimate import case
from advisor.lab import frame
from advisor.lab.data import MLPERF
from advisor.lab.score.scaling import ask, read_pairs
from advisor.quantities import REACH_90

Floats = NDArray[np.float64]


def main() -> None:
    folder = data.measurements(frame.options(__doc__, {"--data": Path}).data)
    pairs = list(read_pairs(MLPERF.read("entries", folder)))
    with mock.patch.object(case, "_OF_A_DOUBLING", 0.0):
        said, log_sd = np.array([ask(pair) for pair in pairs]).T
    error = np.log([pair.large.samples_per_s for pair in pairs]) - np.log(said)
    doublings = np.log2([pair.growth for pair in pairs])
    names = np.array([pair.benchmark for pair in pairs])
    print(f"a doubling adds {likeliest(error, log_sd, doublings, names):.4f}")
    for factor in (0.0, 1.0):
        covered = np.zeros(len(pairs), bool)
        for name in np.unique(names):
            out = names == name
            rest = (column[~out] for column in (error, log_sd, doublings, names))
            added = factor * likeliest(*rest) * doublings[out]
            covered[out] = np.abs(error[out]) <= REACH_90 * np.hypot(log_sd[out], added)
        mean = np.mean([covered[names == name].mean() for name in np.unique(names)])
        how = "each benchmark left out" if factor else "without it"
        print(f"{how}: 90 % intervals cover {covered.mean():.1%}, mean of benchmarks {mean:.1%}")


def likeliest(error: Floats, log_sd: Floats, doublings: Floats, names: NDArray[np.str_]) -> float:
    """Return the deviation of a doubling that makes the errors likeliest, benchmarks alike."""
    from scipy.optimize import minimize_scalar

    rows = {name: int((names == name).sum()) for name in np.unique(names)}
    weight = np.array([1.0 / rows[name] for name in names])

    def minus_log_likelihood(added: float) -> float:
        variance = log_sd**2 + (added * doublings) ** 2
        return float(np.sum(weight * (np.log(variance) + error**2 / variance)))

    return float(minimize_scalar(minus_log_likelihood, bounds=(0.0, 1.0), method="bounded").x)


if __name__ == "__main__":
    main()
