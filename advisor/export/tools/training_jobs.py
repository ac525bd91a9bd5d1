"""Training services of clouds: SageMaker, Azure Machine Learning and Vertex AI."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.answer import Offer
from advisor.catalogue import shipped
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.templates import documents, template
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
from advisor.words import price_words

_SCRIPT: Final = "run.sh"
_CODE: Final = "/opt/ml/input/data/code"
_PEERS: Final = "/opt/ml/input/config/resourceconfig.json"
_MASTER: Final = f"$(python -c \"import json; print(json.load(open('{_PEERS}'))['hosts'][0])\")"
# The longest that StoppingCondition takes: 28 days. [s]
LONGEST_S: Final = 2_419_200


def sagemaker_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the request and the script; spot jobs wait and run twice the time at most.

    SageMaker, read against botocore 1.44 (``CreateTrainingJob``): the request of a training job,
    and the script that its containers run. JSON has no comments: the answer's numbers are tags.
    The container finds its peers in ``resourceconfig.json``, as SageMaker writes it.
    """
    place = f"{values['bucket'].rstrip('/')}/{job_name(pick.run)}"
    code = shlex.quote(f"{place}/code")
    longest_s = min(pick.longest_s, LONGEST_S)
    (request,) = documents(
        "sagemaker", pick, launch, **values, place=place, script_path=f"{_CODE}/{_SCRIPT}",
        longest_s=longest_s, waiting_s=2 * longest_s, machine=_sagemaker_machine(pick),
        tags=[{"Key": key, "Value": value} for key, value in _tags(pick)],
    )  # fmt: skip
    return Exported(
        target="sagemaker",
        files={
            "job.json": json.dumps(request, indent=2) + "\n",
            _SCRIPT: "#!/bin/bash\n" + marked(launch.shell(_MASTER, folder=_CODE), pick),
        },
        run=f"aws s3 cp --recursive {shlex.quote(launch.folder or '.')} {code} && "
        f"aws s3 cp {_SCRIPT} {code}/{_SCRIPT} && "
        f"aws sagemaker create-training-job --region {shlex.quote(pick.rented.region)} "
        "--cli-input-json file://job.json",
        notes=(*exchangeable(pick)[1], *_sagemaker_notes(pick)),
    )


def _sagemaker_machine(pick: Pick) -> str:
    """Return SageMaker's name of the machine."""
    family, _, size = pick.rented.instance_type.partition(".")
    (types,) = template("sagemaker_types")
    if size not in types.get(family, "").split():
        raise NotExportableError(
            f"SageMaker does not train on {pick.rented.instance_type}",
            hint="export another row, or use --to skypilot",
        )
    return f"ml.{pick.rented.instance_type}"


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


_AZURE_FILE: Final = "job.yml"


def azureml_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the command job; low-priority machines for spot.

    Azure Machine Learning, read against azure-ai-ml 1.35 (``load_job``): a command job on
    serverless compute of the pick's type. It starts one process a machine, which starts the
    layout's ranks itself; ``MASTER_ADDR`` is set by the service.
    """
    found = documents(
        "azureml", pick, launch, **values, command=launch.shell("$MASTER_ADDR"),
        instance_type=pick.rented.instance_type,
    )  # fmt: skip
    where = f"the workspace must be in {pick.rented.region}: a job names no region"
    return Exported(
        target="azureml",
        files={_AZURE_FILE: yaml_text(found, pick)},
        run=f"az ml job create --file {_AZURE_FILE} --resource-group YOUR-GROUP "
        "--workspace-name YOUR-WORKSPACE",
        notes=(*exchangeable(pick)[1], where, ONE_TYPE),
    )


_VERTEX_FILE: Final = "custom-job.yaml"
_READ: Final = "import json, os; print(json.loads(os.environ['CLUSTER_SPEC'])['cluster']"
_VERTEX_MASTER: Final = f"$(python -c \"{_READ}['workerpool0'][0].split(':')[0])\")"


def vertex_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the job's specification, as ``gcloud ai custom-jobs create --config`` takes it.

    Vertex AI, read against google-cloud-aiplatform 2.7 (``CustomJobSpec``): a custom job, with a
    pool for the first machine and one for the rest. Vertex tells the containers of one another in
    ``CLUSTER_SPEC``.
    """
    job, pool = documents(
        "vertex", pick, launch, **values, machine=_vertex_machine(pick.rented),
        command=launch.shell(_VERTEX_MASTER, folder=values["folder"]), count=1,
        strategy="SPOT" if pick.is_spot else "STANDARD",
    )  # fmt: skip
    job["workerPoolSpecs"] = [pool, {**pool, "replicaCount": pick.nodes - 1}][: pick.nodes]
    place = pick.rented.region if is_in_one_region(pick.rented) else "us-central1"
    fee = "Vertex AI adds a management fee to the Compute Engine price of the answer"
    return Exported(
        target="vertex",
        files={_VERTEX_FILE: yaml_text(job, pick)},
        run=f"gcloud ai custom-jobs create --region={shlex.quote(place)} "
        f"--display-name={job_name(pick.run)} --config={_VERTEX_FILE}",
        notes=(*exchangeable(pick)[1], fee, ONE_TYPE),
    )


def _vertex_machine(one: Offer) -> dict[str, Any]:
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
