"""SageMaker: the request of a training job, and the script that its containers run.

Read against botocore 1.44 (``CreateTrainingJob``). JSON has no comments: the answer's numbers are
tags. The container finds its peers in ``resourceconfig.json``, as SageMaker writes it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.catalogue import shipped
from advisor.export.launch import Launch
from advisor.export.pick import Pick, Rented
from advisor.export.target import Blank, Exported, NotExportableError, Target
from advisor.export.texts import (
    ONE_TYPE,
    attached,
    exchangeable,
    is_in_one_region,
    job_name,
    marked,
    number,
    yaml_text,
)
from advisor.export.tools.kubernetes import (
    FOLDER,
    IMAGE,
    affinity,
    cannot_say,
    limits,
    tolerations,
)
from advisor.export.tools.sagemaker_types import TYPES
from advisor.words import price_words

_SAGEMAKER_FILE, _SCRIPT = "job.json", "run.sh"
_CODE: Final = "/opt/ml/input/data/code"
_PEERS: Final = "/opt/ml/input/config/resourceconfig.json"
_MASTER: Final = f"$(python -c \"import json; print(json.load(open('{_PEERS}'))['hosts'][0])\")"
# The longest that StoppingCondition takes: 28 days. [s]
LONGEST_S: Final = 2_419_200
# Room for data, checkpoints and the image's layers. [GB]
_DISK_GB: Final = 200


def sagemaker_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the request and the script; spot jobs wait and run twice the time at most."""
    name = job_name(pick.run)
    place = values["bucket"].rstrip("/")
    folder = shlex.quote(launch.folder or ".")
    code = shlex.quote(f"{place}/{name}/code")
    steps = (
        f"aws s3 cp --recursive {folder} {code}",
        f"aws s3 cp {_SCRIPT} {code}/{_SCRIPT}",
        f"aws sagemaker create-training-job --region {shlex.quote(pick.rented.region)} "
        f"--cli-input-json file://{_SAGEMAKER_FILE}",
    )
    _, others = exchangeable(pick)
    return Exported(
        target="sagemaker",
        files={
            _SAGEMAKER_FILE: json.dumps(_request(pick, name, values, place), indent=2) + "\n",
            _SCRIPT: "#!/bin/bash\n" + marked(launch.shell(_MASTER, folder=_CODE), pick),
        },
        run=" && ".join(steps),
        notes=(*others, *_sagemaker_notes(pick)),
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
    yield "advisor:price", price_words(pick.to_record()["configuration"])
    yield "advisor:price_usd_per_h", number(pick.configuration.price_usd_per_h)
    for name, one in (("training_time_h", pick.training_time_h), ("cost_usd", pick.cost_usd)):
        yield f"advisor:{name}", number(one.value)
        yield f"advisor:{name}.low", number(one.low)
        yield f"advisor:{name}.high", number(one.high)


def _sagemaker_notes(pick: Pick) -> Iterator[str]:
    yield "SageMaker bills its own rate for ml. machines, above the EC2 price of the answer"
    yield "a training job's name is used once: change TrainingJobName to run it again"
    yield "a request names one machine type: alternatives are rows of `advisor recommend`"
    if pick.longest_s > LONGEST_S:
        yield "the time limit is the longest that SageMaker takes, 28 days"
    if pick.is_spot:
        yield "write checkpoints to /opt/ml/checkpoints: SageMaker brings them back"


SAGEMAKER_TARGET: Final = Target(
    name="sagemaker",
    write=sagemaker_write,
    blanks={
        "role": Blank(example="arn:aws:iam::123456789012:role/SageMaker", help="execution role"),
        "bucket": Blank(example="s3://YOUR-BUCKET", help="place for code and results"),
        "image": Blank(
            example="123456789012.dkr.ecr.us-east-1.amazonaws.com/training:latest",
            help="training image in ECR",
        ),
    },
    rents=True,
)


# Azure Machine Learning: a command job on serverless compute of the pick's type.
#
# Read against azure-ai-ml 1.35 (``load_job``). The job starts one process a machine, which starts
# the layout's ranks itself; ``MASTER_ADDR`` is set by the service.


_FILE: Final = "job.yml"
_SCHEMA: Final = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the command job; low-priority machines for spot."""
    name = job_name(pick.run)
    job: dict[str, Any] = {
        "$schema": _SCHEMA,
        "type": "command",
        "display_name": name,
        "experiment_name": name,
        "code": launch.folder or ".",
        "command": launch.shell("$MASTER_ADDR"),
        "environment": {"image": values["image"]},
        "resources": {
            "instance_type": pick.rented.instance_type,
            "instance_count": pick.nodes,
            "shm_size": "16g",
        },
        **({"queue_settings": {"job_tier": "Spot"}} if pick.is_spot else {}),
        "limits": {"timeout": pick.longest_s},
    }
    if pick.nodes > 1:
        job["distribution"] = {"type": "pytorch", "process_count_per_instance": 1}
    _, others = exchangeable(pick)
    return Exported(
        target="azureml",
        files={_FILE: yaml_text(job, pick)},
        run=f"az ml job create --file {_FILE} --resource-group YOUR-GROUP "
        "--workspace-name YOUR-WORKSPACE",
        notes=(*others, *_notes(pick)),
    )


def _notes(pick: Pick) -> Iterator[str]:
    yield f"the workspace must be in {pick.rented.region}: a job names no region"
    yield ONE_TYPE


TARGET: Final = Target(
    name="azureml",
    write=write,
    blanks={
        "image": Blank(
            example="mcr.microsoft.com/azureml/openmpi5.0-cuda12.6-ubuntu24.04:latest",
            help="container image",
        )
    },
    rents=True,
)


# Kubeflow Trainer: a TrainJob on the runtime ``torch-distributed``, pinned to the pick's nodes.
#
# Read against Kubeflow Trainer 2.3: the runtime says the first machine's address in
# ``PET_MASTER_ADDR``; what it has no field for is patched into its pods.


_KUBEFLOW_FILE: Final = "trainjob.yaml"
_MANAGER: Final = "advisor.local/export"


def kubeflow_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the TrainJob."""
    name = job_name(pick.run)
    same, others = exchangeable(pick)
    trainer: dict[str, Any] = {
        "image": values["image"],
        "command": ["bash", "-c"],
        "args": [launch.shell("$PET_MASTER_ADDR", folder=values["folder"])],
        "numNodes": pick.nodes,
        "numProcPerNode": launch.per_node,
    }
    if found := limits(pick.rented):
        trainer["resourcesPerNode"] = {"limits": found}
    where = affinity(pick, same, name)
    where.pop("podAntiAffinity", None)  # the runtime labels its pods itself
    patch: dict[str, Any] = {"affinity": where}
    if tolerated := list(tolerations(pick)):
        patch["tolerations"] = tolerated
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "activeDeadlineSeconds": pick.longest_s,
            "trainer": trainer,
            "runtimePatches": [_patch(patch)],
        },
    }
    return Exported(
        target="kubeflow",
        files={_KUBEFLOW_FILE: yaml_text(job, pick)},
        run=f"kubectl apply -f {_KUBEFLOW_FILE}",
        notes=(*others, *cannot_say(pick)),
    )


