"""A job's finish on one zone's spot nodes: replays of the past, weighted by the present.

=====================  ==========================================================================
here                   meaning, unit
=====================  ==========================================================================
``Y_i``                finish time of a replay started at time i of the past. [s]
``S_i``, ``age_i``     nodes up or not at that start, and for how long already. [s]
``tau`` (drift)        up spells times ``e^(d/2)``, down spells times ``e^(-d/2)``, d ~ N(0, tau).
``pooled_fraction``    share of the weight that other zones' replays carry.
=====================  ==========================================================================

1. The history, of which the last fortnight counts, is repeated end to end and the job replayed
   exactly from starts spread over it.
2. The future drifts away from the past: every replay is repeated with availability moved by d.
3. A replay counts by how alike its start is to now: same state, alike age of the state; a share of
   the weight goes to other zones, for what this zone has not shown yet.
4. The answer is the weighted 10th, 50th and 90th percentile; with other zones in it, whose spread
   is wider than what one zone meets, percentiles closer to the median.

The scheme comes from a trial on first and second halves of 16 public traces. Its constants were
chosen without a look at any second half, by a rule and on first halves only
(``lab/experiments/spot_constants.py``); ``advisor validate spot`` scores them on the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S
from advisor.planners.spot.availability import Column, Spells, SpotJob, replay
from advisor.planners.spot.history import MAXIMUM_TILES

# Availability drifts, and a fortnight forgets: the pinball loss on first halves is 0.142 with it,
# 0.149 with a week (``lab/experiments/spot_constants.py --days 7``, levels as they are).
RECENT_DAYS = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastParameters:
    """Constants of the forecast, each with the step it stands in."""

    # tau of step 2: standard deviation of the change of the logit of availability; measured
    # between halves of the public traces: 1.06, between quarters 1.21
    drift: float = 1.2
    drift_levels: int = 5  # equally likely values of d
    pooled_fraction: float = 0.3  # step 3: what other zones weigh together
    # age_floor_h, age_width: step 3: kernel ``exp(-((log(age_i + floor) - log(age + floor)) /
    # width)^2 / 2)``
    age_floor_h: float = 0.25
    age_width: float = 1.0
    starts: int = 200  # step 1: starts per level of drift
    # step 4: with other zones the levels stand closer to the median by this factor
    level_scale: float = 0.84


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Replays over one history."""

    # (n,); what is forecast: by default the finish time; inf where the job never ended [s]
    outcome: Column
    is_up: NDArray[np.bool_]  # (n,)
    age_s: Column  # (n,); how long the state lasted when the job was started [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Quantiles and mean of an outcome, one row a start."""

    quantiles: Column  # (n, q)
    mean: Column  # (n,); inf where some replay never ended


Runner = Callable[[Spells, Column], Column]


def finish_runner(job: SpotJob) -> Runner:
    """Return the runner that replays ``job`` and reports its finish; inf where it never ends."""

    def run(spells: Spells, start_s: Column) -> Column:
        return np.nan_to_num(replay(spells, job, start_s).finish_s, nan=np.inf)

    return run


def state_at(spells: Spells, time_s: Column) -> tuple[NDArray[np.bool_], Column]:
    """Return whether the nodes are up at each time, and since when in seconds.

    Before the first up spell the age counts from the last spell's end, the record taken as a ring.
    """
    ends = spells.up_start_s + spells.up_length_s
    at = np.searchsorted(spells.up_start_s, time_s, side="right") - 1
    inside = np.maximum(at, 0)
    is_up = (at >= 0) & (time_s < ends[inside])
    since = np.where(is_up, spells.up_start_s[inside], ends[inside])
    since = np.where(at < 0, ends[-1] - spells.end_s, since)
    return is_up, np.asarray(time_s - since)


