"""The page of ``advisor report`` and ``advisor ui``: one HTML file that loads nothing.

It holds the data as JSON, our styles and our script, which draws all of it in the browser, charts
as SVG; texts are set as texts and never as HTML. The content security policy admits the script by
its hash and no request at all.

For ``advisor ui``: ``page(data, live=..., panel=..., scripts=..., styles=...)``.

- ``live``: any JSON; the script finds it as ``advisorReport.live`` (null in a report). Requests to
  the page's own origin are then admitted.
- ``panel``: trusted HTML of controls, put into ``<aside id="panel">`` before
  ``<main id="report">``.
- ``scripts``, ``styles``: texts that follow ours.

In the browser, ``window.advisorReport`` has

- ``data``: what is shown now; ``live``;
- ``draw(data)``: show another answer in place of it (same form: ``page_data``);
- ``complete(data)``: add what would change it to the answer that is shown;
- ``select(key)``: show a candidate: ``"1"``, ``"here"``; ``selected``: its key;
- ``element(tag, attributes, ...children)``: makes a node; texts stay texts;
- ``candidateCard(key)``: a node with a candidate's machines, time and cost.

and ``document`` gets the events ``advisor:drawn`` and ``advisor:selected`` (``detail``: the key).
``<html data-ready="true">`` is set once everything, charts included, has been drawn.

Nothing is estimated here. ``data["answer"]`` is the record of ``advisor recommend --json``,
``data["advice"]`` that of ``advisor advise --json``; the words beside them are the terminal's.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.advice import AdviceList
from advisor.answer import Recommendation, from_record, to_record, told
from advisor.collectors import atomic, bounded
from advisor.collectors.derive import summary_lines
from advisor.collectors.format import Recording
from advisor.planners.core import BACKWARDS, Layout
from advisor.planners.layouts import bubble_fraction, timeline
from advisor.quantities import (
    digits,
    hours_interval,
    hours_text,
    seconds_interval,
    usd_interval,
    usd_text,
)
from advisor.report.simulation import own_words
from advisor.show import steps, stylesheet, thinned_readings
from advisor.words import (
    PICKS,
    answer_line,
    contents_words,
    degrees,
    job_line,
    layout_words,
    machines_words,
    memory_words,
    part_words,
    picked_as_words,
    place_words,
    price_words,
    prices_words,
    rejected_words,
    saving_words,
    standing_words,
    target_of,
    waits_words,
)

# Written into every page, so that the verb knows its own.
GENERATOR: Final = "advisor report"
_SCRIPTS: Final = ("elements.js", "charts.js", "front.js", "candidate.js", "run.js", "page.js")


def answer_page(
    data: Mapping[str, Any], *, live: Any = None, panel: str = "", scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return the page as HTML; see the module for what the parts are."""
    script = _script("\n".join([*(asset(name) for name in _SCRIPTS), *scripts]))
    title = f"{data['answer']['run']}: what to rent"
    filled = {
        "csp": _policy(script, is_live=live is not None),
        "title": escape(title),
        "generator": GENERATOR,
        "css": "\n".join([stylesheet(), asset("page.css"), *styles]),
        "summary": "\n".join(f"<p>{escape(line)}</p>" for line in data["answer"]["summary"]),
        "panel": f'<aside id="panel" aria-label="Question">{panel}</aside>' if panel else "",
        "data": embedded(data),
        "live": embedded(live),
        "script": script,
    }
    pieces = asset("page.html").split("%%")
    # Odd pieces are names: what is filled in is never looked at again.
    return "".join(filled[one] if i % 2 else one for i, one in enumerate(pieces))


def embedded(value: Any) -> str:
    r"""Return JSON that stays inside a script element, whatever texts it holds.

    Examples
    --------
    >>> print(embedded({"name": "</script>"}))
    {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def asset(name: str, room: str = "advisor.report") -> str:
    """Return one of the page's own files, or of another room's."""
    place = resources.files(room) / "assets" / name
    return place.read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Return a script of ours; a text in it must not end the element."""
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script that ends its own element")
    return text


