"""The fitted models that answers rest on: which, of which day, fitted how."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import atomic, bounded

# Folder of ``trained_models`` -> what it answers.
MODELS: Final = {
    "device_model": "how long operators take on a device, and how wide their intervals are",
    "layout_model": "how long a step of a transformer's layout takes",
    "scaling": "how long devices take to exchange gradients",
    "memory": "how much memory of a device a job needs",
    "campaign": "what a whole run takes beside its steps",
    "peers": "what other people's runs of such jobs took",
    "runs": "the correction of a step by recorded runs",
    "runs_cost": "the cost of the steps straight from recorded runs",
}


def cards(root: Path | None = None) -> list[dict[str, Any]]:
    """Return name, what it answers, day, command and card of every model that is there.

    A model of the user's own (``advisor train``) stands in for the one that ships.
    """
    folders = [root] if root is not None else [data.own_models(), data.root("trained_models")]
    found = []
    for name, answers in MODELS.items():
        for folder in folders:
            place = atomic.current_folder(folder / name)
            if (place / "metrics.json").is_file():
                found.append(_card(place, name, answers, is_own=folder == data.own_models()))
                break
    return found


def _card(place: Path, name: str, answers: str, *, is_own: bool) -> dict[str, Any]:
    metrics = bounded.read_json(place / "metrics.json")
    card = place / "card.md"
    return {
        "name": name,
        "answers": answers,
        "day": metrics.get("day"),
        "command": metrics.get("command"),
        "is_own": is_own,
        "card": bounded.read_text(card) if card.is_file() else "",
    }
