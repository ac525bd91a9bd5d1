"""Choose the constants of the spot forecast without a look at any second half.

    python -m advisor.lab.experiments.spot_constants [--share 0.5] [--data FOLDER]

Of each trace only its first ``share`` is used and cut in the middle: with 0.5 the first quarter of
a trace predicts the second one, exactly as ``advisor validate spot`` does with whole traces
(``--share 1``, which is no choice but the score). Printed for each set of constants: coverage of
the 80 % intervals (mean over traces), median error, and the pinball loss of the logarithm of the
finish time (mean over the 10th, 50th and 90th percentile, then over traces).

The rule: drift and pooled fraction with the least sum of losses over shares of 0.25 and 0.5, with
levels as they are; then the scale of the levels with which the two cover 80 % on average.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from advisor import data
from advisor.lab import frame
from advisor.lab.data import SPOT
from advisor.lab.score import spot
from advisor.lab.score.harness import Answers, Bools, Questions
from advisor.planners.spot.availability import Column
from advisor.planners.spot.forecast import ForecastParameters, Library, finish_runner
from advisor.records.traces import read_spot_traces

DRIFTS = (0.0, 0.2, 0.4, 0.8, 1.2, 1.6)
POOLED = (0.1, 0.2, 0.3, 0.5)


def halves(folder: Path, share: float) -> list[spot.Half]:
    """Return the protocol's traces, of each only its first ``share``, cut in the middle."""
    kept = {half.trace.name for half in spot.halves_of(folder)}
    traces = [
        t for t in read_spot_traces(SPOT.path("intervals", folder), left_out=[]) if t.name in kept
    ]
    cut = [spot.Half.of(t.between(0.0, t.end_s * share)) for t in traces]
    return [half for half in cut if half.known.up_start_s.size and half.start_s.size]


def scores(parts: Sequence[spot.Half], asked: argparse.Namespace) -> None:
    rows = spot.starts_of(parts)
    print(f"{len(parts)} traces\n drift pooled  scale  coverage  error  (by trace)  pinball")
    for drift in asked.drift:
        plain = ForecastParameters(drift=drift, level_scale=1.0)
        runner = finish_runner(spot.JOB)
        libraries = spot._libraries(parts, runner, plain)
        for pooled, scale in product(asked.pooled, asked.scale):
            constants = replace(plain, pooled_fraction=pooled, level_scale=scale)
            tables = [
                _forecast(k, parts, libraries, constants, asked.days) for k in range(len(parts))
            ]
            answers, over = spot._banded(tables), np.isfinite(rows.truth)
            ended = [mask & over for mask in rows.groups.values() if (mask & over).any()]
            errors = [np.abs(answers.value / rows.truth - 1)[mask] for mask in ended]
            print(
                f"{drift:6.1f} {pooled:6.2f} {scale:6.2f} "
                f"{spot._spot_scores(rows, answers, rows.every).coverage:9.3f} "
                f"{np.median(np.concatenate(errors)):6.3f} "
                f"{np.mean([np.median(e) for e in errors]):11.3f} "
                f"{np.mean([pinball(rows, answers, mask) for mask in ended]):8.3f}",
                flush=True,
            )


def _forecast(
    at: int, parts: Sequence[spot.Half], libraries: Sequence[Library],
    constants: ForecastParameters, days: float | None,
) -> Column:  # fmt: skip
    if days is None:
        return spot._forecast(at, parts, libraries, constants).quantiles
    return spot._rolling(at, parts, libraries, constants, days)


def pinball(rows: Questions, answers: Answers, mask: Bools) -> float:
    """Return the loss of the three quantiles of ln(finish) over some starts that ended."""
    finish, loss = np.log(rows.truth[mask]), 0.0
    for level, bound in ((0.1, answers.low), (0.5, answers.value), (0.9, answers.high)):
        assert bound is not None
        miss = finish - np.log(np.minimum(bound[mask], 1e9))
        loss += float(np.mean(np.maximum(level * miss, (level - 1) * miss))) / 3
    return loss


def main() -> None:
    asked = frame.options(__doc__, {
        "--data": Path, "--share": 0.5, "--drift": list(DRIFTS), "--pooled": list(POOLED),
        "--days": (float, "forecast each day from so many before it"), "--scale": [1.0],
    })  # fmt: skip
    scores(halves(data.measurements(asked.data), asked.share), asked)


if __name__ == "__main__":
    main()
