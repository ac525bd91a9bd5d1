"""Data-parallel steps against an event simulation of buckets, and the laws of scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planners.links.collectives import (
    CollectiveParameters,
    hierarchical_all_reduce_s,
    hierarchical_broadcast_s,
)
from advisor.planners.links.gradients import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
    expected_maximum,
    exposed_s,
)

PARAMETERS = ScalingParameters(
    collectives=CollectiveParameters(
        launch_s=3e-5,
        intra_step_s=4e-6,
        network_step_s=4e-5,
        intra_efficiency=0.77,
        network_efficiency=0.6,
        stream_bytes_per_s=1e9,
        rdma_from_bytes_per_s=12.5e9,
    ),
    bucket_bytes=25 * 2**20,
    overlap_fraction=0.6,
    straggler_sd_fraction=0.02,
    log_sd_compute=0.05,
    log_sd_communication=0.5,
    log_sd_per_doubling=0.1,
    fitted_workers=64,
)


def step(**changes: Any) -> DataParallelColumns:
    arguments: dict[str, Any] = {
        "micro_batch_s": 0.3,
        "backward_s": 0.2,
        "optimizer_s": 0.01,
        "accumulation_steps": 1,
        "gradient_bytes": 4e8,
        "nodes": 4,
        "devices_per_node": 4,
        "intra_bytes_per_s": 1e10,
        "intra_latency_s": 1e-5,
        "network_bytes_per_s": 5e9,
        "network_latency_s": 3e-5,
        "parameters": PARAMETERS,
    }
    return data_parallel_step(**(arguments | changes))


def simulated_exposed(communication_s: float, backward_s: float, buckets: int) -> float:
    """Backward makes the buckets one after another; one channel sends them in order."""
    channel_free = 0.0
    for bucket in range(1, buckets + 1):
        ready = backward_s * bucket / buckets
        channel_free = max(channel_free, ready) + communication_s / buckets
    return channel_free - backward_s


@given(
    communication=st.floats(0.0, 100.0), backward=st.floats(0.0, 100.0), buckets=st.integers(1, 60)
)
def test_exposed_communication_equals_its_simulation(
    communication: float, backward: float, buckets: int
) -> None:
    closed = float(exposed_s(communication, backward, buckets))
    simulated = simulated_exposed(communication, backward, buckets)
    assert closed == pytest.approx(simulated, abs=1e-9)


@given(
    nodes=st.integers(1, 64),
    devices=st.integers(1, 16),
    steps=st.integers(1, 16),
    gradients=st.floats(1e4, 1e11),
    zero_stage=st.integers(0, 3),
)
def test_parts_are_consistent(
    nodes: int, devices: int, steps: int, gradients: float, zero_stage: int
) -> None:
    columns = step(
        nodes=nodes,
        devices_per_node=devices,
        accumulation_steps=steps,
        gradient_bytes=gradients,
        zero_stage=zero_stage,
    )
    assert 0 <= columns.exposed_s <= columns.communication_s * (1 + 1e-12)
    assert columns.step_s >= columns.compute_s
    assert columns.step_s == pytest.approx(
        columns.compute_s + columns.exposed_s + columns.straggler_s
    )


def test_one_worker_is_just_its_compute() -> None:
    alone = step(nodes=1, devices_per_node=1, accumulation_steps=3)
    assert float(alone.step_s) == pytest.approx(3 * 0.3 + 0.01)
    assert float(alone.communication_s) == 0.0
    assert float(alone.log_sd) == 0.0


@given(st.lists(st.floats(1e5, 1e10), min_size=2, max_size=5))
def test_more_gradients_never_take_less_time(gradients: list[float]) -> None:
    times = step(gradient_bytes=np.sort(gradients)).communication_s
    assert np.all(np.diff(times) >= -1e-12)


def test_throughput_per_worker_falls_with_nodes() -> None:
    assert np.all(np.diff(step(nodes=np.array([1, 2, 4, 8, 16, 64, 256])).step_s) > 0)


def test_accumulation_hides_communication() -> None:
    steps = np.array([1, 2, 4, 8, 64])
    waits = 1 - (steps * 0.3 + 0.01) / step(accumulation_steps=steps).step_s
    assert np.all(np.diff(waits) < 0)


def test_communication_volume_by_zero_stage() -> None:
    """Stages 0 to 2 move 2 volumes without accumulation, stage 3 moves 3."""
    times = step(
        zero_stage=np.array([0, 1, 2, 3]), gradient_bytes=PARAMETERS.bucket_bytes * 100, nodes=1
    ).communication_s
    assert times[2] == pytest.approx(times[1])
    assert times[3] == pytest.approx(1.5 * times[1])
    assert times[0] == pytest.approx(times[1], rel=0.02)  # one launch a bucket instead of two


def test_communication_is_the_collective_times_the_buckets() -> None:
    buckets = 16
    one = hierarchical_all_reduce_s(
        PARAMETERS.bucket_bytes, 4, 4, 1e10, 1e-5, 5e9, 3e-5, PARAMETERS.collectives
    )
    whole = step(gradient_bytes=buckets * PARAMETERS.bucket_bytes).communication_s
    assert float(whole) == pytest.approx(buckets * float(one))


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_buffers_go_to_replicas_before_each_step_and_nothing_hides_them(
    is_pipelined: bool,
) -> None:
    more = {"buffer_bytes": 3e8, "is_pipelined": is_pipelined}
    links = (4, 4, 1e10, 1e-5, 5e9, 3e-5, PARAMETERS.collectives)
    handed = float(hierarchical_broadcast_s(3e8, *links, is_pipelined=is_pipelined))
    assert handed > 3e8 / 5e9
    for steps in (1, 8):
        without, found = (step(accumulation_steps=steps, **m) for m in ({}, more))
        assert float(found.step_s - without.step_s) == pytest.approx(handed)
        assert float(found.communication_s - without.communication_s) == pytest.approx(handed)
    assert step(zero_stage=3, **more).step_s == step(zero_stage=3).step_s
    alone = {"nodes": 1, "devices_per_node": 1}
    assert step(**alone, **more).step_s == step(**alone).step_s


def test_without_overlap_everything_is_exposed() -> None:
    columns = step(overlaps=False)
    assert float(columns.exposed_s) == pytest.approx(float(columns.communication_s))


def test_expected_maximum_equals_its_quadrature() -> None:
    from scipy.integrate import quad
    from scipy.stats import norm

    for doublings in range(1, 15):
        n = 2**doublings

        def density(x: float, n: int = n) -> float:
            return float(x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1))

        exact, _ = quad(density, -10, 12, limit=200)
        assert float(expected_maximum(n)) == pytest.approx(exact, abs=2e-5)


def test_uncertainty_grows_beyond_the_data() -> None:
    log_sd = step(nodes=np.array([16, 64, 256, 1024]), network_bytes_per_s=1e8).log_sd
    assert np.all(np.diff(log_sd) > 0)


def test_a_hundred_thousand_rows_at_once() -> None:
    nodes = np.arange(100_000) % 64 + 1
    assert step(nodes=nodes).step_s.shape == (100_000,)
