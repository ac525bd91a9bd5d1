"""The front of a pruned search is that of the full one, on random parts of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.ask import Constraints, JobSpec
from advisor.catalogue import Catalogue, GpuFilter, OfferFilter, parse_gpus
from advisor.estimate.best import best_columns, first_look, improvable, is_no_faster, least_step_s
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.load import job_from_spec
from advisor.machines.fleet import alike
from advisor.planners.core import select
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts import stage_cuts, unit_search
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.step.describe import transformer_work
from advisor.rank.ranking import recommend
from advisor.rank.search import AskedRows, promising_columns

MakeJob = Callable[..., Job]
MODELS = {
    "small": Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257),
    "large": Transformer(layers=48, hidden=6144, heads=48, kv_heads=8, ffn=16384, is_gated=True,
                         sequence=4096, vocabulary=64000),
}  # fmt: skip
GPUS = ("A100", "H100", "L4", "T4", "V100", "A10G", "H200", "B200", "RTX-A6000", "L40S")


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def job_of(name: str, batch: int) -> Job:
    work = transformer_work(MODELS[name], micro_batch=1)
    return described_job(work, name=name, global_batch=batch, steps=20_000)


def front(job: Job, request: Constraints, *, prunes: bool) -> list[tuple[object, ...]]:
    found = recommend(job, request, predictor=predictor(), prunes=prunes)
    return [
        (*((o.provider, o.instance_type, o.region, n) for o, n in c.configuration.parts),
         c.layout, c.training_time_h.value, c.cost_usd.value)
        for c in found.front
    ]  # fmt: skip


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_the_front_is_that_of_the_full_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(MODELS)))
    request = Constraints(
        least_gain_fraction=0.0,
        gpus=GpuFilter(names=tuple(map(str, rng.choice(GPUS, 3, replace=False)))),
        max_nodes=int(rng.choice([1, 2, 4])),
        pricings=("on-demand", "spot") if seed % 3 == 2 else ("on-demand",),
        budget_usd=float(rng.choice([300.0, 3000.0])) if seed % 2 else None,
        top=100,
    )
    job = job_of(name, int(rng.choice([32, 64])))
    whole = front(job, request, prunes=False)
    assert whole or request.budget_usd is not None
    assert front(job, request, prunes=True) == whole


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pricings", [("on-demand",), ("on-demand", "spot")])
def test_a_search_for_the_best_value_finds_that_of_the_front(
    name: str, pricings: tuple[str, ...]
) -> None:
    job = job_of(name, 64)
    request = Constraints(max_nodes=8, pricings=pricings)  # type: ignore[arg-type]
    whole = recommend(job, request, predictor=predictor())
    few = recommend(job, request, predictor=predictor(), for_best_value=True)
    best = [
        next(one for one in found.front if one.rank == found.picks["best_value"])
        for found in (whole, few)
    ]
    assert best[0].configuration == best[1].configuration
    assert best[0].layout == best[1].layout
    assert best[0].cost_usd == best[1].cost_usd


def test_no_layout_is_faster_behind_slower_links() -> None:
    job = job_of("large", 64)
    case, fleet = predictor().case(job), predictor().fleet
    types = np.flatnonzero(fleet.is_accelerated & fleet.is_supported & (fleet.device >= 0))
    compared = 0
    for than in types[::17].tolist():
        like = types[is_no_faster(case, types, than)][:4]
        kinds = np.concatenate([[than], like])
        for count in (1, 4):
            found = best_columns(case, kinds, np.full(kinds.size, count))
            done = np.where(found.status == 0, found.step_s, np.inf)
            assert np.all(done >= done[0] * (1 - 1e-9))
            compared += int(np.isfinite(done[1:]).sum())
    assert compared > 30


def test_a_pruned_search_looks_at_a_part_of_the_rows_only() -> None:
    job = job_of("small", 64)
    offers = predictor().catalogue.select(OfferFilter())
    asked = AskedRows(
        job=job, request=Constraints(), offers=offers, types=np.unique(offers.type_index),
        counts=np.array([1, 2, 4, 8]),
    )  # fmt: skip
    columns = promising_columns(asked, predictor())
    evaluated = np.isfinite(columns.step_s) & predictor().fleet.is_accelerated[columns.type_index]
    assert 0 < np.count_nonzero(evaluated) < 0.2 * len(columns.count)


def columns_at(columns: TimeColumns, row: int) -> list[object]:
    """Everything that a row says but its type."""
    some = replace(select(columns, np.array([row])), type_index=np.zeros(1, np.int64))
    return [repr(getattr(some, field.name)) for field in fields(some)]


# Numbers of a type that the columns of its device stand for.
DESCRIBE = frozenset({
    "accelerator_count", "accelerator_memory_bytes", "network_burst_bytes_per_s",
    "intra_node_bytes_per_s", "host_device_bytes_per_s", "local_ssd_bytes",
})  # fmt: skip


@pytest.mark.parametrize("is_recorded", [False, True])
def test_types_that_nothing_tells_apart_have_the_same_answers(
    is_recorded: bool, make_job: MakeJob
) -> None:
    job = make_job(global_batch=64, step_s=0.5, workers=4) if is_recorded else job_of("small", 64)
    case, fleet = predictor().case(job), predictor().fleet
    first, place = alike(fleet, np.arange(len(fleet.device)))
    kinds: dict[tuple[object, ...], list[int]] = {}
    for kind in range(len(fleet.device)):
        facts = (one for name, one in fleet.by_name().items() if name not in DESCRIBE)
        key = tuple(repr(one[kind]) for one in facts if one.dtype.kind != "U")
        kinds.setdefault(key, []).append(kind)
    assert sorted(first.tolist()) == sorted(same[0] for same in kinds.values())
    assert all(first[place[kind]] == same[0] for same in kinds.values() for kind in same)
    others = [kind for same in kinds.values() for kind in same[1:]]
    at = np.array(others)[:: len(others) // 40]
    assert fleet.is_accelerated[at].any()
    for count in (1, 2):
        number = np.full(at.size, count)
        for ask in (first_look, best_columns):
            own, shared = ask(case, at, number), ask(case, first[place[at]], number)
            for row in range(at.size):
                assert columns_at(own, row) == columns_at(shared, row)


def test_a_search_of_kinds_answers_for_every_type() -> None:
    job, known = job_of("small", 64), predictor()
    offers = known.catalogue.select(OfferFilter(gpus=parse_gpus("A100,L4,T4")))
    types = np.unique(offers.type_index)
    asked = AskedRows(
        job=job, request=Constraints(), offers=offers, types=types, counts=np.array([1, 4])
    )
    columns = promising_columns(asked, known)
    assert columns.type_index.tolist() == np.repeat(types, 2).tolist()
    assert columns.count.tolist() == np.tile([1, 4], types.size).tolist()
    whole = promising_columns(asked, known, prunes=False)
    found = np.flatnonzero((columns.status == 0) & np.isfinite(columns.step_s))
    assert 0 < found.size < columns.count.size
    for row in found.tolist():
        assert columns_at(columns, row) == columns_at(whole, row)


@pytest.mark.parametrize("name", MODELS)
def test_no_layout_is_faster_than_the_bound(name: str) -> None:
    job = job_of(name, 64)
    case = predictor().case(job)
    fleet = predictor().fleet
    types = np.flatnonzero(fleet.is_accelerated & fleet.is_supported & (fleet.device >= 0))[::17]
    type_index, count = np.repeat(types, 2), np.tile([1, 4], len(types))
    look = first_look(case, type_index, count)
    rows = np.flatnonzero(improvable(case, look))
    bound, close = (least_step_s(case, look, rows, closely=one) for one in (False, True))
    found = best_columns(case, type_index[rows], count[rows])
    done = found.status == 0
    assert done.sum() > 10  # of both laws, on one machine and several
    assert np.all(bound[done] <= found.step_s[done])
    assert np.all(close[done] <= found.step_s[done] * (1 + 1e-12))
    assert np.any(close[done] > bound[done])


def test_no_cut_of_a_recorded_model_is_faster_than_its_close_bound(make_job: MakeJob) -> None:
    from recorded_models import transformer

    work = transformer()
    job = make_job(
        work=work, global_batch=24, recorded_batch=work.micro_batch, step_s=0.5, workers=4
    )
    case = predictor().case(job)
    types = np.flatnonzero(case.fleet.is_accelerated)[::37]
    type_index, count = np.repeat(types, 3), np.tile([1, 3, 8], len(types))
    look = first_look(case, type_index, count)
    rows = np.flatnonzero(improvable(case, look))
    close = least_step_s(case, look, rows, closely=True)
    found = best_columns(case, type_index[rows], count[rows])
    done = found.status == 0
    assert done.sum() > 10
    assert np.all(close[done] <= found.step_s[done] * (1 + 1e-12))


def test_a_recorded_job_has_the_same_front_with_and_without_pruning(make_job: MakeJob) -> None:
    from recorded_models import transformer

    work = transformer()
    job = make_job(
        work=work, global_batch=64, recorded_batch=work.micro_batch, step_s=0.5, workers=4
    )
    request = Constraints(
        least_gain_fraction=0.0, gpus=GpuFilter(names=("A100", "T4", "L4")), max_nodes=2, top=100,
        providers=("aws", "gcp"),
    )  # fmt: skip
    whole = front(job, request, prunes=False)
    assert whole
    assert front(job, request, prunes=True) == whole


class LearnedOfL4s:
    """A user's model that has seen L4s: they take a tenth of what physics says."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.folder = "of L4s"
        self.l4 = np.flatnonzero(catalogue.types.accelerator == "L4")

    def covers_accelerators_of(self, job: Job) -> bool:
        return True

    def corrected(self, job: Job, catalogue: Catalogue, columns: TimeColumns) -> TimeColumns:
        is_learned = np.isin(columns.type_index, self.l4) & (columns.status == 0)
        step_s = np.where(is_learned, 0.1 * columns.step_s, columns.step_s)
        return replace(columns, step_s=step_s, is_learned=is_learned)


