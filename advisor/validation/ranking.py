"""Protocol ``ranking``: which configuration is cheapest for a job of a family never seen.

scout and IBM: one run of the job on the configuration that is best on average over the other
families; cloud-hw-trainpred: the run on g5, and the predictions of protocol ``job``. A chosen run
that failed is paid for, and the next best is tried. The figures "had failures been known" choose
among completed runs alone, which nobody can who has not tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.learned.choice import Runs, chosen_ratio, random_ratio, scores, walked_ratio
from advisor.learned.regret import cell, constant_answer, regret
from advisor.measurements import IBM, SCOUT, TRAINPRED
from advisor.records import RunRecord
from advisor.validation import job as job_protocol
from advisor.validation.scores import Group, Scores, Validation, score

Floats = NDArray[np.float64]

_COLLECTIONS: Final = (SCOUT, IBM)
OURS: Final = "ours"
CONSTANT: Final = "always the same"
RANDOM: Final = "at random"
SEEN: Final = (
    "the form of the regression, and the gain below which the constant answer stays",
    "candidates of its penalty; which of them is chosen on the other jobs",
)


def run(data: Path) -> Validation:
    """Score the choices on every collection that is there."""
    groups: list[Group] = []
    figures: dict[str, float] = {}
    for collection in _COLLECTIONS:
        if collection.is_in(data):
            found, parts = _table(collection.name, collection.read_runs("jobs", data))
            groups += parts
            figures |= found
    if TRAINPRED.is_in(data):
        found, parts = _trainpred(TRAINPRED.read_runs("epochs", data))
        groups += parts
        figures |= found
    if not groups:
        raise ModelError(f"none of the collections is in {data}", hint="see shared/data")
    chosen = _ratios([g.scores for g in groups])
    return Validation(
        protocol="ranking",
        description="Cost of the choice over the best cost; MAPE is regret - 1.",
        form="chosen with these rows in sight",
        scores="the regression of advisor.learned.choice, which no verb asks",
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
            "failed runs that a rule chooses are paid for; trainpred has none, and is one mean",
            "no interval: a choice has none",
        ],
    )


def _table(name: str, records: Sequence[RunRecord]) -> tuple[dict[str, float], list[Group]]:
    runs, spent, jobs = matrices(records)
    figures: dict[str, list[float]] = {}
    groups = []
    for job in range(len(jobs)):
        others = np.flatnonzero(runs.families != runs.families[job])
        answer, usual = scores(runs, job, others), constant_answer(runs.ratios[others])
        paid = {
            OURS: walked_ratio(runs, job, answer, spent),
            CONSTANT: walked_ratio(runs, job, usual, spent),
            RANDOM: random_ratio(runs, job, spent),
        }
        known = {
            OURS: chosen_ratio(runs, job, answer),
            CONSTANT: chosen_ratio(runs, job, usual),
            RANDOM: float(np.nanmean(runs.ratios[job])),
        }
        for rule, ratio in paid.items():
            figures.setdefault(f"{name}, {rule}: cost over best", []).append(ratio)
        for rule, ratio in known.items():
            label = f"{name}, {rule}: cost over best, had failures been known"
            figures.setdefault(label, []).append(ratio)
        groups.append(_group(f"{name} {jobs[job]}", paid))
    return {label: float(np.mean(ratios)) for label, ratios in figures.items()}, groups


def _group(name: str, ratios: Mapping[str, float]) -> Group:
    """Return one choice: ours scored, the other rules as its baselines."""
    scored = {rule: score([ratio], [1.0]) for rule, ratio in ratios.items()}
    return Group(group=name, scores=scored.pop(OURS), baselines=scored)


def _ratios(scored: Sequence[Scores]) -> Floats:
    """Return cost over best of each choice; its score is that less 1."""
    return np.array([1.0 + s.mape_fraction for s in scored])


def matrices(records: Sequence[RunRecord]) -> tuple[Runs, Floats, list[str]]:
    """Return runs by job and configuration, what each cost until it ended, and the jobs.

    Repeats are averaged. A job that never completed is left out: it has no best price.
    """
    jobs = sorted({r.job.job_id for r in records if r.status == "ok"})
    cells = sorted({cell(r) for r in records})
    shape = (len(jobs), len(cells))
    place_job = {name: i for i, name in enumerate(jobs)}
    place_cell = {name: i for i, name in enumerate(cells)}
    sums = {name: np.zeros(shape) for name in ("price", "prices", "spent", "time", "times", "ran")}
    families = np.array([""] * len(jobs), dtype=object)
    for record in records:
        if record.job.job_id not in place_job:
            continue
        at = place_job[record.job.job_id], place_cell[cell(record)]
        families[at[0]] = record.job.family
        sums["ran"][at] += 1
        spent = _spent_usd(record)
        sums["spent"][at] += spent
        if record.time_s is not None:
            sums["time"][at] += record.time_s
            sums["times"][at] += 1
        if record.status == "ok":
            sums["price"][at] += spent
            sums["prices"][at] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        runs = Runs(
            prices=sums["price"] / sums["prices"],
            times=sums["time"] / sums["times"],
            has_run=sums["ran"] > 0,
            families=families,
        )
        return runs, np.nan_to_num(sums["spent"] / sums["ran"]), jobs


def _spent_usd(record: RunRecord) -> float:
    if record.cost_usd is not None:
        return record.cost_usd
    price = record.price_usd_per_h
    return 0.0 if price is None or record.time_s is None else price * record.time_s / 3600.0


def _trainpred(records: list[RunRecord]) -> tuple[dict[str, float], list[Group]]:
    """Choose among the priced instances by the times that protocol ``job`` predicts."""
    cells = job_protocol._trainpred_cells(records)
    predicted = job_protocol._left_out(cells, job_protocol._trainpred_model)["model"]
    asked = [r for r in records if _is_target(r)]
    times = dict(zip((r.record_id for r in asked), predicted, strict=True))
    priced, guesses = [], []
    for record in records:
        price = record.price_usd_per_h
        if price is None or record.time_s is None:
            continue
        priced.append(replace(record, cost_usd=price * record.time_s / 3600.0))
        known = record.time_s if _is_anchor(record) else np.nan
        guesses.append(times.get(record.record_id, known))
    found = regret(priced, guesses)
    if found is None:
        return {}, []
    ratios = {OURS: found.top1, CONSTANT: found.constant, RANDOM: found.random}
    figures = {f"trainpred, {rule}: cost over best": ratio for rule, ratio in ratios.items()}
    figures["trainpred_jobs"] = float(found.jobs)
    return figures, [_group("trainpred", ratios)]


def _is_target(record: RunRecord) -> bool:
    return record.anchor is not None and not _is_anchor(record)


def _is_anchor(record: RunRecord) -> bool:
    anchor: Any = record.anchor
    return anchor is not None and anchor.machines.instance_type == record.instance_key
