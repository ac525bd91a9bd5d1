"""Asks the tool that an export is for whether it takes the file; runs where the tools are.

Each line of stdin is ``{"target": ..., "text": ..., "machines": [...]}``, a file and the machines
in it; a line of stdout has what the tool read. Anything refused is a traceback.
Standard library and the tools only: the advisor is not installed there.
"""

import csv
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}


def skypilot(text: str, machines: list[dict[str, Any]]) -> Any:
    """SkyPilot's task, against a catalogue in SkyPilot's format that sells these machines."""
    catalogs = Path.home() / ".sky" / "catalogs" / "v8"
    for cloud in {one["provider"] for one in machines}:
        folder = catalogs / cloud
        folder.mkdir(parents=True, exist_ok=True)
        _sell(folder / "vms.csv", [one for one in machines if one["provider"] == cloud])
    import sky

    path = Path.home() / "task.yaml"
    path.write_text(text)
    task = sky.Task.from_yaml(str(path))
    return {
        "name": task.name,
        "nodes": task.num_nodes,
        "machines": [
            [str(one.cloud).lower(), one.region, one.instance_type, one.use_spot,
             {name: float(count) for name, count in (one.accelerators or {}).items()}]
            for one in task.resources
        ],
        "run": task.run,
    }  # fmt: skip


def _sell(path: Path, machines: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB",
             "GpuInfo", "Price", "SpotPrice", "Region", "AvailabilityZone"]
        )  # fmt: skip
        for one in machines:
            name, _, cards = one["instance_type"].partition("+")
            count, card = one["accelerators_per_instance"], one["accelerator"]
            price, region = one["price_usd_per_h"], one["region"]
            sold = [[name, "" if cards else card, "" if cards else count, 8, 32, ""]]
            if cards:  # GCP sells what is attached in rows of their own
                sold.append(["", card, count, "", "", ""])
            rows.writerows([*row, price, price, region, f"{region}-a"] for row in sold)


def skypilot_clouds(_: str, __: list[dict[str, Any]]) -> Any:
    """The clouds that SkyPilot knows."""
    import sky.clouds  # noqa: F401  they enter themselves
    from sky.utils import registry

    return sorted(registry.CLOUD_REGISTRY)


def dstack_backends(_: str, __: list[dict[str, Any]]) -> Any:
    """The backends that dstack knows."""
    from dstack._internal.core.models.backends.base import BackendType

    return [one.value for one in BackendType]


def dstack(text: str, _: list[dict[str, Any]]) -> Any:
    """The run configuration of dstack's models."""
    import yaml
    from dstack._internal.core.models.configurations import parse_apply_configuration

    return json.loads(parse_apply_configuration(yaml.safe_load(text)).json())


def kubernetes(text: str, _: list[dict[str, Any]]) -> Any:
    """Every document under Kubernetes' schemas, unknown fields refused."""
    import kubernetes_validate
    import yaml

    documents = list(yaml.safe_load_all(text))
    for one in documents:
        kubernetes_validate.validate(one, "1.37", strict=True)
    return documents


def kubeflow(text: str, _: list[dict[str, Any]]) -> Any:
    """The TrainJob as Kubeflow Trainer's model writes it back: what it does not know is lost."""
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    return TrainerV1alpha1TrainJob.from_dict(yaml.safe_load(text)).to_dict()


def sagemaker(text: str, _: list[dict[str, Any]]) -> Any:
    """The training job that moto has after boto3 has checked and sent the request."""
    os.environ.update(_AWS)
    import boto3
    from moto import mock_aws

    request = json.loads(text)
    with mock_aws():
        client = boto3.client("sagemaker")
        client.create_training_job(**request)
        job = client.describe_training_job(TrainingJobName=request["TrainingJobName"])
    return json.loads(json.dumps(job, default=str))


def sagemaker_types(_: str, __: list[dict[str, Any]]) -> Any:
    """Machines that botocore's model lets a training job name."""
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    return sorted(model.shape_for("TrainingInstanceType").enum)


def vertex(text: str, _: list[dict[str, Any]]) -> Any:
    """The specification as Vertex's type has it; fields it does not know are refused."""
    import yaml
    from google.cloud.aiplatform_v1 import CustomJobSpec

    spec = CustomJobSpec.from_json(json.dumps(yaml.safe_load(text)))
    return json.loads(CustomJobSpec.to_json(spec, use_integers_for_enums=False))


