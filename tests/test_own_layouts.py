"""A user's own measured layouts calibrate the layout model: robustly, and never for the worse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typer.testing import CliRunner

from advisor import api, data
from advisor.answer import Answer
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.case import SPACE
from advisor.estimate.knowledge.known import find_job
from advisor.estimate.knowledge.layout_model import load
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.jobs.runs import (
    FILE_NAME,
    LayoutRun,
    append_layout_run,
    read_layout_runs,
    unread_lines,
)
from advisor.lab.fit.layouts import read_all
from advisor.lab.score.layouts import SEEDS, after_runs
from advisor.machines.cluster import read_cluster
from advisor.planners.core.layout_case import LayoutParameters
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import DEFAULT_SETUP, Transformer
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.own_runs import (
    NAMES,
    LayoutRuns,
    fit_own_runs,
    from_logarithms,
    logarithms,
    sensitivity,
)
from advisor.planners.layouts.problem import LayoutProblem
from advisor.rank.given import PlanQuestion, plan
from advisor.train.step_feedback import note_layout_run

CLUSTER = "4x8xA100-80GB:nvlink@1600Gbps"
MODEL = Transformer(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=50_304)
LAYOUT = Layout(dp=32, micro_batch=4, accumulation_steps=4, zero_stage=2)
runner = CliRunner()


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(learned=None)


def described(**more: object) -> Job:
    return find_job(layers=32, hidden=4096, heads=32, batch=512, **more)


def measured(step_s: float, layout: Layout = LAYOUT, machines: str = CLUSTER) -> LayoutRun:
    return LayoutRun(
        name="mine", transformer=MODEL, setup=DEFAULT_SETUP, precision="bf16", machines=machines,
        layout=layout, step_s=step_s,
    )  # fmt: skip


def a_fit(errors: list[float], slopes: list[list[float]] | None = None) -> LayoutRuns:
    n = len(errors)
    j = np.array(slopes if slopes is not None else [[0.3, 0.1]] * n)
    return LayoutRuns(
        log_errors=np.array(errors), slopes=j, device_slopes=np.full(n, 0.8),
        correlations=np.ones((n, n)), spread=np.full(j.shape[1], 0.1),
    )  # fmt: skip


# The mathematics ------------------------------------------------------------------------------


def test_slopes_are_those_of_the_model_itself(predictor: Predictor) -> None:
    problem: LayoutProblem = predictor.own_runs.measured_layout(measured(1.0)).problem
    columns = layout_columns(LAYOUT)
    step_s, slopes, device_slope = sensitivity(problem, columns)
    assert step_s == pytest.approx(float(problem.times(columns).step_s))
    logs = logarithms(problem.parameters)
    for i in range(0, len(NAMES), 7):
        ahead, behind = (logs + sign * 1e-3 * np.eye(len(NAMES))[i] for sign in (1, -1))
        both = [
            float(replace(problem, parameters=from_logarithms(x)).times(columns).step_s)
            for x in (ahead, behind)
        ]
        assert slopes[i] == pytest.approx(math.log(both[0] / both[1]) / 2e-3, abs=2e-3)
    faster = replace(problem, device_factor=0.999)
    expected = math.log(float(faster.times(columns).step_s) / step_s) / math.log(0.999)
    assert device_slope == pytest.approx(expected, abs=2e-3)


def test_constants_survive_their_logarithms() -> None:
    assert logarithms(from_logarithms(logarithms(LayoutParameters()))) == pytest.approx(
        logarithms(LayoutParameters())
    )


@given(arrays.arrays(float, st.integers(1, 6), elements=st.floats(-1.5, 1.5)))
def test_runs_that_are_all_right_change_nothing_and_signs_are_kept(errors: np.ndarray) -> None:
    fit = fit_own_runs(a_fit(errors.tolist()))
    assert fit.weights.sum() == pytest.approx(1.0)
    mirrored = fit_own_runs(a_fit((-errors).tolist()))
    assert fit.log_constants() == pytest.approx(-mirrored.log_constants(), abs=1e-9)
    assert fit.log_device(np.ones(errors.size)) == pytest.approx(
        -mirrored.log_device(np.ones(errors.size)), abs=1e-9
    )
    nothing = fit_own_runs(a_fit([0.0] * errors.size))
    assert nothing.log_constants() == pytest.approx(0.0, abs=1e-12)


def test_one_outlier_among_runs_that_agree_moves_next_to_nothing() -> None:
    """Today's update moved a constant five-fold for it."""
    agree = fit_own_runs(a_fit([0.01, -0.01, 0.0, 0.02]))
    outlier = fit_own_runs(a_fit([0.01, -0.01, 0.0, math.log(5)]))
    assert np.max(np.abs(outlier.log_constants())) < 0.05
    assert abs(outlier.log_device(np.ones(4))) < 0.05
    assert abs(agree.log_device(np.ones(4))) < 0.01


