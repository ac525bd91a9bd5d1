"""From records to predictions: features, physics, splits, regret, training, the commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import ModelError, UsageError
from advisor.lab.learned.sequence import SequenceNetwork
from advisor.lab.score.runs import walked_ratio
from advisor.learned import features
from advisor.learned.choose import Runs, chosen_ratio, penalty_for, scores
from advisor.learned.evaluation import evaluate, metrics
from advisor.learned.features import RunColumns, as_columns, communication_s
from advisor.learned.linear import Ridge
from advisor.learned.problem import problem_of
from advisor.learned.regrets import Regret, regret
from advisor.learned.selection import Contest, best_of
from advisor.learned.splits import left_out
from advisor.learned.trained import TrainedModel, data_hash
from advisor.records import (
    AnchorRun,
    Instances,
    JobFacts,
    ResourceSeries,
    RunRecord,
    write_records,
)
from advisor.train.folder import card
from advisor.train.models import train

runner = CliRunner()


def record(
    family: str = "mlp",
    *,
    cores: float = 0.5,
    count: int = 1,
    anchor_s: float = 10.0,
    time_s: float | None = 20.0,
    gbit: float | None = None,
    servers: int = 0,
    name: str = "",
    **changes: Any,
) -> RunRecord:
    """A run of a job on machines of a share of a core, with its partial run on one core."""
    series = ResourceSeries(
        interval_s=0.5, channels={"cpu_cores": (0.5, 1.0, 1.0), "memory_bytes": (1e8, 2e8, 3e8)}
    )
    values: dict[str, Any] = {
        "record_id": name or f"{family}-{cores}-{count}-{gbit}-{time_s}",
        "source": "test",
        "job": JobFacts(
            job_id=f"{family}-b8",
            family=family,
            facts={"batch": 8.0, "steps": 100.0, "parameter_bytes": 1e6, "flop_per_step": 1e9,
                   "bytes_per_step": 1e8},
        ),
        "configuration": (
            Instances(provider="p", instance_type=f"quota-{cores}", count=count, vcpus=cores,
                     network_gbit_per_s=gbit, price_usd_per_h=0.1 * cores),
        ),
        "layout": {"workers": float(count - servers), "servers": float(servers), "threads": 1.0},
        "time_s": time_s,
        "time_kind": "job",
        "anchor": AnchorRun(
            machines=Instances(provider="p", instance_type="core", vcpus=1.0),
            time_s=anchor_s,
            facts={"step_time_s": 0.1, "cpu_s_per_step": 0.08},
            series=(series,),
        ),
    }  # fmt: skip
    return RunRecord(**(values | changes))


def runs(families: int = 6, jobs: int = 4, seed: int = 0) -> list[RunRecord]:
    """Runs that follow physics with an overhead of the family and noise of one run."""
    rng = np.random.default_rng(seed)
    made = []
    for f in range(families):
        overhead = rng.uniform(0.0, 0.2)
        for j in range(jobs):
            anchor_s = float(rng.uniform(2, 20))
            for cores in (0.25, 0.5, 1.0):
                time_s = anchor_s / cores * (1 + overhead) * math.exp(rng.normal(0, 0.03))
                made.append(
                    record(f"f{f}", cores=cores, anchor_s=anchor_s, time_s=time_s,
                           name=f"{f}-{j}-{cores}",
                           job=JobFacts(job_id=f"f{f}-{j}", family=f"f{f}",
                                        facts={"batch": float(8 * (j + 1)), "steps": 100.0}),
                           cost_usd=time_s * cores / 36000.0)
                )  # fmt: skip
    return made


def analytic_time_s(run: RunRecord) -> float:
    return float(as_columns([run])["analytic_time_s"][0])


def sent_s(run: RunRecord) -> float:
    return float(communication_s(as_columns([run]))[0])


class TestAnalytic:
    """What physics alone says, in closed form."""

    def test_half_the_cores_take_twice_the_time(self) -> None:
        assert analytic_time_s(record(cores=0.5)) == 20.0

    def test_threads_bound_the_cores_that_help(self) -> None:
        assert analytic_time_s(record(cores=2.0)) == 10.0  # one thread

    def test_a_ring_sends_twice_the_gradients_less_one_share(self) -> None:
        two = record(cores=1.0, count=2, gbit=0.008)  # 1e6 bytes/s
        assert sent_s(two) == pytest.approx(50 * 2 * (1 / 2) * 1.0)
        assert analytic_time_s(two) == pytest.approx(10.0 / 2 + 50.0)

    def test_a_server_carries_every_worker(self) -> None:
        three = record(cores=1.0, count=3, servers=1, gbit=0.008)
        assert sent_s(three) == pytest.approx(50 * 2 * 1.0)

    def test_without_a_partial_run_physics_says_nothing(self) -> None:
        assert math.isnan(analytic_time_s(record(anchor=None)))

    def test_what_the_maker_knows_better_counts(self) -> None:
        assert analytic_time_s(record(facts={"analytic_time_s": 7.0})) == 7.0


class TestFeatures:
    def test_every_feature_has_one_name_unit_and_group(self) -> None:
        assert len(set(features.NAMES)) == len(features.FEATURES)
        assert all(f.unit for f in features.FEATURES)

    def test_logs_are_taken_where_the_table_says(self) -> None:
        row = dict(zip(features.NAMES, RunColumns.of([record()]).features[0], strict=True))
        assert row["batch"] == pytest.approx(math.log(8.0))
        assert row["busy_cores"] == pytest.approx(0.8)
        assert row["vcpus_over_anchor"] == pytest.approx(math.log(0.5))
        assert row["memory_bytes_late_growth"] == pytest.approx(1.0)
        assert math.isnan(row["image_pixels"])

    @pytest.mark.parametrize("readings", [0, 1, 2])
    def test_short_series_have_no_course_but_break_nothing(self, readings: int) -> None:
        channels = {"cpu_cores": tuple([1.0] * readings)}
        anchor = replace(
            record().anchor or pytest.fail("no anchor"),
            series=(ResourceSeries(interval_s=1.0, channels=channels),),
        )
        run = record(anchor=anchor)
        row = dict(zip(features.NAMES, RunColumns.of([run]).features[0], strict=True))
        assert math.isnan(row["cpu_cores_late_growth"])
        assert np.isfinite(features.sequences([run])).all()

    def test_series_are_scaled_to_order_one(self) -> None:
        rows = features.sequences([record()])
        assert rows.shape == (1, len(features.SEQUENCE_CHANNELS) * features.SEQUENCE_READINGS)
        assert rows.min() >= 0.0
        assert rows.max() <= 1.0


class TestSplits:
    @pytest.mark.parametrize("split", ["job", "instance", "both"])
    def test_nothing_of_what_is_left_out_is_in_training(self, split: Any) -> None:
        records = runs()
        for _, train_rows, test_rows in left_out(records, split):
            test_families = {records[i].job.family for i in test_rows}
            test_machines = {records[i].instance_key for i in test_rows}
            for i in train_rows:
                assert split == "instance" or records[i].job.family not in test_families
                assert split == "job" or records[i].instance_key not in test_machines

    @pytest.mark.parametrize("split", ["random", "job", "instance"])
    def test_every_run_is_tested_once(self, split: Any) -> None:
        records = runs()
        tested = np.concatenate([test for _, _, test in left_out(records, split)])
        assert sorted(tested) == list(range(len(records)))

    @pytest.mark.parametrize("split", ["job", "both"])
    def test_one_job_cannot_be_left_out(self, split: Any) -> None:
        with pytest.raises(ModelError, match="f0"):
            list(left_out(runs(families=1), split))


class TestRegret:
    def test_a_perfect_prediction_has_no_regret(self) -> None:
        records = runs()
        found = regret(records, [r.time_s or 0 for r in records])
        assert found is not None
        assert found.top1 == 1.0
        assert min(found.random, found.constant) > 1.0

    def test_the_worst_choice_is_paid_in_full(self) -> None:
        a = record(cores=0.5, time_s=10.0, cost_usd=1.0, name="a")
        b = record(cores=1.0, time_s=20.0, cost_usd=3.0, name="b")
        found = regret([a, b], [5.0, 1.0])
        assert found is not None
        assert found.top1 == 3.0

    def test_what_failed_is_never_chosen(self) -> None:
        good = record(cores=0.5, time_s=10.0, name="a")
        other = record(cores=1.0, time_s=11.0, name="b")
        failed = record(cores=0.25, time_s=1.0, status="failed", name="c")
        found = regret([good, other, failed], [2.0, 3.0, 0.1])
        assert found is not None
        assert found.top1 == 1.0

    def test_without_a_choice_there_is_no_regret(self) -> None:
        assert regret([record()], [1.0]) is None


def table(jobs: int = 12, seed: int = 0) -> Runs:
    """Jobs whose best number of machines grows with their size."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.uniform(0, 5, jobs))
    nodes = np.array([1.0, 2.0, 4.0, 8.0])
    times = size[:, None] / nodes + 2.0 * nodes
    return Runs(
        prices=times * nodes**0.2, times=times, has_run=np.ones_like(times, bool),
        families=np.array([f"f{i}" for i in range(jobs)], dtype=object),
        price_usd_per_h=nodes, measured=np.zeros((jobs, 4, 0)),
    )  # fmt: skip


