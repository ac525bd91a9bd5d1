"""One estimate: the same job on the same machines has one answer, whoever is asked.

``Predictor.step_columns`` is the estimate; ``predict``, ``plan``, ``recommend``, Python and JSON
must say its step, memory and layout. Machines and jobs are drawn from the bundled catalogue and
from models of several kinds and sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from recorded_models import transformer as recorded_transformer
from typer.testing import CliRunner

from advisor import api
from advisor.answer import Answer
from advisor.ask import Constraints, Question, layout_space
from advisor.ask.requests import LayoutRequest
from advisor.catalogue import Catalogue, GpuFilter
from advisor.cli.program import app
from advisor.errors import AdvisorError
from advisor.estimate.case import SPACE
from advisor.estimate.estimate import estimate_on_type
from advisor.estimate.plan import Plan
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.model_facts import as_commonly_run
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts import INDISTINGUISHABLE
from advisor.planners.layouts.problem import POSSIBLE, SearchSpace
from advisor.planners.layouts.search import node_counts
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.rank.given import FAMILIES, PlanQuestion, plan
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]
SAME = 1e-9
TRANSFORMERS = {
    "gpt2": Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257),
    "1.3b": Transformer(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50304),
    "8b": Transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence=4096,
                      vocabulary=128256, is_gated=True),
    "moe": Transformer(layers=8, hidden=1024, heads=16, sequence=1024, vocabulary=32000,
                       experts=8, experts_per_token=2),
    "70b": Transformer(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, sequence=4096,
                       vocabulary=128256, is_gated=True),
}  # fmt: skip
NETWORKS = ("224:64:3x256,4x512,6x1024,3x2048:bottleneck", "32:64:2x64,2x128,2x256,2x512:basic")
# What a user may fix; the first leaves everything open.
FIXED: tuple[dict[str, Any], ...] = (
    {}, {"tp": 1}, {"tp": 2}, {"tp": 4}, {"pp": 1}, {"pp": 2}, {"cp": 2}, {"zero": 0}, {"zero": 1},
    {"zero": 3}, {"recompute": "none"}, {"recompute": "full"}, {"micro_batch": 1},
    {"accumulate": 1}, {"offload": False}, {"tp": 2, "pp": 2}, {"tp": 1, "zero": 3},
)  # fmt: skip


@cache
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


@cache
def predictor() -> Predictor:
    return Predictor(catalogue(), learned=None)


def catalogue_name(text: str) -> str:
    """Return what a cluster's text is read as; nothing where it may be several things."""
    try:
        return parse_cluster(text, catalogue())[0].label
    except AdvisorError:
        return ""


@cache
def machine_rows() -> tuple[int, ...]:
    """Types with accelerators that the models know and that a cluster's text can name."""
    fleet, columns = predictor().fleet, catalogue().types
    names = [str(name) for name in columns.name]
    usable = fleet.is_accelerated & fleet.is_supported & (fleet.device >= 0)
    usable &= columns.accelerator_count >= 1  # no share of a card
    return tuple(
        row
        for row in np.flatnonzero(usable).tolist()
        if names.count(names[row]) == 1
        and re.fullmatch(r"[A-Za-z][\w.-]+", names[row])
        and catalogue_name(f"1x {names[row]}") == names[row]  # and no accelerator's
    )


def described(name: str, batch: int) -> Job:
    work = transformer_work(TRANSFORMERS[name], micro_batch=1)
    return described_job(work, name=name, global_batch=batch, steps=20_000)


@dataclass(frozen=True)
class Draw:
    """A job, machines and what is fixed of the layout."""

    job: Job
    row: int
    count: int
    fixed: dict[str, Any]

    @property
    def name(self) -> str:
        return str(catalogue().types.name[self.row])

    @property
    def is_sold(self) -> bool:
        known = catalogue().instance_type(self.name)
        return predictor().cheapest(known)[1] is not None

    @property
    def space(self) -> SearchSpace | None:
        return layout_space(LayoutRequest(**self.fixed))

    def planned(self) -> Plan:
        return plan(
            PlanQuestion(
                job=self.job,
                cluster=parse_cluster(f"{self.count}x {self.name}", catalogue()),
                space=self.space or SPACE,
                predictor=predictor(),
                asked=LayoutRequest(swap=False),
            )
        )


