"""A few rows of the protocols that take minutes: what the quick gate runs of them.

The rows that are asked are asked as in the whole protocol, constants and estimators fitted without
their group; what is left away are the other rows, and what stands beside the answers. No table
shows these figures, and each takes some ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from advisor.lab.fit.described_columns import columns
from advisor.lab.fit.efficiencies import StepModel
from advisor.lab.score import described
from advisor.lab.score.devices import JOB, by_other_jobs
from advisor.lab.score.harness import Answers, Protocol, Questions
from advisor.lab.score.minutes import MINUTES
from advisor.lab.score.runs import (
    OWN,
    THESIS,
    as_shipped,
    best_of_all,
    shipped_choice,
    split_answers,
)
from advisor.learned.evaluation import evaluate

DEVICES: Final = 5  # of so many one is left out
CELLS: Final = 24  # of so many one is asked
LONG_PROGRAMS: Final = 4  # of the jobs of a minute: so many are left out


def _of(whole: Protocol, answer: Callable[[Questions], Answers]) -> Protocol:
    """Return a protocol that gives other answers to the same rows, and nothing beside."""
    return replace(
        whole, name=f"sampled/{whole.name}", answer=answer, baselines={}, figures=None, blind=None,
        rows=lambda data: replace(whole.rows(data), raw=None),
    )  # fmt: skip


def _some_devices(rows: Questions) -> Answers:
    """Answer the steps on a few devices, each left out; widths are as they ship."""
    known = columns(rows.facts.known)
    model = StepModel(known)
    start = model.fit(np.ones(known.log_s.size, bool)).parameters
    names = np.unique(known.device[known.host == ""])[::DEVICES]
    left_out = [known.device == name for name in names]
    folds = {"device": [(out, model.fit(~out, start)) for out in left_out]}
    return described.answers_of(described.left_out_answers(rows, folds, None))


DESCRIBED: Final = _of(described.DESCRIBED, _some_devices)


def _some_cells(rows: Questions) -> Answers:
    scored = np.arange(rows.truth.size) % CELLS == 0
    return by_other_jobs(rows, scored)


JOBS: Final = _of(JOB, _some_cells)


def _programs(rows: Questions, most: int | None = None) -> Answers:
    """Answer the runs of all or a few programs, each left out of the estimator's fit."""
    build, facts = partial(as_shipped, shipped_choice()), rows.facts
    found = evaluate(facts.asked, build, "job", tested=facts.tested, most_folds=most)
    return split_answers(found, rows)


SECONDS: Final = _of(OWN, _programs)
LONGER: Final = _of(MINUTES, partial(_programs, most=LONG_PROGRAMS))
SPLIT: Final = _of(THESIS, lambda rows: split_answers(best_of_all(rows), rows))
