"""Blind predictions of clusters, jobs and runs do not see the scored group (see ``test_blind``).

Tables are made up (synthetic) but for the published runs of the last tests. "The same" is bit for
bit: a warm start from a fit that knew the group would show.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from advisor import data
from advisor.lab.fit.campaigns import CampaignColumns
from advisor.lab.fit.memory import MemoryRows, read_memory
from advisor.lab.fit.scaling import ClusterRuns
from advisor.lab.score import memory, scaling, spot
from advisor.lab.score import runs as whole_runs
from advisor.lab.score.harness import Questions
from advisor.learned.choose import Runs, anchor_of, scores
from advisor.planners.core.errors import GIB
from advisor.planners.links.scaling import MeasuredPlacements, Placements
from advisor.planners.spot.availability import Spells, SpotTrace
from advisor.planners.spot.forecast import ForecastParameters, finish_runner, library

# Clusters and jobs ----------------------------------------------------------------------------


def a_cluster(beyond: float) -> ClusterRuns:
    """Return runs on 1 to 16 GPUs; ``beyond`` slows those on more than four."""
    workers = np.array([1.0, 2.0, 4.0, 8.0, 16.0] * 3)
    batch = np.repeat([16.0, 32.0, 64.0], 5)
    step = (0.01 + 0.002 * batch) * (1 + 0.05 * np.log2(workers))
    return ClusterRuns(
        applications=("bert",),
        measured=MeasuredPlacements(
            placements=Placements(
                application=np.zeros(15, int), nodes=np.maximum(workers / 4, 1),
                per_node=np.minimum(workers, 4), workers=workers, batch=batch,
            ),
            step_s=np.where(workers > 4, beyond * step, step),
        ),
        is_placement=np.ones(15, bool),
    )  # fmt: skip


def _said(known: MeasuredPlacements, wanted: MeasuredPlacements) -> np.ndarray:
    asked = scaling.Application(
        cluster="aws", name="bert", known=known, wanted=wanted, gradient_bytes=None
    )
    rows = Questions(
        questions=[""] * 6, truth=wanted.step_s, unseen=["more than four GPUs"] * 6, facts=[asked]
    )
    return scaling.SCALING.answer(rows).value


def test_large_placements_are_predicted_from_small_ones_alone() -> None:
    one, other = (_said(*scaling._halves(a_cluster(factor), 0)) for factor in (1.0, 2.0))
    assert one.size == 6
    assert np.array_equal(one, other)


def test_a_choice_knows_one_run_of_the_job() -> None:
    rng = np.random.default_rng(2)
    prices = np.exp(rng.standard_normal((8, 5)) * 0.3)
    runs = Runs(
        prices=prices, times=prices * 100, has_run=np.ones((8, 5), bool),
        families=np.array([str(i // 2) for i in range(8)], dtype=object),
        price_usd_per_h=np.ones(5), measured=rng.random((8, 5, 2)),
    )  # fmt: skip
    others = np.arange(2, 8)
    anchor = anchor_of(runs, 0, others)
    seen = np.arange(5) == anchor
    answer = scores(runs.seen_by(0, seen), 0, others, 1.0)
    changed = prices.copy()
    changed[0, np.arange(5) != anchor] *= 4.0
    times = changed * 100
    spoilt = replace(runs, prices=changed, times=times)
    assert np.array_equal(answer, scores(spoilt.seen_by(0, seen), 0, others, 1.0))


def test_a_forecast_knows_nothing_after_the_submission() -> None:
    rng = np.random.default_rng(4)

    def spells(seed: int) -> Spells:
        drawn = np.random.default_rng(seed)
        lengths = drawn.exponential(20_000.0, (60, 2))
        edges = np.cumsum(lengths.ravel())
        return Spells(up_start_s=edges[0::2], up_length_s=lengths[:, 1], end_s=float(edges[-1]))

    start = np.arange(0.0, 2e5, 3600.0)
    halves = [
        spot.Half(
            trace=SpotTrace(name=str(k), start_s=np.zeros(1), available=np.ones(1, np.int64),
                            nodes=1, end_s=2e5),
            nodes=1, known=spells(k), future=spells(10 + k), start_s=start,
            is_up=rng.integers(0, 2, start.size).astype(float), age_s=np.full(start.size, 600.0),
        )
        for k in range(2)
    ]  # fmt: skip
    constants = ForecastParameters()
    runner = finish_runner(spot.JOB)
    libraries = [
        library(h.known, runner, spot.JOB.attempt_s,
                     spot.JOB.kept_s(h.known.up_length_s), constants)
        for h in halves
    ]  # fmt: skip
    one = spot._forecast(0, halves, libraries, constants).quantiles
    later = [replace(halves[0], future=spells(99)), halves[1]]
    assert np.array_equal(one, spot._forecast(0, later, libraries, constants).quantiles)


# Published runs -------------------------------------------------------------------------------


def test_a_tables_memory_is_predicted_by_the_other_tables() -> None:
    known = read_memory(data.measurements(None))
    out = known.rows.table == "torchtitan"
    spoilt: MemoryRows = replace(
        known, measured_bytes=np.where(out, known.measured_bytes + 9 * GIB, known.measured_bytes)
    )
    one, other = (memory.told_by_others(rows) for rows in (known, spoilt))
    for field in fields(one):
        kept, changed = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(kept[out], changed[out]), field.name


@pytest.mark.slow
def test_a_family_of_training_runs_is_predicted_by_the_others() -> None:
    rng = np.random.default_rng(11)
    estimated = np.exp(rng.uniform(3, 12, 60))
    rows = CampaignColumns(
        family=np.repeat([f"family {i}" for i in range(20)], 3),
        published_h=estimated * np.exp(0.2 * rng.standard_normal(60) + 0.3),
        estimated_h=estimated, steps_h=estimated, rate_h=np.full(60, np.nan),
        software_years=rng.integers(0, 4, 60).astype(float), is_whole_run=np.ones(60, bool),
        step_log_sd=np.full(60, 0.1), architecture=np.full(60, "Ampere"), needed_h=estimated / 3,
    )  # fmt: skip
    out = rows.family == "family 4"
    spoilt = replace(rows, published_h=np.where(out, 3 * rows.published_h, rows.published_h))
    for one, other in zip(
        whole_runs.predict(rows, rows), whole_runs.predict(spoilt, spoilt), strict=True
    ):
        assert np.array_equal(one[out], other[out])
