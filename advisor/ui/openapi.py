"""The OpenAPI document of a team's server, from its functions and the entries of a question."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from advisor.ask import ENTRIES
from advisor.report import asset
from advisor.ui.controls import TEAM_NAMES


def document(generator: Callable[[dict[str, Any]], Any], routes: Any) -> dict[str, Any]:
    """Return the OpenAPI document of the routes.

    ``generator``: Starlette's, which reads what stands after ``---`` in a function's docstring.
    """
    import yaml

    base = yaml.safe_load(asset("openapi.yaml", "advisor.ui"))
    base["info"]["version"] = _version()
    parts = base["components"]
    parts["schemas"]["Question"]["properties"] = {name: _schema(name) for name in TEAM_NAMES}
    errors = [name for name in parts["responses"] if name[1:].isdigit()]
    found: dict[str, Any] = generator(base).get_schema(routes)
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            one["responses"] = {str(status): reply for status, reply in one["responses"].items()}
            if path != "/healthz":
                one["responses"] |= {
                    name[1:]: {"$ref": f"#/components/responses/{name}"} for name in errors
                }
            one.pop("parameters" if method == "post" else "requestBody", None)
            if "parameters" in one:
                gate = parts["schemas"]["Gate"]["properties"]
                beside = ("on", "count") if path == "/api/gate" else ()
                schemas = {name: gate[name] for name in beside}
                schemas |= parts["schemas"]["Question"]["properties"]
                one["parameters"] = [_parameter(*pair) for pair in schemas.items()]
    return found


def _schema(name: str) -> dict[str, Any]:
    entry = ENTRIES[name]
    unit = entry.kind.metavar
    if not unit:
        return {"type": "boolean", "description": entry.help}
    form: dict[str, Any] = {"type": ["string", "number"], "description": entry.help}
    if unit.startswith("["):  # may stand without a value: a switch too
        form["type"] = ["string", "boolean", "array"]
    if "|" in unit and not unit[0].isdigit():
        form |= {"type": "string", "enum": unit.split("|")}
    return form


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a name as parameter of an address; a switch is yes or no there."""
    form = {key: value for key, value in schema.items() if key != "description"}
    if form["type"] == "boolean":
        form = {"type": "string", "enum": ["yes", "no"]}
    return {"name": name, "in": "query", "description": schema["description"], "schema": form}


def _version() -> str:
    try:
        return version("cloud-config-advisor")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0"