class TestChoice:
    def test_one_run_tells_a_long_job_from_a_short_one(self) -> None:
        runs_, own, usual = table(), [], []
        from advisor.learned.regrets import constant_answer

        for job in range(12):
            others = np.setdiff1d(np.arange(12), [job])
            own.append(
                chosen_ratio(runs_, job, scores(runs_, job, others, penalty_for(runs_, others)))
            )
            usual.append(chosen_ratio(runs_, job, constant_answer(runs_.ratios[others])))
        assert np.mean(own) < 1.0 + 0.5 * (np.mean(usual) - 1.0)

    def test_a_job_that_failed_on_the_anchor_gets_the_constant_answer(self) -> None:
        from advisor.learned.regrets import constant_answer

        runs_ = table()
        others = np.arange(1, 12)
        usual = constant_answer(runs_.ratios[others])
        prices = runs_.prices.copy()
        prices[0, int(np.argmin(usual))] = np.nan
        assert np.array_equal(
            scores(replace(runs_, prices=prices).seen_by(0, usual == usual.min()), 0, others, 1.0),
            usual,
        )

    def test_failures_that_are_chosen_are_paid_before_the_next_is_tried(self) -> None:
        runs_ = Runs(
            prices=np.array([[np.nan, 2.0, 1.0]]), times=np.ones((1, 3)),
            has_run=np.ones((1, 3), bool), families=np.array(["f"], dtype=object),
            price_usd_per_h=np.ones(3), measured=np.zeros((1, 3, 0)),
        )  # fmt: skip
        spent = np.array([[0.5, 2.0, 1.0]])
        assert walked_ratio(runs_, 0, np.array([0.0, 1.0, 2.0]), spent) == 2.5


