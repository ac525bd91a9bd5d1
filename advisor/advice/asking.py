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
from advisor.predict import Predictor
from advisor.predict.at_hand import at_hand
from advisor.question import Constraints


def facts_here(
    predictor: Predictor, job: Job, recording: Recording | None = None, *,
    price_usd_per_h: float = 0.0, coverage: float = 0.9,
) -> Facts | None:  # fmt: skip
    """Return what advice on this machine is given from; None where the job cannot run here.

    Parameters
    ----------
    predictor : Predictor
    job : Job
    recording : Recording, optional
        What was seen of it.
    price_usd_per_h : float
        What an hour of this machine costs. [USD/h]
    coverage : float
    """
    look = partial(at_hand, predictor, price_usd_per_h=price_usd_per_h, coverage=coverage)
    now = look(job)
    if now is None:
        return None

    def ask(job: Job, *, pricing: Pricing | None = None) -> Candidate | None:
        return None if pricing is not None else look(job)

    return Facts(job=job, recording=recording, now=now, ask=ask)


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
    machines = _Machines(predictor, chosen, constraints or Constraints())
    return Facts(job=job, recording=recording, now=chosen, ask=machines.ask)


@dataclass(frozen=True, slots=True)
class _Machines:
    """The chosen machines in their region."""

    predictor: Predictor
    chosen: Candidate
    constraints: Constraints

    def ask(self, job: Job, *, pricing: Pricing | None = None) -> Candidate | None:
        """Return the job on them, in the same region; None where it has no answer."""
        ((offer, count),) = self.chosen.configuration.parts
        own: Pricing = "spot" if offer.pricing == "spot" else "on-demand"
        paid = pricing or own
        limits = self.constraints
        try:
            row = self.predictor.catalogue.instance_type(
                offer.instance_type, provider=offer.provider
            )
            offers, place = self.predictor.cheapest(row, region=offer.region, pricing=paid)
            if place is None:
                return None
            columns = self.predictor.step_columns(
                job, np.array([row.index]), np.array([count]), space=limits.space,
                known_network=limits.known_network,
            )  # fmt: skip
            if columns.status[0]:
                return None
            return self.predictor.rented(
                job, columns, offers, place, pricing=paid, coverage=limits.coverage,
                space=limits.space, known_network=limits.known_network,
            )  # fmt: skip
        except (AdvisorError, PlanningError):
            return None
