"""The gate: its verdict is that of the recommendation, and what it says would do does."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.ask import Constraints, Question
from advisor.catalogue.select import parse_gpus
from advisor.cli.program import app
from advisor.errors import AdvisorError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.gate.decision import (
    AskedMachines,
    Judged,
    OwnDevices,
    Submission,
    Unclear,
    decide,
    judge,
    judge_submission,
    judged,
)
from advisor.gate.said import from_script, joined
from advisor.jobs.job import Job
from advisor.machines.cluster import one_group
from advisor.rank.ranking import recommend
from advisor.rank.rows import Ranked, ranked_rows
from advisor.simulate.own_cluster import on_own_devices

RUN = CliRunner()
MODEL = {"layers": "24", "hidden": "2048", "heads": "16", "sequence": "2048", "batch": "64",
         "tokens": "500M"}  # fmt: skip
FLAGS = [word for name, value in MODEL.items() for word in (f"--{name}", value)]
# Few machines, so that every row can be searched: what the full ranking says of each is known.
FEW = Constraints(
    providers=("aws",), region="us-east-*", gpus=parse_gpus("A10G,L4:1"), max_nodes=3
)


def asking(constraints: Constraints) -> Question:
    return Question(constraints=constraints)


def one(machine: AskedMachines | OwnDevices) -> Submission:
    return Submission(asked=(machine,))


def test_the_verdict_is_that_of_the_ranking(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    """A (machine, count) passes exactly where ``recommend`` leaves its row; numbers are equal."""
    rng = random.Random(7)
    verdicts = []
    for steps in (2_000.0, 40_000.0):
        job = make_job(total_steps=steps)
        free, _, _ = ranked_rows(job, FEW, predictor, prunes=False)
        time_h, cost = free.rows.time_h, free.rows.cost_usd
        for _ in range(3):
            limits = replace(
                FEW,
                budget_usd=float(np.nanquantile(cost, rng.random())) * 1.001,
                deadline_h=rng.choice([None, float(np.nanquantile(time_h, rng.random())) * 1.001]),
                max_hourly_usd=rng.choice([None, 2.0]),
            )
            ranked, _, _ = ranked_rows(job, limits, predictor, prunes=False)
            left = set(ranked.feasible.tolist())
            for row in rng.sample(range(len(time_h)), 4):
                asked = machines_of(ranked, row, predictor)
                found = decide_alone(job, asked, limits, predictor)
                assert found.passes == (row in left), (asked.label, limits)
                verdicts.append(found.passes)
                if found.candidate is not None and not math.isnan(time_h[row]):
                    assert math.isclose(found.candidate.training_time_h.value, time_h[row])
                    assert math.isclose(found.candidate.cost_usd.value, cost[row], rel_tol=1e-9)
    assert 3 < sum(verdicts) < len(verdicts) - 3  # both answers were tried


def machines_of(ranked: Ranked, row: int, predictor: Predictor) -> AskedMachines:
    """Return the machines of one row of a ranking, in the row's own region."""
    offer, column = int(ranked.rows.offer[row]), int(ranked.rows.column[row])
    kind = predictor.catalogue.types.at(int(ranked.offers.type_index[offer]))
    return AskedMachines(
        instance_type=kind.name, provider=kind.provider, region=str(ranked.offers.region[offer]),
        count=int(ranked.columns.count[column]),
    )  # fmt: skip


def decide_alone(
    job: Job, asked: AskedMachines, limits: Constraints, predictor: Predictor
) -> Judged:
    """Return what is said of one machine, without the search for what would do."""
    return judged(job, asked, asking(limits), predictor, is_strict=True)


