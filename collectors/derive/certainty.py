"""The certainty that a recording needs before it ends, and before it is answered from.

An interval says how far an answer may be off; beyond ``MOST_RATIO`` between its ends it is no
answer any more, and the recording has to go on. One rule for all who read recordings.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from advisor.collectors.derive.work import length_hint
from advisor.collectors.errors import counted, duration_text
from advisor.collectors.format import Mean, Recording, Steps, StepTime

# Upper over lower end of a 90 % interval, beyond which it decides nothing: neighbours on a list of
# instance types differ by factors of two in price, twice that and a little more for the noise.
MOST_RATIO: Final = 5.0
# Half of the widest interval that is an answer, as a share of its middle.
_WIDEST_FRACTION: Final = (MOST_RATIO - 1) / (MOST_RATIO + 1)
# A 90 % interval spans so many standard deviations on either side.
REACH: Final = 1.644854
# By how the length of the job was found, the error of its logarithm. Loops that were counted miss
# what ends them early and what is left over at their ends; an argument's name alone is right
# within a factor of two for nine scripts in ten (lab/experiments/zoo.py counts them).
LENGTH_LOG_SD: Final[Mapping[str, float]] = {
    "given": 0.0, "certain": 0.0, "likely": 0.05, "weak": math.log(2.0) / REACH,
}  # fmt: skip


def step_log_sd(step: StepTime) -> float:
    """Return the error of ln(step); infinite where the interval reaches down to nothing."""
    if step.low_s <= 0:
        return math.inf
    return math.log(step.high_s / step.low_s) / (2 * REACH)


def length_log_sd(recording: Recording, is_given: bool) -> float:
    """Return the deviation of ln(steps) of a job whose length was told, or found."""
    work = recording.total_work
    return 0.0 if is_given or work is None else LENGTH_LOG_SD[work.confidence]


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


def shortfall_of(seen: Recording, *, is_length_given: bool = False) -> tuple[str, str] | None:
    """Return what is not known well enough and what to do about it; None where all is.

    ``is_length_given``: the user says how long the job is, whatever was found; False by default.
    """
    step, work = seen.step_time, seen.total_work
    if step is None:
        return None
    error = step_log_sd(step)
    if ratio(error) > MOST_RATIO:
        around = f"{duration_text(step.low_s)} to {duration_text(step.high_s)}"
        seen_of_it = f"{around} over {counted(step.steps, 'step')}"
        if step.steps == 1:  # one step has no range
            seen_of_it = f"one step of {duration_text(step.raw_s)} was seen"
        what = f"the step time of run {seen.run_id} is too noisy: {seen_of_it}"
        return what, _go_on(step)
    length = 0.0 if is_length_given or work is None else LENGTH_LOG_SD[work.confidence]
    if ratio(error, length) > MOST_RATIO:
        source = "" if work is None else f" ({work.source})"
        what = f"the length of the job of run {seen.run_id} is too uncertain{source}"
        return what, f"give it with {length_hint(seen)}; or {_go_on(step)}"
    return None


def _go_on(step: StepTime) -> str:
    if step.steps < _LEAST_STEPS:
        limit_s = max(60.0, math.ceil(2 * _LEAST_STEPS * step.raw_s / 60.0) * 60.0)
        return f"profile for longer: advisor profile --for {limit_s / 60:.0f}m SCRIPT"
    return "close other programs and profile again: advisor profile --precise --for 10m SCRIPT"


# Why a recording ended by this rule: the one verdict, wherever it is asked for again.
SETTLED = "the step time has settled"


_LEAST_STEPS: Final = 30
_LEAST_S: Final = 10.0
_HALF_WIDTH: Final = 0.05  # of the mean; 0.02 with ``--precise``
_AGREEMENT: Final = 0.05  # between the means of the last two fifths of the time
_SHORT_EPOCH_S: Final = 30.0  # an epoch expected to be shorter than this is waited for


def waited_for(
    steps: Steps, now: Mean | None, *, epoch_steps: float | None, epochs_begun: int,
    half_width_fraction: float | None = None,
) -> str:  # fmt: skip
    """Return what a recording waits for, whose mean step is ``now``; empty once it has settled.

    A narrow interval alone is not enough: few steps pass by luck, and a busy machine drifts (means
    of the first 30 steps were off by up to 16 %, measured on 102 runs). So a recording has settled
    when all of these hold: enough steps and seconds after warm-up, an epoch boundary seen where
    epochs are short, the batch-means interval narrow, and the last two stretches in agreement.
    """
    fraction = half_width_fraction or _HALF_WIDTH
    if now is None:
        return "the first steps"
    if now.steps < _LEAST_STEPS:
        return f"{_LEAST_STEPS} steps"
    warmup_end_ns = steps.end_ns[now.warmup_steps]
    if (steps.last_ns - warmup_end_ns) / 1e9 < _LEAST_S:
        return f"{_LEAST_S:.0f} s after warm-up"
    epoch_s = None if epoch_steps is None else epoch_steps * now.raw_s
    if epoch_s is not None and epoch_s < _SHORT_EPOCH_S and epochs_begun < 2:
        return "the end of an epoch"
    if now.half_width_s > fraction * now.corrected_s:
        return f"±{100 * fraction:.0f} %"
    if not _agree(steps, now.warmup_steps):
        return "two stretches in agreement"
    # What settles must be an answer, too: no neighbours' noise without a bound.
    if math.hypot(now.half_width_s, now.time.half_width_s) > _WIDEST_FRACTION * now.corrected_s:
        return "fewer other processes"
    return ""


def _agree(steps: Steps, warmup: int) -> bool:
    """Compare the means of the last two fifths of the time after warm-up."""
    begin_ns, end_ns = steps.end_ns[warmup], steps.end_ns[-1]
    fifth = (end_ns - begin_ns) // 5
    first = bisect_left(steps.end_ns, end_ns - 2 * fifth)
    second = bisect_left(steps.end_ns, end_ns - fifth)
    if not first < second < steps.count:
        return False
    earlier, later = steps.corrected(first, second), steps.corrected(second, steps.count)
    return abs(earlier - later) <= _AGREEMENT * min(earlier, later)
