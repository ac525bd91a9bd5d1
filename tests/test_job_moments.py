"""From a traced step to what the planners replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.collectors.format.recording import DeepStep, Loading
from advisor.jobs.recorded_work import input_bytes, moments_of
from advisor.lab.experiments import allocated

DEEP = DeepStep(
    samples=8, micro_batches=1, parameters=1000, trainable_parameters=1000, parameter_bytes=4000,
    optimizer_state_bytes=8000, saved_bytes=16_000, peak_bytes=32_000, precision="fp32",
    device="cpu", is_compiled=False, operators={}, layers={}, flags=(), gradient_bytes=4000,
    memory_frontier=((17_000, 800, 30), (12_000, 20_000, 50)),
)  # fmt: skip


def test_moments_are_the_frontier_less_weights_and_states() -> None:
    end, begin, update = moments_of(DEEP)
    assert (end.gradient_bytes, end.temporary_bytes, end.blocks) == (4000, 1000, 30)
    assert (begin.gradient_bytes, begin.temporary_bytes) == (0, 0)
    assert begin.growing_bytes_per_sample * 8 == 20_000
    assert update.is_update
    assert (update.gradient_bytes, update.temporary_bytes) == (4000, 4000)
    for samples in (1, 8, 100):
        said = 12_000 + max(
            m.gradient_bytes + m.temporary_bytes + m.growing_bytes_per_sample * samples
            for m in (end, begin)
        )
        assert said == pytest.approx(
            max(fixed + growing * samples / 8 for fixed, growing, _ in DEEP.memory_frontier)
        )


def test_autocasts_copies_are_left_to_the_planners() -> None:
    cast = replace(DEEP, precision="bf16", memory_frontier=((14_000, 20_000, 50),))
    first, _ = moments_of(cast)
    assert (first.gradient_bytes, first.temporary_bytes) == (0, 0)
    stored = replace(cast, parameter_bytes=2000)  # in 16 bits: nothing is cast
    first, _ = moments_of(stored)
    assert first.gradient_bytes + first.temporary_bytes == 4000


def test_a_step_that_was_not_followed_has_no_moments() -> None:
    assert moments_of(replace(DEEP, memory_frontier=())) == ()
    assert moments_of(replace(DEEP, samples=0)) == ()


def test_several_passes_may_share_what_was_loaded() -> None:
    loading = Loading(
        batch=64, dataset_samples=None, batches_per_epoch=None, workers=0, wait_s=0.0,
        raw_wait_s=0.0, cpu_s_per_sample=None, sample_bytes=12.0,
    )  # fmt: skip
    assert input_bytes(loading, 21) == input_bytes(loading, 64) == 64 * 12
    assert input_bytes(loading, 128) == 128 * 12
    assert input_bytes(None, 8) == input_bytes(replace(loading, sample_bytes=None), 8) == 0.0


def test_the_measured_peak_is_of_one_step_and_without_the_data_set() -> None:
    mark = (99, allocated._MARK), (99, -allocated._MARK)
    events = [
        (1, 1000), (2, 50), (3, 7), (3, -7), *mark,  # data set, weights; training begins
        (4, 500), (4, -500), *mark,  # another step
        (5, 30), (6, 20), (5, -30), (7, 15), *mark, (8, 900),
    ]  # fmt: skip
    assert allocated.peak_bytes(events, model={2}) == 50 + 30 + 20
    with pytest.raises(ValueError, match="2 marks"):
        allocated.peak_bytes(events[:10], model={2})
