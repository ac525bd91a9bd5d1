"""How the error of a job that is known by its runs alone falls with the number of its runs.

    python -m advisor.lab.experiments.few_runs --data ../shared/data [--cells 200] [--seed 0]

Cells of Lambda's suite (GPU, precision, model) are drawn; of each, so many runs of the same job on
other GPUs are drawn and given (``--runs``), and the step on its GPU is asked of the product, the
GPU left out (``lab.score.cells``). ``advisor validate gpu`` gives all the other runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from advisor import data
from advisor.lab import frame
from advisor.lab.data import LAMBDA
from advisor.lab.score.cells import cell_table, left_out
from advisor.lab.score.devices import one_device_cells
from advisor.quantities import REACH_90

RUNS = (1, 2, 3, 6, 12)


def main() -> None:
    """Print the errors of the drawn cells for each number of runs."""
    given = frame.options(__doc__, {"--data": Path, "--cells": (200, "drawn"), "--seed": 0})
    rows = LAMBDA.read("throughputs", data.measurements(given.data))
    table = cell_table(one_device_cells(rows[rows["accelerators"] == 1]))
    rng = np.random.default_rng(given.seed)
    drawn = np.zeros(len(table.frame), bool)
    drawn[rng.permutation(len(drawn))[: given.cells]] = True
    order = rng.permutation(len(drawn))
    print(f"{'runs':>5}{'cells':>7}{'median %':>10}{'mean %':>8}{'in 90 %':>9}")
    for most in (*RUNS, None):
        mean, log_sd = left_out(table, table.frame["device"].to_numpy(), drawn, most, order)
        error = (mean - table.cells.log_throughput)[drawn]
        known = np.isfinite(error)
        off = np.abs(np.expm1(error[known]))
        inside = np.abs(error) < REACH_90 * log_sd[drawn]
        cells = f"{most or 'all':>5}{known.sum():>7}{100 * np.median(off):>10.1f}"
        print(f"{cells}{100 * off.mean():>8.1f}{100 * inside[known].mean():>8.0f}%", flush=True)


if __name__ == "__main__":
    main()