def test_what_a_model_makes_faster_than_its_bound_is_not_left_out() -> None:
    catalogue = Catalogue.load(with_overrides=False)
    known = Predictor(catalogue, learned=None)
    known.learned = LearnedOfL4s(catalogue)  # type: ignore[assignment]
    request = Constraints(
        least_gain_fraction=0.0, gpus=GpuFilter(names=("H100", "L4")), max_nodes=2, top=100,
        providers=("aws", "gcp"),
    )  # fmt: skip
    whole, pruned = (
        [
            ([(o.instance_type, n) for o, n in c.configuration.parts], c.training_time_h.value)
            for c in recommend(job_of("small", 64), request, predictor=known, prunes=prunes).front
        ]
        for prunes in (False, True)
    )
    assert pruned == whole
    assert any(name.startswith(("g6", "g2")) for parts, _ in whole for name, _ in parts)


def excess(job: Job, request: Constraints, *, prunes: bool) -> list[float]:
    """Factors by which the nearest misses are over the constraints."""
    found = recommend(job, request, predictor=predictor(), prunes=prunes)
    assert not found.front
    limits = request.deadline_h or np.inf, request.budget_usd or np.inf
    return [
        max(one.training_time_h.value / limits[0], 1.0) * max(one.cost_usd.value / limits[1], 1.0)
        for one in found.nearest
    ]


