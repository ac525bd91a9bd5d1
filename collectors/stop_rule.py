"""The rule that says when enough of a script has been seen.

A narrow interval alone is not enough: few steps pass by luck, and a busy machine drifts (means
of the first 30 steps were off by up to 16 %, measured on 102 runs). So a recording has settled
when all of these hold: enough steps and seconds after warm-up, an epoch boundary seen where
epochs are short, the batch-means interval narrow, and the last two stretches in agreement.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from advisor.collectors.certainty import widest_fraction
from advisor.collectors.step_time import Mean, Steps, mean

# Why a recording ended by this rule: the one verdict, wherever it is asked for again.
SETTLED = "the step time has settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """The thresholds.

    Attributes
    ----------
    half_width_fraction : float
        Of the mean; 0.05, or 0.02 with ``--precise``.
    agreement_fraction : float
        Between the means of the last two fifths of the time.
    short_epoch_s : float
        An epoch expected to be shorter than this is waited for. [s]
    """

    least_steps: int = 30
    least_s: float = 10.0
    half_width_fraction: float = 0.05
    agreement_fraction: float = 0.05
    short_epoch_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether to stop, what is known, and what is waited for in words."""

    is_settled: bool
    mean: Mean | None
    waiting_for: str


def judge(
    steps: Steps, rule: StopRule, *, epoch_steps: float | None, epochs_begun: int
) -> Verdict:
    """Say whether ``steps`` have settled."""
    now = mean(steps)
    return Verdict(
        mean=now,
        is_settled=(reason := _missing(steps, rule, now, epoch_steps, epochs_begun)) == "",
        waiting_for=reason,
    )


def _missing(
    steps: Steps, rule: StopRule, now: Mean | None, epoch_steps: float | None, epochs_begun: int
) -> str:
    """Return the first condition that does not hold yet; empty if all do."""
    if now is None:
        return "the first steps"
    if now.steps < rule.least_steps:
        return f"{rule.least_steps} steps"
    warmup_end_ns = steps.end_ns[now.warmup_steps]
    if (steps.last_ns - warmup_end_ns) / 1e9 < rule.least_s:
        return f"{rule.least_s:.0f} s after warm-up"
    epoch_s = None if epoch_steps is None else epoch_steps * now.raw_s
    if epoch_s is not None and epoch_s < rule.short_epoch_s and epochs_begun < 2:
        return "the end of an epoch"
    if now.half_width_s > rule.half_width_fraction * now.corrected_s:
        return f"±{100 * rule.half_width_fraction:.0f} %"
    if not _agree(steps, rule, now.warmup_steps):
        return "two stretches in agreement"
    # What settles must be an answer, too: no neighbours' noise without a bound.
    if math.hypot(now.half_width_s, now.time.half_width_s) > widest_fraction() * now.corrected_s:
        return "fewer other processes"
    return ""


def _agree(steps: Steps, rule: StopRule, warmup: int) -> bool:
    """Compare the means of the last two fifths of the time after warm-up."""
    begin_ns, end_ns = steps.end_ns[warmup], steps.end_ns[-1]
    fifth = (end_ns - begin_ns) // 5
    first = bisect_left(steps.end_ns, end_ns - 2 * fifth)
    second = bisect_left(steps.end_ns, end_ns - fifth)
    if not first < second < steps.count:
        return False
    earlier, later = steps.corrected(first, second), steps.corrected(second, steps.count)
    return abs(earlier - later) <= rule.agreement_fraction * min(earlier, later)
