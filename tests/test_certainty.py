"""A recording that is not good enough says so, and an interval holds all that is uncertain."""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collecting import record
from conftest import laptop
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.ask import Question
from advisor.cli.program import app
from advisor.collectors.derive import certainty, store, summary
from advisor.collectors.derive.certainty import SETTLED, waited_for
from advisor.collectors.derive.store import read_recording
from advisor.collectors.format.record_files import PROFILER_FILE, Appender
from advisor.collectors.format.recording import Recording, StepTime, TotalWork
from advisor.collectors.format.step_time import Steps, mean
from advisor.collectors.hooks.format import END
from advisor.errors import NotKnownError, RunError
from advisor.estimate.estimate import estimate_on_gpu, estimate_on_type, machine_here, on_device
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job

MakeJob = Callable[..., Job]
RUN = CliRunner()
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"


def step(low_s: float, value_s: float, high_s: float, **changes: Any) -> StepTime:
    known: dict[str, Any] = {
        "corrected_s": value_s, "raw_s": value_s, "low_s": low_s, "high_s": high_s, "steps": 40,
        "warmup_steps": 1, "delay_fraction": 0.0, "clock": "optimizer", "is_settled": False,
    }  # fmt: skip
    return StepTime(**(known | changes))


def recording(seen: StepTime | None, confidence: str = "certain") -> Recording:

    work = TotalWork(steps=100, epochs=None, source="range(100) in a.py:3", confidence=confidence)  # type: ignore[arg-type]
    return Recording(
        run_id="a", path=Path("a"), command=("python", "a.py"), status="stopped",
        stop_reason="10 s are over", exit_code=0, started_at="", duration_s=10.0, host=laptop(),
        readings=(), step_time=seen, deep_step=None, loading=None, total_work=work, threads=2,
        world_size=1, accumulation_steps=1, peak_rss_bytes=1 << 30, warnings=(),
    )  # fmt: skip


@given(
    value=st.floats(1e-6, 1e4), share=st.floats(0.0, 1.0),
    confidence=st.sampled_from(["given", "certain", "likely", "weak"]),
)  # fmt: skip
def test_beyond_the_stated_ratio_it_is_not_known_and_below_it_is(
    value: float, share: float, confidence: str
) -> None:
    """The rule is one constant over the step's and the length's interval together."""
    seen = recording(step(value * (1 - share), value, value * (1 + share)), confidence)
    missing = certainty.shortfall_of(seen)
    is_open = 1 - share <= 0
    own = math.inf if is_open else math.log((1 + share) / (1 - share))
    length = 2 * certainty.REACH * certainty.LENGTH_LOG_SD[confidence]
    assert (missing is not None) == (math.hypot(own, length) > math.log(certainty.MOST_RATIO))
    told = certainty.shortfall_of(seen, is_length_given=True)
    assert (told is not None) == (own > math.log(certainty.MOST_RATIO))


def test_the_hint_says_how_to_profile_on() -> None:
    few = certainty.shortfall_of(recording(step(0.0, 20.0, 40.0, steps=1)))
    assert few is not None
    assert "one step of 20" in few[0]  # which has no range
    assert "--for 20m" in few[1]  # 30 steps of 20 s, and as long again
    noisy = certainty.shortfall_of(recording(step(0.0, 0.02, 0.04, steps=900)))
    assert noisy is not None
    assert "--precise" in noisy[1]
    unsure = certainty.shortfall_of(recording(step(0.6, 1.0, 1.4), "weak"))
    assert unsure is not None
    assert "--total-steps" in unsure[1]
    assert certainty.shortfall_of(recording(None)) is None


def test_the_summary_and_the_record_say_it() -> None:
    bad, good = recording(step(0.0, 1.0, 2.0)), recording(step(0.98, 1.0, 1.02))
    problem = summary.recording_problem(bad)
    assert problem is not None
    assert "too noisy" in problem[0]
    assert summary.summary_record(bad)["not_known"]["hint"] == problem[1]
    assert summary.recording_problem(good) is None
    assert summary.summary_record(good)["not_known"] is None


