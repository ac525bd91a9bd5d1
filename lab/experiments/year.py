"""A team's year, replayed: what its own runs are worth as they come in.

Public measurements stand for a journal, in twenty seeded orders (or in the order of time where it
is stated). Every run is written as a row of a table and read as ``advisor runs import csv`` reads
one. After every tenth run what the product learns (``learned.pooled``, kept by region as ``advisor
train`` keeps it) is fitted again, and the next ten are asked. Beside it stand the answers that
ship, a kNN on the journal alone, and each estimator fitted to what the answers leave over.

    python -m advisor.lab.experiments.year --orders 20
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.jobs.describe import described_job
from advisor.lab import score
from advisor.lab.fit.described import profet_rows
from advisor.lab.score.asked import predictor, step_on
from advisor.lab.score.runs import own_folder
from advisor.learned import (
    Places,
    Residuals,
    RunColumns,
    Stack,
    TrainedModel,
    estimator,
    judged,
    places_of_runs,
)
from advisor.planners.step import job_features, unmeasured
from advisor.records import read_runs_as
from advisor.train.labelled import read_runs

Floats = NDArray[np.float64]
Answer = Callable[["Journal", NDArray[np.intp], NDArray[np.intp]], Floats]
_EVERY: Final = 10
_MOST_RUNS: Final = 120
_NEIGHBOURS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Journal:
    """One source's runs, rows aligned."""

    name: str
    job: NDArray[np.str_]
    places: Places
    took_s: Floats
    answered_s: Floats  # by what ships
    known: Floats  # (n, k); what a row of the table says besides: batch, size
    order: NDArray[np.intp] | None = None  # in time, where it is stated

    @property
    def residual(self) -> Floats:
        """What the answers leave over."""
        return np.asarray(np.log(self.took_s / self.answered_s))

    @property
    def columns(self) -> Floats:
        """Columns for estimators: what is known of the job, its machine and its family."""
        names = (self.places.machine, self.job)
        coded = [(of[:, None] == np.unique(of)).astype(float) for of in names]
        return np.hstack([self.known, self.places.features, *coded])


SOURCES: Final[dict[str, Callable[[], Journal]]] = {
    "profet": lambda: _through_the_door(_profet()),
    "minutes": lambda: _minutes(),
    "mlperf": lambda: _through_the_door(_cells("mlperf", "gpu-mlperf")),
}


def _profet() -> Journal:
    """Return PROFET's described networks, each asked as ``plan --cnn`` is."""
    steps = list(profet_rows(data.measurements(), is_whole=True))
    answers = [
        step_on(predictor(), described_job(s.work, name=s.model), unmeasured(s.device))[0]
        for s in steps
    ]
    flop = np.array([float(s.work.operators.flop.sum()) for s in steps])
    return Journal(
        name="profet",
        job=np.array([s.model for s in steps]),
        places=Places(
            machine=np.array([s.device.name for s in steps]),
            architecture=np.array([s.device.architecture for s in steps]),
            is_several=np.zeros(len(steps), bool),
            kind=np.full(len(steps), "convolutions"),
            flop=flop,
            features=np.array([job_features(s.work) for s in steps]),
        ),
        took_s=np.array([s.seconds for s in steps]),
        answered_s=np.array(answers),
        known=np.log(np.c_[[s.work.micro_batch for s in steps], flop]),
    )


def _cells(name: str, protocol: str) -> Journal:
    """Return a suite's cells, each answered from the same job's runs on other devices."""
    asked = score.load(protocol)
    rows = asked.rows(data.measurements())
    frame, answers = rows.facts.frame, asked.answer(rows)
    batch = frame["batch"].to_numpy(float)
    seen = np.isfinite(answers.value) & np.isfinite(rows.truth)
    machine, job = (frame[of].to_numpy(str)[seen] for of in ("gpu", "model"))
    rates = np.c_[batch, rows.facts.cells.peak, rows.facts.cells.bandwidth][seen]
    order = None
    if "round" in frame:
        order = np.argsort(frame["round"].to_numpy(str)[seen], kind="stable")
    return Journal(
        name=name,
        job=job,
        places=Places(
            machine=machine, architecture=machine, is_several=np.zeros(len(job), bool),
            kind=np.full(len(job), "any"), flop=np.full(len(job), math.inf),
            features=np.zeros((len(job), 6)),
        ),
        took_s=(batch / rows.truth)[seen],
        answered_s=(batch / answers.value)[seen],
        known=np.log(np.maximum(rates, 1e-9)),
        order=order,
    )  # fmt: skip


def _minutes() -> Journal:
    """Return our own jobs of a minute, answered by the shipped model."""
    records = [
        one
        for one in read_runs([own_folder(data.measurements(), "minutes")])
        if one.status == "ok" and one.facts.get("is_noisy") != 1.0
    ]
    runs = RunColumns.of(records)
    model = TrainedModel.load(data.root("trained_models") / "runs")
    answered = model.predict(runs).value
    features = np.nan_to_num(runs.features[:, np.isfinite(runs.features).all(axis=0)])
    return Journal(
        name="minutes",
        job=np.array([one.job.family for one in records]),
        places=places_of_runs(runs),
        took_s=np.array([one.time_s for one in records], float),
        answered_s=np.asarray(answered),
        known=features,
    )


