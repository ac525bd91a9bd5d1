"""The whole job on machines that are given: its time, cost and goodput beside the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.jobs.described import NO_LENGTH
from advisor.planners.core.tables import select
from advisor.predict import TimeColumns
from advisor.predict.completion import on_demand
from advisor.ranking.plan_question import PlanQuestion
from advisor.ways.answer import Choice
from advisor.ways.group_columns import group_columns
from advisor.ways.places import Place


def whole_job(
    question: PlanQuestion, columns: TimeColumns, row: int, price_usd_per_h: float | None,
    machines: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of a ``Choice`` about the whole job; nothing where its length is unknown.

    Parameters
    ----------
    price_usd_per_h : float or None
        Of all machines. [USD/h]
    machines : mapping of str to int
        How many of each group, by its label.
    """
    if question.job.total_source == NO_LENGTH:
        return {}
    done = on_demand(question.job, select(columns, np.array([row])), question.coverage)
    storage, once_usd = (0.0, 0.0) if price_usd_per_h is None else _beside(question, machines)
    hourly = (price_usd_per_h or 0.0) + storage
    time_h, cost = done.estimates(0, hourly, question.coverage, once_usd=once_usd)
    return {
        "training_time_h": time_h,
        "cost_usd": None if price_usd_per_h is None else cost,
        "goodput_fraction": 1.0 / (1.0 + float(done.overhead_fraction[0])),
    }


def _beside(question: PlanQuestion, machines: Mapping[str, int]) -> tuple[float, float]:
    """Return what is billed besides, as by ``recommend``: storage [USD/h] and results out [USD].

    Results leave from one place only; what has no price in the catalogue costs nothing here.
    """
    storage, results = 0.0, 0.0
    for group in question.cluster.groups:
        if group.type_index is None or group.label not in machines:
            continue
        row = question.predictor.catalogue.instance_type(group.label)
        offers, place = question.predictor.cheapest(row, region=question.cluster.region)
        if place is None:
            continue
        side = question.predictor.side_costs(question.job, offers)
        each, once = float(side.storage_usd_per_h[place]), float(side.egress_usd[place])
        storage += 0.0 if math.isnan(each) else each * machines[group.label]
        results = max(results, 0.0 if math.isnan(once) else once)
    return storage, results


def with_whole_job(question: PlanQuestion, choice: Choice, places: Sequence[Place]) -> Choice:
    """Return a way over several groups with the whole job's time and cost."""
    columns = group_columns(choice, places)
    price = choice.configuration.price_usd_per_h
    found = whole_job(question, columns, 0, None if math.isnan(price) else price, choice.machines)
    return replace(choice, **found)
