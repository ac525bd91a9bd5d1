"""Limit of the input pipeline: a job runs no faster than its samples arrive.

    throughput <= vcpus x (v / v0) / c,   workers / (c + d)

| here                        | paper | meaning, unit                                     |
|-----------------------------|-------|---------------------------------------------------|
| ``cpu_s_per_sample``        | c     | one core of the recorded host per sample [s]      |
| ``idle_s_per_sample``       | d     | a loader process, for disks and networks [s]      |
| ``host_core_speed``         | v0    | CoreMark of one virtual CPU of that host [1/s]    |
| ``core_speed``              | v     | the same of the target [1/s]                      |

Source: the law of utilisation (Denning and Buzen, Computing Surveys 10(3), 1978, section 3) for
the loader's cores at utilisation one, and for its processes where they wait.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A loop that waits for a smaller share of its steps has loaders that keep up.
_WAITING: Final = 0.05
# Cores busier than this make loader processes wait for one another, and not for a disk.
_FULL: Final = 0.9


def vcpus_needed(
    samples_per_s: ArrayLike,
    cpu_s_per_sample: float,
    host_core_speed: float | None,
    core_speed: ArrayLike,
) -> NDArray[np.float64]:
    """Return the virtual CPUs that would feed ``samples_per_s``: what cures an input-bound job."""
    needed = np.asarray(samples_per_s, float) * cpu_s_per_sample
    return np.asarray(np.ceil(needed / relative_speed(host_core_speed, core_speed) - 1e-9))


def relative_speed(host_core_speed: float | None, core_speed: ArrayLike) -> NDArray[np.float64]:
    """Return v / v0, one where either is unknown."""
    speed = np.asarray(core_speed, float)
    if host_core_speed is None:
        return np.ones_like(speed)
    return np.asarray(np.where(np.isfinite(speed), speed / host_core_speed, 1.0))


def idle_s_per_sample(
    *, step_s: float, wait_s: float, cpu_s: float | None, samples: float, workers: int,
    busy_cores: float, cores: float,
) -> float:  # fmt: skip
    """Return how long a loader process stands still for a sample: no core makes that shorter.

    Parameters
    ----------
    step_s, wait_s : float
        A step of one training process, and its part that waited for data. [s]
    cpu_s : float or None
        Core seconds to make a sample. [s]
    workers : int
        Loader processes of the training process; 0 loads inside the loop.
    busy_cores : float
        Mean number of cores that the whole job kept busy. [cores]

    Returns
    -------
    float
        0 where the loaders keep up, and where full cores may be what they wait for. [s]

    Examples
    --------
    Eight samples a step of 50 ms, 40 ms of it in the loader, which computes for 8 ms:

    >>> idle_s_per_sample(step_s=0.05, wait_s=0.04, cpu_s=1e-3, samples=8, workers=0,
    ...                   busy_cores=0.4, cores=2)
    0.004
    """
    if wait_s <= _WAITING * step_s or (workers > 0 and busy_cores > _FULL * cores):
        return 0.0
    occupied_s = wait_s if workers == 0 else step_s * workers
    return max(occupied_s / samples - (cpu_s or 0.0), 0.0)
