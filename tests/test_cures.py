"""Cures of a recorded job: what each takes out of it, and that nothing is said without a fact."""

import ast
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import advisor
from advisor.advice import feeding, machines, step
from advisor.advice.asking import facts_here
from advisor.advice.facts import Advice, Facts
from advisor.advice.script import SourceScript
from advisor.answer import Candidate
from advisor.cli import program
from advisor.cli.answers import Advise
from advisor.cli.options import add
from advisor.collectors.derive import store
from advisor.collectors.format.facts import Limits, Saves
from advisor.collectors.format.recording import Reading, Recording, rows_of
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job
from advisor.lab.experiments import cures as experiment
from advisor.planners.systems.gradient_noise import NoiseScale

app = typer.Typer()
add(app, "advise", Advise)
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
SCRIPT = """\
import torch
from torch.utils.data import DataLoader

# Füße: columns count bytes
loader = DataLoader(
    data,
    batch_size=32,
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for x, y in loader:
    loss = net(x, y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    total += loss.item()
    if step % 10 == 0:
        print(loss.item())
"""


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return store.read_recording(GOLDEN)


@pytest.fixture(scope="module")
def here(recorded: Recording) -> Facts:
    facts = facts_here(Predictor(), job_from_recording(recorded), recorded)
    assert facts is not None
    return facts


@pytest.fixture
def facts_of(here: Facts, recorded: Recording) -> Callable[..., Facts]:
    """Facts of a changed recording; a job takes its measured step times its steps (the oracle)."""

    def look(job: Job, **_: Any) -> Candidate:
        assert job.measured is not None
        time_h = job.measured.step_s * job.paid_steps / 3600
        factor = time_h / here.now.training_time_h.value
        return replace(here.now, training_time_h=here.now.training_time_h.scaled(factor))

    def make(job_changes: dict[str, Any] | None = None, **changes: Any) -> Facts:
        seen = replace(recorded, **changes)
        job = replace(job_from_recording(recorded), **(job_changes or {}))
        return replace(
            here, job=job, recording=seen, now=look(job), ask=look, modelled=lambda: None
        )  # fmt: skip

    return make


def named(source: Callable[[Facts], Iterable[Advice]], facts: Facts) -> dict[str, Advice]:
    return {one.name: one for one in source(facts)}


def test_a_fused_update_takes_its_operators_out_of_the_recorded_step(
    facts_of: Callable[..., Facts], recorded: Recording
) -> None:
    facts = facts_of()
    found = named(step.advise_optimizers, facts)["fused-optimizer"]
    deep, job = recorded.deep_step, facts.job
    assert deep is not None
    assert job.measured is not None
    times = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for phase, time_s in rows_of(deep.operators, "phase", "time_s"):
        times[phase] += time_s
    share = times["optimizer"] / sum(times.values())
    computing = 1 - job.feed.wait_s / job.measured.step_s
    assert found.evidence == "measured"
    # All of the update at most, and what the fused kernel moves is small beside it.
    assert 1 - share * computing < found.time_factor < 1 - 0.5 * share * computing
    changed = found.job
    assert changed is not None
    assert changed.work is not None
    assert [one.name for one in changed.work.operators if one.phase == "optimizer"] == [
        "fused optimizer"
    ]
    assert named(step.advise_optimizers, facts_of(optimizers=("Adadelta",))) == {}


def test_a_cure_needs_its_fact(facts_of: Callable[..., Facts]) -> None:
    facts = facts_of()
    assert (
        named(feeding.advise_feeding, facts) == {}
    )  # 4 % of a step waits, inline, on a CPU without spare cores
    assert "threads" not in named(machines.advise_machines, facts)
    assert named(feeding.advise_chores, facts_of({"epochs": 1.0})) == {}
    assert {"no-sync", "gradient-buckets", "gradient-view", "one-pass"}.isdisjoint(
        named(step.advise_batches, facts)
    )
    assert {"full-precision", "fused-attention", "tf32"}.isdisjoint(
        named(step.advise_software, facts)
    )


def test_ends_of_epochs_are_halved_where_they_take_long(facts_of: Callable[..., Facts]) -> None:
    facts = facts_of()
    job = facts.job
    ends = job.epochs * job.epoch_end_steps / job.paid_steps
    found = named(feeding.advise_chores, replace(facts, job=job))
    assert ends > 0.05
    assert found["validate-less"].time_factor == pytest.approx(1 - ends / 2)


def test_saves_too_often_are_spread_out(facts_of: Callable[..., Facts]) -> None:
    often = Saves(count=60, seconds=0.5, size_bytes=1_000_000)
    facts = facts_of({"total_steps": 2e6}, saves=often)
    found = named(feeding.advise_chores, facts)["checkpoint-interval"]
    # A save every three steps of 6 ms costs many times what the steps do.
    assert found.time_factor < 0.2
    assert found.how.text.startswith("save_every = ")
    once = replace(often, count=1)
    assert "checkpoint-interval" not in named(
        feeding.advise_chores, facts_of({"total_steps": 2e6}, saves=once)
    )


