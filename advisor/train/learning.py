"""One training on the user's own runs: what it keeps, what it changes, and the way back."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor import data
from advisor.answer import to_record
from advisor.catalogue import Catalogue
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import COST, OWN_RUNS, OwnModel, Predictor
from advisor.jobs import Job
from advisor.learned import RegionContest, contest_table
from advisor.planners.core import PlanningError
from advisor.quantities import percent_text, seconds_text
from advisor.records import RunRecord
from advisor.train.labelled import is_own
from advisor.train.own_runs import learned_from, own_residuals, recorded_jobs, remove, save

_BEFORE: Final = "before"  # the folder of what answered before, beside the models
_MODELS: Final = (OWN_RUNS, COST, "own")
# Runs from which on the trees that ship are fitted anew with them, which takes minutes: fewer are
# answered by what they leave over (``own_runs``). ``--data`` asks for it whatever there is.
_LEAST_FOR_TREES: Final = 51
_MOST_ROWS: Final = 12  # of the table of what changes
Step = tuple[str, str, float]  # a job, a machine, and the step there [s]


@dataclass(kw_only=True)
class Learning:
    """What the user's runs say before anything is written."""

    jobs: Sequence[Job]  # as recorded, with their noted runs
    model: OwnModel | None
    contests: Sequence[RegionContest]
    has_nothing_for_trees: bool  # too few of the user's runs are records
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)

    @classmethod
    def begun(cls, each: Mapping[Path, Sequence[RunRecord]]) -> Learning | None:
        """Return the contest of the user's runs; None where there are none."""
        records = [record for some in each.values() for record in some]
        own = [one for one, mine in zip(records, is_own(records), strict=True) if mine]
        jobs = recorded_jobs()
        found = own_residuals(jobs, own)
        if found is None:
            return None
        model, contests = learned_from(found)
        return cls(
            jobs=jobs, model=model, contests=contests, before=_steps(jobs),
            has_nothing_for_trees=len(own) < _LEAST_FOR_TREES,
        )  # fmt: skip

    def finish(self, *, is_changed: bool) -> bool:
        """Write what is kept, look at what changed, and return whether anything is kept."""
        if self.model is None:
            remove()
        else:
            if not is_changed:
                keep_previous()
            save(self.model)
        if is_changed or self.model is not None:
            self.after = _steps(self.jobs)
        return self.model is not None

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the JSON form of the contests."""
        return [to_record(one) | {"is_won": one.is_won} for one in self.contests]

    def lines(self) -> list[str]:
        """Return the contest, and what changes for which jobs, as lines."""
        changed = [
            (job, machine, old, new)
            for (job, machine, old), (_, _, new) in zip(self.before, self.after, strict=False)
            if abs(new / old - 1.0) >= 5e-4
        ]
        rows = changed[:_MOST_ROWS]
        width = max((len(f"{job} on {machine}") for job, machine, _, _ in rows), default=0)
        table = [
            f"{f'{job} on {machine}':{width}}{seconds_text(old):>12}{seconds_text(new):>12}"
            f"{percent_text(new / old - 1.0, signed=True):>8}"
            for job, machine, old, new in rows
        ]
        head = ["", f"{'what changes, a step':{width}}{'before':>12}{'after':>12}"]
        more = [f"and {len(changed) - len(rows)} more"] if len(changed) > len(rows) else []
        way_back = ["go back: advisor train --undo"] if self.after else []
        told = [*head, *table, *more] if rows else ["", "no answer of a recorded job changes"]
        return ["", *contest_table(self.contests), *told, *way_back]


def won(contests: Iterable[RegionContest], learning: Learning | None) -> list[str]:
    """Return the regions that a new model is kept for: where own runs alone say less."""
    model = None if learning is None else learning.model
    kept = {one.region for one in (() if model is None else model.lessons.kept)}
    return [one.region for one in contests if one.is_won and one.region not in kept]


def _steps(jobs: Sequence[Job]) -> list[Step]:
    """Return the steps of the recorded jobs on the machines that runs were noted on."""
    noted = [(one.provider, one.instance_type, one.count) for job in jobs for one in job.actuals]
    machines = [place for place in dict.fromkeys(noted) if place[0]]
    predictor = Predictor(Catalogue.load())
    found = [_step(predictor, job, *place) for job in jobs for place in machines]
    return [one for one in found if one is not None]


def _step(predictor: Predictor, job: Job, provider: str, name: str, count: int) -> Step | None:
    try:
        row = predictor.catalogue.instance_type(name, provider=provider).index
        columns = predictor.step_columns(job, np.array([row]), np.array([count]))
    except (AdvisorError, PlanningError):
        return None
    step_s = float(columns.step_s[0])
    several = f"{count} x " if count > 1 else ""
    return (job.name, several + name, step_s) if np.isfinite(step_s) else None


def keep_previous() -> None:
    """Keep what answers now, so that ``undo`` finds it."""
    root = data.writable_models()
    before = root / _BEFORE
    shutil.rmtree(before, ignore_errors=True)
    before.mkdir(parents=True)
    for name in _MODELS:
        if (root / name).is_dir():
            shutil.copytree(root / name, before / name)


def undo() -> list[str]:
    """Put back what answered before the last training; return what to say.

    Raises UsageError if nothing was trained since, or it was put back already.
    """
    root = data.writable_models()
    before = root / _BEFORE
    if not before.is_dir():
        raise UsageError("there is no training to undo", hint="learn first: advisor train")
    for name in _MODELS:
        shutil.rmtree(root / name, ignore_errors=True)
        if (before / name).is_dir():
            shutil.move(before / name, root / name)
    own = [name for name in _MODELS if (root / name).is_dir()]
    shutil.rmtree(before)
    return ["what answered before the last training does again: "
            + ("your earlier model" if own else "what ships")]  # fmt: skip
