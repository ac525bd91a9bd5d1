"""Slurm, torchrun, accelerate, deepspeed, megatron: their files are read, and start the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from exporting import recording_of, row_on, started_with
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_cases import options_of
from slurm_cluster import cluster, installed

from advisor import api
from advisor.ask import Constraints, Question
from advisor.estimate.predictor import Predictor
from advisor.export.launch import NotRunnableError, launch_of
from advisor.export.pick import read_pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.targets import TARGETS, export_to, write
from advisor.export.tools.slurm import time_text as limit_text
from advisor.gate.judged import OwnDevices
from advisor.gate.sbatch import read_submission, time_limit_h
from advisor.jobs.job import Job
from advisor.quantities import usd_text
from advisor.rank.ranking import recommend
from advisor.recipes import directives
from advisor.words import cost_text, time_text

MakeJob = Callable[..., Job]
LAUNCHERS = ("slurm", "torchrun", "accelerate", "deepspeed")
MODEL = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 128, "batch": 64, "tokens": "1B"}


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    return make_job()


@pytest.fixture(scope="module")
def record(job: Job, predictor: Predictor) -> dict[str, Any]:
    answer = recommend(job, Constraints(providers=("aws",)), predictor=predictor)
    return dict(json.loads(json.dumps(answer.to_record())))


@pytest.fixture(scope="module")
def described(predictor: Predictor) -> Job:
    asked = Question.read(MODEL)
    return api.job_of(asked.job, asked.setup, catalogue=lambda: predictor.catalogue)


def export(
    one: dict[str, Any], to: str, job: Job, predictor: Predictor, *, folder: str = "",
    command: tuple[str, ...] = ("python", "train.py"), **values: str,
) -> Exported:  # fmt: skip
    """Export a recorded script's row."""
    recording = recording_of(command, folder)
    return export_to(one, to, job=job, recording=recording, predictor=predictor, values=values)


def with_layout(one: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(one))
    changed["front"][0]["layout"] |= changes
    return changed


@pytest.mark.parametrize("target", LAUNCHERS)
@pytest.mark.parametrize("count", [1, 3])
def test_the_files_numbers_are_the_answers(
    record: dict[str, Any], job: Job, predictor: Predictor, target: str, count: int
) -> None:
    one = row_on(record, "aws", count=count)
    made = export(one, target, job, predictor)
    row = one["front"][0]
    text = next(iter(made.files.values()))
    assert {time_text(row), cost_text(row)} <= set(re.split(r"interval: |cost: |\n", text))
    assert usd_text(count * row["configuration"][0]["price_usd_per_h"]) in text
    assert not re.search(r"\d\.\d{4,}", "".join(commented(text)))
    assert next(iter(made.files)) in made.run
    assert set(made.files) > {"parallel.py"}


def commented(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("# ")]


@given(st.floats(0.0, 1e7))
def test_a_time_limit_is_the_least_whole_minute_that_holds_the_time(seconds: float) -> None:
    whole = -int(-seconds // 1)
    limit_h = time_limit_h(limit_text(whole)) or 0.0
    assert whole <= limit_h * 3600 + 1e-6
    assert limit_h * 3600 < max(whole, 1) + 60


@pytest.mark.parametrize("pricing", ["on-demand", "spot"])
def test_the_gate_reads_the_batch_script_as_it_was_meant(
    record: dict[str, Any], job: Job, predictor: Predictor, pricing: str
) -> None:
    one = row_on(record, "aws", count=2, pricing=pricing)
    made = export(one, "slurm", job, predictor, partition="big")
    text = made.files["job.sbatch"]
    options = directives(text)
    (asked,) = read_submission(options, {}, {"big": "4xA10G"}).asked
    assert isinstance(asked, OwnDevices)
    assert (asked.devices, asked.nodes, options["partition"]) == (8, 2, "big")
    high = one["front"][0]["training_time_h"]["high"]
    assert asked.time_limit_h is not None
    assert high <= asked.time_limit_h < high + 1 / 6 + 1 / 30  # ten minutes to install
    assert ("--requeue" in text) == (pricing == "spot")
    assert f"#ADVISOR run={one['run']}\n" in text


@pytest.mark.parametrize("count", [1, 2])
def test_the_scripts_arguments_arrive_through_every_launcher(
    record: dict[str, Any], job: Job, tmp_path: Path, count: int
) -> None:
    """Names with spaces, quotes and what a shell obeys reach the script as they were."""
    one = row_on(record, "aws", count=count)

    @settings(max_examples=8, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_categories=["C"]), min_size=1), max_size=4))
    def law(words: list[str]) -> None:
        command = ("python", "train it.py", *words)
        for target in LAUNCHERS:
            launch = launch_of(read_pick(one), None, recording_of(command, str(tmp_path)))
            known = TARGETS[target]
            made = known.write(read_pick(one), replace(launch, work=job.work), known.filled({}))
            name = next(iter(made.files))
            write(made, tmp_path)
            program = target if target in ("accelerate", "deepspeed") else "torchrun"
            found = started_with(program, _without_a_cluster(program) + made.files[name])
            assert found[found.index("train it.py") :] == ["train it.py", *words], target

    law()