def azureml(text: str, _: list[dict[str, Any]]) -> Any:
    """The command job as azure-ai-ml loads it."""
    from azure.ai.ml import load_job

    path = Path.home() / "job.yml"
    path.write_text(text)
    job = load_job(str(path))
    resources = job.resources
    return {
        "command": job.command,
        "instance_type": resources.instance_type,
        "instance_count": resources.instance_count,
        "timeout": job.limits.timeout,
        "tier": job.queue_settings.job_tier if job.queue_settings else None,
    }


def launched(text: str, _: list[dict[str, Any]]) -> Any:
    """The script that a launcher starts with these arguments, and on how many ranks and machines.

    ``text``: ``{"program": ..., "arguments": [...], "folder": ...}``. A wrong argument ends the
    process, a file that is not there is a traceback.
    """
    one = json.loads(text)
    os.chdir(one["folder"])
    read = {"torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed}
    return read[one["program"]](one["arguments"])


def _torchrun(words: list[str]) -> Any:
    from torch.distributed.run import config_from_args, parse_args

    args = parse_args(words)
    config, _, __ = config_from_args(args)
    return {
        "script": args.training_script,
        "arguments": args.training_script_args,
        "machines": config.min_nodes,
        "ranks": config.min_nodes * config.nproc_per_node,
        "address": config.rdzv_endpoint,
    }


def _accelerate(words: list[str]) -> Any:
    """As ``accelerate launch`` goes, up to the processes that it would start."""
    import contextlib

    from accelerate.commands import launch
    from accelerate.utils import launch as commands

    assert words[0] == "launch", words
    parsed = launch.launch_command_parser().parse_args(words[1:])
    with contextlib.redirect_stdout(sys.stderr):
        args, defaults, __ = launch._validate_launch_command(parsed)
        if args.use_deepspeed:
            fields = ",".join(defaults.deepspeed_config)  # as launch_command sets it
            args.deepspeed_fields_from_accelerate_config = fields
            json.loads(Path(args.deepspeed_config_file).read_text())
            commands.prepare_deepspeed_cmd_env(args)
        elif args.multi_gpu or args.use_fsdp:
            commands.prepare_multi_gpu_env(args)
        else:
            commands.prepare_simple_launcher_cmd_env(args)
    return {
        "script": args.training_script,
        "arguments": args.training_script_args,
        "machines": args.num_machines,
        "ranks": args.num_processes,
        "address": args.main_process_ip,
    }


def _deepspeed(words: list[str]) -> Any:
    """As ``deepspeed`` goes, up to the processes that it would start; its settings are read."""
    from deepspeed.launcher import runner

    args = runner.parse_args(words)
    pool = runner.fetch_hostfile(args.hostfile) or {"localhost": args.num_gpus}
    active = runner.parse_inclusion_exclusion(pool, args.include, args.exclude)
    config = json.loads(Path("ds_config.json").read_text())
    assert config["train_micro_batch_size_per_gpu"] > 0
    return {
        "script": args.user_script,
        "arguments": args.user_args,
        "machines": len(active),
        "ranks": sum(len(one) if isinstance(one, list) else one for one in active.values()),
        "address": None,
    }


def trainer(text: str, _: list[dict[str, Any]]) -> Any:
    """Arguments as the Trainer's own parser has them; a file that they name has to be there."""
    from transformers import HfArgumentParser, TrainingArguments

    one = json.loads(text)
    os.chdir(one["folder"])
    args = HfArgumentParser(TrainingArguments).parse_args(one["arguments"])
    for named in (args.fsdp_config, args.deepspeed):
        if named:
            json.loads(Path(named).read_text())
    return {"batch": args.per_device_train_batch_size, "passes": args.gradient_accumulation_steps}


def main() -> None:
    """Check one file after another, each a line of JSON; answer each with a line of JSON."""
    os.environ.update({"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"})
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        answers = [
            globals()[asked["target"]](asked["text"], asked["machines"])
            for asked in map(json.loads, sys.stdin)
        ]
    sys.stdout.write(f"ANSWERS {json.dumps(answers)}\n")


if __name__ == "__main__":
    main()
