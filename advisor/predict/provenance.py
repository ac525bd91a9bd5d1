"""Provenance of the numbers of a candidate: those of its step, and its price."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.domain import Candidate, Fact
from advisor.jobs.job import Job
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict import Predictor
from advisor.predict.facts import StepFacts


def facts_of(
    predictor: Predictor, job: Job, one: Candidate, *, space: SearchSpace | None = None
) -> tuple[Fact, ...]:
    """Return what a rented candidate rests on; of unlike machines the prices alone.

    ``space`` is the one that it was chosen from.
    """
    return (*_of_step(predictor, job, one, space), *_prices(predictor, one))


def _of_step(
    predictor: Predictor, job: Job, one: Candidate, space: SearchSpace | None
) -> Iterator[Fact]:
    if len(one.configuration.parts) > 1:
        return
    offer, count = one.configuration.parts[0]
    row = predictor.catalogue.instance_type(offer.instance_type, provider=offer.provider)
    columns = predictor.step_columns(job, np.array([row.index]), np.array([count]), space=space)
    device = predictor.device_of(row.index, job)
    yield from StepFacts(predictor, job, columns, device, None).all()
    if one.is_learned and predictor.learned is not None:
        yield Fact(
            what="correction of the step", value="by measured runs of similar size",
            source="learned", note=f"model {predictor.learned.folder.name}",
        )  # fmt: skip


def _prices(predictor: Predictor, one: Candidate) -> Iterator[Fact]:
    for offer, _ in one.configuration.parts:
        yield Fact(
            what=f"price of {offer.instance_type}", value=f"{offer.price_usd_per_h:.4g} USD/h",
            source="looked up",
            note=f"{offer.provider} {offer.region}, {offer.pricing}, "
            f"{predictor.catalogue.as_of}",
        )  # fmt: skip