class TestProblem:
    def test_failed_and_spoilt_runs_are_not_fitted_but_cut_ones_are(self) -> None:
        records = [
            record(name="a"),
            record(name="b", status="censored"),
            record(name="c", status="oom", time_s=None),
            record(name="d", facts={"is_noisy": 1.0}),
        ]
        asked = problem_of(records)
        assert [r.record_id for r in asked.records] == ["a", "b"]
        assert asked.is_censored.tolist() == [False, True]

    def test_an_unknown_target_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="no target named 'speed'"):
            problem_of([record()], "speed")  # type: ignore[arg-type]

    def test_runs_without_what_the_target_needs_are_refused(self) -> None:
        with pytest.raises(ModelError, match="none of 1 runs"):
            problem_of([record(anchor=None)], "over_anchor")

    @pytest.mark.parametrize("target", ["over_analytic", "over_anchor", "time", "cost"])
    def test_predictions_come_back_in_the_unit_of_the_truth(self, target: Any) -> None:
        asked = problem_of(runs(), target)
        model = asked.fit(Ridge(), slice(None))
        ratio = asked.predict(model, slice(None)) / asked.truth
        assert np.median(np.abs(np.log(ratio))) < 0.8


@given(st.floats(0.1, 10.0))
def test_metrics_do_not_depend_on_the_unit(factor: float) -> None:
    truth = np.array([1.0, 2.0, 5.0])
    predicted = np.array([1.1, 1.9, 6.0])
    a, b = metrics(predicted, truth), metrics(factor * predicted, factor * truth)
    assert a.mape_fraction == pytest.approx(b.mape_fraction)
    assert a.r2 == pytest.approx(b.r2)
    assert b.rmse == pytest.approx(factor * a.rmse)


