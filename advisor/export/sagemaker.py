"""SageMaker: the request of a training job, and the script that its containers run.

Read against botocore 1.44 (``CreateTrainingJob``). JSON has no comments: the answer's numbers are
tags. The container finds its peers in ``resourceconfig.json``, as SageMaker writes it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.sagemaker_types import TYPES
from advisor.export.target import Blank, Exported, NotExportableError, Target
from advisor.export.texts import exchangeable, job_name, number

_FILE, _SCRIPT = "job.json", "run.sh"
_CODE: Final = "/opt/ml/input/data/code"
_PEERS: Final = "/opt/ml/input/config/resourceconfig.json"
_MASTER: Final = f"$(python -c \"import json; print(json.load(open('{_PEERS}'))['hosts'][0])\")"
# The longest that StoppingCondition takes: 28 days. [s]
LONGEST_S: Final = 2_419_200
# Room for data, checkpoints and the image's layers. [GB]
_DISK_GB: Final = 200


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the request and the script; spot jobs wait and run twice the time at most."""
    name = job_name(pick.run)
    place = values["bucket"].rstrip("/")
    folder = shlex.quote(launch.folder or ".")
    code = shlex.quote(f"{place}/{name}/code")
    steps = (
        f"aws s3 cp --recursive {folder} {code}",
        f"aws s3 cp {_SCRIPT} {code}/{_SCRIPT}",
        f"aws sagemaker create-training-job --region {shlex.quote(pick.rented.region)} "
        f"--cli-input-json file://{_FILE}",
    )
    _, others = exchangeable(pick)
    return Exported(
        target="sagemaker",
        files={
            _FILE: json.dumps(_request(pick, name, values, place), indent=2) + "\n",
            _SCRIPT: f"#!/bin/bash\ncd {_CODE}\n{launch.shell(_MASTER)}",
        },
        run=" && ".join(steps),
        notes=(*others, *_notes(pick)),
    )


def _request(pick: Pick, name: str, values: Mapping[str, str], place: str) -> dict[str, Any]:
    longest_s = min(pick.longest_s, LONGEST_S)
    source = {"S3DataType": "S3Prefix", "S3Uri": f"{place}/{name}/code"}
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingImage": values["image"],
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash", f"{_CODE}/{_SCRIPT}"],
        },
        "RoleArn": values["role"],
        "InputDataConfig": [{"ChannelName": "code", "DataSource": {"S3DataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": f"{place}/{name}/output"},
        "ResourceConfig": {
            "InstanceType": _machine(pick),
            "InstanceCount": pick.nodes,
            "VolumeSizeInGB": _DISK_GB,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": longest_s},
        "EnableManagedSpotTraining": pick.is_spot,
        "Tags": [{"Key": key, "Value": value} for key, value in _tags(pick)],
    }
    if pick.is_spot:  # waiting counts: twice the run
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * longest_s
        request["CheckpointConfig"] = {"S3Uri": f"{place}/{name}/checkpoints"}
    return request


def _machine(pick: Pick) -> str:
    """Return SageMaker's name of the machine."""
    name = f"ml.{pick.rented.instance_type}"
    if name not in TYPES:
        raise NotExportableError(
            f"SageMaker does not train on {pick.rented.instance_type}",
            hint="export another row, or use --to skypilot",
        )
    return name


def _tags(pick: Pick) -> Iterator[tuple[str, str]]:
    yield "advisor:run", job_name(pick.run)
    yield "advisor:row", str(pick.rank)
    yield "advisor:prices_of", pick.prices_of
    yield "advisor:price_usd_per_h", number(pick.configuration.price_usd_per_h)
    for name, one in (("training_time_h", pick.training_time_h), ("cost_usd", pick.cost_usd)):
        yield f"advisor:{name}", number(one.value)
        yield f"advisor:{name}.low", number(one.low)
        yield f"advisor:{name}.high", number(one.high)


def _notes(pick: Pick) -> Iterator[str]:
    yield "SageMaker bills its own rate for ml. machines, above the EC2 price of the answer"
    yield "a training job's name is used once: change TrainingJobName to run it again"
    yield "a request names one machine type: alternatives are rows of `advisor recommend`"
    if pick.longest_s > LONGEST_S:
        yield "the time limit is the longest that SageMaker takes, 28 days"
    if pick.is_spot:
        yield "write checkpoints to /opt/ml/checkpoints: SageMaker brings them back"


TARGET: Final = Target(
    name="sagemaker",
    write=write,
    blanks={
        "role": Blank(example="arn:aws:iam::123456789012:role/SageMaker", help="execution role"),
        "bucket": Blank(example="s3://YOUR-BUCKET", help="place for code and results"),
        "image": Blank(
            example="123456789012.dkr.ecr.us-east-1.amazonaws.com/training:latest",
            help="training image in ECR",
        ),
    },
    providers=frozenset({"aws"}),
)
