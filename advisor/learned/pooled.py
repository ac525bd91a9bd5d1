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
such pools nothing carries over. What is learned is kept for the regions (machine, kind of job,
size) in which it errs less than the answers on whole jobs that were left out (``winning``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.jobs import ACTUAL_LOG_SD
from advisor.learned.features import NAMES, RunColumns

Floats = NDArray[np.float64]
Strings = NDArray[np.str_]
Flags = NDArray[np.bool_]

# Of an error's variance: what jobs of a kind share on one machine; the rest is the job's own.
_SHARED: Final = 0.8
# Of that: what unlike jobs of the kind share, and devices of one architecture, and of several.
_OF_KIND: Final = 0.5
_OF_ARCHITECTURE: Final = 0.7
_OF_DEVICES: Final = 0.4
_LENGTH: Final = 1.0  # over which jobs are alike, of ``planners.step.job_features``
_LOG_SD: Final = 0.2  # of the answers' errors: as usual intervals say
_LEAST_GAIN: Final = 0.001  # of an error; errors are shown in tenths of a per cent
_SIZES: Final = ((1e9, "below 1 Gflop"), (1e12, "1 Gflop to 1 Tflop"), (math.inf, "above 1 Tflop"))
PROCESSORS: Final = "processors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What tells runs apart, rows aligned: jobs, and the machines that they are on."""

    machine: Strings  # ``PROCESSORS``, or an accelerator's name
    architecture: Strings
    is_several: Flags  # devices that work together
    kind: Strings  # of the jobs (``kind_of``)
    flop: Floats  # of a step, whole
    features: Floats  # (n, 6); of the step, as ``planners.step.job_features`` has it

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


def places_of_runs(runs: RunColumns) -> Places:
    """Return runs as columns; nothing is known of their steps beside size and kind."""
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
    return Places(
        machine=machine,
        architecture=machine,
        is_several=(known[:, 0] > 0) | (known[:, 1] > 1),  # the first is a logarithm
        kind=np.array([kind_of(row) for row in told], dtype=np.str_),
        flop=np.exp(columns["flop_per_step"]),
        features=np.zeros((len(machine), 6)),
    )


def alike(a: Places, b: Places) -> Floats:
    """Return the correlation of errors in two sets of places, shape (n, m)."""
    far = np.square(a.features[:, None] - b.features[None]).sum(axis=-1)
    jobs = _OF_KIND + (1 - _OF_KIND) * np.exp(-0.5 * far / _LENGTH**2)
    is_same = a.machine[:, None] == b.machine
    is_kin = a.architecture[:, None] == b.architecture
    machines = np.where(is_same, 1.0, np.where(is_kin, _OF_ARCHITECTURE, _OF_DEVICES))
    return np.asarray(_SHARED * jobs * machines * (a.pool[:, None] == b.pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Own runs beside the answers."""

    places: Places
    job: Strings  # runs of one job have one error in common
    residual: Floats

    def take(self, rows: NDArray[np.intp] | Flags) -> Residuals:
        """Return some of the runs."""
        return Residuals(
            places=self.places.take(rows), job=self.job[rows], residual=self.residual[rows],
        )  # fmt: skip

    def expected(self, at: Places, known: Flags | None = None) -> tuple[Floats, Floats]:
        """Return what is expected of errors elsewhere, and the share of the variance left.

        ``known``: the runs that are heard; all by default.
        """
        rows = np.arange(len(self.residual)) if known is None else np.flatnonzero(known)
        if not rows.size:
            return np.zeros(len(at.flop)), np.ones(len(at.flop))
        inverse, weighted = self._solved(rows)
        cross = alike(at, self.places.take(rows))
        told = np.einsum("ij,jk,ik->i", cross, inverse, cross)
        return cross @ weighted, np.clip(1.0 - told, 0.0, 1.0)

    def _solved(self, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        places, job = self.places.take(rows), self.job[rows]
        of_job = (1 - _SHARED) * (job[:, None] == job) * (places.region[:, None] == places.region)
        whole = alike(places, places) + of_job
        whole[np.diag_indices_from(whole)] += (ACTUAL_LOG_SD / _LOG_SD) ** 2
        inverse = np.linalg.inv(whole)
        return inverse, inverse @ self.residual[rows]

    def left_out(self) -> Floats:
        """Return what is expected of each run's error by the runs of the other jobs, (n,)."""
        found = np.zeros(len(self.residual))
        for job in np.unique(self.job):
            here = self.job == job
            found[here], _ = self.expected(self.places.take(here), ~here)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionContest:
    """Errors of the answers and of what was learned in one region, on whole jobs left out."""

    region: str
    runs: int
    jobs: int
    # before, after: mean abs(ln(predicted / measured)) over jobs, each counting the same
    before: float
    after: float
    gain_error: float  # standard error of their difference over jobs; inf where there is one job

    @property
    def is_won(self) -> bool:
        """Whether what was learned errs less beyond chance: by more than one standard error."""
        gain = self.before - self.after
        return gain >= _LEAST_GAIN and gain > self.gain_error


def contests(
    region: Strings, job: Strings, before: Floats, after: Floats
) -> tuple[RegionContest, ...]:
    """Return the contest of every region, from the absolute errors of runs, each left out."""
    found = []
    for name in sorted(set(region.tolist())):
        here = region == name
        jobs = sorted(set(job[here].tolist()))
        means = np.array([
            [errors[here & (job == one)].mean() for one in jobs] for errors in (before, after)
        ])  # fmt: skip
        gains = means[0] - means[1]
        spread = float(gains.std(ddof=1) / math.sqrt(len(jobs))) if len(jobs) > 1 else math.inf
        found.append(
            RegionContest(
                region=name,
                runs=int(here.sum()),
                jobs=len(jobs),
                before=float(means[0].mean()),
                after=float(means[1].mean()),
                gain_error=spread,
            )
        )
    return tuple(found)


def judged(runs: Residuals) -> tuple[RegionContest, ...]:
    """Return how what the runs say does, region by region, on each job left out."""
    errors = np.abs(runs.residual), np.abs(runs.residual - runs.left_out())
    return contests(runs.places.region, runs.job, *errors)


def contest_table(found: Sequence[RegionContest]) -> list[str]:
    """Return the lines of a table of contests, by left-out jobs."""
    if not found:
        return []
    width = max(len(one.region) for one in found)
    return [
        f"{'own runs, each job left out':{width}}{'jobs':>6}{'runs':>6}{'before %':>10}"
        f"{'after %':>9}",
        *(f"{one.region:{width}}{one.jobs:6}{one.runs:6}{100 * math.expm1(one.before):10.1f}"
          f"{100 * math.expm1(one.after):9.1f}  {_verdict(one)}" for one in found),
    ]  # fmt: skip


def _verdict(one: RegionContest) -> str:
    if one.is_won:
        return "learned"
    return "as before: one job" if one.jobs < 2 else "as before"
