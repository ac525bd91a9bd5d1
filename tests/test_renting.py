"""Laws of what renting costs a person: work, waiting, accounts; and a length that nobody said."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import api, data, recommend
from advisor.answer import Candidate, Recommendation
from advisor.ask import Constraints, JobSpec, LayoutRequest, layout_space
from advisor.catalogue import (
    Accelerator,
    Catalogue,
    GpuFilter,
    OfferFilter,
    account_limits,
    rented_at_once,
)
from advisor.catalogue.accounts import limited_types
from advisor.catalogue.select import parse_gpus
from advisor.collectors.watch.host import describe_host
from advisor.errors import UsageError
from advisor.estimate.estimate import machine_at_hand
from advisor.estimate.predictor import Predictor
from advisor.export.pick import ranks_to_try
from advisor.jobs import NO_LENGTH, Job
from advisor.jobs.load import job_from_spec
from advisor.jobs.model_facts import model_flop_per_step, utilisation
from advisor.machines.devices import host_device
from advisor.planners.core import Device
from advisor.rank.ranking import recommend as rank
from advisor.rank.renting import (
    CALENDAR,
    FURTHER,
    USUALLY,
    WAGE_USD_PER_H,
    WEIGHTS,
    Renting,
    asking_h,
)
from advisor.rank.unoffered import unoffered
from advisor.words import prediction_text
from advisor.words.recommendation import text

AMOUNTS = st.floats(0.01, 1000.0)
ROWS = st.lists(st.tuples(AMOUNTS, AMOUNTS, st.integers(1, 64)), min_size=1, max_size=20)
GPT2: dict[str, Any] = {"layers": 12, "hidden": 768, "heads": 12}
LLAMA_8B: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": True,
}  # fmt: skip


def columns(rows: list[tuple[float, float, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    time, cost, machines = (np.array(column) for column in zip(*rows, strict=True))
    return time, cost, machines


# Nobody's pick has more machines because they are more work; nor does a cheap one wait longer.


@given(rows=ROWS, work=st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)))
def test_who_minds_the_work_more_rents_no_more_machines(
    rows: list[tuple[float, float, int]], work: tuple[float, float]
) -> None:
    """Of a job that scales as well as it may: the same cost on any number of machines."""
    total = sum(one for one, _, _ in rows)
    machines = np.array(sorted({count for _, _, count in rows}))
    chosen = [
        Renting(effort_h=effort).best(
            "best_value", total / machines, np.full(len(machines), total), machines
        )
        for effort in sorted(work)
    ]  # fmt: skip
    assert machines[chosen[1]] <= machines[chosen[0]]


@given(hours=st.floats(100.0, 1e6), effort=st.floats(0.1, 4.0))
def test_machines_grow_with_the_square_root_of_the_work(hours: float, effort: float) -> None:
    """The closed form of a job that scales perfectly, its bill far above what the work costs."""
    machines = np.arange(1, 4001)
    best = Renting(effort_h=effort).best(
        "best_value", hours / machines, np.full(machines.size, 1e9), machines
    )
    ideal = math.sqrt(hours / (FURTHER * CALENDAR * effort))
    if hours / ideal > USUALLY.patience_h and ideal < 4000:
        assert abs(machines[best] - max(ideal, 1.0)) <= 1.0


@given(rows=ROWS)
def test_without_work_and_patience_the_pick_is_the_least_product(
    rows: list[tuple[float, float, int]],
) -> None:
    time, cost, machines = columns(rows)
    nobody = Renting(effort_h=0.0, patience_h=0.0)
    for pick, weight in WEIGHTS.items():
        value = time**weight * cost
        assert value[nobody.best(pick, time, cost, machines)] == pytest.approx(value.min())


def test_of_many_rows_the_pick_is_the_least_of_all() -> None:
    rng = np.random.default_rng(4)
    for effort in (0.0, 0.5, 8.0):
        renting = Renting(effort_h=effort)
        time, cost = np.exp(rng.normal(0.0, 3.0, (2, 30_000))).round(3)
        time[rng.integers(0, time.size, 50)] = np.nan
        machines, request = rng.integers(1, 9, time.size), rng.choice([0.0, 24.0], time.size)
        for pick in WEIGHTS:
            rows = sorted(
                one for one in zip(renting.worth(pick, time, cost, machines, request), cost, time,
                                    range(time.size), strict=True) if not np.isnan(one[0])
            )  # fmt: skip
            assert renting.best(pick, time, cost, machines, request) == rows[0][3]


@given(rows=ROWS)
def test_nobody_pays_for_what_ends_before_it_is_waited_for(
    rows: list[tuple[float, float, int]],
) -> None:
    time, cost, machines = columns(rows)
    soon = time + CALENDAR * USUALLY.work_h(machines) <= USUALLY.patience_h
    at = USUALLY.best("best_value", time, cost, machines)
    paid = cost + WAGE_USD_PER_H * USUALLY.work_h(machines)
    if soon.any():
        assert paid[at] <= paid[soon].min() * (1 + 1e-9)


def test_nobody_waits_for_hours_to_save_less_than_the_work_costs() -> None:
    """What half an hour of work costs, 35 USD, is not noticed; a hundred times as much is."""
    assert USUALLY.best("best_value", [5.5, 0.7], [6.6, 12.8], [1, 1]) == 1
    assert USUALLY.best("cheapest", [5.5, 0.7], [6.6, 12.8], [1, 1]) == 0
    assert USUALLY.best("best_value", [550.0, 70.0], [660.0, 12_800.0], [1, 1]) == 0


# What people of a kind rent, asked of the real catalogue.


@pytest.fixture(scope="module")
def gpt2(predictor: Predictor) -> Recommendation:
    return recommend(predictor=predictor, **GPT2, tokens="5B")


def picked(answer: Recommendation, name: str = "best_value") -> tuple[float, int]:
    """Return devices and machines of a pick."""
    one = next(row for row in answer.front if row.rank == answer.picks[name])
    parts = one.configuration.parts
    return sum(o.accelerators * n for o, n in parts), sum(n for _, n in parts)


def test_a_small_language_model_is_trained_on_one_machine(gpt2: Recommendation) -> None:
    """16 B200 in two machines for 13 minutes, as it was answered, nobody rents."""
    assert picked(gpt2)[1] == picked(gpt2, "fastest")[1] == 1
    assert any(sum(n for _, n in row.configuration.parts) > 1 for row in gpt2.front)


def test_what_is_exported_in_place_of_the_pick_is_picked_by_the_same_rule(
    gpt2: Recommendation,
) -> None:
    first, *order = ranks_to_try(gpt2.to_record())
    assert first is None
    left = [one for one in gpt2.front if one.rank != gpt2.picks["best_value"]]
    assert sorted(filter(None, order)) == [one.rank for one in left]
    for following in order:
        machines = [sum(n for _, n in one.configuration.parts) for one in left]
        at = USUALLY.best(
            "best_value", [one.training_time_h.value for one in left],
            [one.cost_usd.value for one in left], machines, [one.request_h for one in left],
        )  # fmt: skip
        assert left.pop(at).rank == following


def test_without_effort_the_list_is_that_of_time_and_cost_alone(predictor: Predictor) -> None:
    free = recommend(predictor=predictor, **GPT2, tokens="50B", effort="0", gpus="H100")
    usual = recommend(predictor=predictor, **GPT2, tokens="50B", gpus="H100")
    assert picked(free)[1] >= picked(usual)[1]
    assert all(row.effort_h == row.request_h == 0 for row in free.front)
    assert {row.effort_h for row in usual.front} == {
        float(USUALLY.work_h(sum(n for _, n in row.configuration.parts))) for row in usual.front
    }
    assert usual.judged_by["effort_h"] == 0.5


def test_adapters_of_8b_are_trained_in_one_machine(predictor: Predictor) -> None:
    """32 H100 for 8 minutes, as it was answered, nobody rents either."""
    answer = recommend(
        predictor=predictor, **LLAMA_8B, lora=16, tokens="100M", gpus="H100", max_nodes=4
    )
    devices, machines = picked(answer)
    assert machines == 1
    assert devices <= 8


@pytest.mark.parametrize("limit", [{}, {"deadline_h": 30.0}, {"budget_usd": 2000.0}])
def test_the_pick_is_that_of_a_search_that_leaves_nothing_out(
    predictor: Predictor, limit: dict[str, float]
) -> None:
    """Bounds leave out what can be neither on the front nor picked, and nothing else."""
    job = job_from_spec(JobSpec(layers=12, hidden=768, heads=12, tokens=3e10))
    wanted = OfferFilter(providers=("lambda", "hyperstack"))
    assert len(predictor.catalogue.select(wanted))
    request = Constraints(providers=wanted.providers, max_nodes=8, **limit)  # type: ignore[arg-type]
    few, every = (rank(job, request, predictor=predictor, prunes=one) for one in (True, False))

    def named(answer: Recommendation) -> dict[str, object]:
        by_rank: dict[Any, object] = {one.rank: one.configuration for one in answer.front}
        return {name: by_rank.get(at) for name, at in answer.picks.items()}

    assert named(few) == named(every)


KEPT: dict[str, Callable[[Candidate, float], dict[str, Any]]] = {
    "deadline": lambda one, slack: {"deadline_h": one.training_time_h.high * 1.3 * slack},
    "budget": lambda one, slack: {"budget_usd": one.cost_usd.high * slack},
    "max_hourly": lambda one, slack: {"max_hourly_usd": hourly_usd(one) * slack},
    "max_nodes": lambda one, _: {"max_nodes": max(machines_of(one), 1)},
}


def machines_of(one: Candidate) -> int:
    return sum(count for _, count in one.configuration.parts)


def hourly_usd(one: Candidate) -> float:
    return sum(offer.price_usd_per_h * count for offer, count in one.configuration.parts)


@pytest.mark.parametrize("gpus", ["H100", "H200,B200", "L4,A10G", "A100,L40S"])
def test_a_limit_that_the_pick_keeps_does_not_change_it(predictor: Predictor, gpus: str) -> None:
    """Seen: 8 x H100, 34 min, $11.20; with a deadline of an hour 8 x B200, $14.65."""
    job = job_from_spec(JobSpec(layers=24, hidden=2048, heads=16, tokens=2e8))
    free = Constraints(gpus=parse_gpus(gpus), max_nodes=4)
    unlimited = rank(job, free, predictor=predictor)
    every: dict[Any, Candidate] = {one.rank: one for one in unlimited.front}
    for name in WEIGHTS:
        chosen = every[unlimited.picks[name]]
        for limit, kept in KEPT.items():
            for slack in (1.02, 3.0):
                request = replace(free, **kept(chosen, slack))
                answer = rank(job, request, predictor=predictor)
                (found,) = (one for one in answer.front if one.rank == answer.picks[name])
                assert found.configuration == chosen.configuration, (name, limit, slack)


@pytest.mark.parametrize("limit", ["deadline_h", "budget_usd"])
def test_a_looser_limit_gives_no_worse_pick(predictor: Predictor, limit: str) -> None:
    job = job_from_spec(JobSpec(layers=24, hidden=2048, heads=16, tokens=1e9))
    free = Constraints(providers=("lambda", "hyperstack"), max_nodes=4)
    least, is_sure = dict.fromkeys(WEIGHTS, math.inf), False
    for amount in np.geomspace(0.5, 60.0, 12):
        bound: dict[str, Any] = {limit: float(amount)}
        answer = rank(job, replace(free, **bound), predictor=predictor)
        if "within_deadline" in answer.picks and not is_sure:
            is_sure, least["best_value"] = True, math.inf  # now it keeps the deadline surely
        for name in answer.picks.keys() & least.keys():
            (one,) = (one for one in answer.front if one.rank == answer.picks[name])
            by = "high" if one.is_extrapolating else "value"
            time_h, usd = (getattr(judged, by) for judged in (one.training_time_h, one.cost_usd))
            worth = USUALLY.worth(name, time_h, usd, machines_of(one), one.request_h)
            assert worth <= least[name] * (1 + 1e-9), (name, amount)
            least[name] = float(worth)
    assert all(map(math.isfinite, least.values()))


def test_the_pick_of_a_recorded_script_is_that_of_a_search_that_leaves_nothing_out(
    predictor: Predictor,
) -> None:
    """The search of cuts stops where a row is no pick, not where another is sooner and cheaper:
    that one may be more work, or be judged by its worst."""
    run = str(Path(__file__).parent / "golden" / "run-rehearsed")
    job = job_from_spec(JobSpec(run=run, batch=64, total_steps=4e5))
    request = Constraints(providers=("lambda",), max_nodes=8)
    found = [rank(job, request, predictor=predictor, prunes=one) for one in (True, False)]
    few, every = (
        {name: next(one.configuration for one in answer.front if one.rank == at)
         for name, at in answer.picks.items()}
        for answer in found
    )  # fmt: skip
    assert few == every


@given(rows=ROWS, price=AMOUNTS)
def test_what_takes_longer_than_the_latest_is_worth_more(
    rows: list[tuple[float, float, int]], price: float
) -> None:
    for pick in WEIGHTS:
        for time, least, machines in rows:
            late = float(USUALLY.latest_h(pick, least, price)) * 1.001 + time
            assert float(USUALLY.worth(pick, late, price * late, machines)) > least


def test_any_time_will_do_as_long_as_nothing_is_known() -> None:
    """Of machines without a price, too: inf over inf bounds nothing."""
    for pick in WEIGHTS:
        latest = USUALLY.latest_h(pick, math.inf, [0.0, 1.0, math.inf])
        assert latest.tolist() == [math.inf] * 3


# Accounts: what a provider rents to somebody new.


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def test_limits_of_accounts_say_of_when_and_where_they_are(catalogue: Catalogue) -> None:
    providers = set(catalogue.types.provider.tolist())
    for one in account_limits():
        assert one.provider in providers
        assert limited_types(one, catalogue.types).any(), one
        assert one.source
        assert len(one.as_of) == len("2026-11-25")


def test_an_account_rents_as_many_as_its_limit_holds(catalogue: Catalogue) -> None:
    offers = catalogue.select(OfferFilter())
    most = rented_at_once(catalogue.types, offers)
    types = catalogue.types
    provider, vcpus = types.provider[offers.type_index], types.vcpus[offers.type_index]
    azure = provider == "azure"
    assert ((most * vcpus <= 20) | (most == 0))[azure & np.isfinite(vcpus)].all()
    runpod = provider == "runpod"
    assert runpod.any()
    assert (most * offers.price_usd_per_h <= 80.0 + 1e-9)[runpod].all()
    gpus = types.accelerator_count[offers.type_index] > 0
    assert (most[(provider == "gcp") & gpus] == 0).all()
    assert np.isinf(most[(provider == "gcp") & ~gpus]).all()
    own = replace(offers, max_instances=np.full(len(offers), 4.0))
    assert np.isinf(rented_at_once(types, own)).all()


def test_who_names_the_providers_has_accounts_there() -> None:
    at_once, count = np.array([0.0, 3.0, np.inf]), np.array([1, 3, 64])
    assert asking_h(Constraints(), at_once, count).tolist() == [24.0, 0.0, 0.0]
    named = Constraints(providers=("aws",))
    assert not asking_h(named, at_once, count).any()
    assert not asking_h(Constraints(effort_h=0.0), at_once, count).any()


# What nobody rents, and this machine.


def test_a_gpu_that_no_provider_offers_names_the_nearest(predictor: Predictor) -> None:
    answer = recommend(predictor=predictor, **GPT2, tokens="1B", gpus="RTX-3080")
    nearest = answer.unoffered["RTX-3080"]
    assert nearest
    for name in nearest:
        assert recommend(predictor=predictor, **GPT2, tokens="1B", gpus=name, max_nodes=1).front
    assert "No provider" in answer.summary[0]
    assert nearest[0] in answer.summary[0]
    here = answer.here
    assert here is not None
    assert answer.picks.get("best_value") == ("here" if here.training_time_h.value < 720 else None)


def near_cards(catalogue: Catalogue, names: tuple[str, ...]) -> list[Accelerator]:
    return [catalogue.accelerators[one] for one in names]


def test_what_is_like_nothing_has_no_nearest(catalogue: Catalogue) -> None:
    """Seen: "--region mars. The nearest is eastus", and a video card in place of a RTX 4090."""
    assert unoffered(Constraints(region="mars"), catalogue) == {"--region mars": ()}
    found = unoffered(Constraints(region="us-est-1"), catalogue)["--region us-est-1"]
    assert "us-east-1" in found
    found = unoffered(Constraints(region="germany"), catalogue)["--region germany"]
    assert found
    assert all("germany" in one for one in found)
    with pytest.raises(UsageError) as refused:
        catalogue.select(OfferFilter(providers=("asw",)))
    assert "did you mean aws?" in str(refused.value.hint)


def test_the_nearest_accelerator_is_known_and_of_the_same_maker(catalogue: Catalogue) -> None:
    """What is said in place of a card that nobody rents trains: its figures are known."""
    every = catalogue.select(OfferFilter(pricing=("on-demand", "spot")))
    rented = set(catalogue.types.accelerator[every.type_index].tolist())
    makers = {catalogue.accelerators[one].vendor for one in rented if one}
    # Cards stand with their like: of four neighbours one is asked.
    for name, asked in islice(catalogue.accelerators.items(), 0, None, 4):
        found = unoffered(Constraints(gpus=GpuFilter(names=(name,))), catalogue).get(name, ())
        for near in (catalogue.accelerators[one] for one in found):
            assert near.name in rented
            assert near.device or not asked.device
            assert near.peak_flop_per_s("fp16") or not asked.peak_flop_per_s("fp16")
        figures = [(one.memory_bytes, asked.memory_bytes) for one in near_cards(catalogue, found)]
        assert all(0.25 < a / b < 4 for a, b in figures if b)
        if found and asked.vendor in makers and asked.training_use == "yes":
            assert catalogue.accelerators[found[0]].vendor == asked.vendor


@pytest.mark.parametrize(
    "asked",
    [
        {"region": "mars"},
        {"region": "us-est-1", "gpus": "H100"},
        {"max_price": 0.0001},
        {"max_price": 0.01, "gpus": "T4"},
        {"gpus": "H100:64..72"},
        {"gpus": "A100:200GB..300GB"},
        {"gpus": "H100", "cloud": "verda", "region": "us-east-1"},
        {"gpus": "B200", "dated": True, "cloud": "paperspace"},
    ],
)
def test_a_limit_that_nothing_keeps_names_the_nearest_that_something_does(
    predictor: Predictor, asked: dict[str, Any]
) -> None:
    """Each value that is named, in place of the one that was asked for, leaves offers."""
    answer = recommend(predictor=predictor, **GPT2, tokens="1B", max_nodes=1, **asked)
    assert not answer.front
    assert answer.unoffered
    assert not answer.rejected.get("no_price", 0) > answer.rejected.get("not_offered", 0)
    for limit, nearest in answer.unoffered.items():
        flag = limit.partition(" ")[0].removeprefix("--").replace("-", "_")
        assert any(limit in said for said in answer.summary)
        for one in nearest:
            value = one.partition(" ")[0]
            again = {**asked, flag: float(value) if flag == "max_price" else value}
            more = recommend(predictor=predictor, **GPT2, tokens="1B", max_nodes=1, **again)
            assert more.catalogue.offers
    said = "\n".join(line for line, _ in text(answer.to_record()))
    assert "misses" not in said


def test_no_share_of_a_peak_is_above_one(predictor: Predictor) -> None:
    """A processor's peak is a guess from its name: what is faster has no known peak."""
    job = job_from_spec(JobSpec(layers=12, hidden=768, heads=12, tokens=1e9))
    device = host_device(describe_host(), None)
    assert isinstance(device, Device)
    flop = model_flop_per_step(job)
    assert flop is not None
    for step_s in np.geomspace(1e-6, 1e6, 60):
        used = utilisation(job, float(step_s), 1, device)
        assert used is None or used.fraction <= 1.0