def test_runs_that_agree_are_followed_the_more_the_more_there_are() -> None:
    def followed(n: int) -> float:
        fit = fit_own_runs(a_fit([0.2] * n))
        shift = np.array([0.3, 0.1]) @ fit.log_constants()
        return 0.8 * fit.log_device(np.ones(n)) + float(shift)

    few, more, many = followed(1), followed(3), followed(12)
    assert 0 < few < more < many
    assert 0.14 < more < 0.2 + 1e-9
    assert many == pytest.approx(0.2, abs=0.02)


def test_the_deviation_narrows_with_runs_and_grows_with_distance() -> None:
    def log_sd(errors: list[float], slopes: list[float], correlation: float = 1.0) -> float:
        fit = fit_own_runs(a_fit(errors))
        return fit.log_sd(np.array(slopes), 0.8, np.full(len(errors), correlation))

    assert log_sd([0.15] * 8, [0.3, 0.1]) < log_sd([0.15] * 2, [0.3, 0.1])
    assert log_sd([0.15] * 3, [0.3, 0.1]) < log_sd([0.15] * 3, [0.3, 1.5])
    assert log_sd([0.15] * 3, [0.3, 0.1]) < log_sd([0.15] * 3, [0.3, 0.1], 0.2)
    assert log_sd([0.3, -0.3, 0.3], [0.3, 0.1]) > log_sd([0.02, 0.02, 0.02], [0.3, 0.1])


def test_what_was_off_once_in_a_while_may_be_again() -> None:
    """A run in ten that took twice as long moves nothing, but is not forgotten."""

    def log_sd(wild: float) -> float:
        fit = fit_own_runs(a_fit([0.01, -0.01, 0.0] * 3 + [wild]))
        return fit.log_sd(np.array([0.3, 0.1]), 0.8, np.ones(10))

    assert log_sd(math.log(2)) > 0.9 * math.log(2) / math.sqrt(10)
    assert log_sd(math.log(2)) > 3 * log_sd(0.0)


def test_shapes_that_do_not_match_are_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="shapes"):
        replace(a_fit([0.1, 0.2]), device_slopes=np.ones(3))
    with pytest.raises(ValueError, match="finite"):
        a_fit([math.nan])


# The tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "noise"), [(2, 0.03), pytest.param(SEEDS, 0.003, marks=pytest.mark.slow)]
)
def test_three_rows_never_make_a_table_worse_and_most_better(seeds: int, noise: float) -> None:
    """Over all layout tables; a third of a point is what nine seeds cannot tell, two 3."""
    found = after_runs(read_all(data.measurements(None)), load(), seeds=seeds)
    assert len(found) >= 15
    worse = {t.table: t.gain for t in found if t.gain < -noise}
    assert not worse
    assert np.mean([t.gain for t in found]) > 0.01
    (blackwell,) = (t for t in found if t.table == "blackwell")
    assert np.median(blackwell.after) < 0.07 < np.median(blackwell.before)
    assert 0.85 < np.mean([t.scores.coverage for t in found]) < 0.97


# The product ----------------------------------------------------------------------------------


def test_plan_and_recommend_answer_by_the_users_runs(predictor: Predictor) -> None:
    job = described(total_steps=1000)
    cluster = read_cluster(CLUSTER, predictor.catalogue)

    def best(asked: Job) -> Answer:
        return plan(PlanQuestion(job=asked, cluster=cluster, predictor=predictor)).best

    bare = best(job).step_time_s
    own = replace(job, layout_runs=tuple(measured(1.3 * bare.value * f) for f in (1, 0.98, 1.02)))
    after = best(own).step_time_s
    assert 1.2 < after.value / bare.value <= 1.31
    assert after.high / after.low < bare.high / bare.low
    first, second = (
        api.recommend(one, gpus="A100:8", max_nodes=4, predictor=predictor).front[0].step_time_s
        for one in (job, own)
    )
    assert second.value > 1.1 * first.value


def test_a_run_that_took_what_was_answered_changes_nothing_of_a_split_model(
    predictor: Predictor,
) -> None:
    """Nobody named a stack: the run is seen in the one that the question is answered in."""
    job = described(precision="fp16")
    cluster = read_cluster("32x1xV100-SXM2-16GB@10Gbps", predictor.catalogue)

    def best(asked: Job) -> Answer:
        question = PlanQuestion(
            job=asked, cluster=cluster, predictor=predictor, space=replace(SPACE, pp=8)
        )
        return plan(question).best

    bare = best(job)
    layout = bare.layout
    run = replace(
        measured(bare.step_time_s.value, layout, "32x1xV100-SXM2-16GB@10Gbps"), precision="fp16"
    )
    after = best(replace(job, layout_runs=(run,)))
    assert after.step_time_s.value == pytest.approx(bare.step_time_s.value, rel=1e-6)