@pytest.mark.parametrize(
    "limits", [{"budget_usd": 0.5}, {"deadline_h": 0.2}, {"budget_usd": 0.5, "deadline_h": 0.2}]
)
def test_nearest_misses_are_found_where_bounds_rule_everything_out(
    limits: dict[str, float],
) -> None:
    gpus = GpuFilter(names=("A100-SXM4-80GB", "L4"))
    request = Constraints(gpus=gpus, max_nodes=2, **limits)  # type: ignore[arg-type]
    job = job_of("small", 64)
    whole, pruned = (excess(job, request, prunes=prunes) for prunes in (False, True))
    # Bounds choose which few are searched: the nearest of these may be a little farther off.
    assert pruned
    assert whole[0] <= pruned[0] <= 1.25 * whole[0]


def test_the_same_job_under_another_budget_searches_no_layout_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor = Predictor(learned=None)
    job = job_of("small", 256)
    asked: list[tuple[object, ...]] = []
    search = LayoutProblem.search

    def counted(problem: LayoutProblem, devices: int, *rest: Any) -> Any:
        asked.append((id(problem), devices))
        return search(problem, devices, *rest)

    monkeypatch.setattr(LayoutProblem, "search", counted)
    some = Constraints(gpus=parse_gpus("A100,L4"), max_nodes=4)
    free = recommend(job, some, predictor=predictor)
    first = len(asked)
    again = recommend(job, replace(some, budget_usd=1e6), predictor=predictor)
    assert first > 0
    assert len(asked) == first
    assert [one.training_time_h for one in again.front] == [o.training_time_h for o in free.front]


