"""From what was seen to the label: laws of the corrected clock."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.lab.minicloud import limits, summary
from advisor.lab.minicloud.collect import priced
from advisor.lab.minicloud.limits import ReadingSeries
from advisor.lab.minicloud.node import NodeReport
from advisor.lab.minicloud.plan import (
    ANCHOR,
    HALF,
    TWO,
    MiniInstance,
    MiniJob,
    MiniLayout,
    MiniPrices,
    MiniRun,
)

SECONDS = st.floats(0.0, 50.0)
RUN = MiniRun(kind="full", job=MiniJob(workload="mlp", width=256, batch=32), instance=HALF)


def quota_simulated(cpu_s: float, granted: float, slot_s: float = 1e-4) -> float:
    """Play one CPU-bound thread under a quota, slot by slot."""
    left, now, grant = cpu_s, 0.0, 0.0
    slots_a_period = round(limits.PERIOD_S / slot_s)
    for slot in range(10_000_000):
        if slot % slots_a_period == 0:
            grant = granted * limits.PERIOD_S
        if left <= slot_s / 2:
            return now
        if grant > slot_s / 2:
            left, grant = left - slot_s, grant - slot_s
        now += slot_s
    raise AssertionError


@pytest.mark.parametrize("granted", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("cpu_s", [0.004, 0.1, 0.33, 1.7])
def test_the_quota_law_is_what_a_simulation_plays(granted: float, cpu_s: float) -> None:
    played = quota_simulated(cpu_s, granted)
    assert limits.quota_s(cpu_s, granted) == pytest.approx(played, abs=2e-3)


@given(st.floats(0.01, 20), st.floats(0.1, 1.0))
def test_a_quota_never_helps_and_costs_its_share_at_most(cpu_s: float, granted: float) -> None:
    law = limits.quota_s(cpu_s, granted)
    assert cpu_s - 1e-9 <= law <= cpu_s / granted + limits.PERIOD_S


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from([ANCHOR, HALF, TWO]))
def test_the_free_time_lies_between_nothing_and_the_wall(
    wall: float, cpu: float, delay: float, throttled: float, instance: MiniInstance
) -> None:
    report = NodeReport(status="ok", wall_s=wall, cpu_s=cpu, delay_s=delay, throttled_s=throttled)
    free = summary.free_time_s([report], instance, wall)
    assert 0.0 <= free <= wall
    assert free >= min(wall, wall - summary.contention_s(report, instance))


def test_without_contention_the_wall_time_is_the_label() -> None:
    report = NodeReport(status="ok", wall_s=4.0, cpu_s=2.0, delay_s=2.0, throttled_s=2.0)
    assert summary.free_time_s([report], HALF, 4.0) == 4.0


def test_waiting_for_others_is_taken_out() -> None:
    report = NodeReport(status="ok", wall_s=4.0, cpu_s=2.0, delay_s=2.0)
    assert summary.free_time_s([report], ANCHOR, 4.0) == pytest.approx(2.0)


def test_a_contended_quota_is_no_faster_than_its_grant() -> None:
    """Half a core taken by others leaves no throttling, and the label still is the quota's."""
    report = NodeReport(status="ok", wall_s=4.0, cpu_s=2.0, delay_s=2.0, throttled_s=0.0)
    assert summary.free_time_s([report], HALF, 4.0) == pytest.approx(4.0, abs=limits.PERIOD_S)


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=200), st.integers(1, 60))
def test_blocks_keep_the_whole_time(times: list[float], count: int) -> None:
    ends = np.cumsum(times)
    edges = np.unique(np.linspace(0, len(times), min(count, len(times)) + 1).astype(int))
    values = summary.blocks(ends, count)
    assert len(values) == len(edges) - 1 <= count
    total_ms = float(np.dot(values, np.diff(edges)))
    assert total_ms == pytest.approx(1e3 * ends[-1], abs=1e-4 * len(times))


def seen(report: NodeReport | None, *, steps: int, wait_status: int = 0) -> summary.Seen:
    return summary.Seen(
        rank=0, report=report, elapsed=np.arange(1.0, steps + 1), delay=np.zeros(steps),
        steps=steps, series=ReadingSeries(), peak_memory_mib=0.0, wait_status=wait_status,
    )  # fmt: skip


NOMINAL = MiniPrices(by_shape={})
OK = NodeReport(status="ok", wall_s=3.0, cpu_s=1.5, delay_s=1.5, throttled_s=1.5)


def test_a_full_run_is_labelled_with_its_time() -> None:
    label = summary.label(RUN, [seen(OK, steps=3)], 3, None)
    assert label["status"] == "ok"
    assert label["time_s"] == 3.0


def test_a_run_that_lacks_steps_is_no_success() -> None:
    assert summary.label(RUN, [seen(OK, steps=2)], 3, None)["status"] == "failed"


def test_a_cut_run_is_censored_at_the_cut() -> None:
    label = summary.label(RUN, [seen(None, steps=2, wait_status=9)], 3, 25.0)
    assert (label["status"], label["time_s"]) == ("censored", 25.0)
    row = {**label, "instance": {}}
    assert "cost_usd" not in priced(row, RUN, NOMINAL)


def test_a_silent_death_under_a_memory_limit_counts_as_out_of_memory() -> None:
    small = dataclasses.replace(HALF, memory_headroom_bytes=1)
    run = dataclasses.replace(RUN, instance=small)
    dead = seen(None, steps=0, wait_status=11)
    assert summary.label(run, [dead], 3, None)["status"] == "oom"
    assert summary.label(RUN, [dead], 3, None)["status"] == "failed"


def test_the_cost_counts_every_machine() -> None:
    layout = MiniLayout(kind="parameter-server", workers=2, rate_bit_per_s=1e9)
    row = {"status": "ok", "time_s": 10.0, "instance": {}}
    ring = dataclasses.replace(RUN, layout=dataclasses.replace(layout, kind="allreduce"))
    served = dataclasses.replace(RUN, layout=layout)
    costs = [priced({**row, "instance": {}}, run, NOMINAL)["cost_usd"] for run in (served, ring)]
    assert costs[0] == pytest.approx(costs[1] * 3 / 2)
    one = priced({**row, "instance": {}}, RUN, NOMINAL)["cost_usd"]
    assert one == pytest.approx((0.005 + 0.04 * 0.5) * 10.0 / 3600)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, False),
        ({"correction_fraction": 0.31}, True),
        ({"nodes": [{"cpu_s": 1.4}]}, True),  # 1.4 x the anchor's CPU time a step
        ({"nodes": [{"cpu_s": 1.4}], "instance": {"threads": 2}}, False),
        ({"others_cores": 0.3}, False),
        ({"others_cores": 0.3, "plan": "minutes"}, True),  # wants the machine to itself
        ({"others_cores": 0.1, "plan": "minutes"}, False),
        ({"others_cores": 0.3, "plan": "minutes", "status": "oom"}, False),
        ({"status": "oom"}, False),
        ({"status": "censored", "delay_fraction": None}, False),
        ({"status": "censored", "delay_fraction": 0.5}, True),
    ],
)
def test_a_disturbed_run_is_called_noisy(changes: dict[str, object], verdict: bool) -> None:
    row = {
        "status": "ok", "correction_fraction": 0.1, "layout": {"kind": "single"},
        "instance": {"threads": 1}, "nodes": [{"cpu_s": 1.0}], "steps_done": 10,
        "others_cores": 0.0,
    }  # fmt: skip
    assert summary.is_noisy(row | changes, 0.1) is verdict