VERBS = (
    ["recommend", "--cloud", "aws"],
    ["predict", "--on", "here"],
    ["predict", "--on", "aws:g5.xlarge", "--json"],
    ["plan", "--cluster", "2xL4"],
    ["runs", "show", "a"],
    ["runs", "show", "a", "--json"],
)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_says_it_and_exits_with_3(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_everywhere(monkeypatch, store, "latest_run", lambda *_, **__: tmp_path)
    replace_everywhere(monkeypatch, store, "find_run", lambda *_, **__: tmp_path)
    replace_everywhere(
        monkeypatch, store, "read_recording", lambda _: recording(step(0.0, 1.0, 2.0))
    )
    if words[0] == "plan":
        words = [*words, "--run", "a"]
    done = RUN.invoke(app, words)
    assert isinstance(done.exception, NotKnownError), done.output
    assert done.exception.exit_code == 3
    assert "too noisy" in str(done.exception)
    assert "advisor profile" in done.exception.hint


def test_python_raises_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_everywhere(monkeypatch, store, "find_run", lambda *_, **__: tmp_path)
    replace_everywhere(
        monkeypatch, store, "read_recording", lambda _: recording(step(0.0, 1.0, 2.0))
    )
    for ask in (
        lambda: api.load_job("a"),
        lambda: api.find_job(run="a"),
        lambda: api.recommend("a"),
        lambda: Predictor().predict("a", "g5.xlarge"),
    ):
        with pytest.raises(NotKnownError):
            ask()


# The whole job's interval.


@given(
    step_sd=st.floats(0.0, 0.5), length=st.floats(0.0, 0.5), start=st.floats(0.0, 0.5),
    ends=st.floats(0.0, 0.5), startup_s=st.floats(0.0, 1000.0),
)  # fmt: skip
def test_the_whole_job_is_no_surer_than_any_of_its_parts(
    make_job: MakeJob, predictor: Predictor, step_sd: float, length: float, start: float,
    ends: float, startup_s: float,
) -> None:  # fmt: skip
    from advisor.estimate.completion import on_recorded_machine
    from advisor.estimate.ways.data_parallel import as_recorded

    sure = replace(
        make_job(step_s=1.0, log_sd=step_sd, global_batch=32, total_steps=100.0),
        startup_s=startup_s, epochs=4.0, epoch_end_steps=5.0,
    )  # fmt: skip
    columns = as_recorded(sure, COLUMNS.setdefault("one", _columns(predictor, sure)))

    def width(job: Job) -> float:
        found = on_recorded_machine(job, columns, 0.9).time_h(0, 0.9)
        assert found.value * 3600 == pytest.approx(startup_s + 120.0)
        return (found.high - found.low) * 3600

    known = width(sure)
    for less_sure in (
        replace(sure, length_log_sd=length), replace(sure, startup_log_sd=start),
        replace(sure, epoch_end_log_sd=ends), replace(sure, unseen_log_sd=length),
    ):  # fmt: skip
        assert width(less_sure) >= known - 1e-9
    alone = width(replace(sure, length_log_sd=length))
    assert alone >= 120.0 * 2 * math.sinh(certainty.REACH * length) - 1e-6
    alone = width(replace(sure, startup_log_sd=start))
    assert alone >= startup_s * 2 * math.sinh(certainty.REACH * start) - 1e-6


COLUMNS: dict[str, Any] = {}


def _columns(predictor: Predictor, job: Job) -> Any:
    import numpy as np

    return predictor.physics_columns(job, np.array([0]), np.array([1]))


def test_every_way_to_complete_a_job_holds_the_length_s_uncertainty(
    make_job: MakeJob, predictor: Predictor
) -> None:
    sure = make_job()
    guessed = replace(sure, length_log_sd=certainty.LENGTH_LOG_SD["weak"])
    for way in ("on-demand", "spot", "spot-with-fallback"):
        known, wide = (
            api.estimate(job, on="aws:g5.xlarge", completion=way, predictor=predictor)
            for job in (sure, guessed)
        )
        assert wide.training_time_h.value == pytest.approx(known.training_time_h.value)  # type: ignore[union-attr]
        ratios = [e.training_time_h.high / e.training_time_h.low for e in (known, wide)]  # type: ignore[union-attr]
        assert ratios[1] > 1.5 * ratios[0]
        assert wide.step_time_s == known.step_time_s  # the step's own is left alone


def test_a_length_that_is_said_is_sure(make_job: MakeJob) -> None:
    guessed = replace(make_job(), length_log_sd=0.4)
    said = api.job_of(replace(Question().job, total_steps=10.0), job=guessed)
    assert said.length_log_sd == 0.0


@pytest.mark.parametrize(("reason", "settled"), [(SETTLED, True), ("10 s are over", False)])
def test_a_recording_that_settled_is_settled_wherever_it_is_read(
    tmp_path: Path, reason: str, settled: bool
) -> None:
    """The verdict that ended it is not judged again: a later step could overturn it."""
    run = shutil.copytree("tests/golden/run-schema-1", tmp_path / "run")
    log = Appender(run / PROFILER_FILE)
    log.write_json(END, {"status": "stopped", "stop_reason": reason, "exit_code": 0})
    log.close()
    step = read_recording(run).step_time
    assert step is not None
    assert step.is_settled == settled


def test_a_script_that_ran_to_its_end_is_as_long_as_it_was(tmp_path: Path) -> None:
    """Its loops say 400 steps, and it breaks off where no bound can be seen."""
    seen = record(
        tmp_path,
        """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = {"steps": 0}
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    done["steps"] += 1
    if done["steps"] % 37 == 0:
        break
""",
    )
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (37, "certain")
    assert "finished" in seen.total_work.source


@given(
    wall_ms=st.floats(20.0, 200.0), busy=st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99]),
    jitter=st.floats(0.0, 0.05), count=st.integers(600, 900),
)  # fmt: skip
def test_what_has_settled_is_known_well_enough(
    wall_ms: float, busy: float, jitter: float, count: int
) -> None:
    """However much of the steps was waiting for a core: the two never stand together."""
    steps, now, waited = Steps(), 1_000_000_000, 0
    for i in range(count):
        wall = wall_ms * 1e6 * (1 + jitter * math.sin(i))
        now, waited = now + int(wall), waited + int(busy * wall)
        steps.add(now, waited, 0)
    seen = mean(steps)
    if seen is not None and not waited_for(steps, seen, epoch_steps=None, epochs_begun=0):
        half = math.hypot(seen.half_width_s, seen.time.half_width_s)
        known = step(max(0.0, seen.corrected_s - half), seen.corrected_s, seen.corrected_s + half)
        assert certainty.shortfall_of(recording(known)) is None


