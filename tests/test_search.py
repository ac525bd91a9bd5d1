from __future__ import annotations

import itertools
import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import search

from advisor.planners.core.arrays import Layouts, Machines, Software, shapes_of
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.problem import (
    INDISTINGUISHABLE,
    LayoutProblem,
    SearchSpace,
    divisors,
    splits,
)
from advisor.planners.layouts.search import node_counts
from advisor.planners.layouts.time import step_times
from advisor.planners.memory.transformers import host_bytes, needed_bytes

SMALL = Transformer(layers=4, hidden=1024, heads=8, sequence=1024, vocabulary=32000)
NODE = Machines(
    flop_per_s=271e12,
    memory_bytes_per_s=2e12,
    memory_bytes=24 * GIB,
    intra_bytes_per_s=300e9,
    network_bytes_per_s=50e9,
    devices_per_node=4,
    host_memory_bytes=400 * GIB,
)


OFFLOADS = ("optimizer", "parameters", "activations")


def every_layout(
    shape: Transformer, devices: int, batch: int, per_node: int
) -> list[dict[str, Any]]:
    """Write down every valid layout, one by one, by trying all numbers.

    Tensor-parallel ranks always share the sequence.
    """
    rows = []
    numbers = range(1, devices + 1)
    for dp, tp, pp, cp in itertools.product(numbers, repeat=4):
        if dp * tp * pp * cp != devices or shape.heads % tp or batch % dp or cp > 16:
            continue
        if (pp - 1) * -(-shape.layers // pp) >= shape.layers:
            continue
        if cp > 1 and shape.sequence % (2 * cp):
            continue
        kv_heads = shape.kv_heads or shape.heads
        if kv_heads % tp and tp % kv_heads:
            continue
        for ep in range(1, shape.experts + 1):
            if shape.experts % ep or dp % ep:
                continue
            for micro in range(1, batch // dp + 1):
                if batch // dp % micro:
                    continue
                steps = batch // dp // micro
                rows += _choices(shape, (dp, tp, pp, cp, ep, micro, steps), per_node)
    return rows


def _choices(shape: Transformer, degrees: tuple[int, ...], per_node: int) -> list[dict[str, Any]]:
    dp, tp, pp, cp, ep, micro, steps = degrees
    schedules = [(1, False)]
    if pp > 1:
        schedules.append((1, True))
        if shape.layers % pp == 0 and steps % pp == 0:
            schedules += [
                (v, False) for v in range(2, shape.layers + 1) if shape.layers // pp % v == 0
            ]
    rows = []
    for (v, holds), recompute, zero in itertools.product(schedules, range(3), range(4)):
        ranks = dp * cp
        if zero and ranks == 1:
            continue
        in_node = max(min(per_node // tp, ranks), 1)
        groups = {ranks} | ({in_node} if zero and in_node > 1 and ranks % in_node == 0 else set())
        for group in sorted(groups if zero else {ranks}):
            for optimizer, weights, activations in itertools.product((0, 1), repeat=3):
                if weights and zero != 3:
                    continue
                rows.append(
                    {
                        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep,
                        "micro_batch": micro, "accumulation_steps": steps,
                        "virtual_stages": v, "holds_all": holds, "recompute": recompute,
                        "is_sequence_parallel": int(tp > 1),
                        "zero_stage": zero, "shard_group": group,
                        "offloads_optimizer": optimizer, "offloads_parameters": weights,
                        "offloads_activations": activations,
                    }
                )  # fmt: skip
    return rows


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_no_layout_of_any_small_case_is_missed(data: st.DataObject) -> None:
    """The law of the next test over drawn models, clusters and memories, also where none fits."""
    heads = data.draw(st.sampled_from([2, 4, 6, 8]))
    shape = Transformer(
        layers=data.draw(st.integers(1, 6)),
        hidden=128 * heads,
        heads=heads,
        sequence=data.draw(st.sampled_from([256, 512, 1024])),
        vocabulary=32000,
        is_gated=data.draw(st.booleans()),
        experts=data.draw(st.sampled_from([1, 1, 2])),
    )
    nodes, batch = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([4, 6, 8, 12]))
    memory_gib = data.draw(st.sampled_from([3.2, 4.0, 6.0, 24.0]))
    if check_against_all(shape, nodes, batch, memory_gib):
        return
    with pytest.raises(PlanningError) as caught:
        search(shape, replace(NODE, memory_bytes=memory_gib * GIB), nodes, batch)
    assert caught.value.exit_code == 3


def test_memory_of_a_search_does_not_grow_with_the_layouts() -> None:
    """Blocks of columns: ten times the layouts take hardly more memory.

    Beside the axis of splits, which is kept for the next question (``splits``).
    """
    import tracemalloc

    large = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    machines = replace(NODE, memory_bytes=80 * GIB, devices_per_node=8)

    def peak(transformer: Transformer, nodes: int, batch: int) -> tuple[int, int]:
        search(transformer, machines, nodes, batch)
        tracemalloc.start()
        search(transformer, machines, nodes, batch)
        found = np.size(splits(transformer, nodes * 8, batch, SearchSpace()).dp)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, used

    few, small = peak(large, 16, 768)
    # Experts as wide as a dense block would not fit: 64 of a 64th of its width.
    many, big = peak(replace(large, experts=64, ffn=768), 128, 15360)
    assert many > 10 * few
    assert big < 1.5 * small


@pytest.mark.parametrize(
    ("shape", "nodes", "batch", "memory_gib"),
    [
        (SMALL, 1, 8, 24.0),
        (SMALL, 2, 12, 24.0),
        (SMALL, 2, 8, 5.0),
        (replace(SMALL, layers=6, kv_heads=2, is_gated=True), 2, 16, 8.0),
        (replace(SMALL, experts=4, experts_per_token=2), 1, 8, 12.0),
    ],
)
def test_search_equals_trying_every_layout_one_by_one(
    shape: Transformer, nodes: int, batch: int, memory_gib: float
) -> None:
    assert check_against_all(shape, nodes, batch, memory_gib)


def columns_of(rows: list[dict[str, Any]]) -> Layouts:
    return Layouts(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


def fitting_rows(shape: Transformer, rows: list[dict[str, Any]], memory_gib: float) -> np.ndarray:
    layouts = columns_of(rows)
    machines = replace(NODE, memory_bytes=memory_gib * GIB)
    used = needed_bytes(shapes_of(shape), layouts, Software())
    on_host = host_bytes(shapes_of(shape), layouts, machines, Software())
    return (used <= machines.memory_bytes) & (on_host <= machines.host_memory_bytes)


def check_against_all(shape: Transformer, nodes: int, batch: int, memory_gib: float) -> bool:
    """Hold a search against every layout; False where none of them fits.

    It looks at those that could be faster than what fits, by their bounds: at all where nothing
    does.
    """
    rows = every_layout(shape, nodes * 4, batch, 4)
    fits = fitting_rows(shape, rows, memory_gib) if rows else np.zeros(0, dtype=bool)
    if not fits.any():
        return False
    stays = np.array([not any(row[f"offloads_{o}"] for o in OFFLOADS) for row in rows])
    machines = replace(NODE, memory_bytes=memory_gib * GIB)
    found = search(shape, machines, nodes, batch)
    times = step_times(
        LayoutCase(
            shapes=shapes_of(shape),
            layouts=columns_of([row for row, fit in zip(rows, fits, strict=True) if fit]),
            machines=machines,
            software=Software(),
            parameters=LayoutParameters(),
        )
    )
    assert 1 <= found.considered <= len(rows)
    assert 1 <= found.fitting <= np.count_nonzero(fits)
    if not (fits & stays).any():
        assert found.considered == len(rows)
        assert found.fitting == np.count_nonzero(fits)
    assert found.best is not None
    least_s, stay_s = times.step_s.min(), times.step_s[stays[fits]].min(initial=np.inf)
    moves = stay_s / INDISTINGUISHABLE > least_s
    assert found.best.step_s == pytest.approx(least_s if moves else stay_s, rel=1e-12)
    layout = found.best.layout
    assert bool(layout.offload) == moves
    assert layout.devices == nodes * 4
    assert layout.global_batch == batch
    return True


def test_the_found_layout_evaluates_to_the_found_time() -> None:
    found = search(SMALL, NODE, 2, 16).best
    assert found is not None
    layout = found.layout
    layouts = layout_columns(layout)
    times = step_times(
        LayoutCase(
            shapes=shapes_of(SMALL),
            layouts=layouts,
            machines=NODE,
            software=Software(),
            parameters=LayoutParameters(),
        )
    )
    assert float(times.step_s) == pytest.approx(found.step_s)
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)


def test_the_same_question_has_the_same_answer() -> None:
    assert search(SMALL, NODE, 2, 16) == search(SMALL, NODE, 2, 16)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([8.0, 12.0, 24.0, 80.0]), st.sampled_from([4, 8, 16]))
def test_more_memory_never_slows_the_best_down(memory_gib: float, batch: int) -> None:
    less = search(SMALL, replace(NODE, memory_bytes=memory_gib * GIB), 1, batch)
    more = search(SMALL, replace(NODE, memory_bytes=2 * memory_gib * GIB), 1, batch)
    # What fits without moving anything may take a little longer than what moves.
    assert more.least_s <= less.least_s * INDISTINGUISHABLE
    plain = SearchSpace(offloads=())
    staying, roomy = (
        search(SMALL, replace(NODE, memory_bytes=gib * GIB), 1, batch, space=plain).least_s
        for gib in (memory_gib, 2 * memory_gib)
    )
    assert roomy <= staying
    assert less.least_s <= staying


def test_a_smaller_space_never_beats_the_whole() -> None:
    whole = search(SMALL, NODE, 2, 16)
    plain = search(
        SMALL,
        NODE,
        2,
        16,
        space=SearchSpace(recomputes=("full",), offloads=(), zero_stages=(0, 1)),
    )
    assert whole.least_s <= plain.least_s
    assert plain.best is not None
    assert not plain.best.layout.offload
    assert plain.best.layout.recompute == "full"


@given(st.integers(1, 3000))
def test_divisors_divide_and_none_is_missing(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_no_stage_is_empty_and_every_batch_adds_up() -> None:
    axis = splits(replace(SMALL, layers=7), 8, 24, SearchSpace())
    assert np.all((axis.pp - 1) * -(-7 // axis.pp) < 7)
    assert np.all(axis.dp * axis.micro_batch * axis.accumulation_steps == 24)
    assert np.all(axis.dp * axis.tp * axis.pp * axis.cp == 8)


def test_a_model_that_fits_nowhere_names_the_nearest_miss() -> None:
    huge = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    machines = replace(NODE, host_memory_bytes=0.0)
    with pytest.raises(PlanningError, match=r"misses by \d+\.\d GiB") as caught:
        search(huge, machines, 2, 8)
    assert "it would fit with devices of" in caught.value.hint
    assert caught.value.exit_code == 3


def test_nothing_that_divides_is_said_so() -> None:
    odd = Transformer(layers=1, hidden=1023, heads=11, sequence=1023, vocabulary=999)
    with pytest.raises(PlanningError, match="nothing divides"):
        search(odd, NODE, 2, 7)


@pytest.mark.parametrize(
    "change", [{"layers": 0}, {"hidden": -1}, {"heads": 3}, {"sequence": 0}, {"layers": 10**6}]
)
def test_absurd_sizes_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(PlanningError):
        search(Transformer(**{**asdict(SMALL), **change}), NODE, 2, 8)


@pytest.mark.parametrize(("nodes", "batch"), [(0, 8), (1, 0), (10**7, 8), (1, 10**9)])
def test_absurd_counts_are_refused(nodes: int, batch: int) -> None:
    with pytest.raises(PlanningError, match="out of range"):
        search(SMALL, NODE, nodes, batch)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"tp": -1}, "tp -1 does not divide 8"), ({"pp": -1}, "pp -1 does not divide 8"),
        ({"tp": 3}, "tp 3 does not divide 8"), ({"pp": 3}, "pp 3 does not divide"),
        ({"tp": -2}, "does not divide"), ({"tp": 4, "pp": 4}, "tp 4 x pp 4 does not divide 8"),
        ({"pp": 8}, "4 layers do not fill 8 stages"),
    ],
)  # fmt: skip
def test_each_constraint_that_cannot_be_is_refused_alone(space: dict[str, int], says: str) -> None:
    with pytest.raises(PlanningError, match=says) as caught:
        search(SMALL, NODE, 2, 16, space=SearchSpace(**space))  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_heads_and_stages_that_do_not_come_out_even_name_what_does() -> None:
    odd = replace(SMALL, heads=6, hidden=768, layers=5)
    with pytest.raises(PlanningError, match="6 heads do not divide over tp 4") as caught:
        search(odd, NODE, 2, 16, space=SearchSpace(tp=4))
    assert caught.value.hint == "tp may be 1, 2"  # of 8 devices, too
    with pytest.raises(
        PlanningError, match="5 layers over pp 4 leave the last stage empty"
    ) as cut:
        search(odd, NODE, 2, 16, space=SearchSpace(pp=4))
    assert cut.value.hint == "pp may be 1, 2"


def test_a_batch_that_leaves_no_layout_names_the_nearest_one_that_does() -> None:
    """One device a head: the batch must be a multiple of the replicas."""
    alone = replace(NODE, devices_per_node=1)
    odd = Transformer(layers=1, hidden=1023, heads=11, sequence=1023, vocabulary=999)
    with pytest.raises(PlanningError, match="nothing divides") as caught:
        search(odd, alone, 5, 8)
    assert caught.value.hint == "a batch of 10 divides"
    with pytest.raises(PlanningError, match="nothing divides") as caught:
        search(odd, alone, 5, 7)
    assert caught.value.hint == "a batch of 5 divides"
    with pytest.raises(PlanningError, match="no data parallelism"):
        search(SMALL, NODE, 2, 1, space=SearchSpace(zero_stages=(2,), tp=8))
    with pytest.raises(PlanningError, match="a micro-batch of 3 leaves no layout"):
        search(SMALL, NODE, 1, 16, space=SearchSpace(micro_batch=3))


@pytest.mark.parametrize(
    ("memory_gib", "kept_gib", "model"),
    [(2.0, 0.0, SMALL), (3.0, 1.5, SMALL), (4.0, 0.5, replace(SMALL, layers=64, hidden=4096))],
)
def test_what_a_miss_says_would_fit_does_fit(
    memory_gib: float, kept_gib: float, model: Transformer
) -> None:
    """As many bytes as are missing in each device, or as many devices; none where none is said."""
    machines = replace(
        NODE, memory_bytes=memory_gib * GIB, kept_free_bytes=kept_gib * GIB,
        host_memory_bytes=0.0 if model is SMALL else NODE.host_memory_bytes,
    )  # fmt: skip
    problem = LayoutProblem(transformer=model, machines=machines)
    found = problem.search(8, 16, SearchSpace())
    assert found.nearest is not None
    excess = found.nearest[0]
    with pytest.raises(PlanningError) as caught:
        search(model, machines, 2, 16)
    said = re.match(
        r"it would fit with devices of (\d+) GiB(, with (\d+) devices)?, or ", caught.value.hint
    )
    assert said is not None
    larger = replace(machines, memory_bytes=int(said[1]) * GIB)
    assert search(model, larger, 2, 16).best is not None
    for count in (32, 64, 128):
        fits = problem.search(count, 16, SearchSpace()).best is not None
        assert fits == (said[3] is not None and count >= int(said[3]))
    room = (memory_gib - kept_gib) * GIB
    assert f"misses by {excess / GIB:.1f} GiB" in str(caught.value)
    assert f"needs {(room + excess) / GIB:.1f} GiB" in str(caught.value)
    assert ("is kept free" in str(caught.value)) == (kept_gib >= 1)


def test_smaller_clusters_are_powers_of_two_and_the_whole() -> None:
    assert node_counts(6) == [1, 2, 4, 6]
    assert node_counts(8) == [1, 2, 4, 8]
