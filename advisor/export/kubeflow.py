"""Kubeflow Trainer: a TrainJob on the runtime ``torch-distributed``, pinned to the pick's nodes.

Read against Kubeflow Trainer 2.3: the runtime says the first machine's address in
``PET_MASTER_ADDR``; what it has no field for is patched into its pods.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from advisor.export.kubernetes import FOLDER, IMAGE, affinity, cannot_say, limits, tolerations
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, Target
from advisor.export.texts import exchangeable, job_name, yaml_text

_FILE: Final = "trainjob.yaml"
_MANAGER: Final = "advisor.local/export"


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the TrainJob."""
    name = job_name(pick.run)
    same, others = exchangeable(pick)
    trainer: dict[str, Any] = {
        "image": values["image"],
        "command": ["bash", "-c"],
        "args": [f"cd {shlex.quote(values['folder'])}\n{launch.shell('$PET_MASTER_ADDR')}"],
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
        files={_FILE: yaml_text(job, pick)},
        run=f"kubectl apply -f {_FILE}",
        notes=(*others, *cannot_say(pick)),
    )


def _patch(pod: dict[str, Any]) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": pod}}}
    jobs = [{"name": "node", "template": template}]
    runtime = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"manager": _MANAGER, "trainingRuntimeSpec": runtime}


TARGET: Final = Target(name="kubeflow", write=write, blanks={"image": IMAGE, "folder": FOLDER})