def test_threads_are_lifted_to_the_cores_there_are(facts_of: Callable[..., Facts]) -> None:
    facts = facts_of({"limits": Limits(threads=1, threads_source="OMP_NUM_THREADS")})
    seen = facts.job.measured
    assert seen is not None
    seen = replace(seen, host=replace(seen.host, cpu_limit=4.0))
    facts = replace(facts, job=replace(facts.job, measured=seen))
    found = named(machines.advise_machines, facts)["threads"]
    assert found.how.text == "OMP_NUM_THREADS=4"
    assert found.job is not None
    assert found.job.limits.threads is None
    all_used = replace(facts.job, limits=Limits(threads=4, threads_source="OMP_NUM_THREADS"))
    assert "threads" not in named(machines.advise_machines, replace(facts, job=all_used))


def test_gradients_are_exchanged_once_a_step(facts_of: Callable[..., Facts]) -> None:
    facts = facts_of()
    seen, work = facts.job.measured, facts.job.work
    assert seen is not None
    assert work is not None
    sent = {"payload_bytes_per_step": 4.0 * work.gradient_bytes}
    seen = replace(seen, exchange_s=0.5 * seen.step_s)
    facts = facts_of({"measured": seen}, communication=sent, accumulation_steps=4)
    found = named(step.advise_batches, facts)["no-sync"]
    assert found.time_factor == pytest.approx(1 - 0.5 * 3 / 4)
    once = {"payload_bytes_per_step": work.gradient_bytes}
    quiet = facts_of({"measured": seen}, communication=once, accumulation_steps=4)
    assert "no-sync" not in named(step.advise_batches, quiet)


def test_what_the_script_says_is_read_and_patched(tmp_path: Path) -> None:
    script = SourceScript(tmp_path / "train.py", SCRIPT, ast.parse(SCRIPT))
    (loader,) = script.named("DataLoader")
    (optimizer,) = script.named("AdamW")
    (zero,) = script.named("zero_grad")
    assert [call.lineno for call in script.each_step(lambda c: "item" in ast.unparse(c))] == [15]
    changed = applied(SCRIPT, script.with_arguments(optimizer, fused="True"))
    assert "AdamW(net.parameters(), lr=1e-3, fused=True)\n" in changed
    changed = applied(SCRIPT, script.with_arguments(loader, num_workers="4"))
    assert "    batch_size=32, num_workers=4,\n)" in changed
    changed = applied(SCRIPT, script.with_arguments(zero, set_to_none="True"))
    assert "zero_grad(set_to_none=True)" in changed


@given(
    names=st.lists(st.sampled_from("abcdef"), unique=True, max_size=4),
    given_=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 99), min_size=1),
    is_positional=st.booleans(), tail=st.sampled_from(["", ",", ",\n", "  # ü\n"]),
)  # fmt: skip
def test_a_patched_call_has_what_it_was_given_and_the_rest_as_it_was(
    names: list[str], given_: dict[str, int], is_positional: bool, tail: str
) -> None:
    own = ["x"] if is_positional else []
    own += [f"{name}={number}" for number, name in enumerate(names)]
    source = f"# é\ny = f(\n  {', '.join(own)}{tail if own else ''})\nz = 1\n"
    script = SourceScript(Path("s.py"), source, ast.parse(source))
    (call,) = script.calls
    diff = script.with_arguments(call, **{name: str(value) for name, value in given_.items()})
    changed = ast.parse(applied(source, diff)).body[0]
    assert isinstance(changed, ast.Assign)
    assert isinstance(changed.value, ast.Call)
    found = {k.arg: ast.literal_eval(k.value) for k in changed.value.keywords}
    assert found == {name: number for number, name in enumerate(names)} | given_
    assert len(changed.value.args) == is_positional


