"""Vertex AI: the specification of a custom job, a pool for the first machine and one for the rest.

Read against google-cloud-aiplatform 2.7 (``CustomJobSpec``). Vertex tells the containers of one
another in ``CLUSTER_SPEC``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick, Rented
from advisor.export.target import Blank, Exported, NotExportableError, Target
from advisor.export.texts import attached, exchangeable, is_in_one_region, job_name, yaml_text

_FILE: Final = "custom-job.yaml"
_READ: Final = "import json, os; print(json.loads(os.environ['CLUSTER_SPEC'])['cluster']"
_MASTER: Final = f"$(python -c \"{_READ}['workerpool0'][0].split(':')[0])\")"
# The catalogue's accelerators by Vertex's names of types.
CARDS: Final[Mapping[str, str]] = {
    "A100-SXM4-40GB": "NVIDIA_TESLA_A100",
    "A100-SXM4-80GB": "NVIDIA_A100_80GB",
    "B200-SXM-180GB": "NVIDIA_B200",
    "GB200-186GB": "NVIDIA_GB200",
    "H100-SXM5-80GB": "NVIDIA_H100_80GB",
    "H200-SXM-141GB": "NVIDIA_H200_141GB",
    "L4": "NVIDIA_L4",
    "P100-PCIe-16GB": "NVIDIA_TESLA_P100",
    "P4": "NVIDIA_TESLA_P4",
    "RTX-PRO-6000-Blackwell-SE": "NVIDIA_RTX_PRO_6000",
    "T4": "NVIDIA_TESLA_T4",
    "V100-SXM2-16GB": "NVIDIA_TESLA_V100",
}


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the job's specification, as ``gcloud ai custom-jobs create --config`` takes it."""
    pool = {
        "machineSpec": _machine(pick.rented),
        "replicaCount": 1,
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200},
        "containerSpec": {
            "imageUri": values["image"],
            "command": ["bash", "-c"],
            "args": [f"cd {shlex.quote(values['folder'])}\n{launch.shell(_MASTER)}"],
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
        files={_FILE: yaml_text(spec, pick)},
        run=f"gcloud ai custom-jobs create --region={shlex.quote(place)} "
        f"--display-name={job_name(pick.run)} --config={_FILE}",
        notes=(*others, *_notes()),
    )


def _machine(one: Rented) -> dict[str, Any]:
    """Return the machine with its accelerators."""
    machine, _, attached_count = attached(one)
    if one.accelerator is None:
        return {"machineType": machine}
    name = CARDS.get(one.accelerator)
    if machine.startswith("a3-megagpu"):
        name = "NVIDIA_H100_MEGA_80GB"
    if name is None:
        raise NotExportableError(
            f"Vertex AI has no accelerator type for {one.accelerator}",
            hint="export another row, or use --to skypilot",
        )
    count = attached_count or max(int(one.accelerators), 1)
    return {"machineType": machine, "acceleratorType": name, "acceleratorCount": count}


def _notes() -> Iterator[str]:
    yield "Vertex AI adds a management fee to the Compute Engine price of the answer"
    yield "a job names one machine type: alternatives are comments only"


TARGET: Final = Target(
    name="vertex",
    write=write,
    blanks={
        "image": Blank(
            example="us-docker.pkg.dev/YOUR-PROJECT/training/image:latest",
            help="image that holds your script",
        ),
        "folder": Blank(example="/workspace", help="folder of your script in the image"),
    },
    providers=frozenset({"gcp"}),
)
