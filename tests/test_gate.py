"""The gate: its verdict is that of the recommendation, and what it says would do does."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.ask import Constraints, Question
from advisor.catalogue.select import parse_gpus
from advisor.cli.program import app
from advisor.errors import AdvisorError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.gate.decision import decide, judge, judge_submission
from advisor.gate.judged import AskedMachines, Judged, OwnDevices, Submission, Unclear, judged
from advisor.gate.said import from_script, joined
from advisor.jobs.job import Job
from advisor.machines.cluster import one_group
from advisor.rank.listed import Listed
from advisor.rank.ranking import recommend
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
        free = Listed(job, FEW, predictor, prunes=False)
        time_h, cost = free.rows.time_h, free.rows.cost_usd
        for _ in range(3):
            limits = replace(
                FEW,
                budget_usd=float(np.nanquantile(cost, rng.random())) * 1.001,
                deadline_h=rng.choice([None, float(np.nanquantile(time_h, rng.random())) * 1.001]),
                max_hourly_usd=rng.choice([None, 2.0]),
            )
            ranked = Listed(job, limits, predictor, prunes=False)
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


def machines_of(ranked: Listed, row: int, predictor: Predictor) -> AskedMachines:
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


BATCH = """#!/bin/bash
#SBATCH --nodes={nodes} --gres=gpu:8 --time=1-00:00:00
{said}
srun torchrun train.py
"""
JOB_LINE = "#ADVISOR " + " ".join(f"{name}={value}" for name, value in MODEL.items())


def submitted(
    folder: Path, words: str, said: str = JOB_LINE, nodes: int = 1
) -> tuple[int, dict[str, Any]]:
    """Return exit code and record of what ``sbatch job.sh`` is told."""
    (folder / "job.sh").write_text(BATCH.format(said=said, nodes=nodes))
    told = RUN.invoke(
        app, ["gate", "--sbatch", *words.split(), "--json", "--", str(folder / "job.sh")]
    )
    return told.exit_code, json.loads(told.output)


def test_a_partition_of_a_rented_machine_is_judged_by_its_price(tmp_path: Path) -> None:
    """Whole machines are paid for: the price of the machine, times machines and hours."""
    partition = "--partition gpu=p5.48xlarge"
    _, record = submitted(tmp_path, f"{partition} --budget 100000")
    (found,) = record["submission"]
    price = one_group("p5.48xlarge", Predictor.load().catalogue).price_usd_per_h
    cost = found["cost_usd"]["value"]
    assert price is not None
    assert cost == pytest.approx(price * found["training_time_h"]["value"])
    for strictly in ("", " --strict"):
        assert submitted(tmp_path, f"{partition} --budget {1.01 * cost}{strictly}")[0] == 0
        assert submitted(tmp_path, f"{partition} --budget {0.99 * cost}{strictly}")[0] == 3
    assert submitted(tmp_path, f"{partition} --max-hourly {0.99 * price}")[0] == 3
    assert submitted(tmp_path, f"{partition} --max-hourly {1.01 * price}")[0] == 0


@pytest.mark.parametrize("limit", ["--budget", "--max-hourly"])
def test_a_cluster_without_a_price_passes_no_limit_of_money(tmp_path: Path, limit: str) -> None:
    own = "--partition gpu=8xH100:nvlink@400Gbps"
    assert submitted(tmp_path, own)[0] == 0
    code, record = submitted(tmp_path, f"{own} {limit} 100000")
    assert code == 3
    (found,) = record["submission"]
    assert "--cluster-price" in found["reasons"][0]["text"]
    # Nor do more or fewer of the same machines, of which no price is known either.
    assert record["remedies"] == []
    assert submitted(tmp_path, f"{own} {limit} 100000 --cluster-price 2")[0] == 0
    assert submitted(tmp_path, f"{own} {limit} 0.01 --cluster-price 2")[0] == 3


def test_what_would_pass_on_the_same_machines_keeps_the_budget(tmp_path: Path) -> None:
    """A deadline asks for more machines; those that break the budget are not offered."""
    partition = "--partition gpu=p5.48xlarge"
    _, record = submitted(tmp_path, partition)
    hours = record["submission"][0]["training_time_h"]["value"]
    for budget in (3.0, 100000.0):
        code, told = submitted(
            tmp_path, f"{partition} --deadline {0.6 * hours}h --budget {budget}"
        )
        assert code == 3
        offered = told["remedies"]
        assert bool(offered) == (budget > 1000)
        for one_offer in offered:
            assert one_offer["cost_usd"]["value"] <= budget


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--partition other=8xH100 -- -p gpu", JOB_LINE),  # machines that nobody knows
        ("", JOB_LINE),  # the same
        ("--partition gpu=p5.48xlarge", JOB_LINE.replace("tokens=500M", "")),  # no length
        ("--partition gpu=p5.48xlarge", JOB_LINE + " layers"),  # a line that cannot be read
        ("--partition gpu=p5.48xlarge", "#ADVISOR budget=5"),  # a budget of no job
        ("--partition gpu=8xH999", JOB_LINE),  # no such card
    ],
)
def test_under_a_budget_nothing_passes_that_was_not_judged(
    tmp_path: Path, words: str, said: str
) -> None:
    given, _, more = words.partition(" -- ")
    (tmp_path / "job.sh").write_text(BATCH.format(said=said, nodes=1))

    def code(limits: str) -> int:
        line = ["gate", "--sbatch", *given.split(), *limits.split(), "--", *more.split()]
        return RUN.invoke(app, [*line, str(tmp_path / "job.sh")]).exit_code

    assert code("--budget 100000") == 3
    assert code("--budget 100000 --strict") == 3
    if "budget" not in said:
        assert code("") == 0  # without one it passes, with a note


def test_a_job_that_names_none_passes_a_budget_that_others_set(tmp_path: Path) -> None:
    """A cluster's own budget does not stop those who never asked to be judged."""
    assert submitted(tmp_path, "--partition gpu=p5.48xlarge --budget 5", said="")[0] == 0


def test_a_skypilot_choice_that_is_unclear_does_not_carry_a_budget(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    env = "".join(f"  ADVISOR_{k.upper()}: {v}\n" for k, v in MODEL.items())
    task.write_text(
        f"envs:\n{env}  ADVISOR_BUDGET: 0.01\nresources:\n  any_of:\n"
        "    - {infra: aws, instance_type: p4d.24xlarge}\n    - {infra: aws, accelerators: X9:8}\n"
    )
    told = RUN.invoke(app, ["gate", "--skypilot", str(task), "--json"])
    assert told.exit_code == 3
    assert all(not found["passes"] for found in json.loads(told.output)["submission"])
