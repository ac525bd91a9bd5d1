"""Laws of advice: priced by the one estimate, silent where nothing shows that it applies."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import laptop
from hypothesis import given
from hypothesis import strategies as st

from advisor.advice import step
from advisor.advice.asking import facts_on
from advisor.advice.cures import SOURCES, cures_for
from advisor.advice.facts import Advice, Facts, How, cure_words, saved
from advisor.answer import Estimate
from advisor.ask import JobSpec
from advisor.collectors.derive import store
from advisor.estimate.knowledge.known import find_job
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job, Measured, Program
from advisor.jobs.load import job_from_spec
from advisor.words.verdicts import advice_text

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def facts(make_job: MakeJob, predictor: Predictor) -> Facts:
    job = make_job()
    return facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge"))


def advice(**changes: object) -> Advice:
    usual: dict[str, object] = {
        "name": "x", "source": "test", "change": "Change it.", "time_saved_h": None,
        "cost_saved_usd": None, "time_factor": 0.5, "cost_factor": 1.0, "evidence": "measured",
        "rests_on": "a trial", "condition": "always", "how": How(kind="flag", text="--x"),
    }  # fmt: skip
    return Advice(**(usual | changes))  # type: ignore[arg-type]


def test_a_cure_is_priced_by_the_one_estimate(facts: Facts, predictor: Predictor) -> None:
    found = {one.name: one for one in cures_for(facts)}["mixed-precision"]
    changed = predictor.predict(
        job_from_spec(JobSpec(precision="bf16"), job=facts.job), "aws:g5.xlarge"
    )
    now = facts.now
    assert found.time_factor == pytest.approx(
        changed.training_time_h.value / now.training_time_h.value
    )
    assert found.cost_factor == pytest.approx(changed.cost_usd.value / now.cost_usd.value)
    assert found.time_saved_h is not None
    assert found.time_saved_h.value == pytest.approx(
        now.training_time_h.value - changed.training_time_h.value
    )


def test_cards_without_bf16_are_advised_fp16_with_a_scaler(
    predictor: Predictor, make_job: MakeJob
) -> None:
    job = make_job()
    for machine, half in (("verda:1V100.6V", "fp16"), ("aws:g5.xlarge", "bf16")):
        facts = facts_on(predictor, job, predictor.predict(job, machine))
        found = {one.name: one for one in cures_for(facts)}["mixed-precision"]
        assert f"Train in {half}:" in found.change
        assert ("GradScaler" in found.how.text) == (half == "fp16")


def test_what_is_done_already_is_not_advised(facts: Facts, predictor: Predictor) -> None:
    assert "mixed-precision" in {one.name for one in cures_for(facts)}
    half = job_from_spec(JobSpec(precision="bf16"), job=facts.job)
    done = facts_on(predictor, half, predictor.predict(half, "aws:g5.xlarge"))
    assert "mixed-precision" not in {one.name for one in cures_for(done)}


def test_the_strongest_is_said_first_and_the_weakest_not_at_all(facts: Facts) -> None:
    weak, strong, money = (
        advice(name="weak", time_factor=0.999),
        advice(name="strong", time_factor=0.3),
        advice(name="money", time_factor=1.0, cost_factor=0.4),
    )
    found = cures_for(facts, [lambda _: [weak, money], lambda _: [strong]])
    assert [one.name for one in found] == ["strong", "money"]


@given(
    before=st.floats(1e-3, 1e6), factor=st.floats(0.0, 3.0), spread=st.floats(1.0, 3.0),
    sd=st.floats(0.0, 0.5),
)  # fmt: skip
def test_a_saving_lies_in_its_interval(
    before: float, factor: float, spread: float, sd: float
) -> None:
    was = Estimate(value=before, low=before / spread, high=before * spread)
    found = saved(was, factor, sd)
    assert found.low <= found.value <= found.high
    assert math.isclose(found.value, before - factor * before, rel_tol=1e-9, abs_tol=1e-9)
    if sd == 0 and factor < 1:  # the errors are the same one: a saving stays a saving
        assert found.low >= 0


def test_advice_without_evidence_or_condition_is_refused() -> None:
    for lacking in ("change", "rests_on", "condition"):
        with pytest.raises(ValueError, match="needed"):
            advice(**{lacking: ""})
    with pytest.raises(ValueError, match="evidence"):
        advice(evidence="hearsay")
    with pytest.raises(ValueError, match="factor"):
        advice(time_factor=math.inf)


def test_a_program_without_steps_gets_no_cure_of_its_steps(
    make_job: MakeJob, predictor: Predictor
) -> None:
    program = Program(duration_s=600.0, cpu_s=1100.0, parallelism=1.8)
    job = replace(make_job(), work=None, program=program, total_steps=1.0)
    bare = facts_on(predictor, job, predictor.predict(job, "aws:c5.xlarge"))
    assert {one.name for source in SOURCES for one in source(bare)} <= {"spot"}


def test_tuning_is_told_from_training(predictor: Predictor) -> None:
    """Adapters are for a model that sees fewer tokens than it has parameters."""
    for tokens, is_tuned in (("10M", True), ("100B", False)):
        job = find_job(layers=12, hidden=768, heads=12, tokens=tokens, batch=8)
        found = facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge"))
        names = {one.name for one in step.advise_described(found)}
        assert ("lora" in names) == is_tuned
        assert "fused-kernels" in names
        assert "lora" not in {
            one.name for one in step.advise_described(replace(found, job=_run(job)))
        }


def _run(job: Job) -> Job:
    host = Measured(step_s=1.0, log_sd=0.1, host=laptop(), threads=2, device="cpu")
    return replace(job, measured=host)


def test_channels_last_is_for_convolutions_in_16_bits(
    make_job: MakeJob, predictor: Predictor, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    seen = replace(store.read_recording(GOLDEN), command=("python", str(path)))
    half = job_from_spec(JobSpec(precision="bf16"), job=make_job())
    facts = facts_on(predictor, half, predictor.predict(half, "aws:g5.xlarge"), seen)

    def names(source: str, asked: Facts = facts) -> set[str]:
        path.write_text(source)
        return {one.name for one in step.advise_software(asked)}

    assert "channels-last" in names("import torch\n")
    assert "channels-last" not in names("x.to(memory_format=torch.channels_last)\n")
    assert "channels-last" not in names("import torch\n", replace(facts, job=make_job()))
    assert names("def f(:\n").isdisjoint({"channels-last"})  # what cannot be read says nothing
    # Convolutions in groups of many channels take three times as long in it.
    assert seen.deep_step is not None
    for weights, is_offered in (("64x64x3x3", True), ("64x32x3x3", False)):
        rows = {
            "name": ("aten::convolution_backward",), "phase": ("backward",), "count": (1,),
            "flop": (1e12,), "shapes": (f"8x64x28x28,8x64x28x28,{weights}",), "time_s": (0.1,),
        }  # fmt: skip
        deep = replace(seen.deep_step, operators=rows)
        grouped = replace(facts, recording=replace(seen, deep_step=deep))
        assert ("channels-last" in names("import torch\n", grouped)) == is_offered


def test_every_cure_of_a_job_is_on_the_page() -> None:
    page = (ROOT / "docs" / "advice.md").read_text()
    for name, words in cure_words().items():
        if words["source"] != "colocation":
            assert f"`{name.partition(' (')[0]}`" in page, name


def test_what_every_cure_says_has_all_its_parts() -> None:
    for name, words in cure_words().items():
        assert words.keys() >= {"source", "change", "rests_on", "condition"}, name
        assert len(words.keys() & {"lines", "flag", "yaml"}) == 1, name


def test_a_saving_that_no_replay_could_tell_from_none_is_not_printed() -> None:
    """Spot was said to save 8.54 ms of 2.5 minutes, "1.00 times as fast"."""
    hours = Estimate(value=1e-5, low=-1e-5, high=2e-5)
    found = advice(
        time_saved_h=hours, time_factor=0.9999, cost_saved_usd=Estimate(value=2, low=1, high=3),
        cost_factor=0.5,
    )  # fmt: skip
    now = {"configuration": [{"pricing": "own"}], "cost_usd": {"value": 0, "high": 0}}
    time = {"value": 1.0, "low": 0.9, "high": 1.1}
    now["training_time_h"] = time
    piece = json.loads(json.dumps(found.to_record()))
    record = {
        "run": "r", "is_whole": True, "meets_constraints": True, "now": now,
        "advice": [piece], "notes": [], "serving": "",
    }  # fmt: skip
    (row,) = [line for line in advice_text(record) if line.startswith(" 1 ")]
    assert row.split()[-2:] == ["-", "$2.00"]
    assert "times as fast" not in " ".join(advice_text(record))
    piece["time_factor"] = 0.9
    assert "1.1 times faster" in " ".join(advice_text(record))
