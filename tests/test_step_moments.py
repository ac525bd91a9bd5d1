"""The replay of a recorded step's allocations: laws, closed forms, a slow caching allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core import Moment, Operators, Work
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.memory.recorded_steps import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
    MemoryParameters,
    base_ledger,
    excess_bytes,
    largest_micro_batch,
    rounding_bytes,
    training_memory_bytes,
)
from advisor.planners.memory.transformers import without_terms

PARAMETERS = MemoryParameters(
    context_bytes=1.0 * GIB, alone_context_bytes=0.8 * GIB, process_bytes=0.5 * GIB, slack=1.1,
    cpu_slack=1.05, logit_bytes=8.0, bucket_fraction=1.0, log_sd=0.1,
)  # fmt: skip
# fp32 and Adam: 4 + 4 + 8 bytes a parameter.
PLAIN = Work(
    operators=Operators.of(()), micro_batch=8, parameters=1_000_000,
    trainable_parameters=1_000_000, parameter_bytes=4e6, optimizer_state_bytes=8e6,
    saved_bytes_per_sample=1e6,
)  # fmt: skip
# The backward pass begins without gradients; it ends with all; the optimizer computes with one.
RECORDED = replace(
    PLAIN,
    moments=(
        Moment(gradient_bytes=0.0, temporary_bytes=0.0, growing_bytes_per_sample=1.2e6, blocks=40),
        Moment(gradient_bytes=4e6, temporary_bytes=1e6, growing_bytes_per_sample=0.1e6, blocks=60),
        Moment(
            gradient_bytes=4e6, temporary_bytes=4e6, growing_bytes_per_sample=0.0, is_update=True
        ),
    ),
)


def needed(work: Work, micro_batch: int, **more: object) -> float:
    given: dict[str, object] = {"is_cpu": True, "parameters": PARAMETERS} | more
    return float(training_memory_bytes(work, micro_batch, **given))


moments = st.builds(
    Moment,
    gradient_bytes=st.floats(0, 4e6),
    temporary_bytes=st.floats(0, 1e8),
    growing_bytes_per_sample=st.floats(0, 1e7),
    blocks=st.integers(1, 10_000),
    is_update=st.booleans(),
)
works = st.lists(moments, min_size=1, max_size=5).map(
    lambda found: replace(PLAIN, moments=tuple(found))
)


def test_of_what_is_sharded_a_moment_holds_one_part_of_many() -> None:
    """ZeRO 2 on d devices: weights whole, and 1/d of state, gradients and the optimizer's work."""
    exact = replace(PARAMETERS, slack=1.0)
    for d in (2, 3, 8, 64):
        for b in (1, 4, 32):
            fullest = max(1.2e6 * b, 4e6 / d + 1e6 + 0.1e6 * b, 4e6 / d + 4e6 / d)
            tensors = exact.context_bytes + 4e6 + 8e6 / d + fullest + rounding_bytes(RECORDED)
            asked: dict[str, object] = {
                "dp": d, "zero_stage": 2, "accumulates": False, "is_cpu": False,
                "parameters": exact,
            }  # fmt: skip
            assert needed(RECORDED, b, **asked) == pytest.approx(tensors)
            # ZeRO 1 shards what the optimizer works on; gradients stay whole, with their buckets.
            whole = max(1.2e6 * b, 4e6 + 1e6 + 0.1e6 * b, 4e6 + 4e6 / d)
            assert needed(RECORDED, b, **(asked | {"zero_stage": 1})) == pytest.approx(
                tensors - fullest + whole + exact.bucket_fraction * 4e6
            )


def test_a_step_takes_its_fullest_moment() -> None:
    for b in (1, 3, 4, 5, 64):
        tensors = 12e6 + max(1.2e6 * b, 5e6 + 0.1e6 * b)
        given = needed(RECORDED, b, accumulates=False)
        assert given == pytest.approx(PARAMETERS.process_bytes + 1.05 * tensors)
        always = 12e6 + max(4e6 + 1.2e6 * b, 5e6 + 0.1e6 * b)
        assert needed(RECORDED, b) == pytest.approx(PARAMETERS.process_bytes + 1.05 * always)


