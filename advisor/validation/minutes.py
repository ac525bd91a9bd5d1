"""Protocol ``minutes``: whole jobs of about a minute, told from a partial run of at most 5 %.

The runs of ``datasets/minutes`` (``advisor collect --plan minutes``): every program in turn is
left out, of these runs and of the seconds-long ones of ``datasets/runs``; the predictor is of the
kind that ships, fitted to all others. Networks are given the course of the partial run, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from advisor.learned.evaluation import SplitScores, evaluate
from advisor.learned.problem import Problem, problem
from advisor.records import RunRecord
from advisor.validation.own import as_scores, as_shipped, sequence_network, shipped_choice
from advisor.validation.scores import Group, Validation
from advisor.validation.thesis import read_own

SEEN: Final = (
    "features, members and sizes of the estimators: chosen on the runs of seconds, siblings of "
    "these; nothing was chosen on these",
)


def run(data: Path) -> Validation:
    """Score the shipped kind of predictor on whole jobs of about a minute."""
    seconds, minutes = read_own(data), read_own(data, "minutes")
    names = {record.record_id for record in minutes}
    asked = problem([*seconds, *minutes])
    tested = np.array([record.record_id in names for record in asked.records])
    chosen = shipped_choice()
    build = partial(as_shipped, chosen)
    own = evaluate(asked, build, "job", coverage=0.9, tested=tested)
    others = {
        "fitted to jobs of seconds alone": evaluate(
            asked, build, "job", tested=tested, fitted=~tested, has_intervals=False
        ).overall,
        **own.baselines,
        "sequence network": sequence_network(asked, tested),
    }
    return Validation(
        protocol="minutes",
        description="Time of jobs of about a minute, from a partial run of at most 5 %.",
        form="none chosen",
        scores="what recommend asks where it covers a job: physics corrected by guarded "
        f"{chosen}, fitted anew without the left-out program",
        seen=SEEN,
        overall=as_scores(own.overall),
        groups=[Group(group=name, scores=as_scores(m)) for name, m in own.groups],
        baselines={name: as_scores(m) for name, m in others.items()},
        figures=_figures(asked, own),
        notes=[
            "the sequence network is given the partial run's course, which the trees are not",
            "an instance type is a share of one machine; the price is that of the closest sold",
        ],
    )


def _figures(asked: Problem, own: SplitScores) -> dict[str, float]:
    """Return how much of each job the partial run saw, and the error by where it ran."""
    rows = [asked.records[i] for i in own.rows]
    seen = [_share_seen(record) for record in rows]
    figures = {"partial_run_share": float(np.median(seen)), "largest_partial_run_share": max(seen)}
    kinds: dict[str, Callable[[RunRecord], bool]] = {
        "alone": lambda r: r.instances == 1,
        "together": lambda r: r.instances > 1,
    }
    errors = np.abs(own.predicted / asked.truth[own.rows] - 1.0)
    for name, is_one in kinds.items():
        some = errors[np.array([is_one(record) for record in rows])]
        if some.size:
            figures[f"{name}_rows"] = float(some.size)
            figures[f"{name}_mape_fraction"] = float(np.mean(some))
            figures[f"{name}_median_ape_fraction"] = float(np.median(some))
    return figures


def _share_seen(record: RunRecord) -> float:
    """Return how long the partial run was, over the whole job at its pace."""
    assert record.anchor is not None  # every collected run has one
    course = record.anchor.series[0]
    return course.readings * course.interval_s / record.anchor.time_s
