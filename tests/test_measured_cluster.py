"""A job measured on several numbers of devices scales by its own law there, in every verb."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from everywhere import replace_everywhere
from typer.testing import CliRunner

from advisor import data
from advisor.cli.program import app
from advisor.collectors.derive import store
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.runs import Actual, read_actuals
from advisor.lab.score import run, scaling
from advisor.machines.cluster import read_cluster
from advisor.planners.core.nouns import Work
from advisor.rank.given import PlanQuestion, plan
from advisor.train import step_feedback

MakeJob = Callable[..., Job]
LINKS = "T4:pcie@50Gbps"
runner = CliRunner()


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(learned=None)


@pytest.fixture(scope="module")
def work() -> Work:
    found = scaling.work_of("imagenet")
    assert found is not None
    return found


def law_s(workers: int, batch: float, exchange_s: float) -> float:
    """A made cluster: a line in the batch, and an exchange that grows with its ring."""
    return 0.02 + 0.008 * batch + exchange_s * 2 * (workers - 1) / workers


def noted(sizes: list[tuple[int, int]], batch: int, exchange_s: float) -> tuple[Actual, ...]:
    """Runs on (machines, devices of each) with ``batch`` samples a device."""
    return tuple(
        Actual(run="r", provider="", instance_type=f"{n}x{g}x{LINKS}", count=1,
               batch=n * g * batch, step_s=law_s(n * g, batch, exchange_s))
        for n, g in sizes
    )  # fmt: skip


def planned_s(predictor: Predictor, job: Job, nodes: int, batch: int) -> tuple[float, float]:
    """Return the step that ``plan`` gives on machines of four devices, and its width."""
    cluster = read_cluster(f"{nodes}x4x{LINKS}", predictor.catalogue)
    asked = replace(job, global_batch=nodes * 4 * batch)
    choices = plan(PlanQuestion(job=asked, cluster=cluster, predictor=predictor)).choices
    best = min((c for c in choices if c.devices == nodes * 4), key=lambda c: c.step_time_s.value)
    return best.step_time_s.value, best.step_time_s.high / best.step_time_s.low


@pytest.mark.parametrize("exchange_s", [0.02, 0.4])
def test_three_runs_tell_how_the_job_scales_on_more_machines(
    predictor: Predictor, work: Work, exchange_s: float
) -> None:
    bare = described_job(work, name="resnet")
    own = replace(bare, actuals=noted([(1, 1), (1, 4), (2, 4)], 32, exchange_s))
    truth = law_s(16, 32, exchange_s)
    found, _ = planned_s(predictor, own, 4, 32)
    assert found == pytest.approx(truth, rel=0.15)
    without, _ = planned_s(predictor, bare, 4, 32)
    assert abs(np.log(found / truth)) < abs(np.log(without / truth))


def test_the_interval_grows_with_the_distance_from_what_was_measured(
    predictor: Predictor, work: Work
) -> None:
    own = replace(
        described_job(work, name="resnet"),
        actuals=noted([(1, 1), (1, 2), (1, 4), (2, 4)], 32, 0.2),
    )
    widths = [planned_s(predictor, own, nodes, 32)[1] for nodes in (2, 8, 32)]
    assert widths[0] < widths[1] < widths[2]


def test_too_few_runs_or_another_network_change_nothing(predictor: Predictor, work: Work) -> None:
    bare = described_job(work, name="resnet", global_batch=128)
    assert not predictor.case(bare).clusters
    two = replace(bare, actuals=noted([(1, 1), (1, 4)], 32, 0.2))
    same = replace(bare, actuals=noted([(1, 4), (1, 4), (1, 4)], 32, 0.2))
    for job in (two, same):
        assert not predictor.case(job).clusters
    three = replace(bare, actuals=noted([(1, 1), (1, 4), (2, 4)], 32, 0.2))
    ((name, network, _),) = predictor.case(three).clusters
    assert name.startswith("T4")
    assert network == pytest.approx(50e9 / 8)
    unknown = tuple(
        replace(a, instance_type=a.instance_type.replace("T4", "NoCard")) for a in three.actuals
    )
    assert not predictor.case(replace(three, actuals=unknown)).clusters


def test_a_job_known_by_its_runs_alone_scales_by_them(tmp_path: Path) -> None:
    """Nobody knows its gradients; what it took on 1, 2 and 4 machines tells of 8."""
    runs = tmp_path / "runs.csv"
    rows = [f"g5.xlarge,{step}s,64,{count}" for count, step in ((1, 0.5), (2, 0.31), (4, 0.2))]
    runs.write_text("\n".join(["machine,step,batch,count", *rows]))
    said = {}
    for count in (2, 4, 8):
        words = f"predict --runs {runs} --batch 64 --on g5.xlarge --count {count} --json"
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 0, done.output
        said[count] = json.loads(done.output)["step_time_s"]
    assert said[2]["low"] <= 0.31 <= said[2]["high"]
    assert said[4]["low"] <= 0.2 <= said[4]["high"]
    assert said[8]["value"] < said[4]["high"]


def test_the_verb_notes_runs_of_a_recorded_job_on_its_own_cluster(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "20261122-100000-resnet50-1"

    def load(path: str | Path) -> Job:
        return replace(make_job(name=folder.name), actuals=read_actuals(tmp_path, folder.name))

    replace_everywhere(monkeypatch, store, "find_run", lambda name: folder)
    monkeypatch.setattr(step_feedback, "load_job", load)
    for nodes, step in ((1, "300ms"), (2, "350ms"), (4, "380ms")):
        words = ["runs", "actual", "resnet", "--cluster", f"{nodes}x4x{LINKS}", "--batch",
                 str(nodes * 128), "--step-time", step, "--json"]  # fmt: skip
        found = runner.invoke(app, words)
        assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert record["runs"] == 3
    kept = read_actuals(tmp_path, folder.name)
    assert [a.batch for a in kept] == [128, 256, 512]
    assert Predictor(learned=None).case(load(folder)).clusters
    refused = runner.invoke(app, words[:-3])
    assert isinstance(refused.exception, UsageError)


def test_the_published_clusters_are_told_better_than_by_any_simple_rule() -> None:
    """Issue 13, scaling: the shipped part of the tables, through the product."""
    found = run("scaling", data.measurements(None))
    assert found.overall.mape_fraction < 0.09
    for name, rule in found.baselines.items():
        assert found.ours(name).mape_fraction < 0.6 * rule.mape_fraction
    assert (found.overall.coverage or 0) > 0.85
    far = {k: v for k, v in found.figures.items() if k.startswith("beyond 3")}
    assert far["beyond 3 times the largest known size: rows"] > 20
    assert far["beyond 3 times the largest known size: 90 % interval covers"] > 0.8
