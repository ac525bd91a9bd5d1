"""Whole training runs beside their steps: stalls, evaluation, stops, software of its year.

Published hours of whole runs exceed the steps, checkpoints and failures that the models count, the
more so the larger the run: somebody watches, evaluates, restarts by hand, waits for a file system.
The law says that every e-fold of device-hours beyond one machine for one day multiplies the hours
by an independent factor of the same mean and spread, like a walk with drift, and that every year
by which the software is older than that of the measured step times multiplies them once more::

    x = ln(1 + G / G0)
    ln F = growth x + per_year y,        sd(ln F) = s x^(1/2)

The spread s of a job that was only described holds what its software makes of the machines too;
that of a job whose step was measured is what whole runs add to a known step.

====================  =========  ================================================================
here                  above      meaning, unit
====================  =========  ================================================================
``device_h``          G          device-hours of the run's steps. [h]
``MACHINE_DAY_H``     G0         eight devices for a day. [h]
``efolds``            x          size of the run.
``software_years``    y          how much older its software is.
====================  =========  ================================================================

A run much smaller than a machine-day is left as it is: F tends to 1 and its spread to 0. The
constants are fitted on published runs (``trained_models/campaign``); no paper states the law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Column = NDArray[np.float64]

# A run within a day on one machine of eight: somebody starts it and comes back the next morning.
MACHINE_DAY_H: Final = 8 * 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignLaw:
    """The fitted constants.

    Attributes
    ----------
    growth : float
        Mean of ln F an e-fold of device-hours.
    per_year : float
        Mean of ln F a year of older software. [1/year]
    sd_per_root : float
        Standard deviation of ln F a root of an e-fold, of a step that was described.
    sd_per_root_measured : float
        The same of a step that was measured.

    Raises
    ------
    ValueError
        If a constant is negative or not finite: a whole run is never shorter than its steps.
    """

    growth: float
    per_year: float
    sd_per_root: float
    sd_per_root_measured: float = 0.0

    def __post_init__(self) -> None:
        for value in (
            self.growth, self.per_year, self.sd_per_root, self.sd_per_root_measured
        ):  # fmt: skip
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"a constant of the whole-run law must not be negative: {self}")

    def log_factor(self, device_h: ArrayLike, software_years: ArrayLike = 0.0) -> Column:
        """Return ln F of runs of so many device-hours, shape as broadcast.

        Examples
        --------
        >>> law = CampaignLaw(growth=0.03, per_year=0.15, sd_per_root=0.2)
        >>> law.log_factor([1.0, 1e6]).round(3).tolist()
        [0.0, 0.257]
        """
        years = np.maximum(np.asarray(software_years, float), 0.0)
        return np.asarray(self.growth * efolds(device_h) + self.per_year * years)

    def log_sd(self, device_h: ArrayLike, *, is_measured: bool = False) -> Column:
        """Return the standard deviation of ln F, shape of ``device_h``."""
        spread = self.sd_per_root_measured if is_measured else self.sd_per_root
        return np.asarray(spread * np.sqrt(efolds(device_h)))


# The steps and what completion counts, nothing else.
STEPS_ALONE: Final = CampaignLaw(growth=0.0, per_year=0.0, sd_per_root=0.0)


def efolds(device_h: ArrayLike) -> Column:
    """Return the size of runs in e-folds of device-hours beyond a machine-day."""
    return np.log1p(np.asarray(device_h, float) / MACHINE_DAY_H)
