"""Jobs in which a part of the step is done otherwise: its operators and its measured point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from advisor.advice.facts import Facts
from advisor.collectors.recording import OperatorCount
from advisor.jobs.job import Job
from advisor.planners.core.nouns import Operator

# A step keeps at least this share of itself, however much is taken out of it.
_LEAST_LEFT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Recorded operators of a step that a cure would take out.

    Attributes
    ----------
    seconds : float
        What they took of the recorded step. [s]
    """

    operators: tuple[OperatorCount, ...]
    seconds: float
    share: float


def cut_of(facts: Facts, is_cut: Callable[[OperatorCount], bool]) -> Cut | None:
    """Return the recorded operators that are meant; None where there are none, or no step."""
    recording = facts.recording
    if recording is None or recording.deep_step is None or recording.step_time is None:
        return None
    traced = recording.deep_step.operators
    found = tuple(one for one in traced if is_cut(one))
    whole = sum(one.time_s for one in traced)
    if not found or whole <= 0:
        return None
    share = sum(one.time_s for one in found) / whole
    return Cut(operators=found, seconds=share * _computing_s(facts.job), share=share)


def without(
    job: Job, cut: Cut, *, instead: tuple[Operator, ...] = (), instead_s: float = 0.0
) -> Job:
    """Return the job with other operators in place of those cut out.

    Parameters
    ----------
    instead : tuple of Operator
        What is computed in their place, in one pass over a micro-batch.
    instead_s : float
        What that takes on the recorded machine. [s]
    """
    assert job.work is not None
    names = {(one.name, one.phase) for one in cut.operators}
    kept = tuple(one for one in job.work.operators if (one.name, one.phase) not in names)
    measured = job.measured
    if measured is not None:
        left = measured.step_s - cut.seconds + instead_s
        least = _LEAST_LEFT * measured.step_s
        measured = replace(measured, step_s=max(left, least))
    work = replace(job.work, operators=(*kept, *instead))
    return replace(job, work=work, measured=measured)


def faster_by(job: Job, seconds: float) -> Job:
    """Return the job with a measured step that is so much shorter [s], its work unchanged."""
    if job.measured is None:
        return job
    least = _LEAST_LEFT * job.measured.step_s
    step_s = max(job.measured.step_s - seconds, least)
    return replace(job, measured=replace(job.measured, step_s=step_s))


def _computing_s(job: Job) -> float:
    """Return the part of the measured step that neither waits for data nor for ranks [s]."""
    seen = job.measured
    return 0.0 if seen is None else max(seen.step_s - job.feed.wait_s - seen.exchange_s, 0.0)