def test_the_numbers_are_those_of_predict(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=20_000.0)
    cases: tuple[tuple[int, Literal["on-demand", "spot"]], ...] = ((1, "on-demand"), (2, "spot"))
    for count, completion in cases:
        asked = AskedMachines(
            instance_type="g5.xlarge", provider="aws", count=count, completion=completion
        )
        said = decide(job, one(asked), Question(), predictor=predictor).judged[0].candidate
        found = predictor.predict(
            job, "g5.xlarge", provider="aws", count=count, pricing=completion
        )
        assert said is not None
        assert (said.training_time_h, said.cost_usd) == (found.training_time_h, found.cost_usd)


def test_what_would_do_passes_itself(make_job: Callable[..., Job], predictor: Predictor) -> None:
    """Remedies that are not only the nearest pass the same gate; the pick is ``recommend``'s."""
    job = make_job(total_steps=40_000.0)
    asked = AskedMachines(instance_type="g5.xlarge", provider="aws")
    alone = predictor.predict(job, "g5.xlarge", provider="aws")
    limits = replace(FEW, deadline_h=0.9 * alone.training_time_h.value)
    found = decide(job, one(asked), asking(limits), predictor=predictor)
    assert not found.passes
    assert [reason.limit for reason in found.judged[0].reasons] == ["deadline"]
    kinds = {remedy.kind: remedy for remedy in found.remedies}
    assert set(kinds) == {"same_machines", "recommended"}
    for remedy in found.remedies:
        assert remedy.candidate is not None
        offer, count = remedy.candidate.configuration.parts[0]
        again = AskedMachines(
            instance_type=offer.instance_type, provider=offer.provider, region=offer.region,
            count=count,
        )  # fmt: skip
        assert decide(job, one(again), asking(limits), predictor=predictor).passes
    answer = recommend(job, limits, predictor=predictor)
    best = next(row for row in answer.front if row.rank == answer.picks["best_value"])
    assert kinds["recommended"].cost_usd == best.cost_usd


def test_more_money_and_time_refuse_nothing_more(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=40_000.0)
    asked = AskedMachines(instance_type="g5.xlarge", provider="aws")
    cost = predictor.predict(job, "g5.xlarge", provider="aws").cost_usd
    budgets = np.linspace(0.5 * cost.low, 1.5 * cost.high, 5)
    for confidence in (None, 0.9):
        passes = [
            decide_alone(
                job, asked, Constraints(budget_usd=budget, confidence=confidence), predictor
            ).passes
            for budget in budgets
        ]
        assert passes == sorted(passes)
        assert {True, False} == set(passes)


def test_devices_of_an_own_cluster_take_what_the_comparison_says(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=40_000.0)
    machine = "8xA100-80GB:nvlink@200Gbps"
    group = one_group(machine, predictor.catalogue)
    _, time_h = on_own_devices(job, group, 8, predictor, 0.9)
    for factor, passes in ((0.99, False), (1.01, True)):
        asked = OwnDevices(
            machine=machine, devices=8, price_usd_per_device_h=2.0,
            time_limit_h=factor * time_h.value,
        )  # fmt: skip
        found = decide(job, one(asked), Question(), predictor=predictor)
        assert found.passes is passes
        assert found.judged[0].training_time_h == time_h
        assert found.judged[0].cost_usd == time_h.scaled(16.0)
    text = found.to_record()["submission"][0]
    assert text["training_time_h"] == time_h.to_record()


def test_what_does_not_fit_is_refused_with_what_fits(predictor: Predictor) -> None:
    question = Question.read({**MODEL, "max_nodes": 8, "cloud": "aws", "gpus": "A10G"})
    asked = AskedMachines(instance_type="g5.xlarge", provider="aws")
    found = judge(lambda _: one(asked), question, predictor=predictor)
    assert [reason.limit for reason in found.judged[0].reasons] == ["machines"]
    assert "fits in memory" in found.judged[0].reasons[0].text
    assert found.remedies
    unknown = replace(asked, instance_type="g5.nothing")
    with pytest.raises(AdvisorError):
        judge(lambda _: one(unknown), question, predictor=predictor)


