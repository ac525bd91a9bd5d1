"""The plan: what is run, in which order, and what it would cost."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.lab.minicloud import plan
from advisor.lab.minicloud.plan import (
    ANCHOR,
    HALF,
    TWO,
    MiniInstance,
    MiniLayout,
    MiniPrices,
    Pace,
    declared_s,
    nominal_price_usd_per_h,
)
from advisor.lab.workloads import WORKLOADS

RUNS = tuple(plan.plan())


def test_keys_are_unique() -> None:
    assert len({run.key for run in RUNS}) == len(RUNS)


def test_the_plan_is_large_enough_and_has_small_clusters() -> None:
    full = [run for run in RUNS if run.kind == "full"]
    assert len(full) >= 1000
    assert sum(run.layout.nodes == 3 for run in full) >= 100
    assert len({run.job.workload for run in full}) >= 12


def test_every_full_run_comes_after_its_jobs_partial_run() -> None:
    seen = set()
    for run in RUNS:
        if run.kind == "partial" and run.layout.kind == "single":
            seen.add(run.job)
        assert run.job in seen


@pytest.mark.parametrize("stop", [300, 600, 900])
def test_stopping_early_leaves_the_workloads_balanced(stop: int) -> None:
    counts = Counter(run.job.workload for run in RUNS[:stop])
    assert set(counts) == set(WORKLOADS)
    assert max(counts.values()) <= 1.5 * min(counts.values())


def test_five_equal_runs_tell_the_noise() -> None:
    cells = Counter((run.job, run.instance, run.layout) for run in RUNS if run.kind == "full")
    repeated = [cell for cell, count in cells.items() if count == plan.REPEATS]
    assert len(repeated) == 2 * len(WORKLOADS)


@given(
    st.sampled_from(plan.jobs()),
    st.floats(1e-4, 1.0),
    st.integers(plan.SECONDS.shortest_s.__trunc__(), 500),
)
def test_a_job_is_longer_than_its_partial_run(
    job: plan.MiniJob, step_s: float, partial_steps: int
) -> None:
    total = plan.total_steps(job, anchor_step_s=step_s, partial_steps=partial_steps)
    assert total >= 2 * partial_steps
    assert total * step_s >= plan.SECONDS.shortest_s
    assert total <= max(2 * partial_steps, plan.SECONDS.longest_s / step_s + 1)


def test_prices_rise_with_cores_and_network() -> None:
    single = MiniLayout()
    prices = [nominal_price_usd_per_h(i, single) for i in (HALF, ANCHOR, TWO)]
    assert prices == sorted(prices)
    fast, slow = (
        nominal_price_usd_per_h(HALF, MiniLayout(kind="allreduce", workers=2, rate_bit_per_s=rate))
        for rate in (1e9, 1e8)
    )
    assert fast > slow > prices[0]


@pytest.mark.parametrize("limits", [{"quota": 1.5}, {"quota": 0.0}, {"cores": 0}, {"threads": 0}])
def test_impossible_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        MiniInstance(name="broken", **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "workers"), [("single", 2), ("allreduce", 1), ("single", 0)])
def test_impossible_layouts_are_refused(kind: str, workers: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        MiniLayout(kind=kind, workers=workers)  # type: ignore[arg-type]


# The plan of minutes --------------------------------------------------------------------------

LONG = tuple(plan.plan(plan.MINUTES))


@given(st.sampled_from(plan.jobs()), st.floats(1e-4, 1.0), st.integers(12, 5000))
def test_a_partial_run_of_a_job_of_minutes_sees_a_twentieth_at_most(
    job: plan.MiniJob, step_s: float, partial_steps: int
) -> None:
    total = plan.total_steps(
        job, anchor_step_s=step_s, partial_steps=partial_steps, scale=plan.MINUTES
    )
    assert partial_steps <= total / 20
    assert total * step_s >= plan.MINUTES.shortest_s
    assert total <= max(20 * partial_steps, plan.MINUTES.longest_s / step_s + 1)


def test_a_plan_of_minutes_that_is_stopped_early_has_every_workload_on_all_that_matters() -> None:
    first = LONG[: 8 * len(WORKLOADS)]
    where: dict[str, set[str]] = {}
    for run in first:
        where.setdefault(run.job.workload, set()).add(f"{run.instance.name} {run.layout.name}")
    assert set(where) == set(WORKLOADS)
    (same,) = {frozenset(some) for some in where.values()}
    assert {ANCHOR.name + " single", TWO.name + " single", HALF.name + " single"} <= same
    assert len({run.job for run in first}) == len(WORKLOADS)
    widths = [run.job.width for run in LONG if run.kind == "partial"]
    assert len(set(widths)) > len(WORKLOADS)  # the other widths follow


def test_jobs_of_minutes_run_on_many_shapes_and_two_to_four_ranks_over_slow_links() -> None:
    assert len({run.key for run in LONG}) == len(LONG)
    assert {run.job.workload for run in LONG} == set(WORKLOADS)
    full = [run for run in LONG if run.kind == "full"]
    ranks = {run.layout.workers for run in full if run.layout.kind == "allreduce"}
    assert ranks == {2, 3, 4}
    rates = {run.layout.rate_bit_per_s for run in full if run.layout.kind != "single"}
    assert len(rates) >= 3
    assert None not in rates
    assert len({run.instance.granted_cores for run in full}) >= 5
    assert len({run.instance.memory_headroom_bytes for run in full}) == 3
    assert max(run.layout.nodes for run in LONG) <= plan.MINUTES.nodes
    seen = set()
    for run in LONG:
        seen |= {run.job} if run.kind == "partial" else set()
        assert run.job in seen
    assert [run.scale.name for run in RUNS[:3]] == ["seconds"] * 3


def test_what_is_left_follows_the_pace_of_what_was_made() -> None:
    some = [run for run in LONG if run.job == LONG[0].job]
    full = [run for run in some if run.kind == "full"]
    alone = [run for run in full if run.layout.kind == "single"]
    half = next(run for run in alone if run.instance is HALF)
    whole = next(run for run in alone if run.instance is ANCHOR)
    assert declared_s(half) == pytest.approx(2 * declared_s(whole))
    two, four = (
        next(r for r in full if r.layout.workers == workers and r.layout.kind == "allreduce")
        for workers in (2, 4)
    )
    assert declared_s(two) == pytest.approx(2 * declared_s(four))  # of half a core each
    pace = Pace(some)
    planned_s = pace.left_s(full)
    assert planned_s == pytest.approx(sum(map(declared_s, full)))
    pace.add({"key": half.key, "wall_s": 1.5 * declared_s(half), "nodes": [{"setup_s": 0.0}]})
    rest = [run for run in full if run not in alone]
    assert pace.left_s(alone) == pytest.approx(1.5 * sum(map(declared_s, alone)))
    assert pace.left_s(rest) == pytest.approx(sum(map(declared_s, rest)))
    pace.add({"key": "full/of/another/plan", "wall_s": 1e9})
    pace.add({"key": whole.key, "status": "failed"})  # took no time that is known
    assert pace.left_s(alone) == pytest.approx(1.5 * sum(map(declared_s, alone)))
    assert 10 < Pace(LONG).left_s(LONG) / 3600 < 25  # hours


def test_machines_of_minutes_cost_what_the_closest_of_the_catalogue_do() -> None:
    from advisor.catalogue import Catalogue
    from advisor.lab.data.miniature import closest_prices

    catalogue = Catalogue.load()
    found = closest_prices(catalogue)
    prices = MiniPrices(
        by_shape={k: (float(v["usd_per_h"]), str(v["source"])) for k, v in found.items()}
    )
    sold = catalogue.prices.on_demand_usd_per_h
    for run in LONG:
        usd, source = prices.of(run.instance, run.layout)
        provider, name, region = source.split(" ", 2)
        row = catalogue.instance_type(name, provider=provider)
        assert not catalogue.types.accelerator[row.index]
        here = (catalogue.prices.type_index == row.index) & (catalogue.prices.region == region)
        assert usd in sold[here]
        if run.layout.kind == "single":  # a core stands for four virtual CPUs
            ratio = (row.vcpus or 0) / (4 * run.instance.granted_cores)
            assert 0.6 < ratio < 1.7
    # A machine of twice the virtual CPUs costs about twice: no burstable one stands for its size.
    alone = [prices.by_shape[f"{cores:g} cores, 0 Mbit/s"][0] for cores in (0.25, 0.5, 1.0, 2.0)]
    assert all(1.5 < more / less < 3.0 for less, more in itertools.pairwise(alone))
    assert MiniPrices(by_shape={}).of(HALF, MiniLayout())[1] == "synthetic"