WHISPER = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20,
    "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120,
    "vocab_size": 51865, "max_source_positions": 1500, "max_target_positions": 448,
    "num_mel_bins": 80,
}  # fmt: skip


def test_no_bound_that_a_cut_search_left_is_above_what_a_whole_one_finds(tmp_path: Path) -> None:
    """What looked only below a limit bounds machines with slower links no further than that."""
    (tmp_path / "config.json").write_text(json.dumps(WHISPER))
    job = job_from_spec(JobSpec(model=str(tmp_path), total_samples=1e6, batch=64))
    known = Predictor(predictor().catalogue, learned=None)
    recommend(job, Constraints(gpus=parse_gpus("A100"), max_nodes=8), predictor=known)
    case = known.case(job)
    (left,) = (one for key, one in case.seen.items() if key[0] == "searched")
    columns, is_open, bound_h, _ = left
    rows = np.flatnonzero(is_open & np.isfinite(bound_h))
    kinds, counts = columns.type_index[rows], columns.count[rows]
    found = best_columns(replace(case, seen={}), kinds, counts)
    time_h = found.startup_s + found.data_in_s + found.step_s * job.paid_steps
    done = found.status == 0
    assert done.sum() > 20
    assert np.all(bound_h[rows][done] <= time_h[done] / 3600 * (1 + 1e-9))


def test_steps_that_are_of_no_matter_are_not_cut_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the step leaves every row below it as it was, and cuts nothing for the rest."""
    (tmp_path / "config.json").write_text(json.dumps(WHISPER))
    described = job_from_spec(JobSpec(model=str(tmp_path), total_samples=1e6))
    job = replace(described, is_rehearsed=True)  # nobody cuts what no script has
    known = predictor()
    names = ("g4dn.xlarge", "g5.12xlarge", "g4dn.12xlarge", "p3.16xlarge")
    rows = np.array([known.catalogue.instance_type(f"aws:{one}").index for one in names])
    counts = np.array([8, 4, 4, 2])
    cuts: list[int] = []
    cut = stage_cuts.partition

    def counted(*asked: Any, **more: Any) -> Any:
        cuts.append(1)
        return cut(*asked, **more)

    monkeypatch.setattr(unit_search, "partition", counted)
    unit_search._fastest_cut.cache_clear()
    free = best_columns(replace(known.case(job), seen={}),
                        rows, counts)  # fmt: skip
    in_full = len(cuts)
    assert in_full > 0
    for factor in (1.01, 1e-3):
        cuts.clear()
        unit_search._fastest_cut.cache_clear()
        case = replace(known.case(job), seen={})
        found = best_columns(case, rows, counts, factor * free.step_s)
        assert len(cuts) <= (in_full if factor > 1 else 0)
        if factor > 1:
            assert found.step_s == pytest.approx(free.step_s, rel=1e-12)
    assert not cuts
