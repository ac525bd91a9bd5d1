"""What was learned from runs, in the estimates that users see: covered, corrected, refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.api import estimate
from advisor.ask import Constraints
from advisor.collectors.derive.resources import Resources
from advisor.collectors.derive.store import read_recording
from advisor.errors import ModelError
from advisor.estimate.estimate import estimate_on_type, moved_by
from advisor.estimate.knowledge.learned import Learned, candidate_runs
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job
from advisor.learned import RunColumns, features, registry
from advisor.learned.quick import LEAST_ROWS, Hull, QuickModel
from advisor.rank.ranking import recommend
from advisor.records import RunRecord
from advisor.records.profiled import machines_of, profile, program_of, record
from advisor.train.folder import card
from advisor.train.models import train
from advisor.words import prediction_text

MakeJob = Callable[..., Job]
FACTOR = 1.3  # what the made-up runs take over physics
SHIPPED = data.root("trained_models") / "runs"
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


@pytest.fixture(scope="module")
def example() -> Job:
    """examples/digits_cnn.py as it was recorded once (golden/README.md)."""
    return job_from_recording(read_recording(GOLDEN))


def runs_like(job: Job, predictor: Predictor, scatter: float = 0.02) -> list[RunRecord]:
    """Runs of programs like ``job`` on small machines, each ``FACTOR`` times physics."""
    rng = np.random.default_rng(0)
    catalogue = predictor.catalogue
    names = ["t3.small", "t3.medium", "m5.large", "c5.large", "r5.large", "t3.large"]
    index = np.array([catalogue.instance_type(n, provider="aws").index for n in names])
    made = []
    for family in range(6):
        size = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)[family]
        other = replace(job, name=f"family{family}", peak_rss_bytes=int(job.peak_rss_bytes * size))
        columns = predictor.step_columns(other, index, np.ones(len(index), np.int64))
        known = profile(other)
        assert known is not None
        for row in np.flatnonzero(columns.status == 0).tolist():
            physics_s = float(columns.step_s[row]) * other.total_steps
            time_s = FACTOR * physics_s * math.exp(rng.normal(0, scatter))
            asked = record(
                known, machines_of(catalogue, int(index[row]), 1), workers=1,
                record_id=f"{family}-{row}", physics_s=physics_s,
            )  # fmt: skip
            made.append(replace(asked, time_s=time_s, status="ok"))
    return made


def small(make_job: MakeJob, **changes: Any) -> Job:
    """A job that fits on machines of 2 GiB."""
    job = make_job(peak_rss_bytes=500 << 20, global_batch=32, **changes)
    assert job.work is not None
    return replace(job, work=replace(job.work, saved_bytes_per_sample=1e5))


@pytest.fixture(scope="module")
def folder(
    make_job: MakeJob, physics: Predictor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    runs = runs_like(small(make_job), physics)
    assert len(runs) >= 2 * LEAST_ROWS
    model = train(runs, model="ridge")[0]
    where: Path = tmp_path_factory.mktemp("models") / "runs"
    model.save(where, card(model, runs))
    return where


@pytest.fixture(scope="module")
def learned(folder: Path, physics: Predictor) -> Predictor:
    return Predictor.load(folder, catalogue=physics.catalogue)


class TestCorrection:
    def test_covered_candidates_take_what_like_runs_took(
        self, make_job: MakeJob, physics: Predictor, learned: Predictor
    ) -> None:
        job = small(make_job)
        before = physics.predict(job, "t3.medium", provider="aws")
        after = learned.predict(job, "t3.medium", provider="aws")
        assert after.is_learned
        assert not before.is_learned
        ratio = after.step_time_s.value / before.step_time_s.value
        assert ratio == pytest.approx(FACTOR, rel=0.05)
        assert any("measured runs" in reason for reason in after.reasons)

    def test_an_interval_never_forgets_the_error_of_physics(
        self, make_job: MakeJob, physics: Predictor, learned: Predictor
    ) -> None:
        job = small(make_job)
        before, after = (p.predict(job, "t3.medium", provider="aws").step_time_s
                         for p in (physics, learned))  # fmt: skip
        assert after.high / after.value >= before.high / before.value

    @pytest.mark.parametrize("name", ["g5.xlarge", "c5.18xlarge", "3 x t3.medium"])
    def test_outside_of_what_was_seen_physics_alone_answers(
        self, make_job: MakeJob, physics: Predictor, learned: Predictor, name: str
    ) -> None:
        job = small(make_job)
        before, after = (p.predict(job, [name], provider="aws")[0] for p in (physics, learned))
        assert not after.is_learned
        assert after.step_time_s == before.step_time_s

    def test_another_kind_of_job_is_not_covered(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        job = small(make_job, step_s=800.0)  # a hundred times as long a step as any that was seen
        assert not learned.predict(job, "t3.medium", provider="aws").is_learned

    def test_the_length_of_the_job_does_not_matter(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        short, long = small(make_job), replace(small(make_job), total_steps=1e9)
        steps = [
            learned.predict(job, "t3.medium", provider="aws").step_time_s for job in (short, long)
        ]
        assert steps[0].value == pytest.approx(steps[1].value)

    def test_a_real_run_of_the_job_itself_counts_more_than_others(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        from advisor.jobs.runs import Actual

        seen = Actual(run="resnet50", provider="aws", instance_type="t3.medium", count=1, step_s=9)
        job = replace(small(make_job), actuals=(seen,))
        step_s = learned.predict(job, "t3.medium", provider="aws").step_time_s
        assert step_s.value == pytest.approx(9, rel=0.05)
        assert step_s.high / step_s.low < 1.3

    def test_recommend_uses_it_and_says_so(self, example: Job) -> None:
        request = Constraints(
            least_gain_fraction=0.0,
            providers=("aws",),
            max_price_usd_per_h=0.2,
            max_nodes=1,
            top=50,
        )
        answer = recommend(example, request, predictor=Predictor())
        assert any(c.is_learned for c in answer.front)
        assert any(note.startswith("the learned model") for note in answer.notes)
        shown = [c["learned"] for c in answer.to_record()["front"]]
        assert shown == [c.is_learned for c in answer.front]


class TestFromPython:
    def test_named_configurations_are_answered_in_their_order(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        found = learned.predict(small(make_job), ["t3.large", "2 x g5.xlarge", ("m5.large", 1)])
        frame = found.to_frame()
        assert frame["configuration"].tolist() == ["1 x t3.large", "2 x g5.xlarge", "1 x m5.large"]
        assert frame["learned"].tolist() == [True, False, True]

    def test_intervals_widen_with_their_coverage(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        job = small(make_job)
        half, most = (learned.predict_interval(job, ["m5.large", "g5.xlarge"], c)
                      for c in (0.5, 0.9))  # fmt: skip
        assert half.shape == (2, 2)
        assert (most[:, 0] < half[:, 0]).all()
        assert (half[:, 1] < most[:, 1]).all()

    def test_what_is_explained_is_the_learned_part_and_the_shares_of_the_step(
        self, make_job: MakeJob, learned: Predictor
    ) -> None:
        frame = learned.explain(small(make_job), ["m5.large", "g5.xlarge"]).to_frame()
        shares = frame[[c for c in frame if str(c).startswith("share_")]].sum(axis=1)
        assert shares.tolist() == pytest.approx([1.0, 1.0])
        effects = frame[[c for c in frame if str(c).startswith("effect_")]]
        assert set(effects) >= {"effect_job", "effect_series", "effect_configuration"}
        assert np.isfinite(effects.iloc[0]).all()
        assert effects.iloc[1].isna().all()


class TestFolder:
    def test_the_users_own_model_comes_before_the_one_that_ships(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        shipped = Learned.default()
        (tmp_path / "advisor" / "models").mkdir(parents=True)
        folder.rename(tmp_path / "advisor" / "models" / "runs")
        own = Learned.default()
        (tmp_path / "advisor" / "models" / "runs").rename(folder)
        assert own is not None
        assert own.folder == tmp_path / "advisor" / "models" / "runs"
        assert shipped is None or shipped.folder != own.folder

    @pytest.mark.parametrize("name", ["features.json", "model.json", "weights.npz"])
    def test_a_changed_file_is_refused(
        self, folder: Path, make_job: MakeJob, physics: Predictor, name: str
    ) -> None:
        original = (folder / name).read_bytes()
        changed = bytearray(original)
        changed[len(changed) // 2] ^= 1
        try:
            (folder / name).write_bytes(bytes(changed))
            with pytest.raises(ModelError):
                Predictor.load(folder, catalogue=physics.catalogue).predict(
                    small(make_job), "t3.medium", provider="aws"
                )
        finally:
            (folder / name).write_bytes(original)

    def test_a_model_of_other_features_is_refused(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(features, "NAMES", (*features.NAMES[:-1], "smell"))
        with pytest.raises(ModelError, match="other features"):
            Predictor.load(folder)

    def test_there_is_no_model_in_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"model\.json"):
            Predictor.load(tmp_path)


class TestShipped:
    """The default that comes with the package."""

    def test_it_is_small_readable_and_says_where_it_fails(self) -> None:
        folder = SHIPPED
        assert sum(f.stat().st_size for f in folder.iterdir()) <= 20e6
        assert {f.suffix for f in folder.iterdir()} <= {".json", ".md", ".npz"}
        assert "Where it fails" in (folder / "card.md").read_text()
        about = json.loads((folder / "features.json").read_text())
        assert all(f["unit"] for f in about["features"])
        assert len(about["data_sha256"]) == 64

    def test_it_loads_and_covers_only_processors(self, make_job: MakeJob) -> None:
        shipped = Learned.open(SHIPPED)
        assert set(shipped.about["accelerators"]) == {""}
        assert shipped.model.predict is not None

    def test_nothing_heavy_is_loaded_where_nothing_is_covered(self) -> None:
        import subprocess
        import sys

        code = (
            "import sys\nfrom advisor.estimate.predictor import Learned\nLearned.default()\n"
            "print([m for m in ('sklearn', 'xgboost', 'torch') if m in sys.modules])"
        )
        root = Path(__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True,
                              text=True, check=True)  # fmt: skip
        assert done.stdout.strip() == "[]"

    def test_it_covers_the_examples(self, example: Job) -> None:
        shipped = Learned.open(SHIPPED)
        known = profile(example)
        assert known is not None
        assert shipped._covers_job(known)

    def test_it_splits_on_nothing_that_no_recording_tells(self, example: Job) -> None:
        asked = [self._row(example, count) for count in (1, 3)]
        told = {n for row in asked for n, v in zip(features.NAMES, row, strict=True) if v == v}
        for name in ("runs", "runs_cost"):
            quick, *_ = registry.load(SHIPPED.parent / name)
            assert isinstance(quick, QuickModel)
            used = {features.NAMES[i] for _, t in quick.trees for i in t.feature[t.left >= 0]}
            assert used
            assert used <= told, name
            assert not used & set(features.NEVER_RECORDED)

    @staticmethod
    def _row(job: Job, count: int) -> list[float]:
        predictor = Predictor(learned=None)
        index = predictor.catalogue.instance_type("t3.medium", provider="aws").index
        columns = predictor.step_columns(job, np.array([index]), np.array([count]))
        asked = candidate_runs(job, predictor.catalogue, columns, np.array([0]))
        row: list[float] = features.as_asked(asked.features)[0].tolist()
        return row

    def test_the_cost_is_also_predicted_directly(self, example: Job) -> None:
        """As the thesis did: no time between; where covered both are the same job's cost."""
        found = estimate(example, on="aws:c7i.large")
        direct, billed = found.cost_direct_usd, found.cost_usd
        assert direct is not None
        assert billed is not None
        assert direct.low < direct.value < direct.high
        record = found.to_record()["cost_direct_usd"]
        assert record == {"value": direct.value, "low": direct.low, "high": direct.high,
                          "coverage": 0.9}  # fmt: skip
        twice = estimate(replace(example, total_steps=2 * example.total_steps), on="aws:c7i.large")
        assert twice.cost_direct_usd is not None
        assert twice.cost_direct_usd.value == pytest.approx(2 * direct.value)

    def test_the_rows_of_a_recommendation_have_it_as_a_prediction_there(
        self, example: Job
    ) -> None:
        cheap = Constraints(
            top=50, least_gain_fraction=0.0, providers=("aws",), max_price_usd_per_h=0.2
        )  # fmt: skip
        front = recommend(example, cheap, predictor=Predictor()).front
        told = [(one, one.cost_direct_usd) for one in front if one.cost_direct_usd is not None]
        assert told
        for one, direct in told:
            (part, count) = one.configuration.parts[0]
            asked = estimate_on_type(
                Predictor(), example, part.instance_type, provider=part.provider, count=count
            )
            assert asked.cost_direct_usd is not None
            per_price = part.price_usd_per_h / asked.configuration.parts[0][0].price_usd_per_h
            expected = asked.cost_direct_usd.value * per_price
            assert direct.value == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("on", ["aws:g5.xlarge", "aws:c5.18xlarge"])
    def test_no_cost_is_predicted_where_nothing_like_it_was_seen(
        self, example: Job, on: str
    ) -> None:
        found = estimate(example, on=on)
        assert found.cost_usd is not None
        assert found.cost_direct_usd is None
        assert found.to_record()["cost_direct_usd"] is None

    def test_what_moved_the_learned_answers_is_told_by_group(self, example: Job) -> None:
        predictor = Predictor()
        found = moved_by(predictor, example, "c7i.large", provider="aws")
        assert set(found) == {"time", "cost"}
        for groups in found.values():
            assert set(groups) <= {f.group for f in features.FEATURES}
            assert all(0 < factor < 10 for factor in groups.values())
            assert any(factor != 1 for factor in groups.values())
        answer = estimate(example, on="aws:c7i.large")
        text = prediction_text({**answer.to_record(), "effects": found}, width=100)
        assert "by a model of the cost itself" in text
        assert "what moved the learned estimates" in text
        strongest = max(found["cost"], key=lambda one: abs(np.log(found["cost"][one])))
        assert f"  cost       {strongest} x {found['cost'][strongest]:.2f}" in text

    def test_where_nothing_learned_covers_a_job_that_is_said(self, example: Job) -> None:
        assert moved_by(Predictor(), example, "g5.xlarge", provider="aws") == {}
        answer = estimate(example, on="aws:g5.xlarge")
        text = prediction_text({**answer.to_record(), "effects": {}})
        assert "the estimate is analytic" in " ".join(text.split())
        assert "model of the cost" not in text