def _through_the_door(journal: Journal) -> Journal:
    """Return the journal with names and times as ``runs import csv`` reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["run", "program", "accelerator", "time_s"])
            rows = zip(journal.job, journal.places.machine, journal.took_s, strict=True)
            writer.writerows([str(i), *row] for i, row in enumerate(rows))
        read = read_runs_as("csv", path)
    made: dict[str, Any] = dict(vars(journal))
    made["job"] = np.array([one.job.family for one in read])
    made["took_s"] = np.array([one.time_s for one in read], float)
    return Journal(**made)


def _pooled(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Floats:
    """Answer as the product does after ``advisor train``."""
    runs = Residuals(
        places=journal.places.take(known), job=journal.job[known],
        residual=journal.residual[known],
    )  # fmt: skip
    kept = [one.region for one in judged(runs) if one.is_won]
    heard = np.isin(runs.places.region, kept)
    at = journal.places.take(asked)
    found, _ = runs.expected(at, heard)
    return np.where(np.isin(at.region, kept), found, 0.0)


def _neighbours(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Floats:
    """Answer by the nearest runs of the journal, nothing of physics heard."""
    bare = journal.columns
    scaled = (bare - bare[known].mean(axis=0)) / np.maximum(bare[known].std(axis=0), 0.1)
    far = np.square(scaled[asked][:, None] - scaled[known][None]).sum(axis=-1)
    near = np.argsort(far, axis=1)[:, :_NEIGHBOURS]
    logs = np.log(journal.took_s[known])[near].mean(axis=1)
    return np.asarray(logs - np.log(journal.answered_s[asked]))


def _estimated(build: Callable[[], Any], *, is_positive: bool = False) -> Answer:
    def answer(journal: Journal, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Floats:
        residual = journal.residual[known]
        model = build().fit(journal.columns[known], np.exp(residual) if is_positive else residual,
                            groups=journal.job[known])  # fmt: skip
        found = np.asarray(model.predict(journal.columns[asked]), float)
        return np.log(np.maximum(found, 1e-3)) if is_positive else found

    return answer


def _stack() -> Any:
    members = [("ridge", estimator("ridge")), ("forest", estimator("forest", trees=30))]
    return Stack(members, folds=3, calibration_folds=0)


CANDIDATES: Final[dict[str, Answer]] = {
    "ships": lambda journal, known, asked: np.zeros(len(asked)),
    "ours": _pooled,
    "kNN": _neighbours,
    "linear": _estimated(lambda: estimator("ridge", calibration_folds=0)),
    "Poisson": _estimated(lambda: estimator("poisson", calibration_folds=0), is_positive=True),
    "forest": _estimated(lambda: estimator("forest", trees=50, calibration_folds=0)),
    "xgboost": _estimated(lambda: estimator("boosting", rounds=100, calibration_folds=0)),
    "stack": _estimated(_stack),
}


def curve(journal: Journal, orders: int, names: Sequence[str]) -> dict[int, dict[str, Floats]]:
    """Return abs(ln) of each candidate on the next ten runs, by how many are known."""
    found: dict[int, dict[str, Floats]] = {}
    for seed in range(1 if journal.order is not None else orders):
        order = journal.order
        if order is None:
            order = np.random.default_rng(seed).permutation(len(journal.job))
        for count in range(_EVERY, min(len(order), _MOST_RUNS + 1), _EVERY):
            known, asked = order[:count], order[count : count + _EVERY]
            if not asked.size or len(set(journal.job[known])) < 2:
                continue
            errors = found.setdefault(count, {name: np.zeros(0) for name in names})
            for name in names:
                left = CANDIDATES[name](journal, known, asked) - journal.residual[asked]
                errors[name] = np.r_[errors[name], np.abs(left)]
    return found


def lines(journal: Journal, found: dict[int, dict[str, Floats]]) -> Iterator[str]:
    """Yield a table: errors of the next ten [%], and how ours fares against what ships."""
    names = list(next(iter(found.values())))
    order = "in the order of time" if journal.order is not None else "seeded orders"
    yield f"{journal.name}: {len(journal.job)} runs, {order}"
    yield f"{'known':>6}" + "".join(f"{name:>9}" for name in names) + f"{'ours-ships':>14}"
    for count, errors in found.items():
        means = "".join(f"{100 * math.expm1(errors[n].mean()):9.1f}" for n in names)
        gap = (errors["ours"] - errors["ships"]).reshape(-1)
        parts = [one.mean() for one in np.array_split(gap, max(gap.size // _EVERY, 1))]
        spread = np.std(parts, ddof=1) / math.sqrt(len(parts)) if len(parts) > 1 else math.nan
        yield f"{count:6}{means}{100 * np.mean(parts):8.1f}+-{100 * spread:4.1f}"


def main() -> None:
    """Print the curves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=list(SOURCES), help="(default: all)")
    parser.add_argument("--candidates", nargs="*", default=list(CANDIDATES))
    given = parser.parse_args()
    for name in given.only or SOURCES:
        journal = SOURCES[name]()
        told = lines(journal, curve(journal, given.orders, given.candidates))
        sys.stdout.writelines(f"{line}\n" for line in told)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
