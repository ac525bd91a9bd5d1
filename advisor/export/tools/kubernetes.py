"""Kubernetes: an indexed Job, a pod a machine, on nodes of the pick's type or its alternatives.

Read against Kubernetes 1.37: nodes are told apart by the well-known labels of their cloud; pods
of an indexed Job are ``NAME-0``, ``NAME-1``, ... under a headless service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick, Rented
from advisor.export.target import Blank, Exported, Target
from advisor.export.texts import (
    attached,
    exchangeable,
    is_in_one_region,
    job_name,
    plugin,
    yaml_text,
)
from advisor.providers import provider_of

IMAGE: Final = Blank(example="pytorch/pytorch:latest", help="image that holds your script")
FOLDER: Final = Blank(example="/workspace", help="folder of your script in the image")
_FILE: Final = "job.yaml"
_TYPE: Final = "node.kubernetes.io/instance-type"
_REGION: Final = "topology.kubernetes.io/region"
# Interruptions of a spot job that are expected to be survived at most.
_RESTARTS: Final = 20


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the Job, and the service by which its pods find the first."""
    name = job_name(pick.run)
    same, others = exchangeable(pick)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        **({"subdomain": name} if pick.nodes > 1 else {}),
        "affinity": affinity(pick, same, name),
        "tolerations": list(tolerations(pick)),
        "containers": [container(pick, launch, values, f"{name}-0.{name}")],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": pick.nodes,
            "parallelism": pick.nodes,
            "backoffLimit": _RESTARTS if pick.is_spot else 0,
            **({"podFailurePolicy": _restarted()} if pick.is_spot else {}),
            "activeDeadlineSeconds": pick.longest_s,
            "template": {
                "metadata": {"labels": {"training": name}},
                "spec": {key: value for key, value in pod.items() if value},
            },
        },
    }
    documents = [_service(name), job] if pick.nodes > 1 else [job]
    return Exported(
        target="kubernetes",
        files={_FILE: yaml_text(documents, pick)},
        run=f"kubectl apply -f {_FILE}",
        notes=(*others, *cannot_say(pick)),
    )


def container(
    pick: Pick, launch: Launch, values: Mapping[str, str], master: str
) -> dict[str, Any]:
    """Return the container of a machine, which takes its accelerators."""
    return {
        "name": "trainer",
        "image": values["image"],
        "workingDir": values["folder"],
        "command": ["bash", "-c"],
        "args": [launch.shell(master)],
        "resources": {"limits": limits(pick.rented)},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def limits(one: Rented) -> dict[str, int]:
    """Return the accelerators of a machine as its device plugin counts them."""
    name = plugin(one)
    return {name: max(int(one.accelerators), 1)} if name else {}


def affinity(pick: Pick, same: list[Rented], name: str) -> dict[str, Any]:
    """Return where pods may run: on the pick's nodes if there are, else on its alternatives'."""
    terms = [{"matchExpressions": list(_labels(one))} for one in (pick.rented, *same)]
    found: dict[str, Any] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "preference": terms[0]}
            ],
        }
    }
    if pick.nodes > 1:
        apart = {"labelSelector": {"matchLabels": {"training": name}}}
        found["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {**apart, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    return found


def _labels(one: Rented) -> Iterator[dict[str, Any]]:
    yield {"key": _TYPE, "operator": "In", "values": [attached(one)[0]]}
    if is_in_one_region(one):
        yield {"key": _REGION, "operator": "In", "values": [one.region]}
    key, _, value = provider_of(one.provider).spot_label.partition("=")
    if key:
        yield {"key": key, "operator": "In" if one.is_spot else "NotIn", "values": [value]}


def tolerations(pick: Pick) -> Iterator[dict[str, Any]]:
    """Yield what spot nodes and those with accelerators are tainted with."""
    for name in limits(pick.rented):
        yield {"key": name, "operator": "Exists", "effect": "NoSchedule"}
    key, _, value = provider_of(pick.rented.provider).spot_label.partition("=")
    if pick.is_spot and key:
        yield {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def cannot_say(pick: Pick) -> Iterator[str]:
    """Yield what a manifest leaves to the cluster."""
    yield "the cluster must have such nodes, or an autoscaler that adds them; prices are not asked"
    if pick.is_spot and not provider_of(pick.rented.provider).spot_label:
        yield f"spot nodes of {pick.rented.provider} have no label of their own: name it yourself"


def _restarted() -> dict[str, Any]:
    """Return that a pod whose node was taken away counts as no failure."""
    taken = {"type": "DisruptionTarget", "status": "True"}
    return {"rules": [{"action": "Ignore", "onPodConditions": [taken]}]}


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"training": name},
        },
    }


TARGET: Final = Target(name="kubernetes", write=write, blanks={"image": IMAGE, "folder": FOLDER})
