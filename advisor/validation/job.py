"""Times of trainpred's programs on each instance, from a run on the anchor: for ``ranking``.

Known of a program are its run on g5 and that run's nvidia-smi statistics; each program is left
out in turn, with all its sizes, and nothing of it on the target is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.learned.base import RunRegressor
from advisor.learned.linear import Ridge
from advisor.records import RunRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCells:
    """Jobs on targets: rows aligned.

    Attributes
    ----------
    X : array of shape (n, features)
    ratio : array of shape (n,)
        ln(T / T_anchor).
    anchor_s : array of shape (n,)
    programs, targets : array of shape (n,) of str
    """

    X: Floats
    ratio: Floats
    anchor_s: Floats
    programs: NDArray[Any]
    targets: NDArray[Any]


def _left_out(cells: JobCells, build: Callable[[], RunRegressor]) -> dict[str, Floats]:
    """Predict every program on every target by fits on the other programs there."""
    answer = np.empty(len(cells.ratio))
    for target in np.unique(cells.targets):
        here = np.flatnonzero(cells.targets == target)
        for program in np.unique(cells.programs[here]):
            test = here[cells.programs[here] == program]
            train = here[cells.programs[here] != program]
            if train.size < 2:
                raise ModelError(f"{target}: only {program} ran there", hint="add programs")
            model = build().fit(cells.X[train], cells.ratio[train], groups=cells.programs[train])
            answer[test] = cells.anchor_s[test] * np.exp(model.predict(cells.X[test]))
    return {"model": answer}


def _trainpred_model() -> RunRegressor:
    """Return ridge: seven programs on one hundred rows carry no trees (9 % against 7 %)."""
    return Ridge(calibration_folds=0)


def _trainpred_cells(records: Sequence[RunRecord]) -> JobCells:
    """Take every run with an anchor that is not the anchor itself."""
    runs = [
        r
        for r in records
        if r.anchor is not None and r.anchor.machines.instance_type != r.instance_key
    ]
    rows = []
    for r in runs:
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
    anchor_s = np.array([_anchor_s(r) for r in runs])
    return JobCells(
        X=np.array(rows, float),
        ratio=np.log(np.array([r.time_s or np.nan for r in runs]) / anchor_s),
        anchor_s=anchor_s,
        programs=np.array([r.job.family for r in runs]),
        targets=np.array([r.instance_key for r in runs]),
    )


def _anchor_s(record: RunRecord) -> float:
    return np.nan if record.anchor is None else record.anchor.time_s


def _fact(record: RunRecord, name: str) -> float:
    value = record.anchor.facts.get(name) if record.anchor else None
    return value if isinstance(value, float) else np.nan


def _job_fact(record: RunRecord, name: str) -> float:
    value = record.job.facts.get(name)
    return value if isinstance(value, float) else np.nan
