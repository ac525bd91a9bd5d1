"""The estimate of a changed job on the same machines: those that would be rented, or this one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

import numpy as np

from advisor.advice.facts import Facts
from advisor.answer import Candidate, Offer
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, Pricing, TableRow
from advisor.collectors.format import Recording
from advisor.errors import AdvisorError
from advisor.estimate import Predictor, machine_at_hand
from advisor.jobs import Job
from advisor.planners.core import PlanningError
from advisor.planners.layouts import SearchSpace

_MOST_SMALLER: Final = 8


def facts_here(
    predictor: Predictor, job: Job, recording: Recording | None = None, *,
    constraints: Constraints | None = None,
) -> Facts | None:  # fmt: skip
    """Return what advice on this machine is given from; None where the job cannot run here.

    ``recording``: what was seen of it; ``constraints``: what an hour of this machine costs, the
    coverage of intervals, and the layouts asked for.
    """
    limits = constraints or Constraints()
    look = partial(
        machine_at_hand, predictor, price_usd_per_h=limits.here_usd_per_h,
        coverage=limits.coverage, space=limits.space,
    )  # fmt: skip
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
        asked = space or limits.space
        return look(job, space=asked, count=devices or 1, is_changed=is_changed)

    return Facts(
        job=job, recording=recording, now=now, ask=ask, constraints=limits,
        modelled=cache(partial(look, job, is_changed=True)),
        resource_prices=partial(_prices, predictor.catalogue),
    )  # fmt: skip


def facts_on(
    predictor: Predictor, job: Job, chosen: Candidate, recording: Recording | None = None, *,
    constraints: Constraints | None = None,
) -> Facts:  # fmt: skip
    """Return what advice on rented machines is given from.

    ``chosen``: the job on machines of one type; ``constraints``: those that ``chosen`` was found
    under.

    Raises ValueError if the machines are of several types.
    """
    if len(chosen.configuration.parts) != 1:
        raise ValueError("changed jobs are asked about machines of one type")
    on = partial(_on, predictor, chosen, constraints or Constraints())
    offer, _ = chosen.configuration.parts[0]

    def ask(
        job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
        devices: int | None = None,
    ) -> Candidate | None:  # fmt: skip
        if devices is not None:
            return None  # all devices of rented machines are in the layout's search
        return on(_row(predictor, offer), job, pricing=pricing, space=space)

    def smaller(job: Job) -> Iterator[Candidate]:
        found = (on(one, job) for one in _smaller(predictor.catalogue, _row(predictor, offer)))
        return (one for one in found if one is not None)

    return Facts(
        job=job, recording=recording, now=chosen, ask=ask,
        constraints=constraints or Constraints(), smaller=smaller,
        resource_prices=partial(_prices, predictor.catalogue),
    )  # fmt: skip


def _prices(catalogue: Catalogue) -> dict[str, Any]:
    from advisor.catalogue import resource_prices  # asked seldom

    return resource_prices(catalogue)


def family(name: str) -> str:
    """Return an instance type's name without its size.

    Examples
    --------
    >>> [family(name) for name in ("m5.4xlarge", "n2-standard-8", "Standard_D8s_v5", "cpx31")]
    ['m5', 'n2-standard-#', 'Standard_D#s_v5', 'cpx#']
    """
    stem, dot, _ = name.partition(".")
    if dot and not stem.isdigit():
        return stem
    last = re.sub(r"-\d+$", "-#", name)
    return last if last != name else re.sub(r"\d+", "#", name, count=1)


def _row(predictor: Predictor, offer: Offer) -> TableRow | None:
    """Return the type of what is offered; None where the catalogue has it no more."""
    try:
        return predictor.catalogue.instance_type(offer.instance_type, provider=offer.provider)
    except AdvisorError:
        return None


def _smaller(catalogue: Catalogue, row: TableRow | None) -> list[TableRow]:
    """Return types of the same family with less memory, the largest first."""
    if row is None:
        return []
    types, own = catalogue.types, family(row.name)
    alike = np.flatnonzero(
        (types.provider == row.provider) & (types.accelerator == row.accelerator)
        & (types.accelerator_count == row.accelerator_count)
        & (types.memory_bytes < (row.memory_bytes or 0.0))
    )  # fmt: skip
    named = [types.at(int(at)) for at in alike if family(str(types.name[at])) == own]
    return sorted(named, key=lambda one: -(one.memory_bytes or 0.0))[:_MOST_SMALLER]


def _on(
    predictor: Predictor, chosen: Candidate, limits: Constraints, row: TableRow | None,
    job: Job, *, pricing: Pricing | None = None, space: SearchSpace | None = None,
) -> Candidate | None:  # fmt: skip
    """Return a job on as many machines of a type, in the region of the chosen ones."""
    ((offer, count),) = chosen.configuration.parts
    paid: Pricing = pricing or ("spot" if offer.pricing == "spot" else "on-demand")
    asked: dict[str, Any] = {
        "space": limits.space if space is None else space, "known_network": limits.known_network,
    }  # fmt: skip
    if row is None:
        return None
    try:
        offers, place = predictor.cheapest(row, region=offer.region, pricing=paid)
        if place is None:
            return None
        columns = predictor.step_columns(job, np.array([row.index]), np.array([count]), **asked)
        if columns.status[0]:
            return None
        return predictor.rented(
            job, columns, offers, place, pricing=paid, coverage=limits.coverage, **asked
        )
    except (AdvisorError, PlanningError):
        return None
