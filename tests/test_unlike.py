"""Ways over unlike machines: laws that hold for a recorded and for a described model alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_models import convolutions, transformer

from advisor.answer import Answer
from advisor.catalogue import Catalogue
from advisor.estimate.knowledge.laws import ModelOn, model_on, unit_table, with_layers
from advisor.estimate.predictor import Predictor
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.unlike.ways import WAYS, UnlikeWay, unlike_choices
from advisor.estimate.ways import uneven as uneven_batches
from advisor.estimate.ways.recorded_units import UnitModel
from advisor.jobs.job import Job
from advisor.machines.cluster import Cluster, parse_cluster
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import Precision, Transformer, transformer_parameters
from advisor.planners.layouts.described_units import transformer_layers
from advisor.planners.memory import without_terms
from advisor.planners.memory.recorded_steps import recorded_activation_bytes
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.model_units import TransformerBlocks, transformer_blocks, work_units
from advisor.rank.given import PlanQuestion, plan

MakeJob = Callable[..., Job]
SMALL = Transformer(layers=12, hidden=768, heads=12, sequence=512, vocabulary=32000)
MIXED = ("a2-highgpu-4g + 2x g2-standard-48", "g5.12xlarge + 2x g6.xlarge")


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def described(precision: Precision = "bf16") -> Work:
    return transformer_work(SMALL, micro_batch=1, precision=precision)


def in_fp32() -> Work:
    return described("fp32")


def job_of(make_job: MakeJob, work: Work, batch: int = 64) -> Job:
    """A job of which nothing was measured."""
    job = make_job(work=work, global_batch=batch, recorded_batch=work.micro_batch)
    return replace(job, measured=None, peak_rss_bytes=0)


def on(job: Job, cluster: Cluster) -> ModelOn:
    return model_on(predictor().case(job), cluster)


def chosen(job: Job, cluster: Cluster) -> dict[str, Answer]:
    found, _ = unlike_choices(on(job, cluster), cluster, global_batch=job.global_batch)
    return {c.name: c for c in found}


WORKS = pytest.mark.parametrize("make", [transformer, convolutions, described, in_fp32])


@WORKS
@pytest.mark.parametrize("kind", ["g2-standard-48", "g5.12xlarge"])
def test_two_groups_of_one_machine_are_one_group_of_both(
    make_job: MakeJob, make: Callable[[], Work], kind: str
) -> None:
    job = job_of(make_job, make())
    (group,) = parse_cluster(f"2x {kind}", predictor().catalogue)
    halves = tuple(replace(group, label=label, count=1) for label in ("left", "right"))
    whole = chosen(job, (group,))
    apart = chosen(job, halves)
    assert whole.keys() == apart.keys()
    assert {"uneven batches", "uneven batches and state"} <= whole.keys()
    for name, choice in whole.items():
        if choice.layouts:
            # Stages of one width: halves have at least one stage each, one group may have one.
            assert apart[name].step_time_s.value >= choice.step_time_s.value * (1 - 1e-9)
            continue
        assert apart[name].step_time_s.value == pytest.approx(choice.step_time_s.value, rel=1e-9)


@WORKS
@pytest.mark.parametrize("text", MIXED)
def test_an_added_machine_may_be_left_idle(
    make_job: MakeJob, make: Callable[[], Work], text: str
) -> None:
    """The best of all ways on both kinds is no slower than either kind by itself."""
    job = job_of(make_job, make())

    def best_s(cluster: str) -> float:
        question = PlanQuestion(
            job=job, cluster=parse_cluster(cluster, predictor().catalogue), predictor=predictor()
        )
        return plan(question).best.step_time_s.value

    assert best_s(text) <= min(best_s(part) for part in text.split(" + ")) * (1 + 1e-9)


@WORKS
def test_a_plan_holds_the_best_of_every_way(make_job: MakeJob, make: Callable[[], Work]) -> None:
    job = job_of(make_job, make())
    cluster = parse_cluster(MIXED[0], predictor().catalogue)
    found = plan(PlanQuestion(job=job, cluster=cluster, predictor=predictor()))
    by_name = {c.name: c.step_time_s.value for c in found.choices}
    for name, choice in chosen(job, cluster).items():
        assert by_name[name] == pytest.approx(choice.step_time_s.value, rel=1e-9)
    assert {way.name for way in WAYS} <= by_name.keys() | found.left_out.keys()


def test_described_and_recorded_units_take_equally_long(make_job: MakeJob) -> None:
    """A description, and a recording with the same layers, by the law of the operators."""
    cluster = parse_cluster(MIXED[0], predictor().catalogue)
    work = in_fp32()
    model = on(job_of(make_job, work), cluster)
    assert model.law.name == "operators"
    # In the batch that is described: a recording is likened to published steps in the one asked.
    job = replace(job_of(make_job, recorded_form(work, model)), global_batch=work.micro_batch)
    recorded = UnitModel(predictor().case(job))
    for group in model.groups:
        ours, theirs = model.times(group), recorded.times(group.node.device)
        at = [1.0, 4.0, 32.0]
        for mine, seen in zip(ours.at(at), theirs.at(at), strict=True):
            np.testing.assert_allclose(mine.sum(axis=1), seen.sum(axis=1), rtol=1e-9)
        assert ours.log_sd == pytest.approx(theirs.log_sd)


def recorded_form(work: Work, model: ModelOn) -> Work:
    """Return the described work as a recording of it would say it: no dimensions, but layers."""
    return replace(
        work,
        layers=with_layers(work).layers,
        transformer=None,
        saved_bytes_per_sample=float(model.table.saved_bytes.sum()),
    )


def test_described_and_recorded_plans_agree(make_job: MakeJob) -> None:
    cluster = parse_cluster("g5.12xlarge + g6.12xlarge", predictor().catalogue)
    work = in_fp32()
    model = on(job_of(make_job, work), cluster)
    ours = chosen(job_of(make_job, work), cluster)
    theirs = chosen(job_of(make_job, recorded_form(work, model)), cluster)
    for name in ("uneven batches", "uneven batches and state"):
        for split in ("samples_by_device", "batches"):
            assert ours[name].details.get(split) == theirs[name].details.get(split)
        # Links: the layout model's ring and the data-parallel model's hierarchy.
        assert ours[name].step_time_s.value == pytest.approx(
            theirs[name].step_time_s.value, rel=0.15
        )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6), st.sampled_from([64, 192]), st.sampled_from([1, 2, 4]), st.booleans(),
    st.booleans(), st.sampled_from([1, 4]), st.integers(0, 3000),
)  # fmt: skip
def test_described_layers_add_up_to_the_model(
    layers: int, hidden: int, kv: int, gated: bool, tied: bool, experts: int, vocabulary: int
) -> None:
    model = Transformer(
        layers=layers, hidden=hidden, heads=4, kv_heads=kv, sequence=32, vocabulary=vocabulary,
        is_gated=gated, has_tied_embeddings=tied, experts=experts,
        experts_per_token=min(2, experts),
    )  # fmt: skip
    found = transformer_layers(model)
    assert sum(x.parameters for x in found) == transformer_parameters(model)
    kept = sum(x.saved_bytes_per_sample for x in found)
    assert kept == pytest.approx(layers * float(recorded_activation_bytes(model, 32)))


def test_described_layers_are_recognised_like_recorded_ones() -> None:
    work = with_layers(described())
    parts = work_units(work)
    blocks = transformer_blocks(work, parts)
    assert isinstance(blocks, TransformerBlocks)
    assert (blocks.blocks, blocks.hidden, blocks.tokens) == (12, 768, 512)
    assert sum(p.is_block for p in parts) == 12


def test_a_described_head_keeps_its_logits() -> None:
    work = with_layers(described())
    parts = work_units(work)
    few, many = (unit_table(work, parts, logit_bytes=b).saved_bytes for b in (0.0, 6.0))
    assert many[-1] - few[-1] == pytest.approx(6.0 * 512 * 32000)
    np.testing.assert_array_equal(many[:-1], few[:-1])


@WORKS
def test_shards_of_all_workers_are_the_whole_state(
    make_job: MakeJob, make: Callable[[], Work]
) -> None:
    """ZeRO 1 divides the optimizer's state, 2 the gradients too, and nothing is lost."""
    cluster = parse_cluster(MIXED[0], predictor().catalogue)
    model = on(job_of(make_job, make()), cluster)

    def each(workers: int, zero_stage: int = 0) -> float:
        return float(without_terms(model.law.parameter(workers, zero_stage)))

    whole, buckets = each(1), each(8) - each(1)
    one, two = each(8, 1), each(8, 2)
    assert whole + buckets > one > two
    optimizer = (whole + buckets - one) * 8 / 7
    gradients = (one - buckets - two) * 8 / 7
    assert 0 < optimizer + gradients < whole


def test_what_fits_only_in_shards_is_sharded(make_job: MakeJob) -> None:
    large = Transformer(layers=24, hidden=2048, heads=16, sequence=512, vocabulary=32000)
    job = job_of(make_job, transformer_work(large, micro_batch=1, precision="bf16"))
    found = chosen(job, parse_cluster("g5.12xlarge + 2x g2-standard-24", predictor().catalogue))
    uneven = found["uneven batches"]
    assert uneven.details["zero_stage"] > 0
    assert any("ZeRO stage" in note for note in uneven.notes)


def test_a_new_way_is_a_function_and_a_name(make_job: MakeJob) -> None:
    def never(case: OnGroups) -> Answer:
        raise PlanningError(f"not on {len(case.groups)} groups", hint="ask for another")

    cluster = parse_cluster(MIXED[0], predictor().catalogue)
    found, left_out = unlike_choices(
        on(job_of(make_job, transformer()), cluster),
        cluster,
        global_batch=64,
        ways=(
            UnlikeWay("never", never),
            UnlikeWay(uneven_batches.NAME, uneven_batches.uneven_batches),
        ),
    )
    assert [c.name for c in found] == ["uneven batches"]
    assert left_out == {"never": "not on 2 groups; ask for another"}