def beside_bytes(work: Work, b: int, gradient_share: float = 1.0, **how: Any) -> float:
    """Return what a step holds beside weights and state."""
    excess = excess_bytes(work, b, gradient_share=gradient_share, **how)
    always = gradient_share * work.gradient_bytes + work.saved_bytes_per_sample * b
    return float(excess) + always


@given(works, st.integers(1, 512), st.sampled_from([1.0, 0.5, 0.01]), st.booleans())
def test_gradients_that_stay_never_take_less(
    work: Work, b: int, share: float, is_cpu: bool
) -> None:
    some, all_of_them = (
        beside_bytes(work, b, gradient_share=share, accumulates=a, is_cpu=is_cpu)
        for a in (False, True)
    )
    assert some <= all_of_them
    plain = [m for m in work.moments if not m.is_update]
    assert all(some >= m.temporary_bytes + m.growing_bytes_per_sample * b for m in plain)
    assert all_of_them >= share * work.gradient_bytes
    assert beside_bytes(work, b + 1, is_cpu=is_cpu) >= beside_bytes(work, b, is_cpu=is_cpu)


@given(works, st.integers(1, 512))
def test_what_is_beside_gradients_and_activations_is_the_same_on_every_shard(
    work: Work, b: int
) -> None:
    saved = max(m.growing_bytes_per_sample for m in work.moments)
    recorded = replace(work, saved_bytes_per_sample=saved)
    whole = excess_bytes(recorded, b, is_cpu=True)
    shard = excess_bytes(recorded, b, gradient_share=0.1, is_cpu=True)
    scale = 4e6 + 1e8 + saved * b
    assert float(shard) == pytest.approx(float(whole), abs=1e-9 * scale)
    assert float(whole) >= -1e-9 * scale


def test_accelerators_update_parameters_in_groups() -> None:
    """One copy of what is updated, of a shard where the update is sharded."""
    beside = [
        beside_bytes(RECORDED, 1, is_cpu=c, update_share=s, accumulates=False)
        for c, s in ((True, 1.0), (False, 1.0), (False, 0.125))
    ]
    assert beside == pytest.approx([5.1e6, 8e6, 5.1e6])


@settings(max_examples=40)
@given(works, st.floats(0.6, 4.0), st.booleans(), st.booleans())
def test_the_largest_micro_batch_is_the_last_of_a_scan(
    work: Work, memory: float, is_cpu: bool, accumulates: bool
) -> None:
    same = {"is_cpu": is_cpu, "accumulates": accumulates, "parameters": PARAMETERS}
    batches = np.arange(1, 401)
    used = training_memory_bytes(work, batches, **same)
    fitting = batches[used <= memory * GIB]
    found = largest_micro_batch(work, memory * GIB, largest=400, **same)  # type: ignore[arg-type]
    assert int(found) == (int(fitting.max()) if fitting.size else 0)


@given(st.integers(1, 64))
def test_units_have_the_same_beside_them(b: int) -> None:
    """What the units keep and hold, with what is beside them, is the whole model's memory."""
    base = float(without_terms(base_ledger(RECORDED, float(b), PARAMETERS)))
    units = PARAMETERS.slack * (16e6 + 1e6 * b)
    assert base + units == pytest.approx(needed(RECORDED, b, is_cpu=False, is_alone=False))


# A slow caching allocator ---------------------------------------------------------------------


@dataclass
class Segment:
    """Memory of the device: blocks in order, as [bytes, owner or None]."""

    size: int
    blocks: list[list[int | None]] = field(default_factory=list)


