"""What a user's own runs leave over of the answers, shared out by how alike jobs and machines are.

here          in the text   meaning
residual      r             ln(measured / answered) of a run, answered without any own run
alike         R             correlation of two answers' errors: partial pooling
              k             covariance of the error that is asked for with those of the runs

The errors are jointly normal, K = R s^2 with s = ``_LOG_SD``, and a run repeats to
``jobs.ACTUAL_LOG_SD``.
What is expected of an error is k (K + N)^-1 r (Rasmussen and Williams 2006, eqs. 2.25 and 2.26),
so that runs that took what was answered move nothing, and one run moves others in part.

Runs are pooled within a kind of jobs on processors or on accelerators, alone or several; between
such pools nothing carries over. R is one of two: ``pooled``, by nearness, or ``linear``, in which
errors grow with sizes (ridge regression, in its dual form). ``boosting`` takes trees on the same
columns in their place. Which of them is heard, and where, says ``regions``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.jobs import ACTUAL_LOG_SD
from advisor.learned.features import NAMES, RunColumns
from advisor.learned.quick import Trees
from advisor.learned.registry import estimator
from advisor.learned.splits import group_folds

Floats = NDArray[np.float64]
Strings = NDArray[np.str_]
Flags = NDArray[np.bool_]
CandidateName = Literal["pooled", "linear", "boosting"]

# Of an error's variance: what the jobs of a kind share on a machine, what those of like sizes do,
# what a job has on all machines, and on one; and of the first two on another device of one
# architecture, and on any other.
_OF_MACHINE: Final = 0.35
_OF_SIZE: Final = 0.25
_OF_JOB: Final = 0.25
_OF_JOB_THERE: Final = 0.15
_OF_ARCHITECTURE: Final = 0.7
_OF_DEVICES: Final = 0.4
_LOG_SD: Final = 0.3  # of the answers' errors
_NOISE: Final = (ACTUAL_LOG_SD / _LOG_SD) ** 2
# Of errors that grow with sizes: what all, a machine's and a job's have in common; the rest grows.
_LINEAR: Final = (0.2, 0.2, 0.3)
_MOST_LEFT: Final = 4.0  # of a variance, far from all runs
_LEAST_ROWS: Final = 15  # fewer say nothing to trees
_FOLDS: Final = 4
_TREES: Final[dict[str, Any]] = {
    "rounds": 80, "depth": 4, "learning_rate": 0.08, "calibration_folds": 0, "n_jobs": 1,
}  # fmt: skip
_SIZES: Final = ((1e9, "below 1 Gflop"), (1e12, "1 Gflop to 1 Tflop"), (math.inf, "above 1 Tflop"))
_AMOUNTS: Final = ("batch", "instances", "total_vcpus", "memory_gib")  # of a record, as logarithms
PROCESSORS: Final = "processors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What tells runs apart, rows aligned: jobs, and the machines that they are on."""

    job: Strings
    machine: Strings  # ``PROCESSORS``, or an accelerator's name
    architecture: Strings
    is_several: Flags  # devices that work together
    kind: Strings  # of the jobs (``kind_of``)
    flop: Floats  # of a step, whole; infinite where it is not known
    features: Floats  # (n, 6); of the step, as ``planners.step.job_features`` has it
    # (n, k); logarithms of batch and machines, of processors also of cores and memory; 0 where
    # unknown
    amounts: Floats

    def take(self, rows: NDArray[np.intp] | Flags) -> Places:
        """Return some of the rows."""
        return Places(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @property
    def region(self) -> Strings:
        """Machine, kind of job and size of its step, in words."""
        bounds = [bound for bound, _ in _SIZES]
        sizes = np.array([word for _, word in _SIZES])[np.searchsorted(bounds, self.flop)]
        several = np.where(self.is_several, "several ", "")
        told = zip(several, self.machine, self.kind, sizes, strict=True)
        return np.array([f"{n}{machine}: {kind}, {size}" for n, machine, kind, size in told],
                        dtype=np.str_)  # fmt: skip

    @property
    def pool(self) -> Strings:
        """Between what nothing carries over."""
        told = zip(self.machine == PROCESSORS, self.is_several, self.kind, strict=True)
        return np.array([f"{cpu:d}{several:d}{kind}" for cpu, several, kind in told], np.str_)

    @property
    def cell(self) -> Strings:
        """Job, machine and sizes: runs of one cell are repeats of one another."""
        told = zip(self.job, self.region, self.sizes.round(2).tolist(), strict=True)
        return np.array([f"{job} {region} {sizes}" for job, region, sizes in told], np.str_)

    @property
    def sizes(self) -> Floats:
        """What is a number of a run, mostly in e-folds, shape (n, 7 + k)."""
        flop = np.where(np.isfinite(self.flop), np.log(np.maximum(self.flop, 1.0)), 0.0)
        return np.hstack([flop[:, None], self.features, self.amounts])

    def columns(self, known: Places) -> Floats:
        """Return numbers for trees: sizes, and which of the known jobs and machines it is."""
        pairs = (("job", known.job), ("machine", known.machine), ("kind", known.kind))
        same = [getattr(self, name)[:, None] == np.unique(names) for name, names in pairs]
        return np.hstack([self.sizes, *same]).astype(np.float64)


def kind_of(flop_shares: Mapping[str, float], *, is_transformer: bool = False) -> str:
    """Return the kind of a job by the classes of operators that its step spends its work in.

    >>> kind_of({"convolution": 0.9, "matmul": 0.1}), kind_of({"matmul": 1.0})
    ('convolutions', 'dense layers')
    """
    if is_transformer or flop_shares.get("attention", 0.0) > 0.01:
        return "transformers"
    if flop_shares.get("recurrent", 0.0) > 0.2:
        return "recurrent"
    return "convolutions" if flop_shares.get("convolution", 0.0) > 0.3 else "dense layers"


def places_of_runs(runs: RunColumns, job: Strings) -> Places:
    """Return runs of these jobs as columns; of their steps size and kind are known."""
    columns = dict(zip(NAMES, np.nan_to_num(runs.features, nan=math.inf).T, strict=True))
    kinds = ("convolution", "recurrent", "attention")
    shares = zip(*(columns[f"flop_share_{kind}"].tolist() for kind in kinds), strict=True)
    told = [
        {kind: share for kind, share in zip(kinds, row, strict=True) if math.isfinite(share)}
        for row in shares
    ]
    machine = np.array([name or PROCESSORS for name in runs.accelerator], dtype=np.str_)
    several = [NAMES.index(name) for name in ("instances", "accelerators")]
    known = np.nan_to_num(runs.features[:, several])
    amounts = np.nan_to_num(np.stack([columns[name] for name in _AMOUNTS], 1), posinf=0.0)
    amounts[machine != PROCESSORS, 2:] = 0.0
    return Places(
        job=job,
        machine=machine,
        architecture=machine,
        is_several=(known[:, 0] > 0) | (known[:, 1] > 1),  # the first is a logarithm
        kind=np.array([kind_of(row) for row in told], dtype=np.str_),
        flop=np.exp(columns["flop_per_step"]),
        features=np.zeros((len(machine), 6)),
        amounts=amounts,
    )


def alike(a: Places, b: Places) -> Floats:
    """Return the correlation of errors in two sets of places by nearness, shape (n, m)."""
    machines, jobs, same, pools = _pairs(a, b)
    far = np.square(a.sizes[:, None] - b.sizes[None]).sum(axis=-1)
    near = np.exp(-0.5 * far)
    of_kind = machines * (_OF_MACHINE + _OF_SIZE * near)
    return np.asarray(pools * (of_kind + jobs * near * (_OF_JOB + _OF_JOB_THERE * same)))


def _pairs(a: Places, b: Places) -> tuple[Floats, Flags, Flags, Flags]:
    """Return how alike machines are, and whether jobs, machines and pools are the same."""
    same = a.machine[:, None] == b.machine
    is_kin = a.architecture[:, None] == b.architecture
    machines = np.where(same, 1.0, np.where(is_kin, _OF_ARCHITECTURE, _OF_DEVICES))
    return machines, a.job[:, None] == b.job, same, a.pool[:, None] == b.pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Own runs beside the answers."""

    places: Places
    residual: Floats
    log_sd: Floats  # of ln(step) as it was answered

    def take(self, rows: NDArray[np.intp] | Flags) -> Residuals:
        """Return some of the runs."""
        return Residuals(
            places=self.places.take(rows), residual=self.residual[rows], log_sd=self.log_sd[rows],
        )  # fmt: skip

    def expected(
        self, at: Places, candidate: CandidateName = "pooled", trees: Trees | None = None
    ) -> tuple[Floats, Floats]:
        """Return what is expected of errors elsewhere, and the share of the variance left.

        ``trees``: of ``boosted``, where the candidate is boosting.
        """
        if not self.residual.size:
            return np.zeros(len(at.flop)), np.ones(len(at.flop))
        alike_at = self._alike(candidate)
        cross, whole = alike_at(at, self.places), self._noisy(alike_at)
        inverse = np.linalg.inv(whole)
        told = np.einsum("ij,jk,ik->i", cross, inverse, cross)
        own = np.minimum(self._own(at, candidate), _MOST_LEFT)
        left = np.minimum(np.maximum(own - told, 0.0) + _NOISE, own)
        if trees is not None and candidate == "boosting":
            return trees.answer(at.columns(self.places)), left
        return cross @ inverse @ self.residual, left

    def left_out(self, groups: Strings, candidate: CandidateName) -> Floats:
        """Return what is expected of each run's error by the runs of the other groups, (n,)."""
        inverse = np.linalg.inv(self._noisy(self._alike(candidate)))
        weighted, found = inverse @ self.residual, self.residual.copy()
        for one in np.unique(groups):
            here = np.flatnonzero(groups == one)
            found[here] -= np.linalg.solve(inverse[np.ix_(here, here)], weighted[here])
        if candidate == "boosting":
            for train, test in group_folds(groups, _FOLDS, 0):
                some = self.take(train)
                found[test] = some.boosted().answer(self.places.take(test).columns(some.places))
        return found

    def boosted(self) -> Trees:
        """Return boosted trees fitted to all runs."""
        columns = self.places.columns(self.places)
        return Trees.of(estimator("boosting", **_TREES).fit(columns, self.residual).state())

    def _noisy(self, alike_at: Any) -> Floats:
        whole: Floats = alike_at(self.places, self.places)
        whole[np.diag_indices_from(whole)] += _NOISE
        return whole

    def _alike(self, candidate: CandidateName) -> Any:
        return self._linear if candidate == "linear" else alike

    def _own(self, at: Places, candidate: CandidateName) -> Floats:
        """Return the variance of errors before anything is known, in units of ``_LOG_SD``^2."""
        if candidate != "linear":
            return np.ones(len(at.flop))
        x = self._scaled(at)
        return np.asarray(sum(_LINEAR) + (1.0 - sum(_LINEAR)) * np.square(x).sum(axis=1))

    def _linear(self, a: Places, b: Places) -> Floats:
        """Return the covariance of errors that grow with sizes, in the same units."""
        _, jobs, same, pools = _pairs(a, b)
        of_all, of_machine, of_job = _LINEAR
        grown = (1.0 - sum(_LINEAR)) * (self._scaled(a) @ self._scaled(b).T)
        return np.asarray(pools * (of_all + of_machine * same + of_job * jobs + grown))

    def _scaled(self, places: Places) -> Floats:
        known = self.places.sizes
        spread = known.std(axis=0)
        scaled = (places.sizes - known.mean(axis=0)) / np.maximum(spread, 0.1)
        return np.asarray(scaled / math.sqrt(max(int((spread > 0).sum()), 1)))


def candidates(runs: Residuals) -> tuple[CandidateName, ...]:
    """Return what so many runs may be answered by."""
    few: tuple[CandidateName, ...] = ("pooled", "linear")
    return few if len(runs.residual) < _LEAST_ROWS else (*few, "boosting")
