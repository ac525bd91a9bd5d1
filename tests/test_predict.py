"""``advisor predict``: laws of the estimate, and that it says where its numbers are from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advisor import api
from advisor.answer import CompletionWay, Estimate
from advisor.cli.program import app
from advisor.errors import DoesNotRunError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import BOOT_S, Job

MakeJob = Callable[..., Job]
RUN = CliRunner()
SMALL = ["--layers", "4", "--hidden", "256", "--heads", "4", "--sequence", "128"]
RESNET50 = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"


def test_parts_sum_to_the_step_and_the_interval_holds_it(
    make_job: MakeJob, predictor: Predictor
) -> None:
    for place in ({"on": "g5.xlarge"}, {"gpu": "L4"}, {"on": "aws:g5.xlarge", "count": 2}):
        found = api.estimate(make_job(), predictor=predictor, **place)
        step = found.step_time_s
        assert math.isclose(sum(found.shares.values()), 1.0, rel_tol=1e-6)
        assert step.low < step.value < step.high
        assert math.isclose(found.throughput_samples_per_s.value * step.value, 256)


def test_the_numbers_are_those_of_the_ranking(make_job: MakeJob, predictor: Predictor) -> None:
    """One estimate function stands behind ``predict`` and ``recommend``."""
    candidate = predictor.predict(make_job(), "g5.xlarge", provider="aws")
    found = api.estimate(make_job(), on="aws:g5.xlarge", predictor=predictor)
    assert found.step_time_s == candidate.step_time_s
    assert found.training_time_h == candidate.training_time_h
    assert found.cost_usd == candidate.cost_usd
    assert found.memory_gib == candidate.memory_gib


def test_a_card_of_its_own_is_the_machine_that_carries_it(
    make_job: MakeJob, predictor: Predictor
) -> None:
    card = api.estimate(make_job(), gpu="A10G", predictor=predictor)
    machine = api.estimate(make_job(), on="aws:g5.xlarge", predictor=predictor)
    assert math.isclose(card.step_time_s.value, machine.step_time_s.value, rel_tol=0.02)


def test_several_cards_are_faster_than_one_and_slower_than_in_proportion(
    make_job: MakeJob, predictor: Predictor
) -> None:
    one, four = (
        api.estimate(make_job(), gpu="A100", count=n, predictor=predictor).step_time_s.value
        for n in (1, 4)
    )
    assert one / 4 < four < one


def test_measured_steps_are_said_and_move_the_estimate(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job()
    recorded = api.estimate(job, gpu="L4", predictor=predictor)
    assert {fact.source for fact in recorded.sources} >= {
        "measured", "looked up", "computed", "learned", "given"
    }  # fmt: skip
    bare = api.estimate(replace(job, measured=None), gpu="L4", predictor=predictor)
    assert not any(fact.source == "measured" for fact in bare.sources)
    # Twice as slow on the host: slower on other processors too, but not by as much; what that says
    # of a GPU no data show, and nothing carries over.
    slow = make_job(step_s=16.0)
    on = "aws:c6i.4xlarge"
    as_it_was, slower = (
        api.estimate(each, on=on, predictor=predictor).step_time_s.value for each in (job, slow)
    )
    assert as_it_was < slower < 2 * as_it_was
    on_gpu = api.estimate(slow, gpu="L4", predictor=predictor)
    assert on_gpu.step_time_s.value == recorded.step_time_s.value


def test_a_step_seen_on_a_card_is_the_estimate_for_that_card(
    make_job: MakeJob, predictor: Predictor
) -> None:
    recorded = make_job().measured
    assert recorded is not None
    host = recorded.host

    def on_l4(gpus: tuple[str, ...], step_s: float) -> Estimate:
        job = make_job(
            host=replace(host, gpus=gpus), device="cuda", step_s=step_s, log_sd=0.01,
            global_batch=32,
        )  # fmt: skip
        return api.estimate(job, gpu="L4", predictor=predictor).step_time_s

    bare = on_l4(("a card that nobody knows",), 1.0)
    for factor in (0.7, 1.6):
        seen = on_l4(("NVIDIA L4",), factor * bare.value)
        assert seen.value == pytest.approx(factor * bare.value, rel=0.05)
        assert seen.high / seen.low < bare.high / bare.low
    # The processor of the same machine says nothing of the card's step.
    assert on_l4(("a card that nobody knows",), 9.0) == bare


def test_a_precision_that_the_card_lacks_is_said(predictor: Predictor) -> None:
    job = api.find_job(layers=4, hidden=256, heads=4, precision="fp8")
    found = api.estimate(job, gpu="V100-SXM2-16GB", predictor=predictor)
    assert found.runs_as == "fp16"
    assert any("fp8 runs as fp16 here" in fact.note for fact in found.sources)


def test_half_precision_compiling_and_a_larger_card_help(predictor: Predictor) -> None:
    def step(gpu: str = "A100", **changes: Any) -> float:
        job = api.find_job(cnn=RESNET50, batch=64, **changes)
        return api.estimate(job, gpu=gpu, predictor=predictor).step_time_s.value

    assert step() < step(precision="fp32")
    assert step(is_compiled=True) < step()
    assert step("H100") < step() < step("T4")


def test_a_recorded_job_can_be_asked_for_in_another_way(make_job: MakeJob, tmp_path: Path) -> None:
    from advisor.jobs.load import write_job

    write_job(make_job(), tmp_path / "job.json")
    same = api.find_job(job_file=tmp_path / "job.json")
    assert same.transfers.boot_s == BOOT_S  # machines are rented for what is asked
    assert replace(same, transfers=make_job().transfers) == make_job()
    changed = api.find_job(job_file=tmp_path / "job.json", batch=128, precision="bf16")
    assert changed.global_batch == 128
    assert changed.total_steps == 2 * same.total_steps  # as many samples
    assert changed.work is not None
    assert changed.work.precision == "bf16"
    longer = api.find_job(job_file=tmp_path / "job.json", total_samples=2560)
    assert longer.total_steps == 10


def test_a_described_job_is_ranked(predictor: Predictor) -> None:
    job = api.find_job(cnn=RESNET50, batch=64, total_samples=1e7)
    answer = api.recommend(job, predictor=predictor, cloud="aws")
    assert answer.front
    record = answer.to_record()
    assert "measured_step_s" not in record["job"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*SMALL], "name either --on or --gpu"),
        ([*SMALL, "--gpu", "L4", "--on", "g5.xlarge"], "name either --on or --gpu"),
        (
            [*SMALL, "--cnn", RESNET50, "--gpu", "L4"],
            "more than one job is given: --cnn, --layers",
        ),
        (["--layers", "4", "--gpu", "L4"], "dimensions are incomplete"),
        ([*SMALL, "--gpu", "L44"], "no accelerator is called 'L44'"),
        ([*SMALL, "--gpu", "L4", "--count", "0"], "--count 0 is out of range"),
        ([*SMALL, "--gpu", "L4", "--batch", "0"], "--batch 0 is out of range"),
        ([*SMALL, "--gpu", "L4", "--precision", "fp7"], "--precision 'fp7' is unknown"),
        ([*SMALL, "--gpu", "L4", "--coverage", "0.42"], "--coverage 0.42 is not available"),
        ([*SMALL, "--gpu", "L4", "--epochs", "3"], "how many samples an epoch has is unknown"),
        ([*SMALL, "--gpu", "L4", "--total-steps", "-1"], "cannot read '-1' as a count"),
        (["--model", "nowhere.json", "--gpu", "L4"], "cannot read the model nowhere.json"),
        (["--job", "nowhere.json", "--gpu", "L4"], "cannot read the job file nowhere.json"),
    ],
)
def test_bad_requests_are_refused_in_words(arguments: list[str], says: str) -> None:
    done = RUN.invoke(app, ["predict", *arguments])
    assert done.exception is not None
    assert says in str(done.exception)
    assert getattr(done.exception, "hint", "")
    assert getattr(done.exception, "exit_code", 0) in (1, 2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("--layers 80 --hidden 8192 --heads 64 --batch 1 --gpu RTX4090", "misses by"),
        ("--layers 4 --hidden 256 --heads 4 --batch 2 --gpu L4 --count 8 --tp 1 --pp 1 --cp 1",
         "tp 1 leaves no layout|nothing divides"),
        ("--layers 80 --hidden 8192 --heads 64 --batch 1 --on g5.xlarge", "misses by"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_run_there_is_an_answer_and_a_slip_is_not(more: str, why: str) -> None:
    """A line that was understood says no with 3; 2 is a line that cannot be understood."""
    words = ["predict", *more.split(), "--total-steps", "10"]
    refused = RUN.invoke(app, words).exception
    assert isinstance(refused, DoesNotRunError)
    assert re.search(why, str(refused))
    assert refused.exit_code == 3
    slip = RUN.invoke(app, [*words, "--precision", "bf17"])
    assert slip.exit_code == 2 or getattr(slip.exception, "exit_code", 0) == 2


def test_the_command_line_prints_text_and_the_same_as_json(tmp_path: Path) -> None:
    saved = tmp_path / "job.json"
    common = [*SMALL, "--gpu", "L4", "--save-job", str(saved)]
    shown = RUN.invoke(app, ["predict", *common])
    assert shown.exit_code == 0, shown.output
    assert "where the numbers are from" in shown.stdout
    record = json.loads(RUN.invoke(app, ["predict", *common, "--json"]).stdout)
    assert record["schema_version"] == 2
    assert set(record["step_time_s"]) == {"value", "low", "high", "coverage"}
    assert {fact["source"] for fact in record["sources"]} <= {
        "measured", "looked up", "computed", "learned", "given", "assumed"
    }  # fmt: skip
    again = RUN.invoke(app, ["predict", "--job", str(saved), "--gpu", "L4", "--json"])
    assert json.loads(again.stdout) == record


def test_a_program_without_steps_wants_a_machine(make_job: MakeJob) -> None:
    from advisor.jobs.job import Program

    program = replace(
        make_job(), work=None, program=Program(duration_s=60.0, cpu_s=60.0, parallelism=1.0)
    )
    with pytest.raises(UsageError, match="no training steps"):
        api.estimate(program, gpu="L4")
    found = api.estimate(program, on="aws:c6i.xlarge")
    assert found.runs_as is None


LLAMA: dict[str, Any] = {
    "layers": 16, "hidden": 2048, "heads": 32, "sequence": 1024, "batch": 64, "tokens": "2B",
}  # fmt: skip


def test_every_answer_about_a_transformer_is_in_its_users_units(predictor: Predictor) -> None:
    job = api.find_job(**LLAMA)
    found = api.estimate(job, on="aws:p4d.24xlarge", predictor=predictor)
    candidate = predictor.predict(job, "p4d.24xlarge", provider="aws")
    ranked = api.recommend(job, gpus="A100:8", cloud="aws", max_nodes=1, predictor=predictor)
    alike = [c for c in ranked.front if c.units == candidate.units]
    assert found.units == candidate.units
    assert alike
    units = found.units
    assert units is not None
    assert units.utilisation is not None
    assert math.isclose(units.tokens_per_s or 0, 64 * 1024 / found.step_time_s.value)
    assert 0 < units.utilisation.fraction < 1
    # On demand every accelerator is rented for the whole time.
    assert found.training_time_h is not None
    assert math.isclose(
        units.accelerator_hours or 0, 8 * found.training_time_h.value, rel_tol=1e-6
    )
    assert found.to_record()["units"] == candidate.to_record()["units"]


def test_what_is_no_transformer_has_no_tokens(make_job: MakeJob, predictor: Predictor) -> None:
    assert api.estimate(make_job(), on="aws:g5.xlarge", predictor=predictor).units is None


def test_a_job_without_a_length_has_no_accelerator_hours(predictor: Predictor) -> None:
    open_ended = {name: value for name, value in LLAMA.items() if name != "tokens"}
    units = api.estimate(api.find_job(**open_ended), gpu="A100-SXM4-80GB").units
    assert units is not None
    assert units.tokens_per_s is not None
    assert units.accelerator_hours is None


@pytest.mark.parametrize("way", ["spot", "spot-with-fallback", "elastic-spot"])
def test_a_job_is_completed_as_asked(way: CompletionWay, predictor: Predictor) -> None:
    job = api.find_job(**LLAMA)
    options: dict[str, Any] = {"on": "aws:p4d.24xlarge", "count": 2, "predictor": predictor}
    found = api.estimate(job, completion=way, **options)
    same = predictor.predict(
        job, "p4d.24xlarge", count=2, provider="aws", pricing="spot", completion=way
    )
    assert (found.training_time_h, found.cost_usd) == (same.training_time_h, same.cost_usd)
    assert found.completion == way
    assert found.bills == same.bills
    steady = api.estimate(job, **options)
    assert steady.completion == "on-demand"
    assert found.step_time_s == steady.step_time_s


def test_elastic_machines_keep_to_the_layout_that_is_fixed(predictor: Predictor) -> None:
    """Fewer machines have the ZeRO stage that was asked for, too."""
    from advisor.ask import LayoutRequest

    job = api.find_job(**LLAMA)
    asked: list[Any] = []
    inner = predictor.step_columns

    class Seen(Predictor):
        def step_columns(self, *args: Any, **options: Any) -> Any:
            asked.append(options.get("space"))
            return inner(*args, **options)

    seen = Seen(predictor.catalogue)
    api.estimate(
        job, on="aws:p4d.24xlarge", count=2, completion="elastic-spot",
        layout=LayoutRequest(zero=0, tp=1, pp=1, cp=1), predictor=seen,
    )  # fmt: skip
    assert len(asked) > 1
    assert all(space is not None and space.zero_stages == (0,) for space in asked)


def test_only_rented_machines_are_completed_on_spot(predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="applies only to rented machines"):
        api.estimate(api.find_job(**LLAMA), gpu="L4", completion="spot", predictor=predictor)
    shown = RUN.invoke(app, ["predict", *SMALL, "--tokens", "1B", "--on", "aws:g5.xlarge",
                             "--completion", "spot-with-fallback"])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "completion          spot-with-fallback: " in shown.output
