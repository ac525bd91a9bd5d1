"""Laws of the columns of candidates with fallback and elastic ones, over whole histories."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from advisor.estimate.spot import Workers, counts_below, elastic_rentals, fallback_rentals
from advisor.planners.spot.availability import Spells, SpotJob, joined
from advisor.planners.spot.history import RentalColumns, SpotHistory, best_interval_s


def spells_of(seconds: list[int]) -> Spells:
    """Return spells from the lengths of down and up times in turn."""
    edges = np.cumsum(np.asarray(seconds, float))
    return Spells(up_start_s=edges[0::2], up_length_s=edges[1::2] - edges[0::2], end_s=edges[-1])


def test_joined_records_keep_their_spells_and_their_gaps() -> None:
    one, two = spells_of([5, 10, 5, 20]), spells_of([7, 3])
    spells, begin = joined([one, two], gap_s=100.0)
    assert begin.tolist() == [0.0, 140.0, 250.0]
    assert spells.up_start_s.tolist() == [5.0, 20.0, 147.0]


def test_counts_on_the_way_at_least_double() -> None:
    for count in range(1, 200):
        counts = counts_below(count)
        assert counts[0] == 1
        assert counts[-1] == count
        assert all(2 * a <= b for a, b in pairwise(counts))


def test_counts_that_are_no_faster_are_left_out() -> None:
    workers = Workers.of([1, 2, 4, 8], [8.0, 8.5, np.nan, 2.0])
    assert workers is not None
    assert workers.counts.tolist() == [1, 8]
    assert workers.rate.tolist() == [0.25, 1.0]
    assert Workers.of([1, 2], [1.0, 1.0]) is None
    assert Workers.of([1, 2], [np.nan, 1.0]) is None


HISTORY = SpotHistory(
    spells=(spells_of([3000, 9000, 500, 20000, 7000, 2000]), spells_of([900, 40000, 4000, 700])),
    nodes=(1, 1),
    source="made",
)


def job(
    work_s: float, restart_s: float, checkpoint_s: float, nodes: float, hazard: float
) -> SpotJob:
    columns = (np.array([value]) for value in (nodes, hazard, checkpoint_s))
    return SpotJob(
        work_s=work_s, restart_s=restart_s, checkpoint_s=checkpoint_s,
        checkpoint_interval_s=float(best_interval_s(HISTORY, *columns)[0]),
    )  # fmt: skip


def fallback_columns(price_ratio: float, hazard: float = 1.0) -> RentalColumns:
    jobs = [job(3600.0 * 5, 60.0, 5.0, 1.0, hazard), job(3600.0 * 50, 120.0, 5.0, 4.0, hazard)]
    return fallback_rentals(
        HISTORY, jobs, nodes=np.array([1.0, 4.0]), hazard=np.full(2, hazard),
        price_ratio=np.full(2, price_ratio),
    )  # fmt: skip


def test_columns_are_the_replays_of_each_candidate_alone() -> None:
    both = fallback_columns(0.3)
    alone = fallback_rentals(
        HISTORY, [job(3600.0 * 50, 120.0, 5.0, 4.0, 1.0)], nodes=np.array([4.0]),
        hazard=np.ones(1), price_ratio=np.array([0.3]),
    )  # fmt: skip
    assert np.array_equal(both.finish_s[1], alone.finish_s[0])
    assert both.billed_mean_s[1] == alone.billed_mean_s[0]


def test_bill_of_fallback_is_linear_in_the_price_and_time_is_ordered() -> None:
    cheap, dear = fallback_columns(0.0), fallback_columns(1.0)
    half = fallback_columns(0.5)
    middle = 0.5 * (cheap.billed_mean_s + dear.billed_mean_s)
    assert np.allclose(half.billed_mean_s, middle)
    assert np.allclose(dear.billed_s, dear.finish_s)  # always rented
    assert np.allclose(cheap.billed_mean_s, cheap.mean.on_demand_s)
    assert np.all(np.diff(half.finish_s, axis=1) >= 0)


def test_more_hazard_moves_fallback_on_demand() -> None:
    calm, wild = fallback_columns(0.3, hazard=0.1), fallback_columns(0.3, hazard=4.0)
    assert np.all(calm.mean.spot_s > wild.mean.spot_s)
    assert np.all(calm.billed_mean_s < wild.billed_mean_s)


def test_elastic_is_never_slower_on_spells_that_all_machines_share() -> None:
    """With counts that double the speed, using what there is beats waiting for all."""
    few = Workers.of([1, 2, 4, 8], [8.0, 4.0, 2.0, 1.0])
    pair = Workers.of([4, 8], [2.0, 1.0])
    assert few is not None
    assert pair is not None
    medians = [
        elastic_rentals(
            HISTORY, [job(3600.0 * 30, 1.0, 0.0, 8.0, 1.0)], [workers], hazard=np.ones(1)
        ).finish_s[0, 1]
        for workers in (pair, few)
    ]  # fmt: skip
    assert medians[1] <= medians[0] * 1.001
