"""Azure Machine Learning: a command job on serverless compute of the pick's type.

Read against azure-ai-ml 1.35 (``load_job``). The job starts one process a machine, which starts
the layout's ranks itself; ``MASTER_ADDR`` is set by the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Blank, Exported, Target
from advisor.export.texts import exchangeable, job_name, yaml_text

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
    yield "a job names one machine type: alternatives are comments only"


TARGET: Final = Target(
    name="azureml",
    write=write,
    blanks={
        "image": Blank(
            example="mcr.microsoft.com/azureml/openmpi5.0-cuda12.6-ubuntu24.04:latest",
            help="container image",
        )
    },
    providers=frozenset({"azure"}),
)