# A step that was traced on a processor answers for accelerators, whatever the clock said of it.


def traced_run(low_share: float) -> Recording:
    """A recording with a traced step, whose clock is known to a share of itself."""
    seen = read_recording(GOLDEN)
    assert seen.step_time is not None
    mean_s = seen.step_time.corrected_s
    clock = replace(
        seen.step_time, low_s=mean_s * (1 - low_share), high_s=mean_s * (1 + low_share)
    )
    return replace(seen, step_time=clock)


@pytest.mark.parametrize("share", [0.05, 0.9, 1.0])
def test_the_noise_of_a_processors_step_enters_no_answer_of_a_gpu(
    physics: Predictor, share: float
) -> None:
    calm, noisy = (job_from_recording(traced_run(s), total_steps=1000) for s in (0.02, share))
    first, second = (estimate_on_gpu(physics, job, "L4").step_time_s for job in (calm, noisy))
    assert (second.low, second.value, second.high) == (first.low, first.value, first.high)


def without_clock() -> Recording:
    """A recording that was stopped in the step after the traced one."""
    return replace(read_recording(GOLDEN), step_time=None)


def slower(seen: Recording, times: float) -> Recording:
    """The same recording, its clock so many times as slow."""
    assert seen.step_time is not None
    mean_s = times * seen.step_time.corrected_s
    return replace(seen, step_time=replace(seen.step_time, corrected_s=mean_s))


def test_only_the_machine_of_the_recording_waits_for_the_clock(physics: Predictor) -> None:
    """Sold processors are answered by the device model: whatever the noisy clock said."""
    calm, noisy, other = (
        job_from_recording(one, total_steps=1000)
        for one in (traced_run(0.1), traced_run(1.0), slower(traced_run(1.0), 10.0))
    )
    sold = [
        estimate_on_type(physics, job, "c5.xlarge", provider="aws").step_time_s
        for job in (calm, noisy, other)
    ]
    assert sold[2].value == pytest.approx(sold[1].value, rel=0.05)
    assert sold[1].high / sold[1].low > sold[0].high / sold[0].low
    device, offer, _ = machine_here(noisy)
    for job, is_known in ((calm, True), (noisy, False)):
        ask = functools.partial(
            on_device, physics, job, device, (offer, 1), 0.9, None, is_recorded=True
        )
        if is_known:
            assert ask().step_time_s.value > 0
            continue
        with pytest.raises(
            NotKnownError, match="too uncertain to estimate this machine"
        ) as refused:
            ask()
        assert "--gpu" in refused.value.hint


def test_a_run_without_a_step_of_its_own_is_answered_from_the_traced_one(
    physics: Predictor,
) -> None:
    timed = job_from_recording(traced_run(0.05), total_steps=1000)
    bare = job_from_recording(without_clock(), total_steps=1000)
    first, second = (estimate_on_gpu(physics, job, "L4").step_time_s for job in (timed, bare))
    assert (second.low, second.value, second.high) == (first.low, first.value, first.high)


@pytest.mark.parametrize("share", [0.05, 1.0, None])
def test_an_answer_says_that_the_clock_was_not_used(
    physics: Predictor, share: float | None
) -> None:
    seen = without_clock() if share is None else traced_run(share)
    answer = estimate_on_gpu(physics, job_from_recording(seen, total_steps=1000), "L4")
    said = [note for note in answer.notes if "machine of the recording is not known" in note]
    assert len(said) == (0 if share == 0.05 else 1)
    host = next((f for f in answer.sources if f.what == "step on the host"), None)
    assert host is None or ("too noisy" in host.value) == bool(said)


def test_what_no_trace_answers_names_the_rehearsal() -> None:
    with pytest.raises(NotKnownError) as refused:
        job_from_recording(recording(step(0.0, 1.0, 2.0)))
    assert "--rehearse" in refused.value.hint


def test_one_step_that_was_cut_off_names_the_rehearsal() -> None:
    """Nothing was timed or traced; a run that ended by itself is a program all the same."""
    cut = replace(recording(None), startup_s=20.0, startup_half_width_s=1.0)
    with pytest.raises(RunError, match="saw one training step") as refused:
        job_from_recording(cut)
    assert "--rehearse" in refused.value.hint
    assert job_from_recording(replace(cut, status="finished")).program is not None