def test_evaluation_beats_its_baselines_where_there_is_something_to_learn() -> None:
    asked = problem_of(runs(families=8))
    result = evaluate(asked, Ridge, "job")
    assert result.overall.mape_fraction < 0.12
    assert result.overall.mape_fraction < result.baselines["mean"].mape_fraction
    assert result.to_record()["top1_regret"]["jobs"] == 32
    assert {name for name, _ in result.groups} == {f"f{i}" for i in range(8)}


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    found: TrainedModel = train(runs(), model="ridge")[0]
    return found


class TestTrained:
    def test_it_predicts_with_intervals_and_says_where_it_guesses(
        self, trained: TrainedModel
    ) -> None:
        known, far = record("f1", anchor_s=5.0), record("f1", cores=64.0)
        found = trained.predict([known, far])
        assert found.value[0] == pytest.approx(10.0, rel=0.3)
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()
        assert found.is_extrapolating.tolist() == [False, True]
        assert found.to_frame().shape == (2, 4)

    def test_labels_are_not_looked_at(self, trained: TrainedModel) -> None:
        seen = trained.predict([record(time_s=1.0), record(time_s=None, status="failed")])
        assert seen.value[0] == seen.value[1]

    def test_explanations_are_zero_for_the_median_run(self, trained: TrainedModel) -> None:
        found = trained.explain([record()])
        assert set(found) == {"job", "anchor", "series", "configuration", "layout", "physics"}
        assert all(np.isfinite(v).all() for v in found.values())

    def test_a_job_without_a_partial_run_is_refused(self, trained: TrainedModel) -> None:
        with pytest.raises(ModelError, match="no partial run"):
            trained.predict([record(), record(name="bare", anchor=None)])

    def test_a_saved_model_predicts_the_same(self, trained: TrainedModel, tmp_path: Path) -> None:
        trained.save(tmp_path / "m", card(trained, runs()))
        again = TrainedModel.load(tmp_path / "m")
        a, b = trained.predict(runs()), again.predict(runs())
        np.testing.assert_allclose(a.value, b.value, rtol=1e-6)  # sums of 32-bit leaves
        np.testing.assert_allclose(a.low, b.low, rtol=1e-6)
        text = (tmp_path / "m" / "card.md").read_text()
        assert "left-out programs" in text
        assert "Where it fails" in text

    def test_a_model_of_other_features_is_refused(
        self, trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trained.save(tmp_path / "m", "")
        monkeypatch.setattr(features, "NAMES", (*features.NAMES[:-1], "smell"))
        with pytest.raises(ModelError, match=r"other features \(.*smell"):
            TrainedModel.load(tmp_path / "m")

    def test_the_hash_of_the_data_does_not_depend_on_the_order(self) -> None:
        records = runs()
        assert data_hash(records) == data_hash(records[::-1])
        assert data_hash(records) != data_hash(records[1:])


def contest(name: str, top1: float, error: float, median: float) -> Contest:
    truth = np.array([1.0, 2.0, 4.0])
    found = replace(metrics(truth, truth), median_ape_fraction=median)
    choice = Regret(jobs=50, top1=top1, constant=1.2, random=2.0, top1_error=error)
    return Contest(name=name, metrics=found, regret=choice)


def test_the_least_regret_wins_unless_its_scatter_makes_others_its_equals() -> None:
    clear = [contest("a", 1.05, 0.01, 0.2), contest("b", 1.08, 0.01, 0.1)]
    assert best_of(clear) == "a"
    close = [contest("a", 1.05, 0.04, 0.2), contest("b", 1.08, 0.01, 0.1)]
    assert best_of(close) == "b"
    alike = [contest("forest", 1.05, 0.04, 0.102), contest("boosting", 1.05, 0.04, 0.103)]
    assert best_of(alike) == "forest"
    slower = [contest("gp", 1.05, 0.04, 0.102), contest("boosting", 1.05, 0.04, 0.103)]
    assert best_of(slower) == "boosting"  # trees alone are asked without seconds of imports
    better = [contest("gp", 1.05, 0.04, 0.09), contest("boosting", 1.05, 0.04, 0.103)]
    assert best_of(better) == "gp"
    stacked = [contest("a", 1.05, 0.04, 0.100), contest("stack", 1.05, 0.04, 0.098)]
    assert best_of(stacked) == "a"  # it errs less by nothing that counts, and needs every member
    stacked[1] = contest("stack", 1.05, 0.04, 0.09)
    assert best_of(stacked) == "stack"


class TestBadData:
    """One clear error, or an answer that is finite: never a traceback, never nan."""

    @pytest.fixture(autouse=True)
    def _few_epochs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is refused and what is finite does not hang on how long a network learns."""
        defaults = SequenceNetwork.__init__.__kwdefaults__ or {}
        monkeypatch.setitem(defaults, "epochs", 6)

    @pytest.mark.parametrize("model", ["ridge", "auto"])
    @pytest.mark.parametrize(
        ("some", "what"),
        [
            ([r for r in runs() if r.job.family == "f0"], "only 1 program"),
            (runs()[:1], "only 1 program"),
            ([replace(r, status="censored") for r in runs()], "only 0 program"),
            ([replace(r, status="failed") for r in runs()], "none of 72 runs"),
        ],
        ids=["one program", "one run", "all cut short", "all failed"],
    )
    def test_what_cannot_be_judged_is_refused(
        self, some: list[RunRecord], what: str, model: str
    ) -> None:
        with pytest.raises(ModelError, match=what) as caught:
            train(some, model=model)
        assert caught.value.hint

    def test_one_program_can_be_learned_where_single_runs_are_left_out(self) -> None:
        one = [r for r in runs() if r.job.family == "f0"]
        model = train(one, model="ridge", split="random")[0]
        assert np.isfinite(model.predict(one).high).all()

    @pytest.mark.parametrize("model", ["ridge", "gp", "forest", "boosting", "sequence"])
    def test_fewer_runs_than_features_or_one_instance_type_are_enough(self, model: str) -> None:
        for some in (
            [runs()[0], runs()[1], runs()[-1]],
            [r for r in runs(families=3) if r.instance_key == "quota-0.5"],
        ):
            found = train(some, model=model)[0].predict(some)
            assert np.isfinite([found.low, found.value, found.high]).all()

    @pytest.mark.parametrize("readings", [None, 0, 1])
    def test_series_that_are_short_or_missing_are_no_reason_to_stop(
        self, readings: int | None
    ) -> None:
        series = (
            ()
            if readings is None
            else (ResourceSeries(interval_s=1.0, channels={"cpu_cores": (1.0,) * readings}),)
        )
        some = []
        for r in runs(families=3, jobs=2):
            assert r.anchor is not None
            some.append(replace(r, anchor=replace(r.anchor, series=series)))
        found = train(some, model="sequence")[0].predict(some)
        assert np.isfinite([found.low, found.value, found.high]).all()


class TestCommands:
    def test_train_then_evaluate_from_files(self, tmp_path: Path) -> None:
        write_records(tmp_path / "runs.jsonl", runs())
        options = ["--data", str(tmp_path / "runs.jsonl"), "--model", "ridge"]
        made = runner.invoke(
            app, ["train", "models", *options, "--out", str(tmp_path / "m"), "--json"]
        )
        assert made.exit_code == 0, made.output
        assert json.loads(made.stdout)["chosen"] == "ridge"
        assert TrainedModel.load(tmp_path / "m").metrics["seed"] == 0
        scored = runner.invoke(app, ["evaluate", *options, "--json"])
        assert scored.exit_code == 0, scored.output
        found = json.loads(scored.stdout)
        assert set(found["splits"]) == {"random", "job", "instance", "both"}
        for split in found["splits"].values():
            assert {"overall", "groups", "baselines", "coverage", "width", "top1_regret"} <= set(
                split
            )

    @pytest.mark.parametrize("split", ["instance", "both", "random"])
    def test_train_needs_no_verb_and_scores_on_any_split(self, tmp_path: Path, split: str) -> None:
        write_records(tmp_path / "runs.jsonl", runs())
        options = ["--data", str(tmp_path / "runs.jsonl"), "--model", "ridge", "--split", split]
        made = runner.invoke(app, ["train", *options, "--out", str(tmp_path / "m"), "--json"])
        assert made.exit_code == 0, made.output
        found = json.loads(made.stdout)
        assert found["split"] == split
        assert ("both" in found) == (split == "both")

    def test_a_fit_that_was_stopped_goes_on_where_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from advisor.learned import base, tasks

        write_records(tmp_path / "runs.jsonl", runs())
        options = ["--data", str(tmp_path / "runs.jsonl"), "--model", "ridge"]
        options += ["--checkpoints", str(tmp_path / "parts")]
        plain = runner.invoke(
            app, ["train", *options[:-2], "--out", str(tmp_path / "a"), "--json"]
        )
        real, calls = base._fold_answer, []

        def stopping(*task: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return real(*task)

        stopping.__module__, stopping.__qualname__ = real.__module__, real.__qualname__
        monkeypatch.setattr("advisor.learned.stack._fold_answer", stopping)
        monkeypatch.setattr(tasks, "_ROUNDS", 1)
        assert runner.invoke(app, ["train", *options, "--out", str(tmp_path / "b")]).exit_code
        assert not (tmp_path / "b").exists()
        assert len(list((tmp_path / "parts").glob("*.npy"))) == 3
        made = runner.invoke(app, ["train", *options, "--out", str(tmp_path / "b"), "--json"])
        assert len(calls) == 4 + 3  # six folds, three of them kept
        first, second = (json.loads(text.stdout) for text in (plain, made))
        assert first | {"model": ""} == second | {"model": ""}

    def test_a_split_that_cannot_be_made_is_told_and_left_out(self, tmp_path: Path) -> None:
        one = [r for r in runs() if r.instance_key == "quota-0.5"]
        write_records(tmp_path / "runs.jsonl", one)
        found = runner.invoke(
            app, ["evaluate", "--data", str(tmp_path / "runs.jsonl"), "--model", "ridge", "--json"]
        )
        assert set(json.loads(found.stdout)["splits"]) == {"random", "job"}
        assert "split instance left out" in found.stderr

    def test_import_writes_records(self, tmp_path: Path) -> None:
        write_records(tmp_path / "a.jsonl", runs(families=2))
        out = tmp_path / "b.jsonl.gz"
        found = runner.invoke(
            app, ["runs", "import", "records", str(tmp_path / "a.jsonl"), "--out", str(out)]
        )
        assert found.exit_code == 0, found.output
        assert "24 runs (24 ok)" in found.stdout

    @pytest.mark.parametrize(
        ("words", "what"),
        [
            (["train", "models", "--model", "oracle"], "no model named 'oracle'"),
            (["train", "models", "--backend", "spark"], "no backend named 'spark'"),
            (["train", "--split", "row"], "no split named 'row'"),
            (["evaluate", "--split", "row"], "no split named 'row'"),
            (["evaluate", "--folds", "0"], "not a number of folds"),
            (["evaluate", "--target", "speed", "--split", "job"], "no target named 'speed'"),
        ],
    )
    def test_a_wrong_word_is_a_usage_error(
        self, tmp_path: Path, words: list[str], what: str
    ) -> None:
        write_records(tmp_path / "runs.jsonl", runs(families=2))
        found = runner.invoke(app, [*words, "--data", str(tmp_path / "runs.jsonl")])
        assert isinstance(found.exception, UsageError)
        assert what in str(found.exception)


def test_the_contest_of_many_programs_costs_no_more_than_of_a_dozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calibrating anew for each of hundreds of programs took most of a training's time."""
    from advisor.learned import selection
    from advisor.learned.intervals import calibrate
    from advisor.learned.stack import Stack

    calls: list[int] = []

    def counted(X: Any, errors: Any, groups: Any, **more: Any) -> Any:
        calls.append(len(errors))
        return calibrate(X, errors, groups, **more)

    monkeypatch.setattr(selection, "calibrate", counted)
    for programs in (12, 60):
        runs = [
            record(f"program{i}", name=f"{i}-{k}", cores=cores, time_s=20.0 + i % 5 + k)
            for i in range(programs)
            for k, cores in enumerate((0.25, 0.5, 1.0))
        ]
        asked = problem_of(runs)
        stack = Stack((("ridge", Ridge()),), folds=3, static_columns=len(features.FEATURES))
        asked.fit(stack, slice(None))
        calls.clear()
        found = selection.contest(asked, stack)
        assert len(found) == 2
        assert len(calls) == 2 * 12
        # Each row is scored by errors of other programs alone.
        assert sum(len(asked.records) - n for n in calls) == 2 * len(asked.records)
