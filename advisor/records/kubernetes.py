"""Jobs of a Kubernetes cluster from what ``kubectl`` says of its jobs or pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.records.job_rows import EndedJob, LeftOutError, checked, date_s
from advisor.records.traces import TraceError

DEVICE_RESOURCE: Final = re.compile(r".+/(gpu|mig-.+|tpu|neuron|habana.*)$")


def kubernetes_rows(path: Path, text: str) -> Iterator[EndedJob | str]:
    """Yield the job in each object, or why there is none; ``path`` is named in errors.

    Raises TraceError if it is not a list of jobs or pods.
    """
    try:
        document = bounded.parse_json(text)
    except ValueError as error:
        raise TraceError(
            f"{path.name} is not JSON: {error}", hint="kubectl get jobs -A -o json (or pods)"
        ) from None
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise TraceError(
            f"{path.name} is not a list of Kubernetes objects",
            hint="kubectl get jobs -A -o json (or pods)",
        )
    for number, item in enumerate(items):
        where = f"{path.name}, item {number}"
        try:
            yield _item(where, item)
        except LeftOutError as reason:
            yield str(reason)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TraceError(
                f"{where}: no Kubernetes job or pod ({error!r})",
                hint="kubectl get jobs -A -o json (or pods)",
            ) from None


def _item(where: str, item: Mapping[str, Any]) -> EndedJob | str:
    kind, status, spec = item["kind"], item.get("status", {}), item["spec"]
    submit = date_s(where, item["metadata"]["creationTimestamp"])
    if kind == "Job":
        copies = int(spec.get("parallelism", 1))
        devices = copies * _container_devices(spec["template"]["spec"])
        # A job without a completion time failed or runs on; its last condition says when.
        ended = status.get("completionTime") or next(
            (
                c["lastTransitionTime"]
                for c in status.get("conditions", ())
                if c["type"] == "Failed"
            ),
            "",
        )
        start = date_s(where, status.get("startTime", ""))
    elif kind == "Pod":
        devices = _container_devices(spec)
        finished = [
            c["state"]["terminated"]["finishedAt"]
            for c in status.get("containerStatuses", ())
            if "terminated" in c.get("state", {})
        ]
        # A pod's startTime is when a node took it: what it waited before is the queue.
        start, ended = date_s(where, status.get("startTime", "")), max(finished, default="")
    else:
        return f"of kind {kind}"
    return checked(where, submit, start, date_s(where, ended) - start, devices)


def _container_devices(spec: Mapping[str, Any]) -> int:
    total = 0
    for container in spec["containers"]:
        resources = container.get("resources", {})
        asked = resources.get("limits") or resources.get("requests") or {}
        total += sum(int(n) for name, n in asked.items() if DEVICE_RESOURCE.fullmatch(name))
    return total
