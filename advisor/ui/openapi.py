"""The OpenAPI document of a team's server, from its functions and the entries of a question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from advisor.ask import ENTRIES
from advisor.ui.controls import TEAM_NAMES

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["what", "hint", "exit_code"],
            "properties": {
                "what": {"type": "string", "description": "What is wrong."},
                "hint": {"type": "string", "description": "What to do."},
                "exit_code": {"type": "integer", "description": "That of the same command."},
            },
        }
    },
}
# Status -> what it means; each has a body of the schema Error.
_ERRORS: Final[Mapping[str, str]] = {
    "400": "The question is not valid, or the job cannot be read.",
    "408": "The request took too long to arrive.",
    "413": "The body is longer than 64 KiB.",
    "415": "The body is not JSON.",
    "429": "Too many questions are waiting; Retry-After says when to ask again.",
    "503": "The answer was lost, or takes too long; Retry-After says when to ask again.",
}
_GATE: Final[Mapping[str, Any]] = {
    "question": {"$ref": "#/components/schemas/Question"},
    "on": {"type": "string", "description": "Machine type to judge: aws:g5.xlarge."},
    "count": {"type": "integer", "minimum": 1, "description": "Number of machines, with on."},
    "skypilot": {"type": "string", "description": "Text of a SkyPilot task."},
    "script": {"type": "string", "description": "Text of a batch script with #SBATCH lines."},
    "partitions": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "What a machine of each Slurm partition is, with script.",
    },
    "strict": {"type": "boolean", "description": "Refuse what cannot be judged."},
}


def document(generator: Callable[[dict[str, Any]], Any], routes: Any) -> dict[str, Any]:
    """Return the OpenAPI document of the routes.

    ``generator``: Starlette's, which reads what stands after ``---`` in a function's docstring.
    """
    found: dict[str, Any] = generator(_base()).get_schema(routes)
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            one["responses"] = {str(status): reply for status, reply in one["responses"].items()}
            if path != "/healthz":
                one["responses"] |= {
                    status: {"$ref": f"#/components/responses/E{status}"} for status in _ERRORS
                }
            if method == "post":
                one.pop("parameters", None)
            else:
                one.pop("requestBody", None)
            if "parameters" in one:
                one["parameters"] = _parameters(("on", "count") if path == "/api/gate" else ())
    return found


def _base() -> dict[str, Any]:
    question = {
        "type": "object",
        "additionalProperties": False,
        "description": "Options of the command line; what is left out is left open.",
        "properties": {name: _schema(name) for name in TEAM_NAMES},
    }
    asked = {"type": "object", "properties": {"question": _GATE["question"]}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "advisor", "version": _version(),
                 "description": "What to rent for a training job. Every request only asks."},
        "components": {
            "schemas": {"Question": question, "Asked": asked, "Error": _ERROR,
                        "Gate": {"type": "object", "properties": dict(_GATE)}},
            "responses": {
                "Recommendation": _reply("The record of `advisor recommend --json`."),
                "Verdict": _reply("The record of `advisor gate --json`, and `passes`."),
                "Runs": _reply("An object with the names in `runs`."),
                **{f"E{status}": _reply(means, {"$ref": "#/components/schemas/Error"})
                   for status, means in _ERRORS.items()},
            },
        },
    }  # fmt: skip


def _reply(means: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content = {"application/json": {"schema": dict(schema or {"type": "object"})}}
    return {"description": means, "content": content}


def _schema(name: str) -> dict[str, Any]:
    entry = ENTRIES[name]
    unit = entry.kind.metavar
    if not unit:
        return {"type": "boolean", "description": entry.help}
    form: dict[str, Any] = {"type": ["string", "number"], "description": entry.help}
    if "|" in unit and not unit[0].isdigit():
        form |= {"type": "string", "enum": unit.split("|")}
    return form


def _parameters(beside: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a question's names as parameters of an address; a switch is yes or no there."""
    found = []
    for name in (*beside, *TEAM_NAMES):
        schema = dict(_GATE[name] if name in beside else _schema(name))
        said = schema.pop("description")
        if schema["type"] == "boolean":
            schema = {"type": "string", "enum": ["yes", "no"]}
        found.append({"name": name, "in": "query", "description": said, "schema": schema})
    return found


def _version() -> str:
    try:
        return version("cloud-config-advisor")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0"
