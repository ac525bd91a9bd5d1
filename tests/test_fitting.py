"""Micro-batches and ZeRO stages of data parallelism, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.estimate.answer import reasons
from advisor.estimate.predictor import Predictor
from advisor.estimate.ways.data_parallel import data_parallel, in_equal_parts
from advisor.jobs.describe import described_job, model_work
from advisor.jobs.job import Job
from advisor.planners.core.nouns import Layout
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.step.describe_convolutions import parse_network

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(Catalogue.load(), learned=None)


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_equal_parts_hold_all_samples_and_fit(samples: int, largest: int) -> None:
    largest = min(largest, samples)
    micro, steps = (int(c[0]) for c in in_equal_parts(np.array([samples]), np.array([largest])))
    if largest == 0:
        assert micro == 0
        return
    assert 1 <= micro <= largest
    assert samples <= micro * steps < samples + steps
    divisors = [d for d in range(1, largest + 1) if samples % d == 0]
    if 2 * divisors[-1] > largest:
        assert micro == divisors[-1]
        assert micro * steps == samples
    else:
        assert steps == -(-samples // largest)


def _resnet(batch: int) -> Job:
    network = parse_network("224:64:3x256,4x512,6x1024,3x2048:bottleneck")
    work = model_work(network, micro_batch=1, precision="fp32")
    return described_job(work, name="resnet", global_batch=batch, steps=100_000)


def test_layouts_fixed_by_accumulation_have_it(predictor: Predictor) -> None:
    row = predictor.catalogue.instance_type("g5.12xlarge", provider="aws").index
    one = np.array([row]), np.array([1])
    for steps in (1, 2, 4):
        case = predictor.case(_resnet(64), space=SearchSpace(accumulation_steps=steps))
        found = data_parallel(case, *one)
        assert found.status[0] == 0
        assert found.layout(0).accumulation_steps == steps
        assert found.layout(0).micro_batch == 64 // 4 // steps
    assert data_parallel(predictor.case(_resnet(64), space=SearchSpace(accumulation_steps=3)),
                         *one).status[0] != 0  # fmt: skip


def test_a_script_that_accumulates_keeps_its_micro_batch(predictor: Predictor) -> None:
    row = predictor.catalogue.instance_type("g5.xlarge", provider="aws").index
    one = np.array([row]), np.array([1])
    job = _resnet(64)
    four = replace(job, recorded_batch=4)  # of one sample each

    def layout(job: Job, **asked: Any) -> Layout:
        return data_parallel(predictor.case(job, space=SearchSpace(**asked)), *one).layout(0)

    assert layout(job).micro_batch > 1
    assert (layout(four).micro_batch, layout(four).accumulation_steps) == (1, 64)
    assert layout(four, accumulation_steps=2).micro_batch == 32
    assert layout(four, micro_batch=8).accumulation_steps == 8


def test_a_stage_is_said_to_be_needed_only_where_no_lower_one_fits(predictor: Predictor) -> None:
    case = predictor.case(_resnet(64))
    row = predictor.catalogue.instance_type("p4d.24xlarge", provider="aws").index
    plain = data_parallel(case, np.array([row]), np.array([1]))
    assert plain.layout(0).zero_stage == 0
    step_s = float(plain.step_s[0])
    sharded = replace(plain.layout(0), zero_stage=3)
    said = reasons(case, row, 1, sharded, step_s / 1.25)
    assert said == ("data parallel without shards would take 1.25 times as long",)
    held = replace(case, work=replace(case.work, optimizer_state_bytes=60e9))
    found = data_parallel(held, np.array([row]), np.array([1]))
    assert found.layout(0).zero_stage == 1
    assert reasons(held, row, 1, found.layout(0), 1.0)[0] == "fits only with ZeRO stage 1"


def test_a_last_micro_batch_that_is_smaller_is_said_to_be(predictor: Predictor) -> None:
    case = predictor.case(_resnet(61))
    row = predictor.catalogue.instance_type("g5.xlarge", provider="aws").index
    said = reasons(case, row, 1, Layout(dp=1, micro_batch=31, accumulation_steps=2), 1.0)
    assert said == ("2 micro-batches of 31 keep the batch, the last one smaller",)
