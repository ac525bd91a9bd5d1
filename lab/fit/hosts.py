"""What a call that Python makes takes on a host: fitted to published steps of recorded scripts.

Of a pass that starts its calls in a while and computes in another, the longer one counts
(``planners.step.device``). The fit knows the calls of every script and what its operators take on
the device, and finds the call of the median host, a factor of each host, and one of each host's
card in either precision. torchvision's files alone: each is a machine with many networks.

Those scripts ran under PyTorch 1, whose ``zero_grad`` calls a kernel for every parameter, which
today's does not: a share of a call for each is fitted besides, and so is what a step takes that
has its batch from a loader. Without the former a call was told 86 us and the engine's a sixth of
it, with it 65 us and a third: what seemed the version's is its ``zero_grad``.

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

from advisor.lab.data.recorded import recorded_job
from advisor.lab.fit.described_columns import MeasuredStep, copied_s
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters, unmeasured

Floats = NDArray[np.float64]
SUITE: Final = "recorded, torchvision"
# Medians and deviations of logarithms: a call [s], the engine's share of it, what zeroing a
# parameter's gradient takes of it, and a loop's own [calls].
_PRIORS: Final = ((60e-6, 0.7), (0.3, 0.5), (0.3, 0.5), (30.0, 1.5))
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
        call_s, engine, zeroed, loop = np.exp(p[:4])
        call = call_s * np.exp(p[4 : 4 + count])[at]
        busy = np.exp(p[4 + count :]).reshape(-1, 2)[at, half]
        forward = np.maximum(call * parts[0], busy * parts[2])
        backward = np.maximum(call * engine * parts[1], busy * parts[3])
        beside = call * (zeroed * parts[4] + loop) + parts[5]
        off = (np.log(forward + backward + beside) - truth) / _NOISE
        robust = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        priors = [(p[:4] - center) / sd, p[4 : 4 + count] / _HOST_SD, p[4 + count :] / _CARD_SD]
        return np.concatenate([robust, *priors])

    found = least_squares(errors, np.r_[center, np.zeros(3 * count)]).x
    call_s, engine, _, loop = np.exp(found[:4]).tolist()
    return HostFit(
        call_s=call_s, engine_share=engine, loop_s=loop * call_s,
        hosts=np.asarray(found[4 : 4 + count], float),
    )  # fmt: skip


def left_out_log_sd(fit: HostFit) -> float:
    """Return the deviation of ln(call) of a host that is none of the fitted ones."""
    count = fit.hosts.size
    spread = float(np.std(fit.hosts, ddof=1)) if count > 1 else _HOST_SD
    return spread * math.sqrt(1 + 1 / count)


def _parts(step: MeasuredStep, parameters: DeviceParameters) -> tuple[float, ...]:
    """Return calls forward and backward, what both take where no host is waited for [s].

    Then the tensors whose gradients are zeroed, and the copy of the batch [s].
    """
    work = replace(step.work, call_s=1e-9, input_bytes_per_sample=0.0)
    at = [float(work.micro_batch)]
    found = step_time(work, [unmeasured(step.device)], at, parameters)
    calls = [
        float(work.operators.kernels[work.operators.phase == phase].sum())
        for phase in ("forward", "backward")
    ]
    backward = float(found.backward_s[0, 0])
    forward = float(found.micro_batch_s[0, 0]) - backward
    return *calls, forward, backward, _tensors(step), copied_s(step)


def _tensors(step: MeasuredStep) -> float:
    """Return how many parameters the recorded script updates, each in a call of its own."""
    job = recorded_job(f"{step.suite.split(' ')[-1]}-{step.model}-b2")
    if job is None or job.work is None:
        return 0.0
    made = job.work.operators
    return float(made.count[made.is_update & (made.name == "aten::add_")].sum())