def test_the_verb_prints_a_screen_and_a_record() -> None:
    run = str(GOLDEN)
    shown = CliRunner().invoke(app, [run, "--on", "here"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    record = json.loads(CliRunner().invoke(app, [run, "--on", "here", "--json"]).stdout)
    strongest = record["advice"][0]
    assert f"1 {strongest['change'][:20]}" in shown.stdout
    for one in record["advice"]:
        assert one["evidence"] in ("measured", "table", "formula")
        assert one["change"]
        assert one["how"]["text"]
    explained = CliRunner().invoke(app, [run, "--on", "here", "--explain", "1"]).stdout
    assert strongest["condition"][:20] in explained
    for wrong in (["--explain", "99"], ["--run", run], ["--on", "here", "--count", "0"]):
        refused = CliRunner().invoke(app, [run, "--on", "here", *wrong])
        assert refused.exit_code == 2 or isinstance(refused.exception, UsageError)


def test_the_words_of_one_command_are_not_in_the_next_answer() -> None:
    words = [str(GOLDEN), "--on", "here"]
    typed = CliRunner().invoke(program.app, ["advise", *words], env={"COLUMNS": "300"}).stdout
    assert f"advisor advise {GOLDEN} --on here --explain 1" in typed
    assert "advisor advise" not in CliRunner().invoke(app, words, env={"COLUMNS": "300"}).stdout


def test_python_gives_the_same_list() -> None:
    found = advisor.advise(str(GOLDEN), on="here")
    assert [one.name for one in found] == [row["name"] for row in found.to_record()["advice"]]
    assert len(found.to_frame()) == len(found) > 0
    assert found[0].change in repr(found)
    assert "<table" in found._repr_html_()
    strengths = [one.strength for one in found]
    assert strengths == sorted(strengths, reverse=True)


def applied(source: str, diff: str) -> str:
    """Apply a unified diff, as ``patch`` does without fuzz."""
    rows, out, at = source.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            out += rows[at : int(found[1]) - 1]
            at = int(found[1]) - 1
            continue
        if line[0] in " -":
            assert rows[at] == line[1:]
            at += 1
        if line[0] in " +":
            out.append(line[1:])
    return "".join([*out, *rows[at:]])


def test_a_larger_batch_costs_the_samples_that_the_recorded_noise_scale_says(
    facts_of: Callable[..., Facts],
) -> None:
    plain = facts_of()
    batch = plain.job.global_batch
    noise = NoiseScale(samples=2.0 * batch, low=1.5 * batch, high=None, steps=40)
    unknown = named(step.advise_batches, plain)["batch"]
    known = named(step.advise_batches, facts_of({"noise": noise}))["batch"]
    # (N + 2 B) / (N + B) at N = 2 B.
    assert known.time_factor == pytest.approx(unknown.time_factor * 4 / 3)
    assert "33 % more samples" in known.rests_on
    assert "no upper end" in known.rests_on
    assert "noise scale is unknown" in unknown.condition
    assert "unknown" not in known.condition


def test_cores_that_others_keep_busy_are_no_cores_to_compute_with(
    facts_of: Callable[..., Facts], recorded: Recording
) -> None:
    one = recorded.readings[-1]

    def beside(others: float) -> tuple[Reading, ...]:
        return tuple(
            replace(one, t_s=float(t), cpu_s=0.9 * t, machine_cpu_s=100.0 + (0.9 + others) * t)
            for t in range(20)
        )

    limits = {"limits": Limits(threads=1, threads_source="OMP_NUM_THREADS")}
    calm, busy = (
        facts_of(limits, readings=beside(others), contention=0.0) for others in (0.1, 3.5)
    )
    assert calm.recording is not None
    assert machines.others_cores(calm.recording) == pytest.approx(0.1)
    assert "threads" in named(machines.advise_machines, calm)
    assert "threads" not in named(machines.advise_machines, busy)
    # Not read: the waiting says it.
    unread = tuple(replace(reading, machine_cpu_s=None) for reading in beside(0.0))
    waits = facts_of(limits, readings=unread, contention=0.8)
    assert waits.recording is not None
    assert machines.others_cores(waits.recording) == pytest.approx(4.0)
    assert "threads" not in named(machines.advise_machines, waits)


def test_the_experiment_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: list[str] = []
    failing = {"b.py"}

    def cases(script: Any, *_: Any) -> Any:
        run.append(script.path.name)
        yield experiment.Case(
            script=script.path.name, cure="threads", how="environment", predicted=0.3,
            measured=0.25, before_s=(4.0, 4.1), after_s=(3.0, 3.1),
        )  # fmt: skip
        if script.path.name in failing:
            raise RuntimeError("exit 1")

    names = ("a.py", "b.py", "c.py")
    named_scripts = [SimpleNamespace(path=Path(name), is_of_torch=True) for name in names]
    monkeypatch.setattr("advisor.lab.experiments.cures.zoo.scripts", lambda: named_scripts)
    monkeypatch.setattr(experiment, "cases", cases)
    kept = tmp_path / "cures.json"
    assert experiment.main(["--json", str(kept)]) == 1  # one script fails, the others go on
    assert run == ["a.py", "b.py", "c.py"]
    assert {row.script for row in experiment.kept(kept)} == {"a.py", "c.py"}
    failing.clear()
    assert experiment.main(["--json", str(kept)]) == 0
    assert run[3:] == ["b.py"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert "3 cures tried on 3 scripts" in last
    assert "3 were promised within 30%" in last
