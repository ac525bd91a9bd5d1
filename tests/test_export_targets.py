"""Every target's file reads back, holds the answer's numbers, and starts what was recorded."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from exporting import recording_of, row_on, started_with
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.ask import Constraints
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.export.launch import launch_of
from advisor.export.pick import read_pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.targets import TARGETS, export_to, write
from advisor.jobs.job import Job
from advisor.quantities import usd_text
from advisor.rank.ranking import recommend
from advisor.words import cost_text, time_text

MakeJob = Callable[..., Job]
# A provider that the target rents from.
OWNS = {"vertex": "gcp", "azureml": "azure"}
CLOUDS = ("skypilot", "dstack", "kubernetes", "kubeflow", "sagemaker", "vertex", "azureml")
PRICINGS = ("on-demand", "spot")


@pytest.fixture(scope="module")
def record(make_job: MakeJob) -> dict[str, Any]:
    request = Constraints(providers=("aws",), region="us-east-1")
    answer = recommend(make_job(), request, predictor=Predictor())
    return dict(json.loads(json.dumps(answer.to_record())))


def rows(record: dict[str, Any], target: str) -> Iterator[dict[str, Any]]:
    for pricing in PRICINGS:
        for count in (1, 3):
            yield row_on(record, OWNS.get(target, "aws"), count=count, pricing=pricing)


def documents(made: Exported) -> list[Any]:
    text = next(iter(made.files.values()))
    return list(yaml.safe_load_all(text))  # JSON is YAML


@pytest.mark.parametrize("target", CLOUDS)
def test_the_files_numbers_are_the_answers(record: dict[str, Any], target: str) -> None:
    """In the words of the answer's table, and none with digits that nobody can mean."""
    for one in rows(record, target):
        row = one["front"][0]
        text = next(iter(export_to(one, target).files.values()))
        if target == "sagemaker":  # tags
            tags = {tag["Key"]: tag["Value"] for tag in json.loads(text)["Tags"]}
            for name in ("training_time_h", "cost_usd"):
                assert float(tags[f"advisor:{name}"]) == pytest.approx(
                    row[name]["value"], rel=5e-3
                )
                assert len(tags[f"advisor:{name}"].replace(".", "")) <= 6
            continue
        price = sum(part["count"] * part["price_usd_per_h"] for part in row["configuration"])
        assert {time_text(row), cost_text(row)} <= set(re.split(r"interval: |cost: |\n", text))
        assert f"price: {usd_text(price)} an hour" in text
        comments = [line for line in text.splitlines() if line.startswith("#")]
        assert not [line for line in comments if re.search(r"\d\.\d{4,}", line)]


@pytest.mark.parametrize("target", CLOUDS)
def test_files_read_back_without_a_tag_of_yaml(record: dict[str, Any], target: str) -> None:
    for one in rows(record, target):
        made = export_to(one, target)
        assert all(isinstance(document, dict) for document in documents(made))
        assert made.target == target
        assert next(iter(made.files)) in made.run
        assert "\n" not in made.run


