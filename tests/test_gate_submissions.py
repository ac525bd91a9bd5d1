"""What the gate reads: sbatch's options and scripts, SkyPilot's tasks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.errors import UsageError
from advisor.gate.judged import AskedMachines, OwnDevices, Submission, Unclear
from advisor.gate.sbatch import parse_partitions, read_command, read_submission, time_limit_h
from advisor.gate.skypilot_tasks import read_task
from advisor.recipes import directives, read_options

GPU = {"gpu": "8xA100-80GB:nvlink@200Gbps"}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load()


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_time_limit_is_read_in_every_form(days: int, hours: int, mins: int, secs: int) -> None:
    """The forms of sbatch's manual page say the same time."""
    whole = days * 24 + hours + mins / 60 + secs / 3600
    forms = {f"{days}-{hours:02}:{mins:02}:{secs:02}": whole,
             f"{days}-{hours}:{mins}": whole - secs / 3600,
             f"{days}-{hours}": days * 24.0 + hours,
             f"{days * 24 + hours}:{mins:02}:{secs:02}": whole,
             f"{mins}:{secs:02}": mins / 60 + secs / 3600,
             f"{mins}": mins / 60}  # fmt: skip
    for text, expected in forms.items():
        found = time_limit_h(text)
        assert found is None if expected == 0 else math.isclose(found or 0.0, expected)


@given(st.text(max_size=30))
def test_no_text_but_a_time_is_a_time(text: str) -> None:
    try:
        found = time_limit_h(text)
    except UsageError:
        return
    assert found is None or 0 < found < 1e9


@given(st.lists(st.text(max_size=12), max_size=8))
def test_no_command_line_or_script_breaks_the_reader(words: list[str]) -> None:
    read_options(words)
    directives("\n".join(f"#SBATCH {word}" for word in words))


def test_the_command_line_comes_before_the_environment_and_that_before_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.sh").write_text(
        "#!/bin/sh\n#SBATCH -N 4 --gres=gpu:8 # the big ones\n#SBATCH -t 10 -p slow\n"
        "echo\n#SBATCH --nodes=9\n"
    )
    environ = {"SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "20"}
    found = read_command(["--time", "30", "a.sh", "--nodes=1"], environ, tmp_path)
    assert found == {"nodes": "4", "gres": "gpu:8", "time": "30", "partition": "gpu",
                     "argv": ["a.sh", "--nodes=1"]}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "devices", "nodes"),
    [
        ("--gres=gpu:8", 8, 1),
        ("-N2 --gres=gpu:a100:4", 8, 2),
        ("--nodes=2-4 --gpus-per-node=8", 16, 2),
        ("-G 16", 16, 2),
        ("--gpus=a100:4 -N 2", 4, 2),
        ("--gpus-per-task=1 --ntasks-per-node=8 -N 2", 16, 2),
        ("--gpus-per-task=2 --ntasks=4", 8, 1),
        ("--gres=lustre:1,gpu:2", 2, 1),
    ],
)
def test_devices_and_machines_of_a_request(words: str, devices: int, nodes: int) -> None:
    options, _ = read_options(words.split())
    (asked,) = read_submission(options, {}, GPU, price_usd_per_device_h=1.0).asked
    assert isinstance(asked, OwnDevices)
    assert (asked.devices, asked.nodes, asked.machine) == (devices, nodes, GPU["gpu"])


def test_a_partition_says_the_machine_and_a_request_may_name_its_cards() -> None:
    known = parse_partitions(["gpu=8xA100-80GB", "cloud=p4d.24xlarge"])

    def machine(words: str, partitions: dict[str, str]) -> str | None:
        options, _ = read_options(words.split())
        (asked,) = read_submission(options, {}, partitions).asked
        return asked.machine if isinstance(asked, OwnDevices) else None

    assert machine("--gres=gpu:8", known) == "8xA100-80GB"
    assert machine("-p cloud,gpu --gres=gpu:8", known) == "p4d.24xlarge"
    assert machine("-p other --gres=gpu:8", known) is None
    assert machine("-p other --gres=gpu:h100:4", known) == "4xh100"
    assert machine("-p gpu", known) is None  # no GPU is asked for
    with pytest.raises(UsageError):
        parse_partitions(["gpu"])