def _without_a_cluster(program: str) -> str:
    """Stand-ins for Slurm's commands, and the arguments of a script's first machine."""
    nothing = "cp() { :; }\npython() { :; }\nscontrol() { echo first; }\nSLURM_JOB_NODELIST=x\n"
    return f'export -f {program}\nset -- first 0\n{nothing}srun() {{ shift; "$@"; }}\n'


def test_accelerates_file_says_the_layout(
    record: dict[str, Any], described: Job, predictor: Predictor
) -> None:
    for count, zero, kind in ((1, 0, "MULTI_GPU"), (2, 3, "FSDP"), (2, 2, "DEEPSPEED")):
        one = with_layout(
            row_on(record, "aws", count=count), zero_stage=zero, shard_group=None,
            micro_batch=1, accumulation_steps=2, recompute="none", offload=[],
        )  # fmt: skip
        trainer = {"framework": "trainer"}
        made = export_to(one, "accelerate", job=described, predictor=predictor, values=trainer)
        config = yaml.safe_load(made.files["accelerate.yaml"])
        assert (config["num_machines"], config["num_processes"]) == (count, 4 * count)
        assert config["distributed_type"] == kind
        assert "--per_device_train_batch_size 1" in made.files["run.sh"]
        own = export_to(one, "accelerate", job=described, predictor=predictor)
        assert own.files["run.sh"].endswith(" train.py\n")
        assert yaml.safe_load(own.files["accelerate.yaml"])["distributed_type"] == kind
        assert ("ds_config.json" in made.files["run.sh"]) == (kind == "DEEPSPEED")
        assert "fsdp.json" not in made.files["run.sh"]


def test_what_a_launcher_cannot_run_is_refused(
    record: dict[str, Any], job: Job, described: Job, predictor: Predictor
) -> None:
    split = with_layout(row_on(record, "aws"), tp=2, dp=2, zero_stage=0, recompute="none")
    for target in ("accelerate", "deepspeed"):
        with pytest.raises(NotRunnableError):
            export_to(split, target, job=described, predictor=predictor)
    assert (
        "--tensor-model-parallel-size 2"
        in export_to(split, "megatron", job=described, predictor=predictor).files["megatron.sh"]
    )
    with pytest.raises(NotExportableError, match="transformers"):
        export(row_on(record, "aws"), "megatron", job, predictor)
    with pytest.raises(NotExportableError, match="precision"):
        export_to(split, "deepspeed")


def test_megatrons_arguments_are_those_of_the_launch_commands(
    record: dict[str, Any], described: Job, predictor: Predictor
) -> None:
    """Plain data parallelism, too, which ``plan`` gives to the Trainer."""
    from advisor.estimate.launch.megatron import command_line

    one = with_layout(
        row_on(record, "aws", count=2), zero_stage=1, shard_group=None, micro_batch=2,
        accumulation_steps=4, recompute="none", offload=[],
    )  # fmt: skip
    text = export_to(one, "megatron", job=described, predictor=predictor).files["megatron.sh"]
    work = described.work
    assert work is not None
    assert work.transformer is not None
    pick = read_pick(one)
    expected = command_line(
        pick.layout, work.transformer, nodes=2, per_node=4, setup=work.setup,
        precision=work.precision,
    )  # fmt: skip
    assert expected in text
    assert options_of(text)["--global-batch-size"] == "64"


def test_a_script_without_a_layout_of_its_own_is_one_process(
    record: dict[str, Any], job: Job, predictor: Predictor
) -> None:
    one = with_layout(row_on(record, "aws"), dp=1)
    one["front"][0]["configuration"][0] |= {"accelerators_per_instance": 0.0, "accelerator": None}
    launch = launch_of(read_pick(one), None, recording_of(("python", "train.py", "--lr", "1")))
    assert launch.started_by("accelerate launch") == "accelerate launch train.py --lr 1"
    config = yaml.safe_load(
        export_to(one, "accelerate", recording=recording_of(("train.py",))).files[
            "accelerate.yaml"
        ]
    )
    assert (config["distributed_type"], config["use_cpu"]) == ("NO", True)
    assert "gres" not in export_to(one, "slurm").files["job.sbatch"]