def test_a_model_wider_than_any_measured_has_a_wider_interval_and_is_told_so(
    predictor: Predictor,
) -> None:
    cluster = read_cluster("8x8xA100-80GB:nvlink@1600Gbps", predictor.catalogue)

    def asked(hidden: int) -> tuple[float, bool]:
        job = find_job(layers=4, hidden=hidden, heads=hidden // 128, batch=64, stack="megatron-lm")
        found = plan(PlanQuestion(job=job, cluster=cluster, predictor=predictor))
        step = found.best.step_time_s
        said = any("a wider model" in note for way in found.plans for note in way.notes)
        return math.log(step.high / step.low), said

    (near, is_said_near), (far, is_said_far) = asked(25_600), asked(40_960)
    assert far > 1.05 * near
    assert is_said_far
    assert not is_said_near


def test_runs_on_one_card_say_less_of_another(predictor: Predictor) -> None:
    job = described()
    bare = predictor.predict(job, "p4de.24xlarge", count=4).step_time_s
    own = replace(job, layout_runs=tuple(measured(1.3 * bare.value) for _ in range(3)))

    def ratio(name: str) -> float:
        after, before = (
            predictor.predict(one, name, count=4).step_time_s.value for one in (own, job)
        )
        return after / before

    assert ratio("p4de.24xlarge") > ratio("p5.48xlarge") > 1.0
    assert predictor.predict(own, "p5.48xlarge", count=4).step_time_s.high > 0


def test_what_is_noted_calibrates_the_next_answer_and_says_so(
    predictor: Predictor, tmp_path: Path
) -> None:
    first = note_layout_run(described(), CLUSTER, step_s=9.0, predictor=predictor, root=tmp_path)
    for step_s in (9.1, 8.9):
        last = note_layout_run(
            described(), CLUSTER, step_s=step_s, predictor=predictor, root=tmp_path
        )
    assert last.known == 3
    assert abs(last.error_fraction) < abs(first.error_fraction)
    assert [r.step_s for r in read_layout_runs(tmp_path)] == [9.0, 9.1, 8.9]


def test_the_verbs_note_and_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path))
    model = ["--layers", "32", "--hidden", "4096", "--heads", "32", "--batch", "512"]
    noting = ["runs", "actual", *model, "--cluster", CLUSTER, "--tp", "1", "--pp", "1"]
    found = runner.invoke(app, [*noting, "--step-time", "9.1s", "--json"])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert record["actual"] == {"step_time_s": 9.1}
    assert record["layout"]["tp"] == 1
    planned = runner.invoke(app, ["plan", *model, "--cluster", CLUSTER, "--json"])
    assert "calibrated on 1 measured run of yours" in " ".join(
        json.loads(planned.stdout)["model"]["notes"]
    )
    time = ["--step-time", "9s"]
    for words, why in (
        (noting, "the step time is missing"),
        (["runs", "actual", *model, *time], "the machines it ran on are missing"),
        (["runs", "actual", *time], "no run is named"),
        (["runs", "actual", "run", *model, *time], "combined with a described"),
    ):
        refused = runner.invoke(app, words)
        assert isinstance(refused.exception, UsageError)
        assert why in str(refused.exception)


def test_what_no_layout_search_answers_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different machines"):
        note_layout_run(described(), f"{CLUSTER},4xL4", step_s=1.0, root=tmp_path)
    network = find_job(cnn="224:64:3x256,4x512,6x1024,3x2048:bottleneck", batch=64)
    with pytest.raises(UsageError, match="dimensions"):
        note_layout_run(network, CLUSTER, step_s=1.0, root=tmp_path)
    huge = find_job(layers=96, hidden=12288, heads=96, batch=8)
    with pytest.raises(UsageError, match="fit in memory"):
        note_layout_run(huge, "1x1xA100-80GB", step_s=1.0, root=tmp_path)
    assert not (tmp_path / FILE_NAME).exists()


@settings(max_examples=30)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4),
    st.sampled_from(
        [
            "",
            "{",
            "[]",
            '{"name": 1}',
            "[" * 50_000,
            "\x1b[31m",
            '{"schema_version": 1, "layout_run": {"name": 1}}',
        ]
    ),
)
def test_what_is_appended_is_read_back_and_a_broken_line_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], bad: str
) -> None:
    root = tmp_path_factory.mktemp("runs")
    offloaded = replace(LAYOUT, offload=frozenset({"optimizer"}), shard_group=8)
    for step_s in times:
        append_layout_run(root, measured(step_s, offloaded))
        with (root / FILE_NAME).open("a") as file:
            file.write(bad + "\n")
    assert read_layout_runs(root) == tuple(measured(s, offloaded) for s in times)
    told = unread_lines(root, of_layouts=True)
    assert len(told) == (len(times) if bad.strip() else 0)
    assert all(line.isprintable() for line in told)


def test_machines_that_nobody_knows_are_left_out(predictor: Predictor) -> None:
    job = described()
    bare = predictor.predict(job, "p4de.24xlarge", count=4).step_time_s
    odd = replace(job, layout_runs=(measured(9.0, machines="4x8xNoSuchCard"),))
    assert predictor.predict(odd, "p4de.24xlarge", count=4).step_time_s == bare


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.inf, math.nan])
def test_nonsense_times_are_refused(step_s: float) -> None:
    with pytest.raises(UsageError):
        measured(step_s)
