"""How long the learned predictors take: features, training, predicting candidates with intervals.

    python -m advisor.lab.speed.models_speed [--records 1000 10000] [--candidates 100000]
    python -m advisor.lab.speed.models_speed --records 100000 1000000 --model boosting
    python -m advisor.lab.speed.models_speed --records 10000 --verb [--limit-s 120]

Records are our own runs drawn with replacement, their times scattered by 5 %, and spread over as
many made-up programs as give each about 80 runs; what is timed does not depend on what they say.
They are made and turned into features 10,000 at a time, as workers of ``--spread`` read files, so
that a million fit into a few GB. ``auto`` is the shipped default's contest: four members on ten
folds of programs, weights, choice, intervals; ``boosting`` is one fit of the trees, as on a
cluster. Prints seconds of the clock and, in brackets, of processors (workers included): the
latter hold on a machine that others use, too.

``--verb`` times the whole command, ``advisor train models --jobs 2`` on a file of records: its
clock and its processors' seconds (workers included: they end with it). It waits for nothing else,
so that on cores of its own the clock shows the processors' seconds at most: with a limit it fails
where these are above it.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from advisor import data
from advisor.lab.frame import ADVISOR, Spent, options, spent
from advisor.learned import features
from advisor.learned.problem import Problem, problem_of
from advisor.learned.trained import TrainedModel
from advisor.learned.trees import Boosting
from advisor.records import RunRecord
from advisor.records.files import write_records
from advisor.train.labelled import read_runs
from advisor.train.models import train

_AT_ONCE = 10_000


def records(own: list[RunRecord], count: int, families: int, seed: int) -> list[RunRecord]:
    """Return ``count`` records like ours."""
    rng = np.random.default_rng(seed)
    made: list[RunRecord] = []
    for i in rng.integers(0, len(own), count):
        run = own[i]
        family = f"program-{rng.integers(families)}"
        made.append(
            replace(
                run,
                record_id=f"{run.record_id}/{seed}-{len(made)}",
                job=replace(run.job, family=family, job_id=f"{family}-{run.job.job_id}"),
                time_s=(run.time_s or 1.0) * math.exp(rng.normal(0, 0.05)),
            )
        )
    return made


def columns(
    own: list[RunRecord], count: int, families: int
) -> tuple[Spent, np.ndarray, np.ndarray]:
    """Return how long ``count`` records take to become features [s], those, and the target."""
    took, tables, targets = Spent(), [], []
    for seed, start in enumerate(range(0, count, _AT_ONCE)):
        some = records(own, min(_AT_ONCE, count - start), families, seed)
        found: list[Problem] = []
        took = took + spent(lambda some=some, found=found: found.append(problem_of(some)))
        tables.append(found[0].X)
        targets.append(np.log(found[0].truth) - found[0].offset)
    return took, np.vstack(tables), np.concatenate(targets)


def predicting(model: TrainedModel, some: list[RunRecord], count: int) -> Spent:
    """Return what ``count`` candidates take with intervals, features given."""
    asked = model._inputs(some)
    rows = np.resize(np.arange(len(some)), count)
    table, offset = asked.X[rows], asked.offset[rows]

    def predict() -> None:
        model.estimator.predict_band(table, 0.9, offset=offset)

    predict()  # the first call loads code
    return spent(predict)


def verb(runs: list[RunRecord], model: str, jobs: int) -> Spent:
    """Return what ``advisor train models`` takes on some runs, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "runs.jsonl"
        write_records(given, runs)
        command = [*ADVISOR, "train", "models", "--quiet", "--data", str(given)]
        command += ["--out", str(Path(folder) / "out"), "--model", model, "--jobs", str(jobs)]
        # One thread a job: more would only be counted as waiting for each other.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        return spent(
            lambda: subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, env=os.environ | alone
            )
        )


def print_verb(asked: argparse.Namespace, own: list[RunRecord]) -> None:
    """Print a line for each number of records; leave with 1 above the limit."""
    print(f"{'records':>10}{'clock s':>10}{'processors s':>14}{'load':>8}")
    for count in asked.records:
        took = verb(records(own, count, max(12, count // 80), 0), asked.model, asked.jobs)
        print(f"{count:10d}{took.wall_s:10.1f}{took.cpu_s:14.1f}{os.getloadavg()[0]:8.1f}",
              flush=True)  # fmt: skip
        if asked.limit_s is not None and took.cpu_s > asked.limit_s:
            raise SystemExit(f"{took.cpu_s:.0f} s of processors, {asked.limit_s:g} are allowed")


def main() -> None:
    asked = options(__doc__, {
        "--records": [1000, 10_000], "--candidates": 100_000, "--jobs": 2, "--model": "auto",
        "--verb": (False, "time the whole command"),
        "--limit-s": (float, "with --verb: fail above it"),
    })  # fmt: skip
    own = [
        r
        for r in read_runs([data.root("datasets") / "runs"])
        if r.status == "ok" and not r.facts.get("is_noisy")
    ]
    if asked.verb:
        print_verb(asked, own)
        return
    print(f"{len(features.FEATURES)} features, model {asked.model}, {asked.jobs} jobs")
    print(f"{'records':>10}{'features s':>18}{'train s':>18}"
          f"{f'{asked.candidates} predicted s':>24}")  # fmt: skip
    for count in asked.records:
        families = max(12, count // 80)
        if asked.model == "boosting":
            to_features, table, target = columns(own, count, families)
            trees = Boosting(rounds=300, calibration_folds=0, n_jobs=asked.jobs)
            training = spent(lambda t=trees, x=table, y=target: t.fit(x, y))
            some = np.resize(table, (asked.candidates, table.shape[1]))
            trees.predict(some[:10])
            prediction = spent(lambda t=trees, x=some: t.predict(x))
        else:
            runs = records(own, count, families, 0)
            to_features = spent(lambda runs=runs: problem_of(runs))
            found: list[TrainedModel] = []
            training = spent(
                lambda runs=runs, found=found: found.append(
                    train(runs, model=asked.model, n_jobs=asked.jobs)[0]
                )
            )
            prediction = predicting(found[0], runs, asked.candidates)
        print(f"{count:10d}{to_features!s:>18}{training!s:>18}{prediction!s:>24}", flush=True)


if __name__ == "__main__":
    main()