class TestProfiled:
    def test_runs_of_one_program_are_siblings(self) -> None:
        assert program_of("20261121-120948-my-net-4865") == "my-net"
        assert program_of("20261121-120949-my-net-1") == "my-net"

    def test_several_threads_are_carried_to_one_core(self, make_job: MakeJob) -> None:
        used = Resources(interval_s=0.5, channels={"cpu_cores": (1.8, 1.8)}, busy_cores=1.8,
                         cpu_s_per_step=14.4)  # fmt: skip
        job = make_job(resources=used)
        known = profile(job)
        assert known is not None
        assert known.anchor.facts["step_time_s"] == pytest.approx(14.4 * 256 / 32)
        assert known.anchor.series[0].channels["cpu_cores"] == (1.0, 1.0)

    def test_the_batch_scales_what_grows_with_it(self, make_job: MakeJob) -> None:
        one, two = (profile(make_job(global_batch=b)) for b in (32, 64))
        assert one is not None
        assert two is not None
        optimizer = 4.0 * 25_600_000
        flop = [float(p.job.facts["flop_per_step"]) - optimizer for p in (one, two)]
        assert flop[1] == pytest.approx(2 * flop[0])
        assert two.anchor.facts["step_time_s"] == 2 * float(one.anchor.facts["step_time_s"])

    def test_candidates_are_as_records_of_their_machines_with_the_estimate_as_physics(
        self, make_job: MakeJob, physics: Predictor
    ) -> None:
        job, catalogue = make_job(), physics.catalogue
        known = profile(job)
        assert known is not None
        names = ("g5.xlarge", "m5.large", "t3.medium", "p4d.24xlarge", "g5.xlarge")
        kinds = np.array([catalogue.instance_type(name, provider="aws").index for name in names])
        counts = np.array([2, 1, 4, 2, 1])
        columns = physics.step_columns(job, kinds, counts)
        rows = np.flatnonzero(columns.status == 0)
        asked = candidate_runs(job, catalogue, columns, rows)
        records = [
            record(
                known, machines_of(catalogue, int(kinds[row]), int(counts[row])),
                record_id=str(row), workers=int(columns.dp[row]),
                physics_s=float(columns.step_s[row]) * job.total_steps,
            )
            for row in rows
        ]  # fmt: skip
        apart = RunColumns.of(records)
        np.testing.assert_allclose(asked.features, apart.features, rtol=1e-12)
        np.testing.assert_allclose(asked.physics_s, apart.physics_s, rtol=1e-12)
        assert asked.accelerator.tolist() == apart.accelerator.tolist()
        assert {"A10G", ""} <= set(asked.accelerator.tolist())


