from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from golden_latencies import read
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.arrays import LayerLatency
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.links.collectives import minimum_cut, split_partitions
from advisor.planners.systems.cephalo import Worker
from advisor.planners.systems.zorse import (
    PipelineGroup,
    PipelineJob,
    best_of_groups,
    order_groups,
    schedule_s,
    share_counts,
    share_layers,
)

CASES, LATENCIES = read("zorse_pipelines.json")
MEMORY_GIB = {"a100x40": 40, "a10g": 22.5, "t4": 15}
# Layers, parameters of a layer, hidden: the authors' model_stats.
MODELS = {"deepspeedllama_7b": (32, 202383360, 4096), "deepspeedllama_tiny": (22, 51384320, 2048)}


def golden(case: dict[str, Any]) -> tuple[list[PipelineGroup], PipelineJob]:
    layers, parameters, hidden = MODELS[case["model"]]
    groups = [
        PipelineGroup(
            workers=(
                Worker(
                    name=gpu,
                    memory_bytes=MEMORY_GIB[gpu] * GIB,
                    latency=LATENCIES[case["model"], gpu, case["dtype"]],
                ),
            )
            * count,
            all_gather_s=1e-3 * gather_ms,
            reduce_scatter_s=1e-3 * scatter_ms,
        )
        for gpu, count, gather_ms, scatter_ms in case["groups"]
    ]
    return groups, PipelineJob(
        global_batch=case["global_batch"],
        layers=layers,
        layer_parameters=parameters,
        sequence=case["seq"],
        hidden=hidden,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['name']}-{c['microbatch']}")
def test_pipelines_equal_the_authors_planner(case: dict[str, Any]) -> None:
    groups, job = golden(case)
    found = best_of_groups(
        groups,
        job,
        send_receive_s=lambda _: 1e-3 * float(case["send_recv_ms"]),
        micro_batches=[case["microbatch"]],
    )
    assert found.degree == case["degree"]
    assert list(found.layers) == case["layers"]
    assert [list(c) for c in found.counts] == case["microbatches"]
    assert found.step_s * 1e3 == pytest.approx(case["latency_ms"], rel=1e-9)
    samples_per_s = job.global_batch / found.step_s
    assert samples_per_s == pytest.approx(case["samples_per_s"], rel=1e-9)


def test_collectives_slower_than_compute_rule_the_core() -> None:
    # Seconds against seconds: upstream's slip in the units made these vanish.
    groups, job = golden(CASES[0])
    slow = [
        PipelineGroup(workers=g.workers, all_gather_s=5.0, reduce_scatter_s=5.0) for g in groups
    ]
    found = best_of_groups(slow, job, send_receive_s=lambda _: 0.0, micro_batches=[4])
    most = max(sum(found.layers[g :: len(groups)]) for g in range(len(groups)))
    assert found.core_s == pytest.approx(most * 15.0)


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 40)
)
def test_layers_are_all_shared_out(group_s: list[float], degree: int, more: int) -> None:
    layers = len(group_s) * degree + more
    chunks = share_layers(np.array(group_s), layers, degree)
    assert sum(int(c.sum()) for c in chunks) == layers
    assert min(int(c.min()) for c in chunks) >= 1
    assert max(int(np.ptp(c)) for c in chunks) <= 1


def test_fewer_layers_than_ministages_are_refused() -> None:
    with pytest.raises(PlanningError, match="do not fill"):
        share_layers(np.array([1.0, 2.0]), 3, 2)


def test_a_faster_gpu_takes_more_micro_batches() -> None:
    fast = Worker(
        name="fast",
        memory_bytes=GIB,
        latency=LayerLatency(forward_line=(0.001, 0.0), backward_line=(0.002, 0.0)),
    )
    slow = Worker(name="slow", memory_bytes=GIB, latency=fast.latency.scaled(3.0))
    assert share_counts([fast, slow], 1, 16).tolist() == [12, 4]


def test_a_uniform_pipeline_without_links_costs_start_core_and_drain() -> None:
    worker = Worker(
        name="gpu",
        memory_bytes=80 * GIB,
        latency=LayerLatency(forward_line=(1.0, 0.0), backward_line=(2.0, 0.0)),
    )
    groups = [PipelineGroup(workers=(worker,))] * 2
    counts = [np.array([4]), np.array([4])]
    startup, core, drain = schedule_s(groups, counts, [np.array([3]), np.array([3])], 1, 0.0)
    # Two stages of three layers: forward 3, forward + recomputed backward 9.
    assert (startup, core, drain) == (2 * 3.0, 3 * 3.0 + 4 * 9.0, 2 * 9.0)


def test_what_does_not_fit_is_offloaded_or_refused() -> None:
    groups, job = golden(CASES[0])
    small = [
        PipelineGroup(
            workers=tuple(
                Worker(name=w.name, memory_bytes=10 * GIB, latency=w.latency) for w in g.workers
            )
        )
        for g in groups
    ]
    with pytest.raises(PlanningError, match="nearest misses by"):
        best_of_groups(small, job, send_receive_s=lambda _: 0.003)
    found = best_of_groups(small, job, send_receive_s=lambda _: 0.003, may_offload=True)
    assert found.is_offloaded
    assert max(found.memory_bytes) <= 10 * GIB
    assert found.host_bytes > 0


def test_groups_are_chained_along_the_fast_links() -> None:
    some = golden(CASES[0])[0][0].workers
    groups = [PipelineGroup(workers=some, all_gather_s=t) for t in (0.3, 0.1, 0.2)]
    bandwidth = np.array([[0, 5, 9], [5, 0, 2], [9, 2, 0.0]])
    assert order_groups(groups, bandwidth) == [1, 0, 2]


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_minimum_cut_equals_trying_every_cut(vertices: int, random: Any) -> None:
    w = np.zeros((vertices, vertices))
    for i, j in itertools.combinations(range(vertices), 2):
        w[i, j] = w[j, i] = random.randint(0, 9)
    cuts = []
    for mask in range(1, 2 ** (vertices - 1)):
        side = np.array([False] + [bool(mask >> i & 1) for i in range(vertices - 1)])
        cuts.append(w[side][:, ~side].sum())
    weight, part = minimum_cut(w)
    side = np.isin(np.arange(vertices), part)
    assert weight == min(cuts)
    assert w[side][:, ~side].sum() == weight


def test_slow_links_fall_between_groups() -> None:
    # Machines 0-1 and 2-4 are close to one another, far from each other.
    w = np.ones((5, 5))
    w[:2, :2] = 100.0
    w[2:, 2:] = 50.0
    partitions = split_partitions(w)
    assert partitions[0] == [(0, 1, 2, 3, 4)]
    assert partitions[1] == [(0, 1), (2, 3, 4)]
    assert len(partitions[-1]) == 5


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_splits_refine_one_another(vertices: int, random: Any) -> None:
    w = np.array([[random.random() for _ in range(vertices)] for _ in range(vertices)])
    partitions = split_partitions(w + w.T)
    for k, (coarse, fine) in enumerate(itertools.pairwise(partitions), start=1):
        assert len(coarse) == k
        assert all(any(set(p) <= set(q) for q in coarse) for p in fine)