_SUM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.ones(1)
dist.all_reduce(ranks)
if dist.get_rank() == 0:
    print("RANKS", int(ranks), sys.argv[1:], flush=True)
dist.destroy_process_group()
"""


def _started(folder: Path, command: list[str], **variables: str) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _on_two(record: dict[str, Any]) -> dict[str, Any]:
    one = with_layout(row_on(record, "aws"), dp=2)
    one["front"][0]["configuration"][0]["accelerators_per_instance"] = 2.0
    return one


@pytest.mark.slow
def test_torchrun_starts_two_processes(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SUM)
    recording = recording_of(("python", "train.py", "--name", "a b"), str(tmp_path))
    write(export_to(_on_two(record), "torchrun", recording=recording), tmp_path)
    out = _started(tmp_path, ["bash", "run.sh"])
    assert "RANKS 2 ['--name', 'a b']" in out


@pytest.mark.frameworks
def test_accelerate_reads_its_file_and_starts_two_processes(
    record: dict[str, Any], described: Job, predictor: Predictor, tmp_path: Path
) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    for zero in (0, 2, 3):
        one = with_layout(
            row_on(record, "aws", count=2), zero_stage=zero, shard_group=None, micro_batch=1,
            accumulation_steps=2, recompute="none", offload=[],
        )  # fmt: skip
        made = export_to(one, "accelerate", job=described, predictor=predictor)
        write(made, tmp_path)
        read = config_args.load_config_from_file(str(tmp_path / "accelerate.yaml"))
        assert (read.num_processes, read.num_machines) == (8, 2)
        assert read.distributed_type == {0: "MULTI_GPU", 2: "DEEPSPEED", 3: "FSDP"}[zero]
    (tmp_path / "train.py").write_text(_SUM)
    recording = recording_of(("python", "train.py", "--name", "a b"), str(tmp_path))
    write(export_to(_on_two(record), "accelerate", recording=recording), tmp_path)
    assert "RANKS 2 ['--name', 'a b']" in _started(tmp_path, ["bash", "run.sh"])


def test_deepspeed_reads_its_configuration_and_its_hosts(
    record: dict[str, Any], described: Job, job: Job, predictor: Predictor, tmp_path: Path
) -> None:
    """Where it is installed: its own reader of both."""
    runtime = pytest.importorskip("deepspeed.runtime.config")
    runner = pytest.importorskip("deepspeed.launcher.runner")
    for zero in (0, 1, 2, 3):
        one = with_layout(
            row_on(record, "aws", count=2), zero_stage=zero, shard_group=None, micro_batch=1,
            accumulation_steps=2, recompute="none", offload=[],
        )  # fmt: skip
        made = export_to(one, "deepspeed", job=described, predictor=predictor)
        write(made, tmp_path)
        config = json.loads(made.files["ds_config.json"])
        assert runtime.get_zero_config(config).stage == zero
        assert runner.fetch_hostfile(str(tmp_path / "hostfile")) == {
            "machine-1": 4,
            "machine-2": 4,
        }
        mine = export(one, "deepspeed", job, predictor, hosts="a,b")
        assert "deepspeed.initialize" in mine.files["parallel.py"]
        assert mine.files["hostfile"] == "a slots=4\nb slots=4\n"


@pytest.mark.exports
def test_sbatch_takes_the_script(
    record: dict[str, Any], job: Job, described: Job, predictor: Predictor, tmp_path: Path
) -> None:
    """``sbatch --test-only`` of a real controller, for recorded and described jobs."""
    prefix = installed()
    if prefix is None:
        pytest.skip("Slurm is not installed: .ci/slurm .venv-exports/slurm")
    with cluster(prefix, tmp_path / "etc") as slurm:
        for count, fits in ((1, True), (4, True), (5, False)):
            for pricing in ("on-demand", "spot"):
                one = row_on(record, "aws", count=count, pricing=pricing)
                whose = export(one, "slurm", job, predictor, folder=str(tmp_path))
                sure = with_layout(one, zero_stage=0, micro_batch=1, accumulation_steps=1)
                for made in (whose, export_to(sure, "slurm", job=described, predictor=predictor)):
                    (tmp_path / "job.sbatch").write_text(made.files["job.sbatch"])
                    said = slurm.tested("job.sbatch", cwd=tmp_path)
                    assert (said.returncode == 0) is fits, said.stderr
        big = replace(read_pick(one), run="x")
        assert big.nodes == 5