# A length that nobody said is never made up.


def test_a_job_of_unknown_length_is_asked_for_it(predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="length of transformer is not known") as refused:
        recommend(predictor=predictor, **GPT2)
    assert "--tokens" in str(refused.value.hint)


def test_a_step_of_a_job_of_unknown_length_has_a_price_by_the_million(
    predictor: Predictor,
) -> None:
    spec = JobSpec(layers=12, hidden=768, heads=12)
    job = job_from_spec(spec)
    assert job.total_source == NO_LENGTH
    found = api.estimate(job, on="n3-H100-SXM5x8", predictor=predictor)
    assert found.training_time_h is None
    assert found.cost_usd is None
    assert found.usd_per_million is not None
    assert "1 steps" not in prediction_text(found.to_record())
    # The steps of the same job of any length cost as much a token.
    tokens = 1e12
    long = api.estimate(job_from_spec(replace(spec, tokens=tokens)), on="n3-H100-SXM5x8",
                        predictor=predictor)  # fmt: skip
    paid = long.breakdown["steps"].cost_usd
    assert paid is not None
    assert found.usd_per_million["tokens"] == pytest.approx(paid / (tokens / 1e6), rel=1e-3)


# The recipes that the rule was tried on.


def test_recipes_are_questions_with_a_source() -> None:
    path = data.root("datasets") / "measurements" / "recipes" / "recipes.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["recipe"] for row in rows}) == len(rows) == 40
    assert Counter(row["split"] for row in rows) == {"seen": 20, "scored": 20}
    for row in rows:
        assert row["source"]
        assert row["looked_up"]
        assert float(row["devices"]) >= 1
        asked = json.loads(row["question"])
        assert {"tokens", "total_samples", "total_steps"} & set(asked)
        assert bool(row["config"]) != bool({"layers", "cnn"} & set(asked))


@pytest.mark.parametrize("fixed", [{"tp": 2}, {"pp": 2}, {"zero": 3}])
def test_this_machine_is_left_out_where_it_cannot_keep_to_the_layout(
    predictor: Predictor, make_job: Callable[..., Job], fixed: dict[str, int]
) -> None:
    """One processor shares nothing with others: neither a described job nor a recorded one."""
    space = layout_space(LayoutRequest(**fixed))  # type: ignore[arg-type]
    described = job_from_spec(JobSpec(layers=12, hidden=768, heads=12, tokens=1e9))
    for job in (described, make_job()):
        assert machine_at_hand(predictor, job) is not None
        assert machine_at_hand(predictor, job, space=space) is None