def _patch(pod: dict[str, Any]) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": pod}}}
    jobs = [{"name": "node", "template": template}]
    runtime = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"manager": _MANAGER, "trainingRuntimeSpec": runtime}


KUBEFLOW_TARGET: Final = Target(
    name="kubeflow", write=kubeflow_write, blanks={"image": IMAGE, "folder": FOLDER}
)


# Vertex AI: the specification of a custom job, a pool for the first machine and one for the rest.
#
# Read against google-cloud-aiplatform 2.7 (``CustomJobSpec``). Vertex tells the containers of one
# another in ``CLUSTER_SPEC``.


_VERTEX_FILE: Final = "custom-job.yaml"
_READ: Final = "import json, os; print(json.loads(os.environ['CLUSTER_SPEC'])['cluster']"
_VERTEX_MASTER: Final = f"$(python -c \"{_READ}['workerpool0'][0].split(':')[0])\")"


def vertex_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the job's specification, as ``gcloud ai custom-jobs create --config`` takes it."""
    pool = {
        "machineSpec": _vertex_machine(pick.rented),
        "replicaCount": 1,
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200},
        "containerSpec": {
            "imageUri": values["image"],
            "command": ["bash", "-c"],
            "args": [launch.shell(_VERTEX_MASTER, folder=values["folder"])],
        },
    }
    rest = [{**pool, "replicaCount": pick.nodes - 1}] if pick.nodes > 1 else []
    spec: dict[str, Any] = {
        "workerPoolSpecs": [pool, *rest],
        "scheduling": {
            "timeout": f"{pick.longest_s}s",
            "strategy": "SPOT" if pick.is_spot else "STANDARD",
            "restartJobOnWorkerRestart": pick.is_spot,
        },
    }
    place = pick.rented.region if is_in_one_region(pick.rented) else "us-central1"
    _, others = exchangeable(pick)
    return Exported(
        target="vertex",
        files={_VERTEX_FILE: yaml_text(spec, pick)},
        run=f"gcloud ai custom-jobs create --region={shlex.quote(place)} "
        f"--display-name={job_name(pick.run)} --config={_VERTEX_FILE}",
        notes=(*others, *_vertex_notes()),
    )


def _vertex_machine(one: Rented) -> dict[str, Any]:
    """Return the machine with its accelerators."""
    machine, _, attached_count = attached(one)
    if one.accelerator is None:
        return {"machineType": machine}
    card = shipped().get(one.accelerator)
    name = card and card.vertex_name
    if machine.startswith("a3-megagpu"):
        name = "NVIDIA_H100_MEGA_80GB"
    if not name:
        raise NotExportableError(
            f"Vertex AI has no accelerator type for {one.accelerator}",
            hint="export another row, or use --to skypilot",
        )
    count = attached_count or max(int(one.accelerators), 1)
    return {"machineType": machine, "acceleratorType": name, "acceleratorCount": count}


def _vertex_notes() -> Iterator[str]:
    yield "Vertex AI adds a management fee to the Compute Engine price of the answer"
    yield ONE_TYPE


VERTEX_TARGET: Final = Target(
    name="vertex",
    write=vertex_write,
    blanks={
        "image": Blank(
            example="us-docker.pkg.dev/YOUR-PROJECT/training/image:latest",
            help="image that holds your script",
        ),
        "folder": FOLDER,
    },
    rents=True,
)