def drawn(rng: np.random.Generator, jobs: tuple[Job, ...]) -> Draw:
    job = jobs[int(rng.integers(len(jobs)))]
    assert job.work is not None
    is_described = job.work.transformer is not None
    return Draw(
        job=job,
        row=int(rng.choice(machine_rows())),
        count=int(rng.choice([1, 1, 2, 3, 4, 8])),
        fixed=FIXED[int(rng.integers(len(FIXED)))] if is_described and rng.random() < 0.5 else {},
    )


@pytest.fixture(scope="module")
def jobs(make_job: MakeJob) -> tuple[Job, ...]:
    """Described transformers and networks, and two recorded models; transformers twice."""
    work = recorded_transformer()
    networks = [
        described_job(
            convolutional_work(parse_network(text), micro_batch=32), name=text, global_batch=batch,
            steps=20_000,
        )
        for text, batch in zip(NETWORKS, (256, 512), strict=True)
    ]  # fmt: skip
    transformers = [
        described(name, batch)
        for name, batches in {
            "gpt2": (64, 480), "1.3b": (48, 256), "8b": (64, 128), "moe": (32, 64), "70b": (64, 96)
        }.items()
        for batch in batches
    ]  # fmt: skip
    recorded = make_job(
        work=work, global_batch=64, recorded_batch=work.micro_batch, step_s=0.5, workers=4
    )
    return (*transformers, *networks, recorded, make_job(total_steps=2000.0))


def whole(found: Plan, count: int) -> list[tuple[float, float, Layout]]:
    """Return step [s], memory [GiB] and layout of a plan's ways on all of equal machines."""
    found_ways = [c for c in (*found.choices, *found.front) if [*c.machines.values()] == [count]]
    return [
        (c.step_time_s.value, memory_gib, layout)
        for c in found_ways
        for memory_gib, layout in zip(
            c.memory_gib_by_group.values(), c.layouts.values(), strict=True
        )
    ]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_predict_plan_and_python_say_the_same(seed: int, jobs: tuple[Job, ...]) -> None:
    """Draws of a job and a machine: step, memory and layout to 1e-9, or a refusal by all."""
    rng = np.random.default_rng(seed)
    answered = 0
    for _ in range(20 if seed else 7):
        draw = drawn(rng, jobs)
        at = np.array([draw.row]), np.array([draw.count])
        columns = predictor().step_columns(draw.job, *at, space=draw.space)
        if columns.status[0]:
            # Machines that are named are answered with what is as likely to fit as not.
            likely = replace(draw.space or SPACE, sureness=POSSIBLE)
            if predictor().step_columns(draw.job, *at, space=likely).status[0]:
                refused_by_all(draw)
            continue
        answered += 1
        step_s, memory_gib = float(columns.step_s[0]), float(columns.memory_bytes[0]) / GIB
        asked: list[Answer] = [
            estimate_on_type(predictor(), draw.job, draw.name, count=draw.count, space=draw.space)
        ]
        if not draw.fixed and draw.is_sold:
            asked.append(predictor().predict(draw.job, draw.name, count=draw.count))
        said = [(one.step_time_s.value, one.memory_gib, one.layout) for one in asked]
        ways = whole(draw.planned(), draw.count)
        said.append(min(ways, key=lambda one: one[0]))
        for one in said:
            assert one[0] == pytest.approx(step_s, rel=SAME), draw
            assert one[1] == pytest.approx(memory_gib, rel=SAME), draw
            assert one[2] == columns.layout(0), draw
    assert answered >= 3


def refused_by_all(draw: Draw) -> None:
    with pytest.raises(AdvisorError):
        estimate_on_type(predictor(), draw.job, draw.name, count=draw.count, space=draw.space)
    if not draw.fixed:
        with pytest.raises(AdvisorError):
            predictor().predict(draw.job, draw.name, count=draw.count)
    try:
        found = draw.planned()
    except (AdvisorError, PlanningError):
        return
    assert not whole(found, draw.count), draw  # fewer of the machines, and why not all of them
    assert found.left_out


