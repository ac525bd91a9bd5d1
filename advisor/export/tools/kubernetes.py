"""Kubernetes: an indexed Job, and a TrainJob of Kubeflow Trainer, on nodes of the pick's type.

Read against Kubernetes 1.37: nodes are told apart by the well-known labels of their cloud; pods
of an indexed Job are ``NAME-0``, ``NAME-1``, ... under a headless service. Read against Kubeflow
Trainer 2.3: its runtime ``torch-distributed`` says the first machine's address in
``PET_MASTER_ADDR``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.answer import Offer
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported
from advisor.export.templates import documents
from advisor.export.texts import (
    attached,
    exchangeable,
    is_in_one_region,
    job_name,
    plugin,
    yaml_text,
)
from advisor.providers import provider_of

_TYPE: Final = "node.kubernetes.io/instance-type"
_REGION: Final = "topology.kubernetes.io/region"
# Interruptions of a spot job that are expected to be survived at most.
_RESTARTS: Final = 20


def _written(
    tool: str, file: str, pick: Pick, launch: Launch, values: Mapping[str, str], command: str
) -> Exported:
    """Return the manifest: pods run on the pick's nodes if there are, else on alternatives'."""
    same, others = exchangeable(pick)
    terms = [{"matchExpressions": list(_labels(one))} for one in (pick.rented, *same)]
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": terms[0]}
        ],
    }
    found = documents(
        tool, pick, launch, **values, command=command, affinity=affinity,
        limits=limits(pick.rented), tolerations=list(tolerations(pick)),
        retries=_RESTARTS if pick.is_spot else 0,
    )  # fmt: skip
    # One machine needs no service to find the others by.
    found = found if pick.nodes > 1 else found[-1:]
    return Exported(
        target=tool, files={file: yaml_text(found, pick)}, run=f"kubectl apply -f {file}",
        notes=(*others, *_cannot_say(pick)),
    )  # fmt: skip


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the Job, and the service by which its pods find the first."""
    name = job_name(pick.run)
    command = launch.shell(f"{name}-0.{name}")
    return _written("kubernetes", "job.yaml", pick, launch, values, command)


def kubeflow_write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the TrainJob."""
    command = launch.shell("$PET_MASTER_ADDR", folder=values["folder"])
    return _written("kubeflow", "trainjob.yaml", pick, launch, values, command)


def limits(one: Offer) -> dict[str, int]:
    """Return the accelerators of a machine as its device plugin counts them."""
    name = plugin(one)
    return {name: max(int(one.accelerators), 1)} if name else {}


def _labels(one: Offer) -> Iterator[dict[str, Any]]:
    yield {"key": _TYPE, "operator": "In", "values": [attached(one)[0]]}
    if is_in_one_region(one):
        yield {"key": _REGION, "operator": "In", "values": [one.region]}
    key, _, value = provider_of(one.provider).spot_label.partition("=")
    if key:
        how = "In" if one.pricing == "spot" else "NotIn"
        yield {"key": key, "operator": how, "values": [value]}


def tolerations(pick: Pick) -> Iterator[dict[str, Any]]:
    """Yield what spot nodes and those with accelerators are tainted with."""
    for name in limits(pick.rented):
        yield {"key": name, "operator": "Exists", "effect": "NoSchedule"}
    key, _, value = provider_of(pick.rented.provider).spot_label.partition("=")
    if pick.is_spot and key:
        yield {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def _cannot_say(pick: Pick) -> Iterator[str]:
    """Yield what a manifest leaves to the cluster."""
    yield "the cluster must have such nodes, or an autoscaler that adds them; prices are not asked"
    if pick.is_spot and not provider_of(pick.rented.provider).spot_label:
        yield f"spot nodes of {pick.rented.provider} have no label of their own: name it yourself"
