"""What a call that Python makes takes on a host: fitted to published steps of recorded scripts.

Of a pass that starts its calls in a while and computes in another, the longer one counts
(``planners.step.device``). The fit knows the calls of every script and what its operators take on
the device, and finds the call of the median host, a factor of each host, and one of each host's
card in either precision. torchvision's files alone: each is a machine with many networks.

Those scripts zero their gradients (``lab.data.recorded.zeroing``); without these calls one was
told 86 us and the engine's a sixth of it. What a step takes that has its batch from loading
processes is fitted besides.

``jobs.recorded_work.CALL_S`` is the call, rounded; ``DeviceParameters.host_log_sd`` what hosts
that were left out differ by (``left_out_log_sd``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.fit.described_columns import PHASES, MeasuredStep, copied_s
from advisor.lab.fit.efficiencies import PRIORS
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters, unmeasured

Floats = NDArray[np.float64]
SUITE: Final = "recorded, torchvision"
# Medians and deviations of logarithms: a call [s], the engine's share of it, and what loading
# processes add to a step [calls].
_PRIORS: Final = ((60e-6, 0.7), PRIORS["engine"], (30.0, 1.5))
_HOST_SD: Final = 0.3  # of a host's factor
_CARD_SD: Final = 0.12  # of its card's, in either precision: as the device model errs
_NOISE: Final = 0.1  # of one step, in ln(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFit:
    """What hosts took, fitted to their steps."""

    call_s: float  # that Python makes, on the median host [s]
    engine_share: float  # of it, for a call of the backward pass
    loop_s: float  # of a step that has its batch from a loader [s]
    hosts: Floats  # ln(factor) of each host


def fit_call(steps: Sequence[MeasuredStep], parameters: DeviceParameters) -> HostFit | None:
    """Return what torchvision's hosts took; None where no step is theirs.

    ``parameters``: which the operators' times are from.
    """
    from scipy.optimize import least_squares

    told = [step for step in steps if step.suite == SUITE]
    if not told:
        return None
    hosts, at = np.unique([step.host for step in told], return_inverse=True)
    half = np.array([step.is_half for step in told], int)
    truth = np.log([step.seconds for step in told])
    parts = np.array([_parts(step, parameters) for step in told]).T
    center, sd = np.array(_PRIORS).T
    center, count = np.log(center), hosts.size

    def errors(p: Floats) -> Floats:
        call_s, engine, loop = np.exp(p[:3])
        call = call_s * np.exp(p[3 : 3 + count])[at]
        busy = np.exp(p[3 + count :]).reshape(-1, 2)[at, half]
        of_phase = np.array([1.0, engine, engine])[:, None]
        passes = np.maximum(call * of_phase * parts[:3], busy * parts[3:6]).sum(axis=0)
        off = (np.log(passes + call * loop + parts[6]) - truth) / _NOISE
        robust = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        priors = [(p[:3] - center) / sd, p[3 : 3 + count] / _HOST_SD, p[3 + count :] / _CARD_SD]
        return np.concatenate([robust, *priors])

    found = least_squares(errors, np.r_[center, np.zeros(3 * count)]).x
    call_s, engine, loop = np.exp(found[:3]).tolist()
    return HostFit(
        call_s=call_s, engine_share=engine, loop_s=loop * call_s,
        hosts=np.asarray(found[3 : 3 + count], float),
    )  # fmt: skip


def left_out_log_sd(fit: HostFit) -> float:
    """Return the deviation of ln(call) of a host that is none of the fitted ones."""
    count = fit.hosts.size
    spread = float(np.std(fit.hosts, ddof=1)) if count > 1 else _HOST_SD
    return spread * math.sqrt(1 + 1 / count)


def _parts(step: MeasuredStep, parameters: DeviceParameters) -> tuple[float, ...]:
    """Return the calls of each phase, what each takes where no host is waited for [s].

    Then the copy of the batch [s].
    """
    work = replace(step.work, call_s=1e-9, input_bytes_per_sample=0.0, loaders=0)
    at = [float(work.micro_batch)]
    found = step_time(work, [unmeasured(step.device)], at, parameters)
    made = work.operators
    calls = [float(made.kernels[made.phase == phase].sum()) for phase in PHASES]
    backward = float(found.backward_s[0, 0])
    forward = float(found.micro_batch_s[0, 0]) - backward
    return *calls, forward, backward, float(found.optimizer_s[0]), copied_s(step)
