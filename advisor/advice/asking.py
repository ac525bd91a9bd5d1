"""The estimate of a changed job on the same machines: those that would be rented, or this one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from advisor.advice.facts import Facts
from advisor.catalogue import Pricing
from advisor.collectors.recording import Recording
from advisor.domain import Candidate
from advisor.errors import AdvisorError
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict import Predictor
from advisor.predict.at_hand import at_hand
from advisor.question import Constraints


def facts_here(
    predictor: Predictor, job: Job, recording: Recording | None = None, *,
    constraints: Constraints | None = None,
) -> Facts | None:  # fmt: skip
    """Return what advice on this machine is given from; None where the job cannot run here.

    Parameters
    ----------
    predictor : Predictor
    job : Job
    recording : Recording, optional
        What was seen of it.
    constraints : Constraints, optional
        What an hour of this machine costs, and the coverage of intervals.
    """
    limits = constraints or Constraints()
    look = partial(
        at_hand, predictor, price_usd_per_h=limits.here_usd_per_h, coverage=limits.coverage
    )
    now = look(job)
    if now is None:
        return None
    limits_now = job.limits

    def ask(
        job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None,
    ) -> Candidate | None:  # fmt: skip
        if pricing is not None:
            return None  # nobody sells this machine
        is_changed = job.limits != limits_now or devices is not None
        return look(job, space=space, count=devices or 1, is_changed=is_changed)

    return Facts(
        job=job, recording=recording, now=now, ask=ask, constraints=limits,
        modelled=look(job, is_changed=True),
    )  # fmt: skip


def facts_on(
    predictor: Predictor, job: Job, chosen: Candidate, recording: Recording | None = None, *,
    constraints: Constraints | None = None,
) -> Facts:  # fmt: skip
    """Return what advice on rented machines is given from.

    Parameters
    ----------
    predictor : Predictor
    job : Job
    chosen : Candidate
        The job on machines of one type.
    recording : Recording, optional
    constraints : Constraints, optional
        Those that ``chosen`` was found under.

    Raises
    ------
    ValueError
        If the machines are of several types.
    """
    if len(chosen.configuration.parts) != 1:
        raise ValueError("changed jobs are asked about machines of one type")
    limits = constraints or Constraints()
    machines = _Machines(predictor, chosen, limits)
    return Facts(
        job=job, recording=recording, now=chosen, ask=machines.ask, constraints=limits
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Machines:
    """The chosen machines in their region."""

    predictor: Predictor
    chosen: Candidate
    constraints: Constraints

    def ask(
        self, job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None,
    ) -> Candidate | None:  # fmt: skip
        """Return the job on them, in the same region; None where it has no answer."""
        if devices is not None:
            return None  # all devices of rented machines are in the layout's search
        ((offer, count),) = self.chosen.configuration.parts
        own: Pricing = "spot" if offer.pricing == "spot" else "on-demand"
        paid = pricing or own
        limits = self.constraints
        layouts = limits.space if space is None else space
        try:
            row = self.predictor.catalogue.instance_type(
                offer.instance_type, provider=offer.provider
            )
            offers, place = self.predictor.cheapest(row, region=offer.region, pricing=paid)
            if place is None:
                return None
            columns = self.predictor.step_columns(
                job, np.array([row.index]), np.array([count]), space=layouts,
                known_network=limits.known_network,
            )  # fmt: skip
            if columns.status[0]:
                return None
            return self.predictor.rented(
                job, columns, offers, place, pricing=paid, coverage=limits.coverage,
                space=layouts, known_network=limits.known_network,
            )  # fmt: skip
        except (AdvisorError, PlanningError):
            return None
