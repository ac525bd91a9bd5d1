"""The user's own shared cluster beside the list: the same estimate, the wait, rent or wait."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from advisor import api, compare_with_cluster
from advisor.answer import Recommendation
from advisor.ask import Constraints
from advisor.cli.program import app
from advisor.errors import AdvisorError
from advisor.estimate.predictor import Predictor
from advisor.jobs import load
from advisor.jobs.job import Job
from advisor.planners import PlanningError
from advisor.planners.queueing.engine import POLICIES
from advisor.planners.queueing.wait_or_rent import Wait, rent_or_wait
from advisor.quantities import hours_text
from advisor.rank.ranking import recommend
from advisor.records.traces import TraceError
from advisor.report import simulation as report
from advisor.report.page import page_data
from advisor.simulate.own_cluster import ClusterComparison

CLUSTER = "10x4xV100-SXM2-16GB@100Gbps"


@pytest.fixture(scope="module")
def job(make_job: Callable[..., Job]) -> Job:
    return make_job(total_steps=20_000.0)


@pytest.fixture(scope="module")
def listed(job: Job, predictor: Predictor) -> Recommendation:
    return recommend(job, Constraints(top=4), predictor=predictor)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster of 40 devices, busy for 90 % of a month: 8 devices for 6 hours, every 80 min."""
    rows = [f"{k},8,{k * 4800},21600" for k in range(500)]
    path = tmp_path_factory.mktemp("cluster") / "jobs.csv"
    path.write_text("\n".join(["job_id,num_gpu,submit_time,duration", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def both(job: Job, listed: Recommendation, jobs: Path, predictor: Predictor) -> ClusterComparison:
    return compare_with_cluster(
        job, listed, trace=jobs, cluster=CLUSTER, devices=[4, 8], deadline="2d",
        price_usd_per_device_h=0.1, predictor=predictor,
    )  # fmt: skip


def test_the_own_machines_are_estimated_as_the_catalogues(
    job: Job, listed: Recommendation, jobs: Path, predictor: Predictor
) -> None:
    own = compare_with_cluster(
        job, listed, trace=jobs, cluster="10x g4dn.12xlarge", devices=[4, 8], predictor=predictor
    )
    for way in own.own_cluster["ways"]:
        rented = predictor.predict(job, "g4dn.12xlarge", count=way["nodes"])
        assert way["step_time_s"] == rented.step_time_s.to_record()
        assert way["duration_h"] == rented.training_time_h.to_record()


def test_done_is_waiting_and_computing(both: ClusterComparison) -> None:
    for way in both.own_cluster["ways"]:
        waits, ends = way["delay_h"], way["completion_h"]
        assert 0.0 <= waits["p10"] <= waits["p50"] <= waits["p90"]
        assert all(ends[level] > waits[level] for level in waits)
        assert way["cost_usd"] == pytest.approx(0.1 * way["devices"] * way["duration_h"]["value"])


def test_the_page_says_what_the_tables_say(
    both: ClusterComparison, listed: Recommendation
) -> None:
    own = both.to_record()["own_cluster"]
    data = page_data(listed, own_cluster=own)
    assert data["answer"]["own_cluster"] == json.loads(json.dumps(own))
    said = data["words"]["own_cluster"]
    console = Console(file=io.StringIO(), width=300)
    report.show_simulation(own, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert said["line"] in printed
    assert len(said["ways"]) == len(own["ways"]) == 2
    for way in said["ways"]:
        assert f"compared with {way['devices']} of your own cluster" in printed
        assert way["waits"] in printed
        assert way["done"] in printed
        assert [rent["rank"] for rent in way["rents"]] == [one.rank for one in listed.front]
        for rent in way["rents"]:
            assert rent["saves"] in printed
            assert rent["verdict"] in printed


def test_break_even_is_what_renting_costs_more_by_what_it_saves(both: ClusterComparison) -> None:
    for way in both.own_cluster["ways"]:
        for one, rent in zip(both.recommendation.front, way["rent_or_wait"], strict=True):
            extra, saved = rent["extra_cost_usd"], rent["saved_h"]
            assert extra == pytest.approx(one.cost_usd.value - way["cost_usd"])
            if saved <= 0:
                assert rent["break_even_usd_per_h"] is None
            else:
                worth = max(extra, 0.0) / saved
                assert rent["break_even_usd_per_h"] == pytest.approx(worth)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_cluster_makes_nobody_wait(
    policy: str, job: Job, listed: Recommendation, tmp_path: Path, predictor: Predictor
) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("submit_time,num_gpu,duration\n0,1,60\n100000,1,60\n9000000,1,60\n")
    own = compare_with_cluster(
        job, listed, trace=path, cluster=CLUSTER, policy=policy, predictor=predictor
    )
    (way,) = own.own_cluster["ways"]
    assert way["delay_h"]["p90"] == pytest.approx(0.0, abs=1e-6)
    assert way["devices"] == 4


def test_what_a_cluster_really_did_is_what_the_simulation_says_it_did(
    job: Job, listed: Recommendation, tmp_path: Path, predictor: Predictor
) -> None:
    """The published FIFO run, as sacct would export it: simulated and recorded waits meet."""
    with (Path(__file__).parent / "golden/tiresias/syn240_n10g4.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    lines = ["JobID|Submit|Start|ElapsedRaw|AllocTRES|State"]
    for row in rows:
        start = row["fifo_finish_s"] - row["duration_s"]
        lines.append(
            f"{row['job_id']:.0f}|{row['submit_s']:.0f}|{start:.0f}|{row['duration_s']:.0f}|"
            f"cpu=8,gres/gpu={row['devices']:.0f}|COMPLETED"
        )
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    own = compare_with_cluster(
        job, listed, trace=path, cluster=CLUSTER, insertions=5, predictor=predictor
    )
    trace = own.own_cluster["trace"]
    simulated_h = trace["simulated_mean_delay_h"]
    assert trace["recorded_mean_delay_h"] == pytest.approx(simulated_h)
    assert simulated_h > 0.1


def test_a_deadline_or_a_budget_that_nothing_keeps_is_said(
    job: Job, listed: Recommendation, jobs: Path, predictor: Predictor
) -> None:
    def keeps(**limits: Any) -> bool:
        return compare_with_cluster(
            job, listed, trace=jobs, cluster=CLUSTER, price_usd_per_device_h=0.1,
            predictor=predictor, **limits,
        ).meets_constraints  # fmt: skip

    assert keeps()
    assert keeps(deadline="1000d", budget=1e6)
    assert not keeps(deadline="1m")
    assert not keeps(budget=1e-6)


def test_the_record_is_the_recommendations_with_one_part_more(
    both: ClusterComparison, listed: Recommendation
) -> None:
    record = json.loads(json.dumps(both.to_record()))
    own = record.pop("own_cluster")
    assert record == json.loads(json.dumps(listed.to_record()))
    assert own["cluster"]["accelerator"] == "V100-SXM2-16GB"
    assert own["trace"]["load_fraction"] == pytest.approx(0.9, rel=0.01)
    for way in own["ways"]:
        assert set(way["completion_h"]) == {"p10", "p50", "p90"}
        assert 0 <= way["miss_probability"] <= 1
        assert [rent["rank"] for rent in way["rent_or_wait"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits_the_terminal_and_shows_the_records_numbers(
    both: ClusterComparison, width: int
) -> None:
    console = Console(width=width, file=io.StringIO())
    report.show_simulation(both.to_record()["own_cluster"], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for way in both.own_cluster["ways"]:
        assert hours_text(way["completion_h"]["p50"]) in text
    assert "rent" in text


def test_the_verdict_says_what_an_hour_must_be_worth() -> None:
    def of(saved_h: float, extra_usd: float) -> str:
        wait = Wait(
            submit_s=np.zeros(1), duration_s=np.full(1, 3600.0),
            completion_s=np.full(1, 36000.0), load=1.0, beyond_trace_fraction=0.0,
        )  # fmt: skip
        rent = rent_or_wait(
            wait, rent_completion_s=36000.0 - 3600 * saved_h, rent_cost_usd=extra_usd + 10,
            own_cost_usd=10,
        )  # fmt: skip
        return report.verdict(rent)

    assert of(4.0, 6.0) == "rent if an hour is worth more than $1.50"
    assert of(4.0, -6.0) == "rent: earlier at no extra cost"
    assert of(-4.0, -6.0) == "rent if an hour is worth less than $1.50"
    assert of(-4.0, 6.0) == "wait: your cluster is not slower"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, job: Job) -> Job:
    """The latest run is the job: nothing is profiled here."""
    monkeypatch.setattr(load, "load_job", lambda *_, **__: job)
    monkeypatch.setattr(api, "recording_of", lambda *_: None)
    return job


def test_command_line_python_and_json_have_one_estimate(
    recorded: Job, jobs: Path, predictor: Predictor
) -> None:
    shell = CliRunner().invoke(
        app,
        ["recommend", "--json", "--cloud", "aws", "--top", "4", "--deadline", "2d",
         "--cluster-trace", str(jobs), "--cluster", CLUSTER, "--cluster-policy", "las-2d",
         "--cluster-devices", "4,8"],
        catch_exceptions=False,
    )  # fmt: skip
    answer = api.recommend(recorded, cloud="aws", deadline="2d", top=4, predictor=predictor)
    both = compare_with_cluster(
        recorded, answer, trace=jobs, cluster=CLUSTER, policy="las-2d", devices=[4, 8],
        deadline="2d", predictor=predictor,
    )  # fmt: skip
    assert shell.exit_code == 0
    assert shell.stdout == json.dumps(both.to_record(), indent=2) + "\n"


def test_a_cluster_that_keeps_the_deadline_answers_where_the_cloud_cannot(
    recorded: Job, jobs: Path
) -> None:
    only = ["recommend", "--cloud", "lambda", "--budget", "0.001", "--here-price", "1000"]
    own = ["--cluster-trace", str(jobs), "--cluster", CLUSTER]
    assert CliRunner().invoke(app, only).exit_code == 3
    assert CliRunner().invoke(app, [*only, *own]).exit_code == 0
    assert CliRunner().invoke(app, [*only, *own, "--deadline", "1m"]).exit_code == 3


HERE = ["--cluster-trace", "{jobs}", "--cluster", CLUSTER]
BAD: dict[str, tuple[list[str], type[Exception], str, int]] = {
    "no size": (HERE[:2], AdvisorError, "are needed together", 2),
    "no file": (["--cluster-trace", "nowhere", *HERE[2:]], TraceError, "cannot read", 2),
    "too large": ([*HERE, "--cluster-devices", "48"], PlanningError, "the cluster has 40", 3),
    "its own past too large": (
        [*HERE[:2], "--cluster", "1x4xV100-SXM2-16GB"], PlanningError, "the cluster has 4", 3),
    "uneven": ([*HERE, "--cluster-devices", "6,7"], AdvisorError, "spread evenly", 2),
    "no count": ([*HERE, "--cluster-devices", "many"], AdvisorError, "as a list", 2),
    "zero devices": ([*HERE, "--cluster-devices", "0"], AdvisorError, "is out of range", 2),
    "zero nodes": (
        [*HERE[:2], "--cluster", "0x4xV100-SXM2-16GB"], AdvisorError, "out of range", 2),
    "mixed": ([*HERE[:2], "--cluster", "1x4xT4,1x8xL4"], AdvisorError, "more than one kind", 2),
    "policy": ([*HERE, "--cluster-policy", "luck"], AdvisorError, "no policy", 2),
    "price": ([*HERE, "--cluster-price", "-1"], AdvisorError, "it is negative", 2),
    "past deadline": ([*HERE, "--deadline=-2h"], AdvisorError, "it is negative", 2),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_one_clear_error(recorded: Job, jobs: Path, case: str) -> None:
    args, error, match, code = BAD[case]
    filled = [a.format(jobs=jobs) for a in args]
    with pytest.raises(error, match=match) as refused:
        CliRunner().invoke(
            app, ["recommend", "--cloud", "lambda", *filled], catch_exceptions=False
        )
    value: Any = refused.value
    assert value.exit_code == code
    assert value.hint


def test_a_job_that_fits_none_of_its_devices_is_refused(
    job: Job, listed: Recommendation, jobs: Path, predictor: Predictor
) -> None:
    assert job.work is not None
    huge = replace(job, work=replace(job.work, saved_bytes_per_sample=1e16))
    with pytest.raises(PlanningError, match="in memory") as refused:
        compare_with_cluster(huge, listed, trace=jobs, cluster=CLUSTER, predictor=predictor)
    assert refused.value.exit_code == 3
