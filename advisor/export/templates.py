"""Documents of tools from the templates in ``assets``: one YAML file a tool, as the tool reads it.

``"{name}"`` stands for a value of any kind, a longer text holds values as texts; what stands under
``KEY if NAME`` is left out where the value is false or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.texts import job_name


@cache
def template(name: str) -> list[Any]:
    """Return the documents of a file in ``assets``."""
    import yaml

    place = resources.files("advisor.export") / "assets" / f"{name}.yaml"
    return list(yaml.safe_load_all(place.read_text(encoding="utf-8")))


def documents(tool: str, pick: Pick, launch: Launch, **more: Any) -> list[Any]:
    """Return a tool's documents, filled with what all tools are told and ``more``."""
    values = {
        "name": job_name(pick.run), "nodes": pick.nodes, "per_node": launch.per_node,
        "is_several": pick.nodes > 1, "is_spot": pick.is_spot, "longest_s": pick.longest_s,
        "workdir": launch.folder or ".", "install": launch.install,
    }  # fmt: skip
    return [filled(one, values | more) for one in template(tool)]


def filled(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with its values.

    >>> filled({"a": "{n}", "b if n": ["{n} x"], "c if m": 1}, {"n": 2, "m": ""})
    {'a': 2, 'b': ['2 x']}
    """
    if isinstance(node, dict):
        parts = ((*key.partition(" if "), one) for key, one in node.items())
        return {
            key: filled(one, values) for key, _, when, one in parts if not when or values[when]
        }
    if isinstance(node, list):
        return [filled(one, values) for one in node]
    if not isinstance(node, str):
        return node
    whole = re.fullmatch(r"\{(\w+)\}", node)
    return values[whole[1]] if whole else node.format_map(values)
