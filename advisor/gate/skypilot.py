"""A SkyPilot admin policy: ``admin_policy: advisor.gate.skypilot.AdvisorPolicy``.

SkyPilot loads this file in its own environment, where the advisor need not be installed whole:
the policy hands the task to the command in ``ADVISOR_COMMAND`` (``advisor`` by default) and does
what it says. Of several resources those that are refused are taken away; a task of which none is
left is rejected with what would pass. A task that cannot be judged goes through with a warning,
unless it has a budget; ``advisor gate --strict`` (``ADVISOR_GATE_STRICT=1``) rejects it, too.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035 # SkyPilot runs on older Pythons

import sky
import yaml
from sky import exceptions

_LOG = logging.getLogger(__name__)
# SkyPilot waits for its policy: a ranking of the whole catalogue takes seconds.
_TIMEOUT_S = 300.0
_PASSES, _REFUSED = 0, 3


class AdvisorPolicy(sky.AdminPolicy):  # type: ignore[misc] # SkyPilot is not installed here
    """Refuses what cannot hold the job, or breaks its budget or deadline."""

    @classmethod
    def validate_and_mutate(cls, user_request: Any) -> Any:
        """Return the request with the resources that pass.

        Raises UserRequestRejectedByPolicy if none does: SkyPilot shows the message to the user.
        """
        task = user_request.task
        if str(user_request.request_name).endswith("controller"):  # SkyPilot's own machine
            return sky.MutatedUserRequest(task, user_request.skypilot_config)
        options = list(task.resources)
        record, why = _verdict(_as_yaml(task, options))
        if record is None:
            if "ADVISOR_BUDGET" in {*task.envs, *os.environ}:
                raise exceptions.UserRequestRejectedByPolicy(
                    f"advisor gate could not judge the task, which has a budget: {why}"
                )
            _LOG.warning("advisor gate did not judge the task: %s", why)
        else:
            judged = record["submission"]
            if not record["passes"]:
                raise exceptions.UserRequestRejectedByPolicy(_refusal(record))
            if len(judged) == len(options) and not all(one["passes"] for one in judged):
                kept = [one for one, said in zip(options, judged) if said["passes"]]  # noqa: B905
                task.set_resources(type(task.resources)(kept))
        return sky.MutatedUserRequest(task, user_request.skypilot_config)


def _as_yaml(task: Any, options: List[Any]) -> str:  # noqa: UP006
    """Return what is judged of a task: its machines, one by one, and the job that it names."""
    content = {
        "num_nodes": task.num_nodes,
        "envs": {k: v for k, v in task.envs.items() if k.startswith("ADVISOR_")},
        "resources": {"any_of": [one.to_yaml_config() for one in options]},
    }
    return str(yaml.safe_dump(content))


def _verdict(task: str) -> Tuple[Optional[Dict[str, Any]], str]:  # noqa: UP006, UP045
    """Return the record of ``advisor gate``; None, and why, where it could not answer."""
    command = shlex.split(os.environ.get("ADVISOR_COMMAND", "advisor"))
    try:
        ended = subprocess.run(
            [*command, "gate", "--skypilot", "-", "--json"],
            input=task, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if ended.returncode in (_PASSES, _REFUSED):
            record: Dict[str, Any] = json.loads(ended.stdout)  # noqa: UP006
            return record, ""
        why = ended.stderr.strip()[-500:]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = str(error)
    return None, why


def _refusal(record: Dict[str, Any]) -> str:  # noqa: UP006
    """Return why a task is refused and what would do, in words."""
    lines = []
    for one in record["submission"]:
        reasons = "; ".join(reason["text"] for reason in one["reasons"])
        lines.append(f"{one['asked']}: {reasons}")
    for one in record["remedies"]:
        time_h, cost = one["training_time_h"], one["cost_usd"]
        if not one["label"]:
            continue
        what = "Nearest" if one["kind"] == "nearest" else "Would do"
        numbers = f"{time_h['value']:.3g} h" if time_h else ""
        numbers += f", {cost['value']:.3g} USD" if cost else ""
        lines.append(f"{what}: {one['label']} ({numbers})")
    return "\n".join(lines)
