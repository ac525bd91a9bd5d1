"""What a recorded script needs for the machines of an answer is said once, by every verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from recorded_models import convolutions, transformer

from advisor.ask import Constraints
from advisor.catalogue import Catalogue, parse_gpus
from advisor.collectors.format.why_cpu import Told
from advisor.estimate.estimate import estimate_on_type
from advisor.estimate.plan import Plan
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job, script_notes
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.nouns import Layer, Work
from advisor.rank.given import PlanQuestion, plan
from advisor.rank.ranking import recommend
from advisor.words.ways import show

MakeJob = Callable[..., Job]
NO_CUDA = Told(reason="--no-cuda is given", change="drop --no-cuda", edits=((("--no-cuda",), ()),))
FIXED = Told(
    reason="the script fixes the CPU",
    change='"cuda" in place of "cpu" at train.py:31',
    by_hand='"cuda" in place of "cpu" at train.py:31',
)
SPREAD = Told(spreads=("DistributedDataParallel",))
COMMAND = ("python", "train.py", "--no-cuda", "--epochs", "4")


@cache
def predictor() -> Predictor:
    return Predictor(Catalogue.load(with_overrides=False))


def job_of(make_job: MakeJob, told: Told | None, batch: int = 64, work: Work | None = None) -> Job:
    seen = work or transformer()
    job = make_job(
        work=seen, global_batch=batch, recorded_batch=seen.micro_batch, step_s=0.5, workers=4
    )
    return replace(job, told=told)


def planned(job: Job, cluster: str) -> Plan:
    known = predictor()
    machines = parse_cluster(cluster, known.catalogue)
    return plan(PlanQuestion(job=job, cluster=machines, command=COMMAND, predictor=known))


def said(notes: Any, words: str) -> int:
    return sum(words in note for note in notes)


@pytest.mark.parametrize(("told", "change"), [(NO_CUDA, "drop --no-cuda"), (FIXED, "train.py:31")])
def test_accelerators_are_offered_with_the_change_that_the_script_needs(
    make_job: MakeJob, told: Told, change: str
) -> None:
    job = job_of(make_job, told)
    answer = recommend(
        job, Constraints(gpus=parse_gpus("L4"), providers=("gcp",)), predictor=predictor()
    )
    assert answer.front
    assert said(answer.notes, change) == 1
    assert said(estimate_on_type(predictor(), job, "g2-standard-4").notes, change) == 1
    assert said(planned(job, "g2-standard-4").model["notes"], change) == 1


def test_processors_need_no_change(make_job: MakeJob) -> None:
    job = job_of(make_job, NO_CUDA)
    assert script_notes(job, [(False, 1), (False, 1)]) == ()
    assert said(estimate_on_type(predictor(), job, "n2-standard-8").notes, "drop") == 0


def test_launch_commands_carry_the_change(make_job: MakeJob) -> None:
    best = planned(job_of(make_job, NO_CUDA), "g2-standard-4").best
    assert "train.py --epochs 4" in best.commands[0].text
    by_hand = planned(job_of(make_job, FIXED), "g2-standard-4").best.commands[0]
    assert by_hand.files["parallel.py"].startswith('# first: "cuda" in place of "cpu" at train')
    for line in by_hand.files["parallel.py"].splitlines()[:1]:
        compile(line, "parallel.py", "exec")


def test_rows_of_several_devices_say_once_that_the_script_has_no_ddp(make_job: MakeJob) -> None:
    alone, spread = job_of(make_job, Told()), job_of(make_job, SPREAD)
    request = Constraints(gpus=parse_gpus("L4:4"), providers=("gcp",), max_nodes=2)
    answer = recommend(alone, request, predictor=predictor())
    assert max(one.layout.devices for one in answer.front) > 1
    assert said(answer.notes, "need DDP or FSDP") == 1
    assert said(planned(alone, "2x g2-standard-48").model["notes"], "need DDP or FSDP") == 1
    assert "need DDP or FSDP" in " ".join(
        show(planned(alone, "2x g2-standard-48").to_record()).split()
    )
    assert said(estimate_on_type(predictor(), alone, "g2-standard-48").notes, "DDP or FSDP") == 1
    assert said(recommend(spread, request, predictor=predictor()).notes, "DDP or FSDP") == 0
    assert script_notes(alone, [(True, 1)]) == ()
    assert script_notes(job_of(make_job, None), [(True, 8)]) == (), "described: no script was seen"


def test_a_small_batch_spread_over_many_devices_is_said(make_job: MakeJob) -> None:
    work = convolutions()
    normalised = Layer(
        name="bn", kind="BatchNorm2d", parameters=8, forward_flop_per_sample=1.0,
        backward_flop_per_sample=2.0, output_bytes_per_sample=8.0, saved_bytes_per_sample=8.0,
        forward_s=1e-9, backward_s=1e-9,
    )  # fmt: skip
    with_norm = replace(work, layers=(*work.layers, normalised))
    job = job_of(make_job, SPREAD, batch=32, work=with_norm)
    (note,) = script_notes(job, [(True, 1), (True, 8)])
    assert "on 8 devices each sees 4 of the 32 samples" in note
    assert "SyncBatchNorm" in note
    (note,) = script_notes(job_of(make_job, SPREAD, batch=32, work=transformer()), [(True, 8)])
    assert "SyncBatchNorm" not in note
    assert "larger --batch" in note
    assert script_notes(job, [(True, 4)]) == (), "8 samples a device are enough"