class CachingAllocator:
    """What ``c10/cuda/CUDACachingAllocator`` documents, block by block, nothing given back."""

    def __init__(self) -> None:
        self.pools: tuple[list[Segment], list[Segment]] = ([], [])

    @property
    def reserved_bytes(self) -> int:
        return sum(segment.size for pool in self.pools for segment in pool)

    def allocate(self, owner: int, size: int) -> None:
        rounded = max(-(-size // BLOCK_BYTES), 1) * BLOCK_BYTES
        is_small = rounded <= MIB
        pool = self.pools[not is_small]
        free = [
            (block[0], segment, i) for segment in pool for i, block in enumerate(segment.blocks)
            if block[1] is None and (block[0] or 0) >= rounded
        ]  # fmt: skip
        if free:
            _, segment, i = min(free, key=lambda found: found[0] or 0)
        else:
            segment, i = Segment(_segment_bytes(rounded)), 0
            segment.blocks.append([segment.size, None])
            pool.append(segment)
        rest = int(segment.blocks[i][0] or 0) - rounded
        if rest >= (BLOCK_BYTES if is_small else MIB + 1):
            segment.blocks[i : i + 1] = [[rounded, owner], [rest, None]]
        else:
            segment.blocks[i][1] = owner

    def free(self, owner: int) -> None:
        for pool in self.pools:
            for segment in pool:
                for block in segment.blocks:
                    if block[1] == owner:
                        block[1] = None
                merged: list[list[int | None]] = []
                for block in segment.blocks:
                    if merged and merged[-1][1] is None and block[1] is None:
                        merged[-1][0] = int(merged[-1][0] or 0) + int(block[0] or 0)
                    else:
                        merged.append(block)
                segment.blocks = merged


def _segment_bytes(rounded: int) -> int:
    if rounded <= MIB:
        return SMALL_SEGMENT_BYTES
    if rounded < 10 * MIB:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // (2 * MIB)) * 2 * MIB


sizes = st.one_of(st.integers(1, MIB), st.integers(MIB, 10 * MIB), st.integers(10 * MIB, 64 * MIB))


def replayed(steps: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return the largest live bytes and blocks, and what was reserved, of sizes and lifetimes."""
    allocator, live = CachingAllocator(), dict[int, tuple[int, int]]()
    most = blocks = 0
    for now, (size, lasts) in enumerate(steps):
        for owner in [o for o, (_, until) in live.items() if until <= now]:
            allocator.free(owner)
            del live[owner]
        allocator.allocate(now, size)
        live[now] = size, now + lasts
        most = max(most, sum(s for s, _ in live.values()))
        blocks = max(blocks, len(live))
    return most, blocks, allocator.reserved_bytes


@given(st.lists(st.tuples(sizes, st.integers(1, 20)), min_size=1, max_size=60))
def test_segments_hold_at_least_what_lives(steps: list[tuple[int, int]]) -> None:
    most, _, reserved = replayed(steps)
    assert reserved >= most >= max(size for size, _ in steps)


@given(st.lists(st.integers(1, MIB), min_size=1, max_size=200))
def test_rounding_is_all_that_the_allocator_adds_where_nothing_is_freed(sizes: list[int]) -> None:
    """Blocks of a pool fill its segments one after the other: granules and the last segment."""
    most, blocks, reserved = replayed([(size, len(sizes)) for size in sizes])
    moment = Moment(
        gradient_bytes=0.0, temporary_bytes=0.0, growing_bytes_per_sample=0.0, blocks=blocks
    )
    # What a block finds too little room for stays open in its segment: half of it at most.
    assert most <= reserved <= 2 * (most + rounding_bytes(replace(PLAIN, moments=(moment,))))


@given(st.lists(st.integers(1, 32).map(lambda n: n * 2 * MIB + 10 * MIB), min_size=1, max_size=40))
def test_large_blocks_of_whole_segments_are_reserved_as_they_are(sizes: list[int]) -> None:
    most, blocks, reserved = replayed([(size, len(sizes)) for size in sizes])
    assert reserved == most
    assert blocks == len(sizes)


@given(works)
def test_rounding_grows_with_blocks_and_is_nothing_without_a_recording(work: Work) -> None:
    blocks = max(m.blocks for m in work.moments)
    segments = SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES
    assert rounding_bytes(work) == BLOCK_BYTES * blocks + segments
    assert rounding_bytes(PLAIN) == 0.0
