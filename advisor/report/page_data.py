"""All that the page shows, as plain JSON: the records, and their numbers in words.

Nothing is estimated here. ``data["answer"]`` is the record of ``advisor recommend --json``,
``data["advice"]`` that of ``advisor advise --json``; the words beside them are the terminal's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from advisor import words
from advisor.advice.record import AdviceList
from advisor.collectors.recording import Recording
from advisor.domain import Recommendation
from advisor.quantities import digits, hours_text, usd_text
from advisor.report import model_cards
from advisor.report.advice import saving_words
from advisor.report.explained import REJECTED, part_words, waits_words
from advisor.report.layout_drawing import drawing
from advisor.report.own_cluster import own_words
from advisor.report.run_series import run_record
from advisor.report.terminal import job_line

Record = Mapping[str, Any]

PAGE_VERSION: Final = 1


def page_data(
    answer: Recommendation,
    *,
    recording: Recording | None = None,
    advice: AdviceList | None = None,
    own_cluster: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    made: str = "",
) -> dict[str, Any]:
    """Return what the page shows.

    Parameters
    ----------
    recording : Recording, optional
        Of the job, where it was recorded.
    own_cluster : mapping, optional
        Of the record of ``advisor recommend --json`` with the user's own cluster.
    asked : mapping, optional
        The question: options and their values, as a project file has them.
    made : str
        When: ISO 8601.

    Returns
    -------
    dict
        ``page_version``, ``made``, ``asked``; ``answer`` and ``advice`` (null where it was not
        asked for): their records; ``run``: see ``run_series.run_record``, null for a job that was
        not recorded; ``words``: ``job``, ``picks``, ``rejected``, ``changes``, ``advice``,
        ``own_cluster``, and ``candidates`` by key: the rank, ``"here"`` for this machine;
        ``models``: see ``model_cards.cards``. Numbers that are not finite are null.
    """
    record = answer.to_record()
    advised = None if advice is None else advice.to_record()
    rows = {str(one["rank"]): one for one in record["front"] or record["nearest"]}
    if record["here"] is not None:
        rows["here"] = record["here"]
    if own_cluster is not None:
        record["own_cluster"] = dict(own_cluster)
    data = {
        "page_version": PAGE_VERSION,
        "made": made,
        "asked": dict(asked or {}),
        "answer": record,
        "advice": advised,
        "run": None if recording is None else run_record(recording),
        "words": {
            "job": job_line(record, with_source=True),
            "picks": dict(words.PICKS),
            "rejected": {name: REJECTED.get(name, name) for name in record["rejected"]},
            "changes": [_change_words(one) for one in record["changes"]],
            "advice": [_advice_words(one) for one in advised["advice"]] if advised else [],
            "own_cluster": None if own_cluster is None else own_words(own_cluster),
            "candidates": {
                key: candidate_words(
                    one, words.picked_as(record, "here" if key == "here" else one["rank"])
                )
                for key, one in rows.items()
            },
        },
        "models": model_cards.cards(),
    }
    found: dict[str, Any] = _finite(data)
    return found


def candidate_words(one: Record, picked_as: str = "") -> dict[str, Any]:
    """Return a candidate's numbers as the terminal says them, and how its layout is drawn."""
    parts = one["configuration"]
    is_here = all(part["provider"] == "here" for part in parts)
    return {
        "picked_as": picked_as,
        "machines": "this machine" if is_here else words.machines(parts),
        "inside": " + ".join(
            words.contents(part) + (" each" if part["count"] > 1 else "") for part in parts
        ),
        "where": words.where(parts, one["completion"]),
        "time": list(words.hours(one["training_time_h"])),
        "cost": ["free", ""] if one["cost_usd"]["high"] == 0 else list(words.usd(one["cost_usd"])),
        "step": list(words.seconds(one["step_time_s"])),
        "throughput": f"{digits(one['throughput_samples_per_s']['value'])} samples/s",
        "memory": f"{digits(one['memory_gib'])} GiB",
        "limited_by": waits_words(one["bottleneck"]),
        "waits": {name: waits_words(name) for name in one["shares"]},
        "parts": {
            name: {
                "label": part_words(name),
                "time": hours_text(part["time_h"]) if part["time_h"] > 0 else "",
                "cost": usd_text(part["cost_usd"]) if part["cost_usd"] else "",
            }
            for name, part in one["breakdown"].items()
        },
        "alternatives": [
            {
                "machines": words.machines(other["configuration"]),
                "where": words.where(other["configuration"]),
                "time": hours_text(other["training_time_h"]),
                "cost": usd_text(other["cost_usd"]),
            }
            for other in one["alternatives"]
        ],
        "layout": drawing(one),
    }


def _change_words(one: Record) -> dict[str, Any]:
    return {
        "do": one["do"],
        "time": list(words.hours(one["training_time_h"])),
        "cost": list(words.usd(one["cost_usd"])),
        "pick": None if one["pick"] is None else words.answer_line(one["pick"]),
    }


def _advice_words(one: Record) -> dict[str, str]:
    return {
        "time": saving_words(one["time_saved_h"], is_time=True),
        "cost": saving_words(one["cost_saved_usd"], is_time=False),
    }


def _finite(value: Any) -> Any:
    """Return a record in which numbers that JSON has no word for are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
