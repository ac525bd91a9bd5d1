"""The slowdown of jobs beside others whose kernels take turns on the same device.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``busy_fraction`` u share of a job's step, alone, in which its kernels run. [fraction]
``kernel_s``      L mean time of one of its kernels. [s]
``exposure``      v kernels of a job a second, v = u / L: how often it queues for the device. [1/s]
``pressure``      a kernel time met in the queue, a = u x L: chance to find it times length. [s]
``rate``          r rate beside others over the rate alone. [fraction]
==================  ============================================================================

    1 / r_i = 1 + v_i x sum over j != i of a_j

Each kernel of i that finds one of j running waits for it, so small kernels lose to large ones, and
two equal jobs that each fill the device get half of it. A job of which two numbers are known, from
its recording (u and L) or from pairs that were measured (v and a), has a rate beside any other.

From measured pairs ln(1/r - 1) = ln v_i + ln a_j is linear: ``fit`` solves it by ridge regression.
Sources: Gavel's measured pairs (Narayanan et al., OSDI'20; ``advisor validate colocation``); the
law is ours, and SwitchFlow's two ResNet-50s (226 to 116 images/s each) are its case u = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.checks import check_positive
from advisor.planners.core.errors import PlanningError

# Rates above 1 / (1 + 0.03) cannot be told from no interference at all: what repeats scatter by.
_LEAST_SLOWDOWN: Final = 0.03
# In units of one measured pair: a job seen in one pair only is drawn halfway to the mean job.
_RIDGE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A job in a device's queue.

    Attributes
    ----------
    exposure : float
        [1/s]
    pressure : float
        [s]

    Raises
    ------
    PlanningError
        If one of them is no positive number.
    """

    exposure: float
    pressure: float

    def __post_init__(self) -> None:
        check_positive("job on a shared device", exposure=self.exposure, pressure=self.pressure)

    @property
    def busy_fraction(self) -> float:
        """Share of its step alone in which the device works; above 1 where switching costs."""
        return float(np.sqrt(self.exposure * self.pressure))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """Two jobs measured on one device, as rates beside each other over rates alone.

    Attributes
    ----------
    first, second : str
        Names of the jobs, the device among them where there are several.
    first_rate, second_rate : float
        [fraction]

    Raises
    ------
    PlanningError
        If a rate is no positive number.
    """

    first: str
    second: str
    first_rate: float
    second_rate: float

    def __post_init__(self) -> None:
        check_positive(
            f"pair {self.first}, {self.second}",
            first_rate=self.first_rate,
            second_rate=self.second_rate,
        )


def sharer(busy_fraction: float, kernel_s: float) -> Sharer:
    """Return a job by what its recording shows.

    Parameters
    ----------
    busy_fraction : float
        [fraction]
    kernel_s : float
        Mean length of a kernel. [s]

    Raises
    ------
    PlanningError
        If the device is busy for less than none or more than all of the step.
    """
    check_positive("job on a shared device", busy_fraction=busy_fraction, kernel_s=kernel_s)
    if busy_fraction > 1.0:
        raise PlanningError(
            f"a device busy for {busy_fraction:g} of the time is out of range",
            hint="give a share between 0 and 1",
            exit_code=2,
        )
    return Sharer(exposure=busy_fraction / kernel_s, pressure=busy_fraction * kernel_s)


def shared_rates(jobs: Sequence[Sharer]) -> NDArray[np.float64]:
    """Return each job's rate beside all the others, over its rate alone [fraction].

    Examples
    --------
    Two ResNet-50 that each fill a V100: 226 images/s alone, 116 beside each other (SwitchFlow).

    >>> filling = sharer(1.0, 2e-4)
    >>> (226 * shared_rates([filling, filling])).tolist()
    [113.0, 113.0]
    """
    exposure = np.array([one.exposure for one in jobs])
    pressure = np.array([one.pressure for one in jobs])
    slowdown: NDArray[np.float64] = 1.0 + exposure * (pressure.sum() - pressure)
    return 1.0 / slowdown


def fit(pairs: Sequence[MeasuredPair]) -> Mapping[str, Sharer]:
    """Return the jobs that measured pairs tell of.

    Only products of one job's exposure and another's pressure are seen, so the second is in a
    unit that depends on the jobs; among the jobs of one fit it cancels.

    Raises
    ------
    PlanningError
        If there is no pair.
    """
    if not pairs:
        raise PlanningError(
            "no measured pair of jobs to learn from", hint="measure two jobs together", exit_code=2
        )
    names = sorted({name for one in pairs for name in (one.first, one.second)})
    place = {name: k for k, name in enumerate(names)}
    seen = [(place[p.first], place[p.second], p.first_rate) for p in pairs]
    seen += [
        (place[p.second], place[p.first], p.second_rate) for p in pairs if p.first != p.second
    ]
    victim, other, rate = (np.array(column) for column in zip(*seen, strict=True))
    found = np.log(np.maximum(1.0 / rate - 1.0, _LEAST_SLOWDOWN))
    rows = np.arange(found.size)
    design = np.zeros((found.size, 2 * len(names)))
    design[rows, victim] = 1.0
    design[rows, len(names) + other] = 1.0
    mean = float(found.mean())
    normal = design.T @ design + _RIDGE * np.eye(design.shape[1])
    solved = np.linalg.solve(normal, design.T @ (found - mean)) + mean / 2.0
    exposure, pressure = np.exp(solved[: len(names)]), np.exp(solved[len(names) :])
    return {
        name: Sharer(exposure=float(exposure[k]), pressure=float(pressure[k]))
        for name, k in place.items()
    }
