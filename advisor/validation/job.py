"""Protocol ``job``: step or epoch times of a program never seen, from one run of it on an anchor.

PROFET: anchor g4dn.xlarge with its operator profile, microseconds by class; targets are the other
instances, each a model of its own. cloud-hw-trainpred: anchor g5 with its nvidia-smi statistics.
Each program is left out in turn, with all its sizes; nothing of it on the target is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.learned.analytic import analytic_time_s
from advisor.learned.base import RunRegressor
from advisor.learned.boosting import Boosting
from advisor.learned.forest import Forest
from advisor.learned.linear import Ridge
from advisor.learned.operator_time import OperatorTime
from advisor.learned.stack import Stack
from advisor.measurements import PROFET, TRAINPRED
from advisor.records import RunRecord
from advisor.records.importers import profet
from advisor.validation.scores import Group, Scores, Validation, score

Floats = NDArray[np.float64]

_CLASSES: Final = (*profet.OPERATOR_CLASSES, "other")
_LEAST_GAP: Final = 0.02  # share of a step between its operators: below it is measurement noise
SEEN: Final = (
    "operator classes, the launch floor and the statistics",
    "the trees' sizes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCells:
    """Jobs on targets: rows aligned.

    Attributes
    ----------
    X : array of shape (n, features)
    statics : array of shape (n, 3)
        What is known without an anchor.
    ratio : array of shape (n,)
        ln(T / T_anchor).
    anchor_s, roofline_s : array of shape (n,)
    programs, targets : array of shape (n,) of str
    """

    X: Floats
    statics: Floats
    ratio: Floats
    anchor_s: Floats
    roofline_s: Floats
    programs: NDArray[Any]
    targets: NDArray[Any]


def run(data: Path) -> Validation:
    """Score both collections, those that are there."""
    parts: list[tuple[str, JobCells, Callable[[], RunRegressor]]] = []
    if PROFET.has("jobs", data):
        parts.append(("PROFET", _profet_cells(PROFET.read_runs("jobs", data)), _profet_model))
    if TRAINPRED.is_in(data):
        runs = TRAINPRED.read_runs("epochs", data)
        parts.append(("trainpred", _trainpred_cells(runs), _trainpred_model))
    if not parts:
        raise ModelError(f"neither collection is in {data}", hint="lay it out like shared/data")
    results = [(name, cells, _left_out(cells, build)) for name, cells, build in parts]
    truths = [np.exp(cells.ratio) * cells.anchor_s for _, cells, _ in results]
    truth = np.concatenate(truths)
    answers = {
        name: np.concatenate([answer[name] for _, _, answer in results]) for name in results[0][2]
    }
    groups: list[Group] = []
    figures: dict[str, float] = {}
    for (name, cells, answer), own in zip(results, truths, strict=True):
        figures |= _figures(name, cells, answer, own)
        for target in np.unique(cells.targets):
            for program in np.unique(cells.programs[cells.targets == target]):
                i = (cells.targets == target) & (cells.programs == program)
                label = f"{name} {program} on {target}"
                groups.append(Group(group=label, scores=_scored(answer, own, i)))
    return Validation(
        protocol="job",
        description="Times of a program never seen, from one run on the anchor.",
        form="chosen with these rows in sight",
        scores="OperatorTime and a stack (advisor.learned), which no verb asks",
        seen=SEEN,
        overall=_scored(answers, truth, np.ones(len(truth), bool)),
        groups=groups,
        baselines={
            name: score(answers[name], truth)
            for name in ("anchor x mean ratio", "roofline", "trees without anchor")
        },
        figures=figures,
        notes=[
            "operator classes, the launch floor and the statistics were chosen on these jobs",
            "instances that were taken out of the shared files are not in the figures",
        ],
    )


def _scored(answer: Mapping[str, Floats], truth: Floats, i: Any) -> Scores:
    return score(answer["model"][i], truth[i], low=answer["low"][i], high=answer["high"][i])


def _figures(
    name: str, cells: JobCells, answer: Mapping[str, Floats], truth: Floats
) -> dict[str, float]:
    every = np.ones(len(truth), bool)
    found = {f"{name}_mape_fraction": _scored(answer, truth, every).mape_fraction}
    for target in np.unique(cells.targets):
        i = cells.targets == target
        found[f"{name}_{target}_mape_fraction"] = _scored(answer, truth, i).mape_fraction
    for baseline in ("anchor x mean ratio", "roofline", "trees without anchor"):
        found[f"{name}_{baseline}_mape_fraction"] = score(answer[baseline], truth).mape_fraction
    return found


def _left_out(cells: JobCells, build: Callable[[], RunRegressor]) -> dict[str, Floats]:
    """Predict every program on every target by fits on the other programs there."""
    count = len(cells.ratio)
    names = ("model", "low", "high", "anchor x mean ratio", "roofline", "trees without anchor")
    answer = {name: np.empty(count) for name in names}
    for target in np.unique(cells.targets):
        here = np.flatnonzero(cells.targets == target)
        for program in np.unique(cells.programs[here]):
            test = here[cells.programs[here] == program]
            train = here[cells.programs[here] != program]
            if train.size < 2:
                raise ModelError(f"{target}: only {program} ran there", hint="add programs")
            model = build().fit(cells.X[train], cells.ratio[train], groups=cells.programs[train])
            bounds = model.predict_interval(cells.X[test])
            anchor = cells.anchor_s[test]
            answer["model"][test] = anchor * np.exp(model.predict(cells.X[test]))
            answer["low"][test], answer["high"][test] = anchor * np.exp(bounds.T)
            mean = np.exp(np.mean(cells.ratio[train]))
            answer["anchor x mean ratio"][test] = anchor * mean
            answer["roofline"][test] = cells.roofline_s[test]
            trees = Boosting(rounds=200, calibration_folds=0)
            logs = cells.ratio[train] + np.log(cells.anchor_s[train])
            answer["trees without anchor"][test] = np.exp(
                trees.fit(cells.statics[train], logs).predict(cells.statics[test])
            )
    return answer


def _profet_model() -> RunRegressor:
    """Return formula and trees on it, and trees alone, stacked."""
    shares, waits = tuple(range(len(_CLASSES))), tuple(range(len(_CLASSES), len(_CLASSES) + 3))
    forest, boosting = Forest(trees=60, least_leaf=2), Boosting(rounds=100, learning_rate=0.1)

    def formula(residual: RunRegressor) -> RunRegressor:
        return OperatorTime(shares=shares, waits=waits, residual=residual)

    return Stack(
        (
            ("formula + forest", formula(forest)),
            ("formula + boosting", formula(boosting)),
            ("forest", forest),
            ("boosting", boosting),
        ),
        folds=5,
    )


def _trainpred_model() -> RunRegressor:
    """Return ridge: seven programs on one hundred rows carry no trees (9 % against 7 %)."""
    return Ridge(calibration_folds=6)


def _profet_cells(runs: Sequence[RunRecord]) -> JobCells:
    """Average the repeats of each job on each target."""
    repeats: dict[tuple[str, str], list[RunRecord]] = {}
    for record in runs:
        key = record.job.job_id, record.instance_key
        repeats.setdefault(key, []).append(record)
    rows, statics = [], []
    for records in repeats.values():
        anchor_s = float(np.mean([_anchor_s(r) for r in records]))
        seconds = {
            name: float(np.mean([_fact(r, name) for r in records]))
            for name in (*(f"operator_{kind}_s" for kind in _CLASSES), "idle_s")
        }
        shares = [seconds[f"operator_{kind}_s"] / anchor_s for kind in _CLASSES]
        gap = max(1.0 - sum(shares), _LEAST_GAP)
        idle = max(seconds["idle_s"] / anchor_s, 1e-6)
        batch, pixels = _job_fact(records[0], "batch"), _job_fact(records[0], "image_pixels")
        rows.append([
            *shares, idle, gap, 1e-3 / anchor_s, np.log(idle), np.log(anchor_s), np.log(batch),
            np.log(pixels), np.log(batch * pixels**2),
        ])  # fmt: skip
        statics.append([batch, pixels, batch * pixels**2])
    return _cells(list(repeats.values()), rows, statics)


def _trainpred_cells(records: Sequence[RunRecord]) -> JobCells:
    """Take every run with an anchor that is not the anchor itself."""
    runs = [
        [r]
        for r in records
        if r.anchor is not None and r.anchor.machines.instance_type != r.instance_key
    ]
    rows, statics = [], []
    for (r,) in runs:
        busy, memory = _fact(r, "gpu_fraction_mean"), _fact(r, "gpu_memory_busy_fraction_mean")
        batch, pixels = _job_fact(r, "batch"), _job_fact(r, "image_pixels")
        per_sample_s = _anchor_s(r) / _job_fact(r, "epoch_samples")
        rows.append([
            memory, max(busy - memory, 0.0), busy, busy**2, busy * memory, memory**2,
            _fact(r, "gpu_power_w_mean"), _fact(r, "gpu_fraction_p50"),
            _fact(r, "gpu_fraction_max"), _fact(r, "gpu_memory_busy_fraction_max"),
            _fact(r, "gpu_power_w_max"), _fact(r, "gpu_memory_bytes_max"),
            np.log(per_sample_s), np.log(per_sample_s * batch), np.log(batch), np.log(pixels),
            np.log(batch * pixels**2),
        ])  # fmt: skip
        statics.append([batch, pixels, _job_fact(r, "epoch_samples")])
    return _cells(runs, rows, statics)


def _cells(
    repeats: Sequence[Sequence[RunRecord]],
    rows: Sequence[Sequence[float]],
    statics: Sequence[Sequence[float]],
) -> JobCells:
    anchor_s = np.array([np.mean([_anchor_s(r) for r in rs]) for rs in repeats])
    time_s = np.array([np.mean([r.time_s or np.nan for r in rs]) for rs in repeats])
    physics = np.array([analytic_time_s(rs[0]) / _anchor_s(rs[0]) for rs in repeats])
    return JobCells(
        X=np.array(rows, float),
        statics=np.array(statics, float),
        ratio=np.log(time_s / anchor_s),
        anchor_s=anchor_s,
        roofline_s=np.where(np.isfinite(physics), physics, 1.0) * anchor_s,
        programs=np.array([rs[0].job.family for rs in repeats]),
        targets=np.array([rs[0].instance_key for rs in repeats]),
    )


def _anchor_s(record: RunRecord) -> float:
    return np.nan if record.anchor is None else record.anchor.time_s


def _fact(record: RunRecord, name: str) -> float:
    value = record.anchor.facts.get(name) if record.anchor else None
    return value if isinstance(value, float) else np.nan


def _job_fact(record: RunRecord, name: str) -> float:
    value = record.job.facts.get(name)
    return value if isinstance(value, float) else np.nan
