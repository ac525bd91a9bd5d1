"""The gate's verdict as text, from its JSON record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.words import cost_text, time_text

_KINDS = {
    "same_machines": "the same machines",
    "recommended": "recommended",
    "nearest": "nothing keeps the limits; nearest",
}


def text(record: Mapping[str, Any]) -> str:
    """Return the verdict, a line a machine, what is against it, and what would do.

    Parameters
    ----------
    record : mapping
        Of ``advisor gate --json``.
    """
    lines = []
    for one in record["submission"]:
        lines.append(f"{_word(one)}: {one['asked']}{_numbers(one)}")
        lines += [f"  {reason['limit']}: {reason['text']}" for reason in one["reasons"]]
        if one["note"]:
            lines.append(f"  note: {one['note']}")
    if record["note"]:
        lines.append(f"note: {record['note']}")
    for one in record["remedies"]:
        if one["label"]:
            lines.append(f"would do ({_KINDS[one['kind']]}): {one['label']}{_numbers(one)}")
    return "\n".join(lines).replace("would do (nothing", "(nothing")


def _word(one: Mapping[str, Any]) -> str:
    if not one["judged"]:
        return "not judged"
    return "passes" if one["passes"] else "refused"


def _numbers(one: Mapping[str, Any]) -> str:
    said = [] if one["training_time_h"] is None else [time_text(one)]
    said += [] if one["cost_usd"] is None else [cost_text(one)]
    return f": {', '.join(said)}" if said else ""
