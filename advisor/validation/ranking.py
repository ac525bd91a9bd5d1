"""Protocol ``ranking``: which configuration is cheapest for a job of a family never seen.

Of each job one run is known: on the configuration that is best on average over the other families
(scout, IBM), or on g5 (cloud-hw-trainpred). What ``advisor runs choose`` then says is tried in its
order until a run completes. Failures are paid for, by every rule, that of the known run too. The
figures "had failures been known" choose among completed runs alone, which nobody can who has not
tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.lab.data import IBM, SCOUT, TRAINPRED
from advisor.learned.choice import (
    anchor_of,
    chosen_ratio,
    penalty_for,
    random_ratio,
    scores,
    walked_ratio,
)
from advisor.learned.job_runs import matrices
from advisor.learned.regret import constant_answer
from advisor.records import RunRecord
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score

Floats = NDArray[np.float64]

# Table, and the instance of the one run that is known where it is not the best on average.
_COLLECTIONS: Final = (
    (SCOUT, "jobs", None), (IBM, "jobs", None), (TRAINPRED, "epochs", "g5.xlarge"),
)  # fmt: skip
_LEAST_CHOICES: Final = 2
OURS: Final = "ours"
CONSTANT: Final = "always the same"
RANDOM: Final = "at random"
SEEN: Final = (
    "the form of the regression, and the gain below which the constant answer stays",
    "candidates of its penalty; which of them is chosen on the other jobs",
    "that the next try after a failure costs more than twice as much: doubling, of 1.5 to 4 times",
)


def run(data: Path) -> Validation:
    """Score the choices on every collection that is there."""
    groups: list[Group] = []
    figures: dict[str, float] = {}
    for collection, table, anchor in _COLLECTIONS:
        if collection.is_in(data):
            records = collection.read_runs(table, data)
            found, parts = _table(collection.name, records, anchor)
            groups += parts
            figures |= found
    if not groups:
        raise ModelError(f"none of the collections is in {data}", hint="see shared/data")
    chosen = _ratios([g.scores for g in groups])
    return Validation(
        protocol="ranking",
        description="Cost of the choice over the best cost; MAPE is regret - 1.",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(chosen, np.ones(len(chosen))),
        groups=groups,
        baselines={
            rule: score(_ratios([g.baselines[rule] for g in groups]), np.ones(len(groups)))
            for rule in (CONSTANT, RANDOM)
        },
        figures=figures,
        notes=[
            f"{CONSTANT}: the configuration that is best on average over the other families",
            f"{RANDOM}: the mean over all orders of trying",
            "failed runs that a rule chooses are paid for; trainpred has none",
            "no interval: a choice has none",
        ],
    )


def _table(
    name: str, records: Sequence[RunRecord], anchor: str | None = None
) -> tuple[dict[str, float], list[Group]]:
    """Choose for every job, its family left out; ``anchor`` is the instance of its one run."""
    runs, spent, jobs, cells = matrices(records)
    figures: dict[str, list[float]] = {}
    groups = []
    penalties: dict[str, float | None] = {}
    for job in range(len(jobs)):
        others = np.flatnonzero(runs.families != runs.families[job])
        family = str(runs.families[job])
        if family not in penalties:
            penalties[family] = penalty_for(runs, others)
        first = anchor_of(runs, job, others) if anchor is None else _place(cells, anchor)
        if np.isfinite(runs.prices[job]).sum() < _LEAST_CHOICES or not runs.has_run[job, first]:
            continue
        known = runs.seen_by(job, np.arange(len(cells)) == first)
        answer = scores(known, job, others, penalties[family])
        usual = constant_answer(runs.ratios[others])
        if anchor is None and not np.isfinite(runs.prices[job, first]):
            answer[first] = -np.inf  # the run that is known has failed: everybody has paid for it
        paid = {
            OURS: walked_ratio(runs, job, answer, spent, has_growth=True),
            CONSTANT: walked_ratio(runs, job, usual, spent),
            RANDOM: random_ratio(runs, job, spent),
        }
        known_failures = {
            OURS: chosen_ratio(runs, job, answer),
            CONSTANT: chosen_ratio(runs, job, usual),
            RANDOM: float(np.nanmean(runs.ratios[job])),
        }
        for rule, ratio in paid.items():
            figures.setdefault(f"{name}, {rule}: cost over best", []).append(ratio)
        for rule, ratio in known_failures.items():
            label = f"{name}, {rule}: cost over best, had failures been known"
            figures.setdefault(label, []).append(ratio)
        groups.append(_group(f"{name} {jobs[job]}", paid))
    return {label: float(np.mean(ratios)) for label, ratios in figures.items()}, groups


def _place(cells: Sequence[str], instance: str) -> int:
    return next(i for i, name in enumerate(cells) if f"/{instance}x" in name)


def _group(name: str, ratios: Mapping[str, float]) -> Group:
    """Return one choice: ours scored, the other rules as its baselines."""
    scored = {rule: score([ratio], [1.0]) for rule, ratio in ratios.items()}
    return Group(group=name, scores=scored.pop(OURS), baselines=scored)


def _ratios(scored: Sequence[Scores]) -> Floats:
    """Return cost over best of each choice; its score is that less 1."""
    return np.array([1.0 + s.mape_fraction for s in scored])
