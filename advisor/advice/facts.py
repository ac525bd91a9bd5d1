"""``Facts``: what is read of a job once, and the one estimate that every cure is priced by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from advisor.advice.record import Advice, Evidence, How
from advisor.catalogue import Pricing
from advisor.collectors.recording import Recording
from advisor.domain import QUANTILES, Candidate, Estimate
from advisor.jobs.job import Job
from advisor.planners.layouts.grid import SearchSpace
from advisor.question import Constraints

# A change replaces part of a step by another: A seconds by A'. Both err by the model's sigma,
# apart from one another, and what is untouched cancels: sd(A - A') = sigma sqrt(A^2 + A'^2). Which
# part that is the estimate does not say; where it halves, A = 2 A', it is sqrt(5) sigma (A - A').
_OF_EFFECT: Final = math.sqrt(5.0)


class Ask(Protocol):
    """The whole job on the machines it is judged on; None where it cannot run there."""

    def __call__(
        self, job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None,
    ) -> Candidate | None:  # fmt: skip
        """Estimate ``job``; at another price, in other layouts or on other devices than now."""
        ...


def _none() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that advice is given from.

    Attributes
    ----------
    job : Job
        As it is now.
    recording : Recording or None
        What was seen of it; None for a job that was described and never run.
    now : Candidate
        The job as it is on the machines it is judged on: those that would be rented, or
        this machine.
    ask : Ask
        The same estimate of a changed job on the same machines.
    constraints : Constraints
        What was asked for.
    modelled : callable
        Returns the job as it is, as the model answers where ``now`` is what was recorded there;
        None where ``now`` is the model's.
    smaller : callable
        The job as it is on smaller machines of the same family, where it can run; nothing on a
        machine that is not rented.
    """

    job: Job
    recording: Recording | None
    now: Candidate
    ask: Ask
    constraints: Constraints = field(default_factory=Constraints)
    modelled: Callable[[], Candidate | None] = _none
    smaller: Callable[[], Iterable[Candidate]] = tuple

    @property
    def is_here(self) -> bool:
        """Whether the job is judged on this machine, which costs what the user says."""
        return self.now.configuration.parts[0][0].pricing == "own"

    @property
    def has_accelerators(self) -> bool:
        """Whether the machines it is judged on have accelerators."""
        return all(offer.accelerator for offer, _ in self.now.configuration.parts)

    def priced(
        self, job: Job, *, name: str, change: str, rests_on: str, condition: str,
        how: How, evidence: Evidence = "formula", effect_log_sd: float | None = None,
        pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None, is_model_kept: bool = True,
    ) -> Advice | None:  # fmt: skip
        """Return the advice to make the job this one, priced by the one estimate.

        Parameters
        ----------
        effect_log_sd : float, optional
            One standard deviation of the saved time, as a share of it; from the model's own error
            by default.
        pricing : str, optional
            Of the same machines, where that is the change.
        space : SearchSpace, optional
            What a layout may be, where that is the change.
        devices : int, optional
            Of this machine, where that is the change.

        Returns
        -------
        Advice, or None where the changed job cannot run there.
        """
        then = self.ask(job, pricing=pricing, space=space, devices=devices)
        before = self._before(job, space, devices)
        if then is None or before is None or not math.isfinite(then.training_time_h.value):
            return None
        sd = self._effect_sd(then) if effect_log_sd is None else effect_log_sd
        time_factor = _factor(before.training_time_h, then.training_time_h)
        cost_factor = _factor(before.cost_usd, then.cost_usd)
        return Advice(
            name=name, change=change, evidence=evidence, rests_on=rests_on,
            condition=condition, how=how, is_model_kept=is_model_kept, time_factor=time_factor,
            cost_factor=cost_factor, job=job, then=then,
            time_saved_h=saved(self.now.training_time_h, time_factor, sd),
            cost_saved_usd=saved(self.now.cost_usd, cost_factor, sd),
        )  # fmt: skip

    def _before(
        self, job: Job, space: SearchSpace | None, devices: int | None
    ) -> Candidate | None:
        """Return what a changed job is held against: a model's answer against the model's."""
        is_recorded = job.is_as_recorded and job.limits == self.job.limits
        if is_recorded and space is None and devices is None:
            return self.now
        return self.modelled() or self.now

    def _effect_sd(self, then: Candidate) -> float:
        return _OF_EFFECT * max(_log_sd(one.step_time_s) for one in (self.now, then))


def source(
    name: str, *cures: Callable[[Facts], Iterable[Advice | None]], needs_work: bool = True
) -> Callable[[Facts], Iterator[Advice]]:
    """Return what a source advises: of its cures those that apply, each with the source's name."""

    def advise(facts: Facts) -> Iterator[Advice]:
        if needs_work and facts.job.work is None:
            return
        for cure in cures:
            yield from (replace(one, source=name) for one in cure(facts) if one is not None)

    return advise


def saved(before: Estimate, factor: float, effect_sd: float) -> Estimate:
    """Return what a change saves of a quantity, in its unit.

    Parameters
    ----------
    before : Estimate
        Without the change.
    factor : float
        Of the quantity with the change; the errors of both are mostly the same one.
    effect_sd : float
        One standard deviation of the error of the saving, as a share of it.

    Examples
    --------
    >>> found = saved(Estimate(value=10, low=9, high=12), 0.6, 0.1)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (4.0, 3.23, 5.04)
    """
    value = before.value * (1.0 - factor)
    if value == 0:
        return Estimate(value=0.0, low=0.0, high=0.0, coverage=before.coverage)
    reach = QUANTILES[before.coverage] * effect_sd
    below = math.hypot(1.0 - before.low / before.value, reach)
    above = math.hypot(before.high / before.value - 1.0, reach)
    ends = sorted((value * (1.0 - below), value * (1.0 + above)))
    return Estimate(value=value, low=ends[0], high=ends[1], coverage=before.coverage)


def _factor(before: Estimate, after: Estimate) -> float:
    return after.value / before.value if before.value > 0 else 1.0


def _log_sd(one: Estimate) -> float:
    return math.log(one.high / one.low) / (2.0 * QUANTILES[one.coverage])
