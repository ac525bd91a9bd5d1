"""The certainty that a recording needs before it is answered from.

An interval says how far an answer may be off; beyond ``MOST_RATIO`` between its ends it is no
answer any more, and the recording has to go on. One rule for all who read recordings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from advisor.collectors.recording import Recording, StepTime
from advisor.collectors.units import duration_text
from advisor.collectors.work import length_hint

# Upper over lower end of a 90 % interval, beyond which it decides nothing: neighbours on a list of
# instance types differ by factors of two in price, twice that and a little more for the noise.
MOST_RATIO: Final = 5.0
# A 90 % interval spans so many standard deviations on either side.
REACH: Final = 1.644854
# By how the length of the job was found, the error of its logarithm. Loops that were counted miss
# what ends them early and what is left over at their ends; an argument's name alone is right
# within a factor of two for nine scripts in ten (benchmarks/zoo.py counts them).
LENGTH_LOG_SD: Final[Mapping[str, float]] = {
    "given": 0.0, "certain": 0.0, "likely": 0.05, "weak": math.log(2.0) / REACH,
}  # fmt: skip
# Steps after warm-up that a recording is asked for, where it had too few.
_ENOUGH_STEPS: Final = 30


def step_log_sd(step: StepTime) -> float:
    """Return the error of ln(step); infinite where the interval reaches down to nothing."""
    if step.low_s <= 0:
        return math.inf
    return math.log(step.high_s / step.low_s) / (2 * REACH)


def with_correction(log_sd: float, half_width_s: float | None, value_s: float | None) -> float:
    """Return the error of ln(time), widened by how far its correction for neighbours may be off.

    Examples
    --------
    >>> with_correction(0.1, None, 2.0)
    0.1
    >>> round(with_correction(0.0, math.e - 1, 1.0), 3)  # up to e times as long
    0.608
    """
    if not half_width_s or not value_s:
        return log_sd
    return math.hypot(log_sd, math.log1p(half_width_s / value_s) / REACH)


def ratio(*log_sds: float) -> float:
    """Return upper over lower end of the 90 % interval of a product of independent factors.

    Examples
    --------
    >>> round(ratio(LENGTH_LOG_SD["weak"]), 6)
    4.0
    """
    return math.exp(min(2 * REACH * math.hypot(*log_sds), 700.0))


def widest_fraction() -> float:
    """Return half of the widest interval that is an answer, as a share of its middle."""
    return (MOST_RATIO - 1) / (MOST_RATIO + 1)


def shortfall(seen: Recording, *, is_length_given: bool = False) -> tuple[str, str] | None:
    """Return what is not known well enough and what to do about it; None where all is.

    Parameters
    ----------
    is_length_given : bool, default False
        The user says how long the job is, whatever was found.
    """
    step, work = seen.step_time, seen.total_work
    if step is None:
        return None
    error = step_log_sd(step)
    if ratio(error) > MOST_RATIO:
        low, high = duration_text(step.low_s), duration_text(step.high_s)
        what = (
            f"the step of run {seen.run_id} is not known well enough: {low} to {high} "
            f"over {step.steps} steps"
        )
        return what, _go_on(step)
    length = 0.0 if is_length_given or work is None else LENGTH_LOG_SD[work.confidence]
    if ratio(error, length) > MOST_RATIO:
        source = "" if work is None else f" ({work.source})"
        what = f"how long the job of run {seen.run_id} is, is not known well enough{source}"
        return what, f"say it: {length_hint(seen)}; or {_go_on(step)}"
    return None


def _go_on(step: StepTime) -> str:
    if step.steps < _ENOUGH_STEPS:
        limit_s = max(60.0, math.ceil(2 * _ENOUGH_STEPS * step.raw_s / 60.0) * 60.0)
        return f"profile on with: advisor profile --for {limit_s / 60:.0f}m SCRIPT"
    return (
        "profile on with: advisor profile --precise --for 10m SCRIPT, with fewer other processes "
        "running"
    )
