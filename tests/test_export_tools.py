"""What the tools that exports are for say of them: parsers, models, schemas."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from exporting import ask, recording_of, row_on

from advisor.answer import Offer
from advisor.ask import Constraints
from advisor.catalogue import shipped
from advisor.estimate.predictor import Predictor
from advisor.export.pick import read_pick
from advisor.export.targets import export_to, target_of
from advisor.export.templates import template
from advisor.jobs.job import Job
from advisor.providers import launcher_of
from advisor.rank.ranking import recommend

pytestmark = pytest.mark.exports

MakeJob = Callable[..., Job]
CASES = [(count, pricing) for count in (1, 3) for pricing in ("on-demand", "spot")]
HOSTILE = ["python3", "train it.py", "--name", "a: b # c", "{x: 'y'}", "$(id)", "`id`", "%s\n- z"]


@pytest.fixture(scope="module")
def record(make_job: MakeJob) -> dict[str, Any]:
    answer = recommend(
        make_job(), Constraints(providers=("aws",), region="us-east-1"), predictor=Predictor()
    )
    return dict(json.loads(json.dumps(answer.to_record())))


def text_of(row: dict[str, Any], target: str) -> str:
    """The exported file of a script whose name and arguments want quoting."""
    recording = recording_of(HOSTILE, str(Path(__file__).parent))
    made = export_to(row, target, recording=recording)
    return next(iter(made.files.values()))


def exports(
    record: dict[str, Any], target: str, *providers: str
) -> Iterator[tuple[dict[str, Any], Any]]:
    """The answers of all cases, each with what the tool read in its export."""
    rows = [
        row_on(record, provider, count=count, pricing=pricing)
        for provider in providers
        for count, pricing in CASES
    ]
    read = ask(target, [(text_of(one, target), one) for one in rows])
    return zip(rows, read, strict=True)


def pinned(record: dict[str, Any]) -> Offer:
    return read_pick(record).rented


def test_skypilot_reads_the_pick_and_its_alternatives(record: dict[str, Any]) -> None:
    for row, task in exports(record, "skypilot", "aws", "gcp", "azure"):
        own, pick = pinned(row), read_pick(row)
        assert task["nodes"] == pick.nodes
        machines = [[cloud, *rest[1:3]] for cloud, *rest in task["machines"]]
        assert machines == [[own.provider, own.instance_type, pick.is_spot]] * 2
        assert task["machines"][0][1] == own.region
        assert "train it.py" in task["run"]


def test_skypilot_reads_cards_that_are_attached(record: dict[str, Any]) -> None:
    row = row_on(record, "gcp")
    part = row["front"][0]["configuration"][0]
    part |= {"instance_type": "n1-standard-8+2xT4", "accelerator": "T4"}
    part["accelerators_per_instance"] = 2.0
    row["front"][0]["alternatives"] = []
    (task,) = ask("skypilot", [(text_of(row, "skypilot"), row)])
    assert task["machines"] == [["gcp", "us-central1", "n1-standard-8", False, {"T4": 2.0}]]


def clouds_of(target: str) -> set[str]:
    """Return what a target calls the providers that it rents from, resellers among them."""
    rows = (launcher_of(target, one) for one in target_of(target).providers or ())
    return {row["cloud"] for row in rows if row}


def test_clouds_are_called_as_the_tools_call_them() -> None:
    (clouds,) = ask("skypilot_clouds", [("", {})])
    assert clouds_of("skypilot") <= set(clouds)
    (backends,) = ask("dstack_backends", [("", {})])
    assert clouds_of("dstack") <= set(backends)


def test_dstack_reads_limits_and_places(record: dict[str, Any]) -> None:
    for row, run in exports(record, "dstack", "aws"):
        own, pick = pinned(row), read_pick(row)
        assert run["max_price"] == 5.5
        assert run["max_duration"] == pick.longest_s
        assert run["instance_types"] == [own.instance_type]
        assert run["backends"] == ["aws"]
        assert run["resources"]["gpu"]["count"] == {"min": 4, "max": 4}
        assert run["spot_policy"] == ("spot" if pick.is_spot else "on-demand")
        assert (run["nodes"] or 1) == pick.nodes


def test_kubernetes_takes_every_field(record: dict[str, Any]) -> None:
    for row, documents in exports(record, "kubernetes", "aws", "gcp", "azure"):
        spec, pick = documents[-1]["spec"], read_pick(row)
        assert spec["activeDeadlineSeconds"] == pick.longest_s
        assert spec["completions"] == spec["parallelism"] == pick.nodes


def test_kubeflow_knows_every_field(record: dict[str, Any]) -> None:
    for row, job in exports(record, "kubeflow", "aws", "gcp", "azure"):
        assert job == yaml.safe_load(text_of(row, "kubeflow"))  # else it is not written back
        assert job["spec"]["trainer"]["numNodes"] == read_pick(row).nodes
        assert job["spec"]["activeDeadlineSeconds"] == read_pick(row).longest_s


def test_aws_takes_the_training_job(record: dict[str, Any]) -> None:
    for row, job in exports(record, "sagemaker", "aws"):
        own, pick = pinned(row), read_pick(row)
        assert job["ResourceConfig"]["InstanceType"] == f"ml.{own.instance_type}"
        assert job["ResourceConfig"]["InstanceCount"] == pick.nodes
        assert job["StoppingCondition"]["MaxRuntimeInSeconds"] == pick.longest_s
        assert job["EnableManagedSpotTraining"] == pick.is_spot


def test_sagemakers_machines_are_botocores() -> None:
    (known,) = ask("sagemaker_types", [("", {})])
    (families,) = template("sagemaker_types")
    ours = {f"ml.{one}.{size}" for one, sizes in families.items() for size in sizes.split()}
    assert set(known) == ours


def test_vertex_has_a_name_for_every_card(record: dict[str, Any]) -> None:
    rows, texts = [], []
    cards = {card: row.vertex_name for card, row in shipped().items() if row.vertex_name}
    for card, name in cards.items():
        row = row_on(record, "gcp")
        row["front"][0]["configuration"][0]["accelerator"] = card
        rows.append(row)
        texts.append(text_of(row, "vertex"))
        assert name in texts[-1]
    read = ask("vertex", list(zip(texts, rows, strict=True)))
    names = [one["workerPoolSpecs"][0]["machineSpec"]["acceleratorType"] for one in read]
    assert names == list(cards.values())


def test_vertex_takes_the_specification(record: dict[str, Any]) -> None:
    for row, spec in exports(record, "vertex", "gcp"):
        own, pick = pinned(row), read_pick(row)
        pools = spec["workerPoolSpecs"]
        assert sum(int(pool["replicaCount"]) for pool in pools) == pick.nodes
        assert {pool["machineSpec"]["machineType"] for pool in pools} == {own.instance_type}
        assert spec["scheduling"]["timeout"] == f"{pick.longest_s}s"
        assert spec["scheduling"]["strategy"] == ("SPOT" if pick.is_spot else "STANDARD")


def test_azure_loads_the_command_job(record: dict[str, Any]) -> None:
    for row, job in exports(record, "azureml", "azure"):
        own, pick = pinned(row), read_pick(row)
        assert job["instance_type"] == own.instance_type
        assert job["instance_count"] == pick.nodes
        assert job["timeout"] == pick.longest_s
        assert (job["tier"] or "").lower() == ("spot" if pick.is_spot else "")
        assert "train it.py" in job["command"]