def task(**fields: Any) -> str:
    return yaml.safe_dump({"run": "python train.py", **fields})


def machines(found: Submission) -> list[AskedMachines]:
    return [one for one in found.asked if isinstance(one, AskedMachines)]


def test_a_task_asks_for_its_machines(catalogue: Catalogue) -> None:
    resources = {"infra": "aws/us-east-1", "instance_type": "p4d.24xlarge", "use_spot": True}
    found = read_task(task(num_nodes=2, resources=resources), catalogue)
    (asked,) = machines(found)
    assert (asked.label, asked.pricing) == ("2 x aws p4d.24xlarge (us-east-1, spot)", "spot")
    old = {"cloud": "AWS", "region": "us-east-1", "instance_type": "p4d.24xlarge"}
    assert machines(read_task(task(resources=old), catalogue))[0].region == "us-east-1"


def test_an_accelerator_is_judged_on_the_cheapest_machine_that_has_it(
    catalogue: Catalogue,
) -> None:
    """As SkyPilot chooses: the least price an hour; its bare A100 is the one of 40 GB."""
    for name, memory in (("A100", 40), ("A100-80GB", 80)):
        text = task(resources={"accelerators": f"{name}:8", "infra": "gcp"})
        (asked,) = machines(read_task(text, catalogue))
        kind = catalogue.instance_type(asked.instance_type, provider=asked.provider)
        assert (kind.provider, kind.accelerator_count) == ("gcp", 8)
        assert kind.accelerator.endswith(f"{memory}GB")
        assert asked.instance_type in asked.note


def test_every_choice_of_a_task_is_judged(catalogue: Catalogue) -> None:
    either = {"infra": "aws", "accelerators": {"A100": 8, "H100": 8}}
    any_of = {
        "infra": "aws",
        "any_of": [{"accelerators": "A10G:1"}, {"accelerators": ["L4", "T4"]}],
    }
    assert len(read_task(task(resources=either), catalogue).asked) == 2
    assert len(read_task(task(resources=any_of), catalogue).asked) == 3
    (unclear,) = read_task(task(resources={"cpus": "4+"}), catalogue).asked
    assert isinstance(unclear, Unclear)
    (unknown,) = read_task(
        task(resources={"accelerators": "A100:8", "infra": "k8s"}), catalogue
    ).asked
    assert isinstance(unknown, Unclear)


def test_a_task_says_its_job_in_its_variables(catalogue: Catalogue) -> None:
    envs = {"ADVISOR_RUN": "digits", "ADVISOR_BUDGET": 50, "ADVISOR_CLOUD": "gcp", "HOME": "/root"}
    found = read_task(task(envs=envs, resources={"accelerators": "L4"}), catalogue)
    assert found.said == {"run": "digits", "budget": "50"}  # which clouds is the gate's own


@pytest.mark.parametrize(
    "text",
    ["", "- a", "a: [", "a: 1\n---\nb: 2", "resources: 3", "num_nodes: many", "num_nodes: 0",
     "envs: [1]", "resources: {any_of: [3]}", "resources: {accelerators: 'A100:many'}",
     "resources: {accelerators: {A100: -1}}", "envs: {ADVISOR_BUDGET: much}"],
)  # fmt: skip
def test_a_task_that_makes_no_sense_is_refused(text: str, catalogue: Catalogue) -> None:
    with pytest.raises(UsageError):
        read_task(text, catalogue)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["resources", "accelerators", "any_of", "envs", "num_nodes", "infra",
                         "A100", "instance_type", "use_spot", "ADVISOR_RUN"]),
        inner, max_size=4,
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_yaml_is_a_submission_or_a_usage_error(content: Any) -> None:
    try:
        found = read_task(yaml.safe_dump(content), CATALOGUE())
    except UsageError:
        return
    assert found.asked


def CATALOGUE() -> Catalogue:  # noqa: N802 # loaded once for all examples
    if not _LOADED:
        _LOADED.append(Catalogue.load())
    return _LOADED[0]


_LOADED: list[Catalogue] = []