def library(
    spells: Spells, run: Runner, horizon_s: float, kept: Column, parameters: ForecastParameters
) -> Library:
    """Replay starts spread over a history, at every level of drift.

    ``run``: ``run(spells, start_s)`` returns the outcome of each start; ``horizon_s``: progress
    that a job needs [s]; ``kept``: progress that each up spell gives: says how often the history
    must be repeated [s].
    """
    normal, levels = NormalDist(), parameters.drift_levels if parameters.drift > 0 else 1
    rounds = horizon_s / kept.sum() if kept.sum() > 0 else MAXIMUM_TILES
    parts = []
    for level in range(levels):
        drift = parameters.drift * normal.inv_cdf((level + 0.5) / levels)
        drifted = spells.scaled(up=float(np.exp(drift / 2)), down=float(np.exp(-drift / 2)))
        start = (np.arange(parameters.starts) + 0.5) / parameters.starts * drifted.end_s
        # Shorter up spells keep less: the factor of the drift and one round of safety.
        tiles = int(min(2 * rounds * np.exp(abs(drift)), MAXIMUM_TILES)) + 2
        parts.append((run(drifted.tiled(tiles), start), *state_at(drifted, start)))
    return Library(
        outcome=np.concatenate([p[0] for p in parts]),
        is_up=np.concatenate([p[1] for p in parts]),
        age_s=np.concatenate([p[2] for p in parts]),
    )


def forecast_of(
    own: Library, others: Sequence[Library], is_up: ArrayLike, age_s: ArrayLike,
    parameters: ForecastParameters, *, levels: Sequence[float] = (0.1, 0.5, 0.9),
    floor: float = 0.0,
) -> Forecast:  # fmt: skip
    """Weigh the replays by their likeness to now and return quantiles.

    ``own``: of the zone where the job will run; ``others``: of other zones; may be empty;
    ``is_up``, ``age_s``: (n,); state of the zone when the job is submitted; ``floor``: no outcome
    can be below it.
    """
    state, age = np.atleast_1d(np.asarray(is_up, bool)), np.atleast_1d(np.asarray(age_s, float))
    pooled = parameters.pooled_fraction if others else 0.0
    weights = [_weights(own, state, age, parameters) * (1.0 - pooled)]
    weights += [_weights(o, state, age, parameters) * (pooled / len(others)) for o in others]
    outcome = np.maximum(np.concatenate([lib.outcome for lib in (own, *others)]), floor)
    weight = np.concatenate(weights, axis=1)
    # A state never seen anywhere: every replay counts alike.
    weight[weight.sum(axis=1) == 0] = 1.0
    weight /= weight.sum(axis=1, keepdims=True)
    order = np.argsort(outcome, kind="stable")
    ranked, reached = outcome[order], np.cumsum(weight[:, order], axis=1)
    scale = parameters.level_scale if others else 1.0
    scaled = [0.5 + (level - 0.5) * scale for level in levels]
    at = [np.sum(reached < level - 1e-12, axis=1) for level in scaled]
    quantiles = np.stack([ranked[np.minimum(k, ranked.size - 1)] for k in at], axis=1)
    finite = np.isfinite(outcome)
    mean = weight[:, finite] @ outcome[finite]
    return Forecast(
        quantiles=quantiles, mean=np.where(weight[:, ~finite].sum(axis=1) > 0, np.inf, mean)
    )


def _weights(
    past: Library, is_up: NDArray[np.bool_], age_s: Column, parameters: ForecastParameters
) -> Column:
    """Return step 3's weights, each row summing to 1 (0 where no start was in that state)."""
    floor_s = parameters.age_floor_h * HOUR_S
    distance = np.log(past.age_s + floor_s) - np.log(age_s[:, None] + floor_s)
    alike = np.exp(-0.5 * (distance / parameters.age_width) ** 2)
    weight = np.where(past.is_up == is_up[:, None], alike, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    share: Column = np.divide(weight, total, out=np.zeros_like(weight), where=total > 1e-12)
    return share
