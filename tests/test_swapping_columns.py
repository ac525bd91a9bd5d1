"""Layer swapping as one of the ways of every row of machines: one estimate, bounds, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from numpy.typing import NDArray
from recorded_models import transformer as recorded_transformer

from advisor.answer import Recommendation
from advisor.ask import Constraints, LayoutRequest, layout_space
from advisor.catalogue import Catalogue, GpuFilter
from advisor.estimate.best import best_columns
from advisor.estimate.case import SPACE
from advisor.estimate.estimate import estimate_on_type
from advisor.estimate.predictor import Predictor
from advisor.estimate.spot import elastic_workers
from advisor.estimate.time_columns import CODE, STATUSES, TimeColumns, way_name
from advisor.estimate.ways.swapping import LAYER_SWAPPING, NAME, SWAPPING
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.step.describe import transformer_work
from advisor.planners.systems.atom import AVERAGE_EVERY
from advisor.rank.given import PlanQuestion, plan
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]
Integers = NDArray[np.int64]
SWAPS = replace(SPACE, swaps=True)
MODELS = {
    "small": Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257),
    "middle": Transformer(layers=24, hidden=2048, heads=16, sequence=1024, vocabulary=50304),
}


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def described(name: str = "middle", batch: int = 64) -> Job:
    work = transformer_work(MODELS[name], micro_batch=1)
    return described_job(work, name=name, global_batch=batch, steps=20_000)


def recorded(make_job: MakeJob) -> Job:
    work = recorded_transformer()
    return make_job(
        work=work, global_batch=64, recorded_batch=work.micro_batch, step_s=0.5, workers=4
    )


def job_of(kind: str, make_job: MakeJob) -> Job:
    return recorded(make_job) if kind == "recorded" else described()


def rows(name: str, *counts: int) -> tuple[Integers, Integers]:
    row = predictor().catalogue.instance_type(name).index
    return np.full(len(counts), row), np.array(counts)


def only_swapping(job: Job, space: SearchSpace, step: int = 11) -> TimeColumns:
    """Return many rows of accelerators as if no other way could train the job."""
    case, fleet = predictor().case(job, space=space), predictor().fleet
    types = np.flatnonzero(fleet.is_accelerated & fleet.is_supported & (fleet.device >= 0))[::step]
    none = case.no_times(0, np.repeat(types, 3), np.tile([1, 4, 16], len(types)))
    none.status[none.status == 0] = CODE["does_not_fit_in_memory"]
    return LAYER_SWAPPING.columns(case, none)


@pytest.mark.parametrize("kind", ["described", "recorded"])
@pytest.mark.parametrize("every", [None, pytest.param(1, marks=pytest.mark.slow), 64])
def test_plan_and_the_columns_take_the_same_step(
    kind: str, every: int | None, make_job: MakeJob
) -> None:
    """One group of equal machines: the same step, interval, memory and layout in every verb."""
    job = job_of(kind, make_job)
    known = predictor()
    space = replace(SWAPS, average_every=every)
    for name, count in (("g4dn.4xlarge", 4), ("p3.8xlarge", 2)):
        cluster = parse_cluster(f"{count}x {name}", known.catalogue)
        answer = plan(PlanQuestion(
            job=job, cluster=cluster, predictor=known,
            asked=LayoutRequest(swap=True, average_every=every),
        ))  # fmt: skip
        choice = next(c for c in answer.choices if c.name == NAME)
        case = known.case(job, space=space)
        at = rows(name, count)
        none = case.no_times(0, *at)
        none.status[:] = CODE["does_not_fit_in_memory"]
        found = LAYER_SWAPPING.columns(case, none)
        assert found.way[0] == SWAPPING
        assert choice.step_time_s.value == pytest.approx(found.step_s[0], rel=1e-9)
        assert choice.memory_gib * GIB == pytest.approx(found.memory_bytes[0])
        layout = found.layout(0)
        assert layout.average_every == choice.details["average_every"] == (every or AVERAGE_EVERY)
        assert layout.micro_batch == choice.details["micro_batch"]
        assert choice.details["host_gib"] * cluster[0].node.devices * 2**30 == (
            pytest.approx(found.host_bytes[0])
        )
        whole = best_columns(case, *at)
        if whole.way[0] == SWAPPING:
            assert whole.step_s[0] == pytest.approx(choice.step_time_s.value, rel=1e-9)
            bounds = choice.step_time_s
            spread = np.log(bounds.high / bounds.value) / 1.644854
            assert whole.log_sd[0] == pytest.approx(spread, rel=1e-9)


@pytest.mark.parametrize("kind", ["described", "recorded"])
def test_swapping_only_takes_the_place_of_what_it_beats(kind: str, make_job: MakeJob) -> None:
    job = job_of(kind, make_job)
    plain, swaps = predictor().case(job), predictor().case(job, space=SWAPS)
    fleet = predictor().fleet
    every = 7 if kind == "described" else 59
    types = np.flatnonzero(fleet.is_supported & (fleet.device >= 0))[::every]
    at = np.repeat(types, 3), np.tile([1, 2, 8], len(types))
    without, found = best_columns(plain, *at), best_columns(swaps, *at)
    swapped = found.way == SWAPPING
    assert swapped.any()
    assert not swapped.all()
    assert not (without.way == SWAPPING).any()
    could = without.status == 0
    assert np.all(found.step_s[swapped & could] < without.step_s[swapped & could])
    assert np.array_equal(found.step_s[~swapped], without.step_s[~swapped], equal_nan=True)
    assert np.array_equal(found.status[~swapped], without.status[~swapped])
    assert not swapped[~fleet.is_accelerated[at[0]]].any()


@pytest.mark.parametrize("kind", ["described", "recorded"])
def test_a_row_of_swapping_peers_keeps_its_machines_and_the_batch(
    kind: str, make_job: MakeJob
) -> None:
    job = job_of(kind, make_job)
    found = only_swapping(job, SWAPS)
    done = np.flatnonzero(found.way == SWAPPING)
    assert done.size > 10
    fleet = predictor().fleet
    assert np.allclose(sum(share[done] for share in found.shares.values()), 1.0)
    memory = np.array([d.memory_bytes for d in fleet.devices])[fleet.device[found.type_index]]
    assert np.all(found.memory_bytes[done] < memory[done])
    assert np.all(found.host_bytes[done] <= fleet.memory_bytes[found.type_index][done])
    for row in done.tolist():
        layout = found.layout(row)
        assert layout.devices == fleet.per_node[found.type_index[row]] * found.count[row]
        assert job.global_batch <= layout.global_batch < job.global_batch + layout.dp * 64
        assert (layout.recompute, sorted(layout.offload)) == ("full", ["optimizer", "parameters"])
    averaged = found.shares["network"] > 0
    assert np.array_equal(averaged[done], found.workers[done] > 1)


@pytest.mark.parametrize("kind", ["described", "recorded"])
def test_no_step_of_swapping_peers_is_below_its_bound(kind: str, make_job: MakeJob) -> None:
    job = job_of(kind, make_job)
    found = only_swapping(job, SWAPS, step=17)
    case = predictor().case(job, space=SWAPS)
    bound = LAYER_SWAPPING.bound(case, found.type_index, found.count)
    done = found.way == SWAPPING
    assert np.all(bound[done] <= found.step_s[done])
    # Tight where host memory loads faster than the GPU computes, so that rows are left unsearched.
    assert np.any(bound[done] > 0.9 * found.step_s[done])
    slower = replace(found, step_s=np.where(done, found.step_s * 1.001, np.nan))
    assert np.all(LAYER_SWAPPING.could_win(case, slower)[done])
    assert not LAYER_SWAPPING.could_win(case, replace(found, step_s=0.5 * bound))[done].any()


@pytest.mark.parametrize("fixed", [
    {"tp": 2}, {"pp": 2}, {"zero_stages": (1, 2)}, {"recomputes": ("none",)}, {"offloads": ()},
    {"micro_batch": 3}, {"accumulation_steps": 5}, {"min_pp": 2},
])  # fmt: skip
def test_a_layout_that_is_fixed_otherwise_leaves_swapping_out(fixed: dict[str, object]) -> None:
    job = described(batch=64)
    found = only_swapping(job, replace(SWAPS, **fixed))  # type: ignore[arg-type]
    assert not (found.way == SWAPPING).any()
    assert (only_swapping(job, SWAPS).way == SWAPPING).any()


def test_a_fixed_micro_batch_and_interval_are_kept() -> None:
    job = described(batch=64)
    found = only_swapping(job, replace(SWAPS, micro_batch=2, average_every=3))
    done = np.flatnonzero(found.way == SWAPPING)
    assert done.size
    assert np.all(found.micro_batch[done] == 2)
    assert {found.layout(row).average_every for row in done.tolist()} == {3}
    averaging = {
        k: only_swapping(job, replace(SWAPS, average_every=k, micro_batch=1)) for k in (1, 10)
    }
    network = [averaging[k].shares["network"] * averaging[k].step_s * k for k in (1, 10)]
    assert np.allclose(
        network[0], network[1], equal_nan=True
    )  # an exchange is shared over K steps


def test_the_question_asks_for_swapping_and_its_interval() -> None:
    def space(**request: bool | int | None) -> SearchSpace:
        return layout_space(LayoutRequest(**request), SPACE) or SPACE  # type: ignore[arg-type]

    assert not space().swaps
    assert not space(swap=False).swaps
    assert not space(swap=False, average_every=4).swaps
    assert space(swap=True) == SWAPS
    assert space(average_every=4) == replace(SWAPS, average_every=4)


def shown(found: Recommendation) -> list[tuple[object, ...]]:
    return [
        (*((o.provider, o.instance_type, o.region, n) for o, n in c.configuration.parts),
         c.way, c.layout, c.training_time_h.value, c.cost_usd.value)
        for c in found.front
    ]  # fmt: skip


@pytest.mark.parametrize(("gpus", "batch"), [
    (("A10",), 512), (("A100", "T4"), 64),
    pytest.param(("L4", "A10G", "V100"), 64, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_front_is_that_of_the_full_search(gpus: tuple[str, ...], batch: int) -> None:
    request = Constraints(
        least_gain_fraction=0.0,
        gpus=GpuFilter(names=gpus), max_nodes=8 if batch == 512 else 4, top=100, space=SWAPS,
        pricings=("on-demand", "spot") if batch == 64 else ("on-demand",),
        providers=("aws", "gcp", "azure") if batch == 64 else (),
    )  # fmt: skip
    job = described("small" if batch == 512 else "middle", batch)
    whole = recommend(job, request, predictor=predictor(), prunes=False)
    assert shown(recommend(job, request, predictor=predictor())) == shown(whole)
    if gpus == ("A10",):
        assert NAME in {c.way for c in whole.front}


def test_a_recorded_job_has_the_same_front_with_and_without_pruning(make_job: MakeJob) -> None:
    job = recorded(make_job)
    request = Constraints(
        least_gain_fraction=0.0,
        gpus=GpuFilter(names=("V100",)),
        providers=("aws",),
        max_nodes=2,
        top=100,
        space=SWAPS,
    )
    whole = shown(recommend(job, request, predictor=predictor(), prunes=False))
    assert whole
    assert shown(recommend(job, request, predictor=predictor())) == whole


def test_a_candidate_that_swaps_says_what_that_rests_on() -> None:
    request = Constraints(
        least_gain_fraction=0.0, gpus=GpuFilter(names=("V100",)), max_nodes=8, top=100, space=SWAPS
    )
    job = described("small", 512)
    found = recommend(job, request, predictor=predictor())
    swapped = [c for c in found.front if c.way == NAME]
    assert swapped
    for candidate in found.front:
        record = candidate.to_record()
        assert record["way"] == candidate.way
        assert candidate.way
        said = "; ".join(candidate.reasons)
        assert ("no released framework" in said) == (candidate.way == NAME)
        assert ("local SGD" in said) == (record["layout"]["average_every"] > 1)
    assert swapped[0].layout.average_every == AVERAGE_EVERY
    plain = recommend(job, replace(request, space=None), predictor=predictor())
    assert NAME not in {c.way for c in plain.front}


def test_predict_says_the_same_as_recommend() -> None:
    job = described("small", 512)
    request = Constraints(
        least_gain_fraction=0.0, gpus=GpuFilter(names=("V100",)), max_nodes=8, top=100, space=SWAPS
    )
    found = recommend(job, request, predictor=predictor())
    candidate = next(c for c in found.front if c.way == NAME)
    ((offer, count),) = candidate.configuration.parts
    one = estimate_on_type(
        predictor(), job, offer.instance_type, provider=offer.provider, count=count, space=SWAPS
    )
    assert one.way == NAME
    assert one.step_time_s.value == pytest.approx(candidate.step_time_s.value, rel=1e-9)
    assert any("no released framework" in fact.note for fact in one.sources)


def test_what_only_swapping_fits_is_answered_where_it_is_asked_for() -> None:
    """A micro-batch, no shards, everything recomputed: one V100 holds no 1.3 B parameters so."""
    job, known = described("middle", 8), predictor()
    fixed = replace(SPACE, micro_batch=1, zero_stages=(0,), recomputes=("full",))
    lone = parse_cluster("p3.2xlarge", known.catalogue)
    asked = replace(fixed, swaps=True)
    refused = known.step_columns(job, *rows("p3.2xlarge", 1), space=replace(fixed, offloads=()))
    assert STATUSES[refused.status[0]] == "does_not_fit_in_memory"
    found = known.step_columns(job, *rows("p3.2xlarge", 1), space=asked)
    choices = plan(
        PlanQuestion(
            job=job, cluster=lone, asked=LayoutRequest(swap=True), space=asked, predictor=known
        )
    ).choices
    assert min(c.step_time_s.value for c in choices) == pytest.approx(found.step_s[0], rel=1e-9)


def test_plan_and_predict_name_swapping_where_nothing_else_divides_the_batch() -> None:
    """Seven samples over four GPUs: no layout has whole micro-batches, peers take two each."""
    job, known = described("small", 7), predictor()
    four = parse_cluster("p3.8xlarge", known.catalogue)
    ranks = replace(SWAPS, tp=1, pp=1, cp=1, ep=1)
    asked = PlanQuestion(
        job=job, cluster=four, asked=LayoutRequest(swap=True), space=ranks, predictor=known
    )
    (choice,) = plan(asked).choices
    found = known.step_columns(job, *rows("p3.8xlarge", 1), space=ranks)
    assert choice.name == NAME == way_name(int(found.way[0]))
    assert choice.step_time_s.value == pytest.approx(found.step_s[0], rel=1e-9)
    with pytest.raises(PlanningError):
        plan(replace(asked, asked=LayoutRequest(swap=False)))


def test_peers_that_swap_are_not_taken_as_plain_data_parallel_on_spot() -> None:
    """An elastic job runs one program on any number of machines: two ways are two programs."""
    known, (kinds, counts) = predictor(), rows("g5.xlarge", 1, 2, 4)
    job = described("small", 512)
    plain = known.step_columns(job, kinds, counts)
    swaps = known.step_columns(job, kinds, counts, space=SWAPS)
    assert plain.status.tolist() == [0, 0, 0]
    assert swaps.way[-1] == SWAPPING
    last = np.array([2])
    (found,) = elastic_workers(job, plain, last, known.step_columns)
    (none,) = elastic_workers(job, swaps, last, partial(known.step_columns, space=SWAPS))
    assert found is not None
    assert none is None
