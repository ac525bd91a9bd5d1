"""How long the learned predictors take: training, and predicting candidates with intervals.

    python benchmarks/models_speed.py [--records 10000] [--candidates 100000] [--jobs 2]

Records are our own runs drawn with replacement, their times and anchors scattered by 5 %, and
spread over as many made-up programs as give each about 80 runs; what is timed does not depend on
what they say. Prints seconds and the cost against the number of records.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from advisor import data
from advisor.importers import formats
from advisor.models.trained import TrainedModel
from advisor.records import RunRecord
from advisor.train.models import train


def records(count: int, seed: int = 0) -> list[RunRecord]:
    """Return ``count`` records like ours."""
    own = [
        r
        for r in formats.read("minicloud", data.root("datasets") / "runs")
        if r.status == "ok" and not r.facts.get("is_noisy")
    ]
    rng = np.random.default_rng(seed)
    families = max(12, count // 80)
    made = []
    for i in rng.integers(0, len(own), count):
        run = own[i]
        scatter = math.exp(rng.normal(0, 0.05))
        family = f"program-{rng.integers(families)}"
        made.append(
            replace(
                run,
                record_id=f"{run.record_id}/{len(made)}",
                job=replace(run.job, family=family, job_id=f"{family}-{run.job.job_id}"),
                time_s=(run.time_s or 1.0) * scatter,
            )
        )
    return made


def timed(what: Callable[[], object]) -> float:
    """Return how long a call takes [s]."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def candidates_s(model: TrainedModel, some: list[RunRecord], count: int) -> float:
    """Return how long ``count`` candidates take, features given [s]."""
    asked = model._problem(some)
    rows = np.resize(np.arange(len(some)), count)
    table, offset = asked.X[rows], asked.offset[rows]

    def predict() -> None:
        model.estimator.predict_band(table, 0.9, offset=offset)

    predict()  # the first call loads code
    return timed(predict)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", default="auto")
    asked = parser.parse_args()
    print(f"{'records':>10}{'train s':>10}{f'{asked.candidates} predicted s':>24}")
    for count in asked.records:
        some = records(count)
        found: list[TrainedModel] = []
        train_s = timed(
            lambda some=some, found=found: found.append(  # type: ignore[misc]
                train(some, model=asked.model, n_jobs=asked.jobs)[0]
            )
        )
        print(f"{count:10d}{train_s:10.1f}{candidates_s(found[0], some, asked.candidates):24.2f}")


if __name__ == "__main__":
    main()