@pytest.mark.parametrize("gpus", [
    ("A100",), pytest.param(("L4", "T4"), marks=pytest.mark.slow),
    pytest.param(("H100", "V100"), marks=pytest.mark.slow),
])  # fmt: skip
def test_recommend_says_what_predict_says(gpus: tuple[str, ...], jobs: tuple[Job, ...]) -> None:
    compared = 0
    for job in jobs[::3]:
        request = Constraints(
            least_gain_fraction=0.0, gpus=GpuFilter(names=gpus), max_nodes=4, top=100,
            providers=("aws", "gcp", "lambda"),
        )  # fmt: skip
        for one in recommend(job, request, predictor=predictor()).front:
            ((offer, count),) = one.configuration.parts
            same = predictor().predict(
                job, offer.instance_type, count=count, provider=offer.provider
            )
            assert one.step_time_s.value == pytest.approx(same.step_time_s.value, rel=SAME)
            assert one.memory_gib == pytest.approx(same.memory_gib, rel=SAME)
            assert one.layout == same.layout
            compared += 1
    assert compared >= 5


def said_by(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.parametrize(
    ("job", "count", "machine", "fixed"),
    [
        ({"layers": 12, "hidden": 768, "heads": 12, "sequence": 1024, "batch": 480}, 1,
         "p4d.24xlarge", {}),
        ({"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048, "batch": 64}, 2,
         "a2-highgpu-8g", {"tp": 2, "zero": 1}),
        ({"layers": 40, "hidden": 5120, "heads": 40, "sequence": 2048, "batch": 64}, 2,
         "Standard_ND96amsr_A100_v4", {"recompute": "full"}),
        ({"cnn": NETWORKS[0], "batch": 256}, 2, "g2-standard-24", {}),
    ],
)  # fmt: skip
def test_json_says_what_python_says(
    job: dict[str, Any], count: int, machine: str, fixed: dict[str, Any]
) -> None:
    """The command line's predict and plan, and ``api.estimate``, with the shipped model."""
    flags = [f"--{n}={v}" for n, v in {**job, **fixed}.items()]
    named = api.job_of(Question.read({**job, "total_samples": 100_000}).job)
    python = api.estimate(named, on=machine, count=count, layout=LayoutRequest(**fixed))
    predicted = said_by(
        "predict", *flags, "--total-samples=100000", "--on", machine, "--count", str(count)
    )
    planned = said_by("plan", *flags, "--total-samples=100000", "--cluster", f"{count}x {machine}")
    ways = [
        p for p in planned["plans"] if [part["count"] for part in p["configuration"]] == [count]
    ]
    best = min(ways, key=lambda p: p["step_time_s"]["value"])
    for step_s, memory_gib, layout in (
        (predicted["step_time_s"]["value"], predicted["memory_gib"], predicted["layout"]),
        (
            best["step_time_s"]["value"],
            best["memory_gib_by_group"][machine],
            best["layouts"][machine],
        ),
    ):
        assert step_s == pytest.approx(python.step_time_s.value, rel=SAME)
        assert memory_gib == pytest.approx(python.memory_gib, rel=SAME)
        assert layout == python.layout.to_record()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_a_constraint_never_makes_a_step_shorter(seed: int, jobs: tuple[Job, ...]) -> None:
    rng = np.random.default_rng(100 + seed)
    rows = rng.choice(machine_rows(), 5)
    at = np.repeat(rows, 3), np.tile([1, 2, 4], len(rows))
    compared = 0
    for name in ("gpt2", "moe", "8b"):
        job = described(name, 64)
        assert job.work is not None
        # Degrees that split a model say that Megatron runs it, where nobody names a stack.
        in_megatron = replace(job, work=as_commonly_run(job.work, "nemo"))
        of_stack = {
            is_split: predictor().step_columns(asked, *at).step_s
            for is_split, asked in ((False, job), (True, in_megatron))
        }
        per_node = predictor().fleet.per_node[at[0]]
        for fixed in FIXED[1:]:
            space = layout_space(LayoutRequest(**fixed))
            held = predictor().step_columns(job, *at, space=space)
            best_s = of_stack[max(fixed.get(degree, 1) for degree in ("tp", "pp", "cp")) > 1]
            # Tensor parallel over a network is looked at only where it is asked for.
            fits = (held.status == 0) & (fixed.get("tp", 1) <= per_node)
            assert np.isfinite(best_s[fits]).all(), fixed
            # What nobody asked to move to the host moves only where measurements would tell.
            least_s = best_s[fits] * (1 - SAME) / INDISTINGUISHABLE
            assert np.all(held.step_s[fits] >= least_s), (name, fixed)
            compared += int(fits.sum())
    assert compared > 50


def test_more_machines_to_choose_from_never_lengthen_the_best_step() -> None:
    """The fastest of up to 2n machines is no slower than of up to n, and has no less to pay."""
    for machine, name, batch in (
        ("a2-highgpu-8g", "1.3b", 256), ("g2-standard-24", "gpt2", 64), ("p3.16xlarge", "8b", 64)
    ):  # fmt: skip
        row = catalogue().instance_type(machine).index
        before = np.inf
        for count in (1, 2, 4, 8):
            try:
                found = Draw(described(name, batch), row, count, {}).planned()
            except PlanningError:
                assert before == np.inf
                continue
            fastest = found.front[0]
            assert fastest.step_time_s.value <= before * (1 + SAME)
            assert all(n in node_counts(count) for c in found.front for n in c.machines.values())
            before = fastest.step_time_s.value
        assert np.isfinite(before)


@pytest.mark.parametrize(
    ("machine", "count", "name"),
    [("a2-highgpu-8g", 2, "8b"), ("g2-standard-48", 2, "1.3b"), ("p4d.24xlarge", 1, "moe")],
)
def test_the_ways_of_a_plan_hold_the_best_of_each_family(
    machine: str, count: int, name: str
) -> None:
    job = described(name, 64)
    row = catalogue().instance_type(machine).index
    ways = whole(Draw(job, row, count, {}).planned(), count)
    best_s = min(step_s for step_s, _, _ in ways)
    seen = 0
    for degrees in FAMILIES:
        columns = predictor().step_columns(
            job, np.array([row]), np.array([count]), space=replace(SPACE, **degrees)
        )
        if columns.status[0]:
            continue
        seen += 1
        step_s = float(columns.step_s[0])
        assert step_s >= best_s * (1 - SAME)
        assert any(
            one[0] == pytest.approx(step_s, rel=SAME) and one[2] == columns.layout(0)
            for one in ways
        ), degrees
    assert seen >= 3


@pytest.mark.parametrize("machine", ["a2-highgpu-8g", "p5.48xlarge", "g2-standard-48"])
def test_zero_3_inside_one_machine_equals_itself(machine: str) -> None:
    """By every verb, and sharded over all ranks or over the machine's, which are the same."""
    job, row = described("1.3b", 64), catalogue().instance_type(machine).index
    draw = Draw(job, row, 1, {"zero": 3, "tp": 1, "pp": 1, "cp": 1})
    one = np.array([row]), np.array([1])
    assert draw.space is not None
    steps = [
        float(predictor().step_columns(job, *one, space=space).step_s[0])
        for space in (draw.space, replace(draw.space, may_shard_in_nodes=False))
    ]
    steps.append(estimate_on_type(
        predictor(), job, machine, space=draw.space
    ).step_time_s.value)  # fmt: skip
    found = min(whole(draw.planned(), 1), key=lambda w: w[0])
    assert found[2].zero_stage == 3
    assert found[2].shard_group is None
    assert [*steps, found[0]] == pytest.approx([steps[0]] * 4, rel=SAME)


@pytest.mark.parametrize("link", ["network_bytes_per_s", "intra_bytes_per_s"])
def test_a_faster_link_never_lengthens_a_step(link: str, jobs: tuple[Job, ...]) -> None:
    rng = np.random.default_rng(7)
    known = predictor().fleet
    rows = rng.choice(machine_rows(), 4)
    at = np.repeat(rows, 2), np.tile([2, 4], len(rows))
    compared = 0
    for job in (*jobs[:8:3], *jobs[-4:]):
        assert job.work is not None
        # Another way of a model that is no described transformer has to save 3 % and a minute.
        is_described = job.work.transformer is not None
        slack, slack_s = (1 + SAME, 0.0) if is_described else (1.03, 60.0 / job.paid_steps)
        before = np.full(len(at[0]), np.inf)
        for factor in (0.25, 1.0, 30.0):
            machines = replace(known, **{link: getattr(known, link) * factor})
            now = predictor().step_columns(job, *at, fleet=machines)
            fits = now.status == 0
            assert fits[np.isfinite(before)].all()
            assert np.all(now.step_s[fits] <= before[fits] * slack + slack_s), job.name
            before = np.where(fits, now.step_s, np.inf)
            compared += int(fits.sum())
    assert compared > 50