def _policy(script: str, *, is_live: bool) -> str:
    """Return the content security policy: this script, and no request but to our own server."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = "'self'" if is_live else "'none'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{digest}'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            f"connect-src {own}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


MOST_INSTANCES: Final = 16
MOST_CELLS: Final = 16  # of one instance
_MOST_PASSES: Final = 1200


def drawing(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return devices and schedule of a candidate's layout.

    Returns
    -------
    dict
        ``words`` and ``degrees``; ``instances``: at most ``MOST_INSTANCES``, each with its
        ``label`` and ``cells`` of [stage, replica, context, tensor] in the order of ranks
        (tensor-parallel ranks beside one another, then context, replicas, stages, as Megatron-LM
        numbers them); ``instances_in_all``; ``schedule``: see ``schedule_of``, or null without
        stages.
    """
    layout = from_record(Layout, record["layout"])
    ranks = _ranks(layout)
    instances: list[dict[str, Any]] = []
    for part in record["configuration"]:
        per = max(round(part["accelerators_per_instance"]), 1)
        for _ in range(part["count"]):
            cells = list(itertools.islice(ranks, per))
            if len(instances) < MOST_INSTANCES:
                instances.append(
                    {
                        "label": part["instance_type"],
                        "device": part["accelerator"] or f"{part['vcpus']} vCPU",
                        "cells": cells[:MOST_CELLS],
                        "cells_in_all": len(cells),
                    }
                )
    return {
        "words": layout_words(record["layout"]),
        "degrees": degrees(record["layout"]),
        "devices": layout.devices,
        "instances": instances,
        "instances_in_all": sum(part["count"] for part in record["configuration"]),
        "schedule": schedule_of(layout),
    }


def _ranks(layout: Layout) -> itertools.product[tuple[int, ...]]:
    """Yield stage, replica, context and tensor rank of every device."""
    sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
    return itertools.product(*(range(size) for size in sizes))


