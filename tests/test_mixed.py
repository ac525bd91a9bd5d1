"""Mixed clusters among the candidates: nothing is lost by pruning, and prices and parts add up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from recorded_models import convolutions, transformer
from typer.testing import CliRunner

from advisor.answer import Candidate, Recommendation
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, OfferFilter
from advisor.estimate.knowledge.laws import model_on
from advisor.estimate.predictor import Predictor
from advisor.estimate.unlike.group_bounds import least_group_step_s, refined_step_s
from advisor.estimate.unlike.ways import best_released
from advisor.jobs.job import Job, Program
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.rank.front import pareto_front
from advisor.rank.given import PlanQuestion, plan
from advisor.rank.group_offers import mixed_offers
from advisor.rank.ranking import recommend
from advisor.rank.search import mixed_rows

MakeJob = Callable[..., Job]
RUN = CliRunner()
SMALL = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False))


def job_of(make_job: MakeJob, work: Work, batch: int = 256, **more: Any) -> Job:
    return make_job(work=work, global_batch=batch, recorded_batch=work.micro_batch, **more)


def heavy() -> Work:
    """A model for which equal machines are no better than mixed ones everywhere."""
    return transformer(blocks=12, hidden=1024, tokens=512)


def described() -> Work:
    """A transformer that was never run, in 16 bits: its layers are timed by their shapes."""
    return transformer_work(SMALL, micro_batch=1, precision="bf16")


def in_fp32() -> Work:
    """The same in fp32: its layers are timed operator by operator."""
    return transformer_work(SMALL, micro_batch=1, precision="fp32")


def is_mixed(one: Candidate) -> bool:
    return len(one.configuration.parts) > 1


# Still sold together, with networks that are stated.
SOLD = (
    "g4dn.xlarge", "g4dn.12xlarge", "g5.xlarge", "g5.12xlarge", "g6.xlarge", "g6.12xlarge",
    "g6e.xlarge", "g6e.12xlarge", "p4d.24xlarge",
)  # fmt: skip


def only(catalogue: Catalogue, names: set[str], most: float = math.inf) -> Catalogue:
    """Return a catalogue that sells nothing else, and so many machines of a type."""

    class Few(Catalogue):
        def select(self, wanted: OfferFilter | None = None, **more: Any) -> Any:
            wanted = replace(wanted or OfferFilter(), types=tuple(names))
            found = super().select(wanted, **more)
            return replace(found, max_instances=np.minimum(found.max_instances, most))

    few = object.__new__(Few)
    few.__dict__.update(catalogue.__dict__)
    return few


@cache
def few() -> Predictor:
    """Machines of like speed and price, of which two together may pay."""
    names = {"g4dn.xlarge", "g4dn.12xlarge", "g5.xlarge", "g6.xlarge"}
    return Predictor(only(predictor().catalogue, names))


def front_of(job: Job, request: Constraints, *, is_pruned: bool) -> np.ndarray:
    """Return the front of equal and mixed clusters, the latter pruned or all evaluated."""
    equal = recommend(job, replace(request, top=10_000), predictor=few()).front
    offers = few().catalogue.select(
        OfferFilter(
            providers=request.providers,
            regions=(request.region,) if request.region else (),
            gpus=request.gpus,
            pricing=request.pricings,
        )
    )
    side = few().side_costs(job, offers)
    times = np.array([c.training_time_h.value for c in equal])
    costs = np.array([c.cost_usd.value for c in equal])
    found = mixed_rows(job, request, few(), offers, side, (times, costs), is_pruned=is_pruned)
    assert found is not None
    times = np.concatenate([times, [one.completion.finish_h[0, 1] for one in found.kept]])
    costs = np.concatenate([costs, [one.cost_usd for one in found.kept]])
    front = pareto_front(times, costs)
    return np.column_stack([times[front], costs[front]])


CASES: dict[str, dict[str, Any]] = {
    "one region": {"region": "us-east-1", "max_nodes": 3},
    "all regions": {"max_nodes": 2},
    "spot": {"region": "eu-west-1", "max_nodes": 2, "pricings": ("on-demand", "spot")},
}  # fmt: skip


@pytest.mark.parametrize("is_pruned", [True, False])
def test_a_mixed_cluster_costs_what_its_machines_do(make_job: MakeJob, is_pruned: bool) -> None:
    job = job_of(make_job, heavy(), cpu_s_per_sample=1e-4)
    catalogue = few().catalogue
    offers = catalogue.select(OfferFilter(regions=("us-east-1", "us-west-2")))
    side = few().side_costs(job, offers)
    draw = np.random.default_rng(1)  # charges that would not be seen if they were all the same
    side = replace(
        side, storage_usd_per_h=draw.uniform(1, 2, len(offers)),
        egress_usd=np.where(np.arange(len(offers)) % 3, draw.uniform(1, 9, len(offers)), np.nan),
    )  # fmt: skip
    found = mixed_offers(
        few().case(job), offers, side, catalogue.types, (1, 2), 3, is_pruned=is_pruned
    )
    assert len(found.counts) >= 4
    hourly = offers.price_usd_per_h + side.storage_usd_per_h
    for row, (places, counts) in enumerate(zip(found.offers, found.counts, strict=True)):
        used = [(o, n) for o, n in zip(places.tolist(), counts.tolist(), strict=True) if n]
        assert len(used) >= 2
        assert sum(n for _, n in used) <= 3
        usd = sum(n * float(hourly[o]) for o, n in used)
        assert found.usd_per_h[row] == pytest.approx(usd)
        once = max(float(np.nan_to_num(side.egress_usd[o])) for o, _ in used)
        assert found.once_usd[row] == pytest.approx(once)
        assert len({(offers.region[o], offers.pricing[o]) for o, _ in used}) == 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("make", [heavy, convolutions])
def test_pruning_loses_nothing(make_job: MakeJob, make: Callable[[], Work], name: str) -> None:
    request = Constraints(least_gain_fraction=0.0, mixed=True, **CASES[name])
    job = job_of(make_job, make(), cpu_s_per_sample=1e-4)
    pruned = front_of(job, replace(request, mixed=False), is_pruned=True)
    every = front_of(job, replace(request, mixed=False), is_pruned=False)
    if name != "spot":
        np.testing.assert_allclose(pruned, every, rtol=1e-9)
        return
    # Removals are replayed on a table whose knots depend on the rows that are asked for, so that
    # neighbours on the front may beat each other by as much: each needs an equal, within 2 %.
    for some, others in ((every, pruned), (pruned, every)):
        is_as_good = np.all(others[None, :, :] <= 1.02 * some[:, None, :], axis=2)
        assert np.all(np.any(is_as_good, axis=1))


def test_constraints_prune_only_what_breaks_them(make_job: MakeJob) -> None:
    job = job_of(make_job, heavy())
    request = Constraints(least_gain_fraction=0.0, region="us-east-1", max_nodes=3)
    free = front_of(job, request, is_pruned=False)
    assert len(free) > 2
    budget = float(np.median(free[:, 1]))
    bound = front_of(job, replace(request, budget_usd=budget), is_pruned=True)
    np.testing.assert_allclose(bound, free[free[:, 1] <= budget])


@pytest.fixture(scope="module")
def answer(make_job: MakeJob) -> Recommendation:
    job = job_of(make_job, heavy())
    request = Constraints(
        least_gain_fraction=0.0, mixed=True, region="*us*", max_nodes=3, top=1000
    )
    return recommend(job, request, predictor=scarce(2))


def test_some_mixed_clusters_are_on_the_front(answer: Recommendation) -> None:
    assert any(is_mixed(c) for c in answer.front)


def test_every_candidate_is_on_the_front_or_has_its_reason(answer: Recommendation) -> None:
    hidden = sum(int(n.split()[0]) for n in answer.notes if "not shown" in n)
    assert len(answer.front) + hidden + sum(answer.rejected.values()) == answer.considered


def test_nobody_on_the_list_beats_another(answer: Recommendation) -> None:
    times = [c.training_time_h.value for c in answer.front]
    costs = [c.cost_usd.value for c in answer.front]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)


def test_parts_stand_in_one_place_and_their_prices_add_up(answer: Recommendation) -> None:
    for c in filter(is_mixed, answer.front):
        offers = [offer for offer, _ in c.configuration.parts]
        assert len({(o.provider, o.region, o.pricing) for o in offers}) == 1
        assert len({o.instance_type for o in offers}) == 2
        parts = [p.cost_usd for p in c.breakdown.values() if p.cost_usd is not None]
        assert math.isclose(sum(parts), c.cost_usd.value, rel_tol=1e-6)
        assert math.isclose(
            sum(p.time_h for p in c.breakdown.values()), c.training_time_h.value, rel_tol=1e-6
        )
        assert math.isclose(sum(c.shares.values()), 1.0, abs_tol=1e-6)
        assert any(r.startswith(("uneven batches:", "pipeline:")) for r in c.reasons)


def test_mixed_clusters_only_add_to_the_list(make_job: MakeJob) -> None:
    job = job_of(make_job, heavy())
    request = Constraints(least_gain_fraction=0.0, region="us*", max_nodes=3, top=10_000)
    alone = recommend(job, replace(request, mixed=False), predictor=scarce(2))
    both = recommend(job, replace(request, mixed=True), predictor=scarce(2))
    assert any(is_mixed(c) for c in both.front)
    for one in alone.front:
        assert any(
            c.training_time_h.value <= one.training_time_h.value
            and c.cost_usd.value <= one.cost_usd.value * (1 + 1e-12)
            for c in both.front
        )


KINDS: dict[str, Callable[[], Work]] = {
    "recorded": heavy,
    "described": described,
    "in fp32": in_fp32,
}


@cache
def scarce(most: int) -> Predictor:
    """Single accelerators of which there are few."""
    names = {"g4dn.xlarge", "g5.xlarge", "g6.xlarge"}
    return Predictor(only(predictor().catalogue, names, most), learned=None)


def drawn(seed: int) -> tuple[dict[str, int], str]:
    """Return a mixed cluster, machines by type, and a kind of job."""
    draw = np.random.default_rng(seed)
    names = draw.choice(SOLD, size=2, replace=False)
    counts = draw.choice([1, 2, 3, 4], size=2)
    return dict(zip(names.tolist(), counts.tolist(), strict=True)), list(KINDS)[seed % 3]


def check_recommend_is_no_worse(make_job: MakeJob, seed: int) -> None:
    machines, kind = drawn(seed)
    catalogue = only(predictor().catalogue, set(machines))
    asked = Predictor(catalogue, learned=None)
    job = job_of(make_job, KINDS[kind]())
    cluster = parse_cluster(" + ".join(f"{n}x {t}" for t, n in machines.items()), catalogue)
    try:
        found = plan(PlanQuestion(job=job, cluster=cluster, predictor=asked))
    except PlanningError:
        return
    request = Constraints(
        least_gain_fraction=0.0, mixed=True, top=10_000, max_nodes=sum(machines.values())
    )
    front = recommend(job, request, predictor=asked).front
    for choice in found.choices:
        if not choice.commands:
            continue  # no released framework runs it
        assert choice.training_time_h is not None
        assert choice.cost_usd is not None
        assert any(
            one.training_time_h.value <= choice.training_time_h.value * (1 + 1e-9)
            and one.cost_usd.value <= choice.cost_usd.value * (1 + 1e-9)
            for one in front
        ), (machines, kind, choice.name)


@pytest.mark.parametrize("seed", range(6))
def test_recommend_is_never_worse_than_plan(make_job: MakeJob, seed: int) -> None:
    check_recommend_is_no_worse(make_job, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 56))
def test_recommend_is_never_worse_than_plan_anywhere(make_job: MakeJob, seed: int) -> None:
    check_recommend_is_no_worse(make_job, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_below_what_plan_answers(make_job: MakeJob, kind: str) -> None:
    job = job_of(make_job, KINDS[kind]())
    case = predictor().case(job)
    for seed in range(12):
        machines, _ = drawn(seed)
        cluster = parse_cluster(
            " + ".join(f"{n}x {t}" for t, n in machines.items()), predictor().catalogue
        )
        model = model_on(case, cluster)
        choice = best_released(model, cluster, global_batch=job.global_batch)
        if choice is None:
            continue
        types = np.array([[p.row for p in model.places]])
        counts = np.array([[g.count for g in cluster]])
        least = least_group_step_s(case, types, counts)
        better = refined_step_s(case, types, counts, least)
        assert least[0] <= better[0] <= choice.step_time_s.value * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deadline", [False, True])
def test_a_search_for_the_best_value_finds_that_of_all_clusters(
    make_job: MakeJob, kind: str, deadline: bool
) -> None:
    """And what was found for one question answers the next as a fresh search does."""
    job, known = job_of(make_job, KINDS[kind]()), few()
    request = Constraints(mixed=True, max_nodes=3, effort_h=0.0)
    whole = recommend(job, request, predictor=known)
    if deadline:
        hours = 1.1 * whole.front[-1].training_time_h.value
        request = replace(request, deadline_h=hours, confidence=0.5)
        whole = recommend(job, request, predictor=Predictor(known.catalogue))
    again = recommend(job, request, predictor=known, for_best_value=True)
    assert whole.picks
    named = [
        next(one for one in found.front if one.rank == found.picks["best_value"])
        for found in (whole, again)
    ]
    assert named[0].configuration == named[1].configuration
    assert named[0].cost_usd == named[1].cost_usd


def test_own_machines_of_several_types_work_together(make_job: MakeJob) -> None:
    """Of machines of which there is a number all are looked at, of three types and more."""
    catalogue = scarce(1).catalogue
    # So much work in a step that the third machine is a tenth faster, whatever the constants.
    job = job_of(make_job, transformer(blocks=12, hidden=1024, tokens=1024))
    request = Constraints(least_gain_fraction=0.0, top=1000)
    found = recommend(job, request, predictor=Predictor(catalogue, learned=None))
    assert max(len(one.configuration.parts) for one in found.front) == 3
    without = Predictor(catalogue, learned=None)
    none = recommend(job, replace(request, mixed=False), predictor=without, with_changes=True)
    assert not any(is_mixed(one) for one in none.front)
    # What would change it is what was left out.
    (change,) = [one for one in none.changes if one.name == "mixed"]
    assert change.training_time_h.value in [one.training_time_h.value for one in found.front]
    assert min(change.time_factor, change.cost_factor) < 1.0


def test_a_deadline_that_equal_machines_miss_is_kept_by_unlike_ones(make_job: MakeJob) -> None:
    job = job_of(make_job, heavy())
    catalogue = only(predictor().catalogue, {"g5.xlarge", "g6.xlarge"})
    asked = Predictor(catalogue, learned=None)
    request = Constraints(least_gain_fraction=0.0, max_nodes=3, top=1000)
    equal = recommend(job, request, predictor=asked).front
    both = recommend(job, replace(request, mixed=True), predictor=asked).front
    # Without a deadline equal machines are enough, and nobody asked for others.
    assert not any(is_mixed(one) for one in equal)
    assert both[0].training_time_h.value <= equal[0].training_time_h.value
    if is_mixed(both[0]):
        hours = both[0].training_time_h.value * 1.0001
        kept = recommend(job, replace(request, deadline_h=hours), predictor=asked).front
        assert any(is_mixed(one) for one in kept)


def test_programs_have_no_mixed_clusters(make_job: MakeJob) -> None:
    program = Program(duration_s=600.0, cpu_s=600.0, parallelism=1.0)
    job = make_job(work=None, program=program, global_batch=1, total_steps=1.0)
    request = Constraints(providers=("aws",), mixed=True)
    found = recommend(job, request, predictor=predictor())
    assert not any(is_mixed(c) for c in found.front)


def test_one_machine_at_most_is_no_mixed_cluster(make_job: MakeJob) -> None:
    request = Constraints(least_gain_fraction=0.0, providers=("aws",), mixed=True, max_nodes=1)
    found = recommend(job_of(make_job, heavy()), request, predictor=predictor())
    assert not any(is_mixed(c) for c in found.front)


def test_the_record_lists_both_parts(answer: Recommendation) -> None:
    record = json.loads(json.dumps(answer.to_record()))
    sizes = {len(c["configuration"]) for c in record["front"]}
    assert 2 in sizes


def test_the_command_line_has_the_option() -> None:
    done = RUN.invoke(app_of(), ["recommend", "--help"])
    assert "--mixed" in done.output


def app_of() -> Any:
    from advisor.cli.program import app

    return app
