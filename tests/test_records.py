"""Records: whatever the program writes it reads back, drawn field by field from the nouns."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from advisor.advice.facts import How
from advisor.answer import (
    Answer,
    Candidate,
    Configuration,
    Estimate,
    Offer,
    Recommendation,
    from_record,
    to_record,
)
from advisor.collectors.derive.resources import Resources
from advisor.collectors.format.facts import Limits
from advisor.collectors.format.recording import Host
from advisor.collectors.format.why_cpu import Told
from advisor.errors import AdvisorError
from advisor.gate.decision import Remedy
from advisor.jobs.job import Feed, Job, Measured, Program, Transfers
from advisor.jobs.load import read_job, write_job
from advisor.jobs.runs import Actual
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Transformer
from advisor.planners.systems.gradient_noise import NoiseScale
from advisor.planners.systems.rank_spread import RankSpread

PLAIN: dict[Any, Callable[[Random], Any]] = {
    int: lambda draw: draw.randint(1, 64),
    float: lambda draw: 10 ** draw.uniform(-3, 3),
    str: lambda draw: "".join(draw.choices("abc <é>\n", k=draw.randint(0, 6))),
    bool: lambda draw: draw.random() < 0.5,
    Any: lambda draw: draw.choice((1, "x", None)),
    Estimate: lambda draw: Estimate.lognormal(draw.uniform(1e-3, 1e3), 0.2),
}
NOUNS = (
    Answer, Candidate, Recommendation, Remedy, How, Layout, Transformer, Host, Feed, Measured,
    Program, Actual, Transfers, Resources, Told, Limits, NoiseScale, RankSpread,
)  # fmt: skip


def drawn(kind: Any, draw: Random) -> Any:
    """Anything that a field of this kind holds."""
    origin, inside = get_origin(kind), get_args(kind)
    several = range(draw.randint(0, 2))
    if kind in PLAIN:
        return PLAIN[kind](draw)
    if origin is Literal:
        return draw.choice(inside)
    if origin in (Union, types.UnionType):
        one = draw.choice(inside)
        return None if one is type(None) else drawn(one, draw)
    if origin is tuple and len(inside) == 2 and inside[1] is not Ellipsis:
        return tuple(drawn(one, draw) for one in inside)
    if origin in (tuple, frozenset):
        return origin(drawn(inside[0], draw) for _ in several)
    if origin is not None and issubclass(origin, Mapping):
        return {drawn(inside[0], draw): drawn(inside[1], draw) for _ in several}
    if kind is Configuration:
        return kind(parts=tuple((drawn(Offer, draw), draw.randint(1, 9)) for _ in (0, *several)))
    return noun(kind, draw)


def noun(kind: Any, draw: Random) -> Any:
    hints = get_type_hints(kind)
    for _ in range(300):
        try:
            return kind(**{one.name: drawn(hints[one.name], draw) for one in fields(kind)})
        except (ValueError, AdvisorError, PlanningError):
            continue  # the noun refuses these values
    raise AssertionError(f"no {kind.__name__} can be drawn")


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
def test_a_noun_is_read_as_it_was_written(kind: Any) -> None:
    draw = Random(7)
    for _ in range(20):
        one = noun(kind, draw)
        written = json.loads(json.dumps(to_record(one)))
        assert from_record(kind, written, is_strict=True) == one
        assert from_record(kind, {**written, "later": 1}) == one


def test_a_job_file_holds_all_that_a_recording_knows(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    names = ("resources", "told", "limits", "noise", "spread", "transfers", "actuals", "program")
    hints, draw = get_type_hints(Job), Random(8)
    for _ in range(20):
        job = make_job(**{name: drawn(hints[name], draw) for name in names})
        write_job(job, tmp_path / "job.json")
        assert read_job(tmp_path / "job.json") == job
