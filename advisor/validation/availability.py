"""Protocol ``availability``: nodes for jobs on a shared cluster, on days that were not seen.

The earlier half of Helios' May is known. In the later half jobs arrive, each goes to the nodes
that ``advisor simulate availability`` would have named, and takes what was really free. Scored is
how long the product said the job would take; what each way of choosing brought stands among the
figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from advisor.lab.data import HELIOS
from advisor.planners.availability.forecast import Shares, learn
from advisor.planners.availability.sas import completion_slots, placement
from advisor.planners.availability.ways import BEST, CHOSEN, RANDOM, WAYS, arrivals, judge
from advisor.records.node_shares import helios_shares
from advisor.validation.scores import THE_PRODUCT, Group, Validation, score

DAY: Final = 48  # half hours
WORK_H: Final = (3.0, 12.0)
WORKERS: Final = (2, 4)
SEEN: Final = ("the ways of choosing that are there to choose from", "the form of the forecast")


def run(data: Path) -> Validation:
    """Score the product's choices on the later half of the month under ``data``.

    Raises
    ------
    AbsentDataError
        If the table is not there.
    """
    shares = helios_shares(HELIOS.read("shares", data)).shares
    groups: list[Group] = []
    figures: dict[str, float] = {}
    every: dict[str, list[float]] = {"said": [], "took": [], "past": []}
    for workers, work_h in ((a, b) for a in WORKERS for b in WORK_H):
        name = f"{workers} workers, {work_h:g} h"
        one = _jobs(shares, workers, 2.0 * work_h)
        groups.append(
            Group(
                group=name,
                scores=score(one["said"], one["took"]),
                baselines={"as the jobs before": score(one["past"], one["took"])},
            )
        )
        for key, values in one.items():
            every[key] += values
        figures |= _figures(shares, workers, 2.0 * work_h, name)
    return Validation(
        protocol="availability",
        description="hours of jobs on nodes of a shared cluster, later half of the month",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(every["said"], every["took"]),
        groups=groups,
        baselines={"as the jobs before": score(every["past"], every["took"])},
        figures=figures,
        notes=(
            f"figures: mean hours by way of choosing nodes; the product's is '{CHOSEN}'",
            "'as the jobs before': the median of what its jobs took in the second week",
            "no interval: a month of one cluster has too few days to calibrate one",
        ),
    )


def _jobs(shares: Shares, workers: int, work: float) -> Mapping[str, list[float]]:
    """Return what was said of jobs in the later half, what they took, and a constant answer."""
    half, quarter = (len(shares) // k // DAY * DAY for k in (2, 4))
    before = _played(shares[:quarter], shares[quarter:half], workers, work)
    later = _played(shares[:half], shares[half:], workers, work)
    constant = float(np.median([took for _, took in before]))
    return {
        "said": [said for said, _ in later],
        "took": [took for _, took in later],
        "past": [constant] * len(later),
    }


def _played(known: Shares, later: Shares, workers: int, work: float) -> list[tuple[float, float]]:
    """Return what was said of every arrival, and what it took [slots]."""
    history, choose = learn(known, day_slots=DAY), WAYS[CHOSEN]
    return [
        (
            placement(one.possible, nodes, work).slots,
            float(completion_slots(path[None], nodes, work)[0]),
        )
        for one, path in arrivals(history, later, workers=workers, work=work)
        for nodes in (choose(one),)
    ]


def _figures(shares: Shares, workers: int, work: float, name: str) -> dict[str, float]:
    """Return mean hours by way of choosing."""
    half = len(shares) // 2 // DAY * DAY
    took = judge(learn(shares[:half], day_slots=DAY), shares[half:], workers=workers, work=work)
    mean = {way: float(np.mean(slots)) / 2 for way, slots in took.items()}
    figures = {f"{name}, {way}: mean h": hours for way, hours in mean.items()}
    gap = (mean[RANDOM] - mean[CHOSEN]) / (mean[RANDOM] - mean[BEST])
    return figures | {f"{name}: share of the way from any nodes to the best": gap}