def schedule_of(layout: Layout) -> dict[str, Any] | None:
    """Return the passes of a step over the stages; None without stages or with too many to draw.

    Returns
    -------
    dict
        ``passes``: [stage, begin, end, is backward, micro-batch, chunk], times in forward passes;
        ``micro_batches`` of a step and how many are ``drawn``; ``bubble_fraction``: what even
        stages wait of the step's ideal time, all micro-batches of it.
    """
    p, m, v = layout.pp, layout.accumulation_steps, layout.virtual_stages
    if p < 2 or layout.schedule in BACKWARDS:
        return None  # those have three kinds of passes
    drawn = min(m, max(2 * p, 8))
    if v > 1:
        drawn = max(drawn // p * p, p)
    if 2 * p * drawn * v > _MOST_PASSES:
        return None
    passes = timeline(p, drawn, schedule=layout.schedule, virtual_stages=v)
    return {
        "name": layout.schedule,
        "stages": p,
        "chunks": v,
        "micro_batches": m,
        "drawn": drawn,
        "bubble_fraction": float(bubble_fraction(p, m, v)),
        "passes": [
            [one.stage, one.begin, one.end, one.is_backward, one.micro_batch, one.chunk]
            for one in passes
        ],
    }


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


def cards() -> list[dict[str, Any]]:
    """Return name, what it answers, day, command and card of every model that is there.

    A model of the user's own (``advisor train``) stands in for the one that ships.
    """
    folders = (data.own_models(), data.root("trained_models"))
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


MOST_POINTS: Final = 400


def run_record(seen: Recording) -> dict[str, Any]:
    """Return a run as the page shows it.

    Returns
    -------
    dict
        ``lines`` in words; ``host``; ``readings`` with ``t_s`` and a list of its length for every
        quantity (``cpu_cores``, ``memory_bytes``, ...), null where it was not recorded; ``ranks``
        with their steps, each point the mean, least and most of ``steps_per_point``;
        ``step_time`` as it settled, or null.
    """
    return {
        "run": seen.run_id,
        "command": " ".join(seen.command),
        "started_at": seen.started_at,
        "duration_s": seen.duration_s,
        "startup_s": seen.startup_raw_s or seen.startup_s,
        "lines": summary_lines(seen),
        "host": told(seen.host, ("cpu_model", "cpu_limit", "memory_limit_bytes", "gpus")),
        "readings": thinned_readings(seen.readings, MOST_POINTS),
        "ranks": [
            {"rank": one.rank, **steps(one.step_s, MOST_POINTS)}
            for one in seen.ranks
            if one.step_s
        ],
        "step_time": to_record(seen.step_time),
    }


Record = Mapping[str, Any]

PAGE_VERSION: Final = 1


def page_data(
    answer: Recommendation, *, recording: Recording | None = None,
    advice: AdviceList | None = None, own_cluster: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None, made: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return what the page shows.

    ``recording``: of the job, where it was recorded; ``own_cluster``: of the record of ``advisor
    recommend --json`` with the user's own cluster; ``asked``: the question: options and their
    values, as a project file has them; ``made``: when: ISO 8601.

    Returns
    -------
    dict
        ``page_version``, ``made``, ``asked``; ``answer`` and ``advice`` (null where it was not
        asked for): their records; ``run``: see ``run_record``, null for a job that was
        not recorded; ``words``: ``job``, ``prices``, ``picks``, ``rejected``, ``changes``,
        ``advice``, ``own_cluster``, and ``candidates`` by key: the rank, ``"here"`` for this
        machine; ``models``: see ``model_cards.cards``. Numbers that are not finite are null.
    """
    record = answer.to_record()
    advised = None if advice is None else _without_source(advice.to_record())
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
            "prices": prices_words(record["front"] or record["nearest"]),
            "picks": dict(PICKS),
            "rejected": {name: rejected_words(name) for name in record["rejected"]},
            "changes": [_change_words(one) for one in record["changes"]],
            "advice": [_advice_words(one) for one in advised["advice"]] if advised else [],
            "own_cluster": None if own_cluster is None else own_words(own_cluster),
            "candidates": {
                key: candidate_words(
                    one, picked_as_words(record, "here" if key == "here" else one["rank"])
                )
                for key, one in rows.items()
            },
        },
        "models": cards(),
    }
    found: dict[str, Any] = _finite(data)
    return found


def candidate_words(one: Record, picked_as: str = "") -> dict[str, Any]:
    """Return a candidate's numbers as the terminal says them, and how its layout is drawn."""
    parts = one["configuration"]
    is_here = all(part["provider"] == "here" for part in parts)
    return {
        "picked_as": picked_as,
        "machines": "this machine" if is_here else machines_words(parts),
        "inside": " + ".join(
            contents_words(part) + (" each" if part["count"] > 1 else "") for part in parts
        ),
        "where": place_words(parts, one["completion"]),
        "time": list(hours_interval(one["training_time_h"])),
        "cost": ["free", ""]
        if one["cost_usd"]["high"] == 0
        else list(usd_interval(one["cost_usd"])),
        "step": list(seconds_interval(one["step_time_s"])),
        "price": price_words(parts),
        "standing": standing_words(one),
        "target": target_of(one),
        "throughput": f"{digits(one['throughput_samples_per_s']['value'])} samples/s",
        "memory": memory_words(one),
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
                "machines": machines_words(other["configuration"]),
                "where": place_words(other["configuration"]),
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
        "time": list(hours_interval(one["training_time_h"])),
        "cost": list(usd_interval(one["cost_usd"])),
        "pick": None if one["pick"] is None else answer_line(one["pick"]),
    }


def _without_source(advised: Record) -> dict[str, Any]:
    """Return advice in which no line of the script stands: a page can be sent to anybody."""
    said = []
    for number, one in enumerate(advised["advice"], start=1):
        how, text = one["how"], one["how"]["text"]
        if text.startswith("--- a/"):
            name = text.partition("\n")[0].removeprefix("--- a/")
            text = f"what `advisor advise --explain {number}` prints, into {name.strip()}"
        said.append({**one, "how": {**how, "text": text}})
    return {**advised, "advice": said}


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