def test_a_budget_cannot_be_judged_of_a_job_of_unknown_length(predictor: Predictor) -> None:
    model = {name: value for name, value in MODEL.items() if name != "tokens"}
    asked = AskedMachines(instance_type="p4d.24xlarge", provider="aws")
    found = judge(lambda _: one(asked), Question.read(model), predictor=predictor)
    assert found.passes  # the memory can be judged
    assert found.judged[0].cost_usd is None
    with pytest.raises(UsageError, match="length"):
        judge(lambda _: one(asked), Question.read({**model, "budget": 50}), predictor=predictor)


def test_a_submission_narrows_the_limits_and_never_widens_them() -> None:
    gate = Question.read({"budget": 50, "deadline": "6h", "confidence": "80%", "cloud": "aws"})
    said = {"run": "mine", "budget": "80", "deadline": "2h", "confidence": "70%"}
    found = joined(gate, said)
    limits = found.constraints
    assert (found.job.run, limits.budget_usd, limits.deadline_h) == ("mine", 50.0, 2.0)
    assert (limits.confidence, limits.providers) == (0.8, ("aws",))
    assert joined(gate, {}) == gate
    for line in ("overrides=/tmp/mine.csv", "cloud=gcp", "max_price=1", "budget"):
        with pytest.raises(UsageError):
            from_script(f"#ADVISOR {line}")


def test_what_cannot_be_judged_passes_unless_it_is_strict(predictor: Predictor) -> None:
    unclear = Submission(asked=(Unclear(label="sbatch", why="asks for no GPU"),))
    unnamed = one(AskedMachines(instance_type="g5.xlarge", provider="aws"))
    named = Question.read(MODEL)
    missing = Question.read({"run": "no-such-run"})
    for submission, question in ((unclear, named), (unnamed, Question()), (unnamed, missing)):
        for is_strict in (False, True):
            found = judge_submission(
                lambda _, it=submission: it,  # type: ignore[misc]
                question, predictor=predictor, is_strict=is_strict,
            )  # fmt: skip
            assert found.passes is not is_strict
            assert found.judged[0].note


def test_the_exit_code_says_the_verdict() -> None:
    asked = ["gate", "--on", "aws:p4d.24xlarge", "--count", "2", *FLAGS]
    passing = RUN.invoke(app, [*asked, "--budget", "500", "--json"])
    record = json.loads(passing.stdout)
    assert passing.exit_code == 0
    assert record["passes"]
    cost = record["submission"][0]["cost_usd"]["value"]
    dear = RUN.invoke(app, [*asked, "--budget", str(0.5 * cost), "--cloud", "aws"])
    assert dear.exit_code == 3
    assert "budget: costs" in dear.stdout
    assert "would pass" in dear.stdout or "nothing keeps the limits" in dear.stdout
    for wrong in (["gate"], ["gate", "--on", "g5.xlarge", "--sbatch"], [*asked, "train.sbatch"]):
        with pytest.raises(UsageError):
            RUN.invoke(app, wrong, catch_exceptions=False)


def test_a_batch_script_says_its_job_and_what_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = " ".join(f"{name}={value}" for name, value in MODEL.items())
    Path("train.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --time=12:00:00\n#SBATCH --gres=gpu:a100:8\n"
        f"#ADVISOR {job}\nsrun python train.py\n"
    )
    gate = ["gate", "--partition", "gpu=8xA100-80GB:nvlink@200Gbps", "--json", "--sbatch", "--"]
    passing = RUN.invoke(app, [*gate, "train.sbatch"])
    assert passing.exit_code == 0, passing.output
    assert json.loads(passing.stdout)["submission"][0]["asked"].startswith("16 devices on 2")
    short = RUN.invoke(app, [*gate, "--time=5", "-J", "short", "train.sbatch", "--lr", "1"])
    assert short.exit_code == 3
    assert "time limit" in json.loads(short.stdout)["submission"][0]["reasons"][0]["text"]