@given(st.integers(LEAST_ROWS, 40), st.integers(0, 5))
def test_a_hull_covers_what_it_was_made_of(rows: int, seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(rows, 4))
    X[0, 2] = np.nan
    hull = Hull.of(X)
    assert not hull.is_outside(X).any()
    again = Hull.from_record(json.loads(json.dumps(hull.to_record())))
    assert np.array_equal(hull.is_outside(10 * X), again.is_outside(10 * X))


@given(st.integers(2, 6), st.integers(0, 50))
def test_nine_of_ten_rows_of_left_out_groups_lie_within_the_reach(groups: int, seed: int) -> None:
    """The law of the reach, and that it is no wider than that: from the definition, by hand."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(groups), 12))
    X = rng.normal(size=(len(labels), 3)) + 2.0 * rng.normal(size=(groups, 3))[labels]
    ranges = np.ptp(X, axis=0)
    far = np.zeros(len(X))
    for row, group in enumerate(labels):
        others = X[labels != group]
        leaves = np.maximum(others.min(axis=0) - X[row], X[row] - others.max(axis=0))
        far[row] = np.linalg.norm(np.maximum(leaves, 0.0) / ranges)
    hull = Hull.of(X, groups=labels)
    assert hull.reach[0] == pytest.approx(np.quantile(far, 0.9), abs=1e-6)
    assert not hull.is_outside(X).any()
    corner = X.max(axis=0)
    ends = np.array([corner, corner, corner])
    ends[1, 0] += 0.99 * hull.reach[0] * ranges[0] - 1e-6
    ends[2] += (hull.reach[0] + 1e-6) * ranges  # in every feature: farther than one alone
    assert hull.is_outside(ends).tolist() == [False, False, True]


def test_parts_of_a_hull_know_nothing_of_each_other() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 1, 60), np.repeat([0.0, 1.0], 30)])
    X[30:, 0] += 10.0
    hull = Hull.of(X, parted_columns=[1])
    assert not hull.is_outside(X).any()
    assert hull.is_outside(X[:, [0, 1]] * [1, 0] + [[0.0, 0.0]])[30:].all()


def test_a_part_with_few_rows_covers_nothing() -> None:
    assert Hull.of(np.zeros((LEAST_ROWS - 1, 2))).is_outside(np.zeros((1, 2))).all()
