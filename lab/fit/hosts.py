"""What a call that Python makes takes on a host: fitted to published steps of recorded scripts.

Of a pass that starts its calls in a while and computes in another, the longer one counts
(``planners.step.device``). The fit knows the calls of every script and what its operators take on
the device, and finds the call of the median host, a factor of each host, and one of each host's
card in either precision. torchvision's files alone: each is a machine with many networks.

``jobs.recorded_work.call_s`` is this, rounded; how much hosts differ about it
(``DeviceParameters.host_log_sd``) was set by hand after the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.fit.described_columns import MeasuredStep
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters, unmeasured

Floats = NDArray[np.float64]
SUITE: Final = "recorded, torchvision"
_START_S: Final = 50e-6
_PRIOR_SD: Final = 0.3  # of the logarithm of a host's factor, and of its card's
_NOISE: Final = 0.1  # of one step, in ln(seconds)
_NODES: Final = 7  # of the mean over unseen hosts


def fit_call(
    steps: Sequence[MeasuredStep], parameters: DeviceParameters
) -> tuple[float, Floats] | None:
    """Return a call on the median host [s], and the logarithm of each host's factor.

    None where no step is torchvision's. ``parameters``: which the operators' times are from.
    """
    from scipy.optimize import least_squares

    told = [step for step in steps if step.suite == SUITE]
    if not told:
        return None
    hosts, at = np.unique([step.host for step in told], return_inverse=True)
    half = np.array([step.is_half for step in told], int)
    truth = np.log([step.seconds for step in told])
    parts = np.array([_parts(step, parameters) for step in told]).T
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    spread = np.exp(parameters.host_log_sd * nodes)[:, None]
    count, share = hosts.size, parameters.engine_call_fraction

    def over_hosts(starting: Floats, busy: Floats) -> Floats:
        logs = np.log(np.maximum(spread * starting, busy))
        return np.asarray(np.exp(weights @ logs / weights.sum()))

    def errors(p: Floats) -> Floats:
        call = np.exp(p[:count])[at] * math.exp(p[-1])
        busy = np.exp(p[count:-1]).reshape(-1, 2)[at, half]
        forward = over_hosts(call * parts[0], busy * parts[2])
        backward = over_hosts(call * share * parts[1], busy * parts[3])
        return np.asarray(np.r_[np.log(forward + backward) - truth, p[:-1] / _PRIOR_SD])

    start = np.r_[np.zeros(3 * count), math.log(_START_S)]
    found = least_squares(errors, start, loss="soft_l1", f_scale=_NOISE).x
    return math.exp(found[-1]), np.asarray(found[:count], float)


def _parts(step: MeasuredStep, parameters: DeviceParameters) -> tuple[float, ...]:
    """Return calls forward and backward, and what both take where no host is waited for [s]."""
    work = replace(step.work, call_s=1e-9)
    at = [float(work.micro_batch)]
    found = step_time(work, [unmeasured(step.device)], at, parameters)
    calls = [
        float(work.operators.kernels[work.operators.phase == phase].sum())
        for phase in ("forward", "backward")
    ]
    backward = float(found.backward_s[0, 0])
    return *calls, float(found.micro_batch_s[0, 0]) - backward, backward
