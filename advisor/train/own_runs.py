"""The user's own runs beside what is answered without any: what ``advisor train`` learns from.

Of every noted run of a recorded job the step is set beside the answer that the job gets where no
run was noted and nothing of the user's was learned, so that what was noted as it was predicted
leaves nothing over. Records of other origin count where they say what physics answered
(``analytic_time_s``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from advisor import data
from advisor.answer import to_record
from advisor.catalogue import Catalogue
from advisor.collectors import atomic
from advisor.collectors.derive import list_runs
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import (
    OWN_SCHEMA,
    Learned,
    OwnModel,
    Predictor,
    own_model,
    place_of,
    places_of_rows,
)
from advisor.jobs import Actual, Job, load_job
from advisor.learned import (
    Lessons,
    Places,
    RegionContest,
    Residuals,
    RunColumns,
    judged,
    places_of_runs,
)
from advisor.machines import model_day
from advisor.planners.core import PlanningError
from advisor.records import SOURCE, RunRecord

_LOG_SD: Final = 0.2  # of physics that a record states, as usual intervals say
MOST_RUNS: Final = 500  # the latest are heard: what was measured years ago was on other software
Row = tuple[Places, float, float]  # where; ln(measured / answered), and its deviation


def recorded_jobs(runs: Path | None = None) -> list[Job]:
    """Return the recorded jobs with their noted runs; those that cannot be read are left out."""
    found = []
    for folder in list_runs(runs):
        try:
            found.append(load_job(folder))
        except (AdvisorError, PlanningError):
            continue
    return found


def own_residuals(jobs: Iterable[Job], records: Iterable[RunRecord] = ()) -> Residuals | None:
    """Return the noted runs beside the answers; None where there are none."""
    found = [*_of_records(records), *_of_notes(jobs)][-MOST_RUNS:]
    if not found:
        return None
    places, residuals, log_sds = zip(*found, strict=True)
    return Residuals(
        places=_joined(places), residual=np.array(residuals), log_sd=np.array(log_sds)
    )


def learned_from(residuals: Residuals) -> tuple[OwnModel | None, tuple[RegionContest, ...]]:
    """Return what own runs say, and the contest of every region; None where they say nothing."""
    found = judged(residuals)
    lessons = Lessons.of(residuals, found)
    if not lessons.is_any:
        return None, found
    return OwnModel(
        learned_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device_model=model_day(),
        lessons=lessons,
    ), found


def save(model: OwnModel) -> Path:
    """Write what was learned where answers look."""
    file = data.own_runs_file(data.writable_models())
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema_version": OWN_SCHEMA, **to_record(model)}
    atomic.write_bytes(file, (json.dumps(record) + "\n").encode())
    return file


def learned_at() -> str:
    """Return when own runs were last learned from, ISO 8601; empty where they never were."""
    found = own_model()
    return "" if found is None else found.learned_at


def remove() -> None:
    """Forget what was learned: the runs no longer say it."""
    data.own_runs_file(data.writable_models()).unlink(missing_ok=True)


def _joined(places: Sequence[Places]) -> Places:
    names = Places.__slots__
    return Places(**{n: np.concatenate([getattr(one, n) for one in places]) for n in names})


def _of_notes(jobs: Iterable[Job]) -> Iterator[Row]:
    """Yield the noted runs of jobs; those that cannot be answered are left out."""
    shipped = data.root("trained_models") / "runs"
    predictor = Predictor(Catalogue.load(), learned=Learned.open(shipped))
    predictor.own_model = None
    found = (_noted(predictor, job, actual) for job in jobs for actual in job.actuals)
    yield from (row for row in found if row is not None)


def _noted(predictor: Predictor, job: Job, actual: Actual) -> Row | None:
    bare = replace(job, actuals=(), global_batch=actual.batch or job.global_batch)
    if bare.work is None:
        return None
    try:
        there, kind, count = place_of(
            actual, predictor.catalogue, lambda: predictor.fleet_of(bare)
        )
        fleet = None if actual.provider else there
        columns = predictor.step_columns(bare, kind, count, fleet=fleet)
    except (AdvisorError, PlanningError, UsageError):
        return None
    if columns.status[0] or there.device[kind[0]] < 0:
        return None
    places = places_of_rows(bare, bare.work, there, kind, count)
    off = math.log(actual.step_s / float(columns.step_s[0]))
    return places, off, float(columns.log_sd[0])


def _of_records(records: Iterable[RunRecord]) -> Iterator[Row]:
    for one in records:
        physics_s = one.facts.get("analytic_time_s")
        if one.status != "ok" or one.source == SOURCE or not one.time_s:
            continue
        if isinstance(physics_s, float):
            off = math.log(one.time_s / physics_s)
            yield places_of_runs(RunColumns.of([one]), np.array([one.job.family])), off, _LOG_SD
