"""Choose the constants of the spot forecast without a look at any second half.

    python benchmarks/spot_constants.py [--share 0.5] [--data FOLDER]

Of each trace only its first ``share`` is used and cut in the middle: with 0.5 the first quarter of
a trace predicts the second one, exactly as ``advisor validate spot`` does with whole traces
(``--share 1``, which is no choice but the score). Printed for each set of constants: coverage of
the 80 % intervals (mean over traces), median error, and the pinball loss of the logarithm of the
finish time (mean over the 10th, 50th and 90th percentile, then over traces).

The rule: the pooled fraction with the least loss at a share of 0.5 among sets that cover 76 to
84 %; for it the drift that covers 80 % at shares of 0.25 and 0.5, interpolated, and continued
geometrically to 1, since a longer history needs less of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from advisor import data
from advisor.planners.spot_forecast import ForecastParameters, finish_runner, library
from advisor.traces import read_spot_traces
from advisor.validation import spot

DRIFTS = (0.0, 0.2, 0.4, 0.8, 1.2, 1.6)
POOLED = (0.1, 0.2, 0.3, 0.5)
AGE_WIDTHS = (1.0,)


def halves(folder: Path, share: float) -> list[spot._Half]:
    """Return the protocol's traces, of each only its first ``share``, cut in the middle."""
    kept = {half.trace.name for half in spot._halves(folder)}
    traces = [t for t in read_spot_traces(folder / spot.TABLE, left_out=[]) if t.name in kept]
    cut = [spot._Half.of(t.between(0.0, t.end_s * share)) for t in traces]
    return [half for half in cut if half.known.up_start_s.size and half.start_s.size]


def scores(parts: Sequence[spot._Half], drifts: Sequence[float]) -> None:
    """Print one line a set of constants."""
    print(f"{len(parts)} traces\n drift pooled  width  coverage  error  (by trace)  pinball")
    for drift in drifts:
        plain = ForecastParameters(drift=drift)
        runner = finish_runner(spot.JOB)
        libraries = [
            library(h.known, runner, spot.JOB.attempt_s, spot.JOB.kept_s(h.known.up_length_s),
                    plain)
            for h in parts
        ]  # fmt: skip
        for pooled, width in product(POOLED, AGE_WIDTHS):
            constants = ForecastParameters(drift=drift, pooled_fraction=pooled, age_width=width)
            results = [
                spot._result(h, spot._forecast(k, parts, libraries, constants))
                for k, h in enumerate(parts)
            ]
            over = [r for r in results if r.is_over.any()]
            errors = [np.abs(r.middle_s / r.finish_s - 1)[r.is_over] for r in over]
            print(
                f"{drift:6.1f} {pooled:6.2f} {width:6.1f} "
                f"{np.nanmean([r.coverage for r in results]):9.3f} "
                f"{np.median(np.concatenate(errors)):6.3f} "
                f"{np.mean([np.median(e) for e in errors]):11.3f} "
                f"{np.mean([pinball(r) for r in over]):8.3f}",
                flush=True,
            )


def pinball(result: spot._Result) -> float:
    """Return the loss of the three quantiles of ln(finish), starts that ended only."""
    rows = result.is_over
    finish = np.log(result.finish_s[rows])
    loss = 0.0
    for level, bound in ((0.1, result.low_s), (0.5, result.middle_s), (0.9, result.high_s)):
        miss = finish - np.log(np.minimum(bound[rows], 1e9))
        loss += float(np.mean(np.maximum(level * miss, (level - 1) * miss))) / 3
    return loss


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--drift", type=float, nargs="+", default=list(DRIFTS))
    asked = parser.parse_args()
    shared = data.shared()
    folder = asked.data or (shared / "data" if shared else Path("../shared/data"))
    scores(halves(folder, asked.share), asked.drift)


if __name__ == "__main__":
    main()