def test_the_pick_stands_first_and_its_alternatives_after_it(record: dict[str, Any]) -> None:
    one = row_on(record, "aws", count=3)
    (task,) = documents(export_to(one, "skypilot"))
    assert task["num_nodes"] == 3
    assert [each["infra"] for each in task["resources"]["ordered"]] == [
        "aws/us-east-1", "aws/us-east-2",
    ]  # fmt: skip
    (run,) = documents(export_to(one, "dstack"))
    assert run["regions"] == ["us-east-1", "us-east-2"]
    assert run["instance_types"] == ["g5.12xlarge"]
    service, job = documents(export_to(one, "kubernetes"))
    pod = job["spec"]["template"]["spec"]
    nodes = pod["affinity"]["nodeAffinity"]
    terms = nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 2
    assert nodes["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"] == terms[0]
    assert pod["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize("pricing", PRICINGS)
def test_limits_are_the_high_end_of_the_time_and_the_price(
    record: dict[str, Any], pricing: str
) -> None:
    one = row_on(record, "aws", pricing=pricing)
    limit_s = read_pick(one).longest_s
    assert 600 <= limit_s - one["front"][0]["training_time_h"]["high"] * 3600 < 601
    (run,) = documents(export_to(one, "dstack"))
    assert (run["max_duration"], run["max_price"]) == (limit_s, 5.5)  # of the dearest it may rent
    assert run["spot_policy"] == pricing
    (job,) = documents(export_to(one, "kubernetes"))
    assert job["spec"]["activeDeadlineSeconds"] == limit_s
    (train_job,) = documents(export_to(one, "kubeflow"))
    assert train_job["spec"]["activeDeadlineSeconds"] == limit_s
    (request,) = documents(export_to(one, "sagemaker"))
    stop = request["StoppingCondition"]
    assert stop["MaxRuntimeInSeconds"] == limit_s
    assert request["EnableManagedSpotTraining"] == (pricing == "spot")
    assert stop.get("MaxWaitTimeInSeconds", 2 * limit_s) == 2 * limit_s
    (spec,) = documents(export_to(row_on(record, "gcp", pricing=pricing), "vertex"))
    assert spec["scheduling"]["timeout"] == f"{limit_s}s"
    (command,) = documents(export_to(row_on(record, "azure", pricing=pricing), "azureml"))
    assert command["limits"]["timeout"] == limit_s


@pytest.mark.parametrize("target", ["skypilot", "dstack", "sagemaker", "vertex", "azureml"])
def test_machines_of_a_provider_that_a_target_does_not_rent_are_refused(
    record: dict[str, Any], target: str
) -> None:
    foreign = row_on(record, "aws")
    foreign["front"][0]["configuration"][0]["provider"] = "nowhere"
    with pytest.raises(NotExportableError, match="does not rent from nowhere") as caught:
        export_to(foreign, target)
    assert "--cloud" in caught.value.hint


def test_the_default_row_is_the_best_that_the_target_runs(record: dict[str, Any]) -> None:
    """Rows of other clouds, and of machines that it has no name for, are passed over."""
    one = row_on(record, "aws")
    first = one["front"][0]
    rest = [json.loads(json.dumps(first | {"rank": rank})) for rank in (2, 3, 4)]
    first["configuration"][0]["provider"] = "nowhere"
    rest[0]["configuration"][0]["instance_type"] = "a1.metal"
    rest[1]["cost_usd"] = {**first["cost_usd"], "value": first["cost_usd"]["value"] * 2}
    one["front"] = [first, *rest]
    made = export_to(one, "sagemaker")
    assert "row 1, the best value" in made.notes[0]
    assert made.notes[0].endswith("this is row 4")
    assert {"Key": "advisor:row", "Value": "4"} in json.loads(made.files["job.json"])["Tags"]
    with pytest.raises(NotExportableError):
        export_to(one, "sagemaker", rank=1)


def test_the_machine_at_hand_is_not_rented(record: dict[str, Any]) -> None:
    here = row_on(record, "aws")
    here["here"] = json.loads(json.dumps(here["front"][0]))
    here["here"]["configuration"][0]["provider"] = "here"
    here["picks"] = {"best_value": "here"}
    with pytest.raises(NotExportableError, match="this machine"):
        export_to({**here, "front": []}, "skypilot")
    assert "this is row 1" in export_to(here, "skypilot").notes[0]


def test_mixed_machines_are_refused_by_what_starts_equal_ones(record: dict[str, Any]) -> None:
    mixed = row_on(record, "aws")
    mixed["front"][0]["configuration"] *= 2
    with pytest.raises(NotExportableError, match="mixes machine types"):
        export_to(mixed, "skypilot")


def test_machines_that_a_service_has_no_name_for_are_refused(record: dict[str, Any]) -> None:
    one = row_on(record, "aws")
    one["front"][0]["configuration"][0]["instance_type"] = "a1.metal"
    with pytest.raises(NotExportableError, match=r"SageMaker does not train on a1\.metal"):
        export_to(one, "sagemaker")
    other = row_on(record, "gcp")
    other["front"][0]["configuration"][0]["accelerator"] = "TPU-v6e"
    with pytest.raises(NotExportableError, match="no accelerator type for TPU-v6e"):
        export_to(other, "vertex")


def test_cards_that_are_attached_to_a_machine_are_named_apart(record: dict[str, Any]) -> None:
    one = row_on(record, "gcp")
    part = one["front"][0]["configuration"][0]
    part |= {"instance_type": "n1-standard-8+2xT4", "accelerator": "T4"}
    part["accelerators_per_instance"] = 2.0
    (task,) = documents(export_to(one, "skypilot"))
    assert task["resources"]["ordered"][0]["instance_type"] == "n1-standard-8"
    assert task["resources"]["ordered"][0]["accelerators"] == "T4:2"
    (spec,) = documents(export_to(one, "vertex"))
    assert spec["workerPoolSpecs"][0]["machineSpec"] == {
        "machineType": "n1-standard-8",
        "acceleratorType": "NVIDIA_TESLA_T4",
        "acceleratorCount": 2,
    }


@pytest.mark.parametrize("target", CLOUDS)
def test_values_are_set_by_name_and_those_left_out_are_noted(
    record: dict[str, Any], target: str
) -> None:
    one = row_on(record, OWNS.get(target, "aws"))
    with pytest.raises(UsageError, match="has no value 'nonsense'"):
        export_to(one, target, values={"nonsense": "x"})
    for name, blank in TARGETS[target].blanks.items():
        said = export_to(one, target, values={name: "GIVEN"})
        text = "".join(said.files.values()) + said.run
        assert "GIVEN" in text
        assert not any(f"--set {name}" in note for note in said.notes)
        assert any(blank.example in note for note in export_to(one, target).notes)


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def shell_of(made: Exported) -> str:
    """The shell text that the exported file starts."""
    (document,) = documents(made)
    text = document["run"] if "run" in document else document["commands"][-1]
    return str(text)


@settings(max_examples=25)
@given(arguments=st.lists(words, max_size=4), target=st.sampled_from(["skypilot", "dstack"]))
def test_a_recorded_command_arrives_word_for_word(
    record: dict[str, Any], arguments: list[str], target: str
) -> None:
    one = row_on(record, "aws")
    one["front"][0]["layout"]["dp"] = 1
    recording = recording_of(["/usr/bin/python3.11", "train.py", *arguments])
    text = shell_of(export_to(one, target, recording=recording))
    assert started_with("python", text) == ["train.py", *arguments]


@settings(max_examples=20)
@given(text=words, target=st.sampled_from(CLOUDS))
def test_words_of_an_answer_stay_words(record: dict[str, Any], text: str, target: str) -> None:
    one = row_on(record, OWNS.get(target, "aws"))
    one["run"] = text
    one["front"][0]["configuration"][0] |= {"region": text or "x", "terms": text}
    made = export_to(one, target)
    assert all(isinstance(document, dict) for document in documents(made))
    if target in ("sagemaker", "vertex"):  # which say the region on their command line
        region = text or "x"
        assert {region, f"--region={region}"} & set(shlex.split(made.run))


def test_a_script_is_said_from_the_folder_that_is_copied(record: dict[str, Any]) -> None:
    pick = read_pick(row_on(record, "aws"))
    inside = launch_of(
        pick, None, recording_of(["python", "/home/me/job/src/train.py", "-b", "8"])
    )
    assert inside.words == ("src/train.py", "-b", "8")
    assert inside.folder == "/home/me/job"
    outside = launch_of(pick, None, recording_of(["python", "/opt/train.py"], "/home/me"))
    assert (outside.words, outside.folder) == (("train.py",), "/opt")
    assert any("/home/me" in note for note in outside.notes)


def test_a_launcher_of_the_recording_gives_way_to_the_layouts(record: dict[str, Any]) -> None:
    pick = read_pick(row_on(record, "aws", count=3))
    launched = ["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1e-3"]
    made = launch_of(pick, None, recording_of(launched))
    assert made.text.startswith("torchrun --nnodes 3 --nproc-per-node 4")
    assert made.text.endswith("train.py --lr 1e-3")
    assert "MASTER_ADDR=10.0.0.1" in made.shell("10.0.0.1")


def test_what_the_recording_does_not_keep_comes_from_a_variable(record: dict[str, Any]) -> None:
    """It reaches the script as it is set, and without it nothing starts."""
    hashed = ["hidden:0123456789", "hidden:abcdefabcd"]
    one = row_on(record, "aws")
    one["front"][0]["layout"]["dp"] = 1
    recorded = ["python", "train.py", "--path", hashed[0], f"--id={hashed[1]}", hashed[0]]
    made = export_to(one, "skypilot", recording=recording_of(recorded))
    assert any("ARG_PATH, ARG_ID" in note for note in made.notes)
    text = shell_of(made)
    given = "ARG_PATH='a b'\nARG_ID='$x'\n"
    assert started_with("python", given + text) == ["train.py", "--path", "a b", "--id=$x", "a b"]
    with pytest.raises(subprocess.CalledProcessError):
        started_with("python", text)


def test_written_files_lie_beside_one_another(record: dict[str, Any], tmp_path: Any) -> None:
    made = export_to(row_on(record, "aws"), "sagemaker")
    paths = write(made, tmp_path / "deep er" / "mine.json")
    assert [path.name for path in paths.values()] == ["mine.json", "run.sh"]
    assert [path.read_text() for path in paths.values()] == list(made.files.values())
    (tmp_path / "folder").mkdir()
    assert write(made, tmp_path / "folder")["job.json"].name == "job.json"
    line = shlex.split(made.placed(paths).run)
    assert f"file://{tmp_path}/deep er/mine.json" in line
    assert line[line.index("cp", 8) + 1] == f"{tmp_path}/deep er/run.sh"
    assert line[line.index("cp", 8) + 2].endswith("/code/run.sh")  # what it is called there
